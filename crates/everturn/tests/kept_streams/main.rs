//! Streams that are kept: followed from anywhere, while the turn runs and after, here and elsewhere.

#[macro_use]
#[path = "../runtime/support.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod support;

#[path = "../support/mod.rs"]
mod children;

mod dying;

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{Store, StoreExt as _};
use everturn::{
    Agent, AgentBuilder, Chunk, ErrorKind, FinishReason, Followed, Following, Init, Input, Json, Message, Output,
    Position, Recovery, SnapshotId, SnapshotStatus, StreamLimits, Turn, TurnKey, TurnStatus,
};
use support::*;
use tokio::sync::Semaphore;

/// Says `n` words for `say n`, one for each permit it is given; `fail n` fails after them.
fn talker(steps: &Arc<Semaphore>) -> AgentBuilder<Json> {
    let steps = steps.clone();
    Agent::flow("talker", move |turn: Turn<Json>| {
        let steps = steps.clone();
        async move {
            let text = turn.text();
            let (command, count) = text.split_once(' ').unwrap();
            for n in 0..count.parse::<u64>()? {
                tokio::select! {
                    permit = steps.acquire() => permit?.forget(),
                    () = turn.cancelled() => return Err(everturn::Failure::new("CANCELLED", "told to stop")),
                }
                turn.responder().text(format!("{n} ")).await?;
            }
            turn.add_message(Message::model("said"))?;
            match command {
                "fail" => Err(everturn::Failure::new("INTERNAL", "failed as asked")),
                _ => Ok(()),
            }
        }
    })
    .recovery(Recovery::Retry { attempts: 3 })
}

fn on(store: Arc<dyn Store>, steps: &Arc<Semaphore>) -> Agent<Json> {
    talker(steps).shared_store(store).build().unwrap()
}

fn steps(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

fn background(text: &str) -> Input {
    let mut input = Input::text(text);
    input.detach = true;
    input
}

async fn detached(agent: &Agent<Json>, text: &str) -> SnapshotId {
    let output = agent.run(background(text), Init::session(sid("s"))).await.unwrap();
    assert_eq!(output.finish_reason, Some(FinishReason::Detached));
    output.snapshot_id.unwrap()
}

async fn all(mut following: Following) -> Vec<Followed> {
    let mut followed = Vec::new();
    while let Some(one) = following.next().await.unwrap() {
        followed.push(one);
    }
    followed
}

/// What was said, and how it ended.
fn heard(followed: &[Followed]) -> (String, FinishReason) {
    let text = followed.iter().map(|one| one.chunk.text()).collect();
    (text, followed.last().unwrap().chunk.turn_end.unwrap().finish_reason)
}

fn words(range: std::ops::Range<u64>) -> String {
    range.map(|n| format!("{n} ")).collect()
}

fn positions(followed: &[Followed]) -> Vec<Position> {
    followed.iter().filter_map(|one| one.position).collect()
}

on_every_store! {
    async fn a_stream_is_followed_while_its_turn_runs_and_after(home: Home) {
        let steps = steps(0);
        let agent = on(home.store(), &steps);
        let id = detached(&agent, "say 200").await;
        let mut live = agent.follow(id, None).await.unwrap();
        steps.add_permits(100);
        let mut first = Vec::new();
        while first.len() < 100 {
            first.push(live.next().await.unwrap().unwrap());
        }
        assert_eq!(positions(&first), (0..100).map(|n| Position::new(1, n)).collect::<Vec<_>>());
        steps.add_permits(100);
        let rest = all(live).await;
        assert_eq!(heard(&rest), (words(100..200), FinishReason::Stop));
        let again = all(agent.follow(id, None).await.unwrap()).await;
        assert_eq!(heard(&again), (words(0..200), FinishReason::Stop));
        let end = again.last().unwrap();
        assert_eq!((end.position, end.chunk.turn_end.unwrap().snapshot_id), (None, Some(id)));
        let elsewhere = on(home.elsewhere(), &steps);
        assert_eq!(heard(&all(elsewhere.follow(id, None).await.unwrap()).await), (words(0..200), FinishReason::Stop));
    }

    async fn a_reader_that_comes_back_sees_no_gap_and_no_repeat(home: Home) {
        let steps = steps(0);
        let agent = on(home.store(), &steps);
        let id = detached(&agent, "say 300").await;
        steps.add_permits(150);
        let mut seen: Vec<Followed> = Vec::new();
        for round in 0.. {
            let here = if round % 2 == 0 { agent.clone() } else { on(home.elsewhere(), &steps) };
            let last = seen.iter().rev().find_map(|one| one.position);
            let mut following = here.follow(id, last).await.unwrap();
            for _ in 0..37 {
                let Some(one) = following.next().await.unwrap() else { break };
                seen.push(one);
            }
            steps.add_permits(37);
            if seen.last().unwrap().chunk.turn_end.is_some() {
                break;
            }
        }
        assert_eq!(heard(&seen), (words(0..300), FinishReason::Stop));
    }

    async fn many_readers_start_anywhere(home: Home) {
        let steps = steps(0);
        let agent = on(home.store(), &steps);
        let id = detached(&agent, "say 500").await;
        steps.add_permits(250);
        let mut first = agent.follow(id, None).await.unwrap();
        for _ in 0..250 {
            first.next().await.unwrap().unwrap();
        }
        let mut readers = Vec::new();
        for n in (0..250).step_by(25) {
            let here = if n % 50 == 0 { agent.clone() } else { on(home.elsewhere(), &steps) };
            let following = here.follow(id, Some(Position::new(1, n))).await.unwrap();
            readers.push(tokio::spawn(async move { (n, all(following).await) }));
        }
        steps.add_permits(250);
        for reader in readers {
            let (n, followed) = reader.await.unwrap();
            assert_eq!(heard(&followed), (words(n + 1..500), FinishReason::Stop));
        }
    }

    async fn failure_and_abort_end_a_stream_and_what_was_said_stays(home: Home) {
        let steps = steps(70);
        let agent = on(home.store(), &steps);
        let failed = detached(&agent, "fail 70").await;
        let followed = all(agent.follow(failed, None).await.unwrap()).await;
        assert_eq!(heard(&followed), (words(0..70), FinishReason::Failed));
        let aborted = detached(&agent, "say 10").await;
        steps.add_permits(5);
        let mut following = agent.follow(aborted, None).await.unwrap();
        for _ in 0..5 {
            following.next().await.unwrap().unwrap();
        }
        assert_eq!(agent.abort(aborted).await.unwrap(), Some(SnapshotStatus::Pending));
        assert_eq!(heard(&all(following).await), (String::new(), FinishReason::Aborted));
        assert_eq!(heard(&all(agent.follow(aborted, None).await.unwrap()).await), (words(0..5), FinishReason::Aborted));
    }

    async fn positions_that_cannot_be_and_turns_of_others_are_refused(home: Home) {
        let steps = steps(3);
        let agent = on(home.store(), &steps);
        let id = detached(&agent, "say 3").await;
        agent.wait(id, None).await.unwrap();
        for position in [Position::new(1, 3), Position::new(1, u64::MAX), Position::new(2, 0), Position::new(0, 0)] {
            assert_eq!(kind(agent.follow(id, Some(position)).await), ErrorKind::Invalid, "{position}");
        }
        let last = all(agent.follow(id, Some(Position::new(1, 2))).await.unwrap()).await;
        assert_eq!(last.len(), 1, "behind the last chunk there is only the end");
        assert_eq!(kind(agent.for_user(user("eve")).follow(id, None).await), ErrorKind::NotFound);
        assert_eq!(kind(agent.follow(SnapshotId::nil(), None).await), ErrorKind::NotFound);
    }

    async fn a_repeated_key_attaches_to_the_turn_that_runs(home: Home) {
        let steps = steps(0);
        let agent = on(home.store(), &steps);
        let elsewhere = on(home.elsewhere(), &steps);
        let init = || Init::session(sid("s")).key(TurnKey::new("k").unwrap()).keep_stream();
        let (hears, mut heard) = tokio::sync::mpsc::channel(3);
        let run = |agent: Agent<Json>| {
            let hears = hears.clone();
            async move {
                let mut connection = agent.connect(init()).await.unwrap();
                connection.send_text("say 80").await.unwrap();
                let mut chunks = vec![connection.receive().await.unwrap()];
                hears.send(()).await.unwrap();
                chunks.extend(connection.receive_turn().await);
                (chunks, connection.output().await.unwrap())
            }
        };
        let first = tokio::spawn(run(agent.clone()));
        steps.add_permits(40);
        heard.recv().await.unwrap();
        let others = [tokio::spawn(run(agent.clone())), tokio::spawn(run(elsewhere))];
        for _ in 0..2 {
            heard.recv().await.unwrap();
        }
        steps.add_permits(40);
        let said = |(chunks, output): &(Vec<Chunk>, Output)| (spoken(chunks), output.text(), output.point);
        let first = said(&first.await.unwrap());
        assert_eq!((first.0.as_str(), first.1.as_str()), (words(0..80).as_str(), "said"));
        for other in others {
            assert_eq!(said(&other.await.unwrap()), first);
        }
        let state = home.elsewhere().head_state(&everturn::SessionKey::of("talker", "user", "s").unwrap()).await.unwrap();
        assert_eq!(state.messages().len(), 2, "one turn happened");
    }

    async fn a_repeated_key_of_a_detached_turn_answers_with_the_same_row(home: Home) {
        let steps = steps(0);
        let agent = on(home.store(), &steps);
        let init = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        let first = agent.run(background("say 1"), init()).await.unwrap();
        let again = on(home.elsewhere(), &steps).run(background("say 1"), init()).await.unwrap();
        assert_eq!((again.snapshot_id, again.finish_reason), (first.snapshot_id, Some(FinishReason::Detached)));
        steps.add_permits(1);
        let row = agent.wait(first.snapshot_id.unwrap(), None).await.unwrap();
        assert_eq!(row.status, SnapshotStatus::Completed);
    }

    async fn a_lost_connection_is_an_abort_only_after_a_grace_in_which_nobody_follows(home: Home) {
        let steps = steps(0);
        let mut limits = StreamLimits::default();
        limits.reader_gone = Duration::from_millis(200);
        let agent = talker(&steps).stream_limits(limits).shared_store(home.store()).build().unwrap();
        for follows in [true, false] {
            let connection = agent.connect(Init::session(sid("s")).keep_stream()).await.unwrap();
            connection.send_text("say 2").await.unwrap();
            let turn = loop {
                match home.store().running(None).await.unwrap().pop() {
                    Some(turn) => break turn,
                    None => tokio::task::yield_now().await,
                }
            };
            let mut following = agent.follow(turn.snapshot_id.unwrap(), None).await.unwrap();
            drop(connection);
            if follows {
                steps.add_permits(1);
                following.next().await.unwrap().unwrap();
                tokio::time::sleep(limits.reader_gone * 3).await;
                steps.add_permits(1);
                assert_eq!(heard(&all(following).await), (words(1..2), FinishReason::Stop));
            } else {
                drop(following);
                let row = agent.wait(turn.snapshot_id.unwrap(), Some(Duration::from_secs(10))).await.unwrap();
                assert_eq!(row.status, SnapshotStatus::Aborted);
            }
        }
    }

    async fn what_is_not_kept_can_be_followed_to_its_end_only(home: Home) {
        let steps = steps(3);
        let agent = on(home.store(), &steps);
        let output = agent.run_text("say 3", Init::session(sid("s"))).await.unwrap();
        let followed = all(agent.follow(output.snapshot_id.unwrap(), None).await.unwrap()).await;
        assert_eq!(heard(&followed), (String::new(), FinishReason::Stop));
    }
}

/// A store whose writers are dead as soon as they are silent: what is tried again is tried again at once.
#[tokio::test]
async fn a_reader_is_told_when_the_turn_is_tried_anew() {
    let clock = Arc::new(everturn::ManualClock::new(everturn::Timestamp::from_micros(1_700_000_000_000_000)));
    let store: Arc<dyn Store> =
        Arc::new(everturn::store::MemoryOptions::new().lease(Duration::from_secs(60)).clock(clock.clone()).build());
    let silent = steps(10);
    let agent = on(store.clone(), &silent);
    let id = detached(&agent, "say 20").await;
    let mut following = agent.follow(id, None).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.push(following.next().await.unwrap().unwrap());
    }
    // Its writer goes silent: it waits for permits, and its heart does not beat.
    clock.advance(Duration::from_secs(61));
    let turn = store.running(None).await.unwrap().pop().unwrap();
    assert_eq!(turn.status, TurnStatus::Dead);
    let other = on(store.clone(), &steps(100));
    assert_eq!(other.recover().await.unwrap().len(), 1);
    let late = other.follow(id, Some(Position::new(1, 9))).await.unwrap();
    let anew = all(late).await;
    assert_eq!(anew[0].chunk.restarted, Some(2));
    assert_eq!(heard(&anew), (words(0..20), FinishReason::Stop));
    assert_eq!(positions(&anew)[0], Position::new(2, 0));
    silent.add_permits(100);
    let live = all(following).await;
    assert_eq!(live.iter().filter(|one| one.chunk.restarted == Some(2)).count(), 1, "{live:?}");
    assert_eq!(heard(&live).1, FinishReason::Stop);
}
