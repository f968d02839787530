//! Turns that do not complete.

use super::bench::{Bench, answer, delta, end, failure, iteration, said, set, step, told, turn, turn_at, turn_from};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, EndTurn, EventQuery, StepTurn, StoreExt};
use crate::{
    Artifact, EndStatus, ErrorKind, FinishReason, NewSnapshot, Outcome, Part, SessionStatus, SnapshotStatus, TurnStatus,
};

pub(super) async fn a_failed_turn_leaves_the_head_where_it_was(t: Bench) -> Check {
    let key = t.session("s").await?;
    let good = t.say(&key, "good").await?;
    let begun = t.begin(&key, "bad").await?;
    t.store.step(step(begun.fence, "half")).await?;
    let receipt = t.store.end(failure(begun.fence, "bad")).await?;
    holds(!receipt.on_head, "a failed turn is not on the head")?;
    let session = t.record(&key).await?;
    same((session.head, session.turns, session.status), (good.point, 1, SessionStatus::Idle), "head, turns, status")?;
    same(t.texts(&key).await?, told(&["good"]), "what is at the head")?;
    same(t.state(&key).await?.digest(), good.digest, "the digest at the head")?;
    let found = there(t.second().await?.turn(begun.turn).await?, "the turn")?;
    same(found.status, TurnStatus::Failed, "the turn's status")?;
    same(there(found.ended, "how it ended")?.outcome.finish_reason, Some(FinishReason::Failed), "why it ended")?;
    same(t.second().await?.running(Some(&key)).await?.len(), 0, "the number of running turns")
}

pub(super) async fn a_void_hides_a_turn_from_later_points_only(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let begun = t.begin(&key, "lost").await?;
    let stepped = t.store.step(step(begun.fence, "half")).await?;
    let id = t.snapshot_id();
    let failed = t.store.end(failure(begun.fence, "lost").snapshot(NewSnapshot::new(id))).await?;
    t.say(&key, "two").await?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what later points see")?;
    let half = [told(&["one"]), vec!["lost".into(), "half".into()]].concat();
    same(t.texts_at(At::Point(key.clone(), stepped.point)).await?, half.clone(), "the void turn's step")?;
    let whole = [half, vec!["re: lost".into()]].concat();
    same(t.texts_at(At::Point(key.clone(), failed.point)).await?, whole.clone(), "the void turn's end")?;
    same(t.texts_at(At::Snapshot(id)).await?, whole, "the void turn's snapshot")?;
    same(t.state_at(At::Snapshot(id)).await?.digest(), failed.digest, "the digest of what was said until then")
}

pub(super) async fn events_of_void_turns_are_shown_on_request(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let begun = t.begin(&key, "lost").await?;
    t.store.step(step(begun.fence, "half")).await?;
    t.store.end(failure(begun.fence, "lost")).await?;
    same(said(&t.events(&key).await?), told(&["one"]), "the events, with the void turn at the very end")?;
    t.say(&key, "two").await?;
    same(said(&t.events(&key).await?), told(&["one", "two"]), "the events")?;
    let all = t.query(EventQuery::of(key.clone()).with_voided()).await?;
    let wanted = ["one", "re: one", "lost", "half", "re: lost", "two", "re: two"].map(String::from).to_vec();
    same(said(&all), wanted, "the events, void ones too")
}

pub(super) async fn a_failed_snapshot_tells_why_and_cannot_be_resumed(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let (id, receipt) = t.fail_snap(&key, "bad").await?;
    same(receipt.snapshot_id, Some(id), "the snapshot on the receipt")?;
    let snapshot = t.snapshot(id).await?;
    same(snapshot.status, SnapshotStatus::Failed, "its status")?;
    same(snapshot.finish_reason, Some(FinishReason::Failed), "its reason")?;
    same(snapshot.error.map(|error| error.message), Some("the model is down".into()), "its error")?;
    same(snapshot.digest, receipt.digest, "its digest")?;
    let before = t.footprint(&key).await?;
    refused(t.store.begin(turn_at(id, "again")).await, ErrorKind::NotResumable, "a turn at a failed snapshot")?;
    same(t.footprint(&key).await?, before, "what the refusal left")
}

pub(super) async fn a_turn_cannot_start_inside_what_is_void(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let failed = t.fail(&key, "bad").await?;
    let begin = t.store.begin(turn_from(&key, failed.point, "again")).await;
    refused(begin, ErrorKind::NotResumable, "a turn at the point of a void")
}

pub(super) async fn an_aborted_end_is_void_as_well(t: Bench) -> Check {
    let key = t.session("s").await?;
    let good = t.say(&key, "one").await?;
    let begun = t.begin(&key, "stop").await?;
    let (id, outcome) = (t.snapshot_id(), Outcome::finished(FinishReason::Aborted));
    let end = EndTurn::voided(begun.fence, EndStatus::Aborted, outcome).snapshot(NewSnapshot::new(id));
    t.store.end(end).await?;
    same(t.head(&key).await?, good.point, "the head")?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Aborted, "the snapshot's status")?;
    let found = there(t.second().await?.turn(begun.turn).await?, "the turn")?;
    same(found.status, TurnStatus::Aborted, "the turn's status")?;
    refused(t.store.begin(turn_at(id, "again")).await, ErrorKind::NotResumable, "a turn at an aborted snapshot")
}

pub(super) async fn a_first_turn_that_fails_leaves_the_seed(t: Bench) -> Check {
    let (key, seed) = (super::bench::key("s"), t.snapshot_id());
    t.store.create(crate::store::CreateSession::at(key.clone()).seed(seed)).await?;
    t.fail_snap(&key, "bad").await?;
    let store = t.second().await?;
    same(store.latest_resumable(&key).await?.map(|s| s.snapshot_id), Some(seed), "what can be resumed")?;
    t.run(turn_at(seed, "good"), "good").await?;
    same(t.texts(&key).await?, told(&["good"]), "what was said after resuming the seed")
}

pub(super) async fn a_point_inside_a_turn_outlives_its_failure(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    let id = t.snapshot_id();
    let stepped = t.store.step(iteration(begun.fence, "tools answered", id)).await?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Completed, "its status while the turn runs")?;
    t.store.step(step(begun.fence, "then it broke")).await?;
    t.store.end(failure(begun.fence, "two")).await?;
    let snapshot = t.snapshot(id).await?;
    holds(snapshot.is_resumable() && snapshot.orphaned, "it is resumable and on no branch's line")?;
    let half = [told(&["one"]), vec!["two".into(), "tools answered".into()]].concat();
    same(t.texts_at(At::Snapshot(id)).await?, half.clone(), "what was said there")?;
    same(t.state_at(At::Snapshot(id)).await?.digest(), stepped.digest, "its digest")?;
    let (resumed, receipt) = t.run_snap(turn_at(id, "go on"), "go on").await?;
    holds(receipt.on_head, "the turn from there moved the head")?;
    same(t.texts(&key).await?, [half, told(&["go on"])].concat(), "what was said after resuming it")?;
    same(t.snapshot(resumed).await?.parent_id, Some(id), "the parent of the next snapshot")?;
    holds(!t.snapshot(id).await?.orphaned, "it is on main's line again")
}

pub(super) async fn voids_leave_no_trace_in_what_follows(t: Bench) -> Check {
    let (tried, clean) = (t.session("tried").await?, t.session("clean").await?);
    for (i, word) in ["one", "two", "three"].into_iter().enumerate() {
        for _ in 0..i {
            let begun = t.begin(&tried, "lost").await?;
            let changes = set(delta("k", "0")).custom(super::bench::json(r#"{"lost":true}"#)).splice(0, vec![]);
            t.store.step(StepTurn::new(begun.fence, changes)).await?;
            t.store.end(failure(begun.fence, "lost")).await?;
        }
        let one = t.say(&tried, word).await?;
        let other = t.say(&clean, word).await?;
        same(one.digest, other.digest, "the digests with and without failures before")?;
    }
    let (tried, clean) = (t.state(&tried).await?, t.state(&clean).await?);
    same(tried.messages(), clean.messages(), "the messages")?;
    same((tried.turns(), tried.index()), (clean.turns(), clean.index()), "turns and opportunities")?;
    same(tried.custom(), None, "the custom state")
}

pub(super) async fn a_failed_turn_does_not_put_artifacts(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let changes = answer("made it").artifact(Artifact::new("report", vec![Part::text("draft")]));
    t.store.step(StepTurn::new(begun.fence, changes)).await?;
    t.store.end(failure(begun.fence, "x")).await?;
    same(t.state(&key).await?.artifacts().len(), 0, "the artifacts at the head")?;
    let again = t.begin(&key, "y").await?;
    t.store.end(end(again.fence, "y")).await?;
    same(t.texts(&key).await?, told(&["y"]), "what was said")
}

pub(super) async fn a_void_turn_is_shown_wherever_it_began(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    t.say(&key, "two").await?;
    let all = async || -> Check<Vec<String>> { Ok(said(&t.query(EventQuery::of(key.clone()).with_voided()).await?)) };
    let lost = |from: &[&str]| [told(from), told(&["lost"])].concat();
    t.rewind(&key, one.point).await?;
    t.fail(&key, "lost").await?;
    t.say(&key, "three").await?;
    let wanted = [lost(&["one"]), told(&["three"])].concat();
    same(all().await?, wanted, "the events with a turn that failed right after a rewind")?;
    let side = t.branch_off(&key, "side", one.point).await?;
    let begun = t.store.begin(turn(&key, "lost").branch(side.clone())).await?.begun()?;
    t.store.end(failure(begun.fence, "lost")).await?;
    t.run(turn(&key, "four").branch(side.clone()), "four").await?;
    let query = EventQuery::at(At::Head(key.clone(), side)).with_voided();
    let wanted = [lost(&["one"]), told(&["four"])].concat();
    same(said(&t.query(query).await?), wanted, "the events with a turn that failed first on a new branch")
}
