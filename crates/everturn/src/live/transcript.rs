//! The small view of a session, for those who have a loop of their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::agent::unwritten::{Certainty, Unwritten};
use crate::clock::{Clock, SystemClock};
use crate::event::Event;
use crate::message::{Message, Role};
use crate::session::SessionKey;
use crate::store::{At, BeginTurn, CreateSession, EndTurn, ForkSession, Start, Store, StoreExt as _, UpdateSession};
use crate::turn::{Changes, EndStatus, Input, NewSnapshot, Outcome};
use crate::{Error, ErrorKind, InvocationId, Result, SessionId, SessionRecord, SnapshotId, Usage};

/// All that a loop of one's own needs of a session: its id, what was said, and a place to put a turn.
///
/// Sessions are opt-in: code that takes an `Option<&dyn Transcript>` works the same without one.
///
/// ```
/// use std::sync::Arc;
///
/// use everturn::store::MemoryStore;
/// use everturn::{MemoryTranscript, Message, Result, SessionId, SessionKey, StoredTranscript, Transcript, Usage};
///
/// /// Your own loop, which knows nothing of stores.
/// async fn ask(session: &dyn Transcript, question: &str) -> Result<String> {
///     let mut shown = session.messages().await?;
///     shown.push(Message::user(question));
///     let answer = format!("That is message {}.", shown.len()); // your model's
///     let said = vec![Message::user(question), Message::model(&answer)];
///     session.save_turn(said, Usage::tokens(12, 8)).await?;
///     Ok(answer)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let kept = StoredTranscript::open(Arc::new(MemoryStore::new()), SessionKey::of("shop", "ann", "order-42")?).await?;
/// let passing = MemoryTranscript::new(SessionId::new("scratch")?);
/// for session in [&kept as &dyn Transcript, &passing] {
///     assert_eq!(ask(session, "Where is it?").await?, "That is message 1.");
///     assert_eq!(ask(session, "And now?").await?, "That is message 3.");
/// }
/// assert_eq!(kept.total_usage().await?, passing.total_usage());
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Transcript: Send + Sync {
    /// The session's id.
    fn id(&self) -> &SessionId;

    /// What a model is to be shown: everything that was said, or a summary in place of what was compacted. The list is
    /// yours: changing it changes nothing else.
    async fn messages(&self) -> Result<Vec<Message>>;

    /// Keeps a turn, all of it or nothing: what the user said, what the model answered, what the tools did, and what it
    /// cost. A turn in which nothing was said is `Invalid`.
    async fn save_turn(&self, messages: Vec<Message>, usage: Usage) -> Result<()>;
}

/// What was said in a turn, fit to be kept.
fn checked(messages: Vec<Message>) -> Result<Vec<Message>> {
    if messages.is_empty() {
        return Err(Error::invalid("nothing was said in this turn: save the turns that have messages"));
    }
    messages.into_iter().map(Message::without_snapshot_id).collect()
}

/// A [`Transcript`] of a session in a store: `main`'s line, each saved turn with a snapshot of its end.
///
/// A turn that is saved is durable as the store's ends are, and is kept whole or not at all, also when whoever saves it
/// stops waiting. Any number of handles may save: each turn follows the one before. A turn is not checked against what
/// its writer had read; who needs that uses the [store](crate::store::Store) itself, with
/// [`expect`](crate::store::BeginTurn::expect).
#[derive(Clone, Debug)]
pub struct StoredTranscript {
    store: Arc<dyn Store>,
    key: SessionKey,
    clock: Arc<dyn Clock>,
    unwritten: Arc<Unwritten>,
}

impl StoredTranscript {
    /// The transcript of a session, which is created if there is none.
    pub async fn open(store: Arc<dyn Store>, key: SessionKey) -> Result<Self> {
        store.open_or_create(CreateSession::at(key.clone())).await?;
        Ok(Self { store, key, clock: Arc::new(SystemClock::new()), unwritten: Arc::default() })
    }

    /// The same with its ids from a clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What addresses the session.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// What is known about the session.
    pub async fn record(&self) -> Result<SessionRecord> {
        self.store.existing(&self.key).await
    }

    /// Its title, if it has one.
    pub async fn title(&self) -> Result<Option<String>> {
        Ok(self.record().await?.title)
    }

    /// Gives it a title.
    pub async fn set_title(&self, title: impl Into<String>) -> Result<()> {
        self.store.update(&self.key, UpdateSession::title(title)).await.map(drop)
    }

    /// How many turns its line has.
    pub async fn turn_count(&self) -> Result<u64> {
        Ok(self.store.head_state(&self.key).await?.turns())
    }

    /// What the turns of its line cost, those before a fork too.
    pub async fn total_usage(&self) -> Result<Usage> {
        Ok(self.store.head_state(&self.key).await?.usage())
    }

    /// Another session that begins where this one stands. Nothing is copied; both go their own ways from there.
    pub async fn fork(&self, id: SessionId) -> Result<Self> {
        let fork = self.store.fork(ForkSession::at(At::head(self.key.clone())).id(id)).await?;
        Ok(Self { key: fork.key(), ..self.clone() })
    }

    async fn write(self, messages: Vec<Message>, usage: Usage) -> Result<()> {
        let last = messages.last().cloned();
        // The user speaks until the model does: that is what the turn was given.
        let answered = messages.iter().position(|message| message.role() == Role::Model);
        let mut input = messages;
        let answer = input.split_off(answered.unwrap_or(input.len()));
        let invocation = InvocationId::new(self.clock.uuid().to_string())?;
        let snapshot = SnapshotId::from_uuid(self.clock.uuid());
        let turn = BeginTurn::new(Start::Session(self.key), invocation, Input::messages(input)).snapshot(snapshot);
        self.unwritten.write(&*self.store).await;
        let begun = self.store.begin(turn).await?.begun()?;
        let mut changes = Changes::new();
        changes.events =
            answer.into_iter().map(|message| Event::new(message.role().name()).with_messages([message])).collect();
        changes.usage = usage;
        let mut end = EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(snapshot));
        end.outcome.message = last;
        let Err(error) = self.store.end(end).await else { return Ok(()) };
        if !matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Aborted | ErrorKind::Deleted) {
            // The branch must not stay held for a turn that will never end.
            let void = EndTurn::voided(begun.fence, EndStatus::Failed, Outcome::failed((&error).into()));
            let certainty = match error.kind() {
                ErrorKind::UnknownOutcome => Certainty::Unknown,
                _ => Certainty::NotKept,
            };
            self.unwritten.add(&self.store, void, certainty);
            self.unwritten.write(&*self.store).await;
        }
        Err(error)
    }
}

#[async_trait]
impl Transcript for StoredTranscript {
    fn id(&self) -> &SessionId {
        &self.key.id
    }

    async fn messages(&self) -> Result<Vec<Message>> {
        Ok(self.store.head_state(&self.key).await?.model_messages())
    }

    async fn save_turn(&self, messages: Vec<Message>, usage: Usage) -> Result<()> {
        let messages = checked(messages)?;
        // In a task of its own: a caller that goes away between begin and end would leave the branch held.
        let saving = tokio::spawn(self.clone().write(messages, usage));
        saving.await.map_err(|error| Error::internal("saving a turn was cut off").with_source(error))?
    }
}

/// A [`Transcript`] in memory, for conversations that are not to be kept. There is no store behind it.
#[derive(Debug)]
pub struct MemoryTranscript {
    id: SessionId,
    said: Mutex<Said>,
}

#[derive(Clone, Debug, Default)]
struct Said {
    title: Option<String>,
    messages: Vec<Message>,
    turns: u64,
    usage: Usage,
}

impl MemoryTranscript {
    /// An empty one.
    #[must_use]
    pub fn new(id: SessionId) -> Self {
        Self { id, said: Mutex::default() }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its title, if it has one.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        self.said().title.clone()
    }

    /// Gives it a title.
    pub fn set_title(&self, title: impl Into<String>) {
        self.said().title = Some(title.into());
    }

    /// How many turns were saved.
    #[must_use]
    pub fn turn_count(&self) -> u64 {
        self.said().turns
    }

    /// What they cost.
    #[must_use]
    pub fn total_usage(&self) -> Usage {
        self.said().usage
    }

    /// Another one that begins where this one stands.
    #[must_use]
    pub fn fork(&self, id: SessionId) -> Self {
        Self { id, said: Mutex::new(self.said().clone()) }
    }
}

#[async_trait]
impl Transcript for MemoryTranscript {
    fn id(&self) -> &SessionId {
        &self.id
    }

    async fn messages(&self) -> Result<Vec<Message>> {
        Ok(self.said().messages.clone())
    }

    async fn save_turn(&self, messages: Vec<Message>, usage: Usage) -> Result<()> {
        let messages = checked(messages)?;
        let mut said = self.said();
        said.messages.extend(messages);
        said.turns += 1;
        said.usage.add(&usage);
        Ok(())
    }
}
