//! Moving the log into the file, off the commit path.
//!
//! A log starts over only once all of it has been moved, and a writer that does not pause adds to it meanwhile. So it is
//! moved in two goes: nearly all of it here, in the background, and what was added since by the writer between two
//! batches. Writing over a log costs half of what making it longer does: the file system has nothing to allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use super::file::{Access, StoreFile};
use super::{Circumstances, failure};
use crate::Result;

/// The log is moved into the file when it has grown to this.
pub(super) const WAL_SOFT: u64 = 4 << 20;
/// At this size the writer stops and moves it itself, so that it stays bounded whatever readers do.
pub(super) const WAL_HARD: u64 = 64 << 20;

/// How often the background goes over it: what was added during one go is for the next, and each is much shorter than the one
/// before.
const GOES: usize = 2;

/// Wakes the thread that does it.
#[derive(Clone, Debug)]
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    busy: Arc<AtomicBool>,
}

/// The thread, waited for when the store goes.
#[derive(Debug)]
pub(super) struct CheckpointThread(Option<JoinHandle<()>>);

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

impl Checkpointer {
    pub(super) fn start(file: Arc<StoreFile>, circumstances: Arc<Circumstances>) -> (Self, CheckpointThread) {
        let (wake, woken) = sync_channel::<()>(1);
        let busy = Arc::new(AtomicBool::new(false));
        let working = busy.clone();
        let started = thread::Builder::new().name("everturn-checkpoint".to_owned()).spawn(move || {
            let mut conn = None;
            while woken.recv().is_ok() {
                if conn.is_none() {
                    conn = file.connect(Access::Write).ok();
                }
                if let Some(error) = conn.as_ref().and_then(|conn| move_most(conn, &file).err()) {
                    circumstances.note(&error);
                    conn = None;
                }
                working.store(false, Ordering::Release);
            }
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for checkpoints; the writer does them");
        }
        (Self { wake, busy }, CheckpointThread(started.ok()))
    }

    /// Asks for a checkpoint.
    pub(super) fn wake(&self) {
        self.busy.store(true, Ordering::Release);
        if self.wake.try_send(()).is_err() {
            self.busy.store(false, Ordering::Release);
        }
    }

    /// Whether the one that was asked for is not done yet.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

/// Moves the log into the file until little is left of it, and has that on disk.
fn move_most(conn: &Connection, file: &StoreFile) -> Result<()> {
    for _ in 0..GOES {
        move_log(conn)?;
        // Or whoever moves the rest would have to wait for all of it, and everybody for them.
        file.sync()?;
    }
    Ok(())
}

/// Moves what it can of the log into the file. It waits for nobody.
pub(super) fn move_log(conn: &Connection) -> Result<()> {
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(|error| {
        let error = failure(error, "checkpoint");
        tracing::warn!(%error, "the log was not moved into the file; it is tried again later");
        error
    })
}
