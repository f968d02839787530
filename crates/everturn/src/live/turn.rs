//! A turn as its handler is given it.

use std::ops::Deref;

use super::Responder;
use super::Session;
use crate::agent::CustomState;
use crate::agent::failure::{Failure, Handled};
use crate::run::TurnHandle;
use crate::run::end::Ending;
use crate::turn::Input;
use crate::{FinishReason, Result, SnapshotId};

/// A turn: an input, the session it changes, and the stream it answers on. It derefs to its [`Session`].
pub struct Turn<S> {
    session: Session<S>,
    handle: TurnHandle,
}

impl<S: CustomState> Turn<S> {
    pub(crate) fn of(handle: TurnHandle) -> Self {
        Self { session: Session::of(handle.run.clone()), handle }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session<S> {
        &self.session
    }

    /// What it was given.
    #[must_use]
    pub fn input(&self) -> &Input {
        &self.handle.input
    }

    /// The text of the input's messages, one after the other.
    #[must_use]
    pub fn text(&self) -> String {
        self.handle.input.messages.iter().map(crate::Message::text).collect()
    }

    /// Where its answer goes as it is made.
    #[must_use]
    pub fn responder(&self) -> Responder {
        Responder::of(self.handle.run.clone())
    }

    /// Its index along the line, counted from 0; it goes on after a resume or a restart.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.handle.turn_index
    }

    /// The id its snapshot will have if one is taken: known now, so that it can name things outside.
    #[must_use]
    pub fn snapshot_id(&self) -> Option<SnapshotId> {
        self.handle.snapshot_id
    }

    /// Whether the head had moved since this invocation's last turn: somebody else went on meanwhile. What the handler
    /// changed in between was then kept beside the head, and is not in this turn's state.
    #[must_use]
    pub fn head_moved(&self) -> bool {
        self.handle.head_moved
    }

    /// The span of the turn, for work that is to be seen below it.
    #[must_use]
    pub fn span(&self) -> &tracing::Span {
        &self.handle.span
    }

    /// Whether the turn should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.handle.cancel.is_cancelled()
    }

    /// Waits until the turn should stop. A handler that goes on for five more seconds is abandoned.
    pub async fn cancelled(&self) {
        self.handle.cancel.cancelled().await;
    }

    /// Says why the turn will have ended; `stop` unless said.
    pub fn finish_reason(&self, reason: FinishReason) -> Result<()> {
        self.handle.check_open()?;
        self.handle.run.work().finish_reason = Some(reason);
        Ok(())
    }

    /// Labels the snapshot its end will take.
    pub fn label(&self, label: impl Into<String>) -> Result<()> {
        self.handle.check_open()?;
        self.handle.run.work().label = Some(label.into());
        Ok(())
    }

    /// All tools of one model iteration have answered: an opportunity for a snapshot inside the turn. What was changed
    /// so far is on disk when it returns, but counts only once the turn completes.
    pub async fn tool_iteration_end(&self) -> Result<Option<SnapshotId>> {
        self.handle.check_open()?;
        self.handle.run.tool_iteration_end().await
    }

    /// Ends the turn, for a handler that takes its turns itself.
    pub async fn end(self) -> Handled {
        self.handle.check_open()?;
        self.handle.run.end_open_turn(Ending::Done(None)).await
    }

    /// Ends the turn as failed, for a handler that takes its turns itself and means to go on.
    pub async fn fail(self, failure: Failure) -> Handled {
        self.handle.check_open()?;
        self.handle.run.fail_open_turn(failure).await
    }
}

impl<S> Deref for Turn<S> {
    type Target = Session<S>;
    fn deref(&self) -> &Session<S> {
        &self.session
    }
}
