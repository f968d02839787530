//! Following sessions and snapshots; verifying and reopening stores.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, answer, end, failure, iteration, key, set, told, turn, turn_at};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{At, ForkSession, StepTurn, Store, UpdateSession, VerifyScope, Watch, WatchEvent, WatchTarget};
use crate::{Artifact, Changes, ErrorKind, NewSnapshot, Part, Point, SnapshotStatus};

/// Longer than any poll interval.
const PATIENCE: Duration = Duration::from_secs(30);

async fn next(watch: &mut Box<dyn Watch>) -> Check<WatchEvent> {
    match tokio::time::timeout(PATIENCE, watch.next()).await {
        Ok(event) => Ok(event?),
        Err(_) => fail("a change was not told"),
    }
}

/// Waits until a session is known to be written up to a point.
async fn written(watch: &mut Box<dyn Watch>, point: Point) -> Check {
    loop {
        match next(watch).await? {
            WatchEvent::Written(up_to) if up_to >= point => return Ok(()),
            WatchEvent::Written(_) => {}
            other => return fail(format!("a session was told as {other:?}")),
        }
    }
}

pub(super) async fn a_watcher_is_told_what_was_written(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut watch = t.store.watch(WatchTarget::Session(session.clone())).await?;
    let receipt = t.say(&session, "one").await?;
    written(&mut watch, receipt.point).await?;
    let begun = t.begin(&session, "two").await?;
    written(&mut watch, begun.point).await?;
    t.store.update(&session, UpdateSession::title("x")).await?;
    match next(&mut watch).await? {
        WatchEvent::Written(point) => holds(point > begun.point, "a title is told, too"),
        other => fail(format!("a title was told as {other:?}")),
    }
}

pub(super) async fn a_watcher_hears_of_other_handles(t: Bench) -> Check {
    let session = t.session("s").await?;
    let writer: Arc<dyn Store> = t.second().await?;
    let mut watch = t.store.watch(WatchTarget::Session(session.clone())).await?;
    for i in 0..3 {
        let begun = writer.begin(turn(&session, &i.to_string())).await?.begun()?;
        let receipt = writer.end(end(begun.fence, &i.to_string())).await?;
        written(&mut watch, receipt.point).await?;
    }
    Ok(())
}

pub(super) async fn nothing_is_told_when_nothing_changed(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "before").await?;
    let mut watch = t.store.watch(WatchTarget::Session(session.clone())).await?;
    {
        let mut waiting = watch.next();
        holds(t.settle(&mut waiting).await?.is_none(), "what was there before the watch is not told")?;
    }
    let receipt = t.say(&session, "one").await?;
    written(&mut watch, receipt.point).await?;
    let mut waiting = watch.next();
    holds(t.settle(&mut waiting).await?.is_none(), "what was told is not told again")
}

pub(super) async fn what_happens_between_two_looks_is_not_lost(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut watch = t.store.watch(WatchTarget::Session(session.clone())).await?;
    let mut last = Point::new(1);
    for i in 0..5 {
        last = t.say(&session, &i.to_string()).await?.point;
    }
    written(&mut watch, last).await
}

pub(super) async fn a_watcher_is_told_of_the_deletion(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (id, _) = t.snap(&session, "one").await?;
    let mut of_session = t.store.watch(WatchTarget::Session(session.clone())).await?;
    let mut of_snapshot = t.store.watch(WatchTarget::Snapshot(id)).await?;
    t.second().await?.delete(&session).await?;
    t.session("s").await?;
    t.say(&session, "in another session of that id").await?;
    same(next(&mut of_session).await?, WatchEvent::Deleted, "what the session's watcher is told")?;
    same(next(&mut of_snapshot).await?, WatchEvent::Deleted, "what the snapshot's watcher is told")
}

pub(super) async fn a_pending_snapshot_can_be_waited_for(t: Bench) -> Check {
    let session = t.session("s").await?;
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(&session, "x").snapshot(id)).await?.begun()?;
    t.store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
    let mut watches = vec![t.store.watch(WatchTarget::Snapshot(id)).await?];
    watches.push(t.second().await?.watch(WatchTarget::Snapshot(id)).await?);
    t.store.step(super::bench::step(begun.fence, "half")).await?;
    t.store.end(end(begun.fence, "x").snapshot(NewSnapshot::new(id))).await?;
    for watch in &mut watches {
        let told = next(watch).await?;
        same(told, WatchEvent::Snapshot(SnapshotStatus::Completed), "what each of its watchers is told")?;
    }
    let begun = t.store.begin(turn(&session, "y").snapshot(t.snapshot_id())).await?.begun()?;
    t.store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
    let pending = begun.snapshot_id.unwrap_or(id);
    let mut watch = t.store.watch(WatchTarget::Snapshot(pending)).await?;
    t.store.end(failure(begun.fence, "y").snapshot(NewSnapshot::new(pending))).await?;
    same(next(&mut watch).await?, WatchEvent::Snapshot(SnapshotStatus::Failed), "what is told of a failure")
}

pub(super) async fn what_is_unknown_cannot_be_watched(t: Bench) -> Check {
    let session = WatchTarget::Session(key("unknown"));
    refused(t.store.watch(session).await.map(drop), ErrorKind::NotFound, "watching an unknown session")?;
    let snapshot = WatchTarget::Snapshot(t.snapshot_id());
    refused(t.store.watch(snapshot).await.map(drop), ErrorKind::NotFound, "watching an unknown snapshot")
}

pub(super) async fn a_sound_store_verifies(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (base, _) = t.snap(&session, "one").await?;
    t.fail_snap(&session, "lost").await?;
    let begun = t.begin(&session, "two").await?;
    let inside = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", inside)).await?;
    t.outlive_leases();
    let taken = t.store.take_over(begun.turn).await?;
    let changes =
        answer("x").custom(super::bench::json(r#"{"a":1}"#)).artifact(Artifact::new("r", vec![Part::text("y")]));
    t.store.step(StepTurn::new(taken.fence, changes)).await?;
    t.store.end(end(taken.fence, "two")).await?;
    t.change(&session, set(super::bench::delta("b", "2")).splice(1, vec![])).await?;
    t.run_snap(turn_at(inside, "resumed"), "resumed").await?;
    t.run_snap(turn_at(base, "regenerated"), "regenerated").await?;
    t.store.update(&session, UpdateSession::title("x")).await?;
    t.store.fork(ForkSession::at(At::Snapshot(inside))).await?;
    t.begin(&session, "still running").await?;
    let store = t.second().await?;
    let all = store.verify(VerifyScope::All).await?;
    same((all.sessions, &all.damage), (2, &None), "sessions read, and the damage")?;
    let records = t.records(&session).await?.len() as u64;
    let one = store.verify(VerifyScope::Session(session.clone())).await?;
    same((one.sessions, &one.damage), (1, &None), "sessions read, and the damage")?;
    holds(one.records >= records - 1, "all records but admin ones were recomputed")?;
    holds(one.snapshots >= 4, "snapshots were recomputed")?;
    let unknown = store.verify(VerifyScope::Session(key("unknown"))).await;
    refused(unknown, ErrorKind::NotFound, "verifying an unknown session")
}

pub(super) async fn a_sound_store_can_be_reopened(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "one").await?;
    let begun = t.begin(&session, "two").await?;
    t.store.reopen().await?;
    holds(t.store.end(end(begun.fence, "two")).await?.on_head, "a turn goes on after it")?;
    same(t.texts(&session).await?, told(&["one", "two"]), "what was said")
}
