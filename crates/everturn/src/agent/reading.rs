//! Reading an agent's snapshots, through its transforms.

use serde::Serialize;

use super::sessions::{no_store, own_session, own_snapshot};
use super::{Agent, CustomState};
use crate::artifact::Artifact;
use crate::message::Message;
use crate::patch::Patch;
use crate::session::SessionKey;
use crate::snapshot::Snapshot;
use crate::state::SessionState;
use crate::store::{At, ListSnapshots, Page, SnapshotRef, Store};
use crate::{Error, Result, SessionId, SnapshotId};

impl<S: CustomState> Agent<S> {
    /// A snapshot with its state, as it may be shown; nothing if there is none for this user.
    pub async fn snapshot(&self, id: SnapshotId) -> Result<Option<Snapshot>> {
        let store = self.own_store()?;
        let Some(found) = self.own_snapshot(store, id).await? else { return Ok(None) };
        self.shown(store, found).await.map(Some)
    }

    /// A session's latest snapshot with its state: the newest that is pending, else the nearest to the head.
    pub async fn latest(&self, session: &SessionId) -> Result<Option<Snapshot>> {
        let store = self.own_store()?;
        if !self.owns(store, &self.key(session)).await? {
            return Ok(None);
        }
        match store.snapshot(SnapshotRef::Latest(self.key(session))).await? {
            Some(found) => self.shown(store, found).await.map(Some),
            None => Ok(None),
        }
    }

    /// A session's snapshots, without their states. An unknown session is `NotFound`.
    pub async fn snapshots(
        &self,
        session: &SessionId,
        query: impl FnOnce(ListSnapshots) -> ListSnapshots,
    ) -> Result<Page<Snapshot>> {
        self.sessions()?.snapshots(session, query).await
    }

    /// Labels a snapshot, or takes its label away.
    pub async fn label(&self, id: SnapshotId, label: Option<String>) -> Result<Snapshot> {
        let store = self.own_store()?;
        self.own_snapshot(store, id).await?.ok_or_else(|| self.unknown(id))?;
        store.label(id, label).await
    }

    /// What changed from one snapshot to another, as it may be shown.
    pub async fn diff(&self, a: SnapshotId, b: SnapshotId) -> Result<StateDiff> {
        let before = self.snapshot(a).await?.ok_or_else(|| self.unknown(a))?;
        let after = self.snapshot(b).await?.ok_or_else(|| self.unknown(b))?;
        let states = (before.state.map(plain), after.state.map(plain));
        let (Some(before), Some(after)) = states else {
            return Err(Error::internal("a snapshot was read without its state"));
        };
        StateDiff::between(&before?, &after?)
    }

    pub(super) fn unknown(&self, id: SnapshotId) -> Error {
        Error::not_found(format!("snapshot {id} not found for agent '{}'", self.def.name))
    }

    pub(super) fn own_store(&self) -> Result<&dyn Store> {
        self.def.store.as_deref().ok_or_else(|| no_store(&self.def))
    }

    pub(super) fn key(&self, session: &SessionId) -> SessionKey {
        SessionKey::new(self.def.app.clone(), self.user.clone(), session.clone())
    }

    /// A snapshot of this agent's that belongs to this user.
    pub(super) async fn own_snapshot(&self, store: &dyn Store, id: SnapshotId) -> Result<Option<Snapshot>> {
        own_snapshot(&self.def, store, &self.user, id).await
    }

    /// Whether there is such a session, and not of another agent of the same app.
    pub(super) async fn owns(&self, store: &dyn Store, key: &SessionKey) -> Result<bool> {
        Ok(own_session(&self.def, store, key).await?.is_some())
    }

    pub(super) async fn shown(&self, store: &dyn Store, mut snapshot: Snapshot) -> Result<Snapshot> {
        let Some(state) = store.state(At::Snapshot(snapshot.snapshot_id)).await? else { return Ok(snapshot) };
        let mut shown = self.sessions()?.shown(&snapshot.session_id, &state)?;
        // After the transform, which may have made the message anew.
        if let Some(last) = shown.messages.last_mut() {
            *last = last.with_snapshot_id(snapshot.snapshot_id);
        }
        snapshot.state = Some(shown);
        Ok(snapshot)
    }
}

/// The state without what was added for its reader.
fn plain(mut state: SessionState) -> Result<SessionState> {
    if let Some(last) = state.messages.pop() {
        state.messages.push(last.without_snapshot_id()?);
    }
    Ok(state)
}

/// What changed from one state to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StateDiff {
    /// How the messages changed.
    pub messages: MessagesDiff,
    /// How the custom state changed.
    pub custom: Patch,
    /// How the artifacts changed.
    pub artifacts: ArtifactsDiff,
}

/// How a list of messages changed: the first ones are the same, then it went another way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MessagesDiff {
    /// How many of the first messages are the same.
    pub common: usize,
    /// What followed them in the one.
    pub removed: Vec<Message>,
    /// What follows them in the other.
    pub added: Vec<Message>,
}

/// How a list of artifacts changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ArtifactsDiff {
    /// Those only the other has.
    pub added: Vec<Artifact>,
    /// Those both have, with other content: as the other has them.
    pub changed: Vec<Artifact>,
    /// Those only the one had.
    pub removed: Vec<Artifact>,
}

impl StateDiff {
    /// What turns one state into another.
    pub fn between(before: &SessionState, after: &SessionState) -> Result<Self> {
        let common = before.messages.iter().zip(&after.messages).take_while(|(a, b)| a == b).count();
        let messages = MessagesDiff {
            common,
            removed: before.messages[common..].to_vec(),
            added: after.messages[common..].to_vec(),
        };
        let custom = Patch::diff_optional(before.custom.as_ref(), after.custom.as_ref())?;
        let mut artifacts = ArtifactsDiff::default();
        for artifact in &after.artifacts {
            let same_name = |other: &&Artifact| artifact.name.is_some() && other.name == artifact.name;
            match before.artifacts.iter().find(same_name) {
                _ if before.artifacts.contains(artifact) => {}
                Some(_) => artifacts.changed.push(artifact.clone()),
                None => artifacts.added.push(artifact.clone()),
            }
        }
        let gone = |artifact: &&Artifact| match &artifact.name {
            Some(name) => !after.artifacts.iter().any(|other| other.name.as_ref() == Some(name)),
            None => !after.artifacts.contains(artifact),
        };
        artifacts.removed = before.artifacts.iter().filter(gone).cloned().collect();
        Ok(Self { messages, custom, artifacts })
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let MessagesDiff { removed, added, .. } = &self.messages;
        removed.is_empty() && added.is_empty() && self.custom.is_empty() && self.artifacts == ArtifactsDiff::default()
    }
}
