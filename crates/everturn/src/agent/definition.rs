//! What an agent is, once built: shared by every invocation of it.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::failure::Handled;
use super::local::Local;
use super::policy::SnapshotPolicy;
use super::sign::SigningKeys;
use super::transform::Transforms;
use super::upcast::Upcasters;
use crate::clock::Clock;
use crate::compact::AutoCompaction;
use crate::json::Json;
use crate::run::Run;
use crate::run::TurnHandle;
use crate::schema::Schema;
use crate::store::{Busy, Store};
use crate::stream::StreamLimits;
use crate::{AgentName, AppName, InvocationId, SessionId, SnapshotId};

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Handled<Option<Json>>> + Send>>;

/// A handler with its types rubbed off.
#[derive(Clone)]
pub(crate) enum Handler {
    /// Called for each turn.
    PerTurn(Arc<dyn Fn(TurnHandle) -> HandlerFuture + Send + Sync>),
    /// Called once; takes its turns itself.
    Loop(Arc<dyn Fn(Arc<Run>) -> HandlerFuture + Send + Sync>),
}

/// What becomes of a turn whose handler failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The session stays at its last good point; what the turn did stays readable under its failed snapshot.
    #[default]
    Rollback,
    /// The turn counts, with the error as its outcome, and what it changed stays.
    Keep,
}

/// What becomes of turns in the background whose process died. Those that somebody waited for fail, unless all are left; they
/// can be asked for again by their key, or with [`Agent::retry`](crate::Agent::retry).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing: they read as `expired` until somebody tries them again.
    #[default]
    Leave,
    /// They fail.
    Fail,
    /// They are tried again from where they started, with the input and the tool calls they had; after so many attempts
    /// in all they fail.
    Retry {
        /// How many attempts there may be, the first one counted.
        attempts: u64,
    },
}

/// How long an agent waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// How long a handler may take to notice that its turn was cancelled before it is abandoned: 5 s unless set.
    pub cancelled: Duration,
    /// How often a running turn says that it is alive: every 30 s unless set. Keep it well below the store's lease.
    pub heartbeat: Duration,
    /// How often a running turn looks whether somebody in another process has aborted it: every half second unless set.
    pub abort_poll: Duration,
    /// How long a turn may take; for ever unless set.
    pub turn: Option<Duration>,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            cancelled: Duration::from_secs(5),
            heartbeat: Duration::from_secs(30),
            abort_poll: Duration::from_millis(500),
            turn: None,
        }
    }
}

pub(crate) struct Definition {
    pub(crate) name: AgentName,
    pub(crate) description: Option<String>,
    pub(crate) app: AppName,
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) policy: SnapshotPolicy,
    pub(crate) schema: Option<Schema>,
    pub(crate) upcasters: Upcasters,
    pub(crate) transforms: Transforms,
    pub(crate) busy: Busy,
    pub(crate) on_failure: OnFailure,
    pub(crate) default_session: Option<SessionId>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) signing: Option<SigningKeys>,
    pub(crate) limits: StreamLimits,
    pub(crate) patience: Patience,
    pub(crate) content_in_spans: ContentInSpans,
    pub(crate) compaction: Option<AutoCompaction>,
    pub(crate) handler: Handler,
    pub(crate) recovery: Recovery,
    pub(crate) local: Local,
    /// The type of the custom state, so that a session is handed out only as what it is.
    pub(crate) state_type: TypeId,
}

/// Whether spans carry what was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentInSpans {
    /// Ids and counts only.
    #[default]
    Leave,
    /// Inputs and outputs too, cut to 4 KiB each.
    Include,
}

impl Definition {
    pub(crate) fn snapshot_id(&self) -> SnapshotId {
        SnapshotId::from_uuid(self.clock.uuid())
    }

    pub(crate) fn session_id(&self) -> SessionId {
        SessionId::new(self.clock.uuid().to_string()).expect("a UUID is a valid id")
    }

    pub(crate) fn invocation_id(&self) -> InvocationId {
        InvocationId::new(self.clock.uuid().to_string()).expect("a UUID is a valid id")
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.name)
            .field("app", &self.app)
            .field("store", &self.store)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
