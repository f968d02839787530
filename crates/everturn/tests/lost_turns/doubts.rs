//! Disks that fail while a turn is written: what was not kept is told from what may be.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everturn::store::{
    BeginTurn, CreateSession, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _,
};
use everturn::{Agent, EndStatus, ErrorKind, Init, Input, InvocationId, Outcome, TurnError, TurnKey};
use tokio::sync::Semaphore;

use crate::in_time;
use crate::support::*;

/// A store whose disk fails as long as the switch is on.
fn store(dir: &Path) -> (Arc<SqliteStore>, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let broken = fails.clone();
    let sync = move |log: &Path| match broken.load(Ordering::SeqCst) {
        true => Err(std::io::Error::other("the disk fails")),
        false => std::fs::OpenOptions::new().write(true).open(log)?.sync_data(),
    };
    (Arc::new(SqliteOptions::new(dir.join("s.db")).vfs_with_sync("unix", sync).open().unwrap()), fails)
}

/// An echo that waits for a permit.
fn waiting(store: &Arc<SqliteStore>, go: &Arc<Semaphore>) -> Agent<Tally> {
    let go = go.clone();
    let agent = Agent::flow("echo", move |turn| {
        let go = go.clone();
        async move {
            go.acquire().await?.forget();
            echo_turn(turn).await
        }
    });
    agent.shared_store(store.clone()).build().unwrap()
}

fn keyed(session: &str) -> Init {
    Init::session(sid(session)).key(TurnKey::new("k").unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_may_be_kept_is_told_from_one_that_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (store, fails) = store(dir.path());
    let go = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    let agents = [&go[0], &go[1]].map(|go| waiting(&store, go));
    let mut begun = Vec::new();
    for (agent, session) in agents.iter().zip(["doubted", "refused"]) {
        let connection = agent.connect(keyed(session)).await.unwrap();
        connection.send_text("one").await.unwrap();
        let turn = connection.begun().await.unwrap().turn;
        begun.push((connection, turn));
    }
    let (mut refused, _) = begun.pop().unwrap();
    let (mut doubted, turn) = begun.pop().unwrap();
    // The sync of its end fails, though its end is there.
    fails.store(true, Ordering::SeqCst);
    go[0].add_permits(1);
    let error = in_time(doubted.output()).await.unwrap_err();
    assert_eq!(error.kind().name(), "unknown_outcome", "{error}");
    assert!(error.to_string().contains(&turn.to_string()), "it names the turn: {error}");
    // The other ends when the store has closed itself.
    go[1].add_permits(1);
    let error = in_time(refused.output()).await.unwrap_err();
    assert_eq!(error.kind().name(), "unavailable", "{error}");

    fails.store(false, Ordering::SeqCst);
    store.reopen().await.unwrap();
    for (n, session) in ["doubted", "refused"].into_iter().enumerate() {
        go[n].add_permits(1);
        let again = in_time(agents[n].run_text("one", keyed(session))).await.unwrap().ok().unwrap();
        assert_eq!(said(&again), ["one", "echo: one"], "{session}");
        assert_eq!(store.head_state(&key(session)).await.unwrap().turns(), 1, "{session}");
    }
    let left = [&go[0], &go[1]].map(|go| go.available_permits());
    assert_eq!(left, [1, 0], "what was kept did not run again, what was not did");
    assert!(store.running(None).await.unwrap().is_empty());
}

/// A turn that somebody works on is not given up by others.
#[tokio::test]
async fn the_living_are_not_given_up_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = [0, 1].map(|_| SqliteStore::open(dir.path().join("s.db")).unwrap());
    one.create(CreateSession::at(key("s"))).await.unwrap();
    let turn = BeginTurn::new(Start::Session(key("s")), InvocationId::new("i").unwrap(), Input::text("hi"));
    let begun = one.begin(turn).await.unwrap().begun().unwrap();
    let outcome = Outcome::lost(TurnError::new("UNAVAILABLE", "gone"));
    let lost = EndTurn::voided(begun.fence, EndStatus::Failed, outcome);
    assert_eq!(kind(other.end(lost.clone()).await), ErrorKind::Busy);
    drop(one);
    other.end(lost).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_synced_in_vain_may_be_kept_and_one_that_was_refused_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (store, fails) = store(dir.path());
    store.create(CreateSession::at(key("s"))).await.unwrap();
    fails.store(true, Ordering::SeqCst);
    let error = store.create(CreateSession::at(key("t"))).await.unwrap_err();
    assert_eq!(error.kind().name(), "unknown_outcome", "{error}");
    for _ in 0..2 {
        let error = store.create(CreateSession::at(key("u"))).await.unwrap_err();
        assert_eq!(error.kind().name(), "unavailable", "the store is closed: {error}");
    }
    fails.store(false, Ordering::SeqCst);
    store.reopen().await.unwrap();
    assert!(store.session(&key("t")).await.unwrap().is_some());
    assert!(store.session(&key("u")).await.unwrap().is_none());
}
