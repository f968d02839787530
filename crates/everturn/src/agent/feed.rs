//! Following a session: what is written to it, as it is written.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Sessions;
use crate::session::{SessionKey, SessionRecord};
use crate::store::{RecordQuery, Store, Watch, WatchEvent, WatchTarget};
use crate::turn::Record;
use crate::{Error, ErrorKind, Position, Result, SessionId};

/// How often it is looked whether somebody died: that is the one change that nobody writes down.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Records that are read at a time, and so held at most, and what they may have together. Many may follow at once.
const PAGE: usize = 32;
const PAGE_BYTES: usize = 128 << 10;

/// Something that happened to a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// This is known about it now: heads, title, status, what it cost. The first thing that is told.
    Session(Box<SessionRecord>),
    /// This was written, raw. Whoever comes back with the position goes on behind it.
    Record(Position, Box<Record>),
    /// It is gone; nothing follows.
    Deleted,
}

/// What is written to a session, as it is written, by this process and others.
///
/// A position is the session's beginning and a number of its log, so that one of a session that was deleted is told from
/// one of its namesake. Nothing is held while nobody asks for the next change.
///
/// ```
/// use everturn::store::MemoryStore;
/// use everturn::{Agent, Change, Init, Json, RecordKind, Turn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let agent = Agent::flow("echo", |turn: Turn<Json>| async move { Ok(turn.text()) }).store(MemoryStore::new()).build()?;
/// let sessions = agent.sessions()?;
/// let made = sessions.create(|session| session).await?;
/// let mut feed = sessions.feed(&made.id, None).await?;
/// assert!(matches!(feed.next().await?, Some(Change::Session(session)) if session.turns == 0));
/// agent.run_text("Hello!", Init::session(made.id.clone())).await?;
/// assert!(matches!(feed.next().await?, Some(Change::Record(_, record)) if record.kind == RecordKind::Begin));
/// # Ok(()) }
/// ```
pub struct Feed {
    store: Arc<dyn Store>,
    key: SessionKey,
    watch: Box<dyn Watch>,
    /// Tells the session from another one under its id.
    epoch: u64,
    /// The last number that was told.
    seen: u64,
    waiting: VecDeque<Record>,
    told: Option<SessionRecord>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There may be something to read.
    Behind,
    /// All that was written is told.
    Level,
    Over,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("session", &self.key).field("seen", &self.seen).finish_non_exhaustive()
    }
}

fn epoch(session: &SessionRecord) -> u64 {
    session.created_at.as_micros().unsigned_abs()
}

impl Sessions {
    /// Follows a session, behind a position or from now on. A position beyond the log is `Invalid`; one of a session that
    /// had the id before is told that it is gone.
    pub async fn feed(&self, id: &SessionId, after: Option<Position>) -> Result<Feed> {
        let session = self.existing(id).await?;
        let key = self.key(id);
        let (last, own) = (self.log_end(id).await?, epoch(&session));
        let Position { attempt: epoch, n: seen } = after.unwrap_or(Position::new(own, last));
        if epoch == own && seen > last {
            return Err(Error::invalid(format!("the session's log ends at {last}, before that position")));
        }
        let watch = self.store.watch(WatchTarget::Session(key.clone())).await?;
        let (store, waiting) = (self.store.clone(), VecDeque::new());
        Ok(Feed { store, key, watch, epoch, seen, waiting, told: None, state: State::Behind })
    }

    /// Where following a session would go on from now.
    pub async fn position(&self, id: &SessionId) -> Result<Position> {
        let session = self.existing(id).await?;
        Ok(Position::new(epoch(&session), self.log_end(id).await?))
    }

    async fn log_end(&self, id: &SessionId) -> Result<u64> {
        let found = self.store.previews(&[self.key(id)]).await?.pop().flatten();
        found.map(|preview| preview.log).ok_or_else(|| self.unknown(id))
    }
}

impl Feed {
    /// The next change, when it happens; nothing after the session was deleted.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(record) = self.waiting.pop_front() {
                self.seen = record.seq;
                return Ok(Some(Change::Record(Position::new(self.epoch, record.seq), Box::new(record))));
            }
            match self.state {
                State::Over => return Ok(None),
                State::Behind => {
                    if let Some(change) = self.catch_up().await? {
                        return Ok(Some(change));
                    }
                }
                State::Level => match tokio::time::timeout(LOOK_AGAIN, self.watch.next()).await {
                    Ok(Ok(WatchEvent::Deleted)) => return Ok(Some(self.over())),
                    Ok(Err(error)) => return Err(error),
                    Ok(Ok(_)) | Err(_) => self.state = State::Behind,
                },
            }
        }
    }

    fn over(&mut self) -> Change {
        self.state = State::Over;
        self.waiting.clear();
        Change::Deleted
    }

    /// Reads what was written, and then what is known about the session if that has changed.
    async fn catch_up(&mut self) -> Result<Option<Change>> {
        if self.told.is_some() {
            let query = RecordQuery::of(self.key.clone()).after(self.seen).limit(PAGE).bytes(PAGE_BYTES);
            match self.store.records(query).await {
                Ok(page) => self.waiting.extend(page.items),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(self.over())),
                Err(error) => return Err(error),
            }
        }
        // Read after the records: if it is still the same session, they were its own.
        let session = self.store.session(&self.key).await?.filter(|session| epoch(session) == self.epoch);
        let Some(session) = session else { return Ok(Some(self.over())) };
        if !self.waiting.is_empty() {
            return Ok(None);
        }
        // The first time, what is known is told before what was written.
        self.state = if self.told.is_none() { State::Behind } else { State::Level };
        if self.told.as_ref() == Some(&session) {
            return Ok(None);
        }
        self.told = Some(session.clone());
        Ok(Some(Change::Session(Box::new(session))))
    }
}
