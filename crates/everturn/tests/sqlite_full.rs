//! A volume that is full frees itself: sessions can be deleted, which takes writing, and then turns go on.

use std::path::Path;
use std::time::Duration;

use everturn::store::{
    BeginTurn, CreateSession, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _, TurnRef,
};
use everturn::{
    Begun, Changes, EndStatus, ErrorKind, Event, FinishReason, Input, InvocationId, Message, Outcome, SessionKey,
};
use everturn_testvfs::FaultVfs;

const RESERVE: u64 = 1 << 20;
const LIMIT: u64 = 6 << 20;

fn key(id: &str) -> SessionKey {
    SessionKey::of("a", "u", id).unwrap()
}

fn options(dir: &Path, vfs: &FaultVfs) -> SqliteOptions {
    let (log, disk) = (vfs.clone(), vfs.clone());
    SqliteOptions::new(dir.join("s.db"))
        .vfs_with_sync(vfs.name(), move |path| log.sync_file(path))
        .vfs_reserve(move |path, bytes| disk.allocate(path, bytes))
        .reserve(RESERVE)
}

async fn begin(store: &SqliteStore, id: &str) -> everturn::Result<Begun> {
    let begin = BeginTurn::new(Start::Session(key(id)), InvocationId::new("i").unwrap(), Input::text("hello"));
    Ok(store.begin(begin).await?.begun().expect("no key is given"))
}

/// A turn whose text does not get shorter by packing.
async fn turn(store: &SqliteStore, id: &str) -> everturn::Result<()> {
    let begun = begin(store, id).await?;
    let text: String = (0..100).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let changes = Changes::new().event(Event::model("a", Message::model(text)));
    store.end(EndTurn::completed(begun.fence, changes)).await.map(drop)
}

/// Turns in one session after the other until the disk is full. Gives how many sessions there are, and how many turns were
/// acknowledged in each.
async fn fill(store: &SqliteStore) -> Vec<u64> {
    let mut turns = Vec::new();
    loop {
        let id = turns.len().to_string();
        if let Err(error) = store.create(CreateSession::at(key(&id))).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("make room"), "{error}");
            return turns;
        }
        turns.push(0);
        for _ in 0..50 {
            match turn(store, &id).await {
                Ok(()) => *turns.last_mut().unwrap() += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    assert!(error.to_string().contains("make room"), "{error}");
                    // The next one may be short enough to find room, and so may this one's session: until none does.
                    break;
                }
            }
        }
    }
}

async fn deleting_frees_it(dir: &Path, vfs: &FaultVfs, purge: bool) {
    let limit = LIMIT;
    vfs.disk_limit(limit);
    let store = options(dir, vfs).open().unwrap();
    let turns = fill(&store).await;
    assert!(turns.len() > 5, "the disk was full at once");
    assert!(vfs.disk_used() <= limit);
    // Reads go on, and all that was acknowledged is there.
    for (id, turns) in turns.iter().enumerate() {
        assert_eq!(store.head_state(&key(&id.to_string())).await.unwrap().turns(), *turns);
    }
    let half = turns.len() / 2;
    for id in 0..half {
        let key = key(&id.to_string());
        if purge {
            store.purge(&key).await.unwrap();
        } else {
            assert!(store.delete(&key).await.unwrap());
        }
    }
    // What deleting frees it frees in the background.
    let mut tries = 0;
    while let Err(error) = turn(&store, &half.to_string()).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        tries += 1;
        assert!(tries < 10_000, "deleting half of all sessions made no room");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(dir.join("s.db-reserve").exists(), "turns go on, but nothing is kept for the next time");
    for (id, turns) in turns.iter().enumerate().skip(half + 1) {
        assert_eq!(store.head_state(&key(&id.to_string())).await.unwrap().turns(), *turns);
    }
}

#[tokio::test]
async fn deleting_sessions_makes_room_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    deleting_frees_it(dir.path(), &FaultVfs::register("full-delete"), false).await;
}

#[tokio::test]
async fn purging_sessions_makes_room_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    deleting_frees_it(dir.path(), &FaultVfs::register("full-purge"), true).await;
}

#[tokio::test]
async fn a_store_that_was_closed_on_a_full_disk_can_be_freed_after_it_was_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("full-reopened");
    vfs.disk_limit(LIMIT);
    let store = options(dir.path(), &vfs).open().unwrap();
    let turns = fill(&store).await;
    drop(store);
    let store = options(dir.path(), &vfs).open().unwrap();
    for id in 0..turns.len() - 1 {
        store.purge(&key(&id.to_string())).await.unwrap();
    }
    let last = (turns.len() - 1).to_string();
    assert_eq!(store.head_state(&key(&last)).await.unwrap().turns(), turns[turns.len() - 1]);
    turn(&store, &last).await.unwrap();
}

#[tokio::test]
async fn running_turns_are_ended_without_a_result_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("full-void");
    vfs.disk_limit(LIMIT);
    let store = options(dir.path(), &vfs).open().unwrap();
    for id in ["failed", "aborted"] {
        store.create(CreateSession::at(key(id))).await.unwrap();
    }
    let (failed, aborted) = (begin(&store, "failed").await.unwrap(), begin(&store, "aborted").await.unwrap());
    fill(&store).await;
    store.renew(&failed.fence).await.unwrap();
    let outcome = Outcome::finished(FinishReason::Failed);
    store.end(EndTurn::voided(failed.fence, EndStatus::Failed, outcome)).await.unwrap();
    store.abort(TurnRef::Turn(aborted.turn)).await.unwrap();
    for id in ["failed", "aborted"] {
        assert!(store.running(Some(&key(id))).await.unwrap().is_empty(), "{id} still runs");
    }
}

/// Files of other programs that filled the disk are removed: nobody needs to open the store anew.
#[tokio::test]
async fn writes_go_on_by_themselves_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register("full-elsewhere");
    vfs.disk_limit(LIMIT);
    let store = options(dir.path(), &vfs).open().unwrap();
    let turns = fill(&store).await;
    vfs.disk_limit(32 << 20);
    turn(&store, "0").await.unwrap();
    assert_eq!(store.head_state(&key("0")).await.unwrap().turns(), turns[0] + 1);
    assert!(dir.path().join("s.db-reserve").exists());
}
