//! What a turn leaves, as it is answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use everturn::{
    Artifact, FinishReason, InvocationId, Json, Message, Output, Point, SessionId, SessionState, SnapshotId,
    StateManagement, TurnError, Usage,
};
use serde::Serialize;

/// An output on its way out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    session_id: SessionId,
    invocation_id: InvocationId,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<SessionState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<SnapshotId>,
    snapshot_ids: Vec<SnapshotId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<Arc<Artifact>>,
    finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TurnError>,
    usage: Usage,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    usage_by_model: BTreeMap<String, Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) point: Option<Point>,
    pub(super) on_head: bool,
}

/// Whether an answer has the state in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithState {
    Yes,
    No,
}

impl WithState {
    /// Callers who keep the state themselves always get it, others when they ask.
    pub(super) fn of(managed: StateManagement, asked: Option<bool>) -> Self {
        match managed {
            StateManagement::Client => Self::Yes,
            StateManagement::Server if asked == Some(true) => Self::Yes,
            StateManagement::Server => Self::No,
        }
    }
}

impl Answer {
    /// About how many bytes it has.
    pub(super) fn weight(&self) -> usize {
        let message = self.message.as_ref().map_or(0, |message| message.as_str().len());
        let output = self.output.as_ref().map_or(0, |output| output.as_str().len());
        let state = self.state.as_ref().map_or(0, |state| {
            let messages = state.messages.iter().map(|message| message.as_str().len()).sum::<usize>();
            messages + state.custom.as_ref().map_or(0, |custom| custom.as_str().len())
        });
        message + output + state
    }

    pub(super) fn new(output: Output, with_state: WithState) -> Self {
        Self {
            session_id: output.session_id,
            invocation_id: output.invocation_id,
            output: output.output,
            message: output.message,
            state: (with_state == WithState::Yes).then(|| output.state.to_session_state()),
            signature: output.signature,
            snapshot_id: output.snapshot_id,
            snapshot_ids: output.snapshot_ids,
            artifacts: output.artifacts,
            finish_reason: output.finish_reason.unwrap_or(FinishReason::Unknown),
            error: output.error,
            usage: output.usage,
            usage_by_model: output.usage_by_model,
            point: output.point,
            on_head: output.on_head,
        }
    }
}
