//! Turns as a handler that owns its loop takes and ends them.

use std::sync::{Arc, PoisonError};

use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::begin::Beginning;
use super::end::{After, Ending};
use super::work::Phase;
use super::{Run, Stop, TurnHandle, Unserved};
use crate::agent::failure::{Failure, Handled};
use crate::live::in_scope;
use crate::turn::Input;
use crate::{Error, Result};

/// A turn that is beginning, with the input it was made of.
pub(crate) type BeginningTurn = JoinHandle<(Input, Result<Beginning>)>;

impl Run {
    /// Runs something to its end even if nobody waits for it any more: half a turn is no turn.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let task = tokio::spawn(in_scope(self.clone(), work).in_current_span());
        task.await.map_err(|error| Error::internal("the runtime was cut off").with_source(error))
    }

    /// The next turn. What has begun while nobody waited is kept for whoever asks next.
    pub(crate) async fn next_turn(self: &Arc<Self>) -> Handled<Option<TurnHandle>> {
        let mut beginning = self.beginning.lock().await;
        if beginning.is_none() {
            self.end_open_turn(Ending::Done(None)).await?;
            let Some(input) = self.next_input().await else { return Ok(None) };
            let run = self.clone();
            let begin = async move {
                let begun = run.begin_turn(input.clone()).await;
                (input, begun)
            };
            *beginning = Some(tokio::spawn(in_scope(self.clone(), begin).in_current_span()));
        }
        let Some(task) = beginning.as_mut() else { return Ok(None) };
        let begun = task.await;
        *beginning = None;
        let (input, begun) = begun.map_err(|error| Error::internal("a turn did not begin").with_source(error))?;
        match begun {
            Ok(Beginning::Turn(turn)) => {
                self.leave_unserved(None);
                Ok(Some(turn))
            }
            Ok(Beginning::Instead(instead)) => {
                self.leave_unserved(Some(Unserved::Instead(instead)));
                Ok(None)
            }
            Err(error) => {
                let failure = Failure::from(Error::new(error.kind(), error.to_string()));
                self.leave_unserved(Some(Unserved::Refused(error, Box::new(input))));
                Err(failure)
            }
        }
    }

    fn leave_unserved(&self, why: Option<Unserved>) {
        *self.unserved.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Ends the turn that is open, if one is.
    pub(crate) async fn end_open_turn(self: &Arc<Self>, ending: Ending) -> Handled {
        if self.running().is_none() {
            return Ok(());
        }
        let run = self.clone();
        match self.to_its_end(async move { run.end_turn(ending, Phase::Between).await }).await? {
            After::GoOn => Ok(()),
            After::Stop => {
                let error = self.place.lock().await.error.clone();
                Err(error.map_or_else(|| Failure::new("ABORTED", "the turn was aborted"), Failure::from))
            }
        }
    }

    /// Ends the turn that is open as failed, and goes on.
    pub(crate) async fn fail_open_turn(self: &Arc<Self>, failure: Failure) -> Handled {
        let (run, error) = (self.clone(), failure.into_error());
        let failing = async move {
            run.end_turn(Ending::Failed(error), Phase::Between).await;
            run.work().phase = Phase::Between;
        };
        Ok(self.to_its_end(failing).await?)
    }

    /// A turn that began when the handler no longer asked for one: it was never worked on.
    pub(super) async fn drop_unasked(&self) -> Option<Input> {
        let task = self.beginning.lock().await.take()?;
        let (input, begun) = task.await.ok()?;
        if let Ok(Beginning::Turn(_)) = begun {
            let (reason, error) = {
                let place = self.place.lock().await;
                (place.finish_reason, place.error.clone())
            };
            self.end_turn(Ending::Stopped(Stop::Aborted), Phase::Between).await;
            // It says nothing about the turns that were.
            let mut place = self.place.lock().await;
            (place.finish_reason, place.error) = (reason, error);
        }
        Some(input)
    }
}
