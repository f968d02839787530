//! Agents by name, with their types rubbed off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use super::{Agent, CustomState, Following, Init, Recovered, Sessions, StateDiff};
use crate::compact::{Compaction, CompactionRecord, OnBranch, Summary};
use crate::connection::Connection;
use crate::json::Json;
use crate::snapshot::{Snapshot, SnapshotStatus};
use crate::stream::Position;
use crate::{AgentName, AppName, Error, Point, Result, SessionId, SnapshotId, TurnId, UserId};

/// Who keeps an agent's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StateManagement {
    /// The agent, in its store.
    Server,
    /// Its callers.
    Client,
}

/// What is known about an agent from outside.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentInfo {
    /// Its name.
    pub name: AgentName,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The app its sessions belong to.
    pub app: AppName,
    /// Who keeps its state.
    pub state_management: StateManagement,
    /// Whether its turns can be aborted from outside.
    pub abortable: bool,
    /// Whether what leaves it is shaped on its way.
    pub transformed: bool,
    /// What its custom state must look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_schema: Option<Json>,
}

impl AgentInfo {
    /// An agent about which only this is known. For those who bring it from elsewhere.
    #[must_use]
    pub fn new(name: AgentName, app: AppName, state_management: StateManagement) -> Self {
        Self {
            name,
            description: None,
            app,
            state_management,
            abortable: false,
            transformed: false,
            state_schema: None,
        }
    }
}

/// What can be asked of an agent wherever it runs. [`Agent`] is one in this process; for one in another, make
/// connections with [`Connection::to_peer`].
#[async_trait]
pub trait AgentClient: Send + Sync {
    /// What is known about it.
    fn info(&self) -> AgentInfo;

    /// The same agent for a user.
    fn for_user(&self, user: UserId) -> Arc<dyn AgentClient>;

    /// Starts an invocation.
    async fn connect(&self, init: Init) -> Result<Connection>;

    /// A snapshot with its state, as it may be shown; nothing if there is none for this user.
    async fn snapshot(&self, id: SnapshotId) -> Result<Option<Snapshot>>;

    /// A session's latest snapshot with its state, as it may be shown.
    async fn latest(&self, session: &SessionId) -> Result<Option<Snapshot>>;

    /// Aborts the turn behind a snapshot; what it was before is the answer, nothing if there is none.
    async fn abort(&self, _id: SnapshotId) -> Result<Option<SnapshotStatus>> {
        Err(Error::unsupported("this agent runs elsewhere, and its turns cannot be aborted from here"))
    }

    /// Waits until what became of the turn behind a snapshot is final, or so long.
    async fn wait(&self, _id: SnapshotId, _within: Option<Duration>) -> Result<Snapshot> {
        Err(Error::unsupported("this agent runs elsewhere, and its turns cannot be waited for from here"))
    }

    /// The sessions this user has with it.
    fn sessions(&self) -> Result<Sessions> {
        Err(Error::unsupported("this agent runs elsewhere, and its sessions cannot be looked at from here"))
    }

    /// Follows what the turn behind a snapshot says, after a position or from its beginning.
    async fn follow(&self, _id: SnapshotId, _after: Option<Position>) -> Result<Following> {
        Err(Error::unsupported("this agent runs elsewhere, and its streams cannot be followed from here"))
    }

    /// The same by the turn.
    async fn follow_turn(&self, _turn: TurnId, _after: Option<Position>) -> Result<Following> {
        Err(Error::unsupported("this agent runs elsewhere, and its streams cannot be followed from here"))
    }

    /// Labels a snapshot, or takes its label away.
    async fn label(&self, _id: SnapshotId, _label: Option<String>) -> Result<Snapshot> {
        Err(Error::unsupported("this agent runs elsewhere, and its snapshots cannot be labelled from here"))
    }

    /// What changed from one snapshot to another, as it may be shown.
    async fn diff(&self, _a: SnapshotId, _b: SnapshotId) -> Result<StateDiff> {
        Err(Error::unsupported("this agent runs elsewhere, and its snapshots cannot be compared from here"))
    }

    /// Replaces what the model is shown of a session by a summary: the one that is given, or one by its own summariser.
    /// Nothing is returned when there is nothing new to sum up.
    async fn compact(
        &self,
        _session: OnBranch,
        _expect: Option<Point>,
        _options: Option<Compaction>,
        _summary: Option<Summary>,
    ) -> Result<Option<CompactionRecord>> {
        Err(Error::unsupported("this agent runs elsewhere, and its sessions cannot be compacted from here"))
    }

    /// The compactions on the way to where a session stands, the oldest first, as they may be shown.
    async fn compactions(&self, _session: OnBranch) -> Result<Vec<CompactionRecord>> {
        Err(Error::unsupported("this agent runs elsewhere, and its compactions cannot be read from here"))
    }

    /// Looks after turns in the background whose process died. An agent that runs elsewhere is looked after there.
    async fn recover(&self) -> Result<Vec<Recovered>> {
        Ok(Vec::new())
    }

    /// Waits until nothing of it goes on in the background of this process, or so long. How many still do is the answer.
    async fn drain(&self, _within: Duration) -> usize {
        0
    }
}

#[async_trait]
impl<S: CustomState> AgentClient for Agent<S> {
    fn info(&self) -> AgentInfo {
        let def = &self.def;
        AgentInfo {
            name: def.name.clone(),
            description: def.description.clone(),
            app: def.app.clone(),
            state_management: if def.store.is_some() { StateManagement::Server } else { StateManagement::Client },
            abortable: def.store.is_some(),
            transformed: def.transforms.is_some(),
            state_schema: def.schema.as_ref().map(|schema| schema.json().clone()),
        }
    }

    fn for_user(&self, user: UserId) -> Arc<dyn AgentClient> {
        Arc::new(Agent::for_user(self, user))
    }

    async fn connect(&self, init: Init) -> Result<Connection> {
        Agent::connect(self, init).await
    }

    async fn snapshot(&self, id: SnapshotId) -> Result<Option<Snapshot>> {
        Agent::snapshot(self, id).await
    }

    async fn latest(&self, session: &SessionId) -> Result<Option<Snapshot>> {
        Agent::latest(self, session).await
    }

    async fn abort(&self, id: SnapshotId) -> Result<Option<SnapshotStatus>> {
        Agent::abort(self, id).await
    }

    async fn wait(&self, id: SnapshotId, within: Option<Duration>) -> Result<Snapshot> {
        Agent::wait(self, id, within).await
    }

    fn sessions(&self) -> Result<Sessions> {
        Agent::sessions(self)
    }

    async fn follow(&self, id: SnapshotId, after: Option<Position>) -> Result<Following> {
        Agent::follow(self, id, after).await
    }

    async fn follow_turn(&self, turn: TurnId, after: Option<Position>) -> Result<Following> {
        Agent::follow_turn(self, turn, after).await
    }

    async fn label(&self, id: SnapshotId, label: Option<String>) -> Result<Snapshot> {
        Agent::label(self, id, label).await
    }

    async fn diff(&self, a: SnapshotId, b: SnapshotId) -> Result<StateDiff> {
        Agent::diff(self, a, b).await
    }

    async fn compact(
        &self,
        session: OnBranch,
        expect: Option<Point>,
        options: Option<Compaction>,
        summary: Option<Summary>,
    ) -> Result<Option<CompactionRecord>> {
        self.compact_with(session, expect, options, summary).await
    }

    async fn compactions(&self, session: OnBranch) -> Result<Vec<CompactionRecord>> {
        Agent::compactions(self, session).await
    }

    async fn recover(&self) -> Result<Vec<Recovered>> {
        match self.def.store {
            Some(_) => Agent::recover(self).await,
            None => Ok(Vec::new()),
        }
    }

    async fn drain(&self, within: Duration) -> usize {
        Agent::drain(self, within).await
    }
}

/// Agents by name.
///
/// ```
/// use everturn::{Agent, Json, Registry, Turn};
///
/// let echo = Agent::flow("echo", |turn: Turn<Json>| async move { Ok(turn.text()) }).build()?;
/// let mut registry = Registry::new();
/// registry.register(echo.clone())?;
/// assert!(registry.register(echo).is_err(), "one name, one agent");
/// assert_eq!(registry.list()[0].name.as_str(), "echo");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<AgentName, Arc<dyn AgentClient>>);

impl Registry {
    /// One without agents.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an agent. A name that is taken is an error.
    pub fn register<S: CustomState>(&mut self, agent: Agent<S>) -> Result<()> {
        self.register_client(Arc::new(agent))
    }

    /// Adds an agent that may run elsewhere.
    pub fn register_client(&mut self, agent: Arc<dyn AgentClient>) -> Result<()> {
        let name = agent.info().name;
        if self.0.contains_key(&name) {
            return Err(Error::already_exists(format!(
                "there is an agent {name:?} already: give this one another name"
            )));
        }
        self.0.insert(name, agent);
        Ok(())
    }

    /// The agent of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<dyn AgentClient>> {
        self.0.get(&AgentName::new(name).ok()?).cloned()
    }

    /// All agents, by name.
    pub fn agents(&self) -> impl Iterator<Item = &Arc<dyn AgentClient>> {
        self.0.values()
    }

    /// What is known about each, by name.
    #[must_use]
    pub fn list(&self) -> Vec<AgentInfo> {
        self.0.values().map(|agent| agent.info()).collect()
    }
}
