//! The live session.

use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};

use super::keys::StateMap;
use super::overlay::overlay;
use super::turn::Turn;
use super::{Responder, attribution};
use crate::agent::failure::Handled;
use crate::agent::{CustomState, SharedState};
use crate::artifact::Artifact;
use crate::aside::beside;
use crate::event::Event;
use crate::json::Json;
use crate::message::Message;
use crate::run::Run;
use crate::run::changing::Changing;
use crate::session::SessionKey;
use crate::state::Messages;
use crate::store::{
    At, BranchChange, EventQuery, ForkSession, MAX_PAGE, Store, StoreExt as _, UnderLease, UpdateSession,
};
use crate::stream::Chunk;
use crate::{
    BranchName, Error, ErrorKind, InvocationId, Point, Result, SessionId, SessionRecord, StateDelta, Timestamp, Usage,
    UserId,
};

/// A session while a turn runs on it: a cheap handle that any number of tasks may hold and change at once.
///
/// What it hands out are copies; what changes it are its methods. A change made after the turn has ended is refused.
pub struct Session<S> {
    run: Arc<Run>,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Session<S> {
    fn clone(&self) -> Self {
        Self { run: self.run.clone(), state: PhantomData }
    }
}

impl<S: CustomState> Session<S> {
    pub(crate) fn of(run: Arc<Run>) -> Self {
        Self { run, state: PhantomData }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.run.work().session.clone()
    }

    /// Its owner.
    #[must_use]
    pub fn user(&self) -> &UserId {
        &self.run.user
    }

    /// The invocation that runs on it.
    #[must_use]
    pub fn invocation_id(&self) -> &InvocationId {
        &self.run.invocation
    }

    /// Its state now: shared, and not changed by what happens later.
    #[must_use]
    pub fn to_state(&self) -> SharedState {
        self.run.shared_state()
    }

    /// What was said so far.
    #[must_use]
    pub fn messages(&self) -> Messages {
        self.run.work().now.messages.clone()
    }

    /// What models are shown of it, all agents together: each sub-agent is shown its own part.
    #[must_use]
    pub fn model_messages(&self) -> Vec<Message> {
        let work = self.run.work();
        match &work.now.view {
            Some(view) => view.apply(&work.now.messages),
            None => work.now.messages.to_vec(),
        }
    }

    /// Adds a message.
    pub fn add_message(&self, message: Message) -> Result<()> {
        self.add_messages([message])
    }

    /// Adds messages.
    pub fn add_messages(&self, messages: impl IntoIterator<Item = Message>) -> Result<()> {
        self.run.work().add_messages(&self.run.def.name, messages.into_iter().collect())
    }

    /// Adds an event of your own making: messages with their author, path, cost and whatever goes with them.
    pub fn add_event(&self, event: Event) -> Result<()> {
        if !event.state_delta.is_empty() || !event.state_removed.is_empty() {
            return Err(Error::invalid("an event's state is changed through the session's state, not with the event"));
        }
        self.run.work().add_event(event)
    }

    /// Replaces the whole list of messages. Points before this turn stay as they were. A view of messages that are
    /// others now is cleared.
    pub fn set_messages(&self, messages: impl IntoIterator<Item = Message>) -> Result<()> {
        self.run.work().set_messages(&self.run.def.name, messages.into_iter().collect())
    }

    /// The custom state; `S::default()` when there is none.
    pub fn custom(&self) -> Result<S> {
        read_custom(self.custom_json().as_ref())
    }

    /// The custom state as it is kept, if there is any.
    #[must_use]
    pub fn custom_json(&self) -> Option<Json> {
        self.run.work().now.custom.clone()
    }

    /// Replaces the custom state. Members that `S` does not know survive.
    pub fn set_custom(&self, custom: &S) -> Result<()> {
        self.run.write_custom(|stored| {
            let is = Json::from_value(custom)?;
            let was = match stored.map(Json::to::<S>) {
                Some(Ok(was)) => Json::from_value(&was)?,
                // What is there is not an `S` at all.
                Some(Err(_)) | None => return Ok(Some(is)),
            };
            overlay(stored, &was, &is).map(Some)
        })
    }

    /// Changes the custom state in one step: whatever other tasks do at the same time, nothing is lost.
    pub fn update_custom<R>(&self, change: impl FnOnce(&mut S) -> R) -> Result<R> {
        let mut answer = None;
        self.run.write_custom(|stored| {
            let mut custom = read_custom::<S>(stored)?;
            let was = Json::from_value(&custom)?;
            answer = Some(change(&mut custom));
            overlay(stored, &was, &Json::from_value(&custom)?).map(Some)
        })?;
        answer.ok_or_else(|| Error::internal("a change of custom state did not happen"))
    }

    /// Replaces the custom state as it is kept, or takes it away.
    pub fn set_custom_json(&self, custom: Option<Json>) -> Result<()> {
        self.run.write_custom(|_| Ok(custom))
    }

    /// What was made so far.
    #[must_use]
    pub fn artifacts(&self) -> Vec<Arc<Artifact>> {
        self.run.work().now.artifacts.to_vec()
    }

    /// Puts an artifact and streams it: the one of the same name is replaced where it stands, unnamed ones are added.
    pub async fn add_artifact(&self, artifact: Artifact) -> Result<()> {
        self.run.work().put_artifact(artifact.clone())?;
        self.run.send(Chunk::artifact(artifact)).await
    }

    /// Replaces all artifacts.
    pub fn set_artifacts(&self, artifacts: impl IntoIterator<Item = Artifact>) -> Result<()> {
        self.run.work().set_artifacts(artifacts.into_iter().collect())
    }

    /// Takes an artifact away; its versions stay readable. Whether there was one is the answer.
    pub fn remove_artifact(&self, name: &str) -> Result<bool> {
        self.run.work().remove_artifact(name)
    }

    /// Counts what something cost.
    pub fn add_usage(&self, usage: Usage) -> Result<()> {
        self.run.work().add_usage(usage)
    }

    /// The state as keys and values, over all scopes.
    pub async fn state(&self) -> Result<StateMap> {
        let loaded = self.run.work().scopes.is_some();
        if !loaded && let Some(store) = &self.run.def.store {
            let scopes = store.scopes(&self.run.def.app, Some(&self.run.user)).await?;
            self.run.work().scopes = Some(scopes);
        }
        Ok(StateMap::of(self.run.clone()))
    }

    /// The events of its line, those of this turn that are not written yet at the end.
    pub async fn events(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let at = self.run.work().at;
        if let (Ok((store, key)), Some(point)) = (self.stored(), at) {
            let mut query = EventQuery::at(At::Point(key, point)).limit(MAX_PAGE);
            loop {
                let page = store.events(query.clone()).await?;
                events.extend(page.items);
                let Some(next) = page.next else { break };
                query = query.from(next);
            }
        }
        events.extend(self.run.work().pending_events());
        Ok(events)
    }

    /// The index of the turn that runs, counted from 0 along the line.
    #[must_use]
    pub fn turn_index(&self) -> u64 {
        self.run.work().turn_index
    }

    /// Turns completed along the line.
    #[must_use]
    pub fn turn_count(&self) -> u64 {
        self.run.work().turns
    }

    /// What the line has cost, this turn included.
    #[must_use]
    pub fn total_usage(&self) -> Usage {
        let work = self.run.work();
        let mut total = work.line_usage;
        total.add(&work.pending_usage());
        total
    }

    /// Its title, if it has one.
    pub async fn title(&self) -> Result<Option<String>> {
        Ok(self.record().await?.and_then(|record| record.title))
    }

    /// Gives it a title. At once, and not undone by a rewind or a failing turn.
    pub async fn set_title(&self, title: impl Into<String>) -> Result<()> {
        let (store, key) = self.stored()?;
        store.update(&key, UpdateSession::title(title)).await.map(drop)
    }

    /// When something was last written to it; nothing without a store.
    pub async fn last_update_time(&self) -> Result<Option<Timestamp>> {
        Ok(self.record().await?.map(|record| record.updated_at))
    }

    /// What is known about it; nothing without a store.
    pub async fn record(&self) -> Result<Option<SessionRecord>> {
        match self.stored() {
            Ok((store, key)) => store.session(&key).await,
            Err(_) => Ok(None),
        }
    }

    /// Forks it where its last completed turn left it.
    pub async fn fork(&self, id: Option<SessionId>) -> Result<SessionRecord> {
        let (store, key) = self.stored()?;
        let mut fork = ForkSession::at(At::Point(key, self.good_point().await?));
        fork.id = id;
        store.fork(fork).await
    }

    /// Makes a branch where its last completed turn left it.
    pub async fn branch(&self, name: BranchName) -> Result<SessionRecord> {
        let (store, key) = self.stored()?;
        let at = self.good_point().await?;
        store.branch(&key, BranchChange::Create { name, at }).await
    }

    /// Moves the head of its branch back, or forth again. While this turn holds the branch that is `Busy`; forced, the
    /// turn goes on and ends beside the head.
    pub async fn rewind(&self, to: Point, under_lease: UnderLease) -> Result<SessionRecord> {
        let (store, key) = self.stored()?;
        let name = self.run.running().as_ref().map(|turn| turn.branch.clone()).unwrap_or_default();
        store.branch(&key, BranchChange::Move { name, to, expect: None, under_lease }).await
    }

    /// Where its answer goes as it is made.
    #[must_use]
    pub fn responder(&self) -> Responder {
        Responder::of(self.run.clone())
    }

    /// The next turn, for a handler that takes its turns itself: ends the one that is open, waits for an input, begins
    /// a turn with it. Nothing once there will be no more inputs, or when a turn with the same key was there before.
    ///
    /// Waiting for it can be given up and taken up again, as `tokio::select!` does: no input is lost.
    pub async fn next_turn(&self) -> Handled<Option<Turn<S>>> {
        Ok(self.run.next_turn().await?.map(Turn::of))
    }

    fn stored(&self) -> Result<(&Arc<dyn Store>, SessionKey)> {
        let store = self.run.def.store.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::WrongMode, "this session has no store: give the agent one to do that")
        })?;
        let id = self.run.work().session.clone();
        Ok((store, SessionKey::new(self.run.def.app.clone(), self.run.user.clone(), id)))
    }

    /// The point where its last completed turn left it.
    async fn good_point(&self) -> Result<Point> {
        let point = self.run.work().good_at;
        match point {
            Some(point) => Ok(point),
            None => {
                let (store, key) = self.stored()?;
                Ok(store.existing(&key).await?.head)
            }
        }
    }
}

fn read_custom<S: CustomState>(stored: Option<&Json>) -> Result<S> {
    match stored {
        None => Ok(S::default()),
        Some(custom) => custom.to().map_err(|error| {
            Error::invalid("the custom state is not of this agent's type: bring it up with an upcaster")
                .with_source(error)
        }),
    }
}

impl Run {
    /// Reads and writes the custom state in one step. The change may read the session, but not change its custom state
    /// again: that would wait for itself, and is refused instead.
    pub(crate) fn write_custom(&self, change: impl FnOnce(Option<&Json>) -> Result<Option<Json>>) -> Result<()> {
        let bytes = self.work().now.custom.as_ref().map_or(0, |custom| custom.as_str().len());
        beside(bytes, || self.change_custom(change))
    }

    fn change_custom(&self, change: impl FnOnce(Option<&Json>) -> Result<Option<Json>>) -> Result<()> {
        let changing = Changing::enter(self)?;
        let _one_writer = self.custom_writers.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = {
            let work = self.work();
            work.check_open()?;
            work.now.custom.clone()
        };
        let custom = change(stored.as_ref())?;
        if let Some(custom) = &custom {
            crate::state::refuse_prefixed(custom)?;
        }
        let delta = attribution::wanted().then(|| StateDelta::between(stored.as_ref(), custom.as_ref())).transpose()?;
        self.work().set_custom(custom)?;
        if let Some(delta) = delta {
            attribution::note(&delta);
        }
        self.tell_custom(&changing)
    }
}
