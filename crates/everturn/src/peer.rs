//! The far end of a connection, for agents that run elsewhere.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::agent::{MAX_QUEUED_INPUTS, Output};
use crate::connection::{Connection, Finished};
use crate::stream::{Chunk, Reader, Sender, StreamLimits, channel};
use crate::turn::Input;
use crate::{Error, ErrorKind, InvocationId, Result, SessionId};

/// The far end of a [`Connection`]: where its inputs arrive, and its chunks and its output come from.
///
/// It is what an [`AgentClient`](crate::AgentClient) for an agent in another process is made of. One that is dropped
/// without an output has lost its agent, and the connection says so.
///
/// ```
/// use everturn::{Chunk, Connection, InvocationId, Output, SessionId, StreamLimits};
/// use everturn::model::ModelChunk;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let (session, invocation) = (SessionId::new("s")?, InvocationId::new("i")?);
/// let (mut connection, mut peer) = Connection::to_peer(session.clone(), invocation.clone(), StreamLimits::default());
/// tokio::spawn(async move {
///     while let Some(input) = peer.next_input().await {
///         let text = input.messages[0].text(); // over a wire, and back
///         peer.send(Chunk::model(ModelChunk::text(text))).await?;
///     }
///     peer.finish(Ok(Output::new(session, invocation)));
///     Ok::<(), everturn::Error>(())
/// });
/// connection.send_text("Hello?").await?;
/// assert_eq!(connection.receive().await.unwrap().text(), "Hello?");
/// assert_eq!(connection.output().await?.session_id.as_str(), "s");
/// # Ok(()) }
/// ```
#[must_use = "dropping it ends the connection"]
pub struct Peer {
    inputs: mpsc::Receiver<Input>,
    out: Sender,
    tell: Option<watch::Sender<Option<Finished>>>,
    cancel: CancellationToken,
    session: Arc<OnceLock<SessionId>>,
}

impl Connection {
    /// A connection to an agent that runs elsewhere, and its far end.
    pub fn to_peer(session: SessionId, invocation: InvocationId, limits: StreamLimits) -> (Self, Peer) {
        let (inputs, queued) = mpsc::channel(MAX_QUEUED_INPUTS);
        let (out, chunks) = channel(limits);
        let (tell, finished) = watch::channel(None);
        let (cancel, begun) = (CancellationToken::new(), Arc::<OnceLock<SessionId>>::default());
        let peer = Peer { inputs: queued, out, tell: Some(tell), cancel: cancel.clone(), session: begun.clone() };
        let inputs = Some(inputs);
        let (released, detach, lingers, kept) = (Arc::default(), None, None, VecDeque::new());
        let connection = Self {
            inputs,
            chunks,
            finished,
            cancel,
            released,
            detach,
            lingers,
            kept,
            session,
            begun,
            // Its turns begin elsewhere.
            ticket: watch::Sender::new(None).subscribe(),
            invocation,
            custom: None,
        };
        (connection, peer)
    }
}

impl Peer {
    /// The next input; nothing once there will be none, or nobody wants an answer any more.
    pub async fn next_input(&mut self) -> Option<Input> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            input = self.inputs.recv() => input,
        }
    }

    /// Hands on a chunk, waiting for room. `Aborted` when nobody reads any more.
    pub async fn send(&self, chunk: Chunk) -> Result<()> {
        match self.out.send(chunk).await {
            Reader::Reads => Ok(()),
            Reader::Gone => Err(Error::aborted("nobody reads the stream any more: stop")),
        }
    }

    /// Says which session it is with, where that was not known at the start.
    pub fn is_with(&self, session: SessionId) {
        let _ = self.session.set(session);
    }

    /// Waits until nobody wants an answer any more: the turn was aborted, or the connection is gone. Borrows nothing, so
    /// that it can be waited for beside everything else.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.cancel.clone().cancelled_owned()
    }

    /// Hands on what the invocation left, or why there is nothing.
    pub fn finish(mut self, outcome: Result<Output>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Result<Output>) {
        let Some(tell) = self.tell.take() else { return };
        // The answer first: whoever has read the stream to its end looks for it.
        let _ = tell.send(Some(Arc::new(outcome.map_err(|error| (error.kind(), error.to_string())))));
        self.out.close();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end(Err(Error::new(ErrorKind::Unavailable, "the connection to the agent was lost: connect again")));
    }
}
