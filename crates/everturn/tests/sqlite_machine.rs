//! A store on a difficult machine: other processes that stand still, files that are taken away, a disk that cannot read.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use everturn::store::{
    BeginTurn, Busy, CreateSession, Durability, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _,
    WatchTarget,
};
use everturn::{Changes, Error, ErrorKind, Event, Input, InvocationId, Message, SessionKey};
use everturn_testvfs::FaultVfs;
use tokio::time::timeout;

/// What is right never takes so long.
const FOREVER: Duration = Duration::from_secs(60);

fn key(id: &str) -> SessionKey {
    SessionKey::of("a", "u", id).unwrap()
}

async fn turn(store: &SqliteStore, id: &str) -> everturn::Result<()> {
    let begin = BeginTurn::new(Start::Session(key(id)), InvocationId::new("i").unwrap(), Input::text("hello"));
    let begun = store.begin(begin.busy(Busy::Wait(FOREVER))).await?.begun().expect("no key is given");
    let changes = Changes::new().event(Event::model("a", Message::model("done")));
    store.end(EndTurn::completed(begun.fence, changes)).await.map(drop)
}

async fn with_session(options: SqliteOptions) -> SqliteStore {
    let store = options.open().unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&store, "s").await.unwrap();
    store
}

/// A program that takes a store's lock and stops in the middle of its turn.
struct Stopped(Child);

impl Stopped {
    /// Nothing where there is no such program.
    fn holding(lock: &Path) -> Option<Self> {
        let mut flock = Command::new("flock");
        flock.arg("--no-fork").arg(lock).args(["sh", "-c", "echo; kill -STOP $$"]).stdout(Stdio::piped());
        let mut child = flock.spawn().ok()?;
        let mut said = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        Some(Self(child))
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stands_still_with_the_lock_is_named_and_waited_for_no_longer_than_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = with_session(SqliteOptions::new(&path).lock_wait(Duration::from_millis(50))).await;
    let Some(mut stopped) = Stopped::holding(&dir.path().join("s.db-lock")) else {
        eprintln!("SKIPPED: there is no `flock` here");
        return;
    };
    for _ in 0..3 {
        let error = timeout(FOREVER, turn(&store, "s")).await.expect("it waited for ever").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let told = error.to_string();
        assert!(told.contains("s.db-lock") && told.contains("nothing was written"), "{told}");
        if cfg!(target_os = "linux") {
            assert!(told.contains(&format!("process {} (sh)", stopped.0.id())), "{told}");
        }
    }
    // Reading needs no lock.
    assert_eq!(store.head_state(&key("s")).await.unwrap().turns(), 1);
    stopped.end();
    turn(&store, "s").await.unwrap();
    assert_eq!(store.head_state(&key("s")).await.unwrap().turns(), 2, "a refused turn was begun all the same");
}

/// Who stands in a queue behind others is not told of a busy branch when it is the store that does not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_behind_a_stopped_process_are_told_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = with_session(SqliteOptions::new(&path).lock_wait(FOREVER)).await;
    let Some(mut stopped) = Stopped::holding(&dir.path().join("s.db-lock")) else {
        eprintln!("SKIPPED: there is no `flock` here");
        return;
    };
    let first = tokio::spawn({
        let store = store.clone();
        async move { turn(&store, "s").await }
    });
    let begin = || BeginTurn::new(Start::Session(key("s")), InvocationId::new("i").unwrap(), Input::text("hello"));
    let mut told = String::new();
    while !told.contains("s.db-lock") {
        // Until the first stands in front, one of these may be in front itself; it is let go.
        let behind = store.begin(begin().busy(Busy::Wait(Duration::from_millis(200))));
        if let Ok(answer) = timeout(Duration::from_secs(1), behind).await {
            told = answer.unwrap_err().to_string();
        }
    }
    stopped.end();
    first.abort();
}

/// Another program that keeps SQLite's own lock is named too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_stays_in_a_transaction_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = with_session(SqliteOptions::new(&path).lock_wait(Duration::from_millis(50))).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = timeout(FOREVER, turn(&store, "s")).await.expect("it waited for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("s.db"), "{error}");
    if cfg!(target_os = "linux") {
        assert!(error.to_string().contains(&format!("process {} (", std::process::id())), "{error}");
    }
    other.execute_batch("COMMIT").unwrap();
    turn(&store, "s").await.unwrap();
}

fn closed(error: &Error, file: &Path) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

#[tokio::test]
async fn a_store_whose_files_are_removed_or_replaced_acknowledges_nothing_more() {
    for durability in [Durability::PowerSafe, Durability::ProcessSafe] {
        for (suffix, replaced) in [("", false), ("", true), ("-wal", false), ("-wal", true)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().canonicalize().unwrap().join("s.db");
            let store = with_session(SqliteOptions::new(&path).durability(durability)).await;
            let gone = dir.path().canonicalize().unwrap().join(format!("s.db{suffix}"));
            let aside = dir.path().join("aside");
            fs::rename(&gone, &aside).unwrap();
            if replaced {
                fs::copy(&aside, &gone).unwrap();
            }
            let error = turn(&store, "s").await.expect_err("a turn was acknowledged");
            closed(&error, &gone);
            assert!(error.to_string().contains(if replaced { "replaced" } else { "removed" }), "{error}");
            closed(&store.session(&key("s")).await.unwrap_err(), &gone);
            // It is not made anew at its path, where another store may be by now.
            closed(&store.reopen().await.unwrap_err(), &gone);
            assert_eq!(gone.exists(), replaced);
            // Put back, it goes on.
            fs::rename(&aside, &gone).unwrap();
            store.reopen().await.unwrap();
            store.create(CreateSession::at(key("after"))).await.unwrap();
            turn(&store, "after").await.unwrap();
            assert_eq!(store.head_state(&key("s")).await.unwrap().turns(), 1);
        }
    }
}

#[tokio::test]
async fn what_was_acknowledged_before_the_log_was_removed_is_kept_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = with_session(SqliteOptions::new(&path)).await;
    fs::remove_file(dir.path().join("s.db-wal")).unwrap();
    turn(&store, "s").await.expect_err("a turn was acknowledged");
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.head_state(&key("s")).await.unwrap().turns(), 1);
}

#[tokio::test]
async fn a_store_whose_file_was_replaced_leaves_the_new_ones_log_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let old = with_session(SqliteOptions::new(&path)).await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(dir.path().join(format!("s.db{suffix}"))).unwrap();
    }
    turn(&old, "s").await.expect_err("a turn was acknowledged");
    // As another program would have it open.
    let new = rusqlite::Connection::open(&path).unwrap();
    new.execute_batch("PRAGMA journal_mode = wal; CREATE TABLE mine (x); INSERT INTO mine VALUES (7)").unwrap();
    let log = || fs::read(dir.path().join("s.db-wal")).unwrap();
    let before = log();
    drop(old);
    assert!(log() == before, "its log was changed");
}

#[tokio::test]
async fn a_disk_that_fails_to_read_once_is_not_told_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("reads");
    let open = || {
        let disk = vfs.clone();
        let options = SqliteOptions::new(dir.path().join("s.db"));
        options.vfs_with_sync(vfs.name(), move |log| disk.sync_file(log)).cache_bytes(1).open().unwrap()
    };
    let store = open();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    for _ in 0..40 {
        turn(&store, "s").await.unwrap();
    }
    drop(store);
    let store = open();
    let mut damaged = 0;
    for failures in [1, 1, 1, 1_000_000] {
        vfs.fail_next_reads(failures);
        let read = store.head_state(&key("s")).await;
        let written = turn(&store, "s").await;
        vfs.heal();
        for error in [read.err(), written.err()].into_iter().flatten() {
            assert!(failures > 1 || error.kind() == ErrorKind::Unavailable, "{error:?}");
            damaged += u32::from(error.kind() == ErrorKind::Corrupt);
        }
    }
    assert!(damaged > 0, "no read failed");
    // Nothing is unknown after a failed read: the store is open.
    turn(&store, "s").await.unwrap();
    assert!(store.head_state(&key("s")).await.is_ok());
}

/// What is known of sessions at work goes with their work, and what is at hand of the others is dropped when it is not used.
#[tokio::test]
async fn idle_sessions_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("s.db")).unwrap();
    for i in 0..200 {
        let id = i.to_string();
        store.create(CreateSession::at(key(&id))).await.unwrap();
        turn(&store, &id).await.unwrap();
        drop(store.watch(WatchTarget::Session(key(&id))).await.unwrap());
    }
    let stats = store.stats();
    assert_eq!(stats.cached_sessions, 200);
    store.drop_unused();
    assert_eq!(store.stats().entries, 0, "{:?}", store.stats());
    store.drop_unused();
    let stats = store.stats();
    assert_eq!((stats.cached_sessions, stats.cached_bytes), (0, 0), "{stats:?}");
    assert_eq!(store.head_state(&key("7")).await.unwrap().turns(), 1);
}
