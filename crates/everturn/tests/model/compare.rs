//! Reading everything there is and holding it against the model.

use std::collections::{BTreeMap, BTreeSet};

use everturn::store::{At, EventQuery, ListSessions, RecordQuery, SessionOrder, SnapshotRef, Store, VerifyScope};
use everturn::{
    Branch, BranchName, Event, ForkOrigin, Json, Point, PointState, Record, RecordKind, SessionKey, SessionStatus,
};

use crate::compare_rows::{artifacts, snapshots, turns};
use crate::support::all_events;
use crate::tree::{Model, Node, NodeId, SessionIx};
use crate::world::{Check, Lane, same, turn_id};

/// Compares everything one store says with the model.
pub(crate) async fn everything(model: &Model, lane: &Lane, index: usize) -> Check {
    let store = &*lane.store;
    listings(model, store).await.map_err(|e| format!("{}: listings: {e}", lane.name))?;
    for session in 0..model.sessions.len() {
        let one = one_session(model, store, session, index).await;
        one.map_err(|e| format!("{}: session {}: {e}", lane.name, model.sessions[session].key))?;
    }
    turns(model, store, index).await.map_err(|e| format!("{}: turns: {e}", lane.name))
}

pub(crate) async fn verified(lane: &Lane) -> Check {
    let verified = lane.store.verify(VerifyScope::All).await.map_err(|e| format!("{}: verify: {e:?}", lane.name))?;
    match verified.damage {
        Some(damage) => Err(format!("{}: verify: {damage:?}", lane.name)),
        None => Ok(()),
    }
}

pub(crate) fn text<T>(result: everturn::Result<T>) -> Check<T> {
    result.map_err(|error| format!("{error:?}"))
}

async fn listings(model: &Model, store: &dyn Store) -> Check {
    type Key = fn(&Model, SessionIx) -> i128;
    let orders: [(SessionOrder, Key); 4] = [
        (SessionOrder::CreatedOldest, |model, ix| i128::from(model.sessions[ix].created)),
        (SessionOrder::CreatedNewest, |model, ix| -i128::from(model.sessions[ix].created)),
        (SessionOrder::UpdatedOldest, |model, ix| i128::from(model.sessions[ix].updated)),
        (SessionOrder::UpdatedNewest, |model, ix| -i128::from(model.sessions[ix].updated)),
    ];
    for (order, key) in orders {
        let mut expected: Vec<_> = (0..model.sessions.len()).filter(|ix| model.sessions[*ix].alive).collect();
        expected.sort_by_key(|ix| key(model, *ix));
        let expected: Vec<_> = expected.into_iter().map(|ix| model.sessions[ix].key.clone()).collect();
        let mut query = ListSessions::default().order(order).limit(3);
        let mut found = Vec::new();
        loop {
            let page = text(store.list(query.clone()).await)?;
            found.extend(page.items.iter().map(|record| record.key()));
            match page.next {
                Some(cursor) => query = query.after(cursor),
                None => break,
            }
        }
        same(order, &found, &expected)?;
    }
    for status in [SessionStatus::Idle, SessionStatus::Running, SessionStatus::Interrupted] {
        let mut query = ListSessions::default().limit(50);
        query.status = Some(status);
        query.label = Some("kept".to_owned());
        query.metadata = [("kind".to_owned(), Json::parse("\"test\"").expect("it is JSON"))].into();
        let wanted = |ix: &SessionIx| {
            let row = &model.sessions[*ix];
            row.alive
                && row.labels.contains("kept")
                && row.metadata.get("kind") == query.metadata.get("kind")
                && model.status(*ix) == status
        };
        let expected: BTreeSet<_> = (0..model.sessions.len()).filter(wanted).collect();
        let expected: BTreeSet<_> = expected.into_iter().map(|ix| model.sessions[ix].key.clone()).collect();
        let found = text(store.list(query.clone()).await)?.items;
        same((status, "filtered"), &found.iter().map(|record| record.key()).collect(), &expected)?;
    }
    for ((app, user), keys) in &model.user {
        let mut expected = keys.clone();
        expected.extend(model.app.get(app).cloned().unwrap_or_default());
        same((app, user), &text(store.scopes(app, Some(user)).await)?, &expected)?;
    }
    for (app, keys) in &model.app {
        same(app, &text(store.scopes(app, None).await)?, keys)?;
    }
    Ok(())
}

async fn one_session(model: &Model, store: &dyn Store, ix: SessionIx, lane: usize) -> Check {
    if !model.sessions[ix].alive {
        return gone(model, store, ix, lane).await;
    }
    session_record(model, store, ix).await?;
    records(model, store, ix, lane).await?;
    let nodes = model.sessions[ix].nodes.clone();
    for node in nodes.into_iter().filter(|node| model.nodes[*node].kind != RecordKind::Admin) {
        let at = At::Point(model.sessions[ix].key.clone(), model.nodes[node].point);
        state(model, &text(store.state(at).await)?, node)?;
    }
    for node in inherited(model, ix) {
        let at = At::Point(model.sessions[ix].key.clone(), model.nodes[node].point);
        state(model, &text(store.state(at).await)?, node).map_err(|e| format!("inherited: {e}"))?;
    }
    for (name, head) in model.sessions[ix].heads.clone() {
        let at = At::Head(model.sessions[ix].key.clone(), name.clone());
        state(model, &text(store.state(at.clone()).await)?, head.node)?;
        events(model, store, at, head.node).await.map_err(|e| format!("events of {name}: {e}"))?;
    }
    snapshots(model, store, ix).await?;
    artifacts(model, store, ix).await
}

/// Nothing of a deleted session can be found, unless another one has its id.
async fn gone(model: &Model, store: &dyn Store, ix: SessionIx, lane: usize) -> Check {
    let key = &model.sessions[ix].key;
    if model.find(key).is_none() {
        same("a deleted session", &text(store.session(key).await)?, &None)?;
        let state = text(store.state(At::head(key.clone())).await)?;
        same("the state of a deleted session", &state.map(|state| state.digest()), &None)?;
    }
    for snap in model.snaps.iter().filter(|snap| snap.session == ix) {
        same("a deleted session's snapshot", &text(store.snapshot(SnapshotRef::Id(snap.id)).await)?, &None)?;
    }
    for turn in (0..model.turns.len()).filter(|turn| model.turns[*turn].session == ix) {
        let found = text(store.turn(turn_id(model, turn, lane)).await)?;
        same("a deleted session's turn", &found.map(|turn| turn.turn), &None)?;
    }
    Ok(())
}

/// The records on a fork's line that belong to other sessions.
fn inherited(model: &Model, ix: SessionIx) -> Vec<NodeId> {
    model.sessions[ix].origin.map_or_else(Vec::new, |origin| model.line(origin))
}

async fn session_record(model: &Model, store: &dyn Store, ix: SessionIx) -> Check {
    let row = &model.sessions[ix];
    let found = text(store.session(&row.key).await)?.ok_or("it is not there")?;
    let head = row.heads[&BranchName::main()].node;
    same("title", &found.title, &row.title)?;
    same("agent", &found.agent, &row.agent)?;
    same("labels", &found.labels, &row.labels)?;
    let metadata = Json::from_value(&row.metadata).expect("it is JSON");
    same("metadata", &found.metadata, &metadata)?;
    same("times", &(found.created_at, found.updated_at), &(row.created_at, row.updated_at))?;
    same("head", &found.head, &model.nodes[head].point)?;
    same("turns", &found.turns, &model.nodes[head].state.turns)?;
    same("usage", &found.usage, &row.usage)?;
    same("inherited usage", &found.inherited_usage, &row.inherited)?;
    same("status", &found.status, &model.status(ix))?;
    let mut names: Vec<_> = row.heads.keys().cloned().collect();
    names.sort_by_key(|name| (!name.is_main(), name.clone()));
    let branch = |name: &BranchName| Branch { name: name.clone(), head: model.nodes[row.heads[name].node].point };
    same("branches", &found.branches, &names.iter().map(branch).collect())?;
    let origin = row.origin.map(|origin| &model.nodes[origin]);
    let named = origin.zip(row.forked_from.clone());
    let origin = named.map(|(node, session)| ForkOrigin { session, point: node.point });
    same("origin", &found.forked_from, &origin)
}

async fn log(store: &dyn Store, key: &SessionKey, mut after: u64) -> Check<Vec<Record>> {
    let mut found: Vec<Record> = Vec::new();
    loop {
        let page = text(store.records(RecordQuery::of(key.clone()).after(after).limit(50)).await)?;
        found.extend(page.items);
        match (page.next, found.last()) {
            (Some(_), Some(last)) => after = last.seq,
            _ => return Ok(found),
        }
    }
}

/// Asks a store in which segments it has put the newest records: that is its own to choose, within the rules.
pub(crate) async fn learn_segments(model: &mut Model, lane: &Lane) -> Check {
    for ix in 0..model.sessions.len() {
        let unknown = |node: &&NodeId| model.nodes[**node].segment.is_none();
        let Some(first) = model.sessions[ix].nodes.iter().find(unknown).filter(|_| model.sessions[ix].alive) else {
            continue;
        };
        let after = model.nodes[*first].point.seq() - 1;
        for record in log(&*lane.store, &model.sessions[ix].key, after).await? {
            let at = |node: &&NodeId| model.nodes[**node].point.seq() == record.seq;
            let node = *model.sessions[ix].nodes.iter().find(at).ok_or_else(|| format!("unknown {record:?}"))?;
            let first = *model.sessions[ix].segments.entry(record.segment).or_insert(record.seq);
            model.nodes[node].segment = Some(first);
        }
    }
    Ok(())
}

/// The log itself. The stores choose segments; what they choose must be a way to write the tree down.
async fn records(model: &Model, store: &dyn Store, ix: SessionIx, lane: usize) -> Check {
    let found = log(store, &model.sessions[ix].key, 0).await?;
    let nodes = model.sessions[ix].nodes.clone();
    same("length of the log", &found.len(), &nodes.len())?;
    let mut segments = BTreeMap::new();
    for (record, id) in found.iter().zip(&nodes) {
        let turn = model.nodes[*id].turn.map(|(turn, _)| turn_id(model, turn, lane));
        let node = &model.nodes[*id];
        let hidden = node.voided || node.kind == RecordKind::Void;
        let expected = (node.point.seq(), node.kind, node.at, hidden, node.snapshot, node.event, node.segment);
        let segment = *segments.entry(record.segment).or_insert(record.seq);
        let got = (record.seq, record.kind, record.at, record.voided, record.snapshot_id, record.event, Some(segment));
        same("a record", &got, &expected)?;
        let attempt = node.turn.map(|(_, attempt)| attempt);
        same("a record's turn", &(record.turn, record.attempt), &(turn, attempt))?;
    }
    nodes.iter().try_for_each(|node| placed(model, *node))
}

/// A record may be in a segment only if all that the segment has between it and what it follows is void.
fn placed(model: &Model, id: NodeId) -> Check {
    let node = &model.nodes[id];
    if node.kind == RecordKind::Admin {
        return Ok(());
    }
    let here = |other: &&Node| (other.session, other.segment) == (node.session, node.segment);
    let earlier: Vec<_> = model.nodes.iter().filter(here).filter(|other| other.point < node.point).collect();
    let hidden = |other: &Node| other.voided || other.kind == RecordKind::Void;
    let parent = node.parent.map(|parent| &model.nodes[parent]);
    let from = match parent.filter(here) {
        Some(parent) => {
            let same_attempt = parent.turn.is_some() && parent.turn == node.turn;
            same(("follows what is void", node.point), &(hidden(parent) && !same_attempt), &false)?;
            parent.point
        }
        None => {
            let first = earlier.first().map_or(node.parent, |first| first.parent);
            same(("follows what its segment follows", node.point), &node.parent, &first)?;
            Point::new(0)
        }
    };
    let shown = earlier.iter().filter(|other| other.point > from && !hidden(other)).count();
    same(("not void between it and what it follows", node.point), &shown, &0)
}

pub(crate) fn state(model: &Model, found: &Option<PointState>, id: NodeId) -> Check {
    let node = &model.nodes[id];
    let found = found.as_ref().ok_or_else(|| format!("there is no state at {}", node.point))?;
    let what = |part: &str| format!("{part} at {} ({:?})", node.point, node.kind);
    let content = &node.state.content;
    same(what("point"), &found.point(), &node.point)?;
    same(what("messages"), &found.messages().to_vec(), &content.messages)?;
    same(what("custom"), &found.custom(), &content.custom.as_ref())?;
    let artifacts: Vec<_> = found.artifacts().iter().map(|artifact| (**artifact).clone()).collect();
    same(what("artifacts"), &artifacts, &content.artifacts)?;
    same(what("view"), &found.view(), &content.view.as_ref())?;
    same(what("digest"), &found.digest(), &node.digest)?;
    let counts = (found.turns(), found.index(), found.usage(), found.schema_version());
    same(what("counts"), &counts, &(node.state.turns, node.state.index, node.state.usage, node.state.schema))
}

/// All events of the segments a line goes through, voided ones too.
fn physical(model: &Model, tip: NodeId) -> Vec<NodeId> {
    let mut all = Vec::new();
    let mut next = Some(tip);
    while let Some(tip) = next {
        let at = &model.nodes[tip];
        let in_segment = |node: &Node| (node.session, node.segment) == (at.session, at.segment);
        let mut here: Vec<_> = (0..model.nodes.len())
            .filter(|id| in_segment(&model.nodes[*id]) && model.nodes[*id].point <= at.point)
            .collect();
        here.sort_by_key(|id| model.nodes[*id].point);
        next = model.nodes[here[0]].parent;
        all.splice(0..0, here);
    }
    all
}

/// The events a line has, as the model knows them.
pub(crate) fn line_events(model: &Model, tip: NodeId, voided: bool) -> Vec<Event> {
    let nodes = if voided { physical(model, tip) } else { model.line(tip) };
    nodes.into_iter().flat_map(|node| model.nodes[node].events.iter().cloned()).collect()
}

/// Events without the ids that stores made up.
pub(crate) fn unnamed(mut events: Vec<Event>) -> Check<Vec<Event>> {
    for event in &mut events {
        event.id.take().ok_or_else(|| format!("an event has no id: {event:?}"))?;
    }
    Ok(events)
}

pub(crate) async fn events(model: &Model, store: &dyn Store, at: At, tip: NodeId) -> Check {
    let shown = text(all_events(store, EventQuery::at(at.clone())).await)?;
    same("events", &unnamed(shown)?, &line_events(model, tip, false))?;
    let all = text(all_events(store, EventQuery::at(at).with_voided()).await)?;
    same("events, voided too", &unnamed(all)?, &line_events(model, tip, true))
}
