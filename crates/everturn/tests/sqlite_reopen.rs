//! Opening a store again after the disk failed: only what is really there counts, and nobody is left waiting.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use everturn::store::{
    BeginTurn, CreateSession, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _,
};
use everturn::{Changes, ErrorKind, Event, Input, InvocationId, Message, SessionKey};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// What is right never takes so long.
const FOREVER: Duration = Duration::from_secs(60);

fn key(id: &str) -> SessionKey {
    SessionKey::of("a", "u", id).unwrap()
}

/// A store whose disk fails as long as the switch is on.
fn store(dir: &Path) -> (SqliteStore, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let broken = fails.clone();
    let sync = move |log: &Path| match broken.load(Ordering::SeqCst) {
        true => Err(io::Error::other("the disk fails")),
        false => std::fs::OpenOptions::new().write(true).open(log)?.sync_data(),
    };
    (SqliteOptions::new(dir.join("s.db")).vfs_with_sync("unix", sync).open().unwrap(), fails)
}

async fn create(store: &SqliteStore) {
    for id in ["s", "failing"] {
        store.create(CreateSession::at(key(id))).await.unwrap();
    }
}

async fn turn(store: &SqliteStore, session: &SessionKey) -> everturn::Result<()> {
    let begin = BeginTurn::new(Start::Session(session.clone()), InvocationId::new("i").unwrap(), Input::text("hello"));
    let begun = store.begin(begin).await?.begun().expect("no key is given");
    let changes = Changes::new().event(Event::model("a", Message::model("done")));
    store.end(EndTurn::completed(begun.fence, changes)).await.map(drop)
}

/// Has the disk fail a write, which closes the store.
async fn fail(store: &SqliteStore, fails: &AtomicBool) {
    fails.store(true, Ordering::SeqCst);
    // What is not acknowledged may be there all the same.
    let error = turn(store, &key("failing")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
    let error = store.existing(&key("s")).await.unwrap_err();
    assert!(error.to_string().contains("reopen"), "{error}");
    fails.store(false, Ordering::SeqCst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_reopen_a_store_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, fails) = store(dir.path());
    create(&store).await;
    for round in 1..=50 {
        turn(&store, &key("s")).await.unwrap();
        fail(&store, &fails).await;
        let mut tasks = JoinSet::new();
        for n in 0..12 {
            let store = store.clone();
            tasks.spawn(async move {
                match n % 3 {
                    // Those who read or write meanwhile are answered, one way or the other.
                    0 => drop(store.head_state(&key("s")).await),
                    1 => drop(store.running(None).await),
                    _ => store.reopen().await.unwrap(),
                }
            });
        }
        let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
        timeout(FOREVER, all).await.expect("somebody waits for ever");
        let state = store.head_state(&key("s")).await.unwrap();
        assert_eq!(state.messages().len(), 2 * round);
    }
}

/// Whoever reopens a store whose disk hangs comes before the failure is known, and must not overlook it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_comes_while_a_store_is_reopened_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (hangs, (began, begins), (go_on, goes_on)) = (Arc::new(AtomicBool::new(false)), channel(), channel());
    let (is_slow, goes_on) = (hangs.clone(), std::sync::Mutex::new(goes_on));
    let sync = move |log: &Path| {
        if is_slow.load(Ordering::SeqCst) {
            began.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
            return Err(io::Error::other("the disk fails"));
        }
        std::fs::OpenOptions::new().write(true).open(log)?.sync_data()
    };
    let store = SqliteOptions::new(dir.path().join("s.db")).vfs_with_sync("unix", sync).open().unwrap();
    store.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&store, &key("s")).await.unwrap();

    hangs.store(true, Ordering::SeqCst);
    // Somebody else has the file open: the store would have to be refused, if it knew that it must read its log anew.
    let elsewhere = SqliteStore::open(dir.path().join("s.db")).unwrap();
    let (writing, reopening) = (store.clone(), store.clone());
    let write = tokio::spawn(async move { writing.create(CreateSession::at(key("t"))).await });
    tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
    let reopen = tokio::spawn(async move { reopening.reopen().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    hangs.store(false, Ordering::SeqCst);
    go_on.send(()).unwrap();
    assert_eq!(write.await.unwrap().unwrap_err().kind(), ErrorKind::UnknownOutcome);
    let refused = timeout(FOREVER, reopen).await.expect("it waits for ever").unwrap();
    let refused = refused.expect_err("it was reopened as if nothing had happened");
    assert!(refused.to_string().contains("close it there"), "{refused}");
    assert_eq!(store.existing(&key("s")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(elsewhere);
    store.reopen().await.unwrap();
    assert_eq!(store.head_state(&key("s")).await.unwrap().messages().len(), 2);
}

/// A disk fails for all who use it. Each lets go of the file when it tries, so that one of them can be alone with it; the others
/// may join once it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_of_one_file_do_not_keep_each_other_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (one, one_fails) = store(dir.path());
    let (other, other_fails) = store(dir.path());
    create(&one).await;
    turn(&other, &key("s")).await.unwrap();
    fail(&one, &one_fails).await;
    fail(&other, &other_fails).await;
    assert!(one.reopen().await.is_err(), "it was not alone");
    other.reopen().await.unwrap();
    turn(&other, &key("s")).await.unwrap();
    one.reopen().await.unwrap();
    turn(&one, &key("s")).await.unwrap();
    for store in [&one, &other] {
        assert_eq!(store.head_state(&key("s")).await.unwrap().messages().len(), 6);
        assert!(store.verify(everturn::store::VerifyScope::All).await.unwrap().damage.is_none());
    }
}

/// A store that nobody failed is reopened beside others as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_store_is_reopened_while_others_have_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let (one, _) = store(dir.path());
    let (other, _) = store(dir.path());
    one.create(CreateSession::at(key("s"))).await.unwrap();
    turn(&other, &key("s")).await.unwrap();
    one.reopen().await.unwrap();
    turn(&one, &key("s")).await.unwrap();
    assert_eq!(other.head_state(&key("s")).await.unwrap().messages().len(), 4);
}
