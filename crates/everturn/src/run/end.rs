//! How a turn of an invocation ends, and how the invocation does.

use std::sync::Arc;

use super::begin::{bounded, note_snapshot};
use super::work::Phase;
use super::{Known, Next, Place, Run, Stop};
use crate::agent::definition::{ContentInSpans, OnFailure};
use crate::agent::policy::{LastSnapshot, SnapshotContext};
use crate::agent::{Output, SharedState};
use crate::json::Json;
use crate::snapshot::{FinishReason, SnapshotEvent, TurnError};
use crate::store::{Commit, EndTurn, StepTurn, Store};
use crate::stream::Chunk;
use crate::turn::{Begun, Changes, EndStatus, Input, NewSnapshot, Outcome, Receipt};
use crate::{Error, ErrorKind, Result, SnapshotId};

/// How a handler left its turn.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It returned.
    Done(Option<Json>),
    /// It failed.
    Failed(TurnError),
    /// It was stopped from outside.
    Stopped(Stop),
}

/// Whether another turn may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoOn,
    Stop,
}

impl Run {
    /// Ends the turn that runs. What it led to is in the place.
    pub(crate) async fn end_turn(&self, ending: Ending, after: Phase) -> After {
        let mut place = self.place.lock().await;
        *self.running() = None;
        // A transform that failed withholds what was said, whatever the handler made of it.
        let ending = match (ending, self.take_stop()) {
            (Ending::Done(_) | Ending::Failed(_), Some(stop @ (Stop::Withheld(_) | Stop::Aborted))) => {
                Ending::Stopped(stop)
            }
            (ending, _) => ending,
        };
        let span = place.span.clone();
        let begun = place.begun.take();
        let (ending, receipt) = match (&self.def.store, begun) {
            (Some(store), Some(begun)) => self.write_end(&mut place, &**store, begun, ending).await,
            _ => (ending, None),
        };
        let ended = self.settle(&mut place, ending, after);
        if let Some(receipt) = &receipt {
            self.take_note(&mut place, receipt, &ended);
        }
        if ended.error.is_some() && receipt.is_some() {
            self.leave_seed(&mut place).await;
        }
        if let Some(id) = receipt.as_ref().and_then(|receipt| receipt.snapshot_id) {
            note_snapshot(&span, self.def.name.as_str(), id);
        }
        self.note_end(&span, &ended);
        place.finish_reason = Some(ended.reason);
        place.error = ended.error;
        if ended.rolled_back {
            self.tell_rollback().await;
        }
        drop(span);
        place.span = tracing::Span::none();
        let chunk = Chunk::turn_end(receipt.and_then(|receipt| receipt.snapshot_id), ended.reason);
        // The turn is kept; whether anybody still reads changes nothing about it.
        let _ = self.send(chunk).await;
        if ended.counts && place.error.is_none() { After::GoOn } else { After::Stop }
    }

    /// Writes the end. A store that refuses it changes how the turn ended.
    async fn write_end(
        &self,
        place: &mut Place,
        store: &dyn Store,
        begun: Begun,
        ending: Ending,
    ) -> (Ending, Option<Receipt>) {
        let request = match self.end_request(place, &begun, &ending).await {
            Ok(request) => request,
            Err(error) => return self.void_after(store, &begun, error).await,
        };
        match store.end(request).await {
            Ok(receipt) => (ending, Some(receipt)),
            Err(error) => match error.kind() {
                ErrorKind::Fenced | ErrorKind::Aborted | ErrorKind::Deleted => {
                    (Ending::Stopped(Stop::Lost(error)), None)
                }
                _ => self.void_after(store, &begun, error).await,
            },
        }
    }

    /// The end could not be written as it was meant; the turn must still end.
    async fn void_after(&self, store: &dyn Store, begun: &Begun, error: Error) -> (Ending, Option<Receipt>) {
        let error = TurnError::from(&error);
        let mut end = EndTurn::voided(begun.fence, EndStatus::Failed, Outcome::failed(error.clone()));
        end.snapshot = begun.snapshot_id.map(NewSnapshot::new);
        let receipt = match store.end(end).await {
            Ok(receipt) => Some(receipt),
            Err(also) => {
                tracing::warn!(error = %also, turn = %begun.turn, "a turn was not ended; it is dead until it is taken over");
                None
            }
        };
        (Ending::Failed(error), receipt)
    }

    async fn end_request(&self, place: &mut Place, begun: &Begun, ending: &Ending) -> Result<EndTurn> {
        let (changes, scopes, label, message) = {
            let work = self.work();
            let changes = work.changes(self.def.upcasters.version());
            (changes, work.scope_delta.clone(), work.label.clone(), work.now.messages.last().cloned())
        };
        let reserved = |id: SnapshotId| NewSnapshot { id, label: label.clone() };
        let voided = |status, outcome| {
            let mut end = EndTurn::voided(begun.fence, status, outcome);
            // What was said until then stays readable; what it would have changed elsewhere does not happen.
            end.changes = changes.clone();
            end.snapshot = begun.snapshot_id.map(reserved);
            end
        };
        let (outcome, kept) = match ending {
            Ending::Done(output) => {
                let mut outcome = Outcome::finished(self.finish_reason());
                outcome.output.clone_from(output);
                (outcome, true)
            }
            Ending::Failed(error) => (Outcome::failed(error.clone()), self.def.on_failure == OnFailure::Keep),
            Ending::Stopped(Stop::Aborted) => {
                return Ok(voided(EndStatus::Aborted, Outcome::finished(FinishReason::Aborted)));
            }
            Ending::Stopped(stop) => (Outcome::failed(stop.error()), false),
        };
        if !kept {
            return Ok(voided(EndStatus::Failed, outcome));
        }
        let mut end = EndTurn::completed(begun.fence, changes).scopes(scopes);
        end.outcome = Outcome { message, ..outcome };
        if self.wants_snapshot(place, SnapshotEvent::TurnEnd).await? {
            end.snapshot = begun.snapshot_id.map(reserved);
        }
        Ok(end)
    }

    fn finish_reason(&self) -> FinishReason {
        self.work().finish_reason.unwrap_or(FinishReason::Stop)
    }

    /// Brings the working state to where the turn left it.
    fn settle(&self, place: &mut Place, ending: Ending, after: Phase) -> Ended {
        let reason = self.finish_reason();
        let mut work = self.work();
        let ended = match ending {
            Ending::Done(output) => {
                place.output = output.or(place.output.take());
                Ended { reason, error: None, counts: true, rolled_back: false }
            }
            Ending::Failed(error) if self.def.on_failure == OnFailure::Keep => {
                Ended { reason: FinishReason::Failed, error: Some(error), counts: true, rolled_back: false }
            }
            Ending::Failed(error) => Ended::void(FinishReason::Failed, Some(error)),
            Ending::Stopped(Stop::Aborted) => Ended::void(FinishReason::Aborted, None),
            Ending::Stopped(Stop::Lost(error)) if error.kind() == ErrorKind::Aborted => {
                Ended::void(FinishReason::Aborted, None)
            }
            Ending::Stopped(stop) => Ended::void(FinishReason::Failed, Some(stop.error())),
        };
        if ended.counts {
            work.good = work.now.clone();
            work.older_schema = false;
            let pending = work.pending_usage();
            work.line_usage.add(&pending);
            work.turns += 1;
            work.settle();
            work.phase = after;
        } else {
            work.roll_back();
            work.phase = if ended.reason == FinishReason::Aborted { Phase::Aborted } else { Phase::Ended };
        }
        if self.def.store.is_none() {
            place.turn_index += u64::from(ended.counts);
        }
        ended
    }

    /// Remembers where the turn left the session.
    fn take_note(&self, place: &mut Place, receipt: &Receipt, ended: &Ended) {
        if let Some(id) = receipt.snapshot_id {
            place.snapshot_ids.push(id);
        }
        if !ended.counts {
            return;
        }
        place.point = Some(receipt.point);
        place.on_head = receipt.on_head;
        place.digest = Some(receipt.digest);
        place.index += 1;
        place.turn_index += 1;
        place.next = if receipt.on_head { Next::Head } else { Next::Point(receipt.point) };
        if let Some(id) = receipt.snapshot_id {
            place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
        }
    }

    /// A first turn that fails would leave its client nothing to go on from: the empty session gets a name.
    async fn leave_seed(&self, place: &mut Place) {
        let seed = async {
            let done: Result<()> = Ok(());
            if self.def.policy.is_never() || place.turn_index > 0 || self.last_snapshot(place).await?.is_some() {
                return done;
            }
            let (Some(store), Some(key), Some(point)) = (&self.def.store, place.key.clone(), place.point) else {
                return done;
            };
            let id = self.def.snapshot_id();
            let commit = Commit::new(key, Changes::new()).expect(point).snapshot(NewSnapshot::new(id));
            let receipt = store.commit(commit).await?;
            place.point = Some(receipt.point);
            place.digest = Some(receipt.digest);
            place.next = Next::Head;
            place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
            done
        };
        match seed.await {
            Ok(()) => {}
            // Somebody else went on meanwhile; the session has something to go on from.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy) => {}
            Err(error) => tracing::warn!(%error, "no seed was left after a failed first turn"),
        }
    }

    fn note_end(&self, span: &tracing::Span, ended: &Ended) {
        if let Some(error) = &ended.error {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", bounded(&error.message));
        }
        if self.def.content_in_spans == ContentInSpans::Include
            && let Some(message) = self.work().now.messages.last()
        {
            span.record("genkit:output", bounded(message.as_str()));
        }
    }

    /// Asks the policy about an opportunity for a snapshot.
    async fn wants_snapshot(&self, place: &mut Place, event: SnapshotEvent) -> Result<bool> {
        let Some(store) = self.def.store.clone() else { return Ok(false) };
        let (mut digest, mut prev) = (crate::Digest::ABSENT, None);
        if self.def.policy.compares() {
            digest = self.work().digests()?.state();
            prev = self.last_snapshot(place).await?;
        }
        let context = SnapshotContext {
            event,
            state: self.shared_state(),
            index: place.index,
            turn_index: place.turn_index,
            digest,
            prev,
            store,
        };
        Ok(self.def.policy.decide(context).await)
    }

    /// All tools of one model iteration have answered: a point inside the turn, if the policy wants it named.
    pub(crate) async fn tool_iteration_end(&self) -> Result<Option<SnapshotId>> {
        let mut place = self.place.lock().await;
        let (Some(store), Some(begun)) = (&self.def.store, place.begun.clone()) else { return Ok(None) };
        self.work().check_open()?;
        let named = self.wants_snapshot(&mut place, SnapshotEvent::ToolIterationEnd).await?;
        let id = named.then(|| self.def.snapshot_id());
        let changes = self.work().changes(self.def.upcasters.version());
        let mut step = StepTurn::new(begun.fence, changes).event(SnapshotEvent::ToolIterationEnd);
        step.snapshot = id.map(NewSnapshot::new);
        let receipt = store.step(step).await?;
        place.index += 1;
        {
            let mut work = self.work();
            work.older_schema = false;
            let pending = work.pending_usage();
            work.line_usage.add(&pending);
            work.settle();
        }
        let Some(id) = id else { return Ok(None) };
        place.snapshot_ids.push(id);
        place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
        note_snapshot(&tracing::Span::current(), self.def.name.as_str(), id);
        drop(place);
        self.send(Chunk::snapshot_created(id)).await?;
        Ok(Some(id))
    }

    /// Ends the invocation: what was changed after the last turn is kept, the policy asked once more.
    pub(crate) async fn finish(self: &Arc<Self>, unprocessed: Vec<Input>) -> Result<Output> {
        let mut place = self.place.lock().await;
        let failed = place.error.is_some() || place.finish_reason == Some(FinishReason::Aborted);
        if !failed && place.point.is_some() {
            self.write_invocation_end(&mut place).await?;
        }
        {
            let mut work = self.work();
            if work.phase != Phase::Aborted {
                work.phase = Phase::Ended;
            }
        }
        self.output(&mut place, unprocessed).await
    }

    async fn write_invocation_end(&self, place: &mut Place) -> Result<()> {
        let changed = self.work().is_changed();
        let digest = match place.digest {
            Some(digest) if !changed => digest,
            _ => self.work().digests()?.state(),
        };
        let last = self.last_snapshot(place).await?;
        let same = last.is_some_and(|last| last.digest == digest);
        let wanted = !same && self.wants_snapshot(place, SnapshotEvent::InvocationEnd).await?;
        if !wanted && !changed {
            return Ok(());
        }
        let (Some(store), Some(key), Some(point)) = (&self.def.store, place.key.clone(), place.point) else {
            return Ok(());
        };
        let changes = self.work().changes(self.def.upcasters.version());
        let mut commit = Commit::new(key, changes).expect(point).or_side_line().event(SnapshotEvent::InvocationEnd);
        commit.branch = place.branch.clone();
        commit.invocation = Some(self.invocation.clone());
        commit.snapshot = wanted.then(|| NewSnapshot::new(self.def.snapshot_id()));
        let receipt = store.commit(commit).await?;
        place.point = Some(receipt.point);
        place.on_head = receipt.on_head;
        place.digest = Some(receipt.digest);
        place.index += 1;
        if let Some(id) = receipt.snapshot_id {
            place.snapshot_ids.push(id);
            place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
            note_snapshot(&tracing::Span::current(), self.def.name.as_str(), id);
            let _ = self.send(Chunk::snapshot_created(id)).await;
        }
        let mut work = self.work();
        work.good = work.now.clone();
        work.settle();
        Ok(())
    }

    pub(super) async fn output(&self, place: &mut Place, unprocessed: Vec<Input>) -> Result<Output> {
        let failed = place.error.is_some() || place.finish_reason == Some(FinishReason::Aborted);
        // A snapshot names what was reached only if nothing was written after it.
        let named = match place.point {
            Some(point) => {
                let last = self.last_snapshot(place).await?;
                last.filter(|last| failed || last.point == point || Some(last.digest) == place.digest)
                    .map(|last| last.id)
            }
            None => None,
        };
        let shown = self.def.transforms.state(self.shared_state(), &self.caller)?;
        let signature = match &self.def.signing {
            Some(keys) => Some(keys.sign(&self.def.name, &shown.to_session_state())?),
            None => None,
        };
        let state = match named {
            Some(id) if !failed => shown.with_snapshot_id(id),
            _ => shown,
        };
        let work = self.work();
        Ok(Output {
            session_id: work.session.clone(),
            invocation_id: self.invocation.clone(),
            output: place.output.clone(),
            message: if failed || place.finish_reason.is_none() { None } else { state.messages.last().cloned() },
            artifacts: state.artifacts.to_vec(),
            state,
            signature,
            snapshot_id: named,
            snapshot_ids: place.snapshot_ids.clone(),
            finish_reason: place.finish_reason,
            error: place.error.clone(),
            usage: work.spent,
            point: place.point,
            on_head: place.on_head,
            unprocessed,
        })
    }
}

/// How a turn ended, as everybody is told.
struct Ended {
    reason: FinishReason,
    error: Option<TurnError>,
    counts: bool,
    rolled_back: bool,
}

impl Ended {
    fn void(reason: FinishReason, error: Option<TurnError>) -> Self {
        Self { reason, error, counts: false, rolled_back: true }
    }
}

impl Stop {
    pub(crate) fn error(&self) -> TurnError {
        match self {
            Self::Aborted => TurnError::new("ABORTED", "the turn was aborted"),
            Self::Lost(error) => error.into(),
            Self::TimedOut => TurnError::new("DEADLINE_EXCEEDED", "the turn took longer than the agent allows"),
            Self::Withheld(error) => error.into(),
        }
    }
}

impl SharedState {
    /// The same with the id of the snapshot on the last message, so that a client knows what to come back to.
    fn with_snapshot_id(mut self, id: SnapshotId) -> Self {
        if let Some(last) = self.messages.last().map(|last| last.with_snapshot_id(id)) {
            self.messages.truncate(self.messages.len() - 1);
            self.messages.push(last);
        }
        self
    }
}
