//! Lines too long to be read in one piece: they are unpacked beside being read, and nothing may show that.

mod support;

use everturn::store::{At, BeginTurn, CreateSession, EndTurn, MemoryStore, SqliteStore, Start, Store};
use everturn::{
    Changes, EndStatus, ErrorKind, Event, Fence, Input, InvocationId, Message, NewSnapshot, Outcome, SessionKey,
    SnapshotId,
};
use support::Rng;

const TURNS: usize = 240;

fn snapshot_id() -> SnapshotId {
    SnapshotId::from_uuid(uuid::Uuid::now_v7())
}

/// Text that does not pack well, so that a few hundred turns fill many batches.
fn words(rng: &mut Rng) -> String {
    (0..200 + rng.below(400)).map(|_| *rng.pick(&['a', 'e', 'k', 'm', 'o', 'r', 't', ' ', 'é', '"', '\n'])).collect()
}

async fn begin(store: &dyn Store, at: SnapshotId, question: &str) -> Fence {
    let start = Start::Snapshot { id: at, session: None };
    let begin = BeginTurn::new(start, InvocationId::new("i").unwrap(), Input::text(question));
    store.begin(begin).await.unwrap().begun().unwrap().fence
}

/// A conversation in which some turns fail and some are taken again. Gives its last snapshot and what was said up to it.
async fn talk(store: &dyn Store) -> (SnapshotId, Vec<String>) {
    let mut rng = Rng::new(7);
    let mut tip = snapshot_id();
    let key = SessionKey::of("app", "user", "s").unwrap();
    store.create(CreateSession::at(key).seed(tip)).await.unwrap();
    let mut said = Vec::new();
    for _ in 0..TURNS {
        if rng.percent(20) {
            let fence = begin(store, tip, &words(&mut rng)).await;
            store.end(EndTurn::voided(fence, EndStatus::Failed, Outcome::default())).await.unwrap();
        }
        let (mut next, mut turn) = (tip, [String::new(), String::new()]);
        for _ in 0..1 + rng.below(2) {
            turn = [words(&mut rng), words(&mut rng)];
            next = snapshot_id();
            let fence = begin(store, tip, &turn[0]).await;
            let changes = Changes::new().event(Event::model("agent", Message::model(&turn[1])));
            store.end(EndTurn::completed(fence, changes).snapshot(NewSnapshot::new(next))).await.unwrap();
        }
        said.extend(turn);
        tip = next;
    }
    (tip, said)
}

async fn reads_as_it_was_said(store: &dyn Store) {
    let (tip, said) = talk(store).await;
    // Without the states that are at hand.
    store.reopen().await.unwrap();
    let state = store.state(At::Snapshot(tip)).await.unwrap().unwrap();
    let read: Vec<_> = state.messages().iter().map(Message::text).collect();
    assert_eq!(read, said);
    let digest = store.snapshot(everturn::store::SnapshotRef::Id(tip)).await.unwrap().unwrap().digest;
    assert_eq!(state.digest(), digest);
}

#[tokio::test]
async fn a_long_line_in_memory_reads_as_it_was_said() {
    reads_as_it_was_said(&MemoryStore::new()).await;
}

#[tokio::test]
async fn a_long_line_in_a_file_reads_as_it_was_said() {
    let dir = tempfile::tempdir().unwrap();
    reads_as_it_was_said(&SqliteStore::open(dir.path().join("s.db")).unwrap()).await;
}

#[tokio::test]
async fn damage_anywhere_on_a_long_line_is_told_and_the_rest_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let (tip, said) = talk(&SqliteStore::open(&path).unwrap()).await;
    let damages = [
        "substr(body, 1, length(body) - 1)",
        "x'00' || randomblob(300)",
        // `{"events":[{}`
        "x'007b226576656e7473223a5b7b7d'",
        "x''",
        "'text'",
    ];
    for (damage, messages) in damages.into_iter().flat_map(|damage| [1, TURNS, 2 * TURNS].map(|at| (damage, at))) {
        let conn = rusqlite::Connection::open(&path).unwrap();
        let (pos, body) = record_on_line(&conn, tip, messages);
        conn.execute(&format!("UPDATE record SET body = {damage} WHERE pos = ?1"), [pos]).unwrap();
        let store = SqliteStore::open(&path).unwrap();
        let error = store.state(At::Snapshot(tip)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage} at message {messages}: {error}");
        conn.execute("UPDATE record SET body = ?2 WHERE pos = ?1", rusqlite::params![pos, body]).unwrap();
        let state = store.state(At::Snapshot(tip)).await.unwrap().unwrap();
        assert_eq!(state.messages().len(), said.len());
    }
}

/// The record that said a message of a snapshot's line, counted from 1, and its body.
fn record_on_line(conn: &rusqlite::Connection, tip: SnapshotId, message: usize) -> (i64, Vec<u8>) {
    let mut records = conn
        .prepare(
            "WITH RECURSIVE line (segment, seq) AS (
                 SELECT segment, seq FROM record WHERE snapshot = ?1
                 UNION ALL
                 SELECT parent_segment, parent_seq FROM line JOIN segment ON id = segment WHERE parent_seq > 0
             )
             SELECT pos, body FROM line JOIN record ON record.segment = line.segment AND record.seq <= line.seq
             WHERE kind IN (0, 2) AND NOT EXISTS (
                 SELECT 1 FROM record AS void
                 WHERE void.kind = 3 AND void.turn = record.turn AND void.attempt = record.attempt
             )
             ORDER BY record.seq",
        )
        .unwrap();
    let rows = records.query_map([tip.uuid().as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).nth(message - 1).expect("the line is that long")
}

#[tokio::test]
async fn a_tree_that_leads_in_a_circle_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let (tip, _) = talk(&SqliteStore::open(&path).unwrap()).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("UPDATE segment SET parent_segment = id", []).unwrap();
    let error = SqliteStore::open(&path).unwrap().state(At::Snapshot(tip)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
