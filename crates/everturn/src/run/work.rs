//! The working state of an invocation: what the handler sees and changes, and what of it is not written yet.

mod replace;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::retry::EarlierAttempt;
use crate::agent::SharedState;
use crate::artifact::Artifact;
use crate::digest::{Digest, StateDigests, of_artifacts};
use crate::event::{Event, EventKind};
use crate::json::Json;
use crate::message::{Message, Role};
use crate::state::{Messages, PointState, Scope, ScopedState, StateDelta, View, split_key};
use crate::turn::{ArtifactChange, Changes, CustomChange, Splice, ToolEntry, ViewChange};
use crate::{AgentName, Error, FinishReason, Point, Result, SessionId, Usage};

/// Whether the session can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing has begun.
    Idle,
    /// A turn runs.
    Turn,
    /// No turn runs, and what is changed now becomes an edit.
    Between,
    /// The turn is over, and with it the right to write.
    Ended,
    /// The turn was aborted or lost.
    Aborted,
}

/// What a state is made of, each piece shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) messages: Messages,
    pub(crate) custom: Option<Json>,
    pub(crate) artifacts: Arc<Vec<Arc<Artifact>>>,
    pub(crate) view: Option<Arc<View>>,
}

impl From<&PointState> for Content {
    fn from(state: &PointState) -> Self {
        Self {
            messages: state.messages.clone(),
            custom: state.custom.clone(),
            artifacts: Arc::new(state.artifacts()),
            view: state.view.clone(),
        }
    }
}

impl Content {
    /// As it is handed out.
    pub(crate) fn shared(&self, session: &SessionId) -> SharedState {
        SharedState {
            session: Some(session.clone()),
            messages: self.messages.clone(),
            custom: self.custom.clone(),
            artifacts: self.artifacts.clone(),
        }
    }
}

/// What was changed since the last record.
#[derive(Default)]
struct Pending {
    splice: Option<Splice>,
    events: Vec<Event>,
    artifacts: Vec<ArtifactChange>,
    tools: Vec<ToolEntry>,
    custom: bool,
    view: bool,
    usage: Usage,
}

impl Pending {
    fn all_usage(&self) -> Usage {
        let mut usage = self.usage;
        self.events.iter().filter_map(|event| event.usage.as_ref()).for_each(|spent| usage.add(spent));
        usage
    }
}

/// What a record is made of while it is written.
pub(crate) struct Taken {
    base: Content,
    base_digests: Option<StateDigests>,
    line_usage: Usage,
    pending: Pending,
}

pub(crate) struct Work {
    pub(crate) session: SessionId,
    pub(crate) phase: Phase,
    pub(crate) now: Content,
    /// The last good state: where a failure goes back to.
    pub(crate) good: Content,
    /// What the last record left, as the store knows it.
    base: Content,
    base_digests: Option<StateDigests>,
    pending: Pending,
    /// `app:` and `user:` keys as read in this turn, once they have been.
    pub(crate) scopes: Option<ScopedState>,
    /// Changes to them that are not written yet.
    pub(crate) scope_delta: StateDelta,
    /// `temp:` keys: this invocation only.
    pub(crate) temp: BTreeMap<String, Json>,
    /// The point whose record is the last that is written, and the last one that counts.
    pub(crate) at: Option<Point>,
    pub(crate) good_at: Option<Point>,
    pub(crate) turn_index: u64,
    pub(crate) turns: u64,
    pub(crate) line_usage: Usage,
    /// What this invocation cost, failed turns too, and how much of it which model.
    pub(crate) spent: Usage,
    pub(crate) spent_by_model: BTreeMap<String, Usage>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) label: Option<String>,
    /// Tool calls of the turn so far.
    pub(crate) calls: u64,
    /// What an attempt at the turn that died left.
    pub(crate) earlier: EarlierAttempt,
    /// The version of the schema that the stored custom state was written with, where it is an older one.
    pub(crate) older_schema: bool,
}

impl Work {
    pub(crate) fn new(session: SessionId, content: Content) -> Self {
        Self {
            session,
            phase: Phase::Idle,
            good: content.clone(),
            base: content.clone(),
            now: content,
            base_digests: None,
            pending: Pending::default(),
            scopes: None,
            scope_delta: StateDelta::new(),
            temp: BTreeMap::new(),
            at: None,
            good_at: None,
            turn_index: 0,
            turns: 0,
            line_usage: Usage::default(),
            spent: Usage::default(),
            spent_by_model: BTreeMap::new(),
            finish_reason: None,
            label: None,
            calls: 0,
            earlier: EarlierAttempt::default(),
            older_schema: false,
        }
    }

    /// Takes up what the store says stands at the place where it goes on. `good` is what a failure goes back to.
    pub(crate) fn load(&mut self, state: &PointState, custom: Option<Json>, good: Content) {
        self.base = Content::from(state);
        self.base_digests = Some(state.tip.digests);
        self.now = Content { custom, ..self.base.clone() };
        self.good = good;
        self.pending = Pending::default();
        self.turns = state.turns();
        self.line_usage = state.usage();
    }

    /// What was changed is written; the next change follows it.
    pub(crate) fn settle(&mut self) {
        self.base = self.now.clone();
        self.base_digests = None;
        self.pending = Pending::default();
    }

    /// Takes what is to be written now, so that what is changed while it is written is not taken for written.
    pub(crate) fn take(&mut self) -> Taken {
        let taken = Taken {
            base: std::mem::replace(&mut self.base, self.now.clone()),
            base_digests: self.base_digests.take(),
            line_usage: self.line_usage,
            pending: std::mem::take(&mut self.pending),
        };
        self.line_usage.add(&taken.pending.all_usage());
        taken
    }

    /// What was taken could not be written: it goes before what was changed since.
    pub(crate) fn put_back(&mut self, agent: &AgentName, taken: Taken) -> Result<()> {
        let since = std::mem::replace(&mut self.pending, taken.pending);
        self.base = taken.base;
        self.base_digests = taken.base_digests;
        self.line_usage = taken.line_usage;
        self.pending.events.extend(since.events);
        self.pending.artifacts.extend(since.artifacts);
        self.pending.tools.extend(since.tools);
        self.pending.custom |= since.custom;
        self.pending.view |= since.view;
        self.pending.usage.add(&since.usage);
        match since.splice {
            Some(_) => self.set_messages(agent, self.now.messages.to_vec()),
            None => Ok(()),
        }
    }

    /// What was changed did not count: back to the last good state.
    pub(crate) fn roll_back(&mut self) {
        self.now = self.good.clone();
        self.base = self.good.clone();
        self.base_digests = None;
        self.pending = Pending::default();
        self.scope_delta = StateDelta::new();
        self.at = self.good_at;
    }

    /// What was changed outside turns is written, or there is nowhere to write it.
    pub(crate) fn settle_edit(&mut self, at: Option<Point>) {
        self.good = self.now.clone();
        self.older_schema = false;
        let pending = self.pending_usage();
        self.line_usage.add(&pending);
        self.settle();
        self.settle_scopes();
        (self.at, self.good_at) = (at, at);
    }

    /// The changes to the `app:` and `user:` keys are written: from here on they are what is read.
    pub(crate) fn settle_scopes(&mut self) {
        let delta = std::mem::take(&mut self.scope_delta);
        if let Some(scopes) = &mut self.scopes {
            scopes.retain(|key, _| !delta.remove.contains(key));
            scopes.extend(delta.set);
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.phase {
            Phase::Turn | Phase::Between => Ok(()),
            Phase::Idle => Err(Error::invalid("no turn has begun: take one with next_turn first")),
            Phase::Ended => Err(Error::fenced("the turn has ended: what is changed now would not be kept")),
            Phase::Aborted => Err(Error::aborted("the turn was aborted: stop, nothing more is kept of it")),
        }
    }

    pub(crate) fn add_messages(&mut self, agent: &AgentName, messages: Vec<Message>) -> Result<()> {
        self.check_open()?;
        for message in messages {
            let message = message.without_snapshot_id()?;
            let author = if message.role() == Role::User { "user" } else { agent.as_str() };
            self.pending.events.push(Event::new(author).with_messages([message.clone()]));
            self.now.messages.push(message);
        }
        Ok(())
    }

    pub(crate) fn add_event(&mut self, mut event: Event) -> Result<()> {
        self.check_open()?;
        if event.partial {
            // A piece of a stream: the whole of it will come.
            return Ok(());
        }
        event.messages = event.messages.into_iter().map(Message::without_snapshot_id).collect::<Result<Vec<_>>>()?;
        for message in &event.messages {
            self.now.messages.push(message.clone());
        }
        if let Some(usage) = &event.usage {
            self.spent.add(usage);
            if let Some(model) = event.model_name() {
                self.spent_by_model.entry(model).or_default().add(usage);
            }
        }
        self.pending.events.push(event);
        Ok(())
    }

    /// Notes a tool's call.
    pub(crate) fn note_tool(&mut self, entry: ToolEntry) -> Result<()> {
        self.check_open()?;
        self.pending.tools.push(entry);
        Ok(())
    }

    pub(crate) fn set_messages(&mut self, agent: &AgentName, messages: Vec<Message>) -> Result<()> {
        self.check_open()?;
        let messages = messages.into_iter().map(Message::without_snapshot_id).collect::<Result<Vec<_>>>()?;
        let keep = self.base.messages.iter().zip(&messages).take_while(|(a, b)| a == b).count();
        self.drop_stale_view(&messages);
        // What was added since the last record is part of the new list, or gone; its events keep what else they say.
        for event in &mut self.pending.events {
            event.messages.clear();
        }
        self.pending.events.retain(|event| *event != Event::new(event.author.clone()));
        self.pending.splice = None;
        self.now.messages.truncate(0);
        for message in &messages {
            self.now.messages.push(message.clone());
        }
        let rest = messages[keep..].to_vec();
        if keep == self.base.messages.len() {
            let events = rest.into_iter().map(|message| {
                let author = if message.role() == Role::User { "user" } else { agent.as_str() };
                Event::new(author).with_messages([message])
            });
            self.pending.events.extend(events);
        } else {
            self.pending.splice = Some(Splice { keep: keep as u64, messages: rest });
        }
        Ok(())
    }

    /// Changes what the model is shown, with an event that says why.
    pub(crate) fn set_view(&mut self, view: Option<View>, event: Option<Event>) -> Result<()> {
        self.check_open()?;
        self.now.view = view.map(Arc::new);
        self.pending.view = true;
        event.map_or(Ok(()), |event| self.add_event(event))
    }

    /// Takes up a view that was written beside this invocation's turns, where it stands.
    pub(crate) fn show(&mut self, view: View) {
        let view = Some(Arc::new(view));
        for content in [&mut self.now, &mut self.good, &mut self.base] {
            content.view.clone_from(&view);
        }
        self.base_digests = None;
    }

    /// A view stands for the first messages. Once they are others it would hide what it says nothing about.
    fn drop_stale_view(&mut self, messages: &[Message]) {
        let Some(view) = &self.now.view else { return };
        let hidden = view.hidden();
        if messages.len() >= hidden && self.now.messages.iter().take(hidden).eq(&messages[..hidden]) {
            return;
        }
        self.now.view = None;
        self.pending.view = true;
        // What was compacted since the last record was never shown to anybody; it was paid for all the same.
        let Pending { events, usage, .. } = &mut self.pending;
        events.retain(|event| {
            let undone = event.kind == EventKind::Compaction;
            event.usage.iter().filter(|_| undone).for_each(|spent| usage.add(spent));
            !undone
        });
    }

    pub(crate) fn set_custom(&mut self, custom: Option<Json>) -> Result<()> {
        self.check_open()?;
        self.now.custom = custom;
        self.pending.custom = true;
        Ok(())
    }

    pub(crate) fn put_artifact(&mut self, artifact: Artifact) -> Result<()> {
        self.check_open()?;
        artifact.check()?;
        let shared = Arc::new(artifact.clone());
        let list = Arc::make_mut(&mut self.now.artifacts);
        match list.iter_mut().find(|other| other.name.is_some() && other.name == artifact.name) {
            Some(slot) => *slot = shared,
            None => list.push(shared),
        }
        self.pending.artifacts.push(ArtifactChange::Put(artifact));
        Ok(())
    }

    pub(crate) fn remove_artifact(&mut self, name: &str) -> Result<bool> {
        self.check_open()?;
        let list = Arc::make_mut(&mut self.now.artifacts);
        let before = list.len();
        list.retain(|artifact| artifact.name.as_deref() != Some(name));
        let found = list.len() < before;
        if found {
            self.pending.artifacts.push(ArtifactChange::Remove(name.to_owned()));
        }
        Ok(found)
    }

    pub(crate) fn set_artifacts(&mut self, artifacts: Vec<Artifact>) -> Result<()> {
        self.check_open()?;
        artifacts.iter().try_for_each(Artifact::check)?;
        self.now.artifacts = Arc::default();
        self.pending.artifacts.clear();
        self.pending.artifacts.push(ArtifactChange::Clear);
        let mut places: HashMap<String, usize> = HashMap::new();
        let list = Arc::make_mut(&mut self.now.artifacts);
        for artifact in artifacts {
            let shared = Arc::new(artifact.clone());
            match artifact.name.as_ref().and_then(|name| places.get(name)) {
                Some(at) => list[*at] = shared,
                None => {
                    places.extend(artifact.name.clone().map(|name| (name, list.len())));
                    list.push(shared);
                }
            }
            self.pending.artifacts.push(ArtifactChange::Put(artifact));
        }
        Ok(())
    }

    pub(crate) fn add_usage(&mut self, usage: Usage) -> Result<()> {
        self.check_open()?;
        self.pending.usage.add(&usage);
        self.spent.add(&usage);
        Ok(())
    }

    /// Events that are not written yet.
    pub(crate) fn pending_events(&self) -> Vec<Event> {
        self.pending.events.clone()
    }

    pub(crate) fn pending_usage(&self) -> Usage {
        self.pending.all_usage()
    }

    fn custom_changed(&self) -> bool {
        ((self.pending.custom || self.older_schema) && self.now.custom != self.base.custom) || self.says_custom()
    }

    /// Whether an event that is not written yet says what became of the custom state. Events are applied in their order,
    /// which need not be the order in which tools that ran side by side wrote: what counts is what stands here.
    fn says_custom(&self) -> bool {
        let own = |key: &String| split_key(key).0 == Scope::Session;
        self.pending.events.iter().any(|event| event.state_delta.keys().chain(&event.state_removed).any(own))
    }

    fn view_changed(&self) -> bool {
        self.pending.view && self.now.view != self.base.view
    }

    /// Whether there is anything to write.
    pub(crate) fn is_changed(&self) -> bool {
        let pending = &self.pending;
        pending.splice.is_some()
            || !pending.events.is_empty()
            || !pending.artifacts.is_empty()
            || !pending.tools.is_empty()
            || !pending.usage.is_empty()
            || self.custom_changed()
            || self.view_changed()
    }

    /// Whether there is anything to write outside a turn, where the scopes go with the edit.
    pub(crate) fn is_edited(&self) -> bool {
        self.is_changed() || !self.scope_delta.is_empty()
    }

    /// What is to be written outside a turn.
    pub(crate) fn edit(&self, agent: &AgentName, schema: u64) -> Changes {
        let mut changes = self.changes(schema);
        if !self.scope_delta.is_empty() {
            let mut event = Event::new(agent.as_str()).with_state(self.scope_delta.clone());
            event.kind = EventKind::State;
            changes.events.push(event);
        }
        changes
    }

    /// What is to be written now.
    pub(crate) fn changes(&self, schema: u64) -> Changes {
        let pending = &self.pending;
        let custom = self.custom_changed().then(|| match &self.now.custom {
            Some(custom) => CustomChange::Set(custom.clone()),
            None => CustomChange::Clear,
        });
        let mut changes = Changes::new();
        changes.schema_version = (self.older_schema || (custom.is_some() && schema > 0)).then_some(schema);
        changes.splice.clone_from(&pending.splice);
        changes.events.clone_from(&pending.events);
        changes.artifacts.clone_from(&pending.artifacts);
        changes.tools.clone_from(&pending.tools);
        changes.usage = pending.usage;
        changes.custom = custom;
        changes.view = self.view_changed().then(|| match &self.now.view {
            Some(view) => ViewChange::Set((**view).clone()),
            None => ViewChange::Clear,
        });
        changes
    }

    /// The digests the state will have once what was changed is written. For sessions that are stored.
    pub(crate) fn digests(&self) -> Result<StateDigests> {
        let base = self.base_digests.unwrap_or(StateDigests::EMPTY);
        let known = self.base_digests.is_some();
        let (keep, mut chain) = match &self.pending.splice {
            Some(splice) => {
                let keep = usize::try_from(splice.keep).unwrap_or(usize::MAX);
                (keep, self.base.messages.chain_at(keep)?)
            }
            None if known => (self.base.messages.len(), base.chain),
            None => (0, Digest::ABSENT),
        };
        for message in self.now.messages.iter().skip(keep) {
            chain = chain.chain(Digest::of_json(message.json())?);
        }
        let custom = match &self.now.custom {
            _ if known && !self.custom_changed() => base.custom,
            Some(custom) => Digest::of_json(custom)?,
            None => Digest::ABSENT,
        };
        let artifacts = if known && self.pending.artifacts.is_empty() {
            base.artifacts
        } else {
            let each = self.now.artifacts.iter().map(|artifact| Digest::of_json(&Json::written(&**artifact)?));
            of_artifacts(&each.collect::<Result<Vec<_>>>()?)
        };
        let view = match &self.now.view {
            _ if known && !self.view_changed() => base.view,
            Some(view) => Digest::of_json(&Json::written(&**view)?)?,
            None => Digest::ABSENT,
        };
        Ok(StateDigests { chain, custom, artifacts, view })
    }
}
