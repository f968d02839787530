//! The sessions a user has with an agent: made, listed, changed, read and moved.
//!
//! Whose a session or a snapshot is, is decided here and nowhere else. What belongs to another user, another app or
//! another agent of the same app is answered like what does not exist.

use std::fmt;
use std::sync::Arc;

use super::definition::Definition;
use super::{Agent, Caller, CustomState};
use crate::event::Event;
use crate::json::Json;
use crate::run::check_custom;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::Snapshot;
use crate::state::{PointState, Scope, ScopedState, SessionState, StateDelta};
use crate::store::{
    ArtifactQuery, At, BranchChange, CreateSession, EventQuery, ForkSession, ListSessions, ListSnapshots, Page,
    Preview, Purged, RecordQuery, SnapshotIds, SnapshotRef, Store, StoredArtifact, TreePage, TreeQuery, UpdateSession,
};
use crate::transfer::{Exporter, ImportId, Importer};
use crate::turn::{CustomChange, Record};
use crate::{BranchName, Error, ErrorKind, Point, Result, SessionId, SnapshotId, UserId};

/// The sessions a user has with an agent.
///
/// States pass the agent's transform on their way out. Events, records and artifacts do not: they are as the store has
/// them, and whoever shows them must know that the reader may see them.
///
/// ```
/// use everturn::store::MemoryStore;
/// use everturn::{Agent, Init, Json, Turn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let agent = Agent::flow("echo", |turn: Turn<Json>| async move { Ok(turn.text()) }).store(MemoryStore::new()).build()?;
/// let sessions = agent.sessions()?;
/// let made = sessions.create(|session| session.title("Tea")).await?;
/// agent.run_text("Hello!", Init::session(made.id.clone())).await?;
/// assert_eq!(sessions.existing(&made.id).await?.turns, 1);
/// assert_eq!(sessions.list(|query| query.limit(10)).await?.items[0].title.as_deref(), Some("Tea"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sessions {
    pub(super) def: Arc<Definition>,
    pub(super) store: Arc<dyn Store>,
    pub(super) user: UserId,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("agent", &self.def.name).field("user", &self.user).finish_non_exhaustive()
    }
}

/// A place in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Where a branch stands.
    Branch(BranchName),
    /// A point.
    Point(Point),
    /// A snapshot, which must be of the session.
    Snapshot(SnapshotId),
}

impl Default for Spot {
    fn default() -> Self {
        Self::Branch(BranchName::main())
    }
}

impl<S: CustomState> Agent<S> {
    /// The sessions this user has with it. `WrongMode` where there is no store.
    pub fn sessions(&self) -> Result<Sessions> {
        let store = self.def.store.clone().ok_or_else(|| no_store(&self.def))?;
        Ok(Sessions { def: self.def.clone(), store, user: self.user.clone() })
    }
}

pub(super) fn no_store(def: &Definition) -> Error {
    Error::new(
        ErrorKind::WrongMode,
        format!("agent '{}' has no store (client-managed state): it keeps no snapshots and no sessions", def.name),
    )
}

pub(super) fn unknown_session(def: &Definition, id: &SessionId) -> Error {
    Error::not_found(format!("agent '{}' has no session '{id}': check the id, or create it", def.name))
}

/// Whether there is such a session, and not of another agent of the same app.
pub(super) async fn own_session(
    def: &Definition,
    store: &dyn Store,
    key: &SessionKey,
) -> Result<Option<SessionRecord>> {
    let found = store.session(key).await?;
    Ok(found.filter(|found| found.agent.as_ref().is_none_or(|agent| *agent == def.name)))
}

/// A snapshot of this agent's that belongs to this user.
pub(super) async fn own_snapshot(
    def: &Definition,
    store: &dyn Store,
    user: &UserId,
    id: SnapshotId,
) -> Result<Option<Snapshot>> {
    let Some(found) = store.snapshot(SnapshotRef::Id(id)).await? else { return Ok(None) };
    let Some(key) = &found.session else { return Ok(None) };
    if key.app != def.app || key.user != *user {
        return Ok(None);
    }
    Ok(own_session(def, store, key).await?.is_some().then_some(found))
}

impl Sessions {
    /// What addresses one of them.
    #[must_use]
    pub fn key(&self, id: &SessionId) -> SessionKey {
        SessionKey::new(self.def.app.clone(), self.user.clone(), id.clone())
    }

    /// What is known about one, or nothing if there is none.
    pub async fn get(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        own_session(&self.def, &*self.store, &self.key(id)).await
    }

    /// The same of one that must exist: `NotFound` if it does not.
    pub async fn existing(&self, id: &SessionId) -> Result<SessionRecord> {
        self.get(id).await?.ok_or_else(|| self.unknown(id))
    }

    pub(super) fn unknown(&self, id: &SessionId) -> Error {
        unknown_session(&self.def, id)
    }

    /// Creates one, with a snapshot of how it begins. Its custom state must fit the agent's schema.
    pub async fn create(&self, with: impl FnOnce(CreateSession) -> CreateSession) -> Result<SessionRecord> {
        let mut session = with(CreateSession::new(self.def.app.clone(), self.user.clone()));
        (session.app, session.user) = (self.def.app.clone(), self.user.clone());
        session.agent = Some(self.def.name.clone());
        session.seed.get_or_insert_with(|| self.def.snapshot_id());
        let version = self.def.upcasters.version();
        session.changes.schema_version = Some(version).filter(|version| *version > 0);
        let own = session.state.of_scope(Scope::Session);
        match &session.changes.custom {
            Some(CustomChange::Set(custom)) => check_custom(&self.def, Some(custom))?,
            _ if !own.set.is_empty() => check_custom(&self.def, Some(&Json::written(&own.set)?))?,
            _ => {}
        }
        self.store.create(session).await
    }

    /// Lists them, page by page, as of the first page. Those of other agents of the same app are left out, so a page may be
    /// shorter than asked for: it was the last one only if there is nowhere to go on.
    pub async fn list(&self, query: impl FnOnce(ListSessions) -> ListSessions) -> Result<Page<SessionRecord>> {
        let mut query = query(ListSessions::default());
        (query.app, query.user) = (Some(self.def.app.clone()), Some(self.user.clone()));
        let mut page = self.store.list(query).await?;
        page.items.retain(|session| session.agent.as_ref().is_none_or(|agent| *agent == self.def.name));
        Ok(page)
    }

    /// Changes title, labels or metadata.
    pub async fn update(&self, id: &SessionId, update: UpdateSession) -> Result<SessionRecord> {
        self.existing(id).await?;
        self.store.update(&self.key(id), update).await
    }

    /// Deletes one; whether there was one is the answer.
    pub async fn delete(&self, id: &SessionId) -> Result<bool> {
        if self.get(id).await?.is_none() {
            return Ok(false);
        }
        self.store.delete(&self.key(id)).await
    }

    /// Deletes one, and returns when its bytes are gone. Works on those that are deleted already.
    pub async fn purge(&self, id: &SessionId) -> Result<Purged> {
        // One that is there must be ours; of one that is deleted only its key is left, and that is ours.
        match self.store.session(&self.key(id)).await? {
            Some(_) if self.get(id).await?.is_none() => Err(self.unknown(id)),
            _ => self.store.purge(&self.key(id)).await,
        }
    }

    /// The state at a place, as it may be shown.
    pub async fn state(&self, id: &SessionId, spot: Spot) -> Result<SessionState> {
        let at = self.at(id, &spot).await?;
        let state = self.store.state(at).await?.ok_or_else(|| self.nowhere(id, &spot))?;
        self.shown(id, &state)
    }

    /// A state as it may be shown.
    pub(super) fn shown(&self, id: &SessionId, state: &PointState) -> Result<SessionState> {
        let mut travels = state.to_session_state();
        travels.session_id = Some(id.clone());
        travels.custom = self.def.upcasters.apply(state.schema_version(), travels.custom)?;
        let caller = Caller { agent: self.def.name.clone(), user: self.user.clone(), session: Some(id.clone()) };
        self.def.transforms.session_state(travels, &caller)
    }

    /// Events of a line, raw.
    pub async fn events(
        &self,
        id: &SessionId,
        spot: Spot,
        query: impl FnOnce(EventQuery) -> EventQuery,
    ) -> Result<Page<Event>> {
        let at = self.at(id, &spot).await?;
        let mut query = query(EventQuery::at(at.clone()));
        query.at = at;
        self.store.events(query).await
    }

    /// Its log, raw.
    pub async fn records(
        &self,
        id: &SessionId,
        query: impl FnOnce(RecordQuery) -> RecordQuery,
    ) -> Result<Page<Record>> {
        self.existing(id).await?;
        let mut query = query(RecordQuery::of(self.key(id)));
        query.session = self.key(id);
        self.store.records(query).await
    }

    /// Its snapshots, without their states.
    pub async fn snapshots(
        &self,
        id: &SessionId,
        query: impl FnOnce(ListSnapshots) -> ListSnapshots,
    ) -> Result<Page<Snapshot>> {
        self.existing(id).await?;
        let mut query = query(ListSnapshots::of(self.key(id)));
        query.session = self.key(id);
        self.store.snapshots(query).await
    }

    /// Versions of its artifacts, raw.
    pub async fn artifacts(
        &self,
        id: &SessionId,
        query: impl FnOnce(ArtifactQuery) -> ArtifactQuery,
    ) -> Result<Vec<StoredArtifact>> {
        self.existing(id).await?;
        let mut query = query(ArtifactQuery::of(self.key(id)));
        query.session = self.key(id);
        self.store.artifacts(query).await
    }

    /// The keys it sees of the `app:` and `user:` scopes, with their prefixes, raw.
    pub async fn scopes(&self) -> Result<ScopedState> {
        self.store.scopes(&self.def.app, Some(&self.user)).await
    }

    /// Changes keys of the `app:` and `user:` scopes, with their prefixes, and gives what they are then.
    pub async fn set_scopes(&self, delta: StateDelta) -> Result<ScopedState> {
        self.store.set_scopes(&self.def.app, Some(&self.user), delta).await?;
        self.scopes().await
    }

    /// One of them as a file, raw.
    pub async fn export(&self, id: &SessionId) -> Result<Exporter> {
        self.existing(id).await?;
        Ok(Exporter::new(self.store.clone(), self.key(id)))
    }

    /// Brings one in from a file, as this agent's and this user's own.
    pub async fn import(&self, file: Importer, id: ImportId, snapshots: SnapshotIds) -> Result<SessionRecord> {
        let mut session = file.into_session(id, &*self.def.clock)?;
        session.key = self.key(&session.key.id);
        session.agent = Some(self.def.name.clone());
        session.snapshots = snapshots;
        self.store.import(session).await
    }

    /// Its tree, page by page. The texts in it are raw.
    pub async fn tree(&self, id: &SessionId, query: impl FnOnce(TreeQuery) -> TreeQuery) -> Result<TreePage> {
        self.existing(id).await?;
        let mut query = query(TreeQuery::of(self.key(id)));
        query.session = self.key(id);
        self.store.tree(query).await
    }

    /// How some of them look from outside, raw.
    pub async fn previews<'a>(&self, ids: impl IntoIterator<Item = &'a SessionId>) -> Result<Vec<Option<Preview>>> {
        let keys: Vec<_> = ids.into_iter().map(|id| self.key(id)).collect();
        self.store.previews(&keys).await
    }

    /// Creates, moves or deletes a branch.
    pub async fn branch(&self, id: &SessionId, change: BranchChange) -> Result<SessionRecord> {
        self.existing(id).await?;
        self.store.branch(&self.key(id), change).await
    }

    /// Forks it at a place, under an id or a generated one.
    pub async fn fork(&self, id: &SessionId, spot: Spot, fork: Option<SessionId>) -> Result<SessionRecord> {
        let mut request = ForkSession::at(self.at(id, &spot).await?);
        request.id = fork;
        self.store.fork(request).await
    }

    /// The point of a place.
    pub async fn point(&self, id: &SessionId, spot: Spot) -> Result<Point> {
        match &spot {
            Spot::Point(point) => Ok(*point),
            Spot::Branch(name) => {
                let session = self.existing(id).await?;
                let branch = session.branches.into_iter().find(|branch| branch.name == *name);
                branch.map(|branch| branch.head).ok_or_else(|| self.nowhere(id, &spot))
            }
            Spot::Snapshot(of) => Ok(self.snapshot_in(id, *of).await?.point),
        }
    }

    async fn at(&self, id: &SessionId, spot: &Spot) -> Result<At> {
        self.existing(id).await?;
        Ok(match spot {
            Spot::Branch(name) => At::Head(self.key(id), name.clone()),
            Spot::Point(point) => At::Point(self.key(id), *point),
            Spot::Snapshot(of) => At::Snapshot(self.snapshot_in(id, *of).await?.snapshot_id),
        })
    }

    async fn snapshot_in(&self, id: &SessionId, snapshot: SnapshotId) -> Result<Snapshot> {
        let found = own_snapshot(&self.def, &*self.store, &self.user, snapshot).await?;
        found.filter(|found| found.session_id == *id).ok_or_else(|| self.nowhere(id, &Spot::Snapshot(snapshot)))
    }

    fn nowhere(&self, id: &SessionId, spot: &Spot) -> Error {
        let what = match spot {
            Spot::Branch(name) => format!("branch '{name}'"),
            Spot::Point(point) => format!("point {point} a state can be read at"),
            Spot::Snapshot(snapshot) => format!("snapshot {snapshot}"),
        };
        Error::not_found(format!("session '{id}' has no {what}: look at its branches and snapshots"))
    }
}
