//! A chat with an agent: turn after turn.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::agent::{AgentClient, Init, Output, SharedState, StateManagement};
use crate::connection::Connection;
use crate::json::Json;
use crate::stream::Chunk;
use crate::turn::Input;
use crate::{Error, Result, SessionId, SnapshotId};

/// A chat with an agent, wherever it runs. It keeps what the next turn needs of the one before: the session and its
/// snapshot where the agent has a store, the whole state where it has none.
///
/// ```
/// use everturn::store::MemoryStore;
/// use everturn::{Agent, Init, Json, Message, Turn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
///     turn.add_message(Message::model(turn.text()))?;
///     Ok(())
/// })
/// .store(MemoryStore::new())
/// .build()?;
///
/// let mut chat = agent.chat(Init::new());
/// chat.send_text("one").await?;
/// chat.send_text("two").await?;
/// assert_eq!(chat.state().messages().len(), 4);
///
/// // Later, elsewhere: the same chat with its history.
/// let again = agent.chat(Init::session(chat.session_id().unwrap().clone())).load().await?;
/// assert_eq!(again.state().messages().len(), 4);
/// # Ok(()) }
/// ```
pub struct Chat {
    agent: Arc<dyn AgentClient>,
    next: Init,
    session: Option<SessionId>,
    snapshot: Option<SnapshotId>,
    state: SharedState,
}

impl Chat {
    /// A chat with an agent, from a start on.
    #[must_use]
    pub fn new(agent: Arc<dyn AgentClient>, init: Init) -> Self {
        let state = init.state.clone().map(SharedState::from_session_state).unwrap_or_default();
        Self { agent, session: init.session.clone(), snapshot: init.snapshot, next: init, state }
    }

    /// Reads what was said before, so that the chat can be shown before its next turn. `NotFound` if there is nothing.
    pub async fn load(mut self) -> Result<Self> {
        let found = match (self.next.snapshot, &self.next.session) {
            (Some(id), _) => self.agent.snapshot(id).await?,
            (None, Some(session)) => self.agent.latest(session).await?,
            (None, None) => return Err(Error::invalid("a chat is loaded by a session or a snapshot: name one")),
        };
        let found = found.ok_or_else(|| Error::not_found("there is no such chat: check the id, or start a new one"))?;
        if let Some(session) = self.next.session.as_ref().filter(|session| **session != found.session_id) {
            return Err(Error::invalid(format!(
                "snapshot {} does not belong to session {session} (it belongs to {})",
                found.snapshot_id, found.session_id
            )));
        }
        self.session = Some(found.session_id);
        self.snapshot = Some(found.snapshot_id);
        self.state = found.state.map(SharedState::from_session_state).unwrap_or_default();
        Ok(self)
    }

    /// The session, once it is known.
    #[must_use]
    pub fn session_id(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The snapshot it stands at, if one names it.
    #[must_use]
    pub fn snapshot_id(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    /// The state it stands at.
    #[must_use]
    pub fn state(&self) -> &SharedState {
        &self.state
    }

    /// The custom state it stands at.
    pub fn custom<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        self.state.custom()
    }

    /// One turn, to its end.
    pub async fn send(&mut self, input: Input) -> Result<Output> {
        self.send_stream(input).await?.output().await
    }

    /// One turn with a text by the user, to its end.
    pub async fn send_text(&mut self, text: impl AsRef<str>) -> Result<Output> {
        self.send(Input::text(text)).await
    }

    /// One turn, as it goes. Take its chunks, then its output.
    pub async fn send_stream(&mut self, input: Input) -> Result<ChatTurn<'_>> {
        let mut connection = self.agent.connect(self.next.clone()).await?;
        connection.send(input).await?;
        connection.close();
        Ok(ChatTurn { chat: self, connection })
    }

    fn follow(&mut self, output: &Output) {
        self.session = Some(output.session_id.clone());
        self.snapshot = output.snapshot_id.or(self.snapshot.filter(|_| output.error.is_some()));
        self.state = output.state.clone();
        let branch = self.next.branch.take().filter(|_| output.on_head);
        let session = output.session_id.clone();
        self.next = match (self.agent.info().state_management, output.on_head) {
            (StateManagement::Client, _) => {
                let next = Init::state(output.state.to_session_state());
                Init { signature: output.signature.clone(), ..next }
            }
            (StateManagement::Server, true) => Init::session(session),
            // Beside the head: the chat goes on with its own line, not with what others made of the session. An agent
            // far away may tell of snapshots only.
            (StateManagement::Server, false) => match (output.point, output.snapshot_id) {
                (Some(point), _) => Init::session(session).at(point),
                (None, Some(id)) => Init::snapshot(id).of_session(session),
                (None, None) => Init::session(session),
            },
        };
        self.next.branch = branch;
    }
}

/// A turn of a chat that is running. Dropping it aborts the turn.
#[must_use = "dropping it aborts the turn"]
pub struct ChatTurn<'a> {
    chat: &'a mut Chat,
    connection: Connection,
}

impl ChatTurn<'_> {
    /// The next chunk; nothing once the turn has ended.
    pub async fn receive(&mut self) -> Option<Chunk> {
        self.connection.receive().await
    }

    /// The custom state as the chunks received so far have made it.
    #[must_use]
    pub fn custom_json(&self) -> Option<&Json> {
        self.connection.custom_json()
    }

    /// What the turn left; the chat goes on from there.
    pub async fn output(mut self) -> Result<Output> {
        let output = self.connection.output().await?;
        self.chat.follow(&output);
        Ok(output)
    }
}
