//! Moving the log into the file, off the commit path.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::file::{Access, StoreFile};
use super::{Circumstances, failure};

/// The log is moved into the file when it has grown to this.
pub(super) const WAL_SOFT: u64 = 16 << 20;
/// At this size the writer stops and moves it itself, so that it stays bounded whatever readers do.
pub(super) const WAL_HARD: u64 = 64 << 20;

/// Wakes the thread that does it.
#[derive(Clone, Debug)]
pub(super) struct Checkpointer(SyncSender<()>);

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
        let started = thread::Builder::new().name("everturn-checkpoint".to_owned()).spawn(move || {
            let mut conn = None;
            while woken.recv().is_ok() {
                if conn.is_none() {
                    conn = file.connect(Access::Write).ok();
                }
                let Some(open) = &conn else { continue };
                // Passive: it waits for nobody and nobody waits for it.
                let moved = open.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
                if let Err(error) = moved {
                    let error = failure(error, "checkpoint");
                    tracing::warn!(%error, "the log was not moved into the file; it is tried again later");
                    circumstances.note(&error);
                    conn = None;
                }
            }
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for checkpoints; the writer does them");
        }
        (Self(wake), CheckpointThread(started.ok()))
    }

    /// Asks for a checkpoint; one that is asked for already is enough.
    pub(super) fn wake(&self) {
        let _ = self.0.try_send(());
    }
}
