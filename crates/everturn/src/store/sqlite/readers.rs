//! Threads that read, each from one consistent moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::engine::{Env, Read};
use super::file::{Access, StoreFile};
use super::rows::Rows;
use super::{Circumstances, failure};
use crate::{Error, Result};

type Task = Box<dyn FnOnce(Result<&Connection>, &Circumstances) + Send>;

#[derive(Debug)]
pub(super) struct Readers {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
    /// Raised when connections must be opened anew.
    generation: Arc<AtomicU64>,
}

impl Readers {
    pub(super) fn start(file: Arc<StoreFile>, circumstances: Arc<Circumstances>, count: usize) -> Result<Self> {
        let (tasks, queue) = channel::<Task>();
        let queue = Arc::new(Mutex::new(queue));
        let generation = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::with_capacity(count);
        for i in 0..count {
            let (file, queue, circumstances, generation) =
                (file.clone(), queue.clone(), circumstances.clone(), generation.clone());
            let thread = thread::Builder::new()
                .name(format!("everturn-read-{i}"))
                .spawn(move || serve(&file, &queue, &circumstances, &generation))
                .map_err(|e| Error::unavailable("a reader thread cannot be started").with_source(e))?;
            threads.push(thread);
        }
        Ok(Self { tasks: Some(tasks), threads, generation })
    }

    pub(super) fn reopen(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) async fn run<T, F>(&self, reader: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task: Task = Box::new(move |conn, circumstances| {
            if reply.is_closed() {
                return;
            }
            let result = conn.and_then(|conn| in_one_moment(conn, circumstances, reader));
            let _ = reply.send(result);
        });
        let stopped = || Error::internal("the readers have stopped");
        self.tasks.as_ref().ok_or_else(stopped)?.send(task).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for Readers {
    /// Waits for them: a store that is gone holds no file open and no lock.
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn in_one_moment<T>(
    conn: &Connection,
    circumstances: &Circumstances,
    reader: impl FnOnce(&dyn Read, &Env<'_>) -> Result<T>,
) -> Result<T> {
    let tx = conn.unchecked_transaction().map_err(|e| failure(e, "read"))?;
    let result = circumstances.with_env(|env| reader(&Rows::new(&tx), env));
    let _ = tx.finish();
    result
}

fn serve(file: &StoreFile, queue: &Mutex<Receiver<Task>>, circumstances: &Circumstances, generation: &AtomicU64) {
    let mut open: Option<(u64, Connection)> = None;
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        let now = generation.load(Ordering::SeqCst);
        if open.as_ref().is_some_and(|(of, _)| *of != now) {
            open = None;
        }
        let conn = match open.take() {
            Some(open) => Ok(open),
            None => file.connect(Access::Read).map(|conn| (now, conn)),
        };
        match conn {
            Ok(conn) => {
                let (_, conn) = open.insert(conn);
                let conn: &Connection = conn;
                let run = std::panic::AssertUnwindSafe(|| task(Ok(conn), circumstances));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a reader panicked; its connection is opened anew");
                    open = None;
                }
            }
            Err(error) => task(Err(error), circumstances),
        }
    }
}
