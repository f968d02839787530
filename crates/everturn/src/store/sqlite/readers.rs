//! Threads that read, each from one consistent moment.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
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

/// The readers of a store. One is there from the start and has its connection open before it is asked anything: whoever
/// opens a store is about to read from it. Others join when all are busy.
#[derive(Debug)]
pub(super) struct Readers {
    tasks: Option<Sender<Task>>,
    desk: Arc<Desk>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    most: usize,
}

/// What the readers share.
#[derive(Debug)]
struct Desk {
    file: Arc<StoreFile>,
    circumstances: Arc<Circumstances>,
    queue: Mutex<Receiver<Task>>,
    /// Raised when connections must be opened anew.
    generation: AtomicU64,
    /// How many readers wait for a task, less how many tasks wait for a reader.
    spare: AtomicI64,
}

impl Readers {
    pub(super) fn start(file: Arc<StoreFile>, circumstances: Arc<Circumstances>, most: usize) -> Result<Self> {
        let (tasks, queue) = channel::<Task>();
        let desk = Desk {
            file,
            circumstances,
            queue: Mutex::new(queue),
            generation: AtomicU64::new(0),
            spare: AtomicI64::new(0),
        };
        let readers = Self { tasks: Some(tasks), desk: Arc::new(desk), threads: Mutex::default(), most };
        readers
            .hire(Preparation::Connect)
            .map_err(|e| Error::unavailable("a reader thread cannot be started").with_source(e))?;
        Ok(readers)
    }

    /// Starts another reader, unless there are enough.
    fn hire(&self, preparation: Preparation) -> std::io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() < self.most {
            let desk = self.desk.clone();
            let thread = thread::Builder::new().name(format!("everturn-read-{}", threads.len()));
            threads.push(thread.spawn(move || desk.serve(preparation))?);
            self.desk.spare.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    pub(super) fn reopen(&self) {
        self.desk.generation.fetch_add(1, Ordering::SeqCst);
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
        if self.desk.spare.fetch_sub(1, Ordering::SeqCst) <= 0
            && let Err(error) = self.hire(Preparation::None)
        {
            tracing::warn!(%error, "no thread for another reader; those that are there read");
        }
        self.tasks.as_ref().ok_or_else(stopped)?.send(task).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for Readers {
    /// Waits for them: a store that is gone holds no file open and no lock.
    fn drop(&mut self) {
        self.tasks = None;
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
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

/// What a reader does before it waits for its first task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preparation {
    Connect,
    None,
}

impl Desk {
    fn serve(&self, preparation: Preparation) {
        let mut open: Option<Open> = None;
        if preparation == Preparation::Connect {
            // A failure is told to whoever asks first, when it is tried again.
            open = self.connect().ok();
        }
        loop {
            let task = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(task) = task else { return };
            open = self.run(task, open);
            self.spare.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn connect(&self) -> Result<Open> {
        let generation = self.generation.load(Ordering::SeqCst);
        self.file.connect(Access::Read).map(|conn| Open { generation, conn, recent: Recent::default() })
    }

    /// Runs a task and gives the connection to go on with.
    fn run(&self, task: Task, open: Option<Open>) -> Option<Open> {
        let now = self.generation.load(Ordering::SeqCst);
        let open = match open.filter(|open| open.generation == now) {
            Some(open) => Ok(open),
            None => self.connect(),
        };
        match open {
            Ok(mut open) => {
                let run = std::panic::AssertUnwindSafe(|| task(Ok(&mut open), &self.circumstances));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!("a reader panicked; its connection is opened anew");
                    return None;
                }
                Some(open)
            }
            Err(error) => {
                task(Err(error), &self.circumstances);
                None
            }
        }
    }
}
