//! The one thread that writes.
//!
//! It takes what queued up while it was busy and puts it into one transaction: under load many turns share a commit, alone
//! a turn waits for nobody. Each rule decides inside the transaction, seeing what the ones before it in the same batch
//! wrote. What must be on disk before it is acknowledged goes on to the syncer, and the next batch is written meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::engine::{Ctx, Sync};
use super::checkpoint::{Checkpointer, WAL_HARD, WAL_SOFT, move_log};
use super::crowd::Crowd;
use super::file::{Access, PAGE_SIZE, StoreFile, TurnLock};
use super::inbox::Inbox;
use super::recent::Recent;
use super::rows::Rows;
use super::stats::{Counters, SqliteStats};
use super::syncer::{Syncer, Tide};
use super::{Circumstances, Durability, failure};
use crate::{Error, ErrorKind, Result};

/// Rules in one transaction at most, so that the first of them does not wait too long.
const MAX_BATCH: usize = 512;

enum Request {
    Job(Box<dyn Job>),
    Scrub(oneshot::Sender<Result<()>>),
    Reopen(oneshot::Sender<Result<()>>),
}

/// A rule with somebody waiting for its answer.
pub(super) trait Job: Send {
    fn sync(&self) -> Sync;
    /// Runs the rule. An error means that it failed, not that it refused.
    fn run(&mut self, ctx: &mut Ctx<'_>) -> Result<()>;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

struct RuleJob<T, F> {
    sync: Sync,
    rule: F,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Ctx<'_>) -> Result<T> + Send> Job for RuleJob<T, F> {
    fn sync(&self) -> Sync {
        self.sync
    }

    fn run(&mut self, ctx: &mut Ctx<'_>) -> Result<()> {
        match (self.rule)(ctx) {
            Err(error) if is_failure(&error) => Err(error),
            result => {
                self.result = Some(result);
                Ok(())
            }
        }
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Self { result, reply, .. } = *self;
        let result = outcome.and_then(|()| result.unwrap_or_else(|| Err(Error::internal("a rule did not run"))));
        let _ = reply.send(result);
    }
}

/// Whether a rule broke down, possibly in the middle of writing, rather than refused before it wrote.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Internal)
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

#[derive(Debug)]
pub(super) struct Writer {
    inbox: Arc<Inbox<Request>>,
    tide: Arc<Tide>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    log_pages: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start(
        file: Arc<StoreFile>,
        conn: Connection,
        lock: TurnLock,
        circumstances: Arc<Circumstances>,
        checkpointer: Checkpointer,
    ) -> Result<Self> {
        let inbox = Arc::<Inbox<Request>>::default();
        let (counters, log_pages) = (Arc::<Counters>::default(), Arc::<AtomicU64>::default());
        let tide = Arc::<Tide>::default();
        let syncer = match file.log_beside_commits() {
            Some(log) => Some(Syncer::start(log, tide.clone(), circumstances.clone(), counters.clone())?),
            None => None,
        };
        let mut state = WriterThread {
            file,
            circumstances,
            syncer,
            checkpointer,
            lock: Arc::new(lock),
            conn: None,
            full_sync: None,
            log_pages: log_pages.clone(),
            counters: counters.clone(),
            moving: Moving::At(WAL_SOFT),
            recent: Recent::default(),
            crowd: Crowd::one_in(4),
        };
        state.adopt(conn)?;
        let requests = inbox.clone();
        let thread = thread::Builder::new()
            .name("everturn-write".to_owned())
            .spawn(move || {
                // A panic too must tell those who wait.
                let ends = Ends(requests);
                state.serve(&ends.0);
            })
            .map_err(|e| Error::unavailable("the writer thread cannot be started").with_source(e))?;
        Ok(Self { inbox, tide, thread: Some(thread), counters, log_pages })
    }

    /// Waits until all that can be read now is on disk, where it is to be.
    pub(super) async fn settled(&self) {
        self.tide.settled().await;
    }

    pub(super) fn stats(&self) -> SqliteStats {
        let log_bytes = self.log_pages.load(Ordering::Relaxed) * u64::from(PAGE_SIZE);
        SqliteStats { log_bytes, ..self.counters.read() }
    }

    fn send(&self, request: Request) -> Result<()> {
        self.inbox.push(request).map_err(|_| Error::internal("the writer has stopped"))
    }

    pub(super) async fn run<T, F>(&self, sync: Sync, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        let answer = self.post(sync, rule)?;
        answer.await.map_err(|_| Error::internal("the writer has stopped"))?
    }

    /// Has a rule run whether or not somebody waits for its answer.
    pub(super) fn post<T, F>(&self, sync: Sync, rule: F) -> Result<oneshot::Receiver<Result<T>>>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Job(Box::new(RuleJob { sync, rule, result: None, reply })))?;
        Ok(answer)
    }

    pub(super) async fn scrub(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Scrub(reply))?;
        answer.await.map_err(|_| Error::internal("the writer has stopped"))?
    }

    pub(super) async fn reopen(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Reopen(reply))?;
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

struct WriterThread {
    file: Arc<StoreFile>,
    circumstances: Arc<Circumstances>,
    /// Waits for the disk; nobody does where SQLite syncs by itself, or nothing is synced at all.
    syncer: Option<Syncer>,
    checkpointer: Checkpointer,
    lock: Arc<TurnLock>,
    conn: Option<Connection>,
    full_sync: Option<bool>,
    /// Pages in the log after the last commit.
    log_pages: Arc<AtomicU64>,
    counters: Arc<Counters>,
    moving: Moving,
    recent: Recent,
    crowd: Crowd,
}

/// How far moving the log into the file has come.
#[derive(Clone, Copy)]
enum Moving {
    /// It begins when the log has this size.
    At(u64),
    /// The background is at it; the rest is for the writer.
    Most,
}

impl WriterThread {
    fn serve(&mut self, inbox: &Inbox<Request>) {
        let mut requests = Vec::new();
        loop {
            inbox.take(&mut requests, MAX_BATCH, self.crowd.patience());
            if requests.is_empty() {
                break;
            }
            let mut batch = Vec::with_capacity(requests.len());
            for request in requests.drain(..) {
                match request {
                    Request::Job(job) => batch.push(job),
                    other => {
                        self.write(std::mem::take(&mut batch), inbox);
                        self.tend(other, inbox);
                    }
                }
            }
            self.crowd.note(batch.len() + self.syncer.as_ref().map_or(0, Syncer::waiting));
            self.write(batch, inbox);
        }
        self.settle();
    }

    /// Whether a commit of these waits for the disk.
    fn syncs_in_commit(&self, batch: &[Box<dyn Job>]) -> bool {
        self.file.durability() == Durability::PowerSafe
            && self.syncer.is_none()
            && batch.iter().any(|job| job.sync() == Sync::Durable)
    }

    /// Leaves the tables complete behind, so that whoever opens the file next need not read the journal.
    fn settle(&mut self) {
        let Some(conn) = self.conn.as_ref().filter(|_| self.circumstances.check_open().is_ok()) else { return };
        let Ok(_held) = self.lock.hold() else { return };
        let recent = &mut self.recent;
        let mut settle = || -> Result<()> {
            let tx = rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)
                .map_err(|e| failure(e, "write"))?;
            Rows::open(&tx, recent)?.settle()?;
            tx.commit().map_err(|e| failure(e, "write"))
        };
        if let Err(error) = settle() {
            tracing::warn!(%error, "the tables were not filled; the next writer does it");
        }
    }

    fn connect(&mut self) -> Result<()> {
        self.conn = None;
        let conn = self.file.connect(Access::Write)?;
        self.adopt(conn)
    }

    fn adopt(&mut self, mut conn: Connection) -> Result<()> {
        self.full_sync = None;
        self.recent.forget();
        let pages = self.log_pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, now: i32| {
            pages.store(now.unsigned_abs().into(), Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(count)).map_err(|e| failure(e, "open"))?;
        if let Some(syncer) = &self.syncer {
            // SQLite opens its log when it first reads.
            conn.query_row("PRAGMA user_version", [], |_| Ok(())).map_err(|e| failure(e, "open"))?;
            syncer.log().open()?;
        }
        self.conn = Some(conn);
        Ok(())
    }

    fn tend(&mut self, request: Request, inbox: &Inbox<Request>) {
        match request {
            Request::Job(job) => self.write(vec![job], inbox),
            Request::Scrub(reply) => {
                let _ = reply.send(self.circumstances.check_open().and_then(|()| self.truncate_log()));
            }
            Request::Reopen(reply) => {
                let _ = reply.send(self.reopen());
            }
        }
    }

    /// Writes a batch and answers everybody in it, or has them answered.
    fn write(&mut self, mut batch: Vec<Box<dyn Job>>, inbox: &Inbox<Request>) {
        while !batch.is_empty() {
            if let Err(error) = self.circumstances.check_open() {
                let text = error.message().to_owned();
                batch.into_iter().for_each(|job| job.answer(Err(Error::unavailable(&text))));
                return;
            }
            // Whoever sees the commit must know that it is not on disk yet.
            let durable = batch.iter().any(|job| job.sync() == Sync::Durable);
            let number = self.syncer.as_ref().filter(|_| durable).map(Syncer::next);
            let written = self.try_write(&mut batch);
            if let (Err(_), Some(syncer), Some(number)) = (&written, &self.syncer, number) {
                syncer.hand_over(number, Vec::new());
            }
            match written {
                Ok(()) => {
                    self.counters.committed(batch.len());
                    self.acknowledge(batch, number, inbox);
                    self.after_batch();
                    return;
                }
                // Nothing of the batch was kept. The one to blame is told; the others go on without it.
                Err((Some(culprit), error)) => {
                    self.circumstances.note(&error);
                    batch.remove(culprit).answer(Err(error));
                }
                Err((None, error)) => {
                    self.circumstances.note(&error);
                    let (kind, text) = (error.kind(), error.to_string());
                    batch.into_iter().for_each(|job| job.answer(Err(Error::new(kind, &text))));
                    return;
                }
            }
        }
    }

    /// Answers those whose writes need not be on disk, and sees to it that the others are answered when theirs are.
    fn acknowledge(&self, batch: Vec<Box<dyn Job>>, number: Option<u64>, inbox: &Inbox<Request>) {
        let (Some(syncer), Some(number)) = (&self.syncer, number) else {
            if self.full_sync == Some(true) {
                self.counters.synced();
            }
            return batch.into_iter().for_each(|job| job.answer(Ok(())));
        };
        let (durable, visible): (Vec<_>, Vec<_>) = batch.into_iter().partition(|job| job.sync() == Sync::Durable);
        visible.into_iter().for_each(|job| job.answer(Ok(())));
        // Another thread is worth its waking only where there is something to do meanwhile.
        if inbox.is_empty() && syncer.waiting() == 0 {
            syncer.sync_now(number, durable);
        } else {
            syncer.hand_over(number, durable);
        }
    }

    fn try_write(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), (Option<usize>, Error)> {
        let full = self.syncs_in_commit(batch);
        let lock = self.lock.clone();
        let _held = lock.hold().map_err(|error| (None, error))?;
        self.locked_write(batch, full)
    }

    fn locked_write(&mut self, batch: &mut [Box<dyn Job>], full: bool) -> Result<(), (Option<usize>, Error)> {
        let whole = |error: Error| (None, error);
        self.set_sync(full).map_err(whole)?;
        let conn = self.conn.as_ref().ok_or_else(|| whole(Error::unavailable("the store is closed: reopen it")))?;
        let run = |sql: &str| {
            let mut statement = conn.prepare_cached(sql).map_err(|e| failure(e, "write"))?;
            statement.execute([]).map(drop).map_err(|e| failure(e, "write"))
        };
        run("BEGIN IMMEDIATE").map_err(whole)?;
        let (recent, journal) = (&mut self.recent, self.file.journal());
        let outcome = self.circumstances.with_env(|env| {
            let mut rows = Rows::open(conn, recent).map_err(whole)?;
            for (i, job) in batch.iter_mut().enumerate() {
                let mut ctx = Ctx { tx: &mut rows, env };
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run(&mut ctx)));
                let ran = ran.unwrap_or_else(|_| Err(Error::internal("a rule panicked")));
                ran.map_err(|error| (Some(i), error))?;
            }
            rows.close(journal).map_err(whole)
        });
        let outcome = outcome.and_then(|()| run("COMMIT").map_err(whole));
        if outcome.is_err() {
            self.counters.rolled_back();
            self.recent.forget();
            if !conn.is_autocommit() {
                let _ = run("ROLLBACK");
            }
        }
        outcome
    }

    /// Where SQLite syncs by itself, it does for batches that somebody waits for to be durable: that covers all before.
    fn set_sync(&mut self, full: bool) -> Result<()> {
        if self.full_sync == Some(full) {
            return Ok(());
        }
        if let Some(conn) = &self.conn {
            let sql = if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            let mut statement = conn.prepare_cached(sql).map_err(|e| failure(e, "write"))?;
            statement.execute([]).map_err(|e| failure(e, "write"))?;
            self.full_sync = Some(full);
        }
        Ok(())
    }

    fn after_batch(&mut self) {
        let wal = self.log_pages.load(Ordering::Relaxed) * u64::from(PAGE_SIZE);
        self.moving = match self.moving {
            // The log may have begun anew; then it is due at its usual size again.
            Moving::At(size) if wal < size => Moving::At(size.min(wal + WAL_SOFT)),
            _ if wal > WAL_HARD => {
                if let Err(error) = self.truncate_log() {
                    tracing::warn!(%error, "the log could not be cut back");
                    self.circumstances.note(&error);
                }
                // A reader may keep it from being cut back; that is not tried again with every batch.
                Moving::At(wal + WAL_SOFT)
            }
            Moving::At(_) => {
                self.checkpointer.wake();
                Moving::Most
            }
            Moving::Most if self.checkpointer.is_busy() => Moving::Most,
            Moving::Most => {
                if let Some(Err(error)) = self.conn.as_ref().map(move_log) {
                    self.circumstances.note(&error);
                }
                Moving::At(wal + WAL_SOFT)
            }
        };
    }

    /// Moves all of the log into the file and cuts it to nothing.
    fn truncate_log(&mut self) -> Result<()> {
        let conn = self.conn.as_ref().ok_or_else(|| Error::unavailable("the store is closed: reopen it"))?;
        let busy: i64 = conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(|e| failure(e, "checkpoint"))?;
        if busy != 0 {
            return Err(Error::unavailable("a reader keeps the log from being cut back: try again when it is done"));
        }
        self.log_pages.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the file anew and makes sure that what is seen there is really on disk before anybody relies on it.
    fn reopen(&mut self) -> Result<()> {
        if let Some(syncer) = &self.syncer {
            // What was committed before the failure is not acknowledged by what is synced after it.
            syncer.flush();
        }
        self.connect()?;
        self.set_sync(self.file.durability() == Durability::PowerSafe)?;
        self.truncate_log()?;
        self.circumstances.open();
        Ok(())
    }
}
