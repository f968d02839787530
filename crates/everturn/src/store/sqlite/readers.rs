//! Threads that read, each from one consistent moment.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::super::engine::{Env, Read};
use super::file::{Access, StoreFile};
use super::recent::Recent;
use super::rows::Rows;
use super::{Circumstances, Conn, failure, looks_damaged};
use crate::{Error, Result};

type Task = Box<dyn FnOnce(Result<&mut Open>, &Circumstances) + Send>;

/// A connection, and what it knows of the journal.
struct Open {
    generation: u64,
    conn: Conn,
    recent: Recent,
}

/// Where a reader has its connection, if it has one. Locked while it opens or uses it.
type Seat = Arc<Mutex<Option<Open>>>;

/// The readers' connections.
#[derive(Clone, Default)]
pub(super) struct Seats(Arc<Mutex<Vec<Seat>>>);

impl std::fmt::Debug for Seats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seats")
    }
}

impl Seats {
    fn add(&self) -> Seat {
        let seat = Seat::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seat.clone());
        seat
    }

    /// Closes all connections, waiting for those that are in use. A store that is closed opens none meanwhile.
    pub(super) fn close(&self) {
        let seats = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for seat in seats {
            *seat.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// The readers of a store. One is there from the start and has its connection open before it is asked anything: whoever
/// opens a store is about to read from it. Others join when all are busy.
#[derive(Debug)]
pub(super) struct Readers {
    tasks: Option<Sender<Task>>,
    desk: Arc<Desk>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    seats: Seats,
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
        let (threads, seats) = (Mutex::default(), Seats::default());
        let readers = Self { tasks: Some(tasks), desk: Arc::new(desk), threads, seats, most };
        readers
            .hire(Preparation::Connect)
            .map_err(|e| Error::unavailable("a reader thread cannot be started").with_source(e))?;
        Ok(readers)
    }

    /// Starts another reader, unless there are enough.
    fn hire(&self, preparation: Preparation) -> std::io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() < self.most {
            let (desk, seat) = (self.desk.clone(), self.seats.add());
            let thread = thread::Builder::new().name(format!("everturn-read-{}", threads.len()));
            threads.push(thread.spawn(move || desk.serve(&seat, preparation))?);
            self.desk.spare.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Has connections opened anew when they are next used.
    pub(super) fn renew(&self) {
        self.desk.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn seats(&self) -> Seats {
        self.seats.clone()
    }

    pub(super) async fn run<T, F>(&self, mut reader: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task: Task = Box::new(move |open, circumstances| {
            if reply.is_closed() {
                return;
            }
            let result = open.and_then(|open| {
                let read = in_one_moment(open, circumstances, &mut reader);
                if read.as_ref().is_err_and(looks_damaged) {
                    in_one_moment(open, circumstances, &mut reader)
                } else {
                    read
                }
            });
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
    reader: &mut impl FnMut(&dyn Read, &Env<'_>) -> Result<T>,
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
    fn serve(&self, seat: &Seat, preparation: Preparation) {
        let take = || seat.lock().unwrap_or_else(PoisonError::into_inner);
        if preparation == Preparation::Connect {
            // A failure is told to whoever asks first, when it is tried again.
            let mut open = take();
            *open = self.connect().ok();
        }
        loop {
            let task = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(task) = task else { return };
            self.run(task, &mut take());
            self.spare.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn connect(&self) -> Result<Open> {
        let generation = self.generation.load(Ordering::SeqCst);
        // Not while what others have open is being closed.
        self.circumstances.check_open()?;
        let conn = Conn::new(self.file.connect(Access::Read)?, &self.circumstances);
        Ok(Open { generation, conn, recent: Recent::default() })
    }

    /// Runs a task with the connection that is there, or a new one.
    fn run(&self, task: Task, open: &mut Option<Open>) {
        let now = self.generation.load(Ordering::SeqCst);
        if open.as_ref().is_none_or(|open| open.generation != now) {
            *open = None;
            match self.connect() {
                Ok(connected) => *open = Some(connected),
                Err(error) => return task(Err(error), &self.circumstances),
            }
        }
        let Some(connected) = open else { return };
        let run = std::panic::AssertUnwindSafe(|| task(Ok(connected), &self.circumstances));
        if std::panic::catch_unwind(run).is_err() {
            tracing::error!("a reader panicked; its connection is opened anew");
            *open = None;
        }
    }
}
