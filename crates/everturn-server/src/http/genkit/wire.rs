//! What Genkit's client is sent: its shapes, from ours, converted once.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use everturn::{
    Artifact, Chunk, FinishReason, Json, Message, Output, SessionId, SessionState, Snapshot, SnapshotId,
    SnapshotStatus, StateManagement, Timestamp, TurnError,
};
use serde::Serialize;

use super::frames::ascii;
use crate::http::problem::Problem;

/// An id that no snapshot has.
pub(super) const NO_SNAPSHOT: SnapshotId = SnapshotId::nil();

#[derive(Serialize)]
struct Answer<'a, T> {
    result: &'a T,
}

/// A result as a whole answer.
pub(super) fn answer<T: Serialize>(result: &T) -> Response {
    match ascii(&Answer { result }) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentOutput {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<Artifact>,
    finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TurnError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<SnapshotId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

/// A state that is handed back.
#[derive(Serialize)]
#[serde(untagged)]
enum State {
    /// As it was sent.
    Sent(Json),
    /// As a turn left it.
    Left(SessionState),
}

impl AgentOutput {
    /// About how many bytes it has.
    pub(super) fn weight(&self) -> usize {
        let message = self.message.as_ref().map_or(0, |message| message.as_str().len());
        let parts = self.artifacts.iter().flat_map(|artifact| &artifact.parts).map(|part| part.as_str().len());
        message
            + parts.sum::<usize>()
            + match &self.state {
                None => 0,
                Some(State::Sent(state)) => state.as_str().len(),
                Some(State::Left(state)) => {
                    let messages = state.messages.iter().map(|message| message.as_str().len()).sum::<usize>();
                    messages + state.custom.as_ref().map_or(0, |custom| custom.as_str().len())
                }
            }
    }
}

pub(super) fn output(output: Output, managed: StateManagement) -> everturn::Result<AgentOutput> {
    let client = managed == StateManagement::Client;
    Ok(AgentOutput {
        session_id: Some(output.session_id),
        message: output.message.map(Message::without_snapshot_id).transpose()?,
        artifacts: output.artifacts.iter().map(|artifact| (**artifact).clone()).collect(),
        finish_reason: output.finish_reason.unwrap_or(FinishReason::Unknown),
        error: output.error,
        snapshot_id: output.snapshot_id,
        state: client.then(|| State::Left(output.state.to_session_state())),
    })
}

/// A start that failed in a way Genkit's client is told by a result, not by an error.
pub(super) fn failed(error: TurnError, state: Option<Json>) -> AgentOutput {
    AgentOutput {
        session_id: None,
        message: None,
        artifacts: Vec::new(),
        finish_reason: FinishReason::Failed,
        error: Some(error),
        snapshot_id: None,
        state: state.map(State::Sent),
    }
}

/// What an abort found.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Aborted {
    pub(super) snapshot_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<SnapshotStatus>,
}

/// The chunks this wire has words for, one member each.
pub(super) fn chunks(chunk: Chunk) -> impl Iterator<Item = Chunk> {
    chunk.split().into_iter().filter(|chunk| chunk.status.is_none() && chunk.snapshot_created.is_none())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionSnapshot {
    snapshot_id: SnapshotId,
    session_id: SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<SnapshotId>,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_at: Option<Timestamp>,
    status: SnapshotStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TurnError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<SessionState>,
}

pub(super) fn snapshot(snapshot: Snapshot) -> everturn::Result<SessionSnapshot> {
    let mut state = snapshot.state;
    if let Some(messages) = state.as_mut().map(|state| &mut state.messages)
        && let Some(last) = messages.pop()
    {
        messages.push(last.without_snapshot_id()?);
    }
    Ok(SessionSnapshot {
        snapshot_id: snapshot.snapshot_id,
        session_id: snapshot.session_id,
        parent_id: snapshot.parent_id,
        created_at: snapshot.created_at,
        updated_at: snapshot.updated_at,
        heartbeat_at: snapshot.heartbeat_at,
        status: snapshot.status,
        finish_reason: snapshot.finish_reason,
        error: snapshot.error,
        state,
    })
}
