//! How much of a conversation's end is kept as it is.

use crate::message::{Message, Role};

/// How much of a conversation's end is kept as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Turns(usize),
    Messages(usize),
}

impl Keep {
    /// Where what is kept begins, tools not considered.
    pub(super) fn start(self, messages: &[&Message]) -> usize {
        match self {
            Self::Messages(count) => messages.len().saturating_sub(count),
            Self::Turns(0) => messages.len(),
            Self::Turns(count) => turn_starts(messages).rev().nth(count - 1).unwrap_or(0),
        }
    }
}

/// Where turns begin, told from what was said: where a user speaks after somebody else did. A message that brings a
/// tool's answer begins none, whoever sends it.
pub(super) fn turn_starts(messages: &[&Message]) -> impl DoubleEndedIterator<Item = usize> {
    let speaks = |index: usize| messages[index].role() == Role::User && !answers(messages[index]);
    (0..messages.len()).filter(move |index| speaks(*index) && (*index == 0 || !speaks(*index - 1)))
}

fn answers(message: &Message) -> bool {
    message.as_str().contains("toolResponse") && message.parts().iter().any(|part| part.as_tool_response().is_some())
}
