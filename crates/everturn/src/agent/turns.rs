//! Turns that did not end: which there are, what they did, and trying them again.

use super::{Agent, CustomState, Init};
use crate::connection::Connection;
use crate::event::Event;
use crate::interrupt::slots;
use crate::json::Json;
use crate::message::Message;
use crate::run::retry::written;
use crate::turn::{RunningTurn, ToolPhase, TurnRecord};
use crate::{Error, Result, SessionId, TurnId};

/// A tool call of a turn, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// The call's id; nothing if it was never started.
    pub call: Option<String>,
    /// The tool.
    pub name: String,
    /// What it was given.
    pub input: Json,
    /// How far it got.
    pub state: CallState,
}

/// How far a tool call got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallState {
    /// The model asked for it, and it was never started.
    NotStarted,
    /// It was started, and nobody knows whether it happened.
    Unknown,
    /// It asked a person.
    Interrupted(Json),
    /// It answered.
    Finished(Json),
    /// It failed, and this the model was told.
    Failed(Json),
}

impl<S: CustomState> Agent<S> {
    /// The turns of a session that have begun and not ended: those that run, and those whose process is gone.
    pub async fn unfinished(&self, session: &SessionId) -> Result<Vec<RunningTurn>> {
        let (store, key) = (self.own_store()?, self.key(session));
        if !self.owns(store, &key).await? {
            return Ok(Vec::new());
        }
        store.running(Some(&key)).await
    }

    /// What is known about a turn; nothing if this user has no such turn with this agent.
    pub async fn turn(&self, id: TurnId) -> Result<Option<TurnRecord>> {
        let store = self.own_store()?;
        let Some(turn) = store.turn(id).await? else { return Ok(None) };
        let owned = self.key(&turn.session.id) == turn.session && self.owns(store, &turn.session).await?;
        Ok(owned.then_some(turn))
    }

    /// The tool calls of a turn: which finished, which may have happened, which never started.
    pub async fn calls(&self, id: TurnId) -> Result<Vec<CallRecord>> {
        let unknown = || Error::not_found(format!("turn {id} not found for agent '{}'", self.def.name));
        let turn = self.turn(id).await?.ok_or_else(unknown)?;
        let mut calls: Vec<CallRecord> = Vec::new();
        for (_, entry) in turn.tools {
            let payload = entry.payload.unwrap_or_default();
            let known = calls.iter_mut().find(|call| call.call.as_deref() == Some(&entry.call));
            let state = match entry.phase {
                ToolPhase::Started => CallState::Unknown,
                ToolPhase::Finished => CallState::Finished(payload.clone()),
                ToolPhase::Failed => CallState::Failed(payload.clone()),
                ToolPhase::Interrupted => CallState::Interrupted(payload.clone()),
            };
            match known {
                Some(call) => call.state = state,
                None => calls.push(CallRecord { call: Some(entry.call), name: entry.name, input: payload, state }),
            }
        }
        let left = written(self.own_store()?, &turn.session, id, u64::MAX).await?;
        calls.extend(never_started(&left.events, &calls));
        Ok(calls)
    }

    /// Tries a turn again whose process is gone: with the input it was given, from where it started. Tool calls that
    /// finished are not made again; those nobody knows about follow their tool's [`Unknown`](crate::tool::Unknown).
    ///
    /// One whose input asked for the background goes there again: its output says so, and its snapshot is the same.
    ///
    /// `Busy` while the turn is alive, `Conflict` once it has ended, unless it was ended because it was lost.
    pub async fn retry(&self, id: TurnId) -> Result<Connection> {
        self.try_again(Init { retry: Some(id), ..Init::default() }, id).await
    }

    /// The same with nobody waiting for it.
    pub(super) async fn retry_in_background(&self, id: TurnId) -> Result<()> {
        let init = Init { retry: Some(id), background: true, ..Init::default() };
        // What refuses it is told here; after that it goes on by itself.
        self.try_again(init, id).await?.output().await.map(drop)
    }

    async fn try_again(&self, init: Init, id: TurnId) -> Result<Connection> {
        let unknown = || Error::not_found(format!("turn {id} not found for agent '{}'", self.def.name));
        let input = self.turn(id).await?.ok_or_else(unknown)?.input;
        let mut connection = self.connect(init).await?;
        connection.send(input).await?;
        connection.close();
        Ok(connection)
    }
}

/// Calls that the model asked for and nobody began.
fn never_started(events: &[Event], begun: &[CallRecord]) -> Vec<CallRecord> {
    let mut begun: Vec<_> = begun.iter().map(|call| (call.name.clone(), call.input.clone())).collect();
    let messages = events.iter().flat_map(|event| &event.messages);
    let asked = messages.flat_map(|message: &Message| slots(message));
    let mut never = Vec::new();
    for slot in asked {
        let call = (slot.request.name, slot.request.input.unwrap_or_else(Json::empty_object));
        match begun.iter().position(|other| *other == call) {
            Some(index) => drop(begun.remove(index)),
            None => never.push(CallRecord { call: None, name: call.0, input: call.1, state: CallState::NotStarted }),
        }
    }
    never
}
