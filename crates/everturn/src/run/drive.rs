//! Driving an invocation: inputs in, turns one after the other, the output at the end.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument as _;

use super::begin::{Beginning, Instead, bounded};
use super::end::{After, Ending};
use super::work::Phase;
use super::{Run, Stop, TurnHandle, Unserved, panic_text};
use crate::agent::Output;
use crate::agent::definition::{Handler, HandlerFuture, OnFailure};
use crate::agent::failure::Handled;
use crate::json::Json;
use crate::live::in_scope;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, TurnError};
use crate::stream::Sender;
use crate::turn::{EndStatus, EndedTurn, Input, RunningTurn};
use crate::{Error, ErrorKind, Result};

/// What became of an invocation.
pub(crate) type Driven = Result<Output>;

/// Closes the stream, whatever became of the invocation: a reader must not wait for what will never come.
struct Closing(Sender);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs an invocation to its end. Whatever happens, the stream is closed and there is an answer.
pub(crate) async fn drive(run: Arc<Run>) -> Driven {
    let _closing = Closing(run.out.clone());
    let span = tracing::info_span!(
        "invocation",
        otel.name = %run.def.name,
        "everturn.agent" = %run.def.name,
        "everturn.invocation" = %run.invocation,
        "everturn.user" = %run.user,
        "genkit:metadata:agent" = tracing::field::Empty,
        "genkit:metadata:sessionFlow" = tracing::field::Empty,
        "genkit:metadata:snapshotId" = tracing::field::Empty,
        "otel.status_code" = tracing::field::Empty,
        "otel.status_description" = tracing::field::Empty,
    );
    let working = async {
        match run.def.handler.clone() {
            Handler::PerTurn(handler) => run.per_turn(&handler).await,
            Handler::Loop(handler) => run.looped(handler).await,
        }
    };
    // Handlers, transforms and policies are guarded where they are called. This is for what is not.
    let driven = AssertUnwindSafe(working.instrument(span.clone())).catch_unwind().await;
    let driven = match driven {
        Ok(driven) => driven,
        Err(panic) => {
            let error = TurnError::new("INTERNAL", format!("the runtime panicked: {}", panic_text(&*panic)));
            if run.running().is_some() {
                run.end_turn(Ending::Failed(error.clone()), Phase::Ended).await;
            }
            Err(Error::internal(error.message))
        }
    };
    let failure = match &driven {
        Ok(output) => output.error.as_ref().map(|error| error.message.clone()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(failure) = failure {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", bounded(&failure));
    }
    driven
}

impl Run {
    async fn per_turn(self: &Arc<Self>, handler: &Arc<dyn Fn(TurnHandle) -> HandlerFuture + Send + Sync>) -> Driven {
        let mut left = Vec::new();
        while let Some(input) = self.next_input().await {
            let turn = match self.begin_turn(input.clone()).await {
                Ok(Beginning::Turn(turn)) => turn,
                Ok(Beginning::Instead(instead)) => return self.instead(instead).await,
                Err(error) => {
                    self.note_refused(error).await?;
                    left.push(input);
                    break;
                }
            };
            let ending = if self.cancel.is_cancelled() {
                // Whoever asked left while the turn waited for its branch.
                Ending::Stopped(Stop::Aborted)
            } else if let Some(stop) = self.take_stop() {
                Ending::Stopped(stop)
            } else {
                let (handler, given) = (handler.clone(), turn.clone());
                // The handler is called in the task, so that one that panics before its first await fails its turn too.
                let work = in_scope(self.clone(), async move { handler(given).await });
                self.supervise(tokio::spawn(work.instrument(turn.span.clone()))).await
            };
            if self.end_turn(ending, Phase::Ended).await == After::Stop {
                break;
            }
        }
        left.extend(self.unprocessed().await);
        self.finish(left).await
    }

    async fn looped(self: &Arc<Self>, handler: Arc<dyn Fn(Arc<Self>) -> HandlerFuture + Send + Sync>) -> Driven {
        let run = self.clone();
        let work = in_scope(self.clone(), async move { handler(run).await }).in_current_span();
        let ending = self.supervise(tokio::spawn(work)).await;
        let mut left: Vec<_> = self.drop_unasked().await.into_iter().collect();
        let unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner).take();
        let open = self.running().is_some();
        match (unserved, ending) {
            (_, ending) if open => {
                self.end_turn(ending, Phase::Between).await;
            }
            (Some(Unserved::Instead(instead)), _) => return self.instead(instead).await,
            (Some(Unserved::Refused(error, input)), ending) => {
                left.push(*input);
                match ending {
                    // It has dealt with it.
                    Ending::Done(_) if self.has_run().await => self.note_outside(ending).await?,
                    _ => self.note_refused(error).await?,
                }
            }
            (None, ending) => self.note_outside(ending).await?,
        }
        left.extend(self.unprocessed().await);
        self.finish(left).await
    }

    /// A turn could not begin. A first one was refused; behind others it must not take with it what they did.
    async fn note_refused(&self, error: Error) -> Result<()> {
        if !self.has_run().await {
            return Err(error);
        }
        let mut place = self.place.lock().await;
        place.error = Some((&error).into());
        place.finish_reason = Some(FinishReason::Failed);
        Ok(())
    }

    /// Whether a turn of this invocation has ended.
    async fn has_run(&self) -> bool {
        self.place.lock().await.finish_reason.is_some()
    }

    /// What a handler that owns its loop left with no turn open.
    async fn note_outside(&self, ending: Ending) -> Result<()> {
        let mut place = self.place.lock().await;
        match ending {
            Ending::Done(output) => place.output = output.or(place.output.take()),
            Ending::Failed(error) => {
                if place.error.is_none() {
                    place.error = Some(error);
                    place.finish_reason = Some(FinishReason::Failed);
                }
                if self.def.on_failure == OnFailure::Rollback {
                    self.drop_edits().await;
                }
            }
            Ending::Stopped(Stop::Lost(error)) => return Err(error),
            Ending::Stopped(_) => {
                place.finish_reason = Some(FinishReason::Aborted);
                self.drop_edits().await;
            }
        }
        Ok(())
    }

    /// What was changed outside turns and is not written does not count.
    async fn drop_edits(&self) {
        let edited = self.work().is_edited();
        if edited {
            self.work().roll_back();
            self.tell_rollback().await;
        }
    }

    /// The next input; nothing once there will be none, or nobody wants more.
    pub(crate) async fn next_input(&self) -> Option<Input> {
        let mut inputs = self.inputs.lock().await;
        // A handler that owns its loop is supervised meanwhile, which answers this as well.
        let mut detach = self.detach.try_lock().ok();
        loop {
            let asked = async {
                match &mut detach {
                    Some(detach) => detach.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return None,
                Some(asked) = asked => drop(asked.send(self.detach_running().await)),
                input = inputs.recv() => return input,
            }
        }
    }

    async fn unprocessed(&self) -> Vec<Input> {
        let mut inputs = self.inputs.lock().await;
        inputs.close();
        std::iter::from_fn(|| inputs.try_recv().ok()).collect()
    }

    /// Waits for a handler, keeps its turn alive, and stops it when it must stop.
    async fn supervise(&self, mut handler: JoinHandle<Handled<Option<Json>>>) -> Ending {
        let patience = self.def.patience;
        let started = tokio::time::Instant::now();
        let often = patience.abort_poll.min(patience.heartbeat).max(Duration::from_millis(1));
        let mut tick = tokio::time::interval_at(started + often, often);
        // A process that was stopped for an hour looks once when it wakes up, not seven thousand times.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut renewed = started;
        let mut detach = self.detach.lock().await;
        let overdue = self.overdue(patience.turn);
        tokio::pin!(overdue);
        loop {
            tokio::select! {
                // Stopping comes first: a handler that returns because it was told to stop has not finished its turn.
                biased;
                () = self.cancel.cancelled() => return self.abandon(handler).await,
                () = self.stopped.notified() => {
                    if self.is_stopped() {
                        return self.abandon(handler).await;
                    }
                }
                done = &mut handler => return self.judge(done),
                () = &mut overdue => {
                    self.stop(Stop::TimedOut);
                    return self.abandon(handler).await;
                }
                Some(asked) = detach.recv() => {
                    tokio::select! {
                        biased;
                        // A turn of a handler that owns its loop may be beginning, and wait for its branch for long.
                        () = self.cancel.cancelled() => {}
                        detached = self.detach_running() => drop(asked.send(detached)),
                    }
                }
                now = tick.tick() => {
                    if now.duration_since(renewed) >= patience.heartbeat {
                        renewed = now;
                        self.renew().await;
                    } else {
                        self.look_for_abort().await;
                    }
                }
            }
        }
    }

    /// Waits until a turn has taken too long; for ever when none does. Waiting for an input is no turn's time.
    async fn overdue(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return std::future::pending().await };
        loop {
            let began = self.began.notified();
            let running = self.running().as_ref().map(|turn| (turn.serial, turn.since));
            let Some((serial, since)) = running else {
                began.await;
                continue;
            };
            let Some(deadline) = since.checked_add(limit) else { return std::future::pending().await };
            tokio::time::sleep_until(deadline).await;
            if self.running().as_ref().is_some_and(|turn| turn.serial == serial) {
                return;
            }
        }
    }

    /// Gives a handler time to notice, then goes on without it. What it still writes is refused.
    async fn abandon(&self, mut handler: JoinHandle<Handled<Option<Json>>>) -> Ending {
        if tokio::time::timeout(self.def.patience.cancelled, &mut handler).await.is_err() {
            tracing::warn!(agent = %self.def.name, "a handler ignored that its turn was cancelled and was abandoned");
        }
        handler.abort();
        Ending::Stopped(self.take_stop().unwrap_or(Stop::Aborted))
    }

    fn judge(&self, done: Result<Handled<Option<Json>>, JoinError>) -> Ending {
        match done {
            Ok(Ok(output)) => Ending::Done(output),
            Ok(Err(failure)) => Ending::Failed(failure.into_error()),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    let text = panic_text(&*panic);
                    Ending::Failed(TurnError::new("INTERNAL", format!("the handler panicked: {text}")))
                }
                Err(_) => Ending::Stopped(Stop::Aborted),
            },
        }
    }

    /// Looks whether the turn is still there and ours: somebody elsewhere may have aborted it, taken it over, or deleted its
    /// session. Why it is not, the store says to whoever renews.
    async fn look_for_abort(&self) {
        let fence = self.running().as_ref().and_then(|turn| turn.fence);
        let (Some(store), Some(fence), Some(session)) = (&self.def.store, fence, self.session.get()) else { return };
        let key = SessionKey::new(self.def.app.clone(), self.user.clone(), session.clone());
        let ours = |turn: &RunningTurn| turn.turn == fence.turn() && turn.attempt == fence.attempt();
        match store.running(Some(&key)).await {
            Ok(turns) if turns.iter().any(ours) => {}
            Ok(_) => self.renew().await,
            Err(error) if error.kind() == ErrorKind::NotFound => self.renew().await,
            Err(error) => tracing::debug!(%error, "whether a turn was aborted could not be read; it is tried again"),
        }
    }

    /// Says that the turn is alive; learns that it is not ours any more.
    async fn renew(&self) {
        let fence = self.running().as_ref().and_then(|turn| turn.fence);
        let (Some(store), Some(fence)) = (&self.def.store, fence) else { return };
        match store.renew(&fence).await {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Aborted | ErrorKind::Deleted) => {
                self.stop(Stop::Lost(error));
            }
            Err(error) => tracing::warn!(%error, "a turn could not say that it is alive; it is tried again"),
        }
    }

    /// The answer to a key that was used before.
    async fn instead(self: &Arc<Self>, instead: Instead) -> Driven {
        match instead {
            Instead::Ended(ended) => self.ended_before(*ended).await,
            Instead::Detached(output) => Ok(*output),
        }
    }

    /// The answer to a key whose turn has ended: what it left then, and nothing runs.
    async fn ended_before(self: &Arc<Self>, ended: EndedTurn) -> Driven {
        let store = self.def.store.as_ref().ok_or_else(|| Error::internal("an ended turn without a store"))?;
        let head = store.session(&ended.session).await?.map(|record| record.head);
        // Where a branch went on from it since, it is as little beside its line as it was then.
        let (point, on_head) = match ended.status {
            EndStatus::Completed => (ended.point, ended.on_line),
            EndStatus::Failed | EndStatus::Aborted => (head.unwrap_or(ended.point), head.is_some()),
        };
        let state = store.state(crate::store::At::Point(ended.session.clone(), point)).await?;
        {
            let mut work = self.work();
            work.session = ended.session.id.clone();
            if let Some(state) = &state {
                let custom = self.def.upcasters.apply(state.schema_version(), state.custom().cloned())?;
                let content = super::work::Content { custom: custom.clone(), ..super::work::Content::from(state) };
                work.load(state, custom, content);
            }
            work.phase = Phase::Ended;
        }
        let _ = self.session.set(ended.session.id.clone());
        let unprocessed = self.unprocessed().await;
        let mut place = self.place.lock().await;
        place.key = Some(ended.session);
        place.point = Some(point);
        place.on_head = on_head;
        place.digest = state.map(|state| state.digest());
        place.finish_reason = ended.outcome.finish_reason;
        place.error = ended.outcome.error;
        place.output = ended.outcome.output;
        self.output(&mut place, unprocessed).await
    }
}
