//! The store's files, looked at from outside.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use everturn::store::SqliteStore;
use rusqlite::Connection;

/// Moves the log into the file and cuts it to nothing.
pub(super) fn truncate_log(path: &Path) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(10))?;
    // SQLite waits for readers, but not for a checkpoint that is under way.
    let deadline = Instant::now() + Duration::from_secs(10);
    while conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))? != 0 {
        ensure!(Instant::now() < deadline, "the log of {} could not be cut back", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Closes a store, its log moved into the file. Its threads close their connections in their own time.
pub(super) fn close(store: SqliteStore, path: &Path) -> Result<()> {
    drop(store);
    truncate_log(path)?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let deadline = Instant::now() + Duration::from_secs(5);
    while Path::new(&log).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The bytes of everything in a store's directory: file, log, index of the log, locks. Without the reserve, which has the same
/// size however much is in the store.
pub(super) fn bytes(path: &Path) -> Result<u64> {
    fn sum(dir: &Path) -> std::io::Result<u64> {
        let mut total = 0;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if entry.file_name().to_string_lossy().ends_with("-reserve") {
                continue;
            }
            total += if meta.is_dir() { sum(&entry.path())? } else { meta.len() };
        }
        Ok(total)
    }
    let dir = path.parent().context("a store's path has a directory")?;
    Ok(sum(dir)?)
}

/// The bytes SQLite keeps for us in tables and indexes, without what pages waste and without the journal, whose slots have one
/// size, filled or not.
pub(super) fn payload(path: &Path) -> Result<u64> {
    let conn = Connection::open(path)?;
    let bytes: i64 = conn.query_row(
        "SELECT sum(payload) FROM dbstat WHERE name NOT LIKE 'sqlite_%' AND name <> 'slot'",
        [],
        |row| row.get(0),
    )?;
    Ok(bytes.unsigned_abs())
}

pub(super) fn page_size(conn: &Connection) -> Result<u64> {
    let bytes: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    Ok(bytes.unsigned_abs())
}

/// What each table and index takes, largest first: bytes of pages, and how much of them is used.
pub(super) fn breakdown(path: &Path) -> Result<String> {
    let conn = Connection::open(path)?;
    let sql =
        "SELECT name, sum(pgsize), 100 * sum(payload) / sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 4";
    let mut statement = conn.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let (name, bytes, used): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(format!("{name} {bytes} ({used} % used)"))
    })?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.join(", "))
}
