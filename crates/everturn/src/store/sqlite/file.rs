//! The store's file: finding it, checking it, opening connections to it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::lock::TurnLock;
use super::log::{Log, SyncWith};
use super::owner::open_private;
use super::reserve::{AllocateWith, Reserve, allocate};
use super::rows::begin_journal;
use super::sql::add_functions;
use super::{Durability, failure};
use crate::{Error, Result};

/// "EvTn": what marks a SQLite file as ours.
pub(super) const APPLICATION_ID: i32 = 0x4576_546e;
/// What the file's format is called; raised with each migration.
const FORMAT: i32 = 5;
/// Before this, SQLite could corrupt a file when its log was reset under another process.
const OLDEST_SQLITE: i32 = 3_051_003;
pub(super) const PAGE_SIZE: u32 = 4096;
/// Migrations by the format they lead to.
const MIGRATIONS: [&str; FORMAT as usize] = [
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
];
/// A format that no release has written: its journal cannot be read.
const UNRELEASED: i32 = 4;

#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    vfs: Option<Vfs>,
    durability: Durability,
    journal: u64,
    lock_wait: Duration,
    reserve: Reserve,
    /// Which files the connections have open.
    opened: Mutex<Vec<OpenedAs>>,
    /// The file itself, open as long as any connection is: whoever holds this drops its connection first.
    content: Option<Arc<fs::File>>,
}

/// A way to files other than the system's.
#[derive(Clone, Debug)]
pub(super) struct Vfs {
    pub(super) name: String,
    /// How its logs are synced; by SQLite itself, in its commits, where nobody said.
    pub(super) sync_log: Option<SyncWith>,
    /// How room is kept on its disk; not at all where nobody said.
    pub(super) allocate: Option<AllocateWith>,
}

/// A file as it was when it was opened.
#[derive(Debug)]
struct OpenedAs {
    path: PathBuf,
    file: FileId,
    /// Whether it is the one that all else belongs to.
    holds_all: bool,
}

/// A device and a number on it: another file under the same name has others.
type FileId = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileId> {
    let file = fs::metadata(path).ok()?;
    Some((std::os::unix::fs::MetadataExt::dev(&file), std::os::unix::fs::MetadataExt::ino(&file)))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|_| (0, 0))
}

/// An open file is not at its path any more.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) error: Error,
    /// Whether closing must leave the log where it is: what is at the path now may belong to another store.
    pub(super) keeps_log: bool,
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        let mut open = OpenFiles::lock();
        // Closed while nobody can open it: closing drops all locks this process has on the file, and those of whoever
        // opened it meanwhile would go with them.
        self.content = None;
        open.remove(&self.path);
    }
}

/// The files this process has open as stores.
///
/// POSIX drops all locks a process holds on a file when it closes any descriptor of it, so each file is opened once beside
/// SQLite, and closed when its last store is gone.
struct OpenFiles(MutexGuard<'static, BTreeMap<PathBuf, OpenFile>>);

struct OpenFile {
    content: Arc<fs::File>,
    stores: usize,
}

static OPEN_FILES: Mutex<BTreeMap<PathBuf, OpenFile>> = Mutex::new(BTreeMap::new());

impl OpenFiles {
    fn lock() -> Self {
        Self(OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens a file for one more store, looking at it first if it is not open yet. Gives its one true path, and the file.
    fn open(
        &mut self,
        path: &Path,
        unusable: impl Fn(&str, &Path, io::Error) -> Error,
    ) -> Result<(PathBuf, Arc<fs::File>)> {
        let known = fs::canonicalize(path).ok().filter(|path| self.0.contains_key(path));
        let (path, file) = match known {
            Some(path) => (path, None),
            None => create_and_check(path, unusable).map(|(path, file)| (path, Some(file)))?,
        };
        let open = match (self.0.entry(path.clone()), file) {
            (Entry::Occupied(open), _) => open.into_mut(),
            (Entry::Vacant(free), Some(file)) => free.insert(OpenFile { content: Arc::new(file), stores: 0 }),
            (Entry::Vacant(_), None) => {
                return Err(Error::internal("a store's file was closed while it was looked for"));
            }
        };
        open.stores += 1;
        Ok((path, open.content.clone()))
    }

    fn remove(&mut self, path: &Path) {
        if let Some(open) = self.0.get_mut(path) {
            open.stores -= 1;
            if open.stores == 0 {
                self.0.remove(path);
            }
        }
    }
}

/// Makes sure that the file is there, readable by its owner only, and ours. Gives its one true path, and the file.
fn create_and_check(path: &Path, unusable: impl Fn(&str, &Path, io::Error) -> Error) -> Result<(PathBuf, fs::File)> {
    let mut file = open_private(path).map_err(|e| unusable("open the store", path, e))?;
    if !file.metadata().map_err(|e| unusable("read the store", path, e))?.is_file() {
        return Err(Error::invalid(format!("{} is not a file: name the file to keep sessions in", path.display())));
    }
    check_header(path, &mut file)?;
    // SQLite must see the same path however it was written, or two handles would lock two files.
    Ok((fs::canonicalize(path).map_err(|e| unusable("resolve", path, e))?, file))
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
    /// To the exclusion of everybody else, who then get to know no log but the one that is read now.
    Alone,
}

impl StoreFile {
    /// Finds the file, creating it and its directory where they are missing, and makes sure that it is ours.
    pub(super) fn prepare(
        path: &Path,
        vfs: Option<Vfs>,
        durability: Durability,
        journal: u64,
        lock_wait: Duration,
        reserve: u64,
    ) -> Result<Self> {
        if rusqlite::version_number() < OLDEST_SQLITE {
            return Err(Error::unsupported(format!(
                "SQLite {} can corrupt a shared file: build with 3.51.3 or newer",
                rusqlite::version()
            )));
        }
        let path = expand_home(path)?;
        let unusable = |what: &str, at: &Path, error: io::Error| {
            Error::unavailable(format!("cannot {what} {}: check the path and its permissions", at.display()))
                .with_source(error)
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            create_private_dir(directory).map_err(|e| unusable("create the directory", directory, e))?;
        }
        let (path, content) = OpenFiles::lock().open(&path, unusable)?;
        let opened = Mutex::default();
        let (reserve, allocate) = match &vfs {
            None => (reserve, Some(AllocateWith(Arc::new(allocate)))),
            Some(vfs) => (reserve, vfs.allocate.clone()),
        };
        let reserve = match allocate {
            Some(allocate) => Reserve::of(&path, reserve, allocate),
            None => Reserve::of(&path, 0, AllocateWith(Arc::new(self::allocate))),
        };
        Ok(Self { path, vfs, durability, journal, lock_wait, reserve, opened, content: Some(content) })
    }

    /// Waits until what was written to the file itself is on disk. Whoever brings their own files sees to it themselves.
    pub(super) fn sync(&self) -> Result<()> {
        let Some(content) = self.content.as_ref().filter(|_| self.vfs.is_none()) else { return Ok(()) };
        let synced = content.sync_data();
        synced.map_err(|e| Error::disk_failed("sync its file").with_source(e))
    }

    /// Room that is kept for the time when the volume is full.
    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Remembers which files a connection has just opened.
    pub(super) fn note_files(&self) -> Result<()> {
        let mut opened = Vec::new();
        for suffix in ["", "-wal"] {
            let path = Self::beside(&self.path, suffix);
            // A store that others do not share may do without one of them.
            if let Some(file) = identity(&path) {
                opened.push(OpenedAs { path, file, holds_all: suffix.is_empty() });
            }
        }
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        self.check_files().map_err(|gone| gone.error)
    }

    /// The connections are about to be closed, and SQLite removes its log with the last of them.
    pub(super) fn forget_log(&self) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).retain(|opened| opened.holds_all);
    }

    /// Whether the files that are open are still the ones at their paths. What is written to a file that was removed is gone
    /// with the process, and no write tells.
    pub(super) fn check_files(&self) -> Result<(), Gone> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(gone) = opened.iter().find(|opened| identity(&opened.path) != Some(opened.file)) else {
            return Ok(());
        };
        let what = if identity(&gone.path).is_none() { "removed" } else { "replaced" };
        let error = Error::unavailable(format!(
            "{} was {what} while the store had it open, and nothing is written any more: put the file back, or stop \
             every program that has the store open and start it on the files that are there",
            gone.path.display()
        ));
        Err(Gone { error, keeps_log: gone.holds_all })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path with something appended to the file's name.
    pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    /// The log, if it is to be synced beside the commits.
    pub(super) fn log_beside_commits(&self) -> Option<Log> {
        let given = match &self.vfs {
            None => None,
            Some(vfs) => Some(vfs.sync_log.clone()?),
        };
        (self.durability == Durability::PowerSafe).then(|| Log::of(&self.path, given))
    }

    /// The beginning of the log, which is another each time it begins anew.
    pub(super) fn log_header(&self) -> Option<[u8; 32]> {
        let mut header = [0; 32];
        let mut log = fs::File::open(Self::beside(&self.path, "-wal")).ok()?;
        log.read_exact(&mut header).ok().map(|()| header)
    }

    /// How many records may wait in the journal.
    pub(super) fn journal(&self) -> u64 {
        self.journal
    }

    /// The lock that processes take turns by.
    pub(super) fn turn_lock(&self) -> Result<TurnLock> {
        TurnLock::open(&self.path, self.lock_wait)
    }

    /// How long other processes that hold the file are waited for, by those who have time.
    pub(super) fn lock_wait(&self) -> Duration {
        self.lock_wait
    }

    pub(super) fn connect(&self, access: Access) -> Result<Connection> {
        let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags |= match access {
            Access::Write | Access::Alone => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            // A log left by a crash is recovered by whoever reads first, which needs the right to write.
            Access::Read => OpenFlags::SQLITE_OPEN_READ_WRITE,
        };
        let conn = match &self.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(&self.path, flags, vfs.name.as_str()),
            None => Connection::open_with_flags(&self.path, flags),
        }
        .map_err(|e| failure(e, "open"))?;
        let setup = || -> rusqlite::Result<()> {
            conn.busy_timeout(self.lock_wait)?;
            conn.set_prepared_statement_cache_capacity(128);
            add_functions(&conn)?;
            // Otherwise each new range of numbers has its statement planned anew.
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            match access {
                Access::Alone => {
                    // Before anything is read, or SQLite would look at the log as others do. They are not waited for.
                    conn.busy_timeout(Duration::ZERO)?;
                    conn.pragma_update(None, "locking_mode", "exclusive")?;
                }
                Access::Write => {
                    // First: some of the others read, and with a long log in place they would move it.
                    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
                    // Deleted text must not stay in the file; bundled builds do not see to it by themselves.
                    conn.pragma_update(None, "secure_delete", true)?;
                    conn.pragma_update(None, "journal_size_limit", 16 << 20)?;
                    conn.pragma_update(None, "cache_size", -8192)?;
                }
                Access::Read => {
                    conn.pragma_update(None, "query_only", true)?;
                    // KiB. A reader's pages are dropped with the next commit by anybody, and until then they are in the
                    // system's memory anyway: fresh memory for each page would cost more than reading it again.
                    conn.pragma_update(None, "cache_size", -512)?;
                }
            }
            conn.pragma_update(None, "temp_store", "memory")
        };
        setup().map_err(|e| failure(e, "open"))?;
        Ok(conn)
    }

    /// Opens a connection to write with, having brought the file to the current format. Safe while other processes do
    /// the same.
    pub(super) fn migrate(&self) -> Result<Connection> {
        let mut conn = self.connect(Access::Write)?;
        let read = |conn: &Connection, pragma: &str| -> Result<i32> {
            conn.pragma_query_value(None, pragma, |row| row.get(0)).map_err(|e| failure(e, "open"))
        };
        let format = read(&conn, "user_version")?;
        if format == FORMAT && read(&conn, "application_id")? == APPLICATION_ID {
            return Ok(conn);
        }
        if read(&conn, "page_count")? == 0 {
            // Said of a file that is there, the second would be written to it, be it ours or not.
            conn.pragma_update(None, "page_size", PAGE_SIZE).map_err(|e| failure(e, "open"))?;
            conn.pragma_update(None, "auto_vacuum", "incremental").map_err(|e| failure(e, "open"))?;
        }
        let mode: String = conn
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(|e| failure(e, "open"))?;
        if mode != "wal" {
            return Err(Error::unavailable(format!(
                "{} cannot be shared between processes: put it on a local disk",
                self.path.display()
            )));
        }
        conn.pragma_update(None, "synchronous", "full").map_err(|e| failure(e, "open"))?;
        let tx = conn
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(|e| failure(e, "migrate"))?;
        let (format, application) = (read(&tx, "user_version")?, read(&tx, "application_id")?);
        let tables: i64 =
            tx.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(|e| failure(e, "open"))?;
        if application != APPLICATION_ID && (application != 0 || format != 0 || tables != 0) {
            return Err(foreign(&self.path));
        }
        if format > FORMAT {
            return Err(newer(&self.path, format));
        }
        if format == UNRELEASED {
            return Err(Error::unsupported(format!(
                "{} has format {format}, which no release has written: export its sessions with the program that made it",
                self.path.display()
            )));
        }
        for (step, sql) in MIGRATIONS.iter().enumerate().skip(usize::try_from(format).unwrap_or(0)) {
            if format > 0 {
                tracing::info!(to = step + 1, "migrating the store's file");
            }
            tx.execute_batch(&terse(sql)).map_err(|e| failure(e, "migrate"))?;
        }
        if format < FORMAT {
            begin_journal(&tx)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(|e| failure(e, "migrate"))?;
        tx.pragma_update(None, "user_version", FORMAT).map_err(|e| failure(e, "migrate"))?;
        tx.commit().map_err(|e| failure(e, "migrate"))?;
        Ok(conn)
    }
}

/// A schema without what is there for people. SQLite keeps its text in the file, where a page is a page.
fn terse(schema: &str) -> String {
    let lines = schema.lines().map(|line| line.split_once("--").map_or(line, |(sql, _)| sql));
    let words = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    [" (", "( ", " )", ", "].iter().fold(words, |text, loose| text.replace(loose, loose.trim()))
}

pub(super) fn foreign(path: &Path) -> Error {
    Error::invalid(format!(
        "{} is another program's database, not an Everturn store: name another file, it was not changed",
        path.display()
    ))
}

fn newer(path: &Path, format: i32) -> Error {
    Error::unsupported(format!(
        "{} has format {format}, this program knows up to {FORMAT}: upgrade Everturn, the file was not changed",
        path.display()
    ))
}

/// Looks at the first bytes before SQLite may touch the file.
fn check_header(path: &Path, file: &mut fs::File) -> Result<()> {
    let unreadable = |e: io::Error| Error::unavailable(format!("cannot read {}", path.display())).with_source(e);
    let size = file.metadata().map_err(unreadable)?.len();
    let is_there = |suffix: &str| fs::metadata(StoreFile::beside(path, suffix)).is_ok_and(|meta| meta.len() > 0);
    if size == 0 || is_there("-journal") {
        // What was written in part when the file was made, SQLite takes back.
        return Ok(());
    }
    let mut header = [0u8; 100];
    let whole = file.read_exact(&mut header);
    if whole.is_err() || !header.starts_with(b"SQLite format 3\0") {
        return Err(Error::invalid(format!(
            "{} is not an Everturn store: name another file, it was not changed",
            path.display()
        )));
    }
    let number = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u32::from_be_bytes(bytes)
    };
    if is_there("-wal") {
        // The log may hold a newer header; SQLite will read both.
        return Ok(());
    }
    let (application, format) = (number(68), number(60));
    if application != APPLICATION_ID as u32 && !(application == 0 && format == 0 && number(28) <= 1) {
        return Err(foreign(path));
    }
    if format > FORMAT as u32 {
        return Err(newer(path, i32::try_from(format).unwrap_or(i32::MAX)));
    }
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        page => u64::from(page),
    };
    if size < page * u64::from(number(28)) {
        return Err(Error::corrupt(format!(
            "{} is cut short: {size} bytes are there, {} are missing; restore it from a backup",
            path.display(),
            page * u64::from(number(28)) - size
        )));
    }
    Ok(())
}

fn expand_home(path: &Path) -> Result<PathBuf> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(path.to_owned()) };
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Error::invalid("the path begins with `~/`, but HOME is not set: write it out"))?;
    Ok(Path::new(&home).join(rest))
}

/// Creates a directory that nobody else can look into; one that exists is left as it is.
pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
