//! Who may write: fences, leases that run out, taking over, aborting.

use std::time::Duration;

use super::bench::{
    Bench, answer, delta, end, failure, invocation, iteration, json, key, said, same_turn, set, step, told, turn,
    turn_at,
};
use super::harness::LEASE;
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, BeginTurn, EndTurn, EventQuery, Start, StepTurn, TurnRef};
use crate::{
    Begun, Changes, Clock, ErrorKind, FinishReason, Input, RecordKind, SessionStatus, SnapshotStatus, ToolEntry,
    ToolPhase, TurnStatus,
};

pub(super) async fn an_ended_turn_writes_no_more(t: Bench) -> Check {
    let key = t.session("s").await?;
    let done = t.begin(&key, "done").await?;
    t.store.end(end(done.fence, "done")).await?;
    let lost = t.begin(&key, "lost").await?;
    t.store.end(failure(lost.fence, "lost")).await?;
    let before = t.footprint(&key).await?;
    for begun in [done, lost] {
        for store in [t.store.clone(), t.second().await?] {
            refused(store.end(end(begun.fence, "again")).await, ErrorKind::Fenced, "ending a turn twice")?;
            refused(store.step(step(begun.fence, "more")).await, ErrorKind::Fenced, "a step after the end")?;
            refused(store.renew(&begun.fence).await, ErrorKind::Fenced, "renewing an ended turn")?;
        }
    }
    same(t.footprint(&key).await?, before, "what the refusals left")
}

pub(super) async fn a_silent_writer_counts_as_dead(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.clock.advance(LEASE - Duration::from_secs(1));
    let store = t.second().await?;
    let running = store.running(Some(&key)).await?;
    same(running[0].status, TurnStatus::Running, "the status within the lease")?;
    t.outlive_leases();
    let running = store.running(Some(&key)).await?;
    same((running.len(), running[0].status), (1, TurnStatus::Dead), "the status after the lease ran out")?;
    same(there(store.turn(begun.turn).await?, "the turn")?.status, TurnStatus::Dead, "the turn's own status")?;
    same(t.record(&key).await?.status, SessionStatus::Idle, "the session's status: nobody works on it")
}

pub(super) async fn a_sign_of_life_keeps_the_lease(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    // Whoever gives the sign of life must stay, or it dies with its handle.
    let other = t.second().await?;
    for store in [&t.store, &other, &t.store, &other] {
        t.clock.advance(LEASE - Duration::from_secs(5));
        store.renew(&begun.fence).await?;
    }
    let running = t.second().await?.running(Some(&key)).await?;
    same(running[0].status, TurnStatus::Running, "the status of a turn that was renewed")?;
    same(running[0].heartbeat_at, t.clock.now(), "its last sign of life")?;
    t.clock.advance(LEASE - Duration::from_secs(5));
    t.store.step(step(begun.fence, "writing is a sign of life, too")).await?;
    t.clock.advance(LEASE - Duration::from_secs(5));
    refused(t.store.begin(turn(&key, "y")).await, ErrorKind::Busy, "a turn beside one that is alive")?;
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "it ends on the head")
}

pub(super) async fn a_late_writer_may_go_on_if_nobody_took_its_place(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.outlive_leases();
    t.store.renew(&begun.fence).await?;
    let running = t.second().await?.running(Some(&key)).await?;
    same(running[0].status, TurnStatus::Running, "the status after it was renewed")?;
    t.outlive_leases();
    t.store.step(step(begun.fence, "late")).await?;
    t.outlive_leases();
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "a late end is on the head")
}

pub(super) async fn the_wall_clock_kills_nobody(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let now = t.clock.now();
    for jump in [now.plus(Duration::from_secs(100_000)), crate::Timestamp::from_micros(0)] {
        t.clock.set_wall(jump);
        refused(t.store.begin(turn(&key, "y")).await, ErrorKind::Busy, "a turn beside one that is alive")?;
        refused(t.store.take_over(begun.turn).await, ErrorKind::Busy, "taking over a turn that is alive")?;
    }
    t.clock.set_wall(now);
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "it ends on the head")
}

pub(super) async fn the_dead_keep_nobody_waiting(t: Bench) -> Check {
    let key = t.session("s").await?;
    let good = t.say(&key, "good").await?;
    let dead = t.begin(&key, "dead").await?;
    t.store.step(step(dead.fence, "half")).await?;
    t.outlive_leases();
    let next = t.second().await?.begin(turn(&key, "next")).await?.begun()?;
    same((next.from, next.leased), (good.point, true), "where the next turn starts, and its lease")?;
    holds(next.turn != dead.turn, "it is another turn")?;
    t.store.end(end(next.fence, "next")).await?;
    same(t.texts(&key).await?, told(&["good", "next"]), "what was said")
}

pub(super) async fn who_lost_its_branch_is_fenced_off(t: Bench) -> Check {
    let key = t.session("s").await?;
    let dead = t.begin(&key, "dead").await?;
    t.outlive_leases();
    let next = t.begin(&key, "next").await?;
    let before = t.footprint(&key).await?;
    refused(t.store.step(step(dead.fence, "late")).await, ErrorKind::Fenced, "a step of who lost its branch")?;
    refused(t.store.end(end(dead.fence, "late")).await, ErrorKind::Fenced, "an end of who lost its branch")?;
    refused(t.store.renew(&dead.fence).await, ErrorKind::Fenced, "a sign of life of who lost its branch")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    t.store.end(end(next.fence, "next")).await?;
    refused(t.store.end(end(dead.fence, "late")).await, ErrorKind::Fenced, "an end long after")?;
    same(t.texts(&key).await?, told(&["next"]), "what was said")
}

pub(super) async fn a_turn_may_be_written_through_any_handle(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (one, two) = (t.store.clone(), t.second().await?);
    let begun = one.begin(turn(&key, "x")).await?.begun()?;
    one.step(StepTurn::new(begun.fence, set(delta("a", "1")))).await?;
    two.step(StepTurn::new(begun.fence, set(delta("b", "2")).custom(json("[]")))).await?;
    two.step(step(begun.fence, "kept")).await?;
    two.step(step(begun.fence, "dropped")).await?;
    // What this handle last saw of the turn has neither the messages to keep nor a state that has no keys.
    let splice = answer("end").splice(2, vec![]).custom(json(r#"{"c":3}"#));
    one.step(StepTurn::new(begun.fence, splice)).await?;
    two.end(EndTurn::completed(begun.fence, set(delta("d", "4")))).await?;
    same(t.texts(&key).await?, ["x", "kept", "end"].map(String::from).to_vec(), "what was said")?;
    same(t.custom(&key).await?, Some(json(r#"{"c":3,"d":4}"#)), "the custom state")
}

pub(super) async fn an_edit_passes_the_dead(t: Bench) -> Check {
    let key = t.session("s").await?;
    let dead = t.begin(&key, "dead").await?;
    t.outlive_leases();
    holds(t.store.commit(super::bench::edit(&key, "noted")).await?.on_head, "the edit is on the head")?;
    refused(t.store.end(end(dead.fence, "late")).await, ErrorKind::Fenced, "the dead turn's end")?;
    same(t.texts(&key).await?, vec!["noted".to_owned()], "what was said")
}

/// A turn that used a tool, made a snapshot, changed scopes, and died.
async fn died_at_work(t: &Bench, id: &str) -> Check<(Begun, crate::SnapshotId)> {
    let key = t.session(id).await?;
    let reserved = t.snapshot_id();
    let input = Input::text("work").with_state(delta("user:input", "1"));
    let begin = BeginTurn::new(Start::Session(key.clone()), invocation("i"), input).snapshot(reserved);
    let begun = t.store.begin(begin).await?.begun()?;
    let tool = ToolEntry::new("c1", "pay", ToolPhase::Started, Some(json("1")));
    t.store.step(StepTurn::new(begun.fence, set(delta("user:lost", "1").set("lost", json("1"))).tool(tool))).await?;
    let tool = ToolEntry::new("c1", "pay", ToolPhase::Finished, Some(json("2")));
    t.store.step(StepTurn::new(begun.fence, answer("half").tool(tool))).await?;
    t.outlive_leases();
    Ok((begun, reserved))
}

pub(super) async fn taking_over_starts_the_turn_again(t: Bench) -> Check {
    let (dead, reserved) = died_at_work(&t, "s").await?;
    let key = key("s");
    let store = t.second().await?;
    let taken = store.take_over(dead.turn).await?;
    same_turn(&dead, &taken)?;
    same((taken.from, taken.leased, taken.turn_index), (dead.from, true, 0), "start, lease and index")?;
    same((&taken.session, taken.snapshot_id), (&key, Some(reserved)), "session and reserved snapshot")?;
    let there_now = t.texts_at(At::Point(key.clone(), taken.point)).await?;
    same(there_now, vec!["work".to_owned()], "what stands at its begin: the input, nothing of the dead attempt")?;
    let running = t.second().await?.running(Some(&key)).await?;
    same((running.len(), running[0].attempt, running[0].status), (1, 2, TurnStatus::Running), "the running turn")?;
    store.end(end(taken.fence, "work")).await?;
    same(t.texts(&key).await?, told(&["work"]), "what was said")?;
    same(t.custom(&key).await?, None, "the custom state, which only the dead attempt had set")?;
    let scopes = t.second().await?.scopes(&key.app, Some(&key.user)).await?;
    same(scopes, [("user:input".to_owned(), json("1"))].into(), "the scopes: the input's, not the dead attempt's")
}

pub(super) async fn taking_over_keeps_the_ledger(t: Bench) -> Check {
    let (dead, _) = died_at_work(&t, "s").await?;
    let taken = t.store.take_over(dead.turn).await?;
    let found = there(t.second().await?.turn(dead.turn).await?, "the turn")?;
    let calls: Vec<_> = found.tools.iter().map(|(attempt, entry)| (*attempt, entry.phase)).collect();
    same(calls, vec![(1, ToolPhase::Started), (1, ToolPhase::Finished)], "the tool calls of the dead attempt")?;
    same(found.attempt, 2, "the attempt")?;
    let tool = ToolEntry::new("c2", "pay", ToolPhase::Started, None);
    t.store.step(StepTurn::new(taken.fence, Changes::new().tool(tool))).await?;
    t.store.end(end(taken.fence, "work")).await?;
    let found = there(t.second().await?.turn(dead.turn).await?, "the turn")?;
    same(found.tools.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), vec![1, 1, 2], "the attempts' calls")
}

pub(super) async fn the_old_fence_is_refused_after_taking_over(t: Bench) -> Check {
    let (dead, _) = died_at_work(&t, "s").await?;
    let key = key("s");
    let taken = t.second().await?.take_over(dead.turn).await?;
    let before = t.footprint(&key).await?;
    refused(t.store.step(step(dead.fence, "late")).await, ErrorKind::Fenced, "a step of the old attempt")?;
    refused(t.store.end(end(dead.fence, "late")).await, ErrorKind::Fenced, "an end of the old attempt")?;
    refused(t.store.end(failure(dead.fence, "late")).await, ErrorKind::Fenced, "a failure of the old attempt")?;
    refused(t.store.renew(&dead.fence).await, ErrorKind::Fenced, "a sign of life of the old attempt")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    holds(t.store.end(end(taken.fence, "work")).await?.on_head, "the new attempt ends on the head")
}

pub(super) async fn a_dead_attempt_is_void(t: Bench) -> Check {
    let (dead, _) = died_at_work(&t, "s").await?;
    let key = key("s");
    let taken = t.store.take_over(dead.turn).await?;
    t.store.end(end(taken.fence, "work")).await?;
    let records = t.records(&key).await?;
    let voided = records.iter().filter(|r| r.attempt == Some(1) && r.kind != RecordKind::Void).all(|r| r.voided);
    holds(voided, "the first attempt's records are void")?;
    let kept = records.iter().filter(|r| r.attempt == Some(2)).all(|r| !r.voided);
    holds(kept, "the second attempt's records are not")?;
    same(said(&t.events(&key).await?), told(&["work"]), "what the events say")?;
    let all = t.query(EventQuery::of(key).with_voided()).await?;
    holds(said(&all).contains(&"half".to_owned()), "the first attempt's events are shown on request")
}

pub(super) async fn a_dead_turn_can_be_taken_over_again_and_again(t: Bench) -> Check {
    let (dead, _) = died_at_work(&t, "s").await?;
    let mut last = dead;
    for _ in 0..3 {
        let taken = t.store.take_over(last.turn).await?;
        same_turn(&last, &taken)?;
        t.store.step(step(taken.fence, "half again")).await?;
        t.outlive_leases();
        last = taken;
    }
    t.store.end(end(last.fence, "work")).await?;
    same(t.texts(&key("s")).await?, ["work", "half again", "re: work"].map(String::from).to_vec(), "what was said")
}

pub(super) async fn the_living_and_the_ended_cannot_be_taken_over(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    refused(t.store.take_over(begun.turn).await, ErrorKind::Busy, "taking over a turn that is alive")?;
    t.store.end(end(begun.fence, "x")).await?;
    let before = t.footprint(&key).await?;
    refused(t.store.take_over(begun.turn).await, ErrorKind::Conflict, "taking over a turn that has ended")?;
    let unknown = format!("{}9", begun.turn).parse()?;
    refused(t.store.take_over(unknown).await, ErrorKind::NotFound, "taking over an unknown turn")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    holds(t.store.turn(unknown).await?.is_none(), "an unknown turn reads as nothing")
}

pub(super) async fn racing_heirs_have_one_winner(t: Bench) -> Check {
    let (dead, _) = died_at_work(&t, "s").await?;
    let handles = [t.second().await?, t.second().await?, t.second().await?, t.second().await?];
    let tasks = handles.clone().map(|store| tokio::spawn(async move { store.take_over(dead.turn).await }));
    let mut won = 0;
    for task in tasks {
        match task.await {
            Ok(Ok(taken)) => {
                same(taken.fence.attempt(), 2, "the winner's attempt")?;
                won += 1;
            }
            Ok(Err(error)) => same(error.kind(), ErrorKind::Busy, "what the others are told")?,
            Err(panic) => return super::verdict::fail(format!("taking over panicked: {panic}")),
        }
    }
    same(won, 1, "the winners")
}

pub(super) async fn a_turn_taken_over_after_its_branch_went_on_ends_beside_it(t: Bench) -> Check {
    let key = t.session("s").await?;
    let base = t.say(&key, "base").await?;
    let dead = t.begin(&key, "dead").await?;
    t.outlive_leases();
    let next = t.say(&key, "next").await?;
    let taken = t.store.take_over(dead.turn).await?;
    same(taken.turn, dead.turn, "the turn that was taken over")?;
    same((taken.from, taken.leased), (base.point, false), "where it starts, and its lease")?;
    let (id, ending) = (t.snapshot_id(), end(taken.fence, "dead"));
    let ended = t.store.end(ending.snapshot(crate::NewSnapshot::new(id))).await?;
    holds(!ended.on_head, "it ends off the head")?;
    same(t.head(&key).await?, next.point, "the head")?;
    same(t.texts_at(At::Snapshot(id)).await?, told(&["base", "dead"]), "what it said is kept")
}

pub(super) async fn points_of_a_dead_attempt_stay_resumable(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let id = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", id)).await?;
    t.outlive_leases();
    let taken = t.store.take_over(begun.turn).await?;
    t.store.end(end(taken.fence, "x")).await?;
    let half = ["x", "half"].map(String::from).to_vec();
    same(t.texts_at(At::Snapshot(id)).await?, half.clone(), "what stands at the dead attempt's point")?;
    t.run(turn_at(id, "on"), "on").await?;
    same(t.texts(&key).await?, [half, told(&["on"])].concat(), "what was said after resuming it")
}

pub(super) async fn an_abort_is_final(t: Bench) -> Check {
    let key = t.session("s").await?;
    let good = t.say(&key, "good").await?;
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(&key, "stop").snapshot(id)).await?.begun()?;
    t.store
        .step(StepTurn::new(begun.fence, answer("half").event(crate::Event::new("m").with_state(delta("user:k", "1")))))
        .await?;
    let aborted = t.second().await?.abort(TurnRef::Turn(begun.turn)).await?;
    same((aborted.turn, aborted.before), (begun.turn, TurnStatus::Running), "what was aborted, and what it was")?;
    let before = t.footprint(&key).await?;
    for store in [t.store.clone(), t.second().await?] {
        refused(store.step(step(begun.fence, "late")).await, ErrorKind::Aborted, "a step after the abort")?;
        refused(store.end(end(begun.fence, "late")).await, ErrorKind::Aborted, "an end after the abort")?;
        refused(store.renew(&begun.fence).await, ErrorKind::Aborted, "a sign of life after the abort")?;
    }
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    same(t.head(&key).await?, good.point, "the head")?;
    let found = there(t.second().await?.turn(begun.turn).await?, "the turn")?;
    same(found.status, TurnStatus::Aborted, "the turn's status")?;
    same(there(found.ended, "its end")?.outcome.finish_reason, Some(FinishReason::Aborted), "why it ended")?;
    same(t.second().await?.scopes(&key.app, Some(&key.user)).await?.len(), 0, "the scoped keys of an aborted turn")?;
    let snapshot = t.snapshot(id).await?;
    same(snapshot.status, SnapshotStatus::Aborted, "the status of the snapshot it had reserved")?;
    let half = [told(&["good"]), vec!["stop".into(), "half".into()]].concat();
    same(t.texts_at(At::Snapshot(id)).await?, half, "what was said until then")?;
    t.say(&key, "next").await?;
    same(t.texts(&key).await?, told(&["good", "next"]), "what was said")
}

pub(super) async fn a_turn_is_aborted_by_snapshot_or_invocation_too(t: Bench) -> Check {
    let key = t.session("s").await?;
    let id = t.snapshot_id();
    let one = t.store.begin(turn(&key, "one").snapshot(id)).await?.begun()?;
    same(t.store.abort(TurnRef::Snapshot(id)).await?.turn, one.turn, "the turn that had reserved the snapshot")?;
    let two = t.begin(&key, "two").await?;
    let by = TurnRef::Invocation(key.clone(), invocation("invocation of two"));
    same(t.store.abort(by).await?.turn, two.turn, "the turn of the invocation")?;
    same(t.second().await?.running(Some(&key)).await?.len(), 0, "the number of running turns")
}

pub(super) async fn aborting_what_has_ended_changes_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let done = t.begin(&key, "done").await?;
    t.store.end(end(done.fence, "done")).await?;
    let lost = t.begin(&key, "lost").await?;
    t.store.end(failure(lost.fence, "lost")).await?;
    let stopped = t.begin(&key, "stopped").await?;
    t.store.abort(TurnRef::Turn(stopped.turn)).await?;
    let before = t.footprint(&key).await?;
    let turns = [(done, TurnStatus::Completed), (lost, TurnStatus::Failed), (stopped, TurnStatus::Aborted)];
    for (begun, status) in turns {
        same(t.store.abort(TurnRef::Turn(begun.turn)).await?.before, status, "what the turn was")?;
        same(there(t.second().await?.turn(begun.turn).await?, "the turn")?.status, status, "what it is")?;
    }
    same(t.footprint(&key).await?, before, "what aborting left")?;
    let unknown = TurnRef::Snapshot(t.snapshot_id());
    refused(t.store.abort(unknown).await, ErrorKind::NotFound, "aborting an unknown turn")
}

pub(super) async fn the_dead_can_be_aborted(t: Bench) -> Check {
    let (dead, reserved) = died_at_work(&t, "s").await?;
    same(t.store.abort(TurnRef::Turn(dead.turn)).await?.before, TurnStatus::Dead, "what the turn was")?;
    refused(t.store.take_over(dead.turn).await, ErrorKind::Conflict, "taking over an aborted turn")?;
    refused(t.store.end(end(dead.fence, "late")).await, ErrorKind::Aborted, "its late end")?;
    same(t.snapshot(reserved).await?.status, SnapshotStatus::Aborted, "the snapshot it had reserved")?;
    let lost = t.begin(&key("s"), "lost").await?;
    t.outlive_leases();
    t.say(&key("s"), "next").await?;
    t.store.abort(TurnRef::Turn(lost.turn)).await?;
    same(t.texts(&key("s")).await?, told(&["next"]), "what was said after aborting who had lost its branch")
}

pub(super) async fn running_turns_are_listed_by_session(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let first = t.begin(&one, "x").await?;
    let second = t.store.begin(turn(&one, "y").busy(crate::store::Busy::Branch)).await?.begun()?;
    let third = t.begin(&two, "z").await?;
    let store = t.second().await?;
    let of = |running: Vec<crate::RunningTurn>| {
        let mut turns: Vec<_> = running.into_iter().map(|turn| (turn.turn, turn.leased)).collect();
        turns.sort();
        turns
    };
    same(of(store.running(Some(&one)).await?), vec![(first.turn, true), (second.turn, false)], "those of one session")?;
    same(store.running(None).await?.len(), 3, "those of all")?;
    for (begun, text) in [(first, "x"), (second, "y"), (third, "z")] {
        t.store.end(EndTurn::completed(begun.fence, answer(text))).await?;
    }
    same(store.running(None).await?.len(), 0, "those left after the ends")
}
