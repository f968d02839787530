//! What an attempt at a turn that died left for the next one.

use std::sync::Arc;

use serde::Deserialize;

use super::Run;
use crate::event::Event;
use crate::json::Json;
use crate::model::generation::hook::Earlier;
use crate::part::ToolRequest;
use crate::session::SessionKey;
use crate::state::{PointState, StateDelta};
use crate::store::{At, RecordQuery, Store};
use crate::turn::{Begun, RecordKind, ToolEntry, ToolPhase};
use crate::{Point, Result, TurnId};

/// What an attempt at a turn that died left. Empty for a first attempt.
#[derive(Default)]
pub(crate) struct EarlierAttempt {
    /// Its tool calls, each told once.
    calls: Vec<EarlierCall>,
    /// What it had written, in order.
    events: Vec<Event>,
    /// The state it had reached.
    state: Option<PointState>,
}

impl EarlierAttempt {
    /// The number of its last call: what is called from now on is called something else.
    pub(super) fn last_call(&self) -> u64 {
        self.calls.iter().filter_map(|call| call.id.rsplit_once('.')?.1.parse().ok()).max().unwrap_or_default()
    }
}

struct EarlierCall {
    id: String,
    name: String,
    input: Json,
    known: Earlier,
    delta: StateDelta,
    told: bool,
}

/// The metadata of the event that says what a call changed.
#[derive(Deserialize, serde::Serialize)]
pub(super) struct OfCall {
    pub(super) call: String,
}

/// What the last attempt at a turn wrote on its way.
pub(crate) struct Written {
    pub(crate) events: Vec<Event>,
    pub(crate) point: Option<Point>,
}

/// What the last attempt before one wrote on its way. Each attempt goes on where the one before was, so the last that wrote
/// anything has it all.
pub(crate) async fn written(store: &dyn Store, session: &SessionKey, turn: TurnId, before: u64) -> Result<Written> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        events: Vec<Event>,
    }
    let mut written = Written { events: Vec::new(), point: None };
    let mut of = 0;
    let mut query = RecordQuery::of(session.clone()).after(turn.begin().seq());
    loop {
        let page = store.records(query.clone()).await?;
        for record in page.items {
            let attempt = record.attempt.unwrap_or_default();
            if record.turn != Some(turn) || record.kind != RecordKind::Step || attempt >= before {
                continue;
            }
            if attempt != of {
                written.events.clear();
            }
            (of, written.point) = (attempt, Some(Point::new(record.seq)));
            written.events.extend(record.body.to::<Body>()?.events);
        }
        let Some(next) = page.next else { return Ok(written) };
        query = query.from(next);
    }
}

impl Run {
    /// What the attempts before this one left, if there were any.
    pub(super) async fn earlier_attempt(&self, store: &dyn Store, begun: &Begun) -> Result<EarlierAttempt> {
        if begun.fence.attempt() <= 1 {
            return Ok(EarlierAttempt::default());
        }
        let left = written(store, &begun.session, begun.turn, begun.fence.attempt()).await?;
        let state = match left.point {
            Some(point) => store.state(At::Point(begun.session.clone(), point)).await?,
            None => None,
        };
        let tools = store.turn(begun.turn).await?.map(|turn| turn.tools).unwrap_or_default();
        let calls = calls(tools.into_iter().map(|(_, entry)| entry), &left.events);
        Ok(EarlierAttempt { calls, events: left.events, state })
    }

    /// Goes on where the attempt that died was: what it had said and changed is said and changed again, at no cost.
    pub(crate) fn restore_earlier(self: &Arc<Self>) -> Result<()> {
        let (events, state) = {
            let mut work = self.work();
            // What its calls changed comes back with the state.
            work.earlier.calls.iter_mut().for_each(|call| call.delta = StateDelta::new());
            (std::mem::take(&mut work.earlier.events), work.earlier.state.take())
        };
        let Some(state) = state else { return Ok(()) };
        {
            let mut work = self.work();
            for mut event in events {
                (event.seq, event.id, event.usage) = (0, None, None);
                let delta = StateDelta { set: event.state_delta.clone(), remove: event.state_removed.clone() };
                work.scope_delta.then(&super::begin::shared_part(&delta));
                work.add_event(event)?;
            }
            if work.now.messages != *state.messages() {
                work.set_messages(&self.def.name, state.messages().to_vec())?;
            }
            if work.now.view != state.view {
                work.set_view(state.view.as_deref().cloned(), None)?;
            }
            for artifact in state.artifacts() {
                if !work.now.artifacts.contains(&artifact) {
                    work.put_artifact((*artifact).clone())?;
                }
            }
        }
        let custom = self.def.upcasters.apply(state.schema_version(), state.custom().cloned())?;
        let differs = self.work().now.custom != custom;
        if differs { self.write_custom(|_| Ok(custom)) } else { Ok(()) }
    }

    /// What an earlier attempt knows of a call: the first of the same tool with the same input that was not told yet.
    pub(super) fn earlier_call(&self, request: &ToolRequest) -> Option<Earlier> {
        let (known, delta) = {
            let mut work = self.work();
            let input = request.input.clone().unwrap_or_else(Json::empty_object);
            let same = |call: &&mut EarlierCall| !call.told && call.name == request.name && call.input == input;
            let call = work.earlier.calls.iter_mut().find(same)?;
            call.told = true;
            (call.known.clone(), std::mem::take(&mut call.delta))
        };
        if !delta.is_empty()
            && let Err(error) = self.change_state(delta)
        {
            tracing::warn!(%error, "what a finished tool call had changed could not be changed again");
        }
        Some(known)
    }
}

/// The calls of a ledger, the last word on each.
fn calls(entries: impl Iterator<Item = ToolEntry>, events: &[Event]) -> Vec<EarlierCall> {
    let mut calls: Vec<EarlierCall> = Vec::new();
    for entry in entries {
        let payload = entry.payload.unwrap_or_default();
        let known = calls.iter_mut().find(|call| call.id == entry.call);
        match (entry.phase, known) {
            (ToolPhase::Started, Some(call)) => call.known = Earlier::Unknown(entry.call),
            (ToolPhase::Started, None) => calls.push(EarlierCall {
                known: Earlier::Unknown(entry.call.clone()),
                delta: StateDelta::new(),
                id: entry.call,
                name: entry.name,
                input: payload,
                told: false,
            }),
            (ToolPhase::Finished, Some(call)) => call.known = Earlier::Finished(payload),
            (ToolPhase::Failed, Some(call)) => call.known = Earlier::Failed(payload),
            // It asked a person instead: as if it had not been called.
            (ToolPhase::Interrupted, Some(call)) => call.told = true,
            (ToolPhase::Finished | ToolPhase::Failed | ToolPhase::Interrupted, None) => {}
        }
    }
    for event in events {
        let of = event.metadata.as_ref().and_then(|metadata| metadata.to::<OfCall>().ok());
        if let Some(call) = of.and_then(|of| calls.iter_mut().find(|call| call.id == of.call)) {
            call.delta = StateDelta { set: event.state_delta.clone(), remove: event.state_removed.clone() };
        }
    }
    calls
}
