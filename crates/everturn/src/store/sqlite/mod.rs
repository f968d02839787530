//! Sessions in one SQLite file: the embedded default.
//!
//! One thread writes and batches what queued up while it was busy, unless a caller writes something short by itself; one waits
//! for the disk; a few others read, each from one consistent moment; one moves the log into the file in the background. Several processes may open the same file: they take turns by a
//! lock around each batch, and no "database is locked" reaches a caller. `docs/format.md` says what is in the file.

mod backup;
mod change;
mod checkpoint;
mod codec;
mod crowd;
mod file;
mod inbox;
mod job;
mod journal;
mod lock;
mod log;
mod owner;
mod pack;
mod pen;
mod readers;
mod recent;
mod reserve;
mod rows;
mod sql;
mod stats;
mod sum;
mod syncer;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::Watch;
use super::engine::{Backend, Config, Ctx, Effort, Engine, Env, Read, Sync, engine_store, sweep_at_opening};
use super::request::*;
use crate::clock::Clock;
use crate::event::Event;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::Snapshot;
use crate::state::{PointState, ScopedState, StateDelta};
use crate::turn::{Aborted, Begin, Begun, Fence, Receipt, Record, RunningTurn, TurnRecord};
use crate::{AppName, Error, ErrorKind, Result, SnapshotId, TurnId, UserId};

use checkpoint::{CheckpointThread, Checkpointer};
use file::{Gone, StoreFile, Vfs};
use log::SyncWith;
use owner::Owners;
use readers::Readers;
use reserve::AllocateWith;
use sql::Sql;
use writer::Writer;

pub use stats::SqliteStats;

/// What an acknowledged end or commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// A killed process loses nothing; a power cut or a crashed machine loses nothing either. Each acknowledgement
    /// waits for the disk, shared by all turns that end at about the same time.
    #[default]
    PowerSafe,
    /// A killed process loses nothing; a power cut may lose the last turns that were acknowledged, whole turns and in
    /// order, and leaves the store consistent.
    ProcessSafe,
}

/// A store in one SQLite file.
///
/// Clones are handles on the same store. When the last one is dropped, its turns that are still running count as dead
/// at once, for every process.
///
/// ```
/// use everturn::store::{CreateSession, SqliteStore, Store};
/// use everturn::SessionKey;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("sessions.db");
/// let store = SqliteStore::open(&path)?;
/// let key = SessionKey::of("shop", "ann", "order-42")?;
/// store.create(CreateSession::at(key.clone()).title("Where is my order?")).await?;
/// drop(store);
///
/// let store = SqliteStore::open(&path)?;
/// assert_eq!(store.session(&key).await?.unwrap().title.as_deref(), Some("Where is my order?"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore(Engine<Sqlite>);

/// How a [`SqliteStore`] is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    durability: Durability,
    vfs: Option<Vfs>,
    readers: usize,
    journal: u64,
    lock_wait: Duration,
    reserve: u64,
    config: Config,
}

impl SqliteOptions {
    /// A store at a path; a leading `~/` is the home directory. The directory and the file are created if they are
    /// missing, readable by nobody else.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            durability: Durability::default(),
            vfs: None,
            readers: 2,
            journal: 1024,
            lock_wait: Duration::from_secs(10),
            reserve: 4 << 20,
            config: Config::default(),
        }
    }

    /// What an acknowledged write survives.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Where time and fresh ids come from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.config.clock = clock;
        self
    }

    /// How long a writer may be silent before it is taken for dead. One whose process is gone is dead at once.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// How often changes by other processes are looked for. Whoever waits for a branch looks sooner at first.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.config.poll = poll;
        self
    }

    /// What is refused as too large.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// How long the stream of a turn that has ended stays readable: ten minutes unless set.
    #[must_use]
    pub fn stream_grace(mut self, grace: Duration) -> Self {
        self.config.stream_grace = grace;
        self
    }

    /// How many bytes of decoded state are kept at hand: 64 MiB unless told. An eighth of it is for sessions that find no other
    /// room, without their messages; who only writes to these does not have them added up again.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.config.cache_bytes = bytes;
        self
    }

    /// How many records may wait in the journal, at least one, before the tables that find them are filled. More make
    /// writing to many sessions cheaper and opening the file after a crash slower.
    #[must_use]
    pub fn journal(mut self, records: u64) -> Self {
        self.journal = records.max(1);
        self
    }

    /// How long another process that holds the file is waited for: ten seconds unless set. Then writes are refused as
    /// `Unavailable`, naming the process where the system tells, until it goes on or ends; nothing of them was begun.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// How many bytes are kept in a file beside the store (`-reserve`) for the time when its volume is full: 4 MiB unless set,
    /// none with 0. It is given up when a write finds no room. Then sessions can still be deleted and purged, and running
    /// turns ended without a result; everything else that writes is refused as `Unavailable` until there is room for the
    /// reserve again.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// How many threads read, at least one.
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// The SQLite VFS to go through, by name, instead of the default one. It must be registered already.
    #[must_use]
    pub fn vfs(mut self, name: impl Into<String>) -> Self {
        self.vfs = Some(Vfs { name: name.into(), sync_log: None, allocate: None });
        self
    }

    /// The same with a way to sync a log that was written through it, given the log's path. Writes can then be committed
    /// while others wait for the disk, as they are with the default VFS; without it, SQLite syncs in each commit.
    #[must_use]
    pub fn vfs_with_sync(
        mut self,
        name: impl Into<String>,
        sync_log: impl Fn(&Path) -> std::io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        self.vfs = Some(Vfs { name: name.into(), sync_log: Some(SyncWith(Arc::new(sync_log))), allocate: None });
        self
    }

    /// Has the reserve kept on the disk of the VFS that was named before, by something that makes a file of so many bytes
    /// there, or says `StorageFull`. Without it, a store with a VFS of its own keeps none.
    #[must_use]
    pub fn vfs_reserve(
        mut self,
        allocate: impl Fn(&Path, u64) -> std::io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        if let Some(vfs) = &mut self.vfs {
            vfs.allocate = Some(AllocateWith(Arc::new(allocate)));
        }
        self
    }

    /// Opens the store.
    ///
    /// Refused: a directory that cannot be written (`Unavailable`), a file that is something else (`Invalid`), of a
    /// newer format (`Unsupported`), or damaged (`Corrupt`). None of them is changed.
    pub fn open(self) -> Result<SqliteStore> {
        let (journal, wait, reserve) = (self.journal, self.lock_wait, self.reserve);
        let file = StoreFile::prepare(&self.path, self.vfs, self.durability, journal, wait, reserve)?;
        let file = Arc::new(file);
        let lock = Arc::new(file.turn_lock()?);
        let (conn, owners) = {
            // One process at a time: SQLite does not wait while another one switches a new file to its log, and an owner
            // that has made its file but not locked it yet would be taken for dead.
            let _held = lock.hold()?;
            let conn = file.migrate()?;
            let owners = Owners::register(file.path(), &self.config.clock.uuid().to_string())?;
            (conn, Arc::new(owners))
        };
        let has_streams = Sql(&conn).number("any_stream", [])? == Some(1);
        let circumstances = Arc::new(Circumstances {
            boot: self.config.clock.boot_id().into(),
            clock: self.config.clock.clone(),
            lease: u64::try_from(self.config.lease.as_micros()).unwrap_or(u64::MAX),
            stream_grace: u64::try_from(self.config.stream_grace.as_micros()).unwrap_or(u64::MAX),
            owners,
            closed: Mutex::new(None),
            gone: Mutex::new(None),
        });
        // First, because it opens a connection of its own while the others are started.
        let readers = Readers::start(file.clone(), circumstances.clone(), self.readers)?;
        let (checkpointer, checkpoints) = Checkpointer::start(file.clone(), circumstances.clone());
        let writer = Writer::start(file.clone(), conn, lock, circumstances.clone(), checkpointer)?;
        if has_streams {
            // Nobody waits for it, and a store without any does not look at the clock.
            writer.post(Sync::Lazy, sweep_at_opening)?;
        }
        let sqlite = Sqlite { writer, readers, _checkpoints: checkpoints, circumstances };
        Ok(SqliteStore(Engine::new(sqlite, self.config)))
    }
}

impl SqliteStore {
    /// Opens a store with the default options.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        SqliteOptions::new(path).open()
    }

    /// What this store has done since it was opened here, and what it has at hand.
    #[must_use]
    pub fn stats(&self) -> SqliteStats {
        let mut stats = self.0.backend().writer.stats();
        let cache = self.0.cache_stats();
        (stats.cached_sessions, stats.cached_bytes) = (cache.sessions, cache.bytes);
        (stats.cache_hits, stats.cache_misses) = (cache.hits, cache.misses);
        stats.entries = self.0.entries() as u64;
        stats
    }

    /// Drops decoded states that were not used since this was called last. A program that calls it every few minutes gives
    /// their memory back when it has little to do; a session that is used again is added up from the file.
    pub fn drop_unused(&self) {
        self.0.drop_unused();
    }
}

engine_store!(SqliteStore);

#[derive(Debug)]
struct Sqlite {
    writer: Writer,
    readers: Readers,
    /// After the writer, whose end lets it end.
    _checkpoints: CheckpointThread,
    circumstances: Arc<Circumstances>,
}

/// A connection. If it is closed after a failure, it leaves the log alone: what SQLite believes to have moved from there into
/// the file may not be on disk.
struct Conn {
    conn: Connection,
    circumstances: Arc<Circumstances>,
}

impl Conn {
    fn new(conn: Connection, circumstances: &Arc<Circumstances>) -> Self {
        Self { conn, circumstances: circumstances.clone() }
    }
}

impl std::ops::Deref for Conn {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.circumstances.keeps_log() {
            // It fails only where there is no such setting.
            let _ = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

/// What rules need to know beside the rows; shared by all threads of a store.
#[derive(Debug)]
struct Circumstances {
    clock: Arc<dyn Clock>,
    boot: Arc<str>,
    lease: u64,
    stream_grace: u64,
    owners: Arc<Owners>,
    /// Why the store is closed, after a failure that leaves it unknown what is on disk.
    closed: Mutex<Option<String>>,
    /// Which of its files is not at its path any more.
    gone: Mutex<Option<Gone>>,
}

impl Circumstances {
    fn with_env<T>(&self, run: impl FnOnce(&Env<'_>) -> T) -> T {
        run(&Env {
            now: self.clock.now(),
            uptime: u64::try_from(self.clock.uptime().as_micros()).unwrap_or(u64::MAX),
            boot: &self.boot,
            owner: self.owners.me(),
            lease: self.lease,
            stream_grace: self.stream_grace,
            holds_lock: &|owner| self.owners.holds_lock(owner),
        })
    }

    fn check_open(&self) -> Result<()> {
        if let Some(gone) = &*self.gone.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::unavailable(gone.error.message()));
        }
        match &*self.closed.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::unavailable(format!(
                "the store closed itself after a failed write ({why}): see to the disk, then reopen the store"
            ))),
        }
    }

    /// Closes the store if an error leaves it unknown what is on disk.
    fn note(&self, error: &Error) {
        if error.is_disk_failure() {
            tracing::error!(%error, "the store closes itself");
            self.close(error);
        }
    }

    fn close(&self, why: &Error) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_string());
    }

    /// Closes the store if its files are not at their paths any more, and opens it again if they are back.
    fn check_files(&self, file: &StoreFile) -> Result<()> {
        let gone = file.check_files().err();
        let known = &mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(Gone { error, .. })) = (&known, &gone) {
            tracing::error!(%error, "the store closes itself");
        }
        *known = gone;
        known.as_ref().map_or(Ok(()), |gone| Err(Error::unavailable(gone.error.message())))
    }

    /// Whether a connection that is closed must leave the log as it is.
    fn keeps_log(&self) -> bool {
        match &*self.gone.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(gone) => gone.keeps_log,
            None => self.closed.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
        }
    }

    fn open(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Backend for Sqlite {
    async fn write<T, F>(&self, sync: Sync, effort: Effort, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        self.writer.run(sync, effort, rule).await
    }

    fn rouse(&self) {
        self.writer.rouse();
    }

    async fn read<T, F>(&self, reader: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static,
    {
        self.circumstances.check_open()?;
        let read = self.readers.run(reader).await?;
        self.settled().await?;
        Ok(read)
    }

    async fn settled(&self) -> Result<()> {
        self.writer.settled().await;
        self.circumstances.check_open()
    }

    fn is_settled(&self) -> bool {
        self.writer.is_settled()
    }

    fn hindrance(&self) -> Option<Error> {
        self.writer.hindrance()
    }

    async fn scrub(&self) -> Result<()> {
        self.writer.scrub().await
    }

    async fn reopen(&self) -> Result<()> {
        self.readers.renew();
        self.writer.reopen(self.readers.seats()).await
    }
}

/// What SQLite said, as the caller needs to know it.
fn failure(error: rusqlite::Error, doing: &str) -> Error {
    use rusqlite::{Error as Sqlite, ErrorCode};
    if matches!(
        error,
        Sqlite::InvalidColumnType(..)
            | Sqlite::IntegralValueOutOfRange(..)
            | Sqlite::FromSqlConversionFailure(..)
            | Sqlite::Utf8Error(..)
    ) {
        return codec::damaged("a row").with_source(error);
    }
    let code = error.sqlite_error_code();
    if code == Some(ErrorCode::SystemIoFailure) && !is_of_reading(&error) {
        return Error::disk_failed(doing).with_source(error);
    }
    let (kind, text) = match code {
        // Nothing was being written, so that nothing is unknown: it can be tried again.
        Some(ErrorCode::SystemIoFailure) => {
            (ErrorKind::Unavailable, "the store's file could not be read: see to the disk, then try again".to_owned())
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::Unavailable, "the disk is full: make room, then try again".to_owned()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            "the store's file is damaged, or the disk cannot read it: restore it from a backup".to_owned(),
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, "the store's file is locked by another program: close that one".to_owned())
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            (ErrorKind::Unavailable, "the store's file cannot be written: check its permissions".to_owned())
        }
        Some(ErrorCode::TooBig) => (ErrorKind::TooLarge, "a record is too large for the store's file".to_owned()),
        _ => (ErrorKind::Internal, format!("SQLite failed to {doing}")),
    };
    Error::new(kind, text).with_source(error)
}

/// Whether a failure of the disk is one of reading.
fn is_of_reading(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_CORRUPTFS, SQLITE_IOERR_READ, SQLITE_IOERR_SHORT_READ};
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(SQLITE_IOERR_READ | SQLITE_IOERR_SHORT_READ | SQLITE_IOERR_CORRUPTFS))
}

/// Whether what was read is damaged, or seems to be: of a disk that fails to read once, SQLite says the same. So it is read
/// again before it is told.
fn looks_damaged(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt
}
