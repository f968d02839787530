//! What leaves an agent, shaped on its way out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::SharedState;
use crate::run::panic_text;
use crate::state::SessionState;
use crate::stream::Chunk;
use crate::{AgentName, Error, ErrorKind, Result, SessionId, UserId};

/// Whom something is shown to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// The agent it leaves.
    pub agent: AgentName,
    /// The user who reads.
    pub user: UserId,
    /// The session it is of.
    pub session: Option<SessionId>,
}

type StateTransform = dyn Fn(SessionState, &Caller) -> Result<SessionState> + Send + Sync;
type ChunkTransform = dyn Fn(Chunk, &Caller) -> Result<Option<Chunk>> + Send + Sync;

/// How an agent shapes what leaves it. An error in either fails closed: nothing leaves.
#[derive(Clone, Default)]
pub(crate) struct Transforms {
    pub(crate) state: Option<Arc<StateTransform>>,
    pub(crate) chunk: Option<Arc<ChunkTransform>>,
}

impl Transforms {
    pub(crate) fn is_some(&self) -> bool {
        self.state.is_some() || self.chunk.is_some()
    }

    pub(crate) fn state(&self, state: SharedState, caller: &Caller) -> Result<SharedState> {
        match &self.state {
            None => Ok(state),
            Some(transform) => {
                let shaped = guarded(|| transform(state.to_session_state(), caller))?;
                Ok(SharedState::from_session_state(shaped))
            }
        }
    }

    pub(crate) fn session_state(&self, state: SessionState, caller: &Caller) -> Result<SessionState> {
        match &self.state {
            None => Ok(state),
            Some(transform) => guarded(|| transform(state, caller)),
        }
    }

    pub(crate) fn chunk(&self, chunk: Chunk, caller: &Caller) -> Result<Option<Chunk>> {
        match &self.chunk {
            None => Ok(Some(chunk)),
            Some(transform) => guarded(|| transform(chunk, caller)),
        }
    }
}

/// Runs a transform. One that panics has failed like one that says so: it must not take the invocation with it.
fn guarded<T>(transform: impl FnOnce() -> Result<T>) -> Result<T> {
    let shaped = catch_unwind(AssertUnwindSafe(transform))
        .unwrap_or_else(|panic| Err(Error::internal(format!("it panicked: {}", panic_text(&*panic)))));
    shaped.map_err(|error| {
        Error::new(ErrorKind::Internal, "the agent's transform failed, so nothing is shown").with_source(error)
    })
}

impl fmt::Debug for Transforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, chunk } = self;
        f.debug_struct("Transforms").field("state", &state.is_some()).field("chunk", &chunk.is_some()).finish()
    }
}
