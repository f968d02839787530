//! Real SQLite databases, cut off at every sync.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use everturn_testvfs::{FaultVfs, Loss, Op, Trace};
use rusqlite::{Connection, OpenFlags, params};

const ROWS: i64 = 30;
const WAL_FULL: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";

fn losses() -> Vec<Loss> {
    let seeded = (1..=4).flat_map(|seed| [Loss::KeepRandom { seed }, Loss::Torn { seed }]);
    [Loss::DropUnsynced].into_iter().chain(seeded).collect()
}

fn open(vfs: &FaultVfs, path: &Path, pragmas: &str) -> Connection {
    let db = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs.name()).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
    // A small cache and a low threshold make checkpoints and spills part of the picture.
    db.execute_batch("PRAGMA cache_size = 8; PRAGMA wal_autocheckpoint = 12;").unwrap();
    db.execute_batch(pragmas).unwrap();
    db.execute_batch("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body BLOB NOT NULL)").unwrap();
    db
}

fn body(id: i64) -> Vec<u8> {
    vec![id as u8; 300 + (id as usize * 977) % 6000]
}

fn insert(vfs: &FaultVfs, db: &Connection, id: i64) {
    db.execute("INSERT INTO t VALUES (?1, ?2)", params![id, body(id)]).unwrap();
    vfs.mark(id.to_string());
}

/// Records the insertion of `ROWS` rows into a new database, each acknowledged by a mark.
fn record(name: &str, pragmas: &str) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register(name);
    vfs.start_recording();
    let db = open(&vfs, &dir.path().join("t.db"), pragmas);
    for id in 1..=ROWS {
        insert(&vfs, &db, id);
    }
    drop(db);
    vfs.trace()
}

/// The rows that are there after a power cut. Panics if the database is damaged.
fn recover(trace: &Trace, cut: usize, loss: Loss) -> BTreeSet<i64> {
    let dir = tempfile::tempdir().unwrap();
    trace.crash_at(cut, loss).write_into(dir.path()).unwrap();
    let db = Connection::open(dir.path().join("t.db")).unwrap();
    db.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "cut {cut}, {loss:?}");
    if !db.table_exists(None, "t").unwrap() {
        return BTreeSet::new();
    }
    let mut query = db.prepare("SELECT id, body FROM t").unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)));
    let checked = rows.unwrap().map(|row| {
        let (id, found) = row.unwrap();
        assert_eq!(found, body(id), "cut {cut}, {loss:?}");
        id
    });
    checked.collect()
}

fn acknowledged(trace: &Trace, cut: usize) -> BTreeSet<i64> {
    trace.marks_before(cut).into_iter().map(|mark| mark.parse().unwrap()).collect()
}

fn assert_survives(trace: &Trace, cuts: impl Iterator<Item = usize>, writers: usize) {
    for cut in cuts {
        let acknowledged = acknowledged(trace, cut);
        for loss in losses() {
            let found = recover(trace, cut, loss);
            let lost: Vec<_> = acknowledged.difference(&found).collect();
            assert!(lost.is_empty(), "cut {cut}, {loss:?}: lost {lost:?}");
            let extra = found.len() - acknowledged.len();
            assert!(extra <= writers, "cut {cut}, {loss:?}: {extra} rows too many");
        }
    }
}

/// The number of moments at which a power cut loses an acknowledged row.
fn losing_cuts(trace: &Trace, loss: Loss) -> usize {
    let loses = |cut: &usize| !recover(trace, *cut, loss).is_superset(&acknowledged(trace, *cut));
    (0..=trace.len()).filter(loses).count()
}

fn count(trace: &Trace, kind: fn(&Op) -> bool) -> usize {
    trace.ops().iter().filter(|op| kind(op)).count()
}

#[test]
fn wal_full_keeps_acknowledged_rows() {
    let trace = record("wal-full", WAL_FULL);
    assert_eq!(acknowledged(&trace, trace.len()).len() as i64, ROWS);
    let to_database = |op: &Op| matches!(op, Op::Write { file, .. } if file.ends_with("t.db"));
    assert!(count(&trace, to_database) > 10, "checkpoints are part of the trace");
    assert_survives(&trace, trace.sync_points(), 1);
    assert_survives(&trace, [0, trace.len()].into_iter(), 1);
}

#[test]
fn wal_full_keeps_acknowledged_rows_between_syncs() {
    let trace = record("wal-full-all", WAL_FULL);
    assert_survives(&trace, (0..trace.len()).step_by(7), 1);
}

#[test]
fn wal_full_keeps_acknowledged_rows_as_written_in_production() {
    FaultVfs::register("wal-psow").powersafe_overwrite(true);
    let trace = record("wal-psow", WAL_FULL);
    assert_survives(&trace, trace.sync_points(), 1);
}

#[test]
fn preallocation_is_part_of_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("wal-chunk");
    vfs.start_recording();
    let db = open(&vfs, &dir.path().join("t.db"), "PRAGMA journal_mode = WAL");
    set_chunk_size(&db, 1 << 16);
    (1..=ROWS).for_each(|id| insert(&vfs, &db, id));
    let trace = vfs.trace();
    let grown = |op: &Op| matches!(op, Op::Truncate { size, .. } if *size > 0 && size % (1 << 16) == 0);
    assert!(count(&trace, grown) > 0);
    let last = trace.crash_at(trace.len(), Loss::DropUnsynced);
    assert_eq!(last.get(dir.path().join("t.db")).unwrap().len() % (1 << 16), 0);
    assert_survives(&trace, trace.sync_points(), 1);
}

fn set_chunk_size(db: &Connection, mut bytes: i32) {
    use rusqlite::ffi;
    // SAFETY: the connection is open, and SQLite reads a 32-bit integer from the argument during the call.
    let rc = unsafe {
        let arg = (&raw mut bytes).cast();
        ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_CHUNK_SIZE, arg)
    };
    assert_eq!(rc, ffi::SQLITE_OK);
}

#[test]
fn without_syncs_acknowledged_rows_are_lost() {
    let trace = record("wal-off", "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF");
    assert!(losing_cuts(&trace, Loss::DropUnsynced) > trace.len() / 2);
}

#[test]
fn syncing_only_at_checkpoints_loses_acknowledged_rows_but_not_the_database() {
    let trace = record("wal-normal", "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    for loss in [Loss::DropUnsynced, Loss::KeepRandom { seed: 7 }, Loss::Torn { seed: 7 }] {
        assert!(losing_cuts(&trace, loss) > 0, "{loss:?}");
    }
}

#[test]
fn rollback_journal_depends_on_syncing_the_directory() {
    let extra = record("delete-extra", "PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA");
    assert!(count(&extra, |op| matches!(op, Op::Delete { dir_synced: true, .. })) >= ROWS as usize);
    assert_survives(&extra, extra.sync_points(), 1);

    // A deleted journal that comes back undoes its transaction.
    let full = record("delete-full", "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
    assert!(losing_cuts(&full, Loss::DropUnsynced) > 0);
}

#[test]
fn several_threads_are_recorded_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let vfs = FaultVfs::register("threads");
    vfs.start_recording();
    drop(open(&vfs, &path, WAL_FULL));
    let writers = 3;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (vfs, path) = (vfs.clone(), &path);
            scope.spawn(move || {
                let db = open(&vfs, path, WAL_FULL);
                (0..8).for_each(|n| insert(&vfs, &db, 1 + n * writers + writer));
            });
        }
    });
    let trace = vfs.trace();
    assert_eq!(acknowledged(&trace, trace.len()).len(), 24);
    assert_survives(&trace, trace.sync_points(), writers as usize);
}

#[test]
fn recording_may_start_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let vfs = FaultVfs::register("middle");

    // Row 1 is in the database, row 2 only in the log when recording starts.
    let db = open(&vfs, &path, WAL_FULL);
    insert(&vfs, &db, 1);
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    insert(&vfs, &db, 2);
    assert!(vfs.trace().is_empty());
    vfs.start_recording();
    assert_eq!(recover(&vfs.trace(), 0, Loss::DropUnsynced), BTreeSet::from([1, 2]));

    // The first thing done afterwards touches one of the two files only.
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    (3..=8).for_each(|id| insert(&vfs, &db, id));
    drop(db);
    let trace = vfs.trace();
    for cut in 0..=trace.len() {
        for loss in losses() {
            let found = recover(&trace, cut, loss);
            assert!(found.contains(&1) && found.contains(&2), "cut {cut}, {loss:?}");
            assert!(found.is_superset(&acknowledged(&trace, cut)));
        }
    }

    // Started anew while nothing is open: the database is read as it is opened.
    vfs.start_recording();
    let db = open(&vfs, &path, WAL_FULL);
    insert(&vfs, &db, 9);
    let trace = vfs.trace();
    assert_eq!(recover(&trace, 0, Loss::DropUnsynced), (1..=8).collect());
    assert_eq!(recover(&trace, trace.len(), Loss::DropUnsynced), (1..=9).collect());
}

/// With every commit synced and nothing padded, what is durable at the end is what is there.
fn assert_replays(trace: &Trace, path: &Path) {
    let disk = trace.crash_at(trace.len(), Loss::DropUnsynced);
    for (path, replayed) in disk.files() {
        assert!(replayed == std::fs::read(path).unwrap(), "{}", path.display());
    }
    assert!(disk.get(path).is_some());
}

#[test]
fn a_trace_replays_to_the_very_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let vfs = FaultVfs::register("replay");
    vfs.powersafe_overwrite(true);
    vfs.start_recording();
    let db = open(&vfs, &path, WAL_FULL);
    (1..=ROWS).for_each(|id| insert(&vfs, &db, id));
    db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    insert(&vfs, &db, ROWS + 1);
    assert_replays(&vfs.trace(), &path);
}

#[test]
fn recording_may_start_while_threads_write() {
    for round in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let vfs = FaultVfs::register(&format!("midway-{round}"));
        vfs.powersafe_overwrite(true);
        let db = open(&vfs, &path, WAL_FULL);
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (vfs, path) = (vfs.clone(), &path);
                scope.spawn(move || {
                    let db = open(&vfs, path, WAL_FULL);
                    (0..40).for_each(|n| insert(&vfs, &db, 1 + n * 2 + writer));
                });
            }
            while vfs.sync_count() < 20 {
                std::thread::yield_now();
            }
            vfs.start_recording();
        });
        let trace = vfs.trace();
        assert!(!trace.is_empty());
        assert_replays(&trace, &path);
        for cut in trace.sync_points().step_by(5) {
            let found = recover(&trace, cut, Loss::Torn { seed: round });
            assert!(found.is_superset(&acknowledged(&trace, cut)), "cut {cut}");
        }
        drop(db);
    }
}

/// Closing any descriptor of a file drops all POSIX locks that the process has on it. Only another process can tell, so
/// this test starts itself again as that process.
#[test]
fn starting_to_record_drops_no_locks() {
    const PROBE: &str = "EVERTURN_TESTVFS_LOCK_PROBE";
    if let Some(path) = std::env::var_os(PROBE) {
        let db = Connection::open(path).unwrap();
        db.busy_timeout(std::time::Duration::ZERO).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        return;
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let can_write = || {
        let mut probe = Command::new(std::env::current_exe().unwrap());
        probe.args(["--exact", "starting_to_record_drops_no_locks"]);
        probe.env(PROBE, &path).output().unwrap().status.success()
    };
    let vfs = FaultVfs::register("locks");
    let db = open(&vfs, &path, "PRAGMA journal_mode = DELETE");
    assert!(can_write());
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(!can_write());
    vfs.start_recording();
    vfs.start_recording();
    assert!(!can_write());
    db.execute_batch("COMMIT").unwrap();
    assert!(can_write());
}
