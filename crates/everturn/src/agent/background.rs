//! Turns in the background: aborting them, waiting for them, and what becomes of those whose process died.

use std::sync::Arc;
use std::time::Duration;

use super::sessions::no_store;
use super::unwritten::Certainty;
use super::{Agent, CustomState, Recovery};
use crate::snapshot::{FinishReason, Snapshot, SnapshotStatus, TurnError};
use crate::store::{EndTurn, Store, TurnRef, WatchTarget};
use crate::turn::{EndStatus, Fence, NewSnapshot, Outcome, RunningTurn, TurnStatus};
use crate::{Error, ErrorKind, InvocationId, Result, SessionId, SnapshotId, TurnId};

/// How often somebody who waits looks whether whoever works is still alive: a death writes nothing.
const LOOK: Duration = Duration::from_secs(1);

/// How much may go on in the background of a process before it takes over no more.
const AT_ONCE: usize = 64;

/// What a recovery did about a turn whose process had died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovered {
    /// It failed for good.
    Failed(TurnId),
    /// It is tried again, in the background.
    Retried(TurnId),
}

/// What is behind a snapshot id.
enum Behind {
    /// Its row.
    Row(Box<Snapshot>),
    /// A turn that has reserved it, and has no row until it ends.
    Attached(TurnStatus),
}

impl<S: CustomState> Agent<S> {
    /// Aborts the turn behind a snapshot, attached or in the background, in whichever process it runs. What it was before
    /// is the answer: one that was `pending` is `aborted` now, and that is final; one that had ended stays as it was.
    /// Nothing if there is no such snapshot for this user.
    ///
    /// In this process its handler is told at once, elsewhere within [`Patience::abort_poll`](super::Patience); one that
    /// does not listen can no longer write.
    pub async fn abort(&self, id: SnapshotId) -> Result<Option<SnapshotStatus>> {
        let store = self.own_store()?;
        match self.behind(store, id).await? {
            Some(Behind::Row(row)) if !matches!(row.status, SnapshotStatus::Pending | SnapshotStatus::Expired) => {
                Ok(Some(row.status))
            }
            Some(_) => self.abort_turn(store, TurnRef::Snapshot(id)).await,
            None => Ok(None),
        }
    }

    /// Aborts the turn that an invocation runs in a session. Nothing if it runs none.
    pub async fn abort_invocation(&self, session: &SessionId, id: &InvocationId) -> Result<Option<SnapshotStatus>> {
        let (store, key) = (self.own_store()?, self.key(session));
        if !self.owns(store, &key).await? {
            return Ok(None);
        }
        self.abort_turn(store, TurnRef::Invocation(key, id.clone())).await
    }

    async fn abort_turn(&self, store: &dyn Store, turn: TurnRef) -> Result<Option<SnapshotStatus>> {
        let aborted = match store.abort(turn).await {
            Ok(aborted) => aborted,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Deleted) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(run) = self.def.local.find(aborted.turn) {
            run.stop(crate::run::Stop::Lost(Error::aborted("the turn was aborted")));
        }
        Ok(Some(match aborted.before {
            TurnStatus::Running => SnapshotStatus::Pending,
            TurnStatus::Dead => SnapshotStatus::Expired,
            TurnStatus::Completed => SnapshotStatus::Completed,
            TurnStatus::Failed => SnapshotStatus::Failed,
            TurnStatus::Aborted => SnapshotStatus::Aborted,
        }))
    }

    /// What this user has behind a snapshot id; nothing if there is nothing.
    async fn behind(&self, store: &dyn Store, id: SnapshotId) -> Result<Option<Behind>> {
        if let Some(row) = self.own_snapshot(store, id).await? {
            return Ok(Some(Behind::Row(Box::new(row))));
        }
        if let Some(turn) = self.running_behind(store, id).await? {
            return Ok(Some(Behind::Attached(turn.status)));
        }
        // It may have ended between the two looks, and then it has its row now.
        Ok(self.own_snapshot(store, id).await?.map(|row| Behind::Row(Box::new(row))))
    }

    /// The turn of this user that has reserved a snapshot id and not ended.
    pub(super) async fn running_behind(&self, store: &dyn Store, id: SnapshotId) -> Result<Option<RunningTurn>> {
        let mine = |turn: &RunningTurn| {
            turn.snapshot_id == Some(id)
                && turn.session == self.key(&turn.session.id)
                && turn.agent.as_ref().is_none_or(|agent| *agent == self.def.name)
        };
        Ok(store.running(None).await?.into_iter().find(mine))
    }

    /// Waits until what became of the turn behind a snapshot is final, or so long: `Unavailable` then, and nothing has
    /// changed. Any number may wait.
    ///
    /// A turn whose process died is final only if nobody will try it again: where the agent's [`Recovery`] leaves such turns,
    /// the snapshot is returned as `expired`.
    pub async fn wait(&self, id: SnapshotId, within: Option<Duration>) -> Result<Snapshot> {
        let store = self.own_store()?;
        let late = || Error::unavailable(format!("snapshot {id} is still pending: wait longer, or look again later"));
        let end = within.and_then(|within| tokio::time::Instant::now().checked_add(within));
        let mut watch = None;
        loop {
            let found = match self.behind(store, id).await? {
                Some(Behind::Row(row)) => row,
                Some(Behind::Attached(TurnStatus::Dead)) if self.def.recovery == Recovery::Leave => {
                    return Err(Error::unavailable(format!(
                        "the process that ran the turn behind snapshot {id} is gone: try the turn again, or abort it"
                    )));
                }
                Some(Behind::Attached(_)) => {
                    // Attached: there is no row to watch until it ends.
                    pause(Duration::from_millis(50), end).await.map_err(|()| late())?;
                    continue;
                }
                None => return Err(self.unknown(id)),
            };
            let over = match found.status {
                SnapshotStatus::Pending => false,
                SnapshotStatus::Expired => self.def.recovery == Recovery::Leave,
                SnapshotStatus::Completed | SnapshotStatus::Failed | SnapshotStatus::Aborted => true,
            };
            if over {
                return self.shown(store, *found).await;
            }
            // Told from before the first look on: a change in between is not missed.
            let Some(watch) = &mut watch else {
                watch = Some(store.watch(WatchTarget::Snapshot(id)).await?);
                continue;
            };
            let mut next = tokio::time::Instant::now() + LOOK;
            if let Some(end) = end {
                if tokio::time::Instant::now() >= end {
                    return Err(late());
                }
                next = next.min(end);
            }
            if let Ok(changed) = tokio::time::timeout_at(next, watch.next()).await {
                changed?;
            }
        }
    }

    /// Looks for turns of this agent, of all users, whose process died, and does with them what the agent's [`Recovery`]
    /// says. Those that did not go on in the background are not tried again unless somebody asks for them: they fail. Any
    /// number of processes may do so at once: each turn is taken by one.
    pub async fn recover(&self) -> Result<Vec<Recovered>> {
        let store = self.def.store.as_ref().ok_or_else(|| no_store(&self.def))?;
        let (mut recovered, mut failed) = (Vec::new(), None);
        if self.def.recovery == Recovery::Leave {
            return Ok(recovered);
        }
        for turn in store.running(None).await? {
            let mine = turn.session.app == self.def.app && turn.agent.as_ref() == Some(&self.def.name);
            // One that runs here is late with its heartbeat, as after a laptop's sleep, and not dead.
            let here = self.def.local.find(turn.turn).is_some();
            if !mine || here || turn.status != TurnStatus::Dead {
                continue;
            }
            // The rest waits for its turn, here or with another worker: a crash must not be followed by a rush.
            if turn.detached && self.def.local.in_background() >= AT_ONCE {
                continue;
            }
            let done = match turn.detached {
                true => self.recover_turn(store, &turn).await,
                false => give_up(store, &turn).await,
            };
            match done {
                Ok(done) => recovered.push(done),
                // Somebody else was quicker.
                Err(error) if taken(&error) => {}
                // One that cannot be helped must not keep the others from it.
                Err(error) => {
                    tracing::warn!(%error, turn = %turn.turn, "a turn whose process died could not be looked after");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if recovered.is_empty() => Err(error),
            _ => Ok(recovered),
        }
    }

    async fn recover_turn(&self, store: &Arc<dyn Store>, turn: &RunningTurn) -> Result<Recovered> {
        let why = match self.def.recovery {
            Recovery::Retry { attempts } if turn.attempt < attempts => {
                let agent = self.for_user(turn.session.user.clone());
                agent.retry_in_background(turn.turn).await?;
                return Ok(Recovered::Retried(turn.turn));
            }
            Recovery::Retry { attempts } => {
                format!("its process died at each of {attempts} attempts: it is not tried again")
            }
            Recovery::Fail | Recovery::Leave => "the process that worked on it died".to_owned(),
        };
        let begun = store.take_over(turn.turn).await?;
        let mut end =
            EndTurn::voided(begun.fence, EndStatus::Failed, Outcome::failed(TurnError::new("UNAVAILABLE", why)));
        end.outcome.finish_reason = Some(FinishReason::Failed);
        end.snapshot = begun.snapshot_id.map(NewSnapshot::new);
        if let Err(error) = store.end(end.clone()).await {
            if error.is_stores() {
                // It is ours now, and nobody works on it.
                self.def.local.unwritten.add(store, end, Certainty::NotKept);
            }
            return Err(error);
        }
        Ok(Recovered::Failed(turn.turn))
    }

    /// Waits until nothing of this agent goes on in the background of this process, or so long. How many invocations still
    /// do is the answer; what of them is left when the process ends can be taken over by another.
    pub async fn drain(&self, within: Duration) -> usize {
        self.def.local.drained(within).await
    }
}

/// Ends a turn whose process died and that nobody waits for. What it had said stays readable; it may be run again by its
/// key, or by [`Agent::retry`].
async fn give_up(store: &Arc<dyn Store>, turn: &RunningTurn) -> Result<Recovered> {
    let why = TurnError::new("UNAVAILABLE", "the process that worked on it died");
    let fence = Fence::new(turn.turn, turn.attempt);
    let mut end = EndTurn::voided(fence, EndStatus::Failed, Outcome::lost(why));
    end.snapshot = turn.snapshot_id.map(NewSnapshot::new);
    store.end(end).await?;
    Ok(Recovered::Failed(turn.turn))
}

/// Whether a turn was taken or ended by somebody else meanwhile.
fn taken(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Busy
            | ErrorKind::Conflict
            | ErrorKind::Fenced
            | ErrorKind::Aborted
            | ErrorKind::Deleted
            | ErrorKind::NotFound
    )
}

async fn pause(time: Duration, end: Option<tokio::time::Instant>) -> Result<(), ()> {
    let now = tokio::time::Instant::now();
    if end.is_some_and(|end| now >= end) {
        return Err(());
    }
    let until = now + time;
    tokio::time::sleep_until(end.map_or(until, |end| end.min(until))).await;
    Ok(())
}
