//! The store's file: what is refused, what is private, what is really gone, and what is found out when it is damaged.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use everturn::store::{
    At, BeginTurn, Busy, CreateSession, Durability, EndTurn, ForkSession, SqliteOptions, SqliteStore, Start, Store,
    StoreExt, VerifyScope,
};
use everturn::{Changes, ErrorKind, Event, Input, InvocationId, Json, Message, NewSnapshot, SessionKey, SnapshotId};
use support::Rng;

fn key(id: &str) -> SessionKey {
    SessionKey::of("app", "user", id).unwrap()
}

async fn turn(store: &dyn Store, key: &SessionKey, text: &str) -> everturn::Receipt {
    let input = Input::text(text);
    let begin = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i").unwrap(), input).busy(Busy::Refuse);
    let begun = store.begin(begin).await.unwrap().begun().unwrap();
    let changes = Changes::new().event(Event::model("agent", Message::model(format!("{text}, too"))));
    let snapshot = NewSnapshot::new(SnapshotId::from_uuid(uuid::Uuid::now_v7()));
    store.end(EndTurn::completed(begun.fence, changes).snapshot(snapshot)).await.unwrap()
}

/// A store with a few turns, closed.
async fn filled(path: &Path) {
    let store = SqliteStore::open(path).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    for i in 0..20 {
        turn(&store, &key("s"), &format!("{i}: the cat sat on the mat and looked at the sea for a long while")).await;
    }
}

fn refused(path: &Path) -> everturn::Error {
    SqliteStore::open(path).expect_err("it was opened")
}

#[tokio::test]
async fn a_file_that_is_something_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    for content in ["hello", &"x".repeat(10_000)] {
        fs::write(&path, content).unwrap();
        let error = refused(&path);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("not an Everturn store"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE bill (amount); INSERT INTO bill VALUES (7)").unwrap();
    drop(other);
    let before = fs::read(&path).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn another_programs_log_is_left_alone_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("PRAGMA auto_vacuum = full; PRAGMA journal_mode = wal; CREATE TABLE mine (x);").unwrap();
    let log = || fs::read(dir.path().join("other.db-wal")).unwrap();
    let before = log();
    assert_eq!(refused(&path).kind(), ErrorKind::Invalid);
    assert!(log() == before, "something was written to it");
    let vacuum: i32 = other.pragma_query_value(None, "auto_vacuum", |row| row.get(0)).unwrap();
    assert_eq!(vacuum, 1);
}

#[tokio::test]
async fn opening_a_store_writes_nothing_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteStore::open(&path).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&store, &key("s"), "hello").await;
    let log = || fs::read(dir.path().join("s.db-wal")).unwrap();
    let before = log();
    let again = SqliteStore::open(&path).unwrap();
    assert_eq!(again.head_state(&key("s")).await.unwrap().messages().len(), 2);
    assert!(log() == before, "something was written to it");
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    filled(&path).await;
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("upgrade"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_truncated_file_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    filled(&path).await;
    let whole = fs::read(&path).unwrap();
    for keep in [whole.len() / 2, whole.len() - 1, 8192, 100] {
        fs::write(&path, &whole[..keep]).unwrap();
        let error = refused(&path);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{keep}: {error}");
        assert!(error.to_string().contains("backup"), "{error}");
    }
    fs::write(&path, &whole[..50]).unwrap();
    assert_eq!(refused(&path).kind(), ErrorKind::Invalid);
    fs::write(&path, &whole).unwrap();
    assert_eq!(SqliteStore::open(&path).unwrap().head_state(&key("s")).await.unwrap().messages().len(), 40);
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = refused(&file.join("below/s.db"));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("permissions"), "{error}");
    let error = refused(dir.path());
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Invalid), "{error}");
}

#[tokio::test]
async fn nobody_else_can_read_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/dir/s.db");
    let store = SqliteStore::open(&path).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&store, &key("s"), "secret").await;
    let mut seen = 0;
    let mut stack = vec![dir.path().join("new")];
    while let Some(at) = stack.pop() {
        let mode = fs::metadata(&at).unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "{} is open to others", at.display());
        seen += 1;
        if at.is_dir() {
            stack.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen >= 6, "database, log, index, lock, owners and directories were expected, {seen} were seen");
}

#[tokio::test]
async fn a_leading_tilde_is_the_home_directory() {
    // The variable is read when a store is opened; a child process keeps it from other tests.
    if std::env::var_os("EVERTURN_TILDE_CHILD").is_some() {
        SqliteStore::open("~/kept/s.db").unwrap();
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_leading_tilde_is_the_home_directory"])
        .env("EVERTURN_TILDE_CHILD", "1")
        .env("HOME", home.path())
        .current_dir(home.path())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(home.path().join("kept/s.db").is_file());
    assert!(!home.path().join("~").exists());
}

fn all_bytes(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            bytes.extend(fs::read(&path).unwrap());
        }
    }
    bytes
}

fn holds(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[tokio::test]
async fn purged_text_is_gone_from_every_file() {
    // Short enough to be stored as it is, so that it can be looked for.
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("s.db")).unwrap();
    store.create(CreateSession::at(key("s")).title("zanzibar")).await.unwrap();
    store.create(CreateSession::at(key("other")).title("stays")).await.unwrap();
    turn(&store, &key("s"), "xylograph").await;
    turn(&store, &key("other"), "marmalade").await;
    assert!(holds(&all_bytes(dir.path()), "zanzibar"), "the text must be findable before it is purged");
    let purged = store.purge(&key("s")).await.unwrap();
    assert_eq!((purged.removed, purged.kept_for_forks), (3, 0));
    let left = all_bytes(dir.path());
    assert!(!holds(&left, "zanzibar") && !holds(&left, "xylograph"), "purged text is still in a file");
    assert_eq!(store.head_state(&key("other")).await.unwrap().messages().len(), 2);
    assert_eq!(store.purge(&key("s")).await.unwrap().removed, 0);
}

/// The journal is written over from its start; what is further back in it stays until something as long comes.
#[tokio::test]
async fn purged_text_is_gone_from_what_the_journal_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteOptions::new(&path).journal(3).open().unwrap();
    // Long enough that the next entry is in another slot, and not so long that its session is.
    let long = Json::parse(format!("{{\"n\":\"{}\"}}", "x".repeat(6000))).unwrap();
    store.create(CreateSession::at(key("long")).metadata(long)).await.unwrap();
    store.create(CreateSession::at(key("s")).title("zanzibar")).await.unwrap();
    store.create(CreateSession::at(key("other"))).await.unwrap();
    for _ in 0..3 {
        turn(&store, &key("other"), "fills the tables").await;
    }
    let left = || {
        let conn = rusqlite::Connection::open(&path).unwrap();
        let sql = "SELECT count(*) FROM slot WHERE at > 0 AND instr(content, CAST('zanzibar' AS BLOB))";
        conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(left(), 1, "nothing is left to be purged");
    store.purge(&key("s")).await.unwrap();
    assert_eq!(left(), 0);
    assert!(!holds(&all_bytes(dir.path()), "zanzibar"), "purged text is still in a file");
    assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
}

#[tokio::test]
async fn purging_keeps_what_a_forks_line_reaches_until_the_fork_goes_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("s.db")).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    let first = turn(&store, &key("s"), "kept for the fork").await;
    turn(&store, &key("s"), "not needed").await;
    let fork = ForkSession::at(At::Point(key("s"), first.point)).id("f".parse().unwrap());
    store.fork(fork).await.unwrap();
    let purged = store.purge(&key("s")).await.unwrap();
    assert_eq!((purged.removed, purged.kept_for_forks), (2, 3));
    assert_eq!(store.head_state(&key("f")).await.unwrap().messages().len(), 2);
    assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
    store.purge(&key("f")).await.unwrap();
    drop(store);
    let conn = rusqlite::Connection::open(dir.path().join("s.db")).unwrap();
    for table in
        ["session", "record", "segment", "snapshot", "branch", "turn", "turn_key", "artifact", "blob", "pack", "stream"]
    {
        let rows: i64 = conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table} still has rows");
    }
}

/// Each handle keeps what the journal says; one that did not notice that another wrote to it, or emptied it into the
/// tables, would begin at an old head or find nothing at all.
#[tokio::test]
async fn handles_notice_what_others_wrote_before_and_after_the_tables_are_filled() {
    let dir = tempfile::tempdir().unwrap();
    let open = |journal| SqliteOptions::new(dir.path().join("s.db")).journal(journal).open().unwrap();
    // One of them never fills the tables.
    let handles = [open(3), open(1000), open(7)];
    handles[0].create(CreateSession::at(key("s"))).await.unwrap();
    for i in 0..60 {
        // Long ones go to their table, and take with them what is in the journal only.
        let noise = Rng::new(i as u64).letters(if i % 5 == 3 { 12_000 } else { 0 });
        let written = turn(&handles[i % 3], &key("s"), &format!("{i} {noise}")).await;
        for reader in &handles {
            let state = reader.head_state(&key("s")).await.unwrap();
            assert_eq!((state.messages().len(), state.point()), (2 * i + 2, written.point));
            let id = written.snapshot_id.unwrap();
            let snapshot = reader.snapshot(everturn::store::SnapshotRef::Id(id)).await.unwrap().unwrap();
            assert_eq!((snapshot.point, snapshot.turn_index), (written.point, i as u64));
        }
    }
    assert!(handles[1].verify(VerifyScope::All).await.unwrap().damage.is_none());
}

/// A handle keeps what it filled into the tables lately; what was removed from them since must not come back.
#[tokio::test]
async fn what_was_removed_is_not_at_hand_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let open = || SqliteOptions::new(dir.path().join("s.db")).journal(3).open().unwrap();
    let (here, there) = (open(), open());
    for (i, remover) in [&here, &there, &here, &there].into_iter().enumerate() {
        here.create(CreateSession::at(key("s"))).await.unwrap();
        let mut last = None;
        for j in 0..4 {
            last = turn(&here, &key("s"), &format!("{i} {j}")).await.snapshot_id;
        }
        for how in ["deleted", "purged"] {
            match how {
                "deleted" => remover.delete(&key("s")).await.map(drop).unwrap(),
                _ => remover.purge(&key("s")).await.map(drop).unwrap(),
            }
            for start in [Start::Session(key("s")), Start::Snapshot { id: last.unwrap(), session: None }] {
                let begin = BeginTurn::new(start.clone(), InvocationId::new("i").unwrap(), Input::text("hi"));
                let refused = here.begin(begin).await.expect_err(how);
                assert_eq!(refused.kind(), ErrorKind::NotFound, "{start:?}: {refused}");
            }
        }
    }
}

/// Short writes are made by their callers; filling the tables is left to the writer's thread.
#[tokio::test]
async fn what_callers_write_by_themselves_does_not_stay_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteStore::open(&path).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    let begin = BeginTurn::new(Start::Session(key("s")), InvocationId::new("i").unwrap(), Input::text("hi"));
    let begun = store.begin(begin).await.unwrap().begun().unwrap();
    for _ in 0..1000 {
        store.renew(&begun.fence).await.unwrap();
    }
    // A connection of one's own reads what is in the file, and not what the store knows.
    let conn = rusqlite::Connection::open(&path).unwrap();
    let (lap, _) = first_slot(&conn);
    let placed: i64 = conn.query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap();
    assert!(
        lap > 102 && placed == 2,
        "the journal began with entry {lap} of 1002, {placed} of 2 records are in the tables"
    );
}

/// The entry the journal began after, and how many bytes follow in the first slot.
fn first_slot(conn: &rusqlite::Connection) -> (u64, u16) {
    let content: Vec<u8> = conn.query_row("SELECT content FROM slot WHERE at = 0", [], |row| row.get(0)).unwrap();
    (u64::from_le_bytes(content[..8].try_into().unwrap()), u16::from_le_bytes(content[8..10].try_into().unwrap()))
}

#[tokio::test]
async fn a_store_that_is_closed_leaves_nothing_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir.path().join("s.db")).await;
    let conn = rusqlite::Connection::open(dir.path().join("s.db")).unwrap();
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM slot"), 1);
    assert_eq!(first_slot(&conn).1, 2, "there is more than the position and the last session number");
    assert_eq!(count("SELECT count(*) FROM placed"), count("SELECT max(pos) FROM record"));
    assert_eq!(count("SELECT count(*) FROM session"), 1);
    assert_eq!(count("PRAGMA freelist_count"), 0, "the journal's pages are still in the file");
}

#[tokio::test]
async fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let damages = [
        ("UPDATE record SET body = zeroblob(length(body)) WHERE seq = 8", 8),
        ("UPDATE record SET tip = (SELECT tip FROM record WHERE seq = 6) WHERE seq = 10", 10),
        ("UPDATE record SET body = (SELECT body FROM record WHERE seq = 12) WHERE seq = 14", 14),
        ("DELETE FROM record WHERE seq = 16", 16),
        ("UPDATE snapshot SET digest = zeroblob(32) WHERE seq = 9", 9),
    ];
    for (damage, seq) in damages {
        let _ = fs::remove_file(&path);
        filled(&path).await;
        rusqlite::Connection::open(&path).unwrap().execute(damage, []).unwrap();
        let store = SqliteStore::open(&path).unwrap();
        let found = store.verify(VerifyScope::All).await.unwrap().damage;
        let found = found.unwrap_or_else(|| panic!("{damage:?} went unnoticed"));
        assert_eq!((found.point.seq(), found.session), (seq, Some(key("s"))), "{damage}: {}", found.what);
    }
}

#[tokio::test]
async fn a_damaged_journal_stays_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteStore::open(&path).unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&store, &key("s"), "hello").await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    // One byte less than there is: the last entry is cut, and all before it is whole.
    let mut content: Vec<u8> = conn.query_row("SELECT content FROM slot WHERE at = 0", [], |row| row.get(0)).unwrap();
    let used = first_slot(&conn).1 - 1;
    content[8..10].copy_from_slice(&used.to_le_bytes());
    conn.execute("UPDATE slot SET content = ?1 WHERE at = 0", [content]).unwrap();
    for handle in [&store, &SqliteStore::open(&path).unwrap()] {
        for _ in 0..3 {
            let error = handle.running(None).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let error = handle.create(CreateSession::at(key("t"))).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}

#[tokio::test]
async fn a_damaged_record_is_an_error_when_it_is_read_not_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    filled(&path).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("UPDATE record SET body = x'01ff' WHERE seq = 8", []).unwrap();
    drop(conn);
    let store = SqliteStore::open(&path).unwrap();
    let error = store.head_state(&key("s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("record 8"), "{error}");
}

#[tokio::test]
async fn the_log_stays_bounded_and_moves_into_the_file_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteOptions::new(&path).durability(Durability::ProcessSafe).open().unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    let noise = Rng::new(1).letters(60_000);
    for i in 0..400 {
        turn(&store, &key("s"), &format!("{i} {noise}")).await;
    }
    let wal = fs::metadata(dir.path().join("s.db-wal")).unwrap().len();
    assert!(wal <= 96 << 20, "the log grew to {wal} bytes");
    let file = fs::metadata(&path).unwrap().len();
    assert!(file > 1 << 20, "nothing was moved into the file ({file} bytes)");
}

#[tokio::test]
async fn a_dropped_store_frees_its_turns_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let first = SqliteStore::open(&path).unwrap();
    first.create(CreateSession::at(key("s"))).await.unwrap();
    let begin = || {
        let start = Start::Session(key("s"));
        BeginTurn::new(start, InvocationId::new("i").unwrap(), Input::text("hi")).busy(Busy::Refuse)
    };
    first.begin(begin()).await.unwrap().begun().unwrap();
    let second = SqliteStore::open(&path).unwrap();
    assert_eq!(second.begin(begin()).await.unwrap_err().kind(), ErrorKind::Busy);
    drop(first);
    second.begin(begin()).await.unwrap().begun().unwrap();
}
