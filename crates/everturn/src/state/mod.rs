//! State: what a line of records adds up to.

#[cfg(test)]
mod bounds;
mod delta;
mod held;
mod messages;
pub(crate) mod pairs;
mod view;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use delta::{Scope, ScopedState, StateDelta};
pub(crate) use delta::{keys_weight, refuse_prefixed, split_key};
pub(crate) use held::Held;
pub use messages::Messages;
pub use view::View;

use crate::artifact::Artifact;
use crate::digest::{Digest, StateDigests, of_artifacts};
use crate::json::Json;
use crate::message::Message;
use crate::{Point, Result, SessionId, Usage};

/// The portable state of a conversation, as it travels: `{sessionId, messages, custom?, artifacts}`.
///
/// Absent, `null` and `{}` custom state are three different things.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// What was said.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// The application's own state.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub custom: Option<Json>,
    /// What was made.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
}

/// The state at a point: what its line adds up to.
///
/// Shared, immutable and cheap to clone: messages are handed out as the store holds them, nothing is copied.
#[derive(Clone, Debug)]
pub struct PointState {
    pub(crate) point: Point,
    pub(crate) session: SessionId,
    pub(crate) messages: Messages,
    pub(crate) custom: Option<Json>,
    pub(crate) artifacts: Arc<Vec<StateArtifact>>,
    pub(crate) view: Option<Arc<View>>,
    pub(crate) tip: Tip,
}

#[derive(Clone, Debug)]
pub(crate) struct StateArtifact {
    pub(crate) digest: Digest,
    pub(crate) content: Arc<Artifact>,
}

/// What a record says about the state after it without holding that state: enough to go on from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tip {
    pub(crate) digests: StateDigests,
    pub(crate) messages: u64,
    /// Completed turns along the line; the index of the next turn.
    pub(crate) turns: u64,
    /// Opportunities for a snapshot along the line; the index of the next one.
    pub(crate) index: u64,
    /// Patches of custom state since it was last written whole, and their bytes.
    pub(crate) patches: u64,
    pub(crate) patch_bytes: u64,
    /// What the line cost.
    pub(crate) usage: Usage,
    /// The version of the custom state's schema.
    pub(crate) schema: u64,
}

impl Tip {
    pub(crate) const EMPTY: Self = Self {
        digests: StateDigests::EMPTY,
        messages: 0,
        turns: 0,
        index: 0,
        patches: 0,
        patch_bytes: 0,
        usage: Usage {
            input_tokens: 0,
            output_tokens: 0,
            total_tokens: 0,
            cached_content_tokens: 0,
            thoughts_tokens: 0,
        },
        schema: 0,
    };

    /// Whether there is nothing in the state.
    pub(crate) fn is_blank(&self) -> bool {
        self.messages == 0 && self.digests == StateDigests::EMPTY
    }
}

impl PointState {
    pub(crate) fn empty(session: SessionId) -> Self {
        Self {
            point: Point::new(0),
            session,
            messages: Messages::default(),
            custom: None,
            artifacts: Arc::default(),
            view: None,
            tip: Tip::EMPTY,
        }
    }

    /// A state as it travels, standing at a point. For those who write stores: the digest is computed, and turns, index,
    /// usage and view are what [`PointState::with_progress`] and [`PointState::with_view`] say.
    pub fn new(point: Point, session: SessionId, state: SessionState) -> Result<Self> {
        let mut made = Self::empty(session);
        made.point = point;
        let mut chain = Digest::ABSENT;
        for message in state.messages {
            chain = chain.chain(Digest::of_json(message.json())?);
            made.messages.push(message);
        }
        made.messages.set_chain(chain);
        let artifacts = state.artifacts.into_iter().map(|artifact| {
            let digest = Digest::of_json(&Json::written(&artifact)?)?;
            Ok(StateArtifact { digest, content: Arc::new(artifact) })
        });
        made.artifacts = Arc::new(artifacts.collect::<Result<_>>()?);
        made.tip.messages = made.messages.len() as u64;
        made.tip.digests.chain = chain;
        made.tip.digests.custom = state.custom.as_ref().map_or(Ok(Digest::ABSENT), Digest::of_json)?;
        made.tip.digests.artifacts = made.artifacts_digest();
        made.custom = state.custom;
        Ok(made)
    }

    /// The same after so many turns and opportunities for a snapshot, with what they cost.
    #[must_use]
    pub fn with_progress(mut self, turns: u64, index: u64, usage: Usage) -> Self {
        (self.tip.turns, self.tip.index, self.tip.usage) = (turns, index, usage);
        self
    }

    /// The same with what the model is shown.
    pub fn with_view(mut self, view: View) -> Result<Self> {
        self.tip.digests.view = Digest::of_json(&Json::written(&view)?)?;
        self.view = Some(Arc::new(view));
        Ok(self)
    }

    /// The point.
    #[must_use]
    pub fn point(&self) -> Point {
        self.point
    }

    /// What was said.
    #[must_use]
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The application's own state, if there is any.
    #[must_use]
    pub fn custom(&self) -> Option<&Json> {
        self.custom.as_ref()
    }

    /// What was made.
    #[must_use]
    pub fn artifacts(&self) -> Vec<Arc<Artifact>> {
        self.artifacts.iter().map(|artifact| artifact.content.clone()).collect()
    }

    /// What the model is shown instead of all messages, if that was changed.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }

    /// What the model is shown: the view's messages, or all of them.
    #[must_use]
    pub fn model_messages(&self) -> Vec<Message> {
        match &self.view {
            Some(view) => view.apply(&self.messages),
            None => self.messages.to_vec(),
        }
    }

    /// The state's digest: equal states have equal ones, whatever their path, session or store.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.tip.digests.state()
    }

    /// Turns completed along the line; the index of the next turn.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.tip.turns
    }

    /// Opportunities for a snapshot along the line, taken or not; the index of the next one.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.tip.index
    }

    /// What the completed turns of the line cost.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.tip.usage
    }

    /// The version of the schema that the custom state was written with; 0 when none was given.
    #[must_use]
    pub fn schema_version(&self) -> u64 {
        self.tip.schema
    }

    /// The state as it travels.
    #[must_use]
    pub fn to_session_state(&self) -> SessionState {
        SessionState {
            session_id: Some(self.session.clone()),
            messages: self.messages.to_vec(),
            custom: self.custom.clone(),
            artifacts: self.artifacts.iter().map(|artifact| (*artifact.content).clone()).collect(),
        }
    }

    pub(crate) fn artifacts_digest(&self) -> Digest {
        of_artifacts(self.artifacts.iter().map(|artifact| &artifact.digest))
    }

    /// Its custom state, which other states may share.
    pub(crate) fn held_custom(&self) -> Option<Held> {
        self.custom.as_ref().map(Json::held)
    }

    /// The list of its artifacts, which other states may share.
    pub(crate) fn held_artifacts(&self) -> Held {
        Held::of(&self.artifacts, self.artifacts.len() * size_of::<StateArtifact>())
    }

    /// Roughly what it holds in memory; shared pieces are counted each time they are reached.
    pub(crate) fn weight(&self) -> u64 {
        let custom = self.custom.as_ref().map_or(0, |custom| custom.as_str().len() as u64);
        let artifacts: usize = self
            .artifacts
            .iter()
            .flat_map(|artifact| artifact.content.parts.iter().map(|part| part.as_str().len() + 64))
            .sum();
        512 + self.messages.bytes() + custom + artifacts as u64
    }
}
