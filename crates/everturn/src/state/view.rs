//! What the model is shown of a conversation.

use serde::{Deserialize, Serialize};

use super::Messages;
use crate::message::Message;

/// What the model is shown instead of all messages: a summary in place of the first ones, and the rest as they are.
///
/// It changes what the model sees, never what was said; rewinding to a point before it undoes it.
///
/// ```
/// use everturn::{Message, View};
///
/// let view = View::new(4, vec![Message::model("They talked about tea.")]);
/// assert_eq!(view.replaces, 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct View {
    /// How many of the first messages are not shown.
    pub replaces: u64,
    /// What is shown in their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<Message>,
    /// Indexes of messages among the first ones that are shown all the same, after the summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<u64>,
}

impl View {
    /// Shows a summary in place of the first messages.
    #[must_use]
    pub fn new(replaces: u64, summary: Vec<Message>) -> Self {
        Self { replaces, summary, pinned: Vec::new() }
    }

    /// The messages as the model is shown them.
    #[must_use]
    pub fn apply(&self, messages: &Messages) -> Vec<Message> {
        let pinned = self.pinned.iter().filter(|index| **index < self.replaces);
        let pinned = pinned.filter_map(|index| messages.get(usize::try_from(*index).ok()?)).cloned();
        let rest = messages.iter().skip(usize::try_from(self.replaces).unwrap_or(usize::MAX)).cloned();
        self.summary.iter().cloned().chain(pinned).chain(rest).collect()
    }
}
