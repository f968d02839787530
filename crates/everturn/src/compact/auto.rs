//! Compactions that happen by themselves.

use std::time::Duration;

use super::keep::{Keep, turn_starts};
use super::options::Compaction;
use super::summariser::Summariser;
use crate::event::{Event, EventKind};
use crate::message::{Message, Role};
use crate::part::PartKind;
use crate::session::SessionKey;
use crate::state::PointState;
use crate::store::{At, EventQuery, Store};
use crate::turn::Input;
use crate::{Error, Result};

/// How far back the last model's answer with a cost is looked for.
const NEAR_EVENTS: usize = 64;

/// What a picture or a sound counts for, whatever its bytes: providers count them by size on the screen, not on disk.
const MEDIA_TOKENS: u64 = 1_000;

/// When an agent compacts by itself, who makes the summaries, and what is kept.
///
/// It happens before a turn begins, while nothing is held. A summariser that fails, panics or takes too long is logged,
/// leaves the session as it is, and the turn goes on; so does a turn by somebody else meanwhile. What it cost is counted
/// in the session's totals and in the invocation's. The last two turns are kept unless set.
///
/// ```
/// use everturn::store::MemoryStore;
/// use everturn::{Agent, AutoCompaction, Json, Message, Summariser, Turn};
///
/// let summariser = Summariser::new(|messages| async move {
///     Ok(Message::user(format!("({} messages about tea.)", messages.len())))
/// });
/// let agent = Agent::flow("helper", |turn: Turn<Json>| async move { Ok(turn.model_messages().len()) })
///     .store(MemoryStore::new())
///     .compaction(AutoCompaction::after_turns(20, summariser).keep_turns(4))
///     .build()?;
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a policy is for `AgentBuilder::compaction`"]
pub struct AutoCompaction {
    when: When,
    pub(crate) options: Compaction,
    pub(crate) summariser: Summariser,
    pub(crate) patience: Duration,
}

#[derive(Clone, Copy, Debug)]
enum When {
    Turns(usize),
    Tokens(u64),
}

impl AutoCompaction {
    fn new(when: When, summariser: Summariser) -> Self {
        let options = Compaction::new().keep_turns(2);
        Self { when, options, summariser, patience: Duration::from_secs(60) }
    }

    /// Once the model would be shown so many turns in full.
    pub fn after_turns(turns: usize, summariser: Summariser) -> Self {
        Self::new(When::Turns(turns), summariser)
    }

    /// Once the model would be given so many tokens: those that its last answer reported, in and out, and an estimate of
    /// what was said since, a token for four bytes. Choose it well above what the kept turns have, or every turn is
    /// compacted.
    pub fn after_tokens(tokens: u64, summariser: Summariser) -> Self {
        Self::new(When::Tokens(tokens), summariser)
    }

    /// Keeps the last so many turns as they are.
    pub fn keep_turns(mut self, count: usize) -> Self {
        self.options = self.options.keep_turns(count);
        self
    }

    /// Keeps the messages that a function picks.
    pub fn pin(mut self, picks: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.options = self.options.pin(picks);
        self
    }

    /// How long a turn waits for the summary; a minute unless set.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Refuses a policy that would compact for ever or never.
    pub(crate) fn check(&self) -> Result<()> {
        match (self.when, self.options.keep) {
            (When::Turns(turns), Keep::Turns(kept)) if turns <= kept => Err(Error::invalid(format!(
                "a compaction after {turns} turns that keeps {kept} has nothing to replace: keep fewer, or wait longer"
            ))),
            (When::Tokens(0), _) => Err(Error::invalid("a compaction after 0 tokens never ends: name a number")),
            _ => Ok(()),
        }
    }

    /// Whether a turn with an input should find less than stands there now.
    pub(crate) async fn is_due(
        &self,
        store: &dyn Store,
        key: &SessionKey,
        state: &PointState,
        input: &Input,
    ) -> Result<bool> {
        match self.when {
            When::Turns(turns) => {
                let hidden = state.view().map_or(0, |view| view.hidden());
                let shown: Vec<&Message> = state.messages().iter().skip(hidden).collect();
                Ok(turn_starts(&shown).count() >= turns)
            }
            When::Tokens(tokens) => {
                let at = At::Point(key.clone(), state.point());
                let (mut events, mut query) = (Vec::new(), EventQuery::at(at).tail(NEAR_EVENTS));
                loop {
                    let page = store.events(query.clone()).await?;
                    events.extend(page.items);
                    let Some(next) = page.next else { break };
                    query = query.from(next);
                }
                let shown = reported(&events).unwrap_or_else(|| estimate(&state.model_messages()));
                Ok(shown + estimate(&input.messages) >= tokens)
            }
        }
    }
}

/// What the last answer reported, and an estimate of what was said since. Nothing if that was before a compaction: it
/// counted what is no longer shown.
fn reported(events: &[Event]) -> Option<u64> {
    let compacted = events.iter().rposition(|event| event.kind == EventKind::Compaction);
    let events = &events[compacted.map_or(0, |at| at + 1)..];
    let answers = |event: &Event| event.messages.iter().any(|message| message.role() == Role::Model);
    let last = events.iter().rposition(|event| event.usage.is_some() && answers(event))?;
    let usage = events[last].usage.filter(|usage| usage.input_tokens > 0)?;
    let since: u64 = events[last + 1..].iter().map(|event| estimate(&event.messages)).sum();
    Some(usage.input_tokens + usage.output_tokens + since)
}

fn estimate(messages: &[Message]) -> u64 {
    messages.iter().map(tokens_of).sum()
}

fn tokens_of(message: &Message) -> u64 {
    if !message.as_str().contains("\"media\"") {
        return message.as_str().len() as u64 / 4;
    }
    let each = message.parts().into_iter().map(|part| match part.kind() {
        PartKind::Media => MEDIA_TOKENS,
        _ => part.as_str().len() as u64 / 4,
    });
    each.sum()
}
