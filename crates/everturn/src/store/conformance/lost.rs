//! Turns that are lost: given up because their process is gone, or could not write their end. They have failed for
//! everybody, and may be run again.

use super::bench::{Bench, answer, end, failure, json, key, told, turn, turn_key};
use super::harness::GRACE;
use super::streams::{pack, page, places};
use super::transfer::exported;
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{
    At, BeginTurn, ChunkQuery, EndTurn, ImportSession, SnapshotIds, StepTurn, TreeQuery, TurnRef, VerifyScope,
};
use crate::{
    Begin, Begun, Changes, EndStatus, ErrorKind, Fence, NewSnapshot, Outcome, SessionKey, SnapshotStatus, ToolEntry,
    ToolPhase, TurnError, TurnStatus,
};

/// The end of a turn that is given up.
fn lost(fence: Fence) -> EndTurn {
    let outcome = Outcome::lost(TurnError::new("UNAVAILABLE", "its process is gone"));
    EndTurn::voided(fence, EndStatus::Failed, outcome)
}

fn keyed(key: &SessionKey) -> BeginTurn {
    turn(key, "x").key(turn_key("k"))
}

/// A turn with a key and a tool call, which said `half`.
async fn at_work(t: &Bench, session: &SessionKey, id: crate::SnapshotId) -> Check<Begun> {
    let begun = t.store.begin(keyed(session).snapshot(id)).await?.begun()?;
    let tool = ToolEntry::new("c1", "pay", ToolPhase::Started, Some(json("1")));
    t.store.step(StepTurn::new(begun.fence, answer("half").tool(tool))).await?;
    t.store.keep_chunks(pack(begun.fence, 0, 2)).await?;
    Ok(begun)
}

pub(super) async fn a_lost_turn_has_failed_and_holds_nothing(t: Bench) -> Check {
    let (session, id) = (t.session("s").await?, t.snapshot_id());
    let begun = at_work(&t, &session, id).await?;
    t.store.end(lost(begun.fence).snapshot(NewSnapshot::new(id))).await?;
    holds(t.second().await?.running(Some(&session)).await?.is_empty(), "it does not run")?;
    same(there(t.second().await?.turn(begun.turn).await?, "the turn")?.status, TurnStatus::Failed, "its status")?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Failed, "its snapshot's status")?;
    let found = page(&t, ChunkQuery::of(begun.turn)).await?;
    same((found.status, found.chunks), (TurnStatus::Failed, places(1, 0, 2)), "its stream")?;
    let tree = t.second().await?.tree(TreeQuery::of(session.clone())).await?;
    same(tree.nodes.last().map(|node| node.status), Some(TurnStatus::Failed), "its status in the tree")?;
    holds(t.say(&session, "next").await?.on_head, "its branch is free")?;
    t.clock.advance(GRACE);
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, Vec::new(), "its stream when the grace is over")
}

pub(super) async fn it_runs_again_under_its_key(t: Bench) -> Check {
    let (session, id, fresh) = (t.session("s").await?, t.snapshot_id(), t.snapshot_id());
    let first = at_work(&t, &session, id).await?;
    t.store.end(lost(first.fence).snapshot(NewSnapshot::new(id))).await?;
    let heir = t.second().await?;
    let again = heir.begin(keyed(&session).snapshot(fresh)).await?.begun()?;
    same((again.turn, again.fence.attempt()), (first.turn, 2), "the turn and its attempt")?;
    same((again.from, again.leased, again.snapshot_id), (first.from, true, Some(fresh)), "where it starts")?;
    same(t.store.begin(keyed(&session)).await?, Begin::Running(first.turn), "its key while it runs")?;
    refused(t.store.end(end(first.fence, "x")).await, ErrorKind::Fenced, "an end of the lost attempt")?;
    let found = there(t.second().await?.turn(first.turn).await?, "the turn")?;
    same(found.tools.len(), 1, "the calls of the lost attempt")?;
    let tree = t.second().await?.tree(TreeQuery::of(session.clone())).await?;
    same(tree.nodes.last().map(|node| node.status), Some(TurnStatus::Running), "its status in the tree")?;
    let stream = page(&t, ChunkQuery::of(first.turn)).await?;
    same((stream.attempt, stream.chunks), (2, Vec::new()), "its stream")?;
    t.store.keep_chunks(pack(again.fence, 0, 3)).await?;
    holds(t.store.end(end(again.fence, "x").snapshot(NewSnapshot::new(fresh))).await?.on_head, "it ends on the head")?;
    same(t.texts(&session).await?, told(&["x"]), "what was said")?;
    same(page(&t, ChunkQuery::of(first.turn)).await?.chunks, places(2, 0, 3), "what it said on its way")?;
    let statuses = (t.snapshot(id).await?.status, t.snapshot(fresh).await?.status);
    same(statuses, (SnapshotStatus::Failed, SnapshotStatus::Completed), "its snapshots")?;
    match t.second().await?.begin(keyed(&session)).await? {
        Begin::Ended(ended) => same((ended.turn, ended.status), (first.turn, EndStatus::Completed), "its key after it"),
        other => super::verdict::fail(format!("its key answered {other:?} after it")),
    }
}

pub(super) async fn what_did_nothing_begins_where_the_branch_stands_now(t: Bench) -> Check {
    let session = t.session("s").await?;
    let first = t.store.begin(keyed(&session)).await?.begun()?;
    t.store.end(lost(first.fence)).await?;
    t.say(&session, "later").await?;
    let mut other = turn(&session, "another text").key(turn_key("k"));
    refused(t.store.begin(other.clone()).await, ErrorKind::Conflict, "its key with another payload")?;
    other = keyed(&session);
    let heir = t.second().await?;
    let again = heir.begin(other).await?.begun()?;
    holds(again.turn != first.turn && again.leased, "it is a turn of its own, at the head")?;
    same(t.store.begin(keyed(&session)).await?, Begin::Running(again.turn), "the turn its key stands for")?;
    holds(t.store.end(end(again.fence, "x")).await?.on_head, "it ends on the head")?;
    same(t.texts(&session).await?, told(&["later", "x"]), "what was said")
}

pub(super) async fn it_runs_again_when_it_is_taken_over(t: Bench) -> Check {
    let (session, id) = (t.session("s").await?, t.snapshot_id());
    let first = at_work(&t, &session, id).await?;
    t.store.end(lost(first.fence).snapshot(NewSnapshot::new(id))).await?;
    let later = t.say(&session, "later").await?;
    let heir = t.second().await?;
    let again = heir.take_over(first.turn).await?;
    same((again.turn, again.fence.attempt(), again.leased), (first.turn, 2, false), "the turn")?;
    let fresh = again.snapshot_id.filter(|fresh| *fresh != id);
    let fresh = there(fresh, "a snapshot id of its own")?;
    let receipt = t.store.end(end(again.fence, "x").snapshot(NewSnapshot::new(fresh))).await?;
    holds(!receipt.on_head, "it ends beside what came meanwhile")?;
    same(t.head(&session).await?, later.point, "the head")?;
    same(t.texts_at(At::Snapshot(fresh)).await?, told(&["x"]), "what was said")?;
    refused(t.store.take_over(first.turn).await, ErrorKind::Conflict, "taking over what has ended")?;
    // One that failed by itself has failed for good.
    let failed = t.begin(&session, "y").await?;
    t.store.end(failure(failed.fence, "y")).await?;
    refused(t.store.take_over(failed.turn).await, ErrorKind::Conflict, "taking over what failed by itself")
}

pub(super) async fn the_dead_can_be_given_up(t: Bench) -> Check {
    let (session, id) = (t.session("s").await?, t.snapshot_id());
    let dead = at_work(&t, &session, id).await?;
    t.outlive_leases();
    // Somebody takes its branch first, and its attempt is void.
    t.say(&session, "next").await?;
    let other = t.second().await?;
    refused(other.end(lost(dead.fence)).await, ErrorKind::Fenced, "giving up an attempt that is void")?;
    let found = there(other.running(Some(&session)).await?.pop(), "the dead turn")?;
    let fence = Fence::new(found.turn, found.attempt);
    other.end(lost(fence).snapshot(NewSnapshot::new(id))).await?;
    holds(other.running(Some(&session)).await?.is_empty(), "nothing is left of it")?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Failed, "its snapshot's status")?;
    same(t.texts(&session).await?, told(&["next"]), "what was said meanwhile")?;
    let again = t.store.begin(keyed(&session)).await?.begun()?;
    same((again.turn, again.leased), (dead.turn, false), "its key")?;
    t.store.abort(TurnRef::Turn(again.turn)).await?;
    holds(matches!(t.store.begin(keyed(&session)).await?, Begin::Ended(_)), "an abort is final")
}

pub(super) async fn only_what_failed_is_lost(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "x").await?;
    for status in [EndStatus::Completed, EndStatus::Aborted] {
        let ending = EndTurn { status, ..lost(begun.fence) };
        refused(t.store.end(ending).await, ErrorKind::Invalid, "losing a turn that did not fail")?;
    }
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "it goes on")
}

pub(super) async fn a_session_with_lost_turns_can_be_carried(t: Bench) -> Check {
    let (session, id) = (t.session("s").await?, t.snapshot_id());
    let first = at_work(&t, &session, id).await?;
    t.store.end(lost(first.fence).snapshot(NewSnapshot::new(id))).await?;
    let again = t.store.begin(keyed(&session)).await?.begun()?;
    same(again.turn, first.turn, "the turn that runs again")?;
    t.store.step(StepTurn::new(again.fence, Changes::new())).await?;
    t.store.end(end(again.fence, "x")).await?;
    let other = t.begin(&session, "given up").await?;
    t.store.end(lost(other.fence)).await?;
    let carried = key("carried");
    let mut import = ImportSession::new(carried.clone(), exported(&*t.store, &session).await?);
    import.snapshots = SnapshotIds::Fresh;
    t.store.import(import).await?;
    same(t.texts(&carried).await?, told(&["x"]), "what was said")?;
    let verified = t.second().await?.verify(VerifyScope::All).await?;
    holds(verified.damage.is_none(), "both are sound")
}
