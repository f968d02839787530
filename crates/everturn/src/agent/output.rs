//! What an invocation leaves its caller with.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::artifact::Artifact;
use crate::json::Json;
use crate::message::Message;
use crate::snapshot::{FinishReason, TurnError};
use crate::state::{Messages, PointState, SessionState};
use crate::turn::Input;
use crate::{InvocationId, Point, Result, SessionId, SnapshotId, Usage};

/// A session's state as it is handed out: shared, immutable, cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedState {
    pub(crate) session: Option<SessionId>,
    pub(crate) messages: Messages,
    pub(crate) custom: Option<Json>,
    pub(crate) artifacts: Arc<Vec<Arc<Artifact>>>,
}

impl SharedState {
    /// What was said.
    #[must_use]
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The custom state, if there is any.
    #[must_use]
    pub fn custom_json(&self) -> Option<&Json> {
        self.custom.as_ref()
    }

    /// The custom state as a typed value, if there is any.
    pub fn custom<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        self.custom.as_ref().map(Json::to).transpose()
    }

    /// What was made.
    #[must_use]
    pub fn artifacts(&self) -> &[Arc<Artifact>] {
        &self.artifacts
    }

    /// The state as it travels.
    #[must_use]
    pub fn to_session_state(&self) -> SessionState {
        SessionState {
            session_id: self.session.clone(),
            messages: self.messages.to_vec(),
            custom: self.custom.clone(),
            artifacts: self.artifacts.iter().map(|artifact| (**artifact).clone()).collect(),
        }
    }

    /// A state that came over a wire, to be shared.
    #[must_use]
    pub fn from_session_state(state: SessionState) -> Self {
        let mut messages = Messages::default();
        state.messages.into_iter().for_each(|message| messages.push(message));
        Self {
            session: state.session_id,
            messages,
            custom: state.custom,
            artifacts: Arc::new(state.artifacts.into_iter().map(Arc::new).collect()),
        }
    }
}

impl From<&PointState> for SharedState {
    fn from(state: &PointState) -> Self {
        Self {
            session: Some(state.session.clone()),
            messages: state.messages.clone(),
            custom: state.custom.clone(),
            artifacts: Arc::new(state.artifacts()),
        }
    }
}

/// What an invocation leaves its caller with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Output {
    /// The session.
    pub session_id: SessionId,
    /// The invocation.
    pub invocation_id: InvocationId,
    /// What the handler returned, if it returned anything.
    pub output: Option<Json>,
    /// The last message of the last turn that completed.
    pub message: Option<Message>,
    /// The state that was reached, after the agent's transform.
    pub state: SharedState,
    /// What proves that we handed the state out, where states are signed.
    pub signature: Option<String>,
    /// The snapshot that names that state, if one does.
    pub snapshot_id: Option<SnapshotId>,
    /// All snapshots this invocation took.
    pub snapshot_ids: Vec<SnapshotId>,
    /// The artifacts of that state.
    pub artifacts: Vec<Arc<Artifact>>,
    /// Why the last turn ended; nothing when there was none.
    pub finish_reason: Option<FinishReason>,
    /// What made the last turn fail.
    pub error: Option<TurnError>,
    /// What this invocation cost, failed turns too.
    pub usage: Usage,
    /// How much of that which model cost, by its name. What a flow counted itself is under none.
    pub usage_by_model: BTreeMap<String, Usage>,
    /// The point that was reached, where there is a store.
    pub point: Option<Point>,
    /// Whether the branch's head was moved there. A turn from an older snapshot, or one that another overtook, ends beside
    /// it: it is kept and can be resumed by its snapshot. Where a repeated key is answered, whether the turn is on a
    /// branch's line now, be it behind others.
    pub on_head: bool,
    /// Inputs that were sent and not worked on, because a turn before them failed.
    pub unprocessed: Vec<Input>,
}

impl Output {
    /// An output in which nothing has happened yet. For those who bring one from elsewhere.
    #[must_use]
    pub fn new(session_id: SessionId, invocation_id: InvocationId) -> Self {
        let state = SharedState { session: Some(session_id.clone()), ..SharedState::default() };
        Self {
            session_id,
            invocation_id,
            output: None,
            message: None,
            state,
            signature: None,
            snapshot_id: None,
            snapshot_ids: Vec::new(),
            artifacts: Vec::new(),
            finish_reason: None,
            error: None,
            usage: Usage::default(),
            usage_by_model: BTreeMap::new(),
            point: None,
            on_head: false,
            unprocessed: Vec::new(),
        }
    }

    /// The text of its message.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.as_ref().map(Message::text).unwrap_or_default()
    }

    /// What the handler returned, as a typed value.
    pub fn output_as<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.output.as_ref().map(Json::to).transpose()
    }

    /// The error, if the last turn failed.
    pub fn ok(self) -> std::result::Result<Self, TurnError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}
