//! Who writes, and when.
//!
//! Where few write, a record is written on its caller's thread, at once ([`Pen`]). All else is for a thread of its own, which
//! takes what queued up while it was busy and puts it into one transaction: under load many turns share a commit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::engine::{Ctx, Effort, Sync};
use super::Circumstances;
use super::checkpoint::Checkpointer;
use super::file::{PAGE_SIZE, StoreFile};
use super::inbox::Inbox;
use super::job::{Job, job};
use super::lock::TurnLock;
use super::pen::{Left, Pen};
use super::readers::Seats;
use super::stats::{Counters, SqliteStats};
use super::syncer::{Syncer, Tide};
use crate::{Error, Result};

/// Rules in one transaction at most, so that the first of them does not wait too long.
const MAX_BATCH: usize = 512;

enum Request {
    Job(Box<dyn Job>),
    /// Do what callers left to be done.
    Tend,
    Scrub(oneshot::Sender<Result<()>>),
    Reopen(Seats, oneshot::Sender<Result<()>>),
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// Lets nobody wait for a thread that is gone.
struct Ends(Arc<Inbox<Request>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Where the pen is when nobody writes.
#[derive(Debug)]
struct Stand {
    pen: Mutex<Pen>,
    /// Whether the writer's thread waits for it: those who would write by themselves leave it then, or it might wait for long.
    wanted: AtomicBool,
}

impl Stand {
    /// Takes the pen, waiting for it. A rule that panicked left it as it was: its transaction was rolled back.
    fn take(&self) -> MutexGuard<'_, Pen> {
        self.wanted.store(true, Ordering::Relaxed);
        let pen = self.pen.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(false, Ordering::Relaxed);
        pen
    }

    /// Takes the pen if nobody has it or waits for it.
    fn try_take(&self) -> Option<MutexGuard<'_, Pen>> {
        if self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        match self.pen.try_lock() {
            Ok(pen) => Some(pen),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    inbox: Arc<Inbox<Request>>,
    stand: Arc<Stand>,
    tide: Arc<Tide>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    log_pages: Arc<AtomicU64>,
    crowded: Arc<AtomicBool>,
    syncer: Option<Arc<Syncer>>,
    lock: Arc<TurnLock>,
}

impl Writer {
    pub(super) fn start(
        file: Arc<StoreFile>,
        conn: Connection,
        lock: Arc<TurnLock>,
        circumstances: Arc<Circumstances>,
        checkpointer: Checkpointer,
    ) -> Result<Self> {
        let inbox = Arc::<Inbox<Request>>::default();
        let (tide, counters) = (Arc::<Tide>::default(), Arc::<Counters>::default());
        let syncer = match file.log_beside_commits() {
            Some(log) => Some(Arc::new(Syncer::start(log, tide.clone(), circumstances.clone(), counters.clone())?)),
            None => None,
        };
        let pen = Pen::new(file, conn, lock.clone(), circumstances, syncer.clone(), checkpointer, counters.clone())?;
        let (log_pages, crowded) = (pen.log_pages(), pen.crowded());
        let stand = Arc::new(Stand { pen: Mutex::new(pen), wanted: AtomicBool::new(false) });
        let (requests, shared) = (inbox.clone(), stand.clone());
        let thread = thread::Builder::new()
            .name("everturn-write".to_owned())
            .spawn(move || {
                // A panic too must tell those who wait.
                let ends = Ends(requests);
                serve(&shared, &ends.0);
            })
            .map_err(|e| Error::unavailable("the writer thread cannot be started").with_source(e))?;
        Ok(Self { inbox, stand, tide, thread: Some(thread), counters, log_pages, crowded, syncer, lock })
    }

    /// Waits until all that can be read now is on disk, where it is to be.
    pub(super) async fn settled(&self) {
        self.tide.settled().await;
    }

    /// Whether all that can be read now is on disk, where it is to be.
    pub(super) fn is_settled(&self) -> bool {
        self.tide.is_settled()
    }

    /// Why writes wait, if another process keeps them from being made.
    pub(super) fn hindrance(&self) -> Option<Error> {
        self.lock.hindrance()
    }

    pub(super) fn stats(&self) -> SqliteStats {
        let log_bytes = self.log_pages.load(Ordering::Relaxed) * u64::from(PAGE_SIZE);
        SqliteStats { log_bytes, ..self.counters.read() }
    }

    fn send(&self, request: Request) -> Result<()> {
        self.inbox.push(request).map_err(|_| Error::internal("the writer has stopped"))
    }

    /// Something durable is about to come: whoever it comes to next wakes up meanwhile.
    pub(super) fn rouse(&self) {
        match &self.syncer {
            Some(_) if self.crowded.load(Ordering::Relaxed) => self.inbox.rouse(),
            Some(syncer) => syncer.rouse(),
            None => {}
        }
    }

    pub(super) async fn run<T, F>(&self, sync: Sync, effort: Effort, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        let (job, answer) = job(sync, effort, rule);
        if let Some(job) = self.write_at_once(job) {
            self.send(Request::Job(job))?;
        }
        answer.wait().await
    }

    /// Writes a job here and now, if nobody else writes or waits to. Else it comes back.
    fn write_at_once(&self, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
        let Some(mut pen) = self.stand.try_take().filter(|_| self.inbox.is_empty()) else { return Some(job) };
        match pen.write_at_once(job) {
            Ok(Left::Nothing) => None,
            Ok(Left::Work) => {
                drop(pen);
                // A thread that is gone is told of by the next write.
                let _ = self.inbox.push(Request::Tend);
                None
            }
            Err(job) => Some(job),
        }
    }

    /// Has a rule run that nobody waits for.
    pub(super) fn post<T, F>(&self, sync: Sync, rule: F) -> Result<()>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        let (job, _) = job(sync, Effort::Long, rule);
        self.send(Request::Job(job))
    }

    pub(super) async fn scrub(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Scrub(reply))?;
        answer.await.map_err(|_| Error::internal("the writer has stopped"))?
    }

    pub(super) async fn reopen(&self, readers: Seats) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Reopen(readers, reply))?;
        answer.await.map_err(|_| Error::internal("the writer has stopped"))?
    }
}

impl Drop for Writer {
    /// Waits for what was accepted: a store that is dropped has written what it was asked to.
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stand: &Stand, inbox: &Inbox<Request>) {
    let mut requests = Vec::new();
    loop {
        let patience = stand.take().patience();
        inbox.take(&mut requests, MAX_BATCH, patience);
        if requests.is_empty() {
            break;
        }
        let mut held = stand.take();
        let mut batch = Vec::with_capacity(requests.len());
        for request in requests.drain(..) {
            if let Request::Job(job) = request {
                batch.push(job);
                continue;
            }
            held.write(std::mem::take(&mut batch));
            match request {
                Request::Job(_) => {}
                Request::Tend => held.tend(),
                Request::Scrub(reply) => drop(reply.send(held.scrub())),
                Request::Reopen(readers, reply) => drop(reply.send(held.reopen(&readers))),
            }
        }
        held.write(batch);
    }
    stand.take().settle();
}
