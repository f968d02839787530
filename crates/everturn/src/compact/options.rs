//! What a compaction is asked to do.

use std::fmt;
use std::sync::Arc;

use super::keep::Keep;
use crate::message::{Message, Role};
use crate::{BranchName, SessionId};

type Pin = dyn Fn(&Message) -> bool + Send + Sync;

/// What a compaction leaves as it is.
///
/// Everything else that the model is shown is replaced by a summary. Instructions (messages of the role `system`) and
/// messages with `metadata.pinned: true` always stay; what was pinned once stays until the view is cleared.
///
/// ```
/// use everturn::{Compaction, Json, Message};
///
/// // The last two turns, and whatever has to do with money.
/// let compaction = Compaction::new().keep_turns(2).pin(|message| message.text().contains('€'));
/// // A message that says of itself that it must stay:
/// let rule = Message::user("Always answer in French.").with_metadata("pinned", &Json::parse("true")?);
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "what a compaction leaves is for `Agent::compact` or `Session::compact`"]
pub struct Compaction {
    pub(super) keep: Keep,
    pin: Option<Arc<Pin>>,
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

impl Compaction {
    /// Nothing but what is pinned.
    pub fn new() -> Self {
        Self { keep: Keep::Turns(0), pin: None }
    }

    /// The last so many turns. A turn begins where a user speaks after somebody else did.
    pub fn keep_turns(mut self, count: usize) -> Self {
        self.keep = Keep::Turns(count);
        self
    }

    /// The last so many messages, and more where a tool's answer would lose its question: for a turn so long that it is
    /// itself to be compacted.
    pub fn keep_messages(mut self, count: usize) -> Self {
        self.keep = Keep::Messages(count);
        self
    }

    /// The messages that a function picks, with the tool calls that belong to them.
    pub fn pin(mut self, picks: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.pin = Some(Arc::new(picks));
        self
    }

    pub(super) fn pins(&self, message: &Message) -> bool {
        is_marked(message) || self.pin.as_ref().is_some_and(|picks| picks(message))
    }
}

/// Whether a message says of itself that it must stay.
pub(super) fn is_marked(message: &Message) -> bool {
    message.role() == Role::System || message.metadata("pinned").is_some_and(|pinned| pinned.as_str() == "true")
}

impl fmt::Debug for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compaction").field("keep", &self.keep).field("pin", &self.pin.is_some()).finish()
    }
}

/// A session's branch: `main` unless one is named with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnBranch {
    /// The session.
    pub session: SessionId,
    /// The branch.
    pub branch: BranchName,
}

impl From<&SessionId> for OnBranch {
    fn from(session: &SessionId) -> Self {
        Self { session: session.clone(), branch: BranchName::main() }
    }
}

impl From<(&SessionId, &BranchName)> for OnBranch {
    fn from((session, branch): (&SessionId, &BranchName)) -> Self {
        Self { session: session.clone(), branch: branch.clone() }
    }
}
