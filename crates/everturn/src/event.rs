//! Events: the interactions inside a turn.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::message::Message;
use crate::part::{Part, PartKind};
use crate::state::StateDelta;
use crate::{EventId, InvocationId, Timestamp, Usage};

/// One interaction inside a turn: a user's message, a model's answer, a tool's call or result.
///
/// You fill in what happened; the store fills in where it stands (`seq`, `turn_index`, `invocation_id`, and `id` and
/// `at` when you left them out). An event whose `partial` is set is accepted and not stored.
///
/// ```
/// use everturn::{Event, Message, Usage};
///
/// let event = Event::model("helper", Message::model("Hello!")).with_usage(Usage::tokens(12, 3));
/// assert_eq!(event.author, "helper");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Event {
    /// Its id; given by the store unless you set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
    /// Its place in the session: given by the store, increasing along every line.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// When it happened; the time of its record unless you set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The invocation it belongs to: its turn's, unless you set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invocation_id: Option<InvocationId>,
    /// The turn it belongs to, counted from 0 along the line; absent for changes outside turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_index: Option<u64>,
    /// Who made it: `user`, or an agent's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// The agents on the way to it, like `planner.researcher`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// What it is.
    #[serde(skip_serializing_if = "EventKind::is_message")]
    pub kind: EventKind,
    /// The messages it adds to the conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// A piece of a stream: accepted and not stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The state it sets, by prefixed key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub state_delta: BTreeMap<String, Json>,
    /// The keys of state it removes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub state_removed: BTreeSet<String>,
    /// The versions of artifacts it made.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub artifact_delta: BTreeMap<String, u64>,
    /// What it asks the runtime to do.
    #[serde(skip_serializing_if = "EventActions::is_empty")]
    pub actions: EventActions,
    /// Tool calls that go on after the turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub long_running_tool_ids: Vec<String>,
    /// What went wrong, by code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// What went wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Whatever goes with it.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum EventKind {
    /// Something said by a user or a model.
    #[default]
    Message,
    /// A model asked for a tool.
    ToolCall,
    /// A tool answered.
    ToolResult,
    /// Only state changed.
    State,
    /// A compaction of what the model is shown.
    Compaction,
    /// Anything else.
    Other,
}

impl EventKind {
    fn is_message(&self) -> bool {
        *self == Self::Message
    }
}

/// What an event asks the runtime to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct EventActions {
    /// Do not summarise the tool's answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// Hand over to another agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_to_agent: Option<String>,
    /// Hand back to the parent agent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub escalate: bool,
    /// Tool calls that wait for a person's word, by call id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requested_tool_confirmations: BTreeMap<String, Json>,
}

impl EventActions {
    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what another asks for. Of two transfers the first counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.skip_summarization |= other.skip_summarization;
        self.escalate |= other.escalate;
        if self.transfer_to_agent.is_none() {
            self.transfer_to_agent.clone_from(&other.transfer_to_agent);
        }
        self.requested_tool_confirmations.extend(other.requested_tool_confirmations.clone());
    }

    /// Whether the model is not to be asked again: somebody else goes on, or the tool's answer is the answer.
    pub(crate) fn ends_generation(&self) -> bool {
        self.skip_summarization || self.escalate || self.transfer_to_agent.is_some()
    }
}

impl Event {
    /// An event by an author, with nothing in it yet.
    #[must_use]
    pub fn new(author: impl Into<String>) -> Self {
        Self { author: author.into(), ..Self::default() }
    }

    /// A user's message.
    #[must_use]
    pub fn user(message: Message) -> Self {
        Self::new("user").with_messages([message])
    }

    /// A model's message, by the agent that speaks through it.
    #[must_use]
    pub fn model(agent: impl Into<String>, message: Message) -> Self {
        Self::new(agent).with_messages([message])
    }

    /// Whether it is the last word of its agent for now: nothing in it asks for a tool or is a tool's answer that the model
    /// is yet to read, or what it asks for goes on by itself.
    #[must_use]
    pub fn is_final_response(&self) -> bool {
        if self.actions.skip_summarization || !self.long_running_tool_ids.is_empty() {
            return true;
        }
        let open = |part: &Part| matches!(part.kind(), PartKind::ToolRequest | PartKind::ToolResponse);
        !self.partial && !self.messages.iter().any(|message| message.parts().iter().any(open))
    }

    /// The model that made it, where `metadata.model` names one.
    #[must_use]
    pub fn model_name(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct ByModel {
            model: String,
        }
        self.metadata.as_ref()?.to::<ByModel>().ok().map(|by| by.model)
    }

    /// Adds messages.
    #[must_use]
    pub fn with_messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// Adds a change of state.
    #[must_use]
    pub fn with_state(mut self, delta: StateDelta) -> Self {
        self.state_delta.extend(delta.set);
        self.state_removed.extend(delta.remove);
        self
    }

    /// Says what it cost.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Says when it happened.
    #[must_use]
    pub fn with_time(mut self, at: Timestamp) -> Self {
        self.at = Some(at);
        self
    }

    /// Gives it an id.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }
}
