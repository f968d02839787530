//! A disk that is quickly full.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A small file system of its own, where one may be made.
pub(crate) struct Small(TempDir);

impl Small {
    pub(crate) fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(dir.path());
        mount.output().ok().filter(|done| done.status.success()).map(|_| Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills what is left of it, but for some bytes. Removing the file makes room again.
    pub(crate) fn fill_but(&self, bytes: usize) -> PathBuf {
        let (room, path) = (self.path().join("room"), self.path().join("ballast"));
        fs::write(&room, vec![1; bytes]).unwrap();
        let mut size = 1 << 20;
        let mut ballast = File::create(&path).unwrap();
        while size >= 512 {
            if ballast.write_all(&vec![1; size]).is_err() {
                size /= 2;
            }
        }
        fs::remove_file(room).unwrap();
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
