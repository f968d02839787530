//! Faults and counters, as seen through rusqlite.

use std::path::Path;

use everturn_testvfs::FaultVfs;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

fn open(vfs: &FaultVfs, dir: &Path) -> Connection {
    let path = dir.join("t.db");
    let db = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs.name()).unwrap();
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0").unwrap();
    db.execute_batch("CREATE TABLE IF NOT EXISTS t (body BLOB)").unwrap();
    db
}

fn insert(db: &Connection) -> rusqlite::Result<usize> {
    db.execute("INSERT INTO t VALUES (randomblob(1000))", [])
}

fn rows(db: &Connection) -> i64 {
    db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
}

fn extended_code(result: rusqlite::Result<usize>) -> i32 {
    result.unwrap_err().sqlite_error().unwrap().extended_code
}

#[test]
fn a_commit_is_one_sync() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("counters");
    let db = open(&vfs, dir.path());
    insert(&db).unwrap();
    for _ in 0..2 {
        vfs.reset_counters();
        for commits in 1..=20 {
            insert(&db).unwrap();
            assert_eq!(vfs.sync_count(), commits);
        }
        assert!(vfs.write_count() >= 20);
        assert!(vfs.bytes_written() >= 20 * 1000);
        // The same holds while recording.
        vfs.start_recording();
    }
}

#[test]
fn powersafe_overwrite_saves_padding() {
    let bytes = [false, true].map(|promised| {
        let dir = tempfile::tempdir().unwrap();
        let vfs = FaultVfs::register("padding");
        vfs.powersafe_overwrite(promised);
        let db = open(&vfs, dir.path());
        insert(&db).unwrap();
        vfs.reset_counters();
        insert(&db).unwrap();
        assert_eq!(vfs.sync_count(), 1);
        vfs.bytes_written()
    });
    assert!(bytes[0] > bytes[1], "{bytes:?}");
}

#[test]
fn a_failing_sync_fails_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("fail-sync");
    let db = open(&vfs, dir.path());
    insert(&db).unwrap();
    vfs.reset_counters();
    vfs.fail_sync_after(2);
    insert(&db).unwrap();
    for _ in 0..2 {
        assert_eq!(extended_code(insert(&db)), ffi::SQLITE_IOERR_FSYNC);
    }
    assert_eq!(vfs.sync_count(), 1);
    assert_eq!(rows(&db), 2);
    vfs.heal();
    insert(&db).unwrap();
    assert_eq!(rows(&db), 3);
}

#[test]
fn a_failed_sync_makes_nothing_durable() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("fail-sync-trace");
    let db = open(&vfs, dir.path());
    vfs.start_recording();
    vfs.fail_sync_after(1);
    insert(&db).unwrap_err();
    assert_eq!(vfs.trace().sync_points().count(), 0);
    assert!(!vfs.trace().is_empty());
}

#[test]
fn a_failing_write_fails_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("fail-write");
    let db = open(&vfs, dir.path());
    insert(&db).unwrap();
    for n in 0..4 {
        let before = rows(&db);
        vfs.fail_writes_after(n);
        assert_eq!(extended_code(insert(&db)), ffi::SQLITE_IOERR_WRITE);
        assert_eq!(rows(&db), before);
        vfs.heal();
        insert(&db).unwrap();
        assert_eq!(rows(&db), before + 1);
    }
}

#[test]
fn a_full_disk_can_be_freed() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("full");
    let db = open(&vfs, dir.path());
    let limit = 100_000;
    vfs.disk_limit(limit);
    let error = loop {
        if let Err(error) = insert(&db) {
            break error;
        }
    };
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DiskFull));
    let used = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    let total = used("t.db") + used("t.db-wal");
    assert!(total <= limit && total > limit / 2, "{total}");

    let before = rows(&db);
    insert(&db).unwrap_err();
    vfs.heal();
    insert(&db).unwrap();
    assert_eq!(rows(&db), before + 1);
}

#[test]
fn names_are_registered_once() {
    let vfs = FaultVfs::register("once");
    let dir = tempfile::tempdir().unwrap();
    drop(open(&FaultVfs::register("once"), dir.path()));
    assert!(vfs.sync_count() > 0);
    assert_eq!(FaultVfs::register("other").sync_count(), 0);
    assert!(std::panic::catch_unwind(|| FaultVfs::register("unix")).is_err());
    FaultVfs::register("still works");
}
