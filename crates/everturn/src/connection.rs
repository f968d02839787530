//! A conversation with an agent that is running.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::agent::Output;
use crate::aside::{away, is_large};
use crate::json::Json;
use crate::message::Message;
use crate::run::{DetachAsked, Run};
use crate::stream::{Chunk, Receiver};
use crate::turn::Input;
use crate::{Error, ErrorKind, InvocationId, Result, SessionId, SnapshotId, TurnId};

/// What became of an invocation, for as many as ask.
pub(crate) type Finished = Arc<std::result::Result<Output, (ErrorKind, String)>>;

/// What finds a turn again, from the moment it has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// The id its snapshot will have, if one is taken.
    pub snapshot_id: Option<SnapshotId>,
}

/// A conversation with an agent: inputs go in, chunks come out, and an output at the end.
///
/// Dropping it while a turn runs aborts that turn, unless it has gone on in the background.
#[must_use = "dropping a connection aborts what it started"]
pub struct Connection {
    pub(crate) inputs: Option<mpsc::Sender<Input>>,
    pub(crate) chunks: Receiver,
    pub(crate) finished: watch::Receiver<Option<Finished>>,
    pub(crate) cancel: CancellationToken,
    /// Set once the invocation goes on without this connection.
    pub(crate) released: Arc<AtomicBool>,
    pub(crate) detach: Option<mpsc::Sender<DetachAsked>>,
    /// The invocation, where it lingers after this connection.
    pub(crate) lingers: Option<Weak<Run>>,
    /// What was read while a detach was waited for, and is still to be received.
    pub(crate) kept: VecDeque<Chunk>,
    /// The session as far as it was known at the start, and as the first turn found it.
    pub(crate) session: SessionId,
    pub(crate) begun: Arc<OnceLock<SessionId>>,
    pub(crate) ticket: watch::Receiver<Option<Ticket>>,
    pub(crate) invocation: InvocationId,
    pub(crate) custom: Option<Json>,
}

impl Connection {
    /// The session it is with. Where the first turn has a key and no session was named, known once that turn began.
    #[must_use]
    pub fn session_id(&self) -> &SessionId {
        self.begun.get().unwrap_or(&self.session)
    }

    /// The invocation it started.
    #[must_use]
    pub fn invocation_id(&self) -> &InvocationId {
        &self.invocation
    }

    /// Waits until a turn has begun in the store, and tells what finds it again: [`Agent::follow_turn`](crate::Agent::follow_turn)
    /// reads its stream if that is [kept](crate::Init::keep_stream). Nothing if the invocation ended without one, because
    /// it was refused, had ended before under the same key, or has no store.
    pub async fn begun(&self) -> Option<Ticket> {
        let (mut ticket, mut finished) = (self.ticket.clone(), self.finished.clone());
        tokio::select! {
            biased;
            found = ticket.wait_for(Option::is_some) => found.ok().and_then(|found| found.clone()),
            _ = finished.wait_for(Option::is_some) => self.ticket.borrow().clone(),
        }
    }

    /// Sends an input; a turn is made of it when its time comes. Waits while too many are queued.
    pub async fn send(&self, input: Input) -> Result<()> {
        let closed = || Error::invalid("the connection is closed: connect again to send more");
        self.inputs.as_ref().ok_or_else(closed)?.send(input).await.map_err(|_| closed())
    }

    /// Sends messages.
    pub async fn send_messages(&self, messages: impl IntoIterator<Item = Message>) -> Result<()> {
        self.send(Input::messages(messages)).await
    }

    /// Sends a text by the user.
    pub async fn send_text(&self, text: impl AsRef<str>) -> Result<()> {
        self.send(Input::text(text)).await
    }

    /// The next chunk; nothing once the invocation has ended. Stop at a chunk's `turn_end`, send more, and go on.
    pub async fn receive(&mut self) -> Option<Chunk> {
        if self.kept.is_empty() {
            let chunk = self.chunks.recv().await?;
            self.kept.push_back(chunk);
        }
        // The chunk stays where it is until then: this may be dropped while it waits.
        if let Some(patch) = self.kept.front().and_then(|chunk| chunk.custom_patch.as_ref()) {
            let bytes = patch.weight() + self.custom.as_ref().map_or(0, |custom| custom.as_str().len());
            let applied = match is_large(bytes) {
                true => {
                    let (patch, custom) = (patch.clone(), self.custom.clone());
                    away(move || patch.apply_optional(custom.as_ref())).await
                }
                false => patch.apply_optional(self.custom.as_ref()),
            };
            match applied {
                Ok(custom) => self.custom = custom,
                // Patches are made in order against what was sent before; one that does not fit is not shown half.
                Err(error) => tracing::warn!(%error, "a patch of custom state did not apply"),
            }
        }
        let mut chunk = self.kept.pop_front()?;
        chunk.custom.clone_from(&self.custom);
        Some(chunk)
    }

    /// The chunks up to the end of the turn that runs, all at once.
    pub async fn receive_turn(&mut self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        while let Some(chunk) = self.receive().await {
            let last = chunk.turn_end.is_some();
            chunks.push(chunk);
            if last {
                break;
            }
        }
        chunks
    }

    /// The chunks as a stream, for code that is written for streams.
    pub fn chunks(&mut self) -> impl futures_core::Stream<Item = Chunk> + '_ {
        futures_util::stream::unfold(self, |connection| async move {
            let chunk = connection.receive().await?;
            Some((chunk, connection))
        })
    }

    /// The custom state as the chunks received so far have made it.
    pub fn custom<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        self.custom.as_ref().map(Json::to).transpose()
    }

    /// The same as JSON.
    #[must_use]
    pub fn custom_json(&self) -> Option<&Json> {
        self.custom.as_ref()
    }

    /// Says that no more inputs will be sent.
    pub fn close(&mut self) {
        self.inputs = None;
    }

    /// Aborts the turn that runs and ends the invocation.
    pub fn abort(&self) {
        self.cancel.cancel();
    }

    /// Sends the turn that runs to the background. Its snapshot is pending, and durable, when this returns: look there for
    /// what becomes of it. Nothing more is read here, and dropping the connection no longer stops anything. Once it is
    /// done, doing it again gives the same answer.
    ///
    /// `WrongMode` when no turn runs, or the agent has no store.
    pub async fn detach(&mut self) -> Result<Output> {
        if !self.is_released() {
            self.ask_to_detach().await?;
        }
        self.kept.clear();
        self.output().await
    }

    async fn ask_to_detach(&mut self) -> Result<()> {
        let elsewhere = || Error::unsupported("an agent that runs elsewhere is asked to detach with its input");
        let idle =
            || Error::new(ErrorKind::WrongMode, "no turn runs that could go on in the background: send an input first");
        let (asked, mut done) = oneshot::channel();
        self.detach.as_ref().ok_or_else(elsewhere)?.try_send(asked).map_err(|_| idle())?;
        let mut finished = self.finished.clone();
        loop {
            tokio::select! {
                biased;
                answer = &mut done => return answer.map_err(|_| idle())?,
                // Whoever would answer may be gone while a handler still keeps the invocation's session.
                _ = finished.wait_for(Option::is_some) => {
                    return if self.is_released() { Ok(()) } else { Err(idle()) };
                }
                // A turn that waits for room in the stream, with nobody but this to make it, would never hear the question.
                Some(chunk) = self.chunks.recv() => self.kept.push_back(chunk),
            }
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// What the invocation leaves. Sends no more inputs, and does not read what is left of the stream.
    pub async fn output(&mut self) -> Result<Output> {
        self.close();
        self.kept.clear();
        self.chunks.skip();
        self.done().await;
        let finished = self.finished.borrow().clone();
        match finished.as_deref() {
            Some(Ok(output)) => {
                // Where the chunks that were not read would have led.
                self.custom = output.state.custom_json().cloned();
                Ok(output.clone())
            }
            Some(Err((kind, message))) => Err(Error::new(*kind, message.clone())),
            None => Err(Error::internal("the invocation went away without an answer")),
        }
    }

    /// Waits until the invocation has ended. Does not read the stream: somebody else must, or it must be short.
    pub async fn done(&self) {
        let mut finished = self.finished.clone();
        let _ = finished.wait_for(Option::is_some).await;
    }

    /// Whether the invocation has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.finished.borrow().is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_released() {
            return;
        }
        match self.lingers.take().and_then(|run| run.upgrade()) {
            Some(run) => run.linger(),
            None => self.cancel.cancel(),
        }
    }
}
