//! Compacting an agent's sessions from outside, and reading what was compacted.

use std::future::Future;

use super::sessions::unknown_session;
use super::{Agent, Caller, CustomState, Failure, Handled};
use crate::compact::{Compaction, CompactionRecord, HeadCompaction, OnBranch, Summary, history};
use crate::message::Message;
use crate::session::SessionKey;
use crate::state::{PointState, SessionState};
use crate::store::{At, Store};
use crate::{Error, ErrorKind, Point, Result, SessionId};

impl<S: CustomState> Agent<S> {
    /// Replaces what the model is shown of a session by a summary, but for what the options keep. What was said stays
    /// whole.
    ///
    /// The summariser is given what it is to sum up, as the model is shown it. While it runs nothing is held. The session
    /// is left as it was, and nothing of the summary is kept, when
    /// - the summariser fails or panics;
    /// - its summary is empty: `Invalid`;
    /// - a turn completed meanwhile (`Conflict`), or one runs (`Busy`);
    /// - the session waits for an answer to what its last turn asked: `NotResumable`.
    ///
    /// Nothing is returned when there is nothing new to sum up. What the summary cost is counted in the session's usage.
    /// The compaction has a snapshot of its own, unless the agent's policy is never to take any.
    pub async fn compact<F, Fut, R>(
        &self,
        session: impl Into<OnBranch>,
        options: Compaction,
        summarise: F,
    ) -> Result<Option<CompactionRecord>>
    where
        F: FnOnce(Vec<Message>) -> Fut + Send,
        Fut: Future<Output = Handled<R>> + Send,
        R: Into<Summary>,
    {
        self.compact_at(session.into(), None, options, summarise).await
    }

    /// The same by the agent's own summariser, or with a summary that is there already; only if the head stands where it
    /// is expected to, else `Conflict`. An agent without a compaction policy has no summariser, and `Invalid` says so.
    pub async fn compact_with(
        &self,
        session: impl Into<OnBranch>,
        expect: Option<Point>,
        options: Option<Compaction>,
        summary: Option<Summary>,
    ) -> Result<Option<CompactionRecord>> {
        let on = session.into();
        let policy = self.def.compaction.as_ref();
        let options = options.or_else(|| policy.map(|policy| policy.options.clone())).unwrap_or_default();
        match (summary, policy) {
            (Some(summary), _) => self.compact_at(on, expect, options, |_| async { Ok(summary) }).await,
            (None, Some(policy)) => {
                let (summariser, patience) = (policy.summariser.clone(), policy.patience);
                let summarise = |messages| async move {
                    let made = tokio::time::timeout(patience, summariser.summarise(messages)).await;
                    made.unwrap_or_else(|_| Err(Failure::new("UNAVAILABLE", "the summary took too long")))
                };
                self.compact_at(on, expect, options, summarise).await
            }
            (None, None) => {
                self.to_compact(&on.session).await?;
                Err(Error::invalid(format!("agent '{}' has no summariser: give the summary", self.def.name)))
            }
        }
    }

    async fn compact_at<F, Fut, R>(
        &self,
        on: OnBranch,
        expect: Option<Point>,
        options: Compaction,
        summarise: F,
    ) -> Result<Option<CompactionRecord>>
    where
        F: FnOnce(Vec<Message>) -> Fut + Send,
        Fut: Future<Output = Handled<R>> + Send,
        R: Into<Summary>,
    {
        let OnBranch { session, branch } = on;
        let (store, key) = self.to_compact(&session).await?;
        let state = store.state(At::Head(key.clone(), branch.clone())).await?;
        let state = state.ok_or_else(|| Error::not_found(format!("session {session} has no branch {branch:?}")))?;
        if let Some(expect) = expect.filter(|expect| *expect != state.point()) {
            return Err(Error::conflict(format!(
                "the head of {branch:?} is at {}, not at {expect}: read again and decide",
                state.point()
            )));
        }
        let compaction = HeadCompaction {
            store,
            key,
            branch,
            agent: &self.def.name,
            invocation: self.def.invocation_id(),
            snapshot: (!self.def.policy.is_never()).then(|| self.def.snapshot_id()),
        };
        Ok(compaction.run(&state, &options, summarise).await?.map(|written| written.record))
    }

    /// The compactions on the way to where a session stands, the oldest first, as they may be shown. Those before a fork
    /// are among them, those that were rewound are not.
    pub async fn compactions(&self, session: impl Into<OnBranch>) -> Result<Vec<CompactionRecord>> {
        let OnBranch { session, branch } = session.into();
        let (store, key) = self.to_compact(&session).await?;
        let found = history(store, &key, &branch).await?;
        found.into_iter().map(|(record, state)| self.shown_record(&key, record, &state)).collect()
    }

    async fn to_compact(&self, session: &SessionId) -> Result<(&dyn Store, SessionKey)> {
        let store = self.def.store.as_deref().ok_or_else(|| {
            Error::new(
                ErrorKind::WrongMode,
                format!(
                    "agent '{}' has no store (client-managed state), and there is nothing to compact: \
                     show the model a Window, or give the agent a store",
                    self.def.name
                ),
            )
        })?;
        let key = SessionKey::new(self.def.app.clone(), self.user.clone(), session.clone());
        let owner = store.session(&key).await?;
        match owner.is_some_and(|owner| owner.agent.is_none_or(|agent| agent == self.def.name)) {
            true => Ok((store, key)),
            false => Err(unknown_session(&self.def, session)),
        }
    }

    /// The record as the agent's transform shapes the messages of a state.
    fn shown_record(
        &self,
        key: &SessionKey,
        mut record: CompactionRecord,
        state: &PointState,
    ) -> Result<CompactionRecord> {
        if !self.def.transforms.is_some() {
            return Ok(record);
        }
        let caller = Caller { agent: self.def.name.clone(), user: self.user.clone(), session: Some(key.id.clone()) };
        let custom = self.def.upcasters.apply(state.schema_version(), state.custom().cloned())?;
        let shown = |messages: Vec<Message>| {
            let artifacts = state.artifacts().iter().map(|artifact| (**artifact).clone()).collect();
            let state = SessionState { session_id: Some(key.id.clone()), messages, custom: custom.clone(), artifacts };
            Ok::<_, Error>(self.def.transforms.session_state(state, &caller)?.messages)
        };
        record.replaced = shown(record.replaced)?;
        record.summary = shown(record.summary)?;
        Ok(record)
    }
}
