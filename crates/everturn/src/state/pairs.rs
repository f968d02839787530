//! Which messages cannot be shown without each other.

use std::collections::BTreeSet;

use crate::message::{Message, Role};
use crate::part::{ToolRequest, ToolResponse};

/// The tool requests of a conversation and their responses, by the messages that hold them.
///
/// A model that is shown a response without its request, or a request without its response, refuses the conversation.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The message that asked, and one that answered.
    links: Vec<(usize, usize)>,
    /// Messages that ask what nobody answered.
    unanswered: BTreeSet<usize>,
    /// Whether something was answered that nobody here asked.
    stray: bool,
    last_by_model: Option<usize>,
}

struct Asked {
    at: usize,
    request: ToolRequest,
    answered: bool,
}

impl Asked {
    fn fits(&self, response: &ToolResponse) -> bool {
        match (&self.request.reference, &response.reference) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => self.request.name == response.name,
        }
    }
}

impl Pairs {
    pub(crate) fn of<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Self {
        let mut pairs = Self::default();
        let mut asked: Vec<Asked> = Vec::new();
        for (at, message) in messages.into_iter().enumerate() {
            if message.role() == Role::Model {
                pairs.last_by_model = Some(at);
            }
            // Both members begin like this, and most messages have neither.
            if !message.as_str().contains("toolRe") {
                continue;
            }
            for part in message.parts() {
                if let Some(request) = part.as_tool_request() {
                    asked.push(Asked { at, request, answered: false });
                } else if let Some(response) = part.as_tool_response() {
                    pairs.answer(&mut asked, &response, at);
                }
            }
        }
        pairs.unanswered = asked.iter().filter(|asked| !asked.answered).map(|asked| asked.at).collect();
        pairs
    }

    /// Names may repeat, and so may answers of a call that takes long: the newest open request that fits, else the
    /// newest that fits.
    fn answer(&mut self, asked: &mut [Asked], response: &ToolResponse, at: usize) {
        let open = asked.iter().rposition(|asked| !asked.answered && asked.fits(response));
        match open.or_else(|| asked.iter().rposition(|asked| asked.fits(response))) {
            Some(found) => {
                asked[found].answered = true;
                self.links.push((asked[found].at, at));
            }
            None => self.stray = true,
        }
    }

    /// The message in which the model asked last and is waiting for an answer.
    pub(crate) fn waiting(&self) -> Option<usize> {
        self.last_by_model.filter(|last| self.unanswered.contains(last))
    }

    /// Whether everything that was asked was answered, and the other way round.
    pub(crate) fn is_whole(&self) -> bool {
        self.unanswered.is_empty() && !self.stray
    }

    /// Whether something is answered that was asked before these messages.
    pub(crate) fn is_answering_earlier(&self) -> bool {
        self.stray
    }

    /// The last place at or before one where the messages can be cut without separating an answer from its question.
    pub(crate) fn cut(&self, wanted: usize) -> usize {
        let mut cut = self.waiting().map_or(wanted, |waiting| wanted.min(waiting));
        // Stepping back over one pair may end inside another.
        while let Some(asked) =
            self.links.iter().filter(|(asked, at)| *asked < cut && cut <= *at).map(|pair| pair.0).min()
        {
            cut = asked;
        }
        cut
    }

    /// Adds whatever cannot be without what is chosen. Everything from `from` on is chosen anyway.
    pub(crate) fn complete(&self, chosen: &mut BTreeSet<usize>, from: usize) {
        loop {
            let before = chosen.len();
            for (asked, at) in &self.links {
                if [asked, at].into_iter().any(|index| *index >= from || chosen.contains(index)) {
                    chosen.extend([*asked, *at].into_iter().filter(|index| *index < from));
                }
            }
            if chosen.len() == before {
                return;
            }
        }
    }
}
