//! Turns that go on in the background: nobody reads what they say as it is said, and dropping a connection does not stop
//! them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Place, Run};
use crate::agent::Output;
use crate::snapshot::FinishReason;
use crate::store::StepTurn;
use crate::turn::{Begun, Changes};
use crate::{Error, ErrorKind, Result};

impl Run {
    /// Whether the invocation goes on whatever becomes of whoever started it.
    pub(crate) fn is_background(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Sends a turn that has begun to the background: its row is pending, and durable, before anybody is answered.
    pub(super) async fn go_background(&self, place: &mut Place, begun: &Begun) -> Result<()> {
        let store = self.def.store.as_ref().ok_or_else(|| self.needs_store_to_detach())?;
        // What cannot be shown refuses it before anything is written: afterwards there would be nobody to tell.
        let output = if self.is_background() { None } else { Some(self.detached_output(place, begun)?) };
        store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await?;
        self.keep_stream(store, begun.fence);
        let Some(output) = output else { return Ok(()) };
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.def.local.enter());
        self.released.store(true, Ordering::Release);
        self.answer(Ok(output));
        self.out.close();
        Ok(())
    }

    /// Sends the turn that runs to the background.
    pub(super) async fn detach_running(&self) -> Result<()> {
        let mut place = self.place.lock().await;
        let nothing =
            || Error::new(ErrorKind::WrongMode, "no turn runs that could go on in the background: send an input first");
        let begun = match (&self.def.store, place.begun.clone()) {
            (None, _) => return Err(self.needs_store_to_detach()),
            (Some(_), begun) => begun.ok_or_else(nothing)?,
        };
        if begun.snapshot_id.is_none() {
            return Err(Error::new(
                ErrorKind::WrongMode,
                format!(
                    "agent '{}' takes no snapshots, so a turn of it must be sent to the background when it begins",
                    self.def.name
                ),
            ));
        }
        self.go_background(&mut place, &begun).await
    }

    pub(super) fn needs_store_to_detach(&self) -> Error {
        Error::new(
            ErrorKind::WrongMode,
            format!(
                "agent '{}' has client-managed state: a turn can go on in the background only with a store",
                self.def.name
            ),
        )
    }

    /// What whoever started it is left with: where to look for what becomes of it.
    fn detached_output(&self, place: &Place, begun: &Begun) -> Result<Output> {
        let shown = self.def.transforms.state(self.good_state(), &self.caller())?;
        let mut output = Output::new(begun.session.id.clone(), self.invocation.clone());
        output.artifacts = shown.artifacts.to_vec();
        output.state = shown;
        output.usage = self.work().spent;
        output.snapshot_id = begun.snapshot_id;
        output.snapshot_ids.clone_from(&place.snapshot_ids);
        output.snapshot_ids.extend(begun.snapshot_id);
        output.finish_reason = Some(FinishReason::Detached);
        // Where it started, which is the head for as long as it holds the branch: what follows waits for it there.
        output.point = Some(begun.from);
        output.on_head = begun.leased;
        Ok(output)
    }

    /// Nothing of it goes on any more.
    pub(crate) fn leave_background(&self, driven: &Result<Output>) {
        if self.is_background()
            && let Ok(output) = driven
            && !output.unprocessed.is_empty()
        {
            let inputs = output.unprocessed.len();
            tracing::warn!(
                session = %output.session_id,
                invocation = %self.invocation,
                inputs,
                "inputs behind a turn in the background that did not complete were not worked on"
            );
        }
        self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Answers whoever waits for the invocation. The first answer counts.
    pub(crate) fn answer(&self, driven: Result<Output>) {
        let finished = Arc::new(driven.map_err(|error| (error.kind(), error.to_string())));
        self.finished.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(finished);
            }
            first
        });
    }
}
