//! What is committed waits for the disk beside the writer. Until it is there nobody is told of it, by an answer or by a read.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everturn::store::{
    BeginTurn, CreateSession, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _,
};
use everturn::{Begin, Changes, Event, Input, InvocationId, Message, SessionKey, TurnKey};
use tokio::time::timeout;

/// Long enough for an answer that comes too early; what is right never takes so long.
const SOON: Duration = Duration::from_millis(100);

/// A disk that takes its time: each sync says that it began, and ends when it is let.
struct SlowDisk {
    began: Receiver<()>,
    go_on: Sender<()>,
}

/// The system's own VFS, with syncs that can be held. They go through freely until the disk is asked to be slow.
fn store(dir: &Path) -> (SqliteStore, Arc<Mutex<bool>>, SlowDisk) {
    let (said, began) = channel();
    let (go_on, goes_on) = channel::<()>();
    let (slow, goes_on) = (Arc::new(Mutex::new(false)), Mutex::new(goes_on));
    let is_slow = slow.clone();
    let sync = move |log: &Path| {
        if *is_slow.lock().unwrap() {
            said.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
        }
        std::fs::OpenOptions::new().write(true).open(log)?.sync_data()
    };
    let store = SqliteOptions::new(dir.join("s.db")).vfs_with_sync("unix", sync).open().unwrap();
    (store, slow, SlowDisk { began, go_on })
}

fn turn(session: &SessionKey, key: &str) -> BeginTurn {
    let mut turn =
        BeginTurn::new(Start::Session(session.clone()), InvocationId::new("i").unwrap(), Input::text("hello"));
    turn.key = Some(TurnKey::new(key).unwrap());
    turn
}

fn done() -> Changes {
    Changes::new().event(Event::model("a", Message::model("done")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_told_nobody_before_it_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let key = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let begun = store.begin(turn(&key, "k")).await.unwrap().begun().unwrap();
    *slow.lock().unwrap() = true;
    let (ending, reading, repeating) = (store.clone(), store.clone(), store.clone());
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(begun.fence, done())).await.unwrap() });
    tokio::task::spawn_blocking(move || disk.began.recv().unwrap()).await.unwrap();

    // It is committed, and the disk has it not.
    let (read_key, repeated_key) = (key.clone(), key.clone());
    let mut read = tokio::spawn(async move { reading.existing(&read_key).await.unwrap() });
    let mut repeated = tokio::spawn(async move { repeating.begin(turn(&repeated_key, "k")).await.unwrap() });
    assert!(timeout(SOON, &mut end).await.is_err(), "the end was acknowledged too early");
    assert!(timeout(SOON, &mut read).await.is_err(), "the end could be read too early");
    assert!(timeout(SOON, &mut repeated).await.is_err(), "a repeated key was told of the end too early");

    *slow.lock().unwrap() = false;
    disk.go_on.send(()).unwrap();
    let receipt = end.await.unwrap();
    assert_eq!(read.await.unwrap().head, receipt.point);
    assert!(matches!(repeated.await.unwrap(), Begin::Ended(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_does_not_wait_for_the_disk_that_others_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let [first, second] = ["s", "t"].map(|id| SessionKey::of("a", "u", id).unwrap());
    for key in [&first, &second] {
        store.create(CreateSession::at(key.clone())).await.unwrap();
    }
    let begun = store.begin(turn(&first, "k")).await.unwrap().begun().unwrap();
    *slow.lock().unwrap() = true;
    let ending = store.clone();
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(begun.fence, done())).await.unwrap() });
    tokio::task::spawn_blocking(move || disk.began.recv().unwrap()).await.unwrap();

    let other = timeout(Duration::from_secs(30), store.begin(turn(&second, "k"))).await;
    let other = other.expect("a begin waited for the disk").unwrap().begun().unwrap();
    assert!(timeout(SOON, &mut end).await.is_err(), "the end was acknowledged too early");
    *slow.lock().unwrap() = false;
    disk.go_on.send(()).unwrap();
    end.await.unwrap();
    assert!(store.end(EndTurn::completed(other.fence, done())).await.unwrap().on_head);
}
