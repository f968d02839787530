//! The one thread that writes.
//!
//! It takes what queued up while it was busy and puts it into one transaction: under load many turns share one wait for
//! the disk, alone a turn waits for nobody. Each rule decides inside the transaction, seeing what the ones before it in
//! the same batch wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::engine::{Ctx, Sync};
use super::checkpoint::{Checkpointer, WAL_HARD, WAL_SOFT, move_log};
use super::crowd::Crowd;
use super::file::{Access, PAGE_SIZE, StoreFile, TurnLock};
use super::recent::Recent;
use super::rows::Rows;
use super::stats::{Counters, SqliteStats};
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
trait Job: Send {
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

#[derive(Debug)]
pub(super) struct Writer {
    requests: Option<Sender<Request>>,
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
        let (requests, queue) = channel();
        let (counters, log_pages) = (Arc::<Counters>::default(), Arc::<AtomicU64>::default());
        let mut state = WriterThread {
            file,
            circumstances,
            checkpointer,
            lock: Arc::new(lock),
            conn: None,
            full_sync: None,
            log_pages: log_pages.clone(),
            counters: counters.clone(),
            moving: Moving::At(WAL_SOFT),
            recent: Recent::default(),
            crowd: Crowd::default(),
        };
        state.adopt(conn)?;
        let thread = thread::Builder::new()
            .name("everturn-write".to_owned())
            .spawn(move || state.serve(&queue))
            .map_err(|e| Error::unavailable("the writer thread cannot be started").with_source(e))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), counters, log_pages })
    }

    pub(super) fn stats(&self) -> SqliteStats {
        let log_bytes = self.log_pages.load(Ordering::Relaxed) * u64::from(PAGE_SIZE);
        SqliteStats { log_bytes, ..self.counters.read() }
    }

    fn send(&self, request: Request) -> Result<()> {
        let stopped = || Error::internal("the writer has stopped");
        self.requests.as_ref().ok_or_else(stopped)?.send(request).map_err(|_| stopped())
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
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct WriterThread {
    file: Arc<StoreFile>,
    circumstances: Arc<Circumstances>,
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
    fn serve(&mut self, queue: &Receiver<Request>) {
        while let Ok(first) = queue.recv() {
            let mut batch = Vec::new();
            let mut next = Some(first);
            let mut waiting = None;
            while let Some(request) = next.take() {
                match request {
                    Request::Job(job) => {
                        batch.push(job);
                        if batch.len() < MAX_BATCH {
                            next = queue.try_recv().ok().or_else(|| self.await_more(queue, &batch, &mut waiting));
                        }
                    }
                    other => {
                        self.write(std::mem::take(&mut batch));
                        self.tend(other);
                    }
                }
            }
            self.crowd.note(batch.len());
            self.write(batch);
        }
        self.settle();
    }

    /// Waits a moment for others to join a batch, where many write and the disk will be waited for.
    fn await_more(
        &self,
        queue: &Receiver<Request>,
        batch: &[Box<dyn Job>],
        since: &mut Option<Instant>,
    ) -> Option<Request> {
        let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
        let patience = self.crowd.patience(batch.len(), waited).filter(|_| self.waits_for_disk(batch))?;
        since.get_or_insert_with(Instant::now);
        thread::sleep(patience);
        queue.try_recv().ok()
    }

    fn waits_for_disk(&self, batch: &[Box<dyn Job>]) -> bool {
        self.file.durability() == Durability::PowerSafe && batch.iter().any(|job| job.sync() == Sync::Durable)
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
        self.conn = Some(conn);
        Ok(())
    }

    fn tend(&mut self, request: Request) {
        match request {
            Request::Job(job) => self.write(vec![job]),
            Request::Scrub(reply) => {
                let _ = reply.send(self.circumstances.check_open().and_then(|()| self.truncate_log()));
            }
            Request::Reopen(reply) => {
                let _ = reply.send(self.reopen());
            }
        }
    }

    /// Writes a batch and answers everybody in it.
    fn write(&mut self, mut batch: Vec<Box<dyn Job>>) {
        while !batch.is_empty() {
            if let Err(error) = self.circumstances.check_open() {
                let text = error.message().to_owned();
                batch.into_iter().for_each(|job| job.answer(Err(Error::unavailable(&text))));
                return;
            }
            match self.try_write(&mut batch) {
                Ok(()) => {
                    self.counters.committed(batch.len(), self.full_sync == Some(true));
                    batch.into_iter().for_each(|job| job.answer(Ok(())));
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

    fn try_write(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), (Option<usize>, Error)> {
        let full = self.waits_for_disk(batch);
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

    /// Only batches somebody waits for to be durable wait for the disk; that one wait covers all before it.
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
        self.connect()?;
        self.set_sync(self.file.durability() == Durability::PowerSafe)?;
        self.truncate_log()?;
        self.circumstances.open();
        Ok(())
    }
}
