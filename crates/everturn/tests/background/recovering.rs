//! Turns in the background whose process died, and who looks after them.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{MemoryOptions, Store, StoreExt, VerifyScope};
use everturn::{
    Agent, CallState, ErrorKind, FinishReason, Init, Json, ManualClock, Message, Recovered, Recovery, Registry,
    Snapshot, SnapshotId, SnapshotStatus, TurnId, TurnStatus, Worker,
};

use crate::chaos;
use crate::children::{GOES_ON, HOLD_TOOL, LONG, Place, Process, RECOVERY, Said, TOOLS, of_worker};
use crate::gate::*;
use crate::support::*;
use crate::waiting::abandoned;

const RETRY: Recovery = Recovery::Retry { attempts: 3 };

fn manual() -> (ManualClock, Arc<dyn Store>) {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let store = MemoryOptions::new().clock(Arc::new(clock.clone())).build();
    (clock, Arc::new(store))
}

/// A turn in the background of a process that is killed.
fn killed(place: &Place, session: &str, text: &str) -> SnapshotId {
    let mut child = place.child(&[]);
    child.tell(&format!("detach {session} {text}"));
    let id = child.accepted();
    child.kill();
    id
}

async fn dead(agent: &Agent<Json>, session: &str) -> TurnId {
    let turns = agent.unfinished(&sid(session)).await.unwrap();
    assert_eq!((turns.len(), turns[0].status), (1, TurnStatus::Dead));
    turns[0].turn
}

async fn found(agent: &Agent<Json>, id: SnapshotId) -> Snapshot {
    agent.snapshot(id).await.unwrap().expect("it is there")
}

fn here(text: &str) -> Vec<String> {
    vec![text.to_owned(), format!("{text} by {}", std::process::id())]
}

#[tokio::test]
async fn what_is_left_alone_stays_expired_until_somebody_tries_it_again() {
    let place = Place::new();
    let id = killed(&place, "s", "hold");
    let agent = place.agent(Recovery::Leave);
    let expired = found(&agent, id).await;
    assert_eq!((expired.status, said_in(&expired)), (SnapshotStatus::Expired, vec!["hold".to_owned()]));
    assert_eq!(agent.recover().await.unwrap(), []);
    assert_eq!(found(&agent, id).await, expired);
    let turn = dead(&agent, "s").await;
    let output = agent.retry(turn).await.unwrap().output().await.unwrap();
    assert_eq!((output.snapshot_id, output.finish_reason), (Some(id), Some(FinishReason::Detached)));
    let done = in_time(agent.wait(id, None)).await.unwrap();
    assert_eq!((done.status, said_in(&done)), (SnapshotStatus::Completed, here("hold")));
    refused(agent.retry(turn).await, ErrorKind::Conflict, "ended already");
}

#[tokio::test]
async fn what_fails_leaves_its_session_free() {
    let place = Place::new();
    let id = killed(&place, "s", "hold");
    let agent = place.agent(Recovery::Fail);
    let turn = dead(&agent, "s").await;
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Failed(turn)]);
    let failed = found(&agent, id).await;
    assert_eq!((failed.status, failed.finish_reason), (SnapshotStatus::Failed, Some(FinishReason::Failed)));
    assert_eq!(failed.error.unwrap().status, "UNAVAILABLE");
    assert_eq!(agent.recover().await.unwrap(), [], "once");
    assert_eq!(said(&agent.run_text("next", Init::session(sid("s"))).await.unwrap()), here("next"));
}

#[tokio::test]
async fn what_is_tried_again_completes_in_its_row() {
    let place = Place::new();
    let id = killed(&place, "s", "hold");
    let agent = place.agent(RETRY);
    let turn = dead(&agent, "s").await;
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Retried(turn)]);
    let done = in_time(agent.wait(id, None)).await.unwrap();
    assert_eq!((done.status, said_in(&done)), (SnapshotStatus::Completed, here("hold")));
    let record = agent.turn(turn).await.unwrap().unwrap();
    assert_eq!((record.attempt, record.status), (2, TurnStatus::Completed));
    assert_eq!(agent.drain(SOON).await, 0);
    assert!(place.store(LONG).verify(VerifyScope::All).await.unwrap().damage.is_none());
}

#[tokio::test]
async fn one_that_was_detached_halfway_is_tried_again_and_one_that_was_attached_is_not() {
    let place = Place::new();
    let mut child = place.child(&[]);
    child.tell("attach halfway hold");
    let id = child.started();
    child.tell("leave");
    assert!(matches!(child.next(), Said::Accepted { snapshot, .. } if snapshot == id));
    child.tell("attach attached hold");
    let waited = child.started();
    child.kill();
    let agent = place.agent(RETRY);
    let turn = dead(&agent, "halfway").await;
    let attached = dead(&agent, "attached").await;
    let recovered = agent.recover().await.unwrap();
    assert_eq!(recovered.len(), 2);
    assert!(recovered.contains(&Recovered::Retried(turn)) && recovered.contains(&Recovered::Failed(attached)));
    assert_eq!(said_in(&in_time(agent.wait(id, None)).await.unwrap()), here("hold"));
    assert_eq!(found(&agent, waited).await.status, SnapshotStatus::Failed);
    let again = in_time(agent.retry(attached).await.unwrap().output()).await.unwrap();
    assert_eq!(said(&again), here("hold"), "whoever waited for it may come back for it");
}

#[tokio::test]
async fn an_input_that_kills_its_process_is_not_tried_for_ever() {
    let place = Place::new();
    let mut child = place.child(&[(RECOVERY, "3")]);
    child.tell("detach s poison");
    let mut starts = 0;
    let mut poisoned = |child: Process| {
        let mut id = None;
        while let Some(said) = child.hear() {
            if let Said::Started { snapshot, .. } = said {
                starts += 1;
                id = Some(snapshot);
            }
        }
        id
    };
    let id = poisoned(child).expect("it was started");
    // Each worker that takes it dies of it; the one after the last attempt does not take it.
    for _ in 0..2 {
        let mut worker = place.child(&[(RECOVERY, "3")]);
        worker.tell("work");
        assert_eq!(poisoned(worker), Some(id));
    }
    let mut worker = place.child(&[(RECOVERY, "3")]);
    worker.tell("work");
    let agent = place.agent(RETRY);
    let failed = in_time(agent.wait(id, None)).await.unwrap();
    assert_eq!(failed.status, SnapshotStatus::Failed);
    assert!(failed.error.unwrap().message.contains("3 attempts"));
    assert_eq!(starts, 3);
    worker.tell("shutdown 1000");
    assert!(matches!(worker.next(), Said::Drained(0)), "it lives");
}

#[tokio::test]
async fn one_attempt_is_no_retry() {
    let place = Place::new();
    let id = killed(&place, "s", "hold");
    let agent = place.agent(Recovery::Retry { attempts: 1 });
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Failed(turn_behind(&agent, id).await)]);
    assert_eq!(found(&agent, id).await.status, SnapshotStatus::Failed);
}

/// The turn behind a row, whatever became of it.
async fn turn_behind(agent: &Agent<Json>, id: SnapshotId) -> TurnId {
    let session = found(agent, id).await.session.unwrap();
    let records = agent.store().unwrap().records(everturn::store::RecordQuery::of(session)).await.unwrap().items;
    records.iter().find_map(|record| record.turn).expect("a turn was begun")
}

#[tokio::test]
async fn of_many_who_look_one_takes_each_turn() {
    let place = Place::new();
    let mut child = place.child(&[]);
    let sessions: Vec<_> = (0..6).map(|n| format!("s{n}")).collect();
    let mut ids = Vec::new();
    for session in &sessions {
        child.tell(&format!("detach {session} hold"));
        ids.push(child.accepted());
    }
    child.kill();
    let mut workers: Vec<_> = (0..3).map(|_| place.child(&[(RECOVERY, "9"), (GOES_ON, "1")])).collect();
    for worker in &mut workers {
        worker.tell("recover");
    }
    let (mut taken, mut started) = (0, 0);
    for worker in &mut workers {
        loop {
            match worker.next() {
                Said::Recovered(count) => {
                    taken += count;
                    break;
                }
                Said::Started { .. } => started += 1,
                other => panic!("a worker said {other:?}"),
            }
        }
        worker.tell("drain");
        loop {
            match worker.next() {
                Said::Drained(left) => break assert_eq!(left, 0),
                Said::Started { .. } => started += 1,
                other => panic!("a worker said {other:?}"),
            }
        }
    }
    assert_eq!((taken, started), (sessions.len(), sessions.len()));
    let agent = place.agent(Recovery::Leave);
    for (session, id) in sessions.iter().zip(ids) {
        let done = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((done.status, said_in(&done).len()), (SnapshotStatus::Completed, 2));
        assert_eq!(agent.turn(turn_behind(&agent, id).await).await.unwrap().unwrap().attempt, 2, "{session}");
    }
}

#[tokio::test]
async fn the_turns_of_all_users_are_looked_after() {
    let place = Place::new();
    let mut child = place.child(&[]);
    let mut ids = Vec::new();
    for who in ["ann", "bob"] {
        child.tell(&format!("detach-as {who} hold"));
        ids.push((who, child.accepted()));
    }
    child.kill();
    let agent = place.agent(RETRY);
    assert_eq!(agent.recover().await.unwrap().len(), 2);
    for (who, id) in ids {
        assert_eq!(agent.snapshot(id).await.unwrap(), None, "looking after is not looking at");
        let done = in_time(agent.for_user(user(who)).wait(id, None)).await.unwrap();
        assert_eq!((done.status, said_in(&done)), (SnapshotStatus::Completed, here("hold")));
        let head = place.store(LONG).head_state(&of_worker(who, "s")).await.unwrap();
        assert_eq!(texts(head.messages()), here("hold"));
    }
}

#[tokio::test]
async fn what_a_worker_leaves_at_its_shutdown_is_taken_over() {
    let place = Place::new();
    let id = killed(&place, "s", "hold");
    let mut worker = place.child(&[(RECOVERY, "9")]);
    worker.tell("work");
    assert_eq!(worker.started(), id);
    worker.tell("shutdown 20");
    assert!(matches!(worker.next(), Said::Drained(1)));
    let agent = place.agent(RETRY);
    assert_eq!(found(&agent, id).await.status, SnapshotStatus::Pending, "it lives as long as its process does");
    worker.kill();
    assert_eq!(agent.recover().await.unwrap().len(), 1);
    assert_eq!(said_in(&in_time(agent.wait(id, None)).await.unwrap()), here("hold"));
}

#[tokio::test]
async fn tool_calls_that_finished_are_not_made_again() {
    let place = Place::new();
    let mut child = place.child(&[(TOOLS, "1"), (HOLD_TOOL, "1")]);
    child.tell("keyed s k0");
    let Said::Accepted { snapshot, .. } = child.next() else { panic!("it is accepted") };
    let agent = chaos::agent(place.store(LONG), &place.file(), RETRY);
    let turn = agent.unfinished(&sid("s")).await.unwrap()[0].turn;
    let finished = |calls: &[everturn::CallRecord]| {
        calls.iter().filter(|call| matches!(call.state, CallState::Finished(_))).count()
    };
    // Both of the first round, and one of the second: the other is in the middle of it.
    until(async || (finished(&agent.calls(turn).await.unwrap()) == 3).then_some(())).await;
    until(async || (chaos::marks(&place.file()).len() == 4).then_some(())).await;
    child.kill();
    let before = chaos::marks(&place.file());
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Retried(turn)]);
    let done = in_time(agent.wait(snapshot, None)).await.unwrap();
    assert_eq!((done.status, done.finish_reason), (SnapshotStatus::Completed, Some(FinishReason::Stop)));
    let after = chaos::marks(&place.file());
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "no new call");
    let again: Vec<_> = after.iter().filter(|(_, made)| **made > 1).map(|(mark, _)| mark.as_str()).collect();
    assert_eq!(again.len(), 1, "only the one nobody knew about, which may be made twice: {again:?}");
    assert!(again[0].starts_with("look"));
    assert_eq!(done.state.unwrap().messages.last().map(Message::text).as_deref(), Some("done"));
}

/// A laptop that slept, or a thread that was blocked: the heartbeat is late, and the turn is not dead.
#[tokio::test(start_paused = true)]
async fn a_turn_that_is_late_in_this_process_is_not_taken_from_it() {
    let (clock, store) = manual();
    let (agent, mut gate) = gated(Hears::Well);
    let agent = agent.shared_store(store.clone()).recovery(RETRY).build().unwrap();
    let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
    gate.started().await;
    clock.advance(Duration::from_secs(600));
    assert_eq!(status(&agent, id).await, SnapshotStatus::Expired, "it looks dead");
    assert_eq!(agent.recover().await.unwrap(), []);
    // Its next heartbeat, and it looks alive.
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(status(&agent, id).await, SnapshotStatus::Pending);
    gate.go();
    assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
    assert!(!gate.has_started(), "it ran once");
    // Elsewhere nobody can know; whoever is late there is fenced.
    let id = agent.run(detached("two"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
    gate.started().await;
    clock.advance(Duration::from_secs(600));
    let elsewhere = echo().shared_store(store.clone()).recovery(RETRY).build().unwrap();
    assert_eq!(elsewhere.recover().await.unwrap().len(), 1);
    assert_eq!(in_time(elsewhere.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
    let done = row(&agent, id).await;
    assert_eq!(gate.cancelled().await, "two");
    assert_eq!(agent.drain(SOON).await, 0);
    assert_eq!(row(&agent, id).await, done);
    assert_eq!(said_in(&done), ["one", "echo: one", "two", "echo: two"]);
}

#[tokio::test]
async fn one_that_cannot_be_helped_keeps_no_other_from_it() {
    let (clock, store) = manual();
    let bad = abandoned(&store, "bad", Some(json(r#"{"turns":"many"}"#))).await;
    let good = abandoned(&store, "good", None).await;
    clock.advance(Duration::from_secs(61));
    let agent = echo().schema_of_state().shared_store(store.clone()).recovery(RETRY).build().unwrap();
    assert_eq!(agent.recover().await.unwrap().len(), 1);
    assert_eq!(in_time(agent.wait(good, None)).await.unwrap().status, SnapshotStatus::Completed);
    let failed = store.snapshot(everturn::store::SnapshotRef::Id(bad)).await.unwrap().unwrap();
    assert_eq!(failed.status, SnapshotStatus::Failed, "and it does not come back");
    assert_eq!(agent.recover().await.unwrap(), []);
    assert_eq!(store.running(None).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_worker_looks_until_it_is_shut_down() {
    let (clock, store) = manual();
    let agent = echo().shared_store(store.clone()).recovery(RETRY).build().unwrap();
    let mut registry = Registry::new();
    registry.register(agent.clone()).unwrap();
    // One whose state its caller keeps has nothing to be looked after.
    registry.register(Agent::flow("client", echo_turn).build().unwrap()).unwrap();
    let worker = Worker::start(registry.clone(), Duration::from_secs(5));
    let first = abandoned(&store, "first", None).await;
    clock.advance(Duration::from_secs(61));
    assert_eq!(in_time(agent.wait(first, None)).await.unwrap().status, SnapshotStatus::Completed);
    assert_eq!(worker.shutdown(SOON).await, 0);
    let second = abandoned(&store, "second", None).await;
    clock.advance(Duration::from_secs(61));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(status(&agent, second).await, SnapshotStatus::Expired);
    // One that is dropped stops as well; a new one finds what was left.
    drop(Worker::start(registry.clone(), Duration::from_secs(5)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let _worker = Worker::start(registry, Duration::from_secs(5));
    assert_eq!(in_time(agent.wait(second, None)).await.unwrap().status, SnapshotStatus::Completed);
}
