//! Which messages cannot be shown without each other.

use std::collections::{BTreeSet, HashMap};

use crate::json::steps;
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

/// The requests of a conversation, found by what they are answered by.
#[derive(Default)]
struct Asked {
    /// The message each is in, and whether it was answered.
    requests: Vec<(usize, bool)>,
    by_reference: HashMap<String, Fitting>,
    by_name: HashMap<String, Fitting>,
    /// Of those without a reference.
    by_name_alone: HashMap<String, Fitting>,
}

/// Requests that an answer fits, the newest last.
#[derive(Default)]
struct Fitting {
    newest: usize,
    /// Those that may not have been answered yet.
    open: Vec<usize>,
}

impl Asked {
    fn push(&mut self, at: usize, request: ToolRequest) {
        let number = self.requests.len();
        self.requests.push((at, false));
        let note = |fitting: &mut Fitting| {
            fitting.newest = number;
            fitting.open.push(number);
        };
        match request.reference {
            Some(reference) => note(self.by_reference.entry(reference).or_default()),
            None => note(self.by_name_alone.entry(request.name.clone()).or_default()),
        }
        note(self.by_name.entry(request.name).or_default());
    }

    /// Names may repeat, and so may answers of a call that takes long: the newest open request that fits, else the
    /// newest that fits. The message it is in.
    fn answer(&mut self, response: ToolResponse) -> Option<usize> {
        let (requests, mut newest, mut open) = (&mut self.requests, None, None);
        let mut look = |fitting: Option<&mut Fitting>| {
            let Some(fitting) = fitting else { return };
            while fitting.open.last().is_some_and(|number| requests[*number].1) {
                steps::count(1);
                fitting.open.pop();
            }
            newest = newest.max(Some(fitting.newest));
            open = open.max(fitting.open.last().copied());
        };
        match response.reference {
            Some(reference) => {
                look(self.by_reference.get_mut(&reference));
                look(self.by_name_alone.get_mut(&response.name));
            }
            None => look(self.by_name.get_mut(&response.name)),
        }
        let (at, answered) = &mut requests[open.or(newest)?];
        *answered = true;
        Some(*at)
    }
}

impl Pairs {
    pub(crate) fn of<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Self {
        let mut pairs = Self::default();
        let mut asked = Asked::default();
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
                    asked.push(at, request);
                } else if let Some(response) = part.as_tool_response() {
                    match asked.answer(response) {
                        Some(asked) => pairs.links.push((asked, at)),
                        None => pairs.stray = true,
                    }
                }
            }
        }
        pairs.unanswered = asked.requests.iter().filter(|(_, answered)| !answered).map(|(at, _)| *at).collect();
        pairs
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
        // Stepping back over one pair may end inside another, which ends before those that were looked at.
        let mut links = self.links.clone();
        links.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
        for (asked, at) in links {
            if at < cut {
                break;
            }
            steps::count(1);
            cut = cut.min(asked);
        }
        cut
    }

    /// Adds whatever cannot be without what is chosen. Everything from `from` on is chosen anyway.
    pub(crate) fn complete(&self, chosen: &mut BTreeSet<usize>, from: usize) {
        let mut linked: HashMap<usize, Vec<usize>> = HashMap::new();
        for (asked, at) in &self.links {
            linked.entry(*asked).or_default().push(*at);
            linked.entry(*at).or_default().push(*asked);
        }
        let beyond = linked.keys().copied().filter(|index| *index >= from);
        let mut reached: Vec<usize> = chosen.iter().copied().chain(beyond).collect();
        while let Some(index) = reached.pop() {
            for other in linked.get(&index).into_iter().flatten() {
                steps::count(1);
                if *other < from && chosen.insert(*other) {
                    reached.push(*other);
                }
            }
        }
    }
}
