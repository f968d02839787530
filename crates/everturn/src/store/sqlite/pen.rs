//! The pen: whoever holds it writes.
//!
//! A batch of rules becomes one transaction. Each rule decides inside of it, seeing what the ones before it in the same batch
//! wrote. What must be on disk before it is acknowledged goes on to the syncer, and the next batch is written meanwhile.
//!
//! Where many write, the writer's thread has the pen. Where few do, each takes it for its own record, because waking another
//! thread takes longer than the write. A caller's thread has other things to do, so that whatever could keep it waiting is left
//! to others: the disk to the syncer, and another process, large records, filling the tables and moving the log to the writer.

mod room;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::super::engine::{Ctx, Effort, Sync};
use super::checkpoint::{Checkpointer, WAL_HARD, WAL_SOFT, move_log, move_log_alone};
use super::crowd::Crowd;
use super::file::{Access, PAGE_SIZE, StoreFile};
use super::inbox::Patience;
use super::job::Job;
use super::lock::{TurnLock, file_is_busy};
use super::readers::Seats;
use super::recent::Recent;
use super::reserve::{full, is_full};
use super::rows::{Rows, Slots};
use super::stats::Counters;
use super::syncer::Syncer;
use super::{Circumstances, Conn, Durability, failure, looks_damaged};
use crate::{Error, Result};

pub(super) struct Pen {
    /// Closed before the file is.
    conn: Option<Conn>,
    file: Arc<StoreFile>,
    circumstances: Arc<Circumstances>,
    /// Waits for the disk; nobody does where SQLite syncs by itself, or nothing is synced at all.
    syncer: Option<Arc<Syncer>>,
    checkpointer: Checkpointer,
    lock: Arc<TurnLock>,
    full_sync: Option<bool>,
    /// Pages in the log after the last commit.
    log_pages: Arc<AtomicU64>,
    /// Whether many write, for those who have not got the pen.
    crowded: Arc<AtomicBool>,
    counters: Arc<Counters>,
    moving: Moving,
    recent: Recent,
    crowd: Crowd,
    /// After a failure, the beginning of the log when opening it anew was first tried.
    stuck_at: Option<Option<[u8; 32]>>,
}

impl std::fmt::Debug for Pen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pen").field("file", &self.file).finish_non_exhaustive()
    }
}

/// How far moving the log into the file has come.
#[derive(Clone, Copy, Debug)]
enum Moving {
    /// It begins when the log has this size.
    At(u64),
    /// The background is at it; the rest is for the writer.
    Most,
}

/// What holding the pen may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// As long as it takes.
    Whole,
    /// No longer than one write.
    Brief,
}

/// A batch that was committed.
struct Committed {
    batch: Vec<Box<dyn Job>>,
    /// Its number, if it must get to the disk.
    number: Option<u64>,
}

/// Why a batch was not written.
enum Failed {
    /// Another program writes to the file, and there is no time to wait for it.
    Busy,
    /// One of the batch is to blame, by its place in it.
    One(usize, Error),
    Whole(Error),
}

/// What is left to do after a write on a caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// Something for [`Pen::tend`].
    Work,
}

impl Pen {
    pub(super) fn new(
        file: Arc<StoreFile>,
        conn: Connection,
        lock: Arc<TurnLock>,
        circumstances: Arc<Circumstances>,
        syncer: Option<Arc<Syncer>>,
        checkpointer: Checkpointer,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let mut pen = Self {
            conn: None,
            file,
            circumstances,
            syncer,
            checkpointer,
            lock,
            full_sync: None,
            log_pages: Arc::default(),
            crowded: Arc::default(),
            counters,
            moving: Moving::At(WAL_SOFT),
            recent: Recent::default(),
            crowd: Crowd::default(),
            stuck_at: None,
        };
        pen.adopt(conn)?;
        Ok(pen)
    }

    /// Pages in the log after the last commit.
    pub(super) fn log_pages(&self) -> Arc<AtomicU64> {
        self.log_pages.clone()
    }

    /// Whether many write.
    pub(super) fn crowded(&self) -> Arc<AtomicBool> {
        self.crowded.clone()
    }

    /// For whom to wait before the next batch.
    pub(super) fn patience(&self) -> Patience {
        self.crowd.patience()
    }

    /// Writes a batch and answers everybody in it, or has them answered.
    pub(super) fn write(&mut self, batch: Vec<Box<dyn Job>>) {
        if batch.is_empty() {
            return;
        }
        self.note_crowd(batch.len());
        if let Some(syncer) = &self.syncer
            && !self.crowd.is_many()
            && batch.iter().any(|job| job.sync() == Sync::Durable)
        {
            syncer.rouse();
        }
        let lock = self.lock.clone();
        let held = match lock.hold() {
            Ok(held) => held,
            Err(error) => return answer_all(batch, &error),
        };
        let committed = match self.commit(batch, Pace::Whole) {
            Ok(Some(committed)) => committed,
            Ok(None) => return,
            Err(batch) => return answer_all(batch, &Error::internal("a write was given up that could have waited")),
        };
        drop(held);
        self.acknowledge(committed);
        self.move_log_on();
    }

    /// Writes one job on its caller's thread and answers it, or has it answered. It comes back where that would have to wait
    /// for anybody, where it may take long, or where many write and a batch is better.
    pub(super) fn write_at_once(&mut self, job: Box<dyn Job>) -> Result<Left, Box<dyn Job>> {
        let waits_here = self.syncer.is_none() && self.is_to_be_synced(&*job);
        if waits_here || job.effort() == Effort::Long || self.crowd.is_many() {
            return Err(job);
        }
        let lock = self.lock.clone();
        let Some(held) = lock.try_hold() else { return Err(job) };
        self.note_crowd(1);
        let committed = match self.commit(vec![job], Pace::Brief) {
            Ok(Some(committed)) => committed,
            Ok(None) => return Ok(Left::Nothing),
            Err(mut batch) => return batch.pop().map_or(Ok(Left::Nothing), Err),
        };
        drop(held);
        self.acknowledge(committed);
        Ok(if self.is_log_to_be_moved() || self.recent.is_due(self.file.journal()) {
            Left::Work
        } else {
            Left::Nothing
        })
    }

    /// So many want to write now, beside those who wait for the disk.
    fn note_crowd(&mut self, writing: usize) {
        self.crowd.note(writing + self.syncer.as_ref().map_or(0, |syncer| syncer.waiting()));
        self.crowded.store(self.crowd.is_many(), Ordering::Relaxed);
    }

    /// Does what callers left to be done.
    pub(super) fn tend(&mut self) {
        if self.circumstances.check_open().is_err() {
            return;
        }
        if self.recent.is_due(self.file.journal())
            && let Err(error) = self.fill(Slots::Keep)
        {
            tracing::warn!(%error, "the tables were not filled; the next write does it");
            self.circumstances.note(&error);
        }
        self.move_log_on();
    }

    /// Whether this must be on disk before it is answered.
    fn is_to_be_synced(&self, job: &dyn Job) -> bool {
        self.file.durability() == Durability::PowerSafe && job.sync() == Sync::Durable
    }

    /// Whether a commit of these waits for the disk.
    fn syncs_in_commit(&self, batch: &[Box<dyn Job>]) -> bool {
        self.syncer.is_none() && batch.iter().any(|job| self.is_to_be_synced(&**job))
    }

    /// Leaves the tables complete behind, so that whoever opens the file next need not read the journal.
    pub(super) fn settle(&mut self) {
        if self.circumstances.check_open().is_ok()
            && let Err(error) = self.fill(Slots::GiveBack)
        {
            tracing::warn!(%error, "the tables were not filled; the next writer does it");
        }
    }

    /// Fills the tables in a transaction of its own.
    fn fill(&mut self, slots: Slots) -> Result<()> {
        let Some(conn) = &self.conn else { return Ok(()) };
        let _held = self.lock.hold()?;
        let recent = &mut self.recent;
        let mut fill = || -> Result<()> {
            let tx = rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)
                .map_err(|e| failure(e, "write"))?;
            Rows::open(&tx, recent)?.fill_tables(slots)?;
            tx.commit().map_err(|e| failure(e, "write"))
        };
        let filled = fill();
        if filled.is_err() {
            self.recent.forget();
        }
        filled
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
        // SQLite opens its log when it first reads.
        conn.query_row("PRAGMA user_version", [], |_| Ok(())).map_err(|e| failure(e, "open"))?;
        if let Some(syncer) = &self.syncer {
            syncer.log().open()?;
        }
        self.file.note_files()?;
        self.conn = Some(Conn::new(conn, &self.circumstances));
        Ok(())
    }

    /// Commits a batch, or what is left of it without those who break it. Whoever is not committed is answered. It comes back
    /// where another program would have to be waited for longer than there is time.
    fn commit(&mut self, mut batch: Vec<Box<dyn Job>>, pace: Pace) -> Result<Option<Committed>, Vec<Box<dyn Job>>> {
        let (mut read_again, mut made_room) = (false, false);
        while !batch.is_empty() {
            // Looking at files costs as much as a short write, which only those pay who are about to wait for the disk.
            let looks = batch.iter().any(|job| job.sync() == Sync::Durable || job.effort() == Effort::Freeing);
            let open = self.circumstances.check_open();
            let open = open.and_then(|()| if looks { self.circumstances.check_files(&self.file) } else { Ok(()) });
            if let Err(error) = open {
                answer_all(batch, &error);
                return Ok(None);
            }
            let reserve = self.file.reserve();
            // Room that was just made for a write that frees more is not taken for the reserve first.
            let is_for_freeing = made_room && batch.iter().any(|job| job.effort() == Effort::Freeing);
            let is_kept = || if looks || !reserve.was_kept() { reserve.is_kept() } else { true };
            let short_of_room = is_for_freeing || !is_kept();
            if short_of_room {
                let (freeing, taking) = batch.into_iter().partition(|job| job.effort() == Effort::Freeing);
                answer_all(taking, &full());
                batch = freeing;
                if batch.is_empty() {
                    return Ok(None);
                }
            }
            // Whoever sees the commit must know that it is not on disk yet.
            let durable = batch.iter().any(|job| job.sync() == Sync::Durable);
            let number = self.syncer.as_ref().filter(|_| durable).map(|syncer| syncer.next());
            let Err(failed) = self.run(&mut batch, pace) else {
                self.counters.committed(batch.len());
                if short_of_room {
                    self.give_back();
                }
                return Ok(Some(Committed { batch, number }));
            };
            if let (Some(syncer), Some(number)) = (&self.syncer, number) {
                syncer.hand_over(number, Vec::new());
            }
            match failed {
                Failed::Busy => return Err(batch),
                // It is told only if it is found damaged a second time.
                Failed::One(_, error) | Failed::Whole(error) if looks_damaged(&error) && !read_again => {
                    read_again = true;
                }
                Failed::One(_, error) | Failed::Whole(error) if is_full(&error) && !made_room => {
                    made_room = true;
                    self.make_room();
                }
                // Nothing of the batch was kept. The one to blame is told; the others go on without it.
                Failed::One(culprit, error) => {
                    self.circumstances.note(&error);
                    batch.remove(culprit).answer(Err(error));
                }
                Failed::Whole(error) => {
                    self.circumstances.note(&error);
                    answer_all(batch, &error);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Answers those whose writes need not be on disk, and has the others answered when theirs are.
    fn acknowledge(&self, committed: Committed) {
        let Committed { batch, number } = committed;
        let (Some(syncer), Some(number)) = (&self.syncer, number) else {
            if self.full_sync == Some(true) {
                self.counters.synced();
            }
            return batch.into_iter().for_each(|job| job.answer(Ok(())));
        };
        let (durable, visible): (Vec<_>, Vec<_>) = batch.into_iter().partition(|job| job.sync() == Sync::Durable);
        visible.into_iter().for_each(|job| job.answer(Ok(())));
        syncer.hand_over(number, durable);
    }

    /// Runs a batch in one transaction.
    fn run(&mut self, batch: &mut [Box<dyn Job>], pace: Pace) -> Result<(), Failed> {
        self.set_sync(self.syncs_in_commit(batch)).map_err(Failed::Whole)?;
        let conn = self.conn.as_ref();
        let conn = conn.ok_or_else(|| Failed::Whole(Error::unavailable("the store is closed: reopen it")))?;
        let run = |sql: &str| conn.prepare_cached(sql)?.execute([]).map(drop);
        begin(conn, &self.file, pace)?;
        let recent = &mut self.recent;
        let fill_at = (pace == Pace::Whole).then_some(self.file.journal());
        let outcome = self.circumstances.with_env(|env| {
            let mut rows = Rows::open(conn, recent).map_err(Failed::Whole)?;
            rows.expect(batch.len());
            for (i, job) in batch.iter_mut().enumerate() {
                let mut ctx = Ctx { tx: &mut rows, env };
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run(&mut ctx)));
                let ran = ran.unwrap_or_else(|_| Err(Error::internal("a rule panicked")));
                ran.map_err(|error| Failed::One(i, error))?;
            }
            rows.close(fill_at).map_err(Failed::Whole)
        });
        let outcome = outcome.and_then(|()| run("COMMIT").map_err(|e| Failed::Whole(commit_failure(e))));
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

    /// Bytes in the log after the last commit.
    fn log_bytes(&self) -> u64 {
        self.log_pages.load(Ordering::Relaxed) * u64::from(PAGE_SIZE)
    }

    /// Whether it is time to move the log into the file, or the rest of it.
    fn is_log_to_be_moved(&mut self) -> bool {
        let log = self.log_bytes();
        match &mut self.moving {
            Moving::At(size) => {
                // The log may have begun anew; then it is due at its usual size again.
                *size = (*size).min(log + WAL_SOFT);
                log >= *size
            }
            Moving::Most => !self.checkpointer.is_busy() || log > WAL_HARD,
        }
    }

    /// Moves the log into the file, as far as it is time to.
    fn move_log_on(&mut self) {
        if !self.is_log_to_be_moved() || self.circumstances.check_open().is_err() {
            return;
        }
        let log = self.log_bytes();
        self.moving = match self.moving {
            _ if log > WAL_HARD => {
                if let Err(error) = self.truncate_log() {
                    tracing::warn!(%error, "the log could not be cut back");
                    self.circumstances.note(&error);
                }
                // A reader may keep it from being cut back; that is not tried again with every batch.
                Moving::At(log + WAL_SOFT)
            }
            Moving::At(_) => {
                self.checkpointer.wake();
                Moving::Most
            }
            Moving::Most => {
                // While no other process adds to it, or it would never be moved whole and begin anew.
                let moved = self.lock.hold().and_then(|_held| self.conn.as_ref().map_or(Ok(()), |conn| move_log(conn)));
                if let Err(error) = moved {
                    self.circumstances.note(&error);
                    // Before the log grows to more than the reserve has room for.
                    if is_full(&error) {
                        self.make_room();
                    }
                }
                Moving::At(log + WAL_SOFT)
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

    /// Makes sure that what was removed is gone from the log too.
    pub(super) fn scrub(&mut self) -> Result<()> {
        self.circumstances.check_open()?;
        self.truncate_log()
    }

    /// Opens the file anew and makes sure that what is seen there is really on disk before anybody relies on it.
    pub(super) fn reopen(&mut self, readers: &Seats) -> Result<()> {
        if let Some(syncer) = &self.syncer {
            // What was committed before the failure is not acknowledged by what is synced after it.
            syncer.flush();
        }
        // What is found at the path now may be another store's, and must be opened as such.
        self.circumstances.check_files(&self.file)?;
        self.file.forget_log();
        // Nobody is left now who could still come upon a failure.
        self.checkpointer.close();
        let has_failed = self.circumstances.check_open().is_err();
        let opened = (|| {
            if has_failed {
                self.let_log_be_read_anew(readers)?;
            }
            self.connect()?;
            self.set_sync(self.file.durability() == Durability::PowerSafe)?;
            self.truncate_log()
        })();
        match opened {
            Ok(()) if has_failed => {
                self.stuck_at = None;
                self.circumstances.open();
            }
            Ok(()) => {}
            Err(error) => {
                self.circumstances.note(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// After a failure, nothing is believed that SQLite remembers of its log.
    ///
    /// It counts a page as moved when it has been written to the file. If the disk has lost it since, it is never moved again.
    /// And what it is told to move it does not look at: the disk may have lost parts of the log as well. Only who has the file
    /// open alone reads the log from its start, with its checksums.
    fn let_log_be_read_anew(&mut self, readers: &Seats) -> Result<()> {
        let log = self.file.log_header();
        let stuck_at = *self.stuck_at.get_or_insert(log);
        self.conn = None;
        readers.close();
        // Where it has begun anew since, somebody has had all of it on disk.
        if stuck_at != log {
            return Ok(());
        }
        let _held = self.lock.hold()?;
        move_log_alone(&self.file, &self.circumstances)
    }
}

/// Begins a transaction. SQLite is waited for only where there is time: processes that take turns by their lock never keep it
/// from writing, but other programs may, and whoever moves the whole log into the file.
fn begin(conn: &Connection, file: &StoreFile, pace: Pace) -> Result<(), Failed> {
    let whole = |error| Failed::Whole(failure(error, "write"));
    if pace == Pace::Brief {
        conn.busy_timeout(Duration::ZERO).map_err(whole)?;
    }
    let begun = conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut statement| statement.execute([]).map(drop));
    if pace == Pace::Brief {
        conn.busy_timeout(file.lock_wait()).map_err(whole)?;
    }
    begun.map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) if pace == Pace::Brief => Failed::Busy,
        Some(ErrorCode::DatabaseBusy) => Failed::Whole(file_is_busy(file.path()).with_source(error)),
        _ => whole(error),
    })
}

/// Why a batch was not committed. One whose commit the disk broke off may be read back when the file is opened again.
fn commit_failure(error: rusqlite::Error) -> Error {
    let error = failure(error, "write");
    if error.is_disk_failure() { error.in_doubt() } else { error }
}

fn answer_all(batch: Vec<Box<dyn Job>>, error: &Error) {
    let (kind, text) = (error.kind(), error.to_string());
    batch.into_iter().for_each(|job| job.answer(Err(Error::new(kind, &text))));
}
