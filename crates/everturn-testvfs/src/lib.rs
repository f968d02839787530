//! A SQLite VFS for tests. It wraps the platform's default VFS and can
//!
//! 1. **record** every change made to the files opened through it,
//! 2. **cut the power**: rebuild from that record what a disk may hold after losing power at any chosen moment,
//! 3. **inject faults**: failing syncs and writes, a full disk,
//! 4. **count** writes and syncs, cheaply enough for a benchmark.
//!
//! ```
//! use everturn_testvfs::{FaultVfs, Loss};
//! use rusqlite::{Connection, OpenFlags};
//!
//! let dir = tempfile::tempdir().unwrap();
//! let vfs = FaultVfs::register("doc-example");
//! vfs.start_recording();
//! let db = Connection::open_with_flags_and_vfs(dir.path().join("t.db"), OpenFlags::default(), vfs.name()).unwrap();
//! db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (n)").unwrap();
//! db.execute("INSERT INTO t VALUES (1)", []).unwrap();
//! vfs.mark("ack 1");
//!
//! let trace = vfs.trace();
//! for cut in trace.sync_points() {
//!     let after = tempfile::tempdir().unwrap();
//!     trace.crash_at(cut, Loss::Torn { seed: 1 }).write_into(after.path()).unwrap();
//!     let db = Connection::open(after.path().join("t.db")).unwrap();
//!     if trace.marks_before(cut).contains(&"ack 1") {
//!         db.query_row("SELECT n FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
//!     }
//! }
//! ```
//!
//! # What is covered
//!
//! Databases, rollback journals, super-journals and write-ahead logs are recorded, counted and subject to faults.
//! Temporary files pass through unseen, and so does the wal-index (`-shm`), which SQLite rebuilds after a power loss.
//! Memory-mapped I/O is never offered to SQLite, so every access to a covered file goes through this VFS.
//!
//! All state belongs to the registered name: tests that run in parallel should each register a name of their own.
//! Do not open a file through this VFS and through another one at the same time in the same process while recording:
//! changes made through the other one go unseen, and reading the base image may drop its POSIX locks.
//!
//! Unix only.

mod crash;
mod file;
mod shared;
mod trace;
mod vfs;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use crash::{Disk, Loss};
use shared::Shared;
pub use trace::{Op, Trace};

/// A handle to one registered VFS; clones share its state.
#[derive(Clone, Debug)]
pub struct FaultVfs {
    name: &'static str,
    shared: &'static Shared,
}

impl FaultVfs {
    /// Registers a VFS under `name`, not as the default one, or returns a handle to it if that was done before.
    ///
    /// A registered VFS lives until the process ends.
    ///
    /// # Panics
    ///
    /// If `name` is empty, holds a NUL byte, or already belongs to a VFS that is not a `FaultVfs`.
    pub fn register(name: &str) -> FaultVfs {
        static REGISTERED: Mutex<Option<HashMap<String, FaultVfs>>> = Mutex::new(None);

        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = registered.get_or_insert_default();
        if let Some(vfs) = registered.get(name) {
            return vfs.clone();
        }
        let shared: &'static Shared = Box::leak(Box::default());
        vfs::register(name, shared);
        let vfs = FaultVfs { name: name.to_owned().leak(), shared };
        registered.insert(name.to_owned(), vfs.clone());
        vfs
    }

    /// The name to open connections with.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Starts a new, empty trace; an earlier one is forgotten.
    ///
    /// What the files hold now counts as durable. Files that are not open yet are read when they are opened first.
    ///
    /// # Panics
    ///
    /// If a file that is open through this VFS cannot be read.
    pub fn start_recording(&self) {
        self.shared.start_recording();
    }

    /// A copy of what has been recorded so far; empty if recording was never started.
    pub fn trace(&self) -> Trace {
        self.shared.trace()
    }

    /// Puts [`Op::Mark`] into the trace. Does nothing unless recording.
    pub fn mark(&self, label: impl Into<String>) {
        self.shared.mark(label.into());
    }

    /// Syncs a covered file past SQLite, as a program does that syncs a log by itself: recorded, counted and made to fail
    /// like SQLite's own syncs.
    pub fn sync_file(&self, path: &Path) -> io::Result<()> {
        let path: Arc<Path> = path.into();
        let mut failed = None;
        let rc = self.shared.sync(&path, false, || {
            // Opened for writing, which some systems ask of those who sync. A log carries no locks that closing it drops.
            match OpenOptions::new().write(true).open(&path).and_then(|file| file.sync_data()) {
                Ok(()) => rusqlite::ffi::SQLITE_OK,
                Err(error) => {
                    failed = Some(error);
                    rusqlite::ffi::SQLITE_IOERR_FSYNC
                }
            }
        });
        match (rc, failed) {
            (rusqlite::ffi::SQLITE_OK, _) => Ok(()),
            (_, Some(error)) => Err(error),
            (_, None) => Err(io::Error::other("the sync was made to fail")),
        }
    }

    /// Lets the disk forget what was written to a covered file and not synced, as a kernel may after a sync that failed: who
    /// reads the file sees it as before, but no later sync makes it durable. Does nothing unless recording.
    pub fn forget(&self, path: &Path) {
        self.shared.forget(&path.into());
    }

    /// Makes the `n`-th sync from now on fail with `SQLITE_IOERR_FSYNC`, and all after it, until [`heal`](Self::heal).
    ///
    /// The first sync is number 1; 0 means the same. A failed sync makes nothing durable and is not recorded.
    /// What it should have made durable becomes so with the next successful sync of the file; a real kernel may
    /// forget it instead.
    pub fn fail_sync_after(&self, n: u64) {
        self.shared.configure(|state| state.faults.fail_sync_at(n));
    }

    /// Makes the `n`-th write from now on fail with `SQLITE_IOERR_WRITE`, and all after it, until [`heal`](Self::heal).
    ///
    /// The first write is number 1; 0 means the same. A failed write changes nothing and is not recorded.
    pub fn fail_writes_after(&self, n: u64) {
        self.shared.configure(|state| state.faults.fail_write_at(n));
    }

    /// Makes the next `n` reads fail as SQLite has it where the disk says `EIO`: with `SQLITE_IOERR_CORRUPTFS`, which most of its
    /// calls hand on as `SQLITE_CORRUPT`.
    pub fn fail_next_reads(&self, n: u64) {
        self.shared.configure(|state| state.faults.failing_reads = n);
    }

    /// Makes writes fail with `SQLITE_FULL` that would grow a file while the covered files open through this VFS
    /// and those that were [allocated](Self::allocate) would then take up more than `bytes` in total. Writes that
    /// overwrite existing content still succeed.
    pub fn disk_limit(&self, bytes: u64) {
        self.shared.configure(|state| state.faults.disk_limit = Some(bytes));
    }

    /// Makes a file of so many bytes that counts towards [`disk_limit`](Self::disk_limit) as long as it is there, or fails as a
    /// full disk does.
    pub fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.shared.allocate(path, bytes)
    }

    /// What counts towards [`disk_limit`](Self::disk_limit): the covered files that are open and what was allocated.
    pub fn disk_used(&self) -> u64 {
        self.shared.used()
    }

    /// Takes back all faults. Recording and counters go on.
    pub fn heal(&self) {
        self.shared.configure(|state| state.faults = Default::default());
    }

    /// Lets SQLite see that the underlying VFS promises powersafe overwrites, which is hidden otherwise.
    ///
    /// The default, `false`, makes SQLite assume that a write may damage the rest of its sector; it then pads each
    /// commit in the write-ahead log to whole sectors. With `true` it writes just what it writes in production, which
    /// is what [`bytes_written`](Self::bytes_written) of a benchmark should show. Simulated power cuts never damage
    /// bytes outside a write, so they are fair to both. Affects connections opened afterwards.
    pub fn powersafe_overwrite(&self, promised: bool) {
        self.shared.set_powersafe_overwrite(promised);
    }

    /// Successful syncs since registration or the last [`reset_counters`](Self::reset_counters).
    pub fn sync_count(&self) -> u64 {
        self.shared.counters.syncs()
    }

    /// Successful writes since registration or the last [`reset_counters`](Self::reset_counters).
    pub fn write_count(&self) -> u64 {
        self.shared.counters.writes()
    }

    /// Bytes in successful writes since registration or the last [`reset_counters`](Self::reset_counters).
    pub fn bytes_written(&self) -> u64 {
        self.shared.counters.bytes()
    }

    /// Sets all counters to zero.
    pub fn reset_counters(&self) {
        self.shared.counters.reset();
    }
}
