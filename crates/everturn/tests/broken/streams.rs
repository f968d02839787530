//! Streams that are broken.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use everturn::store::*;
use everturn::{ErrorKind, Fence, Json, Position, Result, RunningTurn, SessionKey, TurnId, TurnStatus};

use super::{Breakage, Inner};

/// Chunks are parsed and printed again.
#[derive(Debug)]
pub(crate) struct RespellsChunks;

#[async_trait]
impl Breakage for RespellsChunks {
    async fn keep_chunks(&self, inner: &Inner, mut pack: KeepChunks) -> Result<()> {
        for chunk in &mut pack.chunks {
            *chunk = Json::parse(chunk.as_str().replace("1.10", "1.1"))?;
        }
        inner.keep_chunks(pack).await
    }
}

/// The chunk at a reader's place is sent once more.
#[derive(Debug)]
pub(crate) struct RepeatsTheLastChunk;

#[async_trait]
impl Breakage for RepeatsTheLastChunk {
    async fn chunks(&self, inner: &Inner, mut query: ChunkQuery) -> Result<ChunkPage> {
        query.after = match query.after {
            Some(Position { n: 0, .. }) | None => None,
            Some(seen) => Some(Position::new(seen.attempt, seen.n - 1)),
        };
        inner.chunks(query).await
    }
}

/// A reader that comes back begins behind the pack it was in.
#[derive(Debug, Default)]
pub(crate) struct SkipsTheRestOfAPack(Mutex<HashMap<TurnId, Vec<u64>>>);

#[async_trait]
impl Breakage for SkipsTheRestOfAPack {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        let (turn, next) = (pack.fence.turn(), pack.first + pack.chunks.len() as u64);
        inner.keep_chunks(pack).await?;
        self.0.lock().unwrap().entry(turn).or_default().push(next);
        Ok(())
    }

    async fn chunks(&self, inner: &Inner, mut query: ChunkQuery) -> Result<ChunkPage> {
        if let Some(seen) = &mut query.after
            && let Some(ends) = self.0.lock().unwrap().get(&query.turn)
            && let Some(end) = ends.iter().find(|end| **end > seen.n)
        {
            seen.n = end - 1;
        }
        inner.chunks(query).await
    }
}

/// What is at its place already, or comes too early, is taken for kept.
#[derive(Debug)]
pub(crate) struct TakesGapsAndRepeats;

#[async_trait]
impl Breakage for TakesGapsAndRepeats {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        match inner.keep_chunks(pack).await {
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
            done => done,
        }
    }
}

/// Streams belong to sessions.
#[derive(Debug, Default)]
pub(crate) struct OneStreamPerSession(Mutex<HashMap<u64, TurnId>>);

#[async_trait]
impl Breakage for OneStreamPerSession {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        let turn = pack.fence.turn();
        inner.keep_chunks(pack).await?;
        self.0.lock().unwrap().insert(turn.session(), turn);
        Ok(())
    }

    async fn chunks(&self, inner: &Inner, mut query: ChunkQuery) -> Result<ChunkPage> {
        if let Some(last) = self.0.lock().unwrap().get(&query.turn.session()) {
            query.turn = *last;
        }
        inner.chunks(query).await
    }
}

/// An empty stream is taken for a dropped one.
#[derive(Debug)]
pub(crate) struct EmptyIsDropped;

#[async_trait]
impl Breakage for EmptyIsDropped {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        let mut page = inner.chunks(query).await?;
        page.dropped |= page.chunks.is_empty();
        Ok(page)
    }
}

/// A chunk is a write to its session.
#[derive(Debug)]
pub(crate) struct ChunksTouchTheirSession;

#[async_trait]
impl Breakage for ChunksTouchTheirSession {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        let turn = pack.fence.turn();
        inner.keep_chunks(pack).await?;
        if let Some(turn) = inner.turn(turn).await? {
            inner.update(&turn.session, UpdateSession::title("streaming")).await?;
        }
        Ok(())
    }
}

/// A chunk is a sign of life.
#[derive(Debug)]
pub(crate) struct ChunksAreSignsOfLife;

#[async_trait]
impl Breakage for ChunksAreSignsOfLife {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        let fence = pack.fence;
        inner.keep_chunks(pack).await?;
        inner.renew(&fence).await
    }
}

/// What is too large is left out without a word.
#[derive(Debug)]
pub(crate) struct LeavesOutTheTooLarge;

#[async_trait]
impl Breakage for LeavesOutTheTooLarge {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        match inner.keep_chunks(pack).await {
            Err(error) if error.kind() == ErrorKind::TooLarge => Ok(()),
            done => done,
        }
    }
}

/// A page has all there is.
#[derive(Debug)]
pub(crate) struct PagesWithoutBounds;

#[async_trait]
impl Breakage for PagesWithoutBounds {
    async fn chunks(&self, inner: &Inner, mut query: ChunkQuery) -> Result<ChunkPage> {
        query.limit = query.limit.max(1);
        let mut page = inner.chunks(query.clone()).await?;
        while page.more {
            let after = page.chunks.last().map(|(position, _)| *position);
            let rest = inner.chunks(ChunkQuery::of(query.turn).after(after.unwrap())).await?;
            page.chunks.extend(rest.chunks);
            page.more = rest.more;
        }
        Ok(page)
    }
}

/// Readers are not told of what is gone.
#[derive(Debug)]
pub(crate) struct HidesTheLoss;

#[async_trait]
impl Breakage for HidesTheLoss {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        Ok(ChunkPage { dropped: false, ..inner.chunks(query).await? })
    }
}

/// A place that is not there is taken for the start.
#[derive(Debug)]
pub(crate) struct StartsOverWhenLost;

#[async_trait]
impl Breakage for StartsOverWhenLost {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        match inner.chunks(query.clone()).await {
            Err(error) if error.kind() == ErrorKind::Invalid => inner.chunks(ChunkQuery::of(query.turn)).await,
            done => done,
        }
    }
}

/// A turn that is not known has an empty stream.
#[derive(Debug)]
pub(crate) struct UnknownIsEmpty;

#[async_trait]
impl Breakage for UnknownIsEmpty {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        match inner.chunks(query).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(nothing(TurnStatus::Completed)),
            done => done,
        }
    }
}

fn nothing(status: TurnStatus) -> ChunkPage {
    ChunkPage { chunks: Vec::new(), attempt: 1, status, more: false, dropped: false }
}

/// Streams live in the memory of a handle.
#[derive(Debug, Default)]
pub(crate) struct ReopeningLosesStreams(AtomicBool);

#[async_trait]
impl Breakage for ReopeningLosesStreams {
    async fn reopen(&self, inner: &Inner) -> Result<()> {
        self.0.store(true, Ordering::Relaxed);
        inner.reopen().await
    }

    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        let page = inner.chunks(query).await?;
        Ok(if self.0.load(Ordering::Relaxed) { nothing(page.status) } else { page })
    }
}

/// Whoever holds a fence of a turn may stream.
#[derive(Debug)]
pub(crate) struct StreamsIgnoreFences;

#[async_trait]
impl Breakage for StreamsIgnoreFences {
    async fn keep_chunks(&self, inner: &Inner, mut pack: KeepChunks) -> Result<()> {
        let now = inner.turn(pack.fence.turn()).await?.map_or(0, |turn| turn.attempt);
        pack.fence = Fence::new(pack.fence.turn(), now.max(pack.fence.attempt()));
        match inner.keep_chunks(pack).await {
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(()),
            done => done,
        }
    }
}

/// Places do not say which attempt they are of.
#[derive(Debug)]
pub(crate) struct ForgetsAttempts;

#[async_trait]
impl Breakage for ForgetsAttempts {
    async fn chunks(&self, inner: &Inner, mut query: ChunkQuery) -> Result<ChunkPage> {
        let now = inner.turn(query.turn).await?.map_or(1, |turn| turn.attempt);
        if let Some(seen) = &mut query.after {
            seen.attempt = now;
        }
        let mut page = inner.chunks(query).await?;
        page.attempt = 1;
        page.chunks.iter_mut().for_each(|(position, _)| position.attempt = 1);
        Ok(page)
    }
}

/// A stream is open for as long as anybody reads it.
#[derive(Debug)]
pub(crate) struct StreamsNeverEnd;

#[async_trait]
impl Breakage for StreamsNeverEnd {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        Ok(ChunkPage { status: TurnStatus::Running, ..inner.chunks(query).await? })
    }
}

/// A stream goes with its turn.
#[derive(Debug)]
pub(crate) struct StreamsEndWithTheirTurn;

#[async_trait]
impl Breakage for StreamsEndWithTheirTurn {
    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        let page = inner.chunks(query).await?;
        let over = !matches!(page.status, TurnStatus::Running | TurnStatus::Dead);
        Ok(if over { ChunkPage { dropped: true, ..nothing(page.status) } } else { page })
    }
}

/// What was read once is read for ever.
#[derive(Debug, Default)]
pub(crate) struct StreamsStay(Mutex<HashMap<TurnId, Vec<(Position, Json)>>>);

#[async_trait]
impl Breakage for StreamsStay {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        let (fence, first, chunks) = (pack.fence, pack.first, pack.chunks.clone());
        inner.keep_chunks(pack).await?;
        let places = (first..).map(|n| Position::new(fence.attempt(), n));
        self.0.lock().unwrap().entry(fence.turn()).or_default().extend(places.zip(chunks));
        Ok(())
    }

    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        let known = self.0.lock().unwrap().get(&query.turn).cloned().unwrap_or_default();
        match inner.chunks(query).await {
            Err(error) if error.kind() == ErrorKind::NotFound && !known.is_empty() => {
                Ok(ChunkPage { chunks: known, ..nothing(TurnStatus::Completed) })
            }
            Ok(page) if page.dropped => Ok(ChunkPage { chunks: known, dropped: false, ..page }),
            done => done,
        }
    }
}

/// A turn is known by where it began, whatever its session.
#[derive(Debug, Default)]
pub(crate) struct ForksShareStreams(Mutex<Vec<TurnId>>);

#[async_trait]
impl Breakage for ForksShareStreams {
    async fn keep_chunks(&self, inner: &Inner, pack: KeepChunks) -> Result<()> {
        self.0.lock().unwrap().push(pack.fence.turn());
        inner.keep_chunks(pack).await
    }

    async fn chunks(&self, inner: &Inner, query: ChunkQuery) -> Result<ChunkPage> {
        let like = self.0.lock().unwrap().iter().find(|turn| turn.begin() == query.turn.begin()).copied();
        match (inner.chunks(query).await, like) {
            (Err(error), Some(like)) if error.kind() == ErrorKind::NotFound => inner.chunks(ChunkQuery::of(like)).await,
            (done, _) => done,
        }
    }
}

/// Nobody is in the background.
#[derive(Debug)]
pub(crate) struct NobodyIsDetached;

#[async_trait]
impl Breakage for NobodyIsDetached {
    async fn running(&self, inner: &Inner, session: Option<&SessionKey>) -> Result<Vec<RunningTurn>> {
        let mut running = inner.running(session).await?;
        running.iter_mut().for_each(|turn| turn.detached = false);
        Ok(running)
    }
}
