//! Moving the log into the file, off the commit path.
//!
//! A log starts over only once all of it has been moved, and a writer that does not pause adds to it meanwhile. So it is
//! moved in two goes: nearly all of it here, in the background, and what was added since by the writer between two
//! batches. Writing over a log costs half of what making it longer does: the file system has nothing to allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, ErrorCode};

use super::file::{Access, StoreFile};
use super::{Circumstances, Conn, failure};
use crate::{Error, Result};

/// The log is moved into the file when it has grown to this.
pub(super) const WAL_SOFT: u64 = 4 << 20;
/// At this size the writer stops and moves it itself, so that it stays bounded whatever readers do.
pub(super) const WAL_HARD: u64 = 64 << 20;

/// How often the background goes over it: what was added during one go is for the next, and each is much shorter than the one
/// before.
const GOES: usize = 2;

#[derive(Debug)]
enum Order {
    Move,
    /// Close the connection, and say so.
    Close(Sender<()>),
}

/// Wakes the thread that does it.
#[derive(Clone, Debug)]
pub(super) struct Checkpointer {
    orders: SyncSender<Order>,
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
        let (orders, woken) = sync_channel::<Order>(1);
        let busy = Arc::new(AtomicBool::new(false));
        let working = busy.clone();
        let started = thread::Builder::new().name("everturn-checkpoint".to_owned()).spawn(move || {
            let mut conn = None;
            while let Ok(order) = woken.recv() {
                if let Order::Close(closed) = order {
                    conn = None;
                    let _ = closed.send(());
                    continue;
                }
                if let Err(error) = move_most(&mut conn, &file, &circumstances) {
                    circumstances.note(&error);
                    conn = None;
                }
                working.store(false, Ordering::Release);
            }
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for checkpoints; the writer does them");
        }
        (Self { orders, busy }, CheckpointThread(started.ok()))
    }

    /// Asks for a checkpoint.
    pub(super) fn wake(&self) {
        self.busy.store(true, Ordering::Release);
        if self.orders.try_send(Order::Move).is_err() {
            self.busy.store(false, Ordering::Release);
        }
    }

    /// Has its connection closed, once it is done with what it does.
    pub(super) fn close(&self) {
        let (closed, told) = channel();
        if self.orders.send(Order::Close(closed)).is_ok() {
            let _ = told.recv();
        }
    }

    /// Whether the one that was asked for is not done yet.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

/// Moves the log into the file until little of it is left, and has that on disk.
fn move_most(conn: &mut Option<Conn>, file: &StoreFile, circumstances: &Arc<Circumstances>) -> Result<()> {
    circumstances.check_open()?;
    let conn = match conn {
        Some(conn) => conn,
        None => conn.insert(Conn::new(file.connect(Access::Write)?, circumstances)),
    };
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

/// Moves all of the log into the file, read from its start, and removes it. Only where nobody else has the file open.
pub(super) fn move_log_alone(file: &StoreFile, circumstances: &Arc<Circumstances>) -> Result<()> {
    let conn = Conn::new(file.connect(Access::Alone)?, circumstances);
    let moved = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    let busy = moved.as_ref().err().and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::DatabaseBusy);
    if busy || matches!(moved, Ok(1..)) {
        return Err(Error::unavailable(
            "the store is open elsewhere too, and after a failed write its log must be read anew: close it there, then \
             reopen it here",
        ));
    }
    moved.map(drop).map_err(|e| failure(e, "checkpoint"))
}
