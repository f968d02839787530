//! Snapshots: finding, listing and labelling them.

use std::time::Duration;

use super::bench::{Bench, answer, edit, end, failure, iteration, json, told, turn, turn_at};
use super::verdict::{Check, holds, refused, same};
use crate::store::{At, Cursor, ForkSession, ListSnapshots, SnapshotRef, StoreExt};
use crate::{
    Changes, Clock, ErrorKind, FinishReason, NewSnapshot, Point, SessionId, SessionKey, SnapshotEvent, SnapshotId,
    SnapshotStatus,
};

pub(super) async fn a_snapshot_names_its_point(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (first, one) = t.snap(&key, "one").await?;
    t.clock.advance(Duration::from_secs(1));
    let (second, two) = t.snap(&key, "two").await?;
    let snapshot = t.snapshot(second).await?;
    same((snapshot.snapshot_id, snapshot.point, snapshot.digest), (second, two.point, two.digest), "what it names")?;
    same((&snapshot.session_id, &snapshot.session), (&key.id, &Some(key.clone())), "its session")?;
    same((snapshot.parent_id, snapshot.index, snapshot.turn_index), (Some(first), 1, 1), "parent, index, turn")?;
    same((snapshot.event, snapshot.status), (Some(SnapshotEvent::TurnEnd), SnapshotStatus::Completed), "occasion")?;
    same((snapshot.finish_reason, snapshot.error), (Some(FinishReason::Stop), None), "how its turn ended")?;
    same((snapshot.created_at, snapshot.updated_at), (t.clock.now(), t.clock.now()), "its times")?;
    same((snapshot.heartbeat_at, snapshot.orphaned, snapshot.label), (None, false, None), "the rest")?;
    let state = t.state_at(At::Snapshot(first)).await?;
    same((state.point(), state.digest()), (one.point, one.digest), "the state it names")?;
    same(super::bench::texts(&state), told(&["one"]), "what was said there")
}

pub(super) async fn a_turn_without_a_snapshot_leaves_none(t: Bench) -> Check {
    let key = t.session("s").await?;
    let receipt = t.say(&key, "one").await?;
    same(receipt.snapshot_id, None, "the snapshot on the receipt")?;
    same(t.second().await?.snapshots(ListSnapshots::of(key.clone())).await?.items, vec![], "the snapshots")?;
    same(t.second().await?.latest(&key).await?, None, "the latest")?;
    let (id, _) = t.snap(&key, "two").await?;
    same(t.snapshot(id).await?.parent_id, None, "the parent of the first snapshot")
}

pub(super) async fn the_latest_is_the_nearest_at_or_before_the_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let latest = async || -> Check<(Option<SnapshotId>, Option<SnapshotId>)> {
        let store = t.second().await?;
        let (any, resumable) = (store.latest(&key).await?, store.latest_resumable(&key).await?);
        Ok((any.map(|s| s.snapshot_id), resumable.map(|s| s.snapshot_id)))
    };
    let (one, at_one) = t.snap(&key, "one").await?;
    same(latest().await?, (Some(one), Some(one)), "at the head")?;
    t.say(&key, "two").await?;
    same(latest().await?, (Some(one), Some(one)), "before the head")?;
    let (three, at_three) = t.snap(&key, "three").await?;
    t.fail_snap(&key, "lost").await?;
    same(latest().await?, (Some(three), Some(three)), "after a failure")?;
    let begun = t.begin(&key, "four").await?;
    let step = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", step)).await?;
    same(latest().await?, (Some(three), Some(three)), "while a turn runs")?;
    t.store.end(end(begun.fence, "four")).await?;
    same(latest().await?, (Some(step), Some(step)), "a point inside the last turn")?;
    t.rewind(&key, at_one.point).await?;
    same(latest().await?, (Some(one), Some(one)), "after a rewind")?;
    t.rewind(&key, at_three.point).await?;
    same(latest().await?, (Some(three), Some(three)), "after a redo")
}

pub(super) async fn snapshots_inside_a_turn_that_failed_are_not_the_latest(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (one, _) = t.snap(&key, "one").await?;
    let begun = t.begin(&key, "lost").await?;
    let inside = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", inside)).await?;
    t.store.end(failure(begun.fence, "lost")).await?;
    t.say(&key, "two").await?;
    same(t.second().await?.latest(&key).await?.map(|s| s.snapshot_id), Some(one), "the latest")?;
    let (two, _) = t.snap(&key, "three").await?;
    same(t.snapshot(two).await?.parent_id, Some(one), "the parent of the next one")
}

pub(super) async fn a_digest_finds_the_newest_on_the_line(t: Bench) -> Check {
    let (key, other) = (t.session("s").await?, t.session("other").await?);
    let by = async |digest| -> Check<Option<SnapshotId>> {
        let found = t.second().await?.snapshot(SnapshotRef::Digest(key.clone(), digest)).await?;
        Ok(found.map(|snapshot| snapshot.snapshot_id))
    };
    let (one, at_one) = t.snap(&key, "one").await?;
    same(by(at_one.digest).await?, Some(one), "the only one")?;
    t.change(&key, Changes::new().custom(json("1"))).await?;
    let (elsewhere, foreign) = t.snap(&other, "else").await?;
    same(by(foreign.digest).await?, None, "a state of another session")?;
    holds(t.snapshot(elsewhere).await?.digest == foreign.digest, "the other one is there")?;
    let mut back = Changes::new();
    back.custom = Some(crate::CustomChange::Clear);
    let again = t.snapshot_id();
    let mut commit = edit(&key, "");
    commit.changes = back;
    let receipt = t.store.commit(commit.snapshot(NewSnapshot::new(again))).await?;
    same(receipt.digest, at_one.digest, "the digest of the state that came back")?;
    same(by(at_one.digest).await?, Some(again), "the newest of two")?;
    t.rewind(&key, at_one.point).await?;
    same(by(at_one.digest).await?, Some(one), "the newest on the line after a rewind")
}

pub(super) async fn the_nearest_is_found_from_any_point(t: Bench) -> Check {
    let key = t.session("s").await?;
    let near = async |key: &SessionKey, point: Point| -> Check<Option<SnapshotId>> {
        let found = t.second().await?.snapshot(SnapshotRef::Nearest(key.clone(), point)).await?;
        Ok(found.map(|snapshot| snapshot.snapshot_id))
    };
    let start = t.say(&key, "none yet").await?.point;
    same(near(&key, start).await?, None, "before the first one")?;
    let (one, at_one) = t.snap(&key, "one").await?;
    let two = t.say(&key, "two").await?.point;
    let (lost, _) = t.fail_snap(&key, "lost").await?;
    let (three, at_three) = t.snap(&key, "three").await?;
    same(near(&key, at_one.point).await?, Some(one), "at its own point")?;
    same(near(&key, two).await?, Some(one), "at a point between two")?;
    same(near(&key, at_three.point).await?, Some(three), "at the head")?;
    let side = t.run(turn_at(one, "instead"), "instead").await?.point;
    same(near(&key, side).await?, Some(one), "on another line")?;
    holds(near(&key, t.snapshot(lost).await?.point).await? != Some(lost), "what failed is nobody's nearest")?;
    t.rewind(&key, at_one.point).await?;
    same(near(&key, at_three.point).await?, Some(three), "wherever the head stands")?;
    let mut fork = ForkSession::at(At::Point(key.clone(), two));
    fork.id = Some(SessionId::new("fork")?);
    let fork = t.store.fork(fork).await?.key();
    let own = t.second().await?.latest(&fork).await?.map(|snapshot| snapshot.snapshot_id);
    same(near(&fork, t.head(&fork).await?).await?, own, "at a fork's beginning")?;
    same(near(&fork, two).await?, Some(one), "in what a fork inherited")?;
    same(near(&key, Point::new(9999)).await?, None, "at no point")?;
    same(near(&super::bench::key("unknown"), two).await?, None, "in no session")
}

pub(super) async fn snapshots_are_listed_in_the_order_of_the_log(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut ids = Vec::new();
    let (one, _) = t.snap(&key, "one").await?;
    ids.push(one);
    ids.push(t.fail_snap(&key, "lost").await?.0);
    let begun = t.begin(&key, "two").await?;
    let (step, two) = (t.snapshot_id(), t.snapshot_id());
    t.store.step(iteration(begun.fence, "half", step)).await?;
    t.store.end(end(begun.fence, "two").snapshot(NewSnapshot::new(two))).await?;
    ids.extend([step, two]);
    ids.push(t.run_snap(turn_at(one, "instead"), "instead").await?.0);
    let listed = |page: crate::store::Page<crate::Snapshot>| -> Vec<SnapshotId> {
        page.items.into_iter().map(|snapshot| snapshot.snapshot_id).collect()
    };
    let store = t.second().await?;
    let all = || ListSnapshots::of(key.clone());
    same(listed(store.snapshots(all()).await?), ids.clone(), "all of them, the oldest first")?;
    let reversed: Vec<_> = ids.iter().rev().copied().collect();
    same(listed(store.snapshots(all().newest_first()).await?), reversed, "the newest first")?;
    let on_line = vec![ids[0], ids[4]];
    same(listed(store.snapshots(all().without_orphans()).await?), on_line, "those on a branch's line")?;
    for snapshot in store.snapshots(all()).await?.items {
        same(t.snapshot(snapshot.snapshot_id).await?, snapshot, "a snapshot as listed and as read by itself")?;
    }
    Ok(())
}

pub(super) async fn pages_of_snapshots_neither_repeat_nor_hide(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut ids = Vec::new();
    for i in 0..7 {
        ids.push(t.snap(&key, &i.to_string()).await?.0);
    }
    for limit in [1, 3, 7] {
        for newest in [false, true] {
            let query = ListSnapshots::of(key.clone()).limit(limit);
            let query = if newest { query.newest_first() } else { query };
            let (mut found, mut next) = (Vec::new(), query.clone());
            loop {
                let page = t.second().await?.snapshots(next).await?;
                holds(page.items.len() <= limit, "a page has at most as many as were asked for")?;
                found.extend(page.items.iter().map(|snapshot| snapshot.snapshot_id));
                match page.next {
                    Some(cursor) => next = query.clone().after(cursor),
                    None => break,
                }
            }
            if newest {
                found.reverse();
            }
            same(&found, &ids, "all pages together")?;
        }
    }
    let wrong = ListSnapshots::of(key.clone()).after(Cursor::from_text("x"));
    refused(t.store.snapshots(wrong).await, ErrorKind::Invalid, "what is no cursor")?;
    let unknown = ListSnapshots::of(super::bench::key("unknown"));
    refused(t.store.snapshots(unknown).await, ErrorKind::NotFound, "the snapshots of an unknown session")
}

pub(super) async fn labels_come_and_go(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (id, one) = t.snap(&key, "one").await?;
    t.say(&key, "two").await?;
    let before = t.state(&key).await?.digest();
    same(t.store.label(id, Some("good".into())).await?.label.as_deref(), Some("good"), "the label as answered")?;
    same(t.snapshot(id).await?.label.as_deref(), Some("good"), "the label as read")?;
    t.rewind(&key, one.point).await?;
    same(t.snapshot(id).await?.label.as_deref(), Some("good"), "the label after a rewind")?;
    t.store.label(id, None).await?;
    same(t.snapshot(id).await?.label, None, "the label after it was taken away")?;
    holds(t.snapshot(id).await?.digest != before, "labels are no part of a state")?;
    refused(t.store.label(t.snapshot_id(), None).await, ErrorKind::NotFound, "labelling an unknown snapshot")
}

pub(super) async fn whether_a_snapshot_is_orphaned_is_always_current(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (one, at_one) = t.snap(&key, "one").await?;
    let (two, at_two) = t.snap(&key, "two").await?;
    let orphaned =
        async || -> Check<(bool, bool)> { Ok((t.snapshot(one).await?.orphaned, t.snapshot(two).await?.orphaned)) };
    same(orphaned().await?, (false, false), "on main's line")?;
    t.rewind(&key, at_one.point).await?;
    same(orphaned().await?, (false, true), "after a rewind")?;
    let side = t.branch_off(&key, "side", at_two.point).await?;
    same(orphaned().await?, (false, false), "on another branch's line")?;
    let delete =
        crate::store::BranchChange::Delete { name: side, expect: None, under_lease: crate::store::UnderLease::Refuse };
    t.store.branch(&key, delete).await?;
    same(orphaned().await?, (false, true), "after that branch is gone")?;
    t.run(turn(&key, "three"), "three").await?;
    same(orphaned().await?, (false, true), "after the line went on elsewhere")?;
    t.rewind(&key, at_two.point).await?;
    same(orphaned().await?, (false, false), "after the head came back")
}

pub(super) async fn an_edit_can_be_a_snapshot(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (one, _) = t.snap(&key, "one").await?;
    let id = t.snapshot_id();
    let mut commit = edit(&key, "");
    commit.changes = answer("noted");
    let receipt = t.store.commit(commit.snapshot(NewSnapshot::new(id).labelled("edited"))).await?;
    let snapshot = t.snapshot(id).await?;
    same((snapshot.parent_id, snapshot.point), (Some(one), receipt.point), "its parent and point")?;
    holds(snapshot.is_resumable(), "it can be resumed")?;
    t.run(turn_at(id, "two"), "two").await?;
    let wanted = [told(&["one"]), vec!["noted".into()], told(&["two"])].concat();
    same(t.texts(&key).await?, wanted, "what was said after resuming it")
}
