//! Where sessions live.
//!
//! [`Store`] is the whole contract; [`StoreExt`] adds conveniences on top of it. The stores here differ only in where
//! their bytes go: [`MemoryStore`] keeps them in this process, [`SqliteStore`] in one file. What a turn, a head or a
//! void means is decided once, for all of them.
//!
//! ```
//! use everturn::{Changes, Event, Message, SessionKey};
//! use everturn::store::{BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
//! use everturn::{Input, InvocationId};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let store = MemoryStore::new();
//! let key = SessionKey::of("shop", "ann", "order-42")?;
//! store.create(CreateSession::at(key.clone())).await?;
//!
//! let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i1")?, Input::text("Where is it?"));
//! let begun = store.begin(turn).await?.begun()?;
//! let answer = Changes::new().event(Event::model("helper", Message::model("On its way.")));
//! store.end(EndTurn::completed(begun.fence, answer)).await?;
//!
//! let state = store.head_state(&key).await?;
//! assert_eq!(state.messages().len(), 2);
//! # Ok(()) }
//! ```

#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod memory;
mod request;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

pub use memory::{MemoryOptions, MemoryStore};
pub use request::*;
#[cfg(feature = "sqlite")]
pub use sqlite::{Durability, SqliteOptions, SqliteStats, SqliteStore};

use crate::event::Event;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::{Snapshot, SnapshotStatus};
use crate::state::{PointState, ScopedState, StateDelta};
use crate::turn::{Aborted, Begin, Begun, Fence, Receipt, Record, RunningTurn, TurnRecord};
use crate::{AppName, BranchName, Error, ErrorKind, Point, Result, SnapshotId, TurnId, Usage, UserId};

/// Where sessions live. Small on purpose: conveniences are in [`StoreExt`], guarantees in each method's words.
///
/// Every store passes the suite in `store::conformance` (feature `conformance`).
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Creates a session. An id that is taken is `AlreadyExists`; without one, a fresh id is made. The initial state is
    /// split by scope, `temp:` is dropped, and the rest is record 1.
    async fn create(&self, session: CreateSession) -> Result<SessionRecord>;

    /// What is known about a session, or nothing if there is none.
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionRecord>>;

    /// Sessions, page by page, as of the first page: none is repeated or hidden because it was written to meanwhile.
    async fn list(&self, query: ListSessions) -> Result<Page<SessionRecord>>;

    /// Changes title, labels or metadata. Never conflicts with a running turn, moves no head, survives every rewind.
    async fn update(&self, key: &SessionKey, update: UpdateSession) -> Result<SessionRecord>;

    /// Deletes a session at once; whether there was one is the answer. Turns still running in it are told `Deleted`,
    /// also after the id was created again. Forks keep what they need.
    async fn delete(&self, key: &SessionKey) -> Result<bool>;

    /// Deletes a session and returns when its bytes are gone from the store's files, but for what a fork's line
    /// reaches. Works on sessions that are deleted already.
    async fn purge(&self, key: &SessionKey) -> Result<Purged>;

    /// Begins a turn. Visible to every process when it returns; durable before the next step or the end is
    /// acknowledged. Refusals consume nothing.
    async fn begin(&self, turn: BeginTurn) -> Result<Begin>;

    /// Writes something on a turn's way; durable when acknowledged.
    async fn step(&self, step: StepTurn) -> Result<Receipt>;

    /// Ends a turn, all or nothing: events, snapshot, scopes and head are written together and durable when
    /// acknowledged. Refused, with nothing written, only as `Fenced`, `Aborted` or `Deleted` (or because the input is
    /// wrong or the store unavailable). A side line that may not move the head completes with `on_head` unset.
    ///
    /// One that failed with an outcome that is [`lost`](crate::Outcome::lost) may be run again by its key, or by taking it
    /// over. Such an end is taken for a turn that another process left dead as well, also when it has lost its branch;
    /// `Busy` while that process lives.
    async fn end(&self, end: EndTurn) -> Result<Receipt>;

    /// Writes an edit outside a turn; durable when acknowledged. `Busy` while a turn runs on the branch, unless it may go
    /// beside it.
    async fn commit(&self, commit: Commit) -> Result<Receipt>;

    /// Aborts a running turn; final. A turn that has ended is left as it is.
    async fn abort(&self, turn: TurnRef) -> Result<Aborted>;

    /// Says that a turn's writer is alive. `Fenced`, `Aborted` or `Deleted` if it no longer may write.
    async fn renew(&self, fence: &Fence) -> Result<()>;

    /// Takes over a turn whose writer is gone, or that was lost: its records are voided, its tool calls and snapshot id
    /// kept, and the old fence refused. One that was lost gets a fresh snapshot id. `Busy` while the writer lives.
    async fn take_over(&self, turn: TurnId) -> Result<Begun>;

    /// Keeps chunks of a turn's stream, in a place of their own: visible to every process when it returns, on disk no
    /// later than the next durable write. Refused like a step; and as `Invalid`, with nothing kept, unless they begin
    /// with the attempt's next number. They are no part of the session: no record, no digest, no listing and no watch
    /// shows them, no fork has them, and they are no sign of life.
    ///
    /// The stream is bounded by [`Limits::stream`], from the oldest chunks on. It goes when its attempt is void, when
    /// the session is deleted, and a grace period after the turn's end.
    async fn keep_chunks(&self, pack: KeepChunks) -> Result<()>;

    /// Chunks of a turn's stream, while it runs and after, from one moment with what is known about the turn. Pages
    /// read one after the other have no gap and no repeat, through any handle; where chunks are gone the page says so.
    ///
    /// An unknown turn, or one of a deleted session, is `NotFound`; a position beyond the stream's end, or in an attempt
    /// that does not exist, is `Invalid`.
    async fn chunks(&self, query: ChunkQuery) -> Result<ChunkPage>;

    /// Turns that have begun and not ended, of one session or of all.
    async fn running(&self, session: Option<&SessionKey>) -> Result<Vec<RunningTurn>>;

    /// Everything known about a turn.
    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>>;

    /// The state at a place, or nothing if there is no such place.
    async fn state(&self, at: At) -> Result<Option<PointState>>;

    /// Events of a line.
    async fn events(&self, query: EventQuery) -> Result<Page<Event>>;

    /// A session's own log: every record, voided and admin ones too.
    async fn records(&self, query: RecordQuery) -> Result<Page<Record>>;

    /// A snapshot, or nothing if there is none. Its state is not read with it.
    async fn snapshot(&self, which: SnapshotRef) -> Result<Option<Snapshot>>;

    /// A session's snapshots.
    async fn snapshots(&self, query: ListSnapshots) -> Result<Page<Snapshot>>;

    /// Labels a snapshot, or takes its label away.
    async fn label(&self, snapshot: SnapshotId, label: Option<String>) -> Result<Snapshot>;

    /// Creates, moves or deletes a branch. Moving a head is rewind and redo.
    async fn branch(&self, session: &SessionKey, change: BranchChange) -> Result<SessionRecord>;

    /// Forks a session: the same app and user, title and metadata copied, nothing else.
    async fn fork(&self, fork: ForkSession) -> Result<SessionRecord>;

    /// The keys of the `app:` and `user:` scopes, with their prefixes.
    async fn scopes(&self, app: &AppName, user: Option<&UserId>) -> Result<ScopedState>;

    /// Changes keys of the `app:` and `user:` scopes, all or none; durable when acknowledged. Keys have their prefixes;
    /// those of sessions and of `temp:` are `Invalid`, and so are `user:` keys without a user.
    async fn set_scopes(&self, app: &AppName, user: Option<&UserId>, delta: StateDelta) -> Result<()>;

    /// A session's own turns and edits with where they hang, page by page, each page from one moment.
    async fn tree(&self, query: TreeQuery) -> Result<TreePage>;

    /// How sessions look from outside, in the order they were asked for; nothing for those that do not exist. Looks at
    /// few records of each, however long it is.
    async fn previews(&self, sessions: &[SessionKey]) -> Result<Vec<Option<Preview>>>;

    /// A session as it can be carried to another store, part by part, as it was when the first part was read. Whoever
    /// reads the parts puts nothing on hold. A session that is deleted meanwhile is `NotFound`, or `Deleted` if there is
    /// another one under its key.
    async fn export(&self, session: &SessionKey, cursor: Option<&Cursor>) -> Result<ExportPage>;

    /// Brings a session in, all or nothing; durable when acknowledged. What does not hold together is `Invalid`, a key or
    /// a snapshot id that is taken `AlreadyExists`. Every point has the number and the digest it had; turns that had not
    /// ended are aborted. The `app:` and `user:` scopes, the keys of turns and their streams are not brought along.
    async fn import(&self, session: ImportSession) -> Result<SessionRecord>;

    /// Versions of artifacts by name and version, with their content. Rewinds do not hide them.
    async fn artifacts(&self, query: ArtifactQuery) -> Result<Vec<StoredArtifact>>;

    /// Follows a session or a snapshot: changes by this process are seen at once, those of others within the store's
    /// poll interval.
    async fn watch(&self, target: WatchTarget) -> Result<Box<dyn Watch>>;

    /// Recomputes digests and chains and names the first damaged record.
    async fn verify(&self, scope: VerifyScope) -> Result<Verified>;

    /// Opens the store anew after a failure that closed it, making sure first that what it sees is really kept.
    async fn reopen(&self) -> Result<()>;
}

/// Something that is followed.
#[async_trait]
pub trait Watch: Send {
    /// Waits for the next change since the last one this returned (or since the watch was made). Several changes may
    /// be told as one.
    async fn next(&mut self) -> Result<WatchEvent>;
}

/// A change that was watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// The session was written to, up to this record.
    Written(Point),
    /// The snapshot has this status now.
    Snapshot(SnapshotStatus),
    /// It is gone.
    Deleted,
}

/// Conveniences on every store.
#[async_trait]
pub trait StoreExt: Store {
    /// Opens a session, creating it if there is none. Any number of callers may race; one creates, all get it.
    async fn open_or_create(&self, session: CreateSession) -> Result<SessionRecord> {
        let Some(id) = session.id.clone() else { return self.create(session).await };
        let key = SessionKey::new(session.app.clone(), session.user.clone(), id);
        loop {
            if let Some(found) = self.session(&key).await? {
                return Ok(found);
            }
            match self.create(session.clone()).await {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                done => return done,
            }
        }
    }

    /// The session, which must exist.
    async fn existing(&self, key: &SessionKey) -> Result<SessionRecord> {
        self.session(key)
            .await?
            .ok_or_else(|| Error::not_found(format!("there is no session {key}: check app, user and id, or create it")))
    }

    /// The state at the head of `main` of a session, which must exist.
    async fn head_state(&self, key: &SessionKey) -> Result<PointState> {
        self.state(At::head(key.clone()))
            .await?
            .ok_or_else(|| Error::not_found(format!("there is no session {key}: check app, user and id, or create it")))
    }

    /// The nearest completed snapshot at or before `main`'s head.
    async fn latest_resumable(&self, key: &SessionKey) -> Result<Option<Snapshot>> {
        self.snapshot(SnapshotRef::LatestResumable(key.clone())).await
    }

    /// The session's newest pending snapshot, else the nearest at or before `main`'s head.
    async fn latest(&self, key: &SessionKey) -> Result<Option<Snapshot>> {
        self.snapshot(SnapshotRef::Latest(key.clone())).await
    }

    /// Moves `main`'s head to a point: a rewind, or a redo.
    async fn rewind(&self, key: &SessionKey, to: Point) -> Result<SessionRecord> {
        let change = BranchChange::Move { name: BranchName::main(), to, expect: None, under_lease: UnderLease::Refuse };
        self.branch(key, change).await
    }

    /// All keys a session sees: its own custom state's top level, and the `app:` and `user:` scopes with prefixes.
    async fn scoped_state(&self, key: &SessionKey) -> Result<ScopedState> {
        let state = self.head_state(key).await?;
        let mut merged = self.scopes(&key.app, Some(&key.user)).await?;
        if let Some(custom) = state.custom() {
            merged.extend(engine::members(custom)?);
        }
        Ok(merged)
    }

    /// What each model has cost in a session, by its name: all turns together, those that failed too. What was counted
    /// without a model is not in it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use everturn::model::{Reply, ScriptedModel};
    /// use everturn::store::{MemoryStore, StoreExt};
    /// use everturn::{Agent, Init, Prompt, SessionKey, Usage};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
    /// let store = Arc::new(MemoryStore::new());
    /// let model = ScriptedModel::new([Reply::text("Hello!").usage(Usage::tokens(7, 2))]);
    /// let agent = Agent::prompt("helper", Prompt::new(model)).shared_store(store.clone()).build()?;
    /// let output = agent.run_text("Hi.", Init::new()).await?;
    /// let key = SessionKey::of("helper", "user", output.session_id.as_str())?;
    /// assert_eq!(store.usage_by_model(&key).await?["scripted"], Usage::tokens(7, 2));
    /// assert_eq!(output.usage_by_model["scripted"], Usage::tokens(7, 2));
    /// # Ok(()) }
    /// ```
    async fn usage_by_model(&self, key: &SessionKey) -> Result<BTreeMap<String, Usage>> {
        #[derive(serde::Deserialize)]
        struct Body {
            #[serde(default)]
            events: Vec<Event>,
        }
        self.existing(key).await?;
        let mut spent = BTreeMap::<String, Usage>::new();
        let mut query = RecordQuery::of(key.clone()).limit(MAX_PAGE);
        loop {
            let page = self.records(query.clone()).await?;
            for record in page.items {
                for event in record.body.to::<Body>()?.events {
                    if let (Some(model), Some(usage)) = (event.model_name(), &event.usage) {
                        spent.entry(model).or_default().add(usage);
                    }
                }
            }
            let Some(next) = page.next else { return Ok(spent) };
            query = query.from(next);
        }
    }
}

impl<T: Store + ?Sized> StoreExt for T {}
