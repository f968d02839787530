//! Snapshots: points with a name.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::state::SessionState;
use crate::{Point, SessionId, SnapshotId, Timestamp};

/// What happened to the work a snapshot stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotStatus {
    /// A detached turn is still running.
    Pending,
    /// Settled; a turn can start here.
    Completed,
    /// The turn failed; what was said until then is readable.
    Failed,
    /// The turn was aborted.
    Aborted,
    /// It is pending, but whoever ran it is gone. Computed when read, never written.
    Expired,
}

/// The occasion a snapshot was taken at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotEvent {
    /// A turn ended.
    TurnEnd,
    /// All tools of one model iteration have answered.
    ToolIterationEnd,
    /// An invocation ended.
    InvocationEnd,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// It ran into a limit of length.
    Length,
    /// The provider refused.
    Blocked,
    /// It waits for a person.
    Interrupted,
    /// It failed.
    Failed,
    /// It was aborted.
    Aborted,
    /// It goes on in the background.
    Detached,
    /// Something else.
    Other,
    /// Nobody said.
    Unknown,
}

impl FinishReason {
    /// Its name, as it is written in JSON and on spans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Blocked => "blocked",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::Detached => "detached",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

/// What made a turn fail, as it is shown to clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnError {
    /// A status in capitals, like `UNAVAILABLE`.
    pub status: String,
    /// What happened.
    pub message: String,
    /// More about it.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}

impl TurnError {
    /// An error with a status and a message.
    #[must_use]
    pub fn new(status: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: status.into(), message: message.into(), details: None }
    }
}

/// A point with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Its id.
    pub snapshot_id: SnapshotId,
    /// The session it belongs to.
    pub session_id: SessionId,
    /// What addresses that session.
    #[serde(skip)]
    pub session: Option<SessionKey>,
    /// The point it names.
    pub point: Point,
    /// The snapshot before it on its line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SnapshotId>,
    /// The digest of the state there.
    pub digest: Digest,
    /// Which opportunity for a snapshot it was, along its line.
    pub index: u64,
    /// Which turn it belongs to, along its line.
    pub turn_index: u64,
    /// The occasion; absent for the seed of an empty session and for a fork's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<SnapshotEvent>,
    /// What happened to the work it stands for.
    pub status: SnapshotStatus,
    /// Why the turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// What made it fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its status last changed.
    pub updated_at: Timestamp,
    /// When whoever runs it was last known to be alive; for pending ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_at: Option<Timestamp>,
    /// Whether it is on no branch's line: computed, never written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub orphaned: bool,
    /// A label somebody gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The state there, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SessionState>,
}

impl Snapshot {
    /// Whether a turn can start here.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        self.status == SnapshotStatus::Completed
    }
}
