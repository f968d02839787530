//! Keys: a turn that is asked for twice runs once.

use std::time::Duration;

use super::bench::{
    Bench, delta, end, failure, invocation, json, key, key_of, same_turn, told, turn, turn_at, turn_key,
};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{BeginTurn, Busy, CreateSession, Start};
use crate::{Begin, BranchName, EndStatus, EndedTurn, ErrorKind, FinishReason, Input, Message, NewSnapshot, Outcome};

async fn ended(t: &Bench, begin: BeginTurn) -> Check<EndedTurn> {
    match t.second().await?.begin(begin).await? {
        Begin::Ended(ended) => Ok(*ended),
        other => fail(format!("a repeated turn answered {other:?}")),
    }
}

pub(super) async fn a_running_turn_is_not_begun_twice(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.store.begin(turn(&key, "x").key(turn_key("k"))).await?.begun()?;
    let before = t.footprint(&key).await?;
    for busy in [Busy::Refuse, Busy::Wait(Duration::from_secs(100)), Busy::Branch] {
        for store in [t.store.clone(), t.second().await?] {
            let again = store.begin(turn(&key, "x").key(turn_key("k")).busy(busy)).await?;
            same(again, Begin::Running(begun.turn), "what a repeated turn is told while the first runs")?;
        }
    }
    same(t.footprint(&key).await?, before, "what repeating left")?;
    let running = t.second().await?.running(Some(&key)).await?;
    same(running[0].key.clone(), Some(turn_key("k")), "the running turn's key")
}

pub(super) async fn a_completed_turn_is_answered_from_what_was_kept(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.store.begin(turn(&key, "x").key(turn_key("k"))).await?.begun()?;
    let mut outcome = Outcome::finished(FinishReason::Stop);
    outcome.output = Some(json(r#"{"n":1.10}"#));
    outcome.message = Some(Message::model("bye"));
    let id = t.snapshot_id();
    let ending = end(begun.fence, "x").outcome(outcome.clone()).snapshot(NewSnapshot::new(id));
    let receipt = t.store.end(ending).await?;
    t.say(&key, "later").await?;
    let before = t.footprint(&key).await?;
    let found = ended(&t, turn(&key, "x").key(turn_key("k"))).await?;
    same((found.turn, &found.session), (begun.turn, &key), "the turn and its session")?;
    same((found.status, &found.outcome), (EndStatus::Completed, &outcome), "how it ended")?;
    let wanted = (receipt.point, receipt.digest, Some(id));
    same((found.point, found.digest, found.snapshot_id), wanted, "where it ended")?;
    holds(found.on_line, "it is on main's line, behind what came later")?;
    same(t.footprint(&key).await?, before, "what repeating left")
}

pub(super) async fn failed_and_aborted_turns_do_not_run_again(t: Bench) -> Check {
    let key = t.session("s").await?;
    let lost = t.store.begin(turn(&key, "x").key(turn_key("lost"))).await?.begun()?;
    t.store.end(failure(lost.fence, "x")).await?;
    let found = ended(&t, turn(&key, "x").key(turn_key("lost"))).await?;
    same((found.turn, found.status), (lost.turn, EndStatus::Failed), "the failed turn")?;
    same(found.outcome.error.map(|error| error.status), Some("UNAVAILABLE".into()), "its error")?;
    let stopped = t.store.begin(turn(&key, "y").key(turn_key("stopped"))).await?.begun()?;
    t.store.abort(crate::store::TurnRef::Turn(stopped.turn)).await?;
    let found = ended(&t, turn(&key, "y").key(turn_key("stopped"))).await?;
    same((found.turn, found.status), (stopped.turn, EndStatus::Aborted), "the aborted turn")
}

pub(super) async fn a_dead_turn_is_taken_over_by_its_key(t: Bench) -> Check {
    let key = t.session("s").await?;
    let id = t.snapshot_id();
    let begin = || turn(&key, "x").key(turn_key("k")).snapshot(id);
    let dead = t.store.begin(begin()).await?.begun()?;
    t.store.step(super::bench::step(dead.fence, "half")).await?;
    t.outlive_leases();
    let taken = t.second().await?.begin(begin()).await?.begun()?;
    same_turn(&dead, &taken)?;
    same((taken.from, taken.snapshot_id), (dead.from, Some(id)), "its start and its reserved snapshot")?;
    refused(t.store.end(end(dead.fence, "x")).await, ErrorKind::Fenced, "the dead attempt's end")?;
    t.store.end(end(taken.fence, "x")).await?;
    same(t.texts(&key).await?, told(&["x"]), "what was said")?;
    same(ended(&t, begin()).await?.turn, dead.turn, "the turn a third request is told about")
}

pub(super) async fn another_payload_is_a_conflict(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (snapshot, receipt) = t.snap(&session, "base").await?;
    t.branch_off(&session, "side", receipt.point).await?;
    let begin = || turn(&session, "x").key(turn_key("k"));
    let running = t.store.begin(begin()).await?.begun()?;
    let others = |text: &str| {
        let mut data = turn(&session, text).key(turn_key("k"));
        data.input.data = Some(json("1"));
        let mut state = turn(&session, text).key(turn_key("k"));
        state.input = state.input.with_state(delta("k", "1"));
        [turn(&session, "another text").key(turn_key("k")), data, state, turn_at(snapshot, text).key(turn_key("k"))]
    };
    let side = begin().branch(BranchName::new("side")?);
    let before = t.footprint(&session).await?;
    for other in others("x").into_iter().chain([side.clone()]) {
        refused(t.store.begin(other).await, ErrorKind::Conflict, "a running turn's key with another payload")?;
    }
    same(t.footprint(&session).await?, before, "what the refusals left")?;
    t.store.end(end(running.fence, "x")).await?;
    let before = t.footprint(&session).await?;
    for other in others("x").into_iter().chain([side]) {
        refused(t.store.begin(other).await, ErrorKind::Conflict, "an ended turn's key with another payload")?;
    }
    same(t.footprint(&session).await?, before, "what the refusals left")?;
    same(ended(&t, begin()).await?.turn, running.turn, "the turn its own payload is told about")
}

pub(super) async fn how_a_turn_is_asked_for_is_no_payload(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.head(&key).await?;
    let begin = turn(&key, "x").key(turn_key("k")).expect(head);
    let first = t.store.begin(begin.clone()).await?.begun()?;
    t.store.end(end(first.fence, "x")).await?;
    same(ended(&t, begin).await?.turn, first.turn, "a retry whose head has moved because of itself")?;
    let mut other = turn(&key, "x").key(turn_key("k")).snapshot(t.snapshot_id());
    other.invocation = invocation("another connection");
    same(ended(&t, other).await?.turn, first.turn, "a retry by another invocation")
}

pub(super) async fn a_key_lives_as_long_as_its_session(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    for key in [&one, &two] {
        let begun = t.store.begin(turn(key, "x").key(turn_key("k"))).await?.begun()?;
        t.store.end(end(begun.fence, "x")).await?;
    }
    t.store.delete(&one).await?;
    t.session("one").await?;
    let begun = t.store.begin(turn(&one, "other").key(turn_key("k"))).await?.begun()?;
    same(begun.fence.attempt(), 1, "the attempt in the session created anew")?;
    let fork = crate::store::ForkSession::at(crate::store::At::head(two.clone()));
    let fork = t.store.fork(fork).await?.key();
    let begun = t.store.begin(turn(&fork, "x").key(turn_key("k"))).await?;
    holds(matches!(begun, Begin::Begun(_)), "a fork does not inherit keys")
}

pub(super) async fn a_retried_first_request_makes_one_session(t: Bench) -> Check {
    let session = key("unused");
    let begin = |user: &str, name: &str| {
        let create = CreateSession::new(session.app.clone(), key_of(user, "unused").user);
        let start = Start::OpenOrCreate(Box::new(create));
        BeginTurn::new(start, invocation("i"), Input::text("x")).key(turn_key(name)).busy(Busy::Refuse)
    };
    let first = t.store.begin(begin("ann", "k")).await?.begun()?;
    same(t.second().await?.begin(begin("ann", "k")).await?, Begin::Running(first.turn), "the retry while it runs")?;
    t.store.end(end(first.fence, "x")).await?;
    let again = ended(&t, begin("ann", "k")).await?;
    same((&again.session, again.turn), (&first.session, first.turn), "the retry after its end")?;
    let other = t.store.begin(begin("ann", "k2")).await?.begun()?;
    let bobs = t.store.begin(begin("bob", "k")).await?.begun()?;
    holds(other.session != first.session, "another key makes another session")?;
    holds(bobs.session.id != first.session.id, "another user's key makes another id")?;
    let listed = t.second().await?.list(crate::store::ListSessions::default()).await?;
    same(listed.items.len(), 3, "the sessions made")
}

pub(super) async fn racing_requests_with_one_key_run_once(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = [t.store.clone(), t.second().await?];
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let store = handles[i % 2].clone();
            let begin = turn(&key, "x").key(turn_key("k")).busy(Busy::Wait(Duration::from_secs(2)));
            tokio::spawn(async move { store.begin(begin).await })
        })
        .collect();
    let (mut begun, mut told) = (Vec::new(), 0);
    for task in tasks {
        match task.await {
            Ok(Ok(Begin::Begun(one))) => begun.push(one),
            Ok(Ok(Begin::Running(_))) => told += 1,
            other => return fail(format!("a racing request answered {other:?}")),
        }
    }
    same((begun.len(), told), (1, 15), "how many began, and how many were told that it runs")?;
    same(t.second().await?.running(Some(&key)).await?.len(), 1, "the number of running turns")
}

pub(super) async fn racing_first_requests_make_one_session(t: Bench) -> Check {
    let session = key("unused");
    let handles = [t.store.clone(), t.second().await?];
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let store = handles[i % 2].clone();
            let create = CreateSession::new(session.app.clone(), session.user.clone());
            let start = Start::OpenOrCreate(Box::new(create));
            let begin = BeginTurn::new(start, invocation("i"), Input::text("x")).key(turn_key("k"));
            tokio::spawn(async move { store.begin(begin).await })
        })
        .collect();
    let mut begun = 0;
    for task in tasks {
        match task.await {
            Ok(Ok(Begin::Begun(_))) => begun += 1,
            Ok(Ok(Begin::Running(_))) => {}
            other => return fail(format!("a racing first request answered {other:?}")),
        }
    }
    same(begun, 1, "how many began")?;
    let listed = t.second().await?.list(crate::store::ListSessions::default()).await?;
    same(listed.items.len(), 1, "the sessions made")
}

pub(super) async fn a_side_line_has_keys_as_well(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (old, _) = t.snap(&key, "base").await?;
    t.say(&key, "more").await?;
    let begin = || turn_at(old, "x").key(turn_key("k"));
    let begun = t.store.begin(begin()).await?.begun()?;
    same(t.second().await?.begin(begin()).await?, Begin::Running(begun.turn), "the retry while it runs")?;
    t.outlive_leases();
    let taken = t.store.begin(begin()).await?.begun()?;
    same_turn(&begun, &taken)?;
    t.store.end(end(taken.fence, "x")).await?;
    same(ended(&t, begin()).await?.turn, begun.turn, "the retry after its end")
}
