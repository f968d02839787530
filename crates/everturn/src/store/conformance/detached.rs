//! Turns in the background, and the pending snapshots that stand for them.

use std::time::Duration;

use super::bench::{Bench, edit, end, failure, iteration, key, same_turn, step, told, turn, turn_at, turn_key};
use super::harness::LEASE;
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, Busy, CreateSession, ForkSession, ListSnapshots, StepTurn, StoreExt, TurnRef};
use crate::{Begun, Changes, Clock, ErrorKind, NewSnapshot, SessionKey, SnapshotEvent, SnapshotId, SnapshotStatus};

/// A turn that went to the background.
async fn detached(t: &Bench, key: &SessionKey, text: &str) -> Check<(Begun, SnapshotId)> {
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(key, text).snapshot(id)).await?.begun()?;
    t.store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
    Ok((begun, id))
}

pub(super) async fn a_detached_turn_has_a_pending_snapshot(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.snap(&key, "one").await?;
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(&key, "two").snapshot(id)).await?.begun()?;
    holds(t.second().await?.snapshot(crate::store::SnapshotRef::Id(id)).await?.is_none(), "before, there is no row")?;
    let receipt = t.store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
    same(receipt.snapshot_id, Some(id), "the snapshot on the receipt")?;
    let snapshot = t.snapshot(id).await?;
    same(snapshot.status, SnapshotStatus::Pending, "its status")?;
    same((snapshot.session, snapshot.heartbeat_at), (Some(key.clone()), Some(t.clock.now())), "session, heartbeat")?;
    holds(!snapshot.orphaned, "a running turn is not orphaned")?;
    let latest = there(t.second().await?.latest(&key).await?, "the latest snapshot")?;
    same(latest.snapshot_id, id, "the latest snapshot: the pending one")?;
    refused(t.store.begin(turn_at(id, "x")).await, ErrorKind::NotResumable, "a turn at a pending snapshot")
}

pub(super) async fn a_pending_snapshot_completes_with_its_turn(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (begun, id) = detached(&t, &key, "x").await?;
    let made = t.snapshot(id).await?.created_at;
    t.store.label(id, Some("in the background".into())).await?;
    t.clock.advance(Duration::from_secs(1));
    t.store.step(step(begun.fence, "half")).await?;
    let receipt = t.store.end(end(begun.fence, "x").snapshot(NewSnapshot::new(id))).await?;
    let snapshot = t.snapshot(id).await?;
    same((snapshot.status, snapshot.point), (SnapshotStatus::Completed, receipt.point), "its status and point")?;
    same((snapshot.created_at, snapshot.updated_at), (made, t.clock.now()), "when it was made and settled")?;
    same((snapshot.event, snapshot.index), (Some(SnapshotEvent::TurnEnd), 0), "its occasion and index")?;
    same((snapshot.heartbeat_at, snapshot.digest), (None, receipt.digest), "its heartbeat and digest")?;
    same(snapshot.label.as_deref(), Some("in the background"), "the label it was given while it was pending")?;
    same(t.texts_at(At::Snapshot(id)).await?.len(), 3, "the messages there")
}

pub(super) async fn a_detached_turn_has_its_row_even_if_nobody_asks(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (begun, id) = detached(&t, &key, "x").await?;
    let receipt = t.store.end(end(begun.fence, "x")).await?;
    same(receipt.snapshot_id, Some(id), "the snapshot on the receipt")?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Completed, "its status")
}

pub(super) async fn a_pending_snapshot_shows_how_its_turn_ended(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (lost, lost_id) = detached(&t, &key, "lost").await?;
    t.store.end(failure(lost.fence, "lost").snapshot(NewSnapshot::new(lost_id))).await?;
    let snapshot = t.snapshot(lost_id).await?;
    same(snapshot.status, SnapshotStatus::Failed, "the status after a failure")?;
    holds(snapshot.error.is_some(), "the error is there")?;
    let (_, stopped) = detached(&t, &key, "stopped").await?;
    t.second().await?.abort(TurnRef::Snapshot(stopped)).await?;
    same(t.snapshot(stopped).await?.status, SnapshotStatus::Aborted, "the status after an abort")?;
    same(t.texts_at(At::Snapshot(stopped)).await?, vec!["stopped".to_owned()], "what was said until then")
}

pub(super) async fn a_pending_snapshot_expires_with_its_writer(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (begun, id) = detached(&t, &key, "x").await?;
    t.clock.advance(LEASE - Duration::from_secs(1));
    same(t.snapshot(id).await?.status, SnapshotStatus::Pending, "the status within the lease")?;
    t.outlive_leases();
    same(t.snapshot(id).await?.status, SnapshotStatus::Expired, "the status after the lease ran out")?;
    let listed = t.second().await?.snapshots(ListSnapshots::of(key.clone())).await?.items;
    same(listed[0].status, SnapshotStatus::Expired, "the status in a listing")?;
    refused(t.store.begin(turn_at(id, "y")).await, ErrorKind::NotResumable, "a turn at an expired snapshot")?;
    t.store.renew(&begun.fence).await?;
    let snapshot = t.snapshot(id).await?;
    same(snapshot.status, SnapshotStatus::Pending, "the status after a sign of life")?;
    same(snapshot.heartbeat_at, Some(t.clock.now()), "the heartbeat after it")
}

pub(super) async fn an_expired_turn_is_taken_over_under_its_snapshot(t: Bench) -> Check {
    let key = t.session("s").await?;
    let id = t.snapshot_id();
    let begin = || turn(&key, "x").snapshot(id).key(turn_key("k"));
    let begun = t.store.begin(begin()).await?.begun()?;
    t.store.step(step(begun.fence, "half").detach()).await?;
    t.outlive_leases();
    let heir = t.second().await?;
    let taken = heir.take_over(begun.turn).await?;
    same_turn(&begun, &taken)?;
    same(taken.snapshot_id, Some(id), "the snapshot it keeps")?;
    same(t.snapshot(id).await?.status, SnapshotStatus::Pending, "its status while the heir works")?;
    let receipt = t.store.end(end(taken.fence, "x").snapshot(NewSnapshot::new(id))).await?;
    let snapshot = t.snapshot(id).await?;
    same((snapshot.status, snapshot.point), (SnapshotStatus::Completed, receipt.point), "its status and point")?;
    same(t.texts_at(At::Snapshot(id)).await?, told(&["x"]), "what was said there")?;
    holds(!snapshot.orphaned, "it is on main's line")
}

pub(super) async fn the_newest_pending_snapshot_is_the_latest(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (settled, _) = t.snap(&key, "settled").await?;
    let (first, first_id) = detached(&t, &key, "first").await?;
    let second_id = t.snapshot_id();
    let beside = turn(&key, "second").snapshot(second_id).busy(Busy::Branch);
    let second = t.store.begin(beside).await?.begun()?;
    t.store.step(StepTurn::new(second.fence, Changes::new()).detach()).await?;
    let latest = async || -> Check<Option<SnapshotId>> {
        Ok(t.second().await?.latest(&key).await?.map(|snapshot| snapshot.snapshot_id))
    };
    same(latest().await?, Some(second_id), "the latest of two pending ones")?;
    let resumable = t.second().await?.latest_resumable(&key).await?;
    same(resumable.map(|snapshot| snapshot.snapshot_id), Some(settled), "the latest that can be resumed")?;
    t.store.end(failure(second.fence, "second")).await?;
    same(latest().await?, Some(first_id), "the latest after one of them failed")?;
    t.store.end(failure(first.fence, "first")).await?;
    same(latest().await?, Some(settled), "the latest after both failed")
}

pub(super) async fn detaching_needs_a_reserved_snapshot(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let step = StepTurn::new(begun.fence, Changes::new()).detach();
    refused(t.store.step(step).await, ErrorKind::Invalid, "detaching without a reserved snapshot")?;
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "the turn still ends")
}

pub(super) async fn a_reserved_snapshot_id_is_taken(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let (id, _) = t.snap(&one, "x").await?;
    let begin = turn(&two, "y").snapshot(id);
    refused(t.store.begin(begin).await, ErrorKind::AlreadyExists, "reserving the id of a snapshot")?;
    let begun = t.begin(&two, "y").await?;
    let before = t.footprint(&two).await?;
    let ending = end(begun.fence, "y").snapshot(NewSnapshot::new(id));
    refused(t.store.end(ending).await, ErrorKind::AlreadyExists, "ending under the id of a snapshot")?;
    same(t.footprint(&two).await?, before, "what the refusals left")?;
    holds(t.store.end(end(begun.fence, "y")).await?.on_head, "the turn still ends")?;
    same(t.snapshot(id).await?.session, Some(one), "whose snapshot it is")
}

pub(super) async fn a_reserved_id_is_nobody_elses(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let id = t.snapshot_id();
    let owner = t.store.begin(turn(&one, "x").snapshot(id)).await?.begun()?;
    let taken = |result: crate::Result<()>, what: &str| refused(result, ErrorKind::AlreadyExists, what);
    taken(t.store.begin(turn(&two, "y").snapshot(id)).await.map(drop), "reserving it again")?;
    let other = t.begin(&two, "y").await?;
    taken(t.store.step(iteration(other.fence, "half", id)).await.map(drop), "a step under it")?;
    taken(t.store.end(end(other.fence, "y").snapshot(NewSnapshot::new(id))).await.map(drop), "an end under it")?;
    t.store.end(end(other.fence, "y")).await?;
    taken(t.store.commit(edit(&two, "z").snapshot(NewSnapshot::new(id))).await.map(drop), "an edit under it")?;
    taken(t.store.create(CreateSession::at(key("three")).seed(id)).await.map(drop), "a seed under it")?;
    let mut fork = ForkSession::at(At::head(two.clone()));
    fork.snapshot = Some(id);
    taken(t.store.fork(fork).await.map(drop), "a fork under it")?;
    t.store.abort(TurnRef::Turn(owner.turn)).await?;
    let snapshot = t.snapshot(id).await?;
    same((snapshot.session, snapshot.status), (Some(one), SnapshotStatus::Aborted), "whose it is, and its status")
}

pub(super) async fn a_step_may_detach_and_be_a_point_at_once(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (pending, point) = (t.snapshot_id(), t.snapshot_id());
    let begun = t.store.begin(turn(&key, "x").snapshot(pending)).await?.begun()?;
    t.store.step(iteration(begun.fence, "half", point).detach()).await?;
    same(t.snapshot(pending).await?.status, SnapshotStatus::Pending, "the status of the turn's snapshot")?;
    same(t.snapshot(point).await?.status, SnapshotStatus::Completed, "the status of the step's snapshot")?;
    let listed = t.second().await?.snapshots(ListSnapshots::of(key.clone())).await?.items;
    let ids: std::collections::BTreeSet<_> = listed.iter().map(|snapshot| snapshot.snapshot_id).collect();
    same(ids, [pending, point].into(), "the snapshots listed")?;
    t.store.end(end(begun.fence, "x")).await?;
    same(t.snapshot(pending).await?.parent_id, Some(point), "the parent of the turn's snapshot")
}

pub(super) async fn a_running_turn_says_whether_it_is_detached(t: Bench) -> Check {
    let key = t.session("s").await?;
    let says = async || Ok::<_, crate::Error>(t.second().await?.running(Some(&key)).await?.first().map(|r| r.detached));
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(&key, "x").snapshot(id)).await?.begun()?;
    same(says().await?, Some(false), "one that has only reserved a snapshot")?;
    t.store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
    same(says().await?, Some(true), "one that went to the background")?;
    t.outlive_leases();
    same(says().await?, Some(true), "one that died there")?;
    let again = t.store.take_over(begun.turn).await?;
    same(says().await?, Some(true), "one that was taken over")?;
    t.store.end(end(again.fence, "x")).await?;
    t.begin(&key, "y").await?;
    same(says().await?, Some(false), "one without a snapshot")
}
