//! Following what a turn says: from its beginning or from anywhere, while it runs and after.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::definition::Definition;
use super::{Agent, CustomState, Recovery};
use crate::snapshot::FinishReason;
use crate::store::{ChunkQuery, RecordQuery, Store};
use crate::stream::{Chunk, Held, News, Position};
use crate::turn::TurnStatus;
use crate::{Error, Result, SnapshotId, TurnId};

/// How many chunks are read at once.
const PAGE: usize = 256;

/// How often the stream of a turn that runs in another process is looked at, and that of one that is just ending here.
const LOOK: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_millis(5);

/// A chunk of a turn's stream, and where it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Followed {
    /// Its place: come back with the last one you saw, and you go on behind it. What the stream itself says (that the
    /// turn is tried anew, that chunks are gone, how it ended) has none.
    pub position: Option<Position>,
    /// The chunk.
    pub chunk: Chunk,
}

/// A reader of a turn's stream. It sees every chunk that is kept, in order, once; is told by a chunk's `restarted` that the
/// turn is tried anew, and that what was said before does not count; and ends with the chunk's `turn_end`.
#[must_use = "a stream is followed by taking its chunks"]
pub struct Following {
    def: Arc<Definition>,
    store: Arc<dyn Store>,
    turn: TurnId,
    /// The attempt that is followed, and the number of the next chunk.
    attempt: Option<u64>,
    next: u64,
    told_anew: bool,
    told_missed: bool,
    ready: VecDeque<Followed>,
    ended: bool,
    on_death: OnDeath,
    /// Whoever runs the turn here sees by it that somebody follows.
    news: Option<(u64, watch::Receiver<News>)>,
}

/// What a reader does when the process that runs the turn dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDeath {
    /// Waits for somebody to try it again.
    Wait,
    /// Says so.
    Tell,
}

impl<S: CustomState> Agent<S> {
    /// Follows what the turn behind a snapshot says, after a position or from its beginning. Kept is what turns say in the
    /// background, and what invocations say that ask for it ([`Init::keep_stream`](super::Init::keep_stream)).
    ///
    /// A position beyond the stream's end, or of an attempt that there was not, is `Invalid`.
    pub async fn follow(&self, id: SnapshotId, after: Option<Position>) -> Result<Following> {
        let store = self.own_store()?;
        let turn = match self.running_behind(store, id).await? {
            Some(turn) => turn.turn,
            None => self.ended_turn(store, id).await?.ok_or_else(|| self.unknown(id))?,
        };
        self.follow_turn(turn, after).await
    }

    /// The same by the turn.
    pub async fn follow_turn(&self, turn: TurnId, after: Option<Position>) -> Result<Following> {
        let unknown = || Error::not_found(format!("turn {turn} not found for agent '{}'", self.def.name));
        self.turn(turn).await?.ok_or_else(unknown)?;
        Following::of(&self.def, turn, after).await
    }

    /// The turn that a snapshot is the end of.
    async fn ended_turn(&self, store: &dyn Store, id: SnapshotId) -> Result<Option<TurnId>> {
        let Some(row) = self.own_snapshot(store, id).await? else { return Ok(None) };
        let Some(session) = row.session else { return Ok(None) };
        let query = RecordQuery::of(session).after(row.point.seq().saturating_sub(1)).limit(1);
        Ok(store.records(query).await?.items.first().and_then(|record| record.turn))
    }
}

impl Following {
    pub(crate) async fn of(def: &Arc<Definition>, turn: TurnId, after: Option<Position>) -> Result<Self> {
        let store = def.store.clone().ok_or_else(|| Error::internal("a stream without a store"))?;
        let mut following = Self {
            def: def.clone(),
            store,
            turn,
            attempt: after.map(|after| after.attempt),
            next: after.map_or(0, |after| after.n.saturating_add(1)),
            told_anew: false,
            told_missed: false,
            ready: VecDeque::new(),
            ended: false,
            on_death: if def.recovery == Recovery::Leave { OnDeath::Tell } else { OnDeath::Wait },
            news: None,
        };
        // A position that cannot be is refused now, and not when somebody reads.
        if following.take_from_ring() == Found::Elsewhere {
            following.read_store().await?;
        }
        following.attend();
        Ok(following)
    }

    pub(crate) fn on_death(mut self, on_death: OnDeath) -> Self {
        self.on_death = on_death;
        self
    }

    /// The turn that is followed.
    #[must_use]
    pub fn turn(&self) -> TurnId {
        self.turn
    }

    /// The next chunk; nothing after the one that says how the turn ended. Waiting for it can be given up and taken up
    /// again: no chunk is lost.
    ///
    /// `Unavailable` when the process that ran the turn is gone and nobody will try it again by itself.
    pub async fn next(&mut self) -> Result<Option<Followed>> {
        loop {
            self.attend();
            if let Some(followed) = self.ready.pop_front() {
                return Ok(Some(followed));
            }
            if self.ended {
                return Ok(None);
            }
            match self.take_from_ring() {
                Found::Some => {}
                Found::Nothing => {
                    let seen = self.next;
                    let Some((_, news)) = &mut self.news else { continue };
                    // Closed, and nothing behind what was read: what became of the turn is in the store.
                    let more =
                        news.wait_for(|news| news.closed || news.chunks > seen).await.is_ok_and(|news| !news.closed);
                    if !more && self.read_store().await? == Found::Nothing {
                        tokio::time::sleep(SOON).await;
                    }
                }
                Found::Elsewhere => {
                    if self.read_store().await? == Found::Nothing {
                        tokio::time::sleep(LOOK).await;
                    }
                }
            }
        }
    }

    /// Lets the turn know that somebody follows, if it runs in this process.
    fn attend(&mut self) {
        if let Some((attempt, ring)) = self.def.local.stream(self.turn)
            && self.news.as_ref().is_none_or(|(of, _)| *of != attempt)
        {
            self.news = Some((attempt, ring.news()));
        }
    }

    /// Takes what the turn said lately, if it runs in this process.
    fn take_from_ring(&mut self) -> Found {
        let Some((attempt, ring)) = self.def.local.stream(self.turn) else { return Found::Elsewhere };
        // Whether there were earlier attempts the store knows.
        if self.attempt.unwrap_or(1) != attempt || (self.attempt.is_none() && attempt > 1) {
            return Found::Elsewhere;
        }
        match ring.from(self.next, PAGE) {
            Held::Behind => Found::Elsewhere,
            Held::UpToDate if self.attempt.is_some() => Found::Nothing,
            Held::UpToDate => {
                self.attempt = Some(attempt);
                Found::Nothing
            }
            Held::Chunks(first, chunks) => {
                self.attempt = Some(attempt);
                for (n, json) in (first..).zip(chunks) {
                    match json.to::<Chunk>() {
                        Ok(chunk) => self.take(Position { attempt, n }, chunk),
                        Err(error) => tracing::warn!(%error, "a kept chunk cannot be read"),
                    }
                }
                Found::Some
            }
        }
    }

    fn take(&mut self, position: Position, chunk: Chunk) {
        (self.attempt, self.next) = (Some(position.attempt), position.n + 1);
        (self.told_anew, self.told_missed) = (false, false);
        self.ready.push_back(Followed { position: Some(position), chunk });
    }

    /// Reads on in the store, and looks what became of the turn.
    async fn read_store(&mut self) -> Result<Found> {
        let after = match (self.attempt, self.next.checked_sub(1)) {
            (Some(attempt), Some(n)) => Some(Position { attempt, n }),
            // Before an attempt's first chunk there is no position: behind every one of the attempt before.
            (Some(attempt), None) if attempt > 1 => Some(Position { attempt: attempt - 1, n: 0 }),
            _ => None,
        };
        let mut query = ChunkQuery::of(self.turn).limit(PAGE);
        query.after = after;
        let page = self.store.chunks(query).await?;
        // An attempt is told of when somebody makes it, and not when the one before is given up.
        let made = !page.chunks.is_empty() || matches!(page.status, TurnStatus::Running | TurnStatus::Completed);
        if self.attempt.is_some_and(|attempt| attempt < page.attempt) && made && !self.told_anew {
            self.ready.push_back(Followed { position: None, chunk: Chunk::restarted(page.attempt) });
            (self.attempt, self.next, self.told_anew) = (Some(page.attempt), 0, true);
        }
        if self.attempt.is_none() || made {
            self.attempt = Some(page.attempt);
        }
        if page.dropped && !self.told_missed {
            self.ready.push_back(Followed { position: None, chunk: Chunk::missed() });
            self.told_missed = true;
        }
        let mut found = if self.ready.is_empty() { Found::Nothing } else { Found::Some };
        for (position, json) in page.chunks {
            self.take(position, json.to()?);
            found = Found::Some;
        }
        if page.more {
            return Ok(Found::Some);
        }
        match page.status {
            TurnStatus::Running | TurnStatus::Dead if self.is_over_here(page.attempt) => Ok(Found::Some),
            TurnStatus::Running => Ok(found),
            TurnStatus::Dead if self.on_death == OnDeath::Tell => {
                if found == Found::Some {
                    return Ok(found);
                }
                Err(Error::unavailable(format!("the process that ran turn {} is gone: try the turn again", self.turn)))
            }
            TurnStatus::Dead => Ok(found),
            TurnStatus::Completed | TurnStatus::Failed | TurnStatus::Aborted => {
                let ended = self.store.turn(self.turn).await?.and_then(|turn| turn.ended);
                let reason = ended.as_ref().and_then(|ended| ended.outcome.finish_reason);
                let reason = reason.unwrap_or(match page.status {
                    TurnStatus::Aborted => FinishReason::Aborted,
                    TurnStatus::Failed => FinishReason::Failed,
                    _ => FinishReason::Unknown,
                });
                self.end(ended.and_then(|ended| ended.snapshot_id), reason);
                Ok(Found::Some)
            }
        }
    }

    /// Ends the stream of a turn whose last attempt is known to have failed in this process, before the store could write
    /// that.
    fn is_over_here(&mut self, attempt: u64) -> bool {
        let end = self.def.local.unwritten.of(self.turn).filter(|end| end.fence.attempt() == attempt);
        let Some(end) = end else { return false };
        self.end(end.snapshot.map(|snapshot| snapshot.id), FinishReason::Failed);
        true
    }

    fn end(&mut self, snapshot: Option<SnapshotId>, reason: FinishReason) {
        self.ready.push_back(Followed { position: None, chunk: Chunk::turn_end(snapshot, reason) });
        self.ended = true;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Something to hand on.
    Some,
    /// Nothing new.
    Nothing,
    /// Not here: the store must be asked.
    Elsewhere,
}
