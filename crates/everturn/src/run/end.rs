//! How a turn of an invocation ends.

use std::sync::Arc;

use super::begin::{bounded, note_snapshot};
use super::work::Phase;
use super::{Known, Next, Place, Run, Stop};
use crate::agent::definition::{ContentInSpans, OnFailure};
use crate::agent::policy::{LastSnapshot, SnapshotContext};
use crate::agent::unwritten::Certainty;
use crate::json::Json;
use crate::snapshot::{FinishReason, SnapshotEvent, TurnError};
use crate::store::{Commit, EndTurn, Store};
use crate::stream::Chunk;
use crate::turn::{Begun, Changes, EndStatus, NewSnapshot, Outcome, Receipt};
use crate::{Digest, Error, ErrorKind, Point, Result, SnapshotId, TurnId};

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
        if let Some(fence) = self.running().take().and_then(|turn| turn.fence) {
            self.def.local.ended(fence.turn());
        }
        // From here on nothing can be changed: what is written is all there is.
        self.work().phase = Phase::Ended;
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
            (Some(store), Some(begun)) => self.write_end(&mut place, store, begun, ending).await,
            _ => (ending, None),
        };
        // One that may be run again is to find its branch where it was.
        let again = matches!(&ending, Ending::Stopped(Stop::Broken(error)) if error.is_stores());
        let ended = self.settle(&mut place, ending, after);
        if let Some(receipt) = &receipt {
            self.take_note(&mut place, receipt, &ended);
        }
        let seed = match &ended.error {
            Some(_) if receipt.is_some() && !again => self.leave_seed(&mut place).await,
            _ => None,
        };
        if let Some(id) = receipt.as_ref().and_then(|receipt| receipt.snapshot_id) {
            note_snapshot(&span, self.def.name.as_str(), id);
        }
        self.note_end(&span, &ended);
        place.in_doubt = ended.in_doubt;
        place.finish_reason = Some(ended.reason);
        place.error = ended.error;
        drop(span);
        place.span = tracing::Span::none();
        // The turn is kept or void by now; whether anybody still reads changes nothing about it.
        if ended.rolled_back {
            self.tell_rollback().await;
        } else {
            self.tell_shown();
        }
        if let Some(id) = seed {
            let _ = self.send(Chunk::snapshot_created(id)).await;
        }
        let snapshot = receipt.and_then(|receipt| receipt.snapshot_id);
        let _ = self.send(Chunk::turn_end(snapshot, ended.reason)).await;
        if ended.counts && place.error.is_none() { After::GoOn } else { After::Stop }
    }

    /// Writes the end. A policy that fails, or a store that refuses, changes how the turn ended.
    async fn write_end(
        &self,
        place: &mut Place,
        store: &Arc<dyn Store>,
        begun: Begun,
        ending: Ending,
    ) -> (Ending, Option<Receipt>) {
        let (ending, wanted) = match self.asks_policy(&ending) {
            false => (ending, true),
            true => match self.wants_snapshot(place, SnapshotEvent::TurnEnd, None).await {
                Ok(wanted) => (ending, wanted),
                Err(error) => (Ending::Stopped(Stop::Broken(error)), true),
            },
        };
        let snapshot = begun.snapshot_id.filter(|_| wanted);
        // What was said goes before how it ended: a reader that knows the end has seen all.
        self.keep_all().await;
        let written = store.end(self.end_request(&begun, &ending, snapshot)).await;
        self.end_stream();
        match written {
            Ok(receipt) => (ending, Some(receipt)),
            Err(error) => match error.kind() {
                ErrorKind::Fenced | ErrorKind::Aborted | ErrorKind::Deleted => {
                    (Ending::Stopped(Stop::Lost(error)), None)
                }
                kind if error.is_stores() && (self.is_background() || kind == ErrorKind::UnknownOutcome) => {
                    // Nobody was told yet how a turn in the background ends: it still ends as it was meant, when the store writes.
                    let end = match self.is_background() {
                        true => self.end_request(&begun, &ending, snapshot),
                        false => voided(&begun, &error),
                    };
                    self.def.local.unwritten.add(store, end, Certainty::Unknown);
                    let stop = match kind {
                        ErrorKind::UnknownOutcome => Stop::InDoubt(in_doubt(begun.turn, error)),
                        _ => Stop::Broken(error),
                    };
                    (Ending::Stopped(stop), None)
                }
                _ => {
                    let receipt = self.void(store, &begun, &error).await;
                    (Ending::Stopped(Stop::Broken(error)), receipt)
                }
            },
        }
    }

    /// A policy governs what completes; failed and aborted turns leave their row anyway.
    fn asks_policy(&self, ending: &Ending) -> bool {
        match ending {
            Ending::Done(_) => true,
            Ending::Failed(_) => self.def.on_failure == OnFailure::Keep,
            Ending::Stopped(_) => false,
        }
    }

    /// The turn cannot go on or end as it was meant, and must still end: now, or as soon as the store writes again.
    pub(super) async fn void(&self, store: &Arc<dyn Store>, begun: &Begun, error: &Error) -> Option<Receipt> {
        let void = voided(begun, error);
        match store.end(void.clone()).await {
            Ok(receipt) => Some(receipt),
            Err(also) => {
                tracing::warn!(error = %also, turn = %begun.turn, "a turn was not ended; it is tried again");
                self.def.local.unwritten.add(store, void, Certainty::NotKept);
                None
            }
        }
    }

    fn end_request(&self, begun: &Begun, ending: &Ending, snapshot: Option<SnapshotId>) -> EndTurn {
        let work = self.work();
        let changes = work.changes(self.def.upcasters.version());
        let (status, mut outcome) = match ending {
            Ending::Done(output) => {
                let mut outcome = Outcome::finished(work.finish_reason.unwrap_or(FinishReason::Stop));
                outcome.output.clone_from(output);
                (EndStatus::Completed, outcome)
            }
            Ending::Failed(error) if self.def.on_failure == OnFailure::Keep => {
                (EndStatus::Completed, Outcome::failed(error.clone()))
            }
            Ending::Failed(error) => (EndStatus::Failed, Outcome::failed(error.clone())),
            Ending::Stopped(Stop::Aborted) => (EndStatus::Aborted, Outcome::finished(FinishReason::Aborted)),
            Ending::Stopped(stop) => (EndStatus::Failed, Outcome::failed(stop.error())),
        };
        let mut end = match status {
            EndStatus::Completed => {
                outcome.message = work.now.messages.last().cloned();
                EndTurn::completed(begun.fence, changes).scopes(work.scope_delta.clone()).outcome(outcome)
            }
            EndStatus::Failed | EndStatus::Aborted => {
                // What was said until then stays readable; what it would have changed elsewhere does not happen.
                EndTurn { changes, ..EndTurn::voided(begun.fence, status, outcome) }
            }
        };
        end.snapshot = snapshot.map(|id| NewSnapshot { id, label: work.label.clone() });
        end
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
                Ended { reason, error: None, in_doubt: None, counts: true, rolled_back: false }
            }
            Ending::Failed(error) if self.def.on_failure == OnFailure::Keep => Ended {
                reason: FinishReason::Failed,
                error: Some(error),
                in_doubt: None,
                counts: true,
                rolled_back: false,
            },
            Ending::Failed(error) => Ended::void(FinishReason::Failed, Some(error)),
            Ending::Stopped(Stop::Aborted) => Ended::void(FinishReason::Aborted, None),
            Ending::Stopped(Stop::Lost(error)) if error.kind() == ErrorKind::Aborted => {
                Ended::void(FinishReason::Aborted, None)
            }
            Ending::Stopped(Stop::InDoubt(error)) => Ended::in_doubt(error),
            Ending::Stopped(stop) => Ended::void(FinishReason::Failed, Some(stop.error())),
        };
        if ended.counts {
            work.good = work.now.clone();
            work.older_schema = false;
            let pending = work.pending_usage();
            work.line_usage.add(&pending);
            work.turns += 1;
            work.settle();
            work.settle_scopes();
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
            // What was named inside the turn is void with it.
            place.last_snapshot = Known::NotYet;
            return;
        }
        self.stand_at(receipt.point);
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

    fn stand_at(&self, point: Point) {
        let mut work = self.work();
        (work.at, work.good_at) = (Some(point), Some(point));
    }

    /// A first turn that fails would leave its client nothing to go on from: the empty session gets a name.
    async fn leave_seed(&self, place: &mut Place) -> Option<SnapshotId> {
        let seed = async {
            if self.def.policy.is_never() || place.turn_index > 0 || self.last_snapshot(place).await?.is_some() {
                return Ok(None);
            }
            let (Some(store), Some(key), Some(point)) = (&self.def.store, place.key.clone(), place.point) else {
                return Ok(None);
            };
            let id = self.def.snapshot_id();
            let commit = Commit::new(key, Changes::new()).expect(point).snapshot(NewSnapshot::new(id));
            let receipt = store.commit(commit).await?;
            place.point = Some(receipt.point);
            place.digest = Some(receipt.digest);
            place.next = Next::Head;
            place.snapshot_ids.push(id);
            place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
            self.stand_at(receipt.point);
            Ok(Some(id))
        };
        let seed: Result<Option<SnapshotId>> = seed.await;
        seed.unwrap_or_else(|error| {
            // Somebody else went on meanwhile: the session has something to go on from.
            if !matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy) {
                tracing::warn!(%error, "no seed was left after a failed first turn");
            }
            None
        })
    }

    fn note_end(&self, span: &tracing::Span, ended: &Ended) {
        span.record("everturn.finish_reason", ended.reason.name());
        if let Some(error) = &ended.error {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", bounded(&error.message));
        }
        if ended.counts
            && self.def.content_in_spans == ContentInSpans::Include
            && let Some(message) = self.work().now.messages.last()
        {
            span.record("genkit:output", bounded(message.as_str()));
        }
    }

    /// Asks the policy about an opportunity for a snapshot. The state's digest is computed unless it is known.
    pub(super) async fn wants_snapshot(
        &self,
        place: &mut Place,
        event: SnapshotEvent,
        known: Option<Digest>,
    ) -> Result<bool> {
        let Some(store) = self.def.store.clone() else { return Ok(false) };
        let (mut digest, mut prev) = (Digest::ABSENT, None);
        if self.def.policy.compares() {
            digest = match known {
                Some(digest) => digest,
                None => self.work().digests()?.state(),
            };
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
        self.def.policy.decide(context).await
    }
}

/// How a turn ended, as everybody is told.
struct Ended {
    reason: FinishReason,
    error: Option<TurnError>,
    in_doubt: Option<Error>,
    counts: bool,
    rolled_back: bool,
}

impl Ended {
    fn void(reason: FinishReason, error: Option<TurnError>) -> Self {
        Self { reason, error, in_doubt: None, counts: false, rolled_back: true }
    }

    fn in_doubt(error: Error) -> Self {
        let told = TurnError::from(&error);
        let reason = FinishReason::Unknown;
        Self { reason, error: Some(told), in_doubt: Some(error), counts: false, rolled_back: false }
    }
}

/// The end of a turn that cannot end as it was meant. Where that is the store's fault, it may be run again.
fn voided(begun: &Begun, error: &Error) -> EndTurn {
    let outcome = if error.is_stores() { Outcome::lost(error.into()) } else { Outcome::failed(error.into()) };
    let mut end = EndTurn::voided(begun.fence, EndStatus::Failed, outcome);
    end.snapshot = begun.snapshot_id.map(NewSnapshot::new);
    end
}

fn in_doubt(turn: TurnId, error: Error) -> Error {
    let text = format!(
        "turn {turn} may be kept or not: look at it before you send its input again; under a key it can be sent again as it is"
    );
    Error::new(ErrorKind::UnknownOutcome, text).with_source(error)
}

impl Stop {
    pub(crate) fn error(&self) -> TurnError {
        match self {
            Self::Aborted => TurnError::new("ABORTED", "the turn was aborted"),
            Self::Lost(error) | Self::InDoubt(error) => error.into(),
            Self::TimedOut => TurnError::new("DEADLINE_EXCEEDED", "the turn took longer than the agent allows"),
            Self::Withheld(error) | Self::Broken(error) => error.into(),
        }
    }
}
