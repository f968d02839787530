//! Room that is kept for the time when a volume is full.
//!
//! Removing anything from a SQLite file writes to its log first, and moving the log into the file makes the file longer. So a
//! volume that is full to its last byte could not be freed by deleting. A file of real blocks beside the store is given up
//! then, and made anew when there is room.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, ErrorCode};

use super::failure;
use super::file::StoreFile;
use super::lock::again;
use super::owner::open_private;
use crate::{Error, Result};

/// A way to make a file of so many bytes that has its room on the disk.
type Allocate = dyn Fn(&Path, u64) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub(super) struct AllocateWith(pub(super) Arc<Allocate>);

impl fmt::Debug for AllocateWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AllocateWith")
    }
}

/// The file that keeps room.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    allocate: AllocateWith,
    /// It cannot be made here, for another reason than want of room: then the store does without.
    off: AtomicBool,
    /// It was not there when it was last looked for.
    missed: AtomicBool,
}

impl Reserve {
    pub(super) fn of(database: &Path, bytes: u64, allocate: AllocateWith) -> Self {
        Self {
            path: StoreFile::beside(database, "-reserve"),
            bytes,
            allocate,
            off: AtomicBool::new(bytes == 0),
            missed: AtomicBool::new(false),
        }
    }

    /// Whether the room was kept when that was last looked at.
    pub(super) fn was_kept(&self) -> bool {
        !self.missed.load(Ordering::Relaxed)
    }

    /// Whether the room is kept, by this process or another; it is tried to be if it is not. A store without a reserve keeps
    /// all that it is to keep.
    pub(super) fn is_kept(&self) -> bool {
        let kept = self.look();
        self.missed.store(!kept, Ordering::Relaxed);
        kept
    }

    fn look(&self) -> bool {
        if self.off.load(Ordering::Relaxed) || fs::metadata(&self.path).is_ok_and(|file| file.len() >= self.bytes) {
            return true;
        }
        let Err(error) = (self.allocate.0)(&self.path, self.bytes) else { return true };
        let _ = fs::remove_file(&self.path);
        if !matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            tracing::warn!(%error, "no reserve can be kept in {}; the store does without", self.path.display());
            self.off.store(true, Ordering::Relaxed);
        }
        self.off.load(Ordering::Relaxed)
    }

    /// Gives the room back to the volume. Says whether there was any.
    pub(super) fn give_up(&self) -> bool {
        let given_up = !self.off.load(Ordering::Relaxed) && fs::remove_file(&self.path).is_ok();
        if given_up {
            tracing::info!("the disk is full: the store's reserve is given up, so that sessions can be deleted");
        }
        given_up
    }
}

/// Makes a file whose blocks are there, not only its length.
pub(super) fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = open_private(path)?;
    match again(|| fallocate(&file, bytes)) {
        // Some file systems cannot say that they keep room; what was written they keep.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            let zeros = vec![0; 64 << 10];
            let mut left = bytes;
            while left > 0 {
                let now = left.min(zeros.len() as u64);
                file.write_all(&zeros[..usize::try_from(now).unwrap_or(0)])?;
                left -= now;
            }
            file.sync_data()
        }
        allocated => allocated,
    }
}

#[cfg(unix)]
fn fallocate(file: &File, bytes: u64) -> io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    Ok(())
}

#[cfg(not(unix))]
fn fallocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a write failed for want of room.
pub(super) fn is_full(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<rusqlite::Error>());
    source.and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::DiskFull)
}

/// What those are told who would take room while the reserve is given up.
pub(super) fn full() -> Error {
    Error::unavailable("the disk is full: make room or delete sessions, then try again")
}

/// Cuts some free pages off the file's end. Says whether there were any.
pub(super) fn cut_free_pages(conn: &Connection) -> Result<bool> {
    let free = |conn: &Connection| conn.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0));
    let before = free(conn).map_err(|e| failure(e, "write"))?;
    if before == 0 {
        return Ok(false);
    }
    // Few at a time: they go through the log, for which there is little room.
    let mut statement = conn.prepare_cached("PRAGMA incremental_vacuum(64)").map_err(|e| failure(e, "write"))?;
    let mut rows = statement.query([]).map_err(|e| failure(e, "write"))?;
    while rows.next().map_err(|e| failure(e, "write"))?.is_some() {}
    drop(rows);
    Ok(free(conn).map_err(|e| failure(e, "write"))? < before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_has_its_blocks_and_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(&dir.path().join("s.db"), 1 << 20, AllocateWith(Arc::new(allocate)));
        assert!(!reserve.give_up(), "there was none");
        for _ in 0..2 {
            assert!(reserve.is_kept());
            let file = fs::metadata(dir.path().join("s.db-reserve")).unwrap();
            assert_eq!(file.len(), 1 << 20);
            #[cfg(unix)]
            assert!(std::os::unix::fs::MetadataExt::blocks(&file) * 512 >= 1 << 20, "it keeps no room");
            assert!(reserve.give_up());
            assert!(!dir.path().join("s.db-reserve").exists());
        }
    }

    #[test]
    fn a_store_does_without_where_none_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let broken = |error: io::ErrorKind| {
            let allocate = move |_: &Path, _| Err(error.into());
            Reserve::of(&dir.path().join("s.db"), 1 << 20, AllocateWith(Arc::new(allocate)))
        };
        assert!(broken(io::ErrorKind::PermissionDenied).is_kept());
        assert!(!broken(io::ErrorKind::StorageFull).is_kept());
        let none = Reserve::of(&dir.path().join("s.db"), 0, AllocateWith(Arc::new(allocate)));
        assert!(none.is_kept() && !none.give_up());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
