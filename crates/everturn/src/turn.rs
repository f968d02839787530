//! Turns: what they are given, what they write, what becomes of them.

use serde::{Deserialize, Serialize};

use crate::artifact::Artifact;
use crate::digest::Digest;
use crate::event::Event;
use crate::interrupt::Resume;
use crate::json::Json;
use crate::message::Message;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, SnapshotEvent, TurnError};
use crate::state::{StateDelta, View};
use crate::{AgentName, BranchName, InvocationId, Point, SnapshotId, Timestamp, TurnId, TurnKey, Usage};

/// What a turn is given.
///
/// ```
/// use everturn::Input;
///
/// let input = Input::text("What is a fence?");
/// assert_eq!(input.messages[0].text(), "What is a fence?");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Input {
    /// What the user says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Structured input beside or instead of messages.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
    /// Answers to what an interrupted turn asked.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub resume: Option<Json>,
    /// Go on in the background.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// State to change before the turn, by prefixed key.
    #[serde(skip_serializing_if = "StateDelta::is_empty")]
    pub state_delta: StateDelta,
}

impl Input {
    /// One text by the user.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::messages([Message::user(text)])
    }

    /// Some messages.
    #[must_use]
    pub fn messages(messages: impl IntoIterator<Item = Message>) -> Self {
        Self { messages: messages.into_iter().collect(), ..Self::default() }
    }

    /// Answers to what an interrupted turn asked.
    pub fn resume(resume: &Resume) -> crate::Result<Self> {
        Ok(Self { resume: Some(resume.to_json()?), ..Self::default() })
    }

    /// The same with a change of state.
    #[must_use]
    pub fn with_state(mut self, delta: StateDelta) -> Self {
        self.state_delta = delta;
        self
    }
}

/// What makes a writer the one who may write: the turn and the attempt at it.
///
/// Taking a turn over raises the attempt; whoever still holds the old fence is refused from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    pub(crate) turn: TurnId,
    pub(crate) attempt: u64,
}

impl Fence {
    /// The fence of an attempt at a turn. For those who write stores.
    #[must_use]
    pub const fn new(turn: TurnId, attempt: u64) -> Self {
        Self { turn, attempt }
    }

    /// The turn.
    #[must_use]
    pub fn turn(&self) -> TurnId {
        self.turn
    }

    /// The attempt, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.attempt
    }
}

/// What a record changes. The splice comes first, then the events in order, then custom state, artifacts and view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Replaces the end of the message list, as `set_messages` does.
    pub splice: Option<Splice>,
    /// What happened. Their messages are appended; their state deltas applied.
    pub events: Vec<Event>,
    /// A new custom state as a whole. What is stored is the difference it makes.
    pub custom: Option<CustomChange>,
    /// The version of the custom state's schema, when it changes.
    pub schema_version: Option<u64>,
    /// Artifacts put and removed, in order.
    pub artifacts: Vec<ArtifactChange>,
    /// What the model is shown from here on.
    pub view: Option<ViewChange>,
    /// Tool calls begun and ended.
    pub tools: Vec<ToolEntry>,
    /// What was spent beside the events' own usage.
    pub usage: Usage,
}

impl Changes {
    /// No change.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event.
    #[must_use]
    pub fn event(mut self, event: Event) -> Self {
        if self.events.is_empty() {
            // Mostly there is one, and they are large.
            self.events.reserve_exact(1);
        }
        self.events.push(event);
        self
    }

    /// Replaces the custom state.
    #[must_use]
    pub fn custom(mut self, custom: Json) -> Self {
        self.custom = Some(CustomChange::Set(custom));
        self
    }

    /// Puts an artifact.
    #[must_use]
    pub fn artifact(mut self, artifact: Artifact) -> Self {
        self.artifacts.push(ArtifactChange::Put(artifact));
        self
    }

    /// Changes what the model is shown.
    #[must_use]
    pub fn view(mut self, view: View) -> Self {
        self.view = Some(ViewChange::Set(view));
        self
    }

    /// Keeps the first `keep` messages and appends others.
    #[must_use]
    pub fn splice(mut self, keep: u64, messages: Vec<Message>) -> Self {
        self.splice = Some(Splice { keep, messages });
        self
    }

    /// Notes a tool call.
    #[must_use]
    pub fn tool(mut self, entry: ToolEntry) -> Self {
        self.tools.push(entry);
        self
    }
}

/// Keeps the first messages and replaces the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Splice {
    /// How many messages stay.
    pub keep: u64,
    /// What follows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
}

/// A change of the whole custom state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CustomChange {
    /// This is it now.
    Set(Json),
    /// There is none now.
    Clear,
}

/// A change of the artifacts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactChange {
    /// Replaces the one of that name where it stands, or appends it.
    Put(Artifact),
    /// Takes the one of that name away; its versions stay readable.
    Remove(String),
    /// Takes all away.
    Clear,
}

/// A change of what the model is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewChange {
    /// This, from here on.
    Set(View),
    /// All messages again.
    Clear,
}

/// How far a tool call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolPhase {
    /// It is about to run.
    Started,
    /// It answered.
    Finished,
    /// It failed.
    Failed,
    /// It asked a person instead of answering.
    Interrupted,
}

/// One line of the ledger of tool calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolEntry {
    /// The call, unique within its turn.
    pub call: String,
    /// The tool.
    pub name: String,
    /// How far it got.
    pub phase: ToolPhase,
    /// What it was given, or what it answered.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

impl ToolEntry {
    /// A line for the ledger.
    #[must_use]
    pub fn new(call: impl Into<String>, name: impl Into<String>, phase: ToolPhase, payload: Option<Json>) -> Self {
        Self { call: call.into(), name: name.into(), phase, payload }
    }
}

/// A snapshot to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its id, known before the turn ends.
    pub id: SnapshotId,
    /// A label.
    pub label: Option<String>,
}

impl NewSnapshot {
    /// A snapshot under an id.
    #[must_use]
    pub fn new(id: SnapshotId) -> Self {
        Self { id, label: None }
    }

    /// The same with a label.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndStatus {
    /// It counts: the head moves and scopes are written.
    Completed,
    /// It is void: kept for reading, hidden from every later point.
    Failed,
    /// It was aborted: void as well.
    Aborted,
}

/// What a turn leaves its caller with; kept with the turn's end, so that a repeated key is answered the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// What the handler returned.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    /// Its last message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// What made it fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// It failed because its process is gone or could not write its end, and not by itself: asked for again under its
    /// key, or taken over, it runs again as its next attempt.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

impl Outcome {
    /// An outcome with a reason.
    #[must_use]
    pub fn finished(reason: FinishReason) -> Self {
        Self { finish_reason: Some(reason), ..Self::default() }
    }

    /// A failure.
    #[must_use]
    pub fn failed(error: TurnError) -> Self {
        Self { finish_reason: Some(FinishReason::Failed), error: Some(error), ..Self::default() }
    }

    /// A failure that was not the turn's own: it may be run again.
    #[must_use]
    pub fn lost(error: TurnError) -> Self {
        Self { lost: true, ..Self::failed(error) }
    }
}

/// A turn that ended, as a repeated key is told.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedTurn {
    /// The turn.
    pub turn: TurnId,
    /// The session it belongs to.
    pub session: SessionKey,
    /// How it ended.
    pub status: EndStatus,
    /// What it left.
    pub outcome: Outcome,
    /// Where it ended.
    pub point: Point,
    /// The snapshot taken there.
    pub snapshot_id: Option<SnapshotId>,
    /// The digest of the state there.
    pub digest: Digest,
    /// Whether it is on the line of a branch now, be it behind others.
    pub on_line: bool,
}

/// A turn that may now write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The turn.
    pub turn: TurnId,
    /// What it writes with.
    pub fence: Fence,
    /// The session it belongs to.
    pub session: SessionKey,
    /// Its branch.
    pub branch: BranchName,
    /// The point it started from.
    pub from: Point,
    /// Where it stands now: after its begin record, with the input's messages appended.
    pub point: Point,
    /// Its index along the line.
    pub turn_index: u64,
    /// The index of the next opportunity for a snapshot.
    pub index: u64,
    /// The snapshot id it has reserved.
    pub snapshot_id: Option<SnapshotId>,
    /// Whether it holds its branch's lease; if not it is a side line, and may end off the head.
    pub leased: bool,
}

/// What beginning a turn led to.
#[derive(Clone, Debug, PartialEq)]
pub enum Begin {
    /// Go ahead.
    Begun(Begun),
    /// A turn with that key is running.
    Running(TurnId),
    /// A turn with that key has ended; nothing ran.
    Ended(Box<EndedTurn>),
}

impl Begin {
    /// The begun turn, or an error that says why there is none.
    pub fn begun(self) -> crate::Result<Begun> {
        match self {
            Self::Begun(begun) => Ok(begun),
            Self::Running(turn) => Err(crate::Error::busy(format!("turn {turn} with that key is still running"))),
            Self::Ended(ended) => {
                Err(crate::Error::conflict(format!("turn {} with that key has ended already", ended.turn)))
            }
        }
    }
}

/// Proof that something was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The point after what was written.
    pub point: Point,
    /// The snapshot that was taken.
    pub snapshot_id: Option<SnapshotId>,
    /// The digest of the state there.
    pub digest: Digest,
    /// Whether the branch's head stands there now.
    pub on_head: bool,
    /// When it was written.
    pub at: Timestamp,
}

/// What is known about a turn's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnStatus {
    /// Somebody is working on it.
    Running,
    /// Whoever worked on it is gone; it can be taken over.
    Dead,
    /// It completed.
    Completed,
    /// It failed.
    Failed,
    /// It was aborted.
    Aborted,
}

impl From<EndStatus> for TurnStatus {
    fn from(status: EndStatus) -> Self {
        match status {
            EndStatus::Completed => Self::Completed,
            EndStatus::Failed => Self::Failed,
            EndStatus::Aborted => Self::Aborted,
        }
    }
}

/// A turn that has begun and not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningTurn {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionKey,
    /// Its branch.
    pub branch: BranchName,
    /// The agent that runs it.
    pub agent: Option<AgentName>,
    /// Its invocation.
    pub invocation: InvocationId,
    /// Its key.
    pub key: Option<TurnKey>,
    /// The attempt at it, counted from 1.
    pub attempt: u64,
    /// Running, or dead.
    pub status: TurnStatus,
    /// Whether it holds its branch's lease.
    pub leased: bool,
    /// Whether it goes on in the background: the snapshot it has reserved is a pending row.
    pub detached: bool,
    /// The snapshot id it has reserved.
    pub snapshot_id: Option<SnapshotId>,
    /// When it began.
    pub began_at: Timestamp,
    /// When whoever runs it was last known to be alive.
    pub heartbeat_at: Timestamp,
}

/// Everything known about a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnRecord {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionKey,
    /// What is known about its life.
    pub status: TurnStatus,
    /// The last attempt at it.
    pub attempt: u64,
    /// Its invocation.
    pub invocation: InvocationId,
    /// The agent that runs it.
    pub agent: Option<AgentName>,
    /// The point it started from.
    pub from: Point,
    /// What it was given.
    pub input: Input,
    /// Its tool calls, with the attempt that made each.
    pub tools: Vec<(u64, ToolEntry)>,
    /// How it ended, if it has.
    pub ended: Option<EndedTurn>,
}

/// What an abort found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// The turn.
    pub turn: TurnId,
    /// What it was before. Anything but running or dead was left as it is.
    pub before: TurnStatus,
}

/// What kind of entry a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordKind {
    /// A turn began.
    Begin,
    /// A turn wrote something on its way.
    Step,
    /// A turn completed.
    End,
    /// An attempt at a turn is void.
    Void,
    /// A change outside a turn.
    Edit,
    /// A change of title, labels, metadata or branches.
    Admin,
}

/// One entry of a session's log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its place in the session.
    pub seq: u64,
    /// What it is.
    pub kind: RecordKind,
    /// When it was written.
    pub at: Timestamp,
    /// The stretch of the tree it belongs to; 0 for admin records.
    pub segment: u64,
    /// Its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The attempt at its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Whether a later void hides it.
    pub voided: bool,
    /// The snapshot that names the point after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// The occasion for a snapshot that it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<SnapshotEvent>,
    /// What it holds; `docs/format.md` says how to read it.
    pub body: Json,
}
