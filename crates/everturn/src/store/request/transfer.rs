//! What carries a session from one store to another.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::sessions::Cursor;
use crate::artifact::Artifact;
use crate::digest::Digest;
use crate::json::Json;
use crate::session::{ForkOrigin, SessionKey};
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus, TurnError};
use crate::turn::RecordKind;
use crate::{AgentName, AppName, BranchName, Error, Result, SessionId, SnapshotId, Timestamp, Usage, UserId};

/// Something of a session on its way: what a line of an export holds. `docs/export.md` says what each member is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// What is known about the session, and what the others refer to. The first.
    Session(Box<SessionEntry>),
    /// A stretch of the tree.
    Segment(SegmentEntry),
    /// A record.
    Record(Box<RecordEntry>),
    /// A version of an artifact.
    Version(VersionEntry),
}

/// What is known about an exported session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionEntry {
    /// Its app.
    pub app: AppName,
    /// Its user.
    pub user: UserId,
    /// Its id.
    pub id: SessionId,
    /// Its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// Its metadata.
    pub metadata: Json,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last written to.
    pub updated_at: Timestamp,
    /// What its turns cost.
    pub usage: Usage,
    /// What its line cost before it was forked off.
    pub inherited_usage: Usage,
    /// Whether its last turn waits for a person.
    pub interrupted: bool,
    /// Its branches, `main` among them.
    pub branches: Vec<HeadEntry>,
    /// The sessions its line began in, the one it was forked off first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<OriginEntry>,
    /// Where it was forked off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkOrigin>,
    /// Turns that had not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenEntry>,
}

/// A session that another one's line began in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OriginEntry {
    /// Its id.
    pub id: SessionId,
    /// When it was made.
    pub created_at: Timestamp,
    /// Where it was forked off itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkOrigin>,
}

/// A record, by where it is: `of` is 0 for the session itself, 1 for its first origin, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceEntry {
    /// Whose it is.
    #[serde(default, skip_serializing_if = "is_own")]
    pub of: u64,
    /// Its segment.
    pub segment: u64,
    /// Its number.
    pub seq: u64,
}

fn is_own(of: &u64) -> bool {
    *of == 0
}

/// Where a branch stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadEntry {
    /// Its name.
    pub name: BranchName,
    /// The record.
    pub at: PlaceEntry,
}

/// A turn that had not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenEntry {
    /// Its begin.
    pub begin: u64,
    /// The attempt at it.
    pub attempt: u64,
    /// Where it started.
    pub start: PlaceEntry,
    /// Where it writes; nothing if its branch was taken while it was dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
}

/// A stretch of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentEntry {
    /// Whose it is.
    #[serde(default, skip_serializing_if = "is_own")]
    pub of: u64,
    /// Its number.
    pub id: u64,
    /// The record it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PlaceEntry>,
}

/// A record with what goes with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordEntry {
    /// Whose it is.
    #[serde(default, skip_serializing_if = "is_own")]
    pub of: u64,
    /// Its number.
    pub seq: u64,
    /// Its segment; 0 for admin records.
    pub segment: u64,
    /// What it is.
    pub kind: RecordKind,
    /// The begin of its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// The attempt at its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// When it was written.
    pub at: Timestamp,
    /// The opportunity for a snapshot that it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<SnapshotEvent>,
    /// The version of the custom state's schema.
    #[serde(default, skip_serializing_if = "is_own")]
    pub schema: u64,
    /// The digest of the state after it; absent for admin records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The snapshot of the point after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Box<SnapshotEntry>>,
    /// The artifacts it puts, with their content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Artifact>,
    /// What it holds, as `docs/format.md` says.
    pub body: Json,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotEntry {
    /// Its id.
    pub id: SnapshotId,
    /// The one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SnapshotId>,
    /// Its index.
    pub index: u64,
    /// The index of its turn.
    pub turn_index: u64,
    /// What it was taken at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<SnapshotEvent>,
    /// Its status.
    pub status: SnapshotStatus,
    /// Why its turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// What made it fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A version of an artifact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionEntry {
    /// Whose it is.
    #[serde(default, skip_serializing_if = "is_own")]
    pub of: u64,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// The digest of its content.
    pub digest: Digest,
    /// The record that put it.
    pub seq: u64,
}

/// A part of an export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportPage {
    /// What it holds.
    pub entries: Vec<Entry>,
    /// Where to go on; nothing when this was all.
    pub next: Option<Cursor>,
}

/// A session to bring in.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ImportSession {
    /// Where it shall be.
    pub key: SessionKey,
    /// The agent it shall belong to.
    pub agent: Option<AgentName>,
    /// What its snapshots are called.
    pub snapshots: SnapshotIds,
    /// Everything, in the order it was exported.
    pub entries: Vec<Entry>,
}

impl ImportSession {
    /// A session under a key, with the snapshot ids it had.
    #[must_use]
    pub fn new(key: SessionKey, entries: Vec<Entry>) -> Self {
        Self { key, agent: None, snapshots: SnapshotIds::Keep, entries }
    }

    /// What is known about it.
    pub fn session(&self) -> Result<&SessionEntry> {
        match self.entries.first() {
            Some(Entry::Session(session)) => Ok(session),
            _ => Err(Error::invalid("an export begins with its session: take the file as it was written")),
        }
    }
}

/// What the snapshots of a session that is brought in are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotIds {
    /// What they were called before. `AlreadyExists` if one of the ids is taken.
    #[default]
    Keep,
    /// Fresh ids: for a copy beside the original.
    Fresh,
}
