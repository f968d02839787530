//! Threads that read, each from one consistent moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::engine::{Env, Read};
use super::file::{Access, StoreFile};
use super::recent::Recent;
use super::rows::Rows;
use super::{Circumstances, failure};
use crate::{Error, Result};

type Task = Box<dyn FnOnce(Result<&mut Open>, &Circumstances) + Send>;

/// A connection, and what it knows of the journal.
struct Open {
    generation: u64,
    conn: Connection,
    recent: Recent,
}

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
        let task: Task = Box::new(move |open, circumstances| {
            if reply.is_closed() {
                return;
            }
            let result = open.and_then(|open| in_one_moment(open, circumstances, reader));
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
    open: &mut Open,
    circumstances: &Circumstances,
    reader: impl FnOnce(&dyn Read, &Env<'_>) -> Result<T>,
) -> Result<T> {
    let tx = open.conn.unchecked_transaction().map_err(|e| failure(e, "read"))?;
    let rows = Rows::open(&tx, &mut open.recent);
    let result = rows.and_then(|rows| circumstances.with_env(|env| reader(&rows, env)));
    let _ = tx.finish();
    result
}

fn serve(file: &StoreFile, queue: &Mutex<Receiver<Task>>, circumstances: &Circumstances, generation: &AtomicU64) {
    let mut open: Option<Open> = None;
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        let now = generation.load(Ordering::SeqCst);
        if open.as_ref().is_some_and(|open| open.generation != now) {
            open = None;
        }
        let opened = match open.take() {
            Some(open) => Ok(open),
            None => file.connect(Access::Read).map(|conn| Open { generation: now, conn, recent: Recent::default() }),
        };
        match opened {
            Ok(opened) => {
                let opened = open.insert(opened);
                let run = std::panic::AssertUnwindSafe(|| task(Ok(opened), circumstances));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a reader panicked; its connection is opened anew");
                    open = None;
                }
            }
            Err(error) => task(Err(error), circumstances),
        }
    }
}
