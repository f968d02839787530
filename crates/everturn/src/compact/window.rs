//! A window on a conversation.

use super::keep::Keep;
use super::options::is_marked;
use crate::message::Message;
use crate::state::pairs::Pairs;
use crate::state::{Messages, View};

/// The end of a conversation, for a model that need not see all of it: a pure function of what was said, kept nowhere.
///
/// What is pinned (instructions, and messages with `metadata.pinned: true`) stays in front of it, and a tool's answer is
/// never shown without its question: the window reaches back as far as it must.
///
/// ```
/// use everturn::{Message, Window};
///
/// let said = ["a", "b", "c"].map(|text| [Message::user(text), Message::model(text.to_uppercase())]).concat();
/// let shown = Window::last_turns(2).apply(&said);
/// assert_eq!(shown, said[2..]);
/// assert_eq!(Window::last_messages(3).apply(&said), said[3..]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a window shows what it is applied to"]
pub struct Window(Keep);

impl Window {
    /// The last so many turns. A turn begins where a user speaks after somebody else did.
    pub fn last_turns(count: usize) -> Self {
        Self(Keep::Turns(count))
    }

    /// The last so many messages.
    pub fn last_messages(count: usize) -> Self {
        Self(Keep::Messages(count))
    }

    /// What is seen through it.
    #[must_use]
    pub fn apply<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) -> Vec<Message> {
        let messages: Messages = messages.into_iter().cloned().collect();
        self.over(&messages, None).apply(&messages)
    }

    /// What is seen through it of a conversation that has a view already: its summary stays, and what it pins.
    pub(crate) fn over(self, messages: &Messages, view: Option<&View>) -> View {
        let list: Vec<&Message> = messages.iter().collect();
        let hidden = view.map_or(0, View::hidden).min(list.len());
        let cut = Pairs::of(messages).cut(self.0.start(&list)).max(hidden);
        let mut seen = View::new(cut as u64, view.map(|view| view.summary.clone()).unwrap_or_default());
        let marked = (hidden..cut).filter(|index| is_marked(list[*index])).map(|index| index as u64);
        seen.pinned = view.iter().flat_map(|view| view.pinned.iter().copied()).chain(marked).collect();
        seen
    }
}
