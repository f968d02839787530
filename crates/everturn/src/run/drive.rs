//! Driving an invocation: inputs in, turns one after the other, the output at the end.

use std::any::Any;
use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument as _;

use super::begin::Beginning;
use super::end::{After, Ending};
use super::work::Phase;
use super::{Run, Stop, TurnHandle};
use crate::agent::Output;
use crate::agent::definition::Handler;
use crate::agent::failure::Handled;
use crate::json::Json;
use crate::live::in_scope;
use crate::snapshot::TurnError;
use crate::turn::{EndStatus, EndedTurn, Input};
use crate::{Error, ErrorKind, Result};

/// What became of an invocation.
pub(crate) type Driven = Result<Output>;

/// Runs an invocation to its end. Whatever happens, the stream is closed and there is an answer.
pub(crate) async fn drive(run: Arc<Run>) -> Driven {
    let span = tracing::info_span!(
        "invocation",
        otel.name = %run.def.name,
        "everturn.agent" = %run.def.name,
        "everturn.invocation" = %run.invocation,
        "everturn.user" = %run.caller.user,
        "genkit:metadata:agent" = tracing::field::Empty,
        "genkit:metadata:sessionFlow" = tracing::field::Empty,
        "genkit:metadata:snapshotId" = tracing::field::Empty,
    );
    let driven = match run.def.handler.clone() {
        Handler::PerTurn(handler) => run.per_turn(&*handler).instrument(span).await,
        Handler::Loop(handler) => run.looped(&*handler).instrument(span).await,
    };
    run.out.close();
    driven
}

impl Run {
    async fn per_turn(
        self: &Arc<Self>,
        handler: &(dyn Fn(TurnHandle) -> crate::agent::definition::HandlerFuture + Send + Sync),
    ) -> Driven {
        while let Some(input) = self.next_input().await {
            let turn = match self.begin_turn(input).await? {
                Beginning::Turn(turn) => turn,
                Beginning::Ended(ended) => return self.ended_before(*ended).await,
            };
            let work = in_scope(self.clone(), handler(turn.clone())).instrument(turn.span.clone());
            let ending = self.supervise(tokio::spawn(work)).await;
            if self.end_turn(ending, Phase::Ended).await == After::Stop {
                break;
            }
        }
        let unprocessed = self.unprocessed().await;
        self.finish(unprocessed).await
    }

    async fn looped(
        self: &Arc<Self>,
        handler: &(dyn Fn(Arc<Self>) -> crate::agent::definition::HandlerFuture + Send + Sync),
    ) -> Driven {
        let work = in_scope(self.clone(), handler(self.clone())).in_current_span();
        let ending = self.supervise(tokio::spawn(work)).await;
        if self.running().is_some() {
            self.end_turn(ending, Phase::Between).await;
        } else {
            self.note_outside(ending).await?;
        }
        let unprocessed = self.unprocessed().await;
        self.finish(unprocessed).await
    }

    /// What a handler that owns its loop left with no turn open.
    async fn note_outside(&self, ending: Ending) -> Result<()> {
        let mut place = self.place.lock().await;
        match ending {
            Ending::Done(output) => place.output = output.or(place.output.take()),
            Ending::Failed(error) if place.error.is_none() => {
                place.error = Some(error);
                place.finish_reason = Some(crate::FinishReason::Failed);
            }
            Ending::Failed(_) => {}
            Ending::Stopped(Stop::Lost(error)) => return Err(error),
            Ending::Stopped(_) => place.finish_reason = Some(crate::FinishReason::Aborted),
        }
        Ok(())
    }

    /// The next input; nothing once there will be none, or nobody wants more.
    pub(crate) async fn next_input(&self) -> Option<Input> {
        let mut inputs = self.inputs.lock().await;
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            input = inputs.recv() => input,
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
        let mut beat = tokio::time::interval_at(started + patience.heartbeat, patience.heartbeat);
        let deadline = patience.turn.and_then(|limit| started.checked_add(limit));
        loop {
            tokio::select! {
                biased;
                done = &mut handler => return self.judge(done),
                () = self.cancel.cancelled() => return self.abandon(handler).await,
                () = self.stopped.notified() => {
                    if self.is_stopped() {
                        return self.abandon(handler).await;
                    }
                }
                () = until(deadline) => {
                    self.stop(Stop::TimedOut);
                    return self.abandon(handler).await;
                }
                _ = beat.tick() => self.renew().await,
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

    /// The answer to a key whose turn has ended: what it left then, and nothing runs.
    async fn ended_before(self: &Arc<Self>, ended: EndedTurn) -> Driven {
        let store = self.def.store.as_ref().ok_or_else(|| Error::internal("an ended turn without a store"))?;
        let point = match ended.status {
            EndStatus::Completed => ended.point,
            EndStatus::Failed | EndStatus::Aborted => {
                let head = store.session(&ended.session).await?;
                head.map_or(ended.point, |record| record.head)
            }
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
        let mut place = self.place.lock().await;
        place.key = Some(ended.session.clone());
        place.point = Some(point);
        place.on_head = store.session(&ended.session).await?.is_some_and(|record| record.head == point);
        place.digest = state.map(|state| state.digest());
        place.finish_reason = ended.outcome.finish_reason;
        place.error = ended.outcome.error;
        place.output = ended.outcome.output;
        drop(place);
        let unprocessed = self.unprocessed().await;
        let mut place = self.place.lock().await;
        self.output(&mut place, unprocessed).await
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
