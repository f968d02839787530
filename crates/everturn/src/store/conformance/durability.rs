//! What a kill and a power cut leave.

use std::sync::Arc;

use super::bench::{Bench, answer, delta, edit, end, json, key, set, step, texts, told, turn, turn_key};
use super::streams::{pack, places, read_on};
use super::verdict::{Check, Stop, holds, refused, same, there};
use crate::store::{
    ArtifactQuery, At, ChunkQuery, Commit, CreateSession, EndTurn, SnapshotRef, StepTurn, Store, StoreExt,
    UpdateSession, VerifyScope,
};
use crate::{Artifact, Begin, Changes, ErrorKind, NewSnapshot, Part, Point, SnapshotId, SnapshotStatus, TurnStatus};

/// Everything that is acknowledged, once: what must be there afterwards.
struct Acknowledged {
    snapshot: SnapshotId,
    head: Point,
}

async fn acknowledge(t: &Bench) -> Check<Acknowledged> {
    let session = t.session("s").await?;
    let snapshot = t.snapshot_id();
    let begun = t.store.begin(turn(&session, "one").key(turn_key("k"))).await?.begun()?;
    let changes = answer("re: one").artifact(Artifact::new("a", vec![Part::text("x")]));
    let ending = EndTurn::completed(begun.fence, changes).scopes(delta("user:k", "1").set("own", json("2")));
    t.store.end(ending.snapshot(NewSnapshot::new(snapshot))).await?;
    t.store.update(&session, UpdateSession::title("kept")).await?;
    let head = t.store.commit(edit(&session, "noted")).await?.point;
    Ok(Acknowledged { snapshot, head })
}

async fn is_all_there(store: &Arc<dyn Store>, wanted: &Acknowledged) -> Check {
    let session = store.existing(&key("s")).await?;
    same((session.head, session.turns), (wanted.head, 1), "head and turns")?;
    same(session.title.as_deref(), Some("kept"), "the title")?;
    let state = store.head_state(&key("s")).await?;
    same(texts(&state), [told(&["one"]), vec!["noted".into()]].concat(), "what was said")?;
    same(state.custom(), Some(&json(r#"{"own":2}"#)), "the custom state")?;
    same(state.artifacts().len(), 1, "the artifacts")?;
    let snapshot = there(store.snapshot(SnapshotRef::Id(wanted.snapshot)).await?, "the snapshot")?;
    same(snapshot.status, SnapshotStatus::Completed, "its status")?;
    same(store.scopes(&key("s").app, Some(&key("s").user)).await?.len(), 1, "the scopes")?;
    same(store.artifacts(ArtifactQuery::of(key("s"))).await?.len(), 1, "the artifact's versions")?;
    let again = store.begin(turn(&key("s"), "one").key(turn_key("k"))).await?;
    holds(matches!(again, Begin::Ended(_)), "the key is known")?;
    same(store.verify(VerifyScope::All).await?.damage, None, "the damage")
}

pub(super) async fn what_was_acknowledged_survives_a_kill(t: Bench) -> Check {
    let wanted = acknowledge(&t).await?;
    is_all_there(&t.after_kill().await?, &wanted).await
}

pub(super) async fn what_was_acknowledged_survives_a_power_cut(t: Bench) -> Check {
    let wanted = acknowledge(&t).await?;
    is_all_there(&t.after_power_cut().await?, &wanted).await
}

pub(super) async fn a_killed_turn_leaves_its_input_and_its_ledger(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "good").await?;
    let id = t.snapshot_id();
    let begun = t.store.begin(turn(&session, "half done").snapshot(id)).await?.begun()?;
    let tool = crate::ToolEntry::new("c", "pay", crate::ToolPhase::Started, None);
    let changes = set(delta("user:k", "1")).tool(tool);
    t.store.step(StepTurn::new(begun.fence, changes).detach()).await?;
    let store = t.after_kill().await?;
    t.outlive_leases();
    same(texts(&store.head_state(&session).await?), told(&["good"]), "what is at the head: the last good state")?;
    let running = store.running(Some(&session)).await?;
    same((running.len(), running[0].status), (1, TurnStatus::Dead), "the turn that was running")?;
    let found = there(store.turn(begun.turn).await?, "the turn")?;
    same((found.input.messages.len(), found.tools.len()), (1, 1), "its input and its tool calls")?;
    same(store.scopes(&session.app, Some(&session.user)).await?.len(), 0, "the scopes it would have written")?;
    let snapshot = there(store.snapshot(SnapshotRef::Id(id)).await?, "its pending snapshot")?;
    same(snapshot.status, SnapshotStatus::Expired, "the snapshot's status")?;
    let taken = store.take_over(begun.turn).await?;
    same(taken.fence.attempt(), 2, "the attempt of who took it over")?;
    holds(store.end(end(taken.fence, "half done")).await?.on_head, "it ends on the head")?;
    same(texts(&store.head_state(&session).await?), told(&["good", "half done"]), "what was said in the end")
}

pub(super) async fn the_next_turn_does_not_wait_for_a_killed_one(t: Bench) -> Check {
    if !t.capabilities().dead_at_once {
        return Err(Stop::Skipped("the store learns of a death only when the lease runs out".into()));
    }
    let session = t.session("s").await?;
    t.begin(&session, "killed").await?;
    let store = t.after_kill().await?;
    let begun = store.begin(turn(&session, "next")).await?.begun()?;
    holds(begun.leased, "the next turn has the branch at once")?;
    store.end(end(begun.fence, "next")).await?;
    same(texts(&store.head_state(&session).await?), told(&["next"]), "what was said")
}

pub(super) async fn numbers_are_not_given_twice_after_a_kill(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "old").await?;
    t.store.purge(&session).await?;
    let store = t.after_kill().await?;
    store.create(CreateSession::at(session.clone())).await?;
    let made = store.begin(turn(&session, "new")).await?.begun()?;
    holds(made.turn != begun.turn, "no turn's name is given twice")?;
    let late = store.end(end(begun.fence, "late")).await;
    refused(late, ErrorKind::Deleted, "a late writer of a session purged before the kill")
}

pub(super) async fn what_is_purged_does_not_come_back(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "secret").await?;
    t.store.purge(&session).await?;
    let store = t.after_kill().await?;
    same(store.session(&session).await?, None, "the session")?;
    same(store.verify(VerifyScope::All).await?.damage, None, "the damage")
}

pub(super) async fn another_handle_reads_what_this_one_wrote_at_once(t: Bench) -> Check {
    if !t.capabilities().second_handle {
        return Err(Stop::Skipped("the store has one handle only".into()));
    }
    let session = t.session("s").await?;
    let other = t.second().await?;
    for i in 0..10 {
        let text = i.to_string();
        let (writer, reader) = if i % 2 == 0 { (&t.store, &other) } else { (&other, &t.store) };
        let begun = writer.begin(turn(&session, &text)).await?.begun()?;
        writer.step(step(begun.fence, "half")).await?;
        let receipt = writer.end(end(begun.fence, &text)).await?;
        let state = there(reader.state(At::head(session.clone())).await?, "the state")?;
        same((state.point(), state.digest()), (receipt.point, receipt.digest), "what the other handle reads")?;
        let commit = Commit::new(session.clone(), Changes::new().custom(json(&text)));
        let edited = reader.commit(commit.expect(receipt.point)).await?;
        same(writer.head_state(&session).await?.digest(), edited.digest, "what the first handle reads after an edit")?;
    }
    Ok(())
}

pub(super) async fn a_turn_killed_right_after_its_begin_is_known(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.store.begin(turn(&session, "x").key(turn_key("k"))).await?.begun()?;
    let store = t.after_kill().await?;
    t.outlive_leases();
    let found = there(store.turn(begun.turn).await?, "the turn")?;
    same((found.status, found.input.messages.len()), (TurnStatus::Dead, 1), "its status and its input")?;
    let again = store.begin(turn(&session, "x").key(turn_key("k"))).await?.begun()?;
    same((again.turn, again.fence.attempt()), (begun.turn, 2), "the turn its key takes over")
}

pub(super) async fn who_closes_its_handle_is_dead_at_once(t: Bench) -> Check {
    if !t.capabilities().dead_at_once {
        return Err(Stop::Skipped("the store learns of a death only when the lease runs out".into()));
    }
    let session = t.session("s").await?;
    let other = t.second().await?;
    let begun = other.begin(turn(&session, "x")).await?.begun()?;
    refused(t.store.begin(turn(&session, "y")).await, ErrorKind::Busy, "a turn beside one that is alive")?;
    drop(other);
    let found = there(t.store.turn(begun.turn).await?, "the turn")?;
    same(found.status, TurnStatus::Dead, "its status")?;
    holds(t.store.begin(turn(&session, "y")).await?.begun()?.leased, "the next turn has the branch")
}

pub(super) async fn what_a_running_turn_wrote_survives_a_power_cut(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.store.begin(turn(&session, "x").key(turn_key("k"))).await?.begun()?;
    let tool = crate::ToolEntry::new("c", "pay", crate::ToolPhase::Started, None);
    t.store.step(StepTurn::new(begun.fence, Changes::new().tool(tool))).await?;
    let store = t.after_power_cut().await?;
    t.outlive_leases();
    let found = there(store.turn(begun.turn).await?, "the turn")?;
    same((found.input.messages.len(), found.tools.len()), (1, 1), "its input and its tool calls")?;
    let again = store.begin(turn(&session, "x").key(turn_key("k"))).await?.begun()?;
    same((again.turn, again.fence.attempt()), (begun.turn, 2), "the turn its key takes over")
}

pub(super) async fn what_was_streamed_survives_a_kill(t: Bench) -> Check {
    let session = t.session("s").await?;
    let ended = t.begin(&session, "one").await?;
    t.store.keep_chunks(pack(ended.fence, 0, 3)).await?;
    t.store.end(end(ended.fence, "one")).await?;
    let begun = t.begin(&session, "two").await?;
    for n in 0..5 {
        t.store.keep_chunks(pack(begun.fence, n, n + 1)).await?;
    }
    let store = t.after_kill().await?;
    t.outlive_leases();
    same(read_on(&store, ended.turn, None, 2).await?, places(1, 0, 3), "the stream of the turn before")?;
    let page = store.chunks(ChunkQuery::of(begun.turn)).await?;
    same((page.chunks, page.status), (places(1, 0, 5), TurnStatus::Dead), "the stream of the killed turn")?;
    let again = store.take_over(begun.turn).await?;
    store.keep_chunks(pack(again.fence, 0, 2)).await?;
    same(store.chunks(ChunkQuery::of(begun.turn)).await?.chunks, places(2, 0, 2), "the stream of the next attempt")
}

pub(super) async fn a_stream_without_a_gap_survives_a_power_cut(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "x").await?;
    for n in 0..4 {
        t.store.keep_chunks(pack(begun.fence, n, n + 1)).await?;
    }
    t.store.step(step(begun.fence, "half")).await?;
    for n in 4..8 {
        t.store.keep_chunks(pack(begun.fence, n, n + 1)).await?;
    }
    let store = t.after_power_cut().await?;
    let page = store.chunks(ChunkQuery::of(begun.turn)).await?;
    let kept = page.chunks.len() as u64;
    holds((4..=8).contains(&kept), "what was kept before the step is there")?;
    same((page.chunks, page.dropped), (places(1, 0, kept), false), "the stream, without a gap")
}
