//! Streams in the store's file: what they cost, what is really gone, and files from before there were any.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn::store::{
    BeginTurn, Busy, ChunkQuery, CreateSession, EndTurn, KeepChunks, SqliteOptions, SqliteStore, Start, Store,
    StoreExt, VerifyScope,
};
use everturn::{
    Begun, Changes, Event, Input, InvocationId, Json, ManualClock, Message, Position, SessionKey, TurnId, TurnStatus,
};
use everturn_testvfs::FaultVfs;

fn key(id: &str) -> SessionKey {
    SessionKey::of("app", "user", id).unwrap()
}

async fn begin(store: &SqliteStore, id: &str) -> Begun {
    store.open_or_create(CreateSession::at(key(id))).await.unwrap();
    let start = Start::Session(key(id));
    let begin = BeginTurn::new(start, InvocationId::new("i").unwrap(), Input::text("go on")).busy(Busy::Refuse);
    store.begin(begin).await.unwrap().begun().unwrap()
}

fn done(begun: &Begun) -> EndTurn {
    EndTurn::completed(begun.fence, Changes::new().event(Event::model("agent", Message::model("done"))))
}

fn chunk(text: &str) -> Json {
    Json::from_value(text).unwrap()
}

async fn keep(store: &SqliteStore, begun: &Begun, first: u64, chunks: &[&str]) {
    let chunks = chunks.iter().map(|text| chunk(text)).collect();
    store.keep_chunks(KeepChunks::new(begun.fence, first, chunks)).await.unwrap();
}

async fn texts(store: &SqliteStore, turn: TurnId) -> Vec<String> {
    let page = store.chunks(ChunkQuery::of(turn)).await.unwrap();
    page.chunks.iter().map(|(_, chunk)| chunk.to().unwrap()).collect()
}

fn rows(path: &Path, table: &str) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

fn holds(dir: &Path, needle: &str) -> bool {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| fs::read(path).unwrap()).any(|bytes| bytes.windows(needle.len()).any(|w| w == needle.as_bytes()))
}

#[tokio::test]
async fn a_pack_is_one_row_and_a_turn_without_a_stream_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = SqliteStore::open(&path).unwrap();
    let plain = begin(&store, "plain").await;
    store.end(done(&plain)).await.unwrap();
    let begun = begin(&store, "s").await;
    keep(&store, &begun, 0, &["one", "two", "three"]).await;
    keep(&store, &begun, 3, &["four"]).await;
    assert_eq!((rows(&path, "pack"), rows(&path, "stream")), (2, 0));
    store.end(done(&begun)).await.unwrap();
    assert_eq!((rows(&path, "pack"), rows(&path, "stream")), (2, 1));
}

/// A token a millisecond must not be an fsync a millisecond.
#[tokio::test]
async fn keeping_chunks_waits_for_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("streams");
    let store = SqliteOptions::new(dir.path().join("s.db")).vfs(vfs.name()).open().unwrap();
    let begun = begin(&store, "s").await;
    let before = vfs.sync_count();
    for n in 0..50 {
        keep(&store, &begun, n, &["a token"]).await;
    }
    assert_eq!(vfs.sync_count(), before, "a pack was synced");
    store.end(done(&begun)).await.unwrap();
    assert!(vfs.sync_count() > before, "an end is synced");
}

#[tokio::test]
async fn streams_whose_time_is_over_leave_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let grace = Duration::from_secs(5);
    let open = || SqliteOptions::new(&path).clock(Arc::new(clock.clone())).stream_grace(grace).open().unwrap();
    let store = open();
    let first = begin(&store, "first").await;
    for n in 0..200 {
        keep(&store, &first, n, &["token"]).await;
    }
    store.end(done(&first)).await.unwrap();
    let long = begin(&store, "long").await;
    keep(&store, &long, 0, &["stays"]).await;
    clock.advance(grace);
    assert_eq!(rows(&path, "pack"), 201, "nothing is removed by itself");
    // Each write of a stream takes some of it along, and in the end all.
    for n in 1..6 {
        keep(&store, &long, n, &["stays"]).await;
    }
    assert_eq!((rows(&path, "pack"), rows(&path, "stream")), (6, 1));
    assert!(store.chunks(ChunkQuery::of(first.turn)).await.unwrap().dropped);
    assert_eq!(texts(&store, long.turn).await, ["stays"; 6]);

    store.end(done(&long)).await.unwrap();
    drop(store);
    clock.advance(grace);
    let store = open();
    // What the store does when it opens comes before anything it is asked to write.
    begin(&store, "next").await;
    assert_eq!((rows(&path, "pack"), rows(&path, "stream")), (0, 2));
    let page = store.chunks(ChunkQuery::of(long.turn).after(Position::new(1, 5))).await.unwrap();
    assert!(!page.dropped, "who has seen all has missed nothing");
}

#[tokio::test]
async fn purged_chunks_are_gone_from_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("s.db")).unwrap();
    let ended = begin(&store, "s").await;
    keep(&store, &ended, 0, &["xylograph"]).await;
    store.end(done(&ended)).await.unwrap();
    let running = begin(&store, "s").await;
    keep(&store, &running, 0, &["zanzibar"]).await;
    let other = begin(&store, "other").await;
    keep(&store, &other, 0, &["marmalade"]).await;
    assert!(holds(dir.path(), "xylograph") && holds(dir.path(), "zanzibar"), "they must be findable before");
    store.purge(&key("s")).await.unwrap();
    assert!(!holds(dir.path(), "xylograph") && !holds(dir.path(), "zanzibar"), "purged chunks are still in a file");
    assert_eq!(texts(&store, other.turn).await, ["marmalade"]);
}

/// Whether a turn streams is in its row; that must be so whether the row is in the journal or in its table.
#[tokio::test]
async fn a_stream_is_found_before_and_after_the_tables_are_filled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let handles = [1000, 1, 3].map(|journal| SqliteOptions::new(&path).journal(journal).open().unwrap());
    let begun = begin(&handles[0], "s").await;
    for n in 0..9_u64 {
        keep(&handles[n as usize % 3], &begun, n, &["token"]).await;
        begin(&handles[(n as usize + 1) % 3], &format!("other {n}")).await;
        for handle in &handles {
            assert_eq!(texts(handle, begun.turn).await.len() as u64, n + 1);
        }
    }
    handles[1].end(done(&begun)).await.unwrap();
    assert_eq!(texts(&handles[2], begun.turn).await.len(), 9);
}

/// A file that a killed process left behind, and its log, packed.
macro_rules! left_behind {
    ($format:literal) => {
        [
            ("s.db", &include_bytes!(concat!("fixtures/format-", $format, ".db.zst"))[..]),
            ("s.db-wal", &include_bytes!(concat!("fixtures/format-", $format, ".db-wal.zst"))[..]),
        ]
    };
}

/// In each one running turn is in the table, the other only in the journal. The first format had no streams.
#[tokio::test]
async fn files_of_older_formats_are_migrated() {
    let of_chunks = vec!["one", "two"];
    for (files, kept) in
        [(left_behind!("1"), vec![]), (left_behind!("2"), of_chunks.clone()), (left_behind!("3"), of_chunks)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        for (name, packed) in files {
            fs::write(dir.path().join(name), zstd::decode_all(packed).unwrap()).unwrap();
        }
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.verify(VerifyScope::All).await.unwrap().damage, None);
        let running = store.running(None).await.unwrap();
        let found: Vec<_> = running.iter().map(|turn| (turn.session.id.as_str(), turn.status, turn.detached)).collect();
        assert_eq!(found, [("table", TurnStatus::Dead, true), ("journal", TurnStatus::Dead, false)]);
        for turn in running {
            let known = store.turn(turn.turn).await.unwrap().unwrap();
            assert_eq!(known.tools.len(), 1, "its ledger");
            assert_eq!(texts(&store, turn.turn).await, kept);
            let begun = store.take_over(turn.turn).await.unwrap();
            keep(&store, &begun, 0, &["from here on"]).await;
            assert!(store.end(done(&begun)).await.unwrap().on_head);
            assert_eq!(texts(&store, turn.turn).await, ["from here on"]);
            let state = store.head_state(&turn.session).await.unwrap();
            assert_eq!(state.custom().unwrap().as_str(), "{\"n\":1.10}");
            assert_eq!(state.messages().len(), 4);
        }
        drop(store);
        let conn = rusqlite::Connection::open(&path).unwrap();
        let format: i32 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(format, 5);
    }
}
