//! What the store is compared with: a thread that puts bytes into one append-ordered table and does nothing else.
//!
//! It has the store's page size and pragmas, and its checkpoints off the commit path, so that what is left between the
//! two is what the store does beside writing.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::files;

/// Bytes in the log at which it is moved into the file.
const CHECKPOINT: u64 = 4 << 20;

/// Whether a job waits for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    ForDisk,
    No,
}

/// How many jobs share a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    One,
    All,
}

/// What a turn stores: its begin, which waits for nothing, and its end, which waits for the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnBytes {
    pub(super) begin: usize,
    pub(super) end: usize,
    /// The pages it is stored in.
    page: u64,
}

impl TurnBytes {
    /// What a turn stores in a file of ours, tables and indexes together, shared out as bodies are. Of the turns that have come
    /// to their tables: what waits in the journal is on its way there.
    pub(super) fn of_store(path: &Path) -> Result<Self> {
        let conn = Connection::open(path)?;
        let turns: i64 = conn.query_row("SELECT count(*) FROM record WHERE kind = 2", [], |row| row.get(0))?;
        let bodies = |kind: i64| -> rusqlite::Result<f64> {
            let sql = "SELECT coalesce(sum(length(body) + length(tip)), 0) FROM record WHERE kind = ?1";
            conn.query_row(sql, [kind], |row| row.get(0))
        };
        let (begin, end) = (bodies(0)?, bodies(2)?);
        let each = files::payload(path)? as f64 / turns as f64;
        let begin = (each * begin / (begin + end)) as usize;
        Ok(Self { begin, end: each as usize - begin, page: files::page_size(&conn)? })
    }
}

struct Job {
    bytes: Vec<u8>,
    wait: Wait,
    done: oneshot::Sender<()>,
}

pub(super) struct BareWriter {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl BareWriter {
    pub(super) fn start(path: &Path, batch: Batch, bytes: TurnBytes) -> Result<Self> {
        let conn = connect(path, bytes.page)?;
        conn.execute_batch("CREATE TABLE IF NOT EXISTS log (pos INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
        let (jobs, queue) = channel();
        let checkpointer = checkpointer(connect(path, bytes.page)?);
        let thread = thread::spawn(move || serve(conn, &queue, batch, bytes.page, checkpointer));
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    pub(super) async fn put(&self, bytes: usize, wait: Wait) -> Result<()> {
        let (done, finished) = oneshot::channel();
        let jobs = self.jobs.as_ref().context("the bare writer has stopped")?;
        jobs.send(Job { bytes: vec![7; bytes], wait, done }).ok().context("the bare writer has stopped")?;
        finished.await.context("the bare writer has stopped")
    }

    /// The transactions of a turn.
    pub(super) async fn turn(&self, bytes: TurnBytes) -> Result<()> {
        self.put(bytes.begin, Wait::No).await?;
        self.put(bytes.end, Wait::ForDisk).await
    }
}

impl Drop for BareWriter {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            eprintln!("the bare writer failed: {error:#}");
        }
    }
}

fn connect(path: &Path, page: u64) -> Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(std::time::Duration::from_secs(10))?;
    conn.pragma_update(None, "page_size", i64::try_from(page)?)?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "cache_size", -8192)?;
    conn.pragma_update(None, "secure_delete", true)?;
    Ok(conn)
}

fn checkpointer(conn: Connection) -> SyncSender<()> {
    let (wake, woken) = sync_channel::<()>(1);
    thread::spawn(move || {
        while woken.recv().is_ok() {
            if let Err(error) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
                eprintln!("the bare writer's checkpoint failed: {error}");
            }
        }
    });
    wake
}

fn serve(
    mut conn: Connection,
    queue: &Receiver<Job>,
    batch: Batch,
    page: u64,
    checkpointer: SyncSender<()>,
) -> Result<()> {
    let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
        if u64::from(pages.unsigned_abs()) * page > CHECKPOINT {
            let _ = checkpointer.try_send(());
        }
        Ok(())
    };
    conn.wal_hook(Some(hook))?;
    let run = |sql: &str| -> rusqlite::Result<()> { conn.prepare_cached(sql)?.execute([]).map(drop) };
    while let Ok(first) = queue.recv() {
        let mut jobs = vec![first];
        if batch == Batch::All {
            jobs.extend(queue.try_iter());
        }
        let waits = jobs.iter().any(|job| job.wait == Wait::ForDisk);
        run(if waits { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })?;
        run("BEGIN IMMEDIATE")?;
        for job in &jobs {
            conn.prepare_cached("INSERT INTO log (body) VALUES (?1)")?.execute([&job.bytes])?;
        }
        run("COMMIT")?;
        for job in jobs {
            let _ = job.done.send(());
        }
    }
    Ok(())
}
