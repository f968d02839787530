//! Snapshots, turns and artifact versions, held against the model.

use std::collections::BTreeMap;

use everturn::store::{ArtifactQuery, At, ListSnapshots, SnapshotRef, Store};
use everturn::{BranchName, Digest, Json, Point, RunningTurn, Snapshot, SnapshotStatus};

use crate::compare::{state, text};
use crate::tree::{MayMove, Model, SessionIx, Snap, TurnIx};
use crate::world::{Check, same, turn_id};

/// What a snapshot looks like from outside; the given one is only a vessel, every part of it is filled.
fn expected(model: &Model, snap: &Snap, vessel: &Snapshot) -> Snapshot {
    let row = &model.sessions[snap.session];
    let node = &model.nodes[snap.node];
    let pending = snap.status == SnapshotStatus::Pending;
    let expired = pending && snap.turn.is_none_or(|turn| !model.alive(turn));
    let mut like = vessel.clone();
    like.snapshot_id = snap.id;
    like.session_id = row.key.id.clone();
    like.session = Some(row.key.clone());
    like.point = node.point;
    like.parent_id = snap.parent;
    like.digest = node.digest;
    like.index = snap.index;
    like.turn_index = snap.turn_index;
    like.event = snap.event;
    like.status = if expired { SnapshotStatus::Expired } else { snap.status };
    like.finish_reason = snap.finish;
    like.error = snap.error.clone();
    like.created_at = snap.created_at;
    like.updated_at = snap.updated_at;
    like.heartbeat_at = snap.turn.filter(|_| pending).map(|turn| model.turns[turn].beat);
    like.orphaned = !pending && !model.on_some_line(snap.session, snap.node);
    like.label = snap.label.clone();
    like.state = None;
    like
}

async fn listed(store: &dyn Store, query: ListSnapshots) -> Check<Vec<Snapshot>> {
    let mut found = Vec::new();
    let mut query = query.limit(4);
    loop {
        let page = text(store.snapshots(query.clone()).await)?;
        found.extend(page.items);
        match page.next {
            Some(cursor) => query = query.after(cursor),
            None => return Ok(found),
        }
    }
}

pub(crate) async fn snapshots(model: &Model, store: &dyn Store, ix: SessionIx) -> Check {
    let key = &model.sessions[ix].key;
    let mut snaps: Vec<&Snap> = model.snaps.iter().filter(|snap| snap.session == ix).collect();
    snaps.sort_by_key(|snap| model.nodes[snap.node].point);
    for snap in &snaps {
        let found = text(store.snapshot(SnapshotRef::Id(snap.id)).await)?;
        let found = found.ok_or_else(|| format!("snapshot {} is not there", snap.id))?;
        same("snapshot", &found, &expected(model, snap, &found))?;
        state(model, &text(store.state(At::Snapshot(snap.id)).await)?, snap.node)?;
    }

    let ids = |found: &[Snapshot]| found.iter().map(|found| found.snapshot_id).collect::<Vec<_>>();
    let all = listed(store, ListSnapshots::of(key.clone())).await?;
    let names: Vec<_> = snaps.iter().map(|snap| snap.id).collect();
    same("all snapshots", &ids(&all), &names)?;
    for (found, snap) in all.iter().zip(&snaps) {
        same("listed snapshot", found, &expected(model, snap, found))?;
    }
    let on_lines: Vec<_> = all.iter().filter(|found| !found.orphaned).map(|found| found.snapshot_id).collect();
    let found = listed(store, ListSnapshots::of(key.clone()).without_orphans().newest_first()).await?;
    same("snapshots on lines, newest first", &ids(&found), &on_lines.into_iter().rev().collect())?;

    let main = model.sessions[ix].heads[&BranchName::main()].node;
    let completed = |snap: &Snap| snap.session == ix && snap.status == SnapshotStatus::Completed;
    let resumable = model.nearest(main, completed).map(|snap| snap.id);
    let found = text(store.snapshot(SnapshotRef::LatestResumable(key.clone())).await)?;
    same("latest resumable", &found.map(|found| found.snapshot_id), &resumable)?;
    let pending = snaps.iter().rev().find(|snap| snap.status == SnapshotStatus::Pending).map(|snap| snap.id);
    let found = text(store.snapshot(SnapshotRef::Latest(key.clone())).await)?;
    same("latest", &found.map(|found| found.snapshot_id), &pending.or(resumable))?;
    by_digest(model, store, ix, &snaps).await
}

/// The newest on a branch's line with a digest: `main`'s line before all others.
async fn by_digest(model: &Model, store: &dyn Store, ix: SessionIx, snaps: &[&Snap]) -> Check {
    let row = &model.sessions[ix];
    for digest in snaps.iter().map(|snap| model.nodes[snap.node].digest) {
        let fits = |snap: &Snap| {
            snap.session == ix && snap.status == SnapshotStatus::Completed && model.nodes[snap.node].digest == digest
        };
        let mut names: Vec<_> = row.heads.keys().collect();
        names.sort_by_key(|name| (!name.is_main(), (*name).clone()));
        let newest = names.iter().find_map(|name| model.nearest(row.heads[*name].node, fits)).map(|snap| snap.id);
        let found = text(store.snapshot(SnapshotRef::Digest(row.key.clone(), digest)).await)?;
        same("by digest", &found.map(|found| found.snapshot_id), &newest)?;
    }
    Ok(())
}

/// A session's own versions, and those that the line it was forked off had put.
pub(crate) async fn artifacts(model: &Model, store: &dyn Store, ix: SessionIx) -> Check {
    let line = model.sessions[ix].origin.map_or_else(Vec::new, |origin| model.line(origin));
    let on_line = |session: SessionIx, put: Point| {
        line.iter().any(|node| (model.nodes[*node].session, model.nodes[*node].point) == (session, put))
    };
    let mut known = BTreeMap::new();
    for (session, row) in model.sessions.iter().enumerate() {
        for version in row.versions.iter().filter(|version| session == ix || on_line(session, version.put)) {
            let digest =
                Digest::of_json(&Json::from_value(&version.artifact).expect("it is JSON")).expect("it is JSON");
            let content = (version.put, digest, version.artifact.clone());
            known.insert((version.name.clone(), version.version), content);
        }
    }
    let found = text(store.artifacts(ArtifactQuery::of(model.sessions[ix].key.clone())).await)?;
    let found: BTreeMap<_, _> = found
        .into_iter()
        .map(|stored| {
            let version = stored.version;
            ((version.name, version.version), (version.point, version.digest, stored.artifact))
        })
        .collect();
    same("artifact versions", &found, &known)
}

pub(crate) async fn turns(model: &Model, store: &dyn Store, lane: usize) -> Check {
    let mut found = text(store.running(None).await)?;
    found.sort_by_key(|turn| turn.turn);
    let mut running: Vec<_> = model.running().collect();
    running.sort_by_key(|turn| turn_id(model, *turn, lane));
    same("running", &found.len(), &running.len())?;
    for (found, turn) in found.iter().zip(&running) {
        same("a running turn", found, &expected_running(model, *turn, lane, found))?;
    }
    for turn in 0..model.turns.len() {
        if model.sessions[model.turns[turn].session].alive {
            turn_record(model, store, turn, lane).await?;
        }
    }
    Ok(())
}

fn expected_running(model: &Model, turn: TurnIx, lane: usize, vessel: &RunningTurn) -> RunningTurn {
    let row = &model.turns[turn];
    let mut like = vessel.clone();
    like.turn = turn_id(model, turn, lane);
    like.session = model.sessions[row.session].key.clone();
    like.branch = row.branch.clone();
    like.agent = row.agent.clone();
    like.invocation = row.invocation.clone();
    like.key = row.key.clone();
    like.attempt = row.attempt;
    like.status = model.turn_status(turn);
    like.leased = row.may_move == MayMove::Leased;
    let reserved = row.reserved.and_then(|id| model.snap(id));
    like.detached = reserved.is_some_and(|snap| snap.status == SnapshotStatus::Pending);
    like.snapshot_id = row.reserved;
    like.began_at = row.began_at;
    like.heartbeat_at = row.beat;
    like
}

async fn turn_record(model: &Model, store: &dyn Store, turn: TurnIx, lane: usize) -> Check {
    let row = &model.turns[turn];
    let id = turn_id(model, turn, lane);
    let found = text(store.turn(id).await)?.ok_or_else(|| format!("turn {id} is not there"))?;
    same("a turn", &(found.turn, found.status, found.attempt), &(id, model.turn_status(turn), row.attempt))?;
    same("a turn's session", &found.session, &model.sessions[row.session].key)?;
    same("a turn's invocation", &(found.invocation, found.agent), &(row.invocation.clone(), row.agent.clone()))?;
    same("where a turn started", &found.from, &model.nodes[row.start].point)?;
    let mut input = row.input.clone();
    input.state_delta.set.retain(|key, _| !key.starts_with("temp:"));
    input.state_delta.remove.retain(|key| !key.starts_with("temp:"));
    same("a turn's input", &found.input, &input)?;
    same("a turn's tools", &found.tools, &row.tools)?;
    let Some(ended) = &row.ended else { return same("a running turn's end", &found.ended, &None) };
    let found = found.ended.ok_or_else(|| format!("turn {id} has no end"))?;
    same("the end's turn", &(found.turn, found.session), &(id, model.sessions[row.session].key.clone()))?;
    same("the end's outcome", &(found.status, &found.outcome), &(ended.status, &ended.outcome))?;
    let node = &model.nodes[ended.node];
    same("the end's point", &(found.point, found.snapshot_id), &(node.point, ended.snapshot))?;
    same("the end's digest", &found.digest, &node.digest)
}
