//! What a compaction replaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::history::Noted;
use super::keep::Keep;
use super::options::Compaction;
use super::summary::Summary;
use crate::message::Message;
use crate::state::pairs::Pairs;
use crate::state::{Messages, View};

/// What a compaction replaces: decided before the summariser runs, and good as long as what it was made of stays.
#[derive(Debug)]
pub(crate) struct Plan {
    messages: Messages,
    before: Option<Arc<View>>,
    cut: usize,
    pinned: BTreeSet<usize>,
    /// What the summary will stand for, as the model is shown it now.
    pub(crate) replaced: Vec<Message>,
}

impl Plan {
    /// Decides what is replaced. Whole turns are taken from the first `settled` messages, single messages from all.
    /// Nothing if there is nothing new to sum up.
    pub(crate) fn new(
        messages: &Messages,
        before: Option<Arc<View>>,
        settled: usize,
        options: &Compaction,
    ) -> Option<Self> {
        let list: Vec<&Message> = messages.iter().collect();
        let pairs = Pairs::of(messages);
        let wanted = match options.keep {
            Keep::Turns(_) => options.keep.start(&list[..settled.min(list.len())]),
            Keep::Messages(_) => options.keep.start(&list),
        };
        let cut = pairs.cut(wanted);
        let hidden = before.as_ref().map_or(0, |view| view.hidden());
        if cut <= hidden {
            return None;
        }
        let mut pinned: BTreeSet<usize> = (hidden..cut).filter(|index| options.pins(list[*index])).collect();
        let (mut shown, mut replaced) = (BTreeSet::new(), Vec::new());
        if let Some(view) = &before {
            shown = view.kept(messages);
            pinned.extend(view.pinned.iter().filter_map(|index| usize::try_from(*index).ok()).filter(|i| *i < hidden));
            replaced.clone_from(&view.summary);
        }
        if !pinned.is_empty() {
            pairs.complete(&mut pinned, cut);
        }
        if (hidden..cut).all(|index| pinned.contains(&index)) {
            return None;
        }
        let shown = shown.into_iter().chain(hidden..cut).filter(|index| !pinned.contains(index));
        replaced.extend(shown.map(|index| list[index].clone()));
        Some(Self { messages: messages.clone(), before, cut, pinned, replaced })
    }

    /// Whether what it was made of is still so.
    pub(crate) fn still_holds(&self, messages: &Messages, view: Option<&Arc<View>>) -> bool {
        self.before.as_ref() == view && messages.iter().take(self.cut).eq(self.messages.iter().take(self.cut))
    }

    /// What the model is shown from now on, and what is noted about it.
    pub(crate) fn with(&self, summary: &Summary) -> Noted {
        let mut view = View::new(self.cut as u64, summary.messages.clone());
        view.pinned = self.pinned.iter().map(|index| *index as u64).collect();
        Noted { view, before: self.before.as_deref().cloned() }
    }
}
