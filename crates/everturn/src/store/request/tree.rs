//! What a page needs to draw a session: its tree, and how it looks from outside.

use serde::Serialize;

#[cfg(doc)]
use super::MAX_PAGE;
use super::MAX_PAGE_BYTES;
use super::sessions::Cursor;
use crate::message::Role;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, TurnError};
use crate::turn::TurnStatus;
use crate::{BranchName, Point, SnapshotId, Timestamp, TurnId, Usage};

/// The most characters of a text that a node or a preview shows.
pub const MAX_EXCERPT: usize = 200;

/// Which part of a session's tree to read, in the order its turns and edits began.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TreeQuery {
    /// The session.
    pub session: SessionKey,
    /// How many nodes a page has, at most [`MAX_PAGE`].
    pub limit: usize,
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one item is always given.
    pub bytes: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

impl TreeQuery {
    /// The tree from its root.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self { session, limit: 100, bytes: MAX_PAGE_BYTES, cursor: None }
    }

    /// So many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// From where a page ended.
    #[must_use]
    pub fn from(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// Some nodes of a session's tree, from one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TreePage {
    /// The nodes, in the order they began.
    pub nodes: Vec<TreeNode>,
    /// Where to go on; nothing when this was all.
    pub next: Option<Cursor>,
    /// The last number of the log at that moment: what comes after it is not in the page.
    pub last: u64,
}

/// What a node of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// The session as it was created or forked.
    Root,
    /// A turn, with all attempts at it.
    Turn,
    /// A change outside turns.
    Edit,
    /// A change of what the model is shown.
    Compaction,
}

/// A turn or an edit, and where it hangs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TreeNode {
    /// Its first record; what it is called within its session.
    pub begin: Point,
    /// What it is.
    pub kind: NodeKind,
    /// The point it follows. In a fork that may be one of the session it was forked off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Point>,
    /// Its last record so far. Others hang from here, or from a snapshot inside.
    pub end: Point,
    /// The turn it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// What became of it. What failed or was aborted is void: nothing hangs from it.
    pub status: TurnStatus,
    /// Whether it completed and is on no branch's line.
    pub orphaned: bool,
    /// The branches that stand at its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heads: Vec<BranchName>,
    /// The snapshots in it, in the order of their points.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<NodeSnapshot>,
    /// The beginning of what was said to the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The beginning of the last that the agent said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// What made it fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// What it cost, all attempts together.
    pub usage: Usage,
    /// How many attempts there were at it; 0 for what is no turn.
    pub attempts: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When its last record was written.
    pub ended_at: Timestamp,
}

/// A snapshot as a node shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The point it names.
    pub point: Point,
    /// Its label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// How a session looks from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Preview {
    /// Messages on the way to `main`'s head.
    pub messages: u64,
    /// Numbers the log has used: how much there is to read.
    pub log: u64,
    /// The last message there. Nothing when there is none near the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message: Option<Excerpt>,
}

/// The beginning of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excerpt {
    /// Whose it is.
    pub role: Role,
    /// The beginning of its text.
    pub text: String,
}
