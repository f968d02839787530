//! Compacting what a branch stands at, outside turns.

use std::future::Future;

use super::history::CompactionRecord;
use super::options::Compaction;
use super::plan::Plan;
use super::summary::{Summary, summarised};
use crate::agent::Handled;
use crate::message::Message;
use crate::session::{SessionKey, SessionStatus};
use crate::state::pairs::Pairs;
use crate::state::{PointState, View};
use crate::store::{Commit, Store, StoreExt as _};
use crate::turn::{Changes, NewSnapshot, Receipt, TurnStatus};
use crate::{AgentName, BranchName, Error, InvocationId, Result, SnapshotId};

/// A compaction of what a branch stands at. While the summariser runs nothing is held: whoever goes on meanwhile wins.
pub(crate) struct HeadCompaction<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) key: SessionKey,
    pub(crate) branch: BranchName,
    pub(crate) agent: &'a AgentName,
    pub(crate) invocation: InvocationId,
    /// The id of the snapshot it takes: who goes on from the latest snapshot must not lose it.
    pub(crate) snapshot: Option<SnapshotId>,
}

/// What was written.
pub(crate) struct Written {
    pub(crate) record: CompactionRecord,
    pub(crate) receipt: Receipt,
    pub(crate) view: View,
}

impl HeadCompaction<'_> {
    pub(crate) async fn run<F, Fut, R>(
        self,
        state: &PointState,
        options: &Compaction,
        summarise: F,
    ) -> Result<Option<Written>>
    where
        F: FnOnce(Vec<Message>) -> Fut,
        Fut: Future<Output = Handled<R>>,
        R: Into<Summary>,
    {
        self.refuse_waiting(state).await?;
        let plan = Plan::new(state.messages(), state.view.clone(), state.messages().len(), options);
        let Some(plan) = plan else { return Ok(None) };
        self.refuse_running().await?;
        let given = plan.replaced.clone();
        let summary = summarised(async { summarise(given).await }).await?;
        let noted = plan.with(&summary);
        let changes = Changes::new().event(noted.event(self.agent.as_str(), summary.usage)?).view(noted.view.clone());
        let mut commit = Commit::new(self.key, changes).branch(self.branch).expect(state.point());
        commit.invocation = Some(self.invocation);
        commit.snapshot = self.snapshot.map(NewSnapshot::new);
        let receipt = self.store.commit(commit).await?;
        let record = CompactionRecord {
            point: receipt.point,
            at: receipt.at,
            replaced: plan.replaced,
            summary: summary.messages,
            usage: summary.usage,
        };
        Ok(Some(Written { record, receipt, view: noted.view }))
    }

    /// A question that a person has to answer must stay in sight until it is answered.
    async fn refuse_waiting(&self, state: &PointState) -> Result<()> {
        let status = self.store.existing(&self.key).await?.status;
        let interrupted = status == SessionStatus::Interrupted && self.branch == BranchName::main();
        if interrupted || Pairs::of(state.messages()).waiting().is_some() {
            return Err(Error::not_resumable(format!(
                "session {} waits for the answer to what its last turn asked: answer it first, then compact",
                self.key.id
            )));
        }
        Ok(())
    }

    /// What a turn that runs now leads to would make the summary worthless: it need not be paid for.
    async fn refuse_running(&self) -> Result<()> {
        let running = self.store.running(Some(&self.key)).await?;
        let holds = |turn: &&crate::RunningTurn| {
            turn.leased && turn.branch == self.branch && turn.status == TurnStatus::Running
        };
        match running.iter().find(holds) {
            None => Ok(()),
            Some(turn) => Err(Error::busy(format!(
                "turn {} holds the branch {:?}: compact when it has ended, or from within it",
                turn.turn, self.branch
            ))),
        }
    }
}
