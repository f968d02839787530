//! Durable sessions for AI agents: every turn kept, every point resumable, every branch readable.
//!
//! ```
//! use everturn::store::{BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
//! use everturn::{Changes, Event, Input, InvocationId, Message, SessionKey};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let store = MemoryStore::new();
//! let key = SessionKey::of("shop", "ann", "order-42")?;
//! store.create(CreateSession::at(key.clone())).await?;
//!
//! // A turn begins, and ends all or nothing.
//! let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i1")?, Input::text("Where is it?"));
//! let begun = store.begin(turn).await?.begun()?;
//! let answer = Event::model("helper", Message::model("On its way."));
//! let receipt = store.end(EndTurn::completed(begun.fence, Changes::new().event(answer))).await?;
//! assert!(receipt.on_head);
//!
//! // Any point can be read, resumed, branched from, forked.
//! assert_eq!(store.head_state(&key).await?.messages().len(), 2);
//! store.rewind(&key, begun.from).await?;
//! assert_eq!(store.head_state(&key).await?.messages().len(), 0);
//! # Ok(()) }
//! ```
//!
//! # How the nouns relate
//!
//! A **session** is a tree of **records**. A **turn** begins, steps and ends there; only a completed end moves a
//! **head**. A **point** is a place on a **line** of that tree, a **snapshot** a point with a name, a **branch** a named
//! head. **State** (messages, custom state, artifacts, and the view of them that the model is shown) is what a line adds
//! up to. A [`Store`](store::Store) is where sessions live.
//!
//! # It is not
//!
//! A workflow engine, a vector store, a model gateway, or a general database.

pub mod agent;
mod artifact;
mod aside;
mod chat;
mod clock;
pub mod compact;
mod connection;
mod digest;
mod error;
mod event;
mod ids;
mod interrupt;
mod json;
mod live;
mod message;
mod metadata;
pub mod model;
mod part;
mod patch;
mod peer;
mod run;
mod schema;
mod session;
mod snapshot;
mod state;
pub mod store;
mod stream;
pub mod tool;
mod transfer;
mod turn;
mod usage;
mod worker;

#[doc(inline)]
pub use agent::{
    Agent, AgentBuilder, AgentClient, AgentInfo, CallRecord, CallState, Caller, Change, ContentInSpans, CustomState,
    Failure, Feed, Followed, Following, Handled, Hook, HookContext, HookError, HookResult, Init, OnFailure, Output,
    Patience, Preparation, Prompt, Recovered, Recovery, Registry, Sessions, SharedState, SigningKey, SnapshotContext,
    SnapshotPolicy, Spot, StateDiff, StateManagement, StopVerdict, ToolAnswer, ToolCall, ToolVerdict,
};
pub use artifact::{Artifact, ArtifactVersion};
pub use chat::{Chat, ChatTurn};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
#[doc(inline)]
pub use compact::{AutoCompaction, Compacted, Compaction, CompactionRecord, OnBranch, Summariser, Summary, Window};
pub use connection::{Connection, Ticket};
pub use digest::Digest;
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventActions, EventKind};
pub use ids::{
    AgentName, AppName, BranchName, EventId, InvocationId, MAX_ID_BYTES, Point, SessionId, SnapshotId, TurnId, TurnKey,
    UserId,
};
pub use interrupt::{Interrupt, Resume};
pub use json::Json;
pub use live::{MemoryTranscript, ReadState, Responder, Session, StateMap, StoredTranscript, Transcript, Turn};
pub use message::{Message, Role};
pub use part::{Part, PartKind, ToolRequest, ToolResponse};
pub use patch::Patch;
pub use peer::Peer;
pub use schema::SchemaViolation;
pub use session::{Branch, ForkOrigin, SessionKey, SessionRecord, SessionStatus};
pub use snapshot::{FinishReason, Snapshot, SnapshotEvent, SnapshotStatus, TurnError};
pub use state::{Messages, PointState, Scope, ScopedState, SessionState, StateDelta, View};
pub use stream::{Chunk, Position, StreamLimits, TurnEnd};
pub use transfer::{Exporter, ImportId, Importer};
pub use turn::{
    Aborted, ArtifactChange, Begin, Begun, Changes, CustomChange, EndStatus, EndedTurn, Fence, Input, NewSnapshot,
    Outcome, Receipt, Record, RecordKind, RunningTurn, Splice, ToolEntry, ToolPhase, TurnRecord, TurnStatus,
    ViewChange,
};
pub use usage::Usage;
pub use worker::Worker;

/// The README's example is run with the documentation's.
#[cfg(all(doctest, feature = "providers"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are those of the guide to agents.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/agents.md")]
struct AgentsGuide;

/// So are those of the guide to models.
#[cfg(all(doctest, feature = "providers"))]
#[doc = include_str!("../../../docs/models.md")]
struct ModelsGuide;

/// So are those of the guide to state.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/state.md")]
struct StateGuide;

/// And of the guide to turns in the background.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/background.md")]
struct BackgroundGuide;
