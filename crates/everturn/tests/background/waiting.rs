//! Waiting for what becomes of a turn.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{BeginTurn, CreateSession, MemoryOptions, Start, StepTurn, Store, TurnRef};
use everturn::{
    Changes, CustomChange, ErrorKind, FinishReason, Init, Input, InvocationId, Json, ManualClock, Recovery, SnapshotId,
    SnapshotStatus,
};

use crate::children::Place;
use crate::gate::*;
use crate::support::*;

fn fresh() -> SnapshotId {
    SnapshotId::from_uuid(uuid::Uuid::now_v7())
}

on_every_store! {
    async fn any_number_may_wait(home: Home) {
        let (agent, mut gate) = held(home.store());
        let elsewhere = echo().shared_store(home.elsewhere()).build().unwrap();
        for (text, ended) in [("one", SnapshotStatus::Completed), ("fail why", SnapshotStatus::Failed)] {
            let id = agent.run(detached(text), Init::session(sid(text))).await.unwrap().snapshot_id.unwrap();
            gate.started().await;
            let waiters: Vec<_> = (0..50)
                .map(|n| {
                    let agent = if n % 2 == 0 { agent.clone() } else { elsewhere.clone() };
                    tokio::spawn(async move { agent.wait(id, Some(SOON)).await })
                })
                .collect();
            tokio::task::yield_now().await;
            gate.go();
            for waiter in waiters {
                let snapshot = in_time(waiter).await.unwrap().unwrap();
                assert_eq!((snapshot.snapshot_id, snapshot.status), (id, ended));
                assert!(snapshot.state.is_some(), "it comes with what was reached");
            }
        }
    }

    async fn what_has_ended_is_not_waited_for(home: Home) {
        let agent = stored(&home);
        let id = agent.run_text("one", Init::new()).await.unwrap().snapshot_id.unwrap();
        let done = agent.wait(id, Some(Duration::ZERO)).await.unwrap();
        assert_eq!((done.status, said_in(&done).len()), (SnapshotStatus::Completed, 2));
    }

    async fn a_deadline_changes_nothing(home: Home) {
        let (agent, mut gate) = held(home.store());
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        for within in [Duration::ZERO, Duration::from_millis(30)] {
            refused(in_time(agent.wait(id, Some(within))).await, ErrorKind::Unavailable, "still pending");
        }
        assert_eq!(status(&agent, id).await, SnapshotStatus::Pending);
        gate.go();
        assert_eq!(in_time(agent.wait(id, Some(Duration::MAX))).await.unwrap().status, SnapshotStatus::Completed);
    }

    async fn an_attached_turn_can_be_waited_for(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = gate.started().await.snapshot.unwrap();
        refused(in_time(agent.wait(id, Some(Duration::ZERO))).await, ErrorKind::Unavailable, "still pending");
        let waiter = tokio::spawn({
            let agent = agent.clone();
            async move { agent.wait(id, Some(SOON)).await }
        });
        gate.go();
        assert_eq!(in_time(waiter).await.unwrap().unwrap().status, SnapshotStatus::Completed);
        assert_eq!(connection.output().await.unwrap().finish_reason, Some(FinishReason::Stop));
    }

    async fn what_is_not_there_is_not_waited_for(home: Home) {
        let (agent, mut gate) = held(home.store());
        refused(in_time(agent.wait(fresh(), None)).await, ErrorKind::NotFound, "not found");
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        let stranger = agent.for_user(user("mallory"));
        assert_eq!(kind(in_time(stranger.wait(id, None)).await), ErrorKind::NotFound);
        gate.go();
    }

    async fn whoever_waits_is_told_that_the_session_is_gone(home: Home) {
        let (agent, mut gate) = held(home.store());
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        let waiter = tokio::spawn({
            let agent = agent.clone();
            async move { agent.wait(id, Some(SOON)).await }
        });
        tokio::task::yield_now().await;
        home.store().delete(&key("s")).await.unwrap();
        assert_eq!(kind(in_time(waiter).await.unwrap()), ErrorKind::NotFound);
    }
}

/// Ten minutes cost nothing here: the clock is moved by whoever waits for it.
#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_to_the_moment() {
    let home = Home::memory();
    let (agent, mut gate) = held(home.store());
    let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
    gate.started().await;
    for seconds in [3, 600] {
        let began = tokio::time::Instant::now();
        let late = agent.wait(id, Some(Duration::from_secs(seconds))).await;
        assert_eq!(kind(late), ErrorKind::Unavailable);
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
    let waiter = tokio::spawn({
        let agent = agent.clone();
        async move { agent.wait(id, None).await }
    });
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let ended = tokio::time::Instant::now();
    gate.go();
    assert_eq!(waiter.await.unwrap().unwrap().status, SnapshotStatus::Completed);
    assert!(ended.elapsed() < Duration::from_secs(1), "told when it ended, not when it looked");
}

/// A turn in the background by somebody who never says that he is alive.
pub(crate) async fn abandoned(store: &Arc<dyn Store>, session: &str, custom: Option<Json>) -> SnapshotId {
    let id = fresh();
    let mut create = CreateSession::at(key(session));
    create.agent = Some(everturn::AgentName::new("echo").unwrap());
    create.changes.custom = custom.map(CustomChange::Set);
    store.create(create).await.unwrap();
    let begin = BeginTurn::new(Start::Session(key(session)), InvocationId::new("i").unwrap(), Input::text("one"));
    let begin = begin.agent(everturn::AgentName::new("echo").unwrap()).snapshot(id);
    let begun = store.begin(begin).await.unwrap().begun().unwrap();
    store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_dead_is_told_that_it_has_expired() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let store: Arc<dyn Store> = Arc::new(MemoryOptions::new().clock(Arc::new(clock.clone())).build());
    let id = abandoned(&store, "s", None).await;
    let leaves = echo().shared_store(store.clone()).build().unwrap();
    let retries = echo().shared_store(store.clone()).recovery(Recovery::Retry { attempts: 2 }).build().unwrap();
    let waiter = tokio::spawn({
        let leaves = leaves.clone();
        async move { leaves.wait(id, None).await }
    });
    // A minute of silence is what the store allows unless it is told otherwise.
    clock.advance(Duration::from_secs(60));
    assert_eq!(kind(leaves.wait(id, Some(Duration::from_secs(5))).await), ErrorKind::Unavailable);
    clock.advance(Duration::from_secs(1));
    assert_eq!(in_time(waiter).await.unwrap().unwrap().status, SnapshotStatus::Expired);
    assert_eq!(leaves.wait(id, None).await.unwrap().status, SnapshotStatus::Expired);
    // Where somebody will try it again it is not over.
    assert_eq!(kind(retries.wait(id, Some(Duration::from_secs(5))).await), ErrorKind::Unavailable);
    refused(leaves.run_text("x", Init::snapshot(id)).await, ErrorKind::NotResumable, "expired");
    let waiter = tokio::spawn({
        let retries = retries.clone();
        async move { retries.wait(id, None).await }
    });
    assert_eq!(retries.recover().await.unwrap().len(), 1);
    let done = in_time(waiter).await.unwrap().unwrap();
    assert_eq!((done.status, said_in(&done)), (SnapshotStatus::Completed, vec!["one".into(), "echo: one".into()]));
}

#[tokio::test]
async fn what_has_expired_can_be_aborted() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let store: Arc<dyn Store> = Arc::new(MemoryOptions::new().clock(Arc::new(clock.clone())).build());
    let id = abandoned(&store, "s", None).await;
    clock.advance(Duration::from_secs(61));
    let agent = echo().shared_store(store.clone()).recovery(Recovery::Fail).build().unwrap();
    assert_eq!(agent.abort(id).await.unwrap(), Some(SnapshotStatus::Expired));
    let aborted = row(&agent, id).await;
    assert_eq!(aborted.status, SnapshotStatus::Aborted);
    assert_eq!(agent.recover().await.unwrap(), [], "there is nothing left to recover");
    assert_eq!(row(&agent, id).await, aborted);
    assert_eq!(kind(store.abort(TurnRef::Snapshot(fresh())).await), ErrorKind::NotFound);
}

/// The defaults are what the documentation says: a heartbeat each half minute against a lease of one minute.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_keeps_a_turn_from_expiring() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let store: Arc<dyn Store> = Arc::new(MemoryOptions::new().clock(Arc::new(clock.clone())).build());
    let (agent, mut gate) = held(store);
    let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
    gate.started().await;
    let first = row(&agent, id).await.heartbeat_at;
    for _ in 0..10 {
        clock.advance(Duration::from_secs(35));
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert_eq!(status(&agent, id).await, SnapshotStatus::Pending);
    }
    assert!(row(&agent, id).await.heartbeat_at > first);
    gate.go();
    assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
}

#[tokio::test]
async fn a_wait_ends_when_the_process_of_a_turn_is_killed_or_done() {
    let place = Place::new();
    let mut child = place.child(&[]);
    let agent = place.agent(Recovery::Leave);
    let mut ids = Vec::new();
    for (session, text) in [("a", "hold"), ("b", "hold until go")] {
        child.tell(&format!("detach {session} {text}"));
        ids.push(child.accepted());
    }
    let wait = |id| {
        let agent = agent.clone();
        tokio::spawn(async move { agent.wait(id, Some(SOON)).await })
    };
    let (killed, done) = (wait(ids[0]), wait(ids[1]));
    child.tell("go");
    assert_eq!(in_time(done).await.unwrap().unwrap().status, SnapshotStatus::Completed);
    child.kill();
    assert_eq!(in_time(killed).await.unwrap().unwrap().status, SnapshotStatus::Expired);
}
