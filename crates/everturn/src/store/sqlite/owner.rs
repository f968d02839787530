//! Who is alive.
//!
//! Each open store holds an OS lock on a file of its own beside the database. A lock that is free, or a file that is
//! gone, means that its process is dead: at once, without waiting for a lease to run out.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{StoreFile, create_private_dir};
use super::lock::again;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Owners {
    directory: PathBuf,
    me: Arc<str>,
    /// Held as long as the store is open; the lock goes with it.
    _lock: File,
}

impl Owners {
    pub(super) fn register(database: &Path, me: &str) -> Result<Self> {
        let directory = StoreFile::beside(database, "-owners");
        let unusable = |e: std::io::Error| {
            Error::unavailable(format!("cannot write {}: check its permissions", directory.display())).with_source(e)
        };
        create_private_dir(&directory).map_err(unusable)?;
        let path = directory.join(me);
        let lock = open_private(&path).map_err(unusable)?;
        again(|| lock.lock()).map_err(unusable)?;
        let owners = Self { directory, me: me.into(), _lock: lock };
        owners.sweep();
        Ok(owners)
    }

    pub(super) fn me(&self) -> &Arc<str> {
        &self.me
    }

    pub(super) fn holds_lock(&self, owner: &str) -> bool {
        if *owner == *self.me {
            return true;
        }
        // Owners are names we made; anything else could lead out of the directory.
        if owner.contains(['/', '\\']) || owner.starts_with('.') {
            return false;
        }
        is_locked(&self.directory.join(owner))
    }

    /// Removes what dead owners left.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.file_name().is_some_and(|name| name != &*self.me) && !is_locked(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.directory.join(&*self.me));
    }
}

/// Whether an owner's file is locked. One that is there but cannot be looked at, for want of file handles for instance, counts
/// as locked: turns are not taken from owners that may be alive.
fn is_locked(path: &Path) -> bool {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let locked = again(|| match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    });
    locked.unwrap_or(true)
}

/// Opens a file that nobody else may read, creating it if it is missing.
pub(super) fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
