//! SQLite's log on its way to the disk.
//!
//! SQLite would sync its log inside a commit, and nobody could write until the disk is done. We commit without a sync and
//! sync the log afterwards, beside the next batches: one wait for the disk covers all that was committed before it began.
//! Nothing else of SQLite's syncs is left out: it orders its log and its file by its own, and so a file is whole whatever
//! of the log's end a power cut takes.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::file::StoreFile;
use crate::{Error, Result};

/// A way to make sure that what was written to a file is on disk.
type SyncFile = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub(super) struct SyncWith(pub(super) Arc<SyncFile>);

impl fmt::Debug for SyncWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncWith")
    }
}

/// The log of a store's file.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    how: How,
}

#[derive(Debug)]
enum How {
    /// Opened by us beside SQLite. It takes no locks on its log, so none are lost when ours is closed.
    File(Mutex<Option<Arc<File>>>),
    Given(SyncWith),
}

impl Log {
    pub(super) fn of(store: &Path, given: Option<SyncWith>) -> Self {
        let how = given.map_or_else(|| How::File(Mutex::new(None)), How::Given);
        Self { path: StoreFile::beside(store, "-wal"), how }
    }

    /// Finds the log that a connection has just opened. It stays the same file while any connection is open.
    pub(super) fn open(&self) -> Result<()> {
        let How::File(slot) = &self.how else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(&self.path).map_err(|e| {
            Error::unavailable(format!("cannot open {}: check its permissions", self.path.display())).with_source(e)
        })?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(file));
        Ok(())
    }

    /// Waits until all that was committed before is on disk.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = match &self.how {
            How::Given(sync) => (sync.0)(&self.path),
            How::File(slot) => {
                let file = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // Its size and its content; when it was last written to is nobody's concern.
                file.ok_or_else(|| io::Error::other("the log is not open")).and_then(|file| file.sync_data())
            }
        };
        synced.map_err(|e| Error::disk_failed("sync its log").with_source(e))
    }
}
