//! Agents: named handlers with their store and policies.
//!
//! ```
//! use everturn::store::MemoryStore;
//! use everturn::{Agent, Init, Message, Turn};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! struct Counter {
//!     turns: u32,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let agent = Agent::flow("echo", |turn: Turn<Counter>| async move {
//!     turn.responder().text("You said: ").await?;
//!     turn.update_custom(|custom| custom.turns += 1)?;
//!     turn.add_message(Message::model(format!("You said: {}", turn.text())))?;
//!     Ok(())
//! })
//! .store(MemoryStore::new())
//! .build()?;
//!
//! let first = agent.run_text("Hello!", Init::new()).await?;
//! assert_eq!(first.text(), "You said: Hello!");
//! let second = agent.run_text("And again.", Init::session(first.session_id)).await?;
//! assert_eq!(second.state.messages().len(), 4);
//! assert_eq!(second.state.custom::<Counter>()?.unwrap().turns, 2);
//! # Ok(()) }
//! ```

mod background;
mod builder;
mod compacting;
pub(crate) mod definition;
pub(crate) mod failure;
mod feed;
pub(crate) mod follow;
mod init;
pub(crate) mod local;
mod output;
pub(crate) mod policy;
mod prompt;
mod reading;
mod registry;
mod sessions;
mod sign;
mod transform;
mod turns;
pub(crate) mod unwritten;
mod upcast;
mod withdraw;

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::Instrument as _;

pub use background::Recovered;
pub use builder::AgentBuilder;
use definition::Definition;
pub use definition::{ContentInSpans, OnFailure, Patience, Recovery};
pub use failure::{Failure, Handled};
pub use feed::{Change, Feed};
pub use follow::{Followed, Following};
pub use init::Init;
pub use output::{Output, SharedState};
pub use policy::{SnapshotContext, SnapshotPolicy};
pub use prompt::{
    Hook, HookContext, HookError, HookResult, Preparation, Prompt, StopVerdict, ToolAnswer, ToolCall, ToolVerdict,
};
pub use reading::{ArtifactsDiff, MessagesDiff, StateDiff};
pub use registry::{AgentClient, AgentInfo, Registry, StateManagement};
pub use sessions::{Sessions, Spot};
pub use sign::SigningKey;
pub use transform::Caller;
pub use turns::{CallRecord, CallState};

use crate::chat::Chat;
use crate::connection::Connection;
use crate::run::{self, Run, drive};
use crate::store::Store;
use crate::stream::channel;
use crate::turn::Input;
use crate::{AgentName, AppName, Result, UserId};

/// Inputs that may wait on a connection.
pub(crate) const MAX_QUEUED_INPUTS: usize = 64;

/// What a custom state must be able to do: be written, be read, and begin as something.
pub trait CustomState: Serialize + DeserializeOwned + Default + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Default + Send + Sync + 'static> CustomState for T {}

/// A named handler with its store and policies. A cheap handle: clones share everything.
pub struct Agent<S> {
    def: Arc<Definition>,
    user: UserId,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Agent<S> {
    fn clone(&self) -> Self {
        Self { def: self.def.clone(), user: self.user.clone(), state: PhantomData }
    }
}

impl<S> fmt::Debug for Agent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.def.fmt(f)
    }
}

impl<S: CustomState> Agent<S> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &AgentName {
        &self.def.name
    }

    /// The app its sessions belong to.
    #[must_use]
    pub fn app(&self) -> &AppName {
        &self.def.app
    }

    /// The store, raw: what is read there has passed no transform.
    #[must_use]
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.def.store.as_ref()
    }

    /// The same agent for a user: what it starts belongs to that user, and what it reads must.
    #[must_use]
    pub fn for_user(&self, user: UserId) -> Self {
        Self { user, ..self.clone() }
    }

    /// Starts an invocation and stays in touch with it. A start that cannot be is refused here.
    pub async fn connect(&self, init: Init) -> Result<Connection> {
        connect(&self.def, &self.user, init).await
    }

    /// One turn, to its end.
    pub async fn run(&self, input: Input, init: Init) -> Result<Output> {
        let mut connection = self.connect(init).await?;
        connection.send(input).await?;
        connection.output().await
    }

    /// One turn with a text by the user, to its end.
    pub async fn run_text(&self, text: impl AsRef<str>, init: Init) -> Result<Output> {
        self.run(Input::text(text), init).await
    }

    /// A chat: turn after turn, with what each needs of the one before kept for you.
    #[must_use]
    pub fn chat(&self, init: Init) -> Chat {
        Chat::new(Arc::new(self.clone()), init)
    }
}

async fn connect(def: &Arc<Definition>, user: &UserId, init: Init) -> Result<Connection> {
    let invocation = init.invocation.clone().unwrap_or_else(|| def.invocation_id());
    let (background, keeps) = (init.background, init.keep_stream);
    let started = run::resolve(def, user, init).await?;
    let session = started.work.session.clone();
    let (inputs, queued) = mpsc::channel(MAX_QUEUED_INPUTS);
    let (out, chunks) = channel(def.limits);
    let (detach, asked) = mpsc::channel(1);
    let run = Arc::new(
        Run::new(def.clone(), user.clone(), invocation.clone(), started, queued, asked, out)
            .in_background(background)
            .keeping_streams(keeps),
    );
    let (cancel, begun, ticket) = (run.cancel.clone(), run.session.clone(), run.ticket.subscribe());
    let (finished, released) = (run.finished.subscribe(), run.released.clone());
    let lingers = keeps.then(|| Arc::downgrade(&run));
    tokio::spawn(
        async move {
            let driven = drive(run.clone()).await;
            run.leave_background(&driven);
            run.answer(driven);
        }
        .in_current_span(),
    );
    let (inputs, detach, kept) = (Some(inputs), Some(detach), VecDeque::new());
    Ok(Connection {
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
        ticket,
        invocation,
        custom: None,
    })
}
