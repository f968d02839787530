//! The lock that processes take turns by, and who holds a lock.
//!
//! SQLite's own busy handler lets some processes starve, so they take turns by a lock around each batch. A process that stands
//! still in its turn (stopped, or paused with its container) would keep all others from writing; it is waited for so long
//! and then named.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::file::StoreFile;
use super::owner::open_private;
use crate::{Error, Result};

/// How soon a lock that is held is looked at again: at first, and at most. Between, it is a quarter of what was waited.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How long a lock is waited for that was waited for in vain just before.
const AGAIN: Duration = Duration::from_millis(100);
/// Who waits no longer than this has waited for an ordinary batch of another process.
const SHORTLY: Duration = Duration::from_secs(1);
/// The byte of SQLite's `-shm` that is locked by whoever writes to the log.
const WRITE_LOCK: u64 = 120;

/// A lock that processes take turns by.
#[derive(Debug)]
pub(super) struct TurnLock {
    file: File,
    path: PathBuf,
    /// How long a turn of others is waited for.
    most: Duration,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// Since when it is waited for.
    since: Option<Instant>,
    /// Whether it was waited for in vain, and not got since.
    in_vain: bool,
}

/// One's turn, until it is dropped.
pub(super) struct Turn<'l>(&'l File);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = again(|| self.0.unlock());
    }
}

impl TurnLock {
    pub(super) fn open(database: &Path, most: Duration) -> Result<Self> {
        let path = StoreFile::beside(database, "-lock");
        let file = open_private(&path).map_err(|e| {
            Error::unavailable(format!("cannot write {}: check its permissions", path.display())).with_source(e)
        })?;
        Ok(Self { file, path, most, waits: Mutex::default() })
    }

    /// Waits for one's turn. Refused when somebody else's takes too long; nothing was begun then.
    pub(super) fn hold(&self) -> Result<Turn<'_>> {
        let since = Instant::now();
        let most = if self.with(|waits| waits.in_vain) { self.most.min(AGAIN) } else { self.most };
        loop {
            if self.try_lock()? {
                self.with(|waits| *waits = Waits::default());
                return Ok(Turn(&self.file));
            }
            let waited = since.elapsed();
            if waited >= most {
                self.with(|waits| *waits = Waits { since: None, in_vain: true });
                return Err(self.held_too_long());
            }
            self.with(|waits| waits.since = Some(since));
            thread::sleep((waited / 4).clamp(FIRST_PAUSE, LONGEST_PAUSE).min(most - waited));
        }
    }

    /// The same if it is nobody else's turn.
    pub(super) fn try_hold(&self) -> Option<Turn<'_>> {
        self.try_lock().is_ok_and(|locked| locked).then(|| Turn(&self.file))
    }

    /// Why writes are not made, if they wait for somebody else's turn for longer than a batch takes.
    pub(super) fn hindrance(&self) -> Option<Error> {
        let held = self.with(|waits| waits.in_vain || waits.since.is_some_and(|since| since.elapsed() > SHORTLY));
        held.then(|| self.held_too_long())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Waits) -> T) -> T {
        work(&mut self.waits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Result<bool> {
        let locked = again(|| match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        });
        locked.map_err(|e| {
            Error::unavailable(format!("the lock {} cannot be taken: check the disk it is on", self.path.display()))
                .with_source(e)
        })
    }

    fn held_too_long(&self) -> Error {
        stands_still(&self.path, holder(&self.path, "FLOCK", None))
    }
}

/// Somebody else keeps SQLite's lock for too long: a program that writes to the file past us.
pub(super) fn file_is_busy(database: &Path) -> Error {
    stands_still(database, holder(&StoreFile::beside(database, "-shm"), "POSIX", Some(WRITE_LOCK)))
}

fn stands_still(path: &Path, holder: Option<Holder>) -> Error {
    let path = path.display();
    Error::unavailable(match holder {
        Some(Holder { pid, name }) => format!(
            "process {pid} ({name}) holds {path} and does not go on: let it go on (kill -CONT {pid}) or end it; nothing was \
             written"
        ),
        None => format!(
            "another process holds {path} and does not go on: find it (lsof {path}), let it go on or end it; nothing was \
             written"
        ),
    })
}

/// A process that holds a lock.
struct Holder {
    pid: u32,
    name: String,
}

/// Who holds a lock on a file, where the system tells: it does not of processes in other containers.
fn holder(path: &Path, kind: &str, byte: Option<u64>) -> Option<Holder> {
    let file = file_as_locks_name_it(path)?;
    // The list is read in pieces, and a line is missed where locks before it go away meanwhile.
    let pid = (0..5).find_map(|_| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder_in(line, kind, &file, byte))
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(Holder { pid, name: if name.is_empty() { "unknown".to_owned() } else { name.trim().to_owned() } })
}

/// The holder that a line of `/proc/locks` names, like `1: FLOCK  ADVISORY  WRITE 4711 08:01:131089 0 EOF`.
fn holder_in(line: &str, kind: &str, file: &str, byte: Option<u64>) -> Option<u32> {
    let words: Vec<_> = line.split_whitespace().collect();
    // Who waits for a lock is shown with an arrow in front of the kind.
    let [_, its_kind, _, "WRITE", pid, its_file, first, last] = words[..] else { return None };
    let is_in = |byte: u64| {
        let last = if last == "EOF" { Some(u64::MAX) } else { last.parse().ok() };
        first.parse::<u64>().ok().zip(last).is_some_and(|(first, last)| (first..=last).contains(&byte))
    };
    (its_kind == kind && its_file == file && byte.is_none_or(is_in)).then(|| pid.parse().ok())?
}

#[cfg(target_os = "linux")]
fn file_as_locks_name_it(path: &Path) -> Option<String> {
    let file = rustix::fs::stat(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
    Some(format!("{major:02x}:{minor:02x}:{}", file.st_ino))
}

#[cfg(not(target_os = "linux"))]
fn file_as_locks_name_it(_: &Path) -> Option<String> {
    None
}

/// Does what a signal may interrupt, again until it is not.
pub(super) fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_a_signal_interrupts_is_done_again() {
        let mut calls = 0;
        let done = again(|| {
            calls += 1;
            if calls < 3 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(calls) }
        });
        assert_eq!(done.unwrap(), 3);
        let failed = again(|| Err::<(), _>(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_lock_is_waited_for_with_a_limit_and_its_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("s.db");
        let lock = TurnLock::open(&database, Duration::from_millis(5)).unwrap();
        let other = TurnLock::open(&database, Duration::ZERO).unwrap();
        let held = other.hold().unwrap();
        assert!(lock.hindrance().is_none(), "nobody has waited yet");
        for _ in 0..2 {
            let Err(error) = lock.hold() else { panic!("two have it") };
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let told = error.to_string();
            assert!(told.contains("s.db-lock") && told.contains("nothing was written"), "{told}");
            if cfg!(target_os = "linux") {
                assert!(told.contains(&format!("process {} (", std::process::id())), "{told}");
            }
            assert!(lock.hindrance().is_some());
        }
        drop(held);
        drop(lock.hold().unwrap());
        assert!(lock.hindrance().is_none());
    }

    #[test]
    fn holders_are_read_from_the_systems_list() {
        let flock = "1: FLOCK  ADVISORY  WRITE 4711 08:01:131089 0 EOF";
        assert_eq!(holder_in(flock, "FLOCK", "08:01:131089", None), Some(4711));
        assert_eq!(holder_in(flock, "FLOCK", "08:01:13108", None), None);
        assert_eq!(
            holder_in("1: -> FLOCK  ADVISORY  WRITE 4712 08:01:131089 0 EOF", "FLOCK", "08:01:131089", None),
            None
        );
        let posix = "2: POSIX  ADVISORY  WRITE 12 00:2f:7 120 120";
        assert_eq!(holder_in(posix, "POSIX", "00:2f:7", Some(120)), Some(12));
        assert_eq!(holder_in(posix, "POSIX", "00:2f:7", Some(121)), None);
        assert_eq!(holder_in("2: POSIX  ADVISORY  READ 12 00:2f:7 120 120", "POSIX", "00:2f:7", Some(120)), None);
    }
}
