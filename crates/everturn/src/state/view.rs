//! What the model is shown of a conversation.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Messages;
use super::pairs::Pairs;
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

    /// The messages as the model is shown them, in their order. A tool's request is shown wherever its response is, and
    /// the other way round, also if the view would hide one of them.
    #[must_use]
    pub fn apply(&self, messages: &Messages) -> Vec<Message> {
        let kept = self.kept(messages);
        let kept = kept.iter().filter_map(|index| messages.get(*index)).cloned();
        let rest = messages.iter().skip(self.hidden()).cloned();
        self.summary.iter().cloned().chain(kept).chain(rest).collect()
    }

    /// How many of the first messages are not shown.
    pub(crate) fn hidden(&self) -> usize {
        usize::try_from(self.replaces).unwrap_or(usize::MAX)
    }

    /// The indexes of the messages among the first ones that are shown all the same.
    pub(crate) fn kept(&self, messages: &Messages) -> BTreeSet<usize> {
        let hidden = self.hidden();
        let index = |index: &u64| usize::try_from(*index).ok().filter(|index| *index < hidden.min(messages.len()));
        let mut kept: BTreeSet<usize> = self.pinned.iter().filter_map(index).collect();
        // What is answered in the rest may have been asked before, by a call that took its time.
        if !kept.is_empty() || Pairs::of(messages.iter().skip(hidden)).is_answering_earlier() {
            Pairs::of(messages).complete(&mut kept, hidden);
        }
        kept
    }
}
