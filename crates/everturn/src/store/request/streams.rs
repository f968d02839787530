//! What is asked of a turn's stream: chunks to keep, and chunks to read.

#[cfg(doc)]
use super::MAX_PAGE;
use crate::TurnId;
use crate::json::Json;
use crate::stream::Position;
use crate::turn::{Fence, TurnStatus};

/// Chunks of a turn's stream to keep together: they are one row, however many there are.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KeepChunks {
    /// The turn's fence.
    pub fence: Fence,
    /// The number of the first of them: how many chunks this attempt has kept before.
    pub first: u64,
    /// The chunks, at least one; their text is kept as it is.
    pub chunks: Vec<Json>,
}

impl KeepChunks {
    /// Chunks to keep, the first of them with a number.
    #[must_use]
    pub fn new(fence: Fence, first: u64, chunks: Vec<Json>) -> Self {
        Self { fence, first, chunks }
    }
}

/// Which chunks of a turn's stream to read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChunkQuery {
    /// The turn, running or ended.
    pub turn: TurnId,
    /// Only chunks after this place. One in an attempt that is void means all of the current attempt.
    pub after: Option<Position>,
    /// How many, at most [`MAX_PAGE`]. A page of long chunks has fewer, but never none because of that.
    pub limit: usize,
}

impl ChunkQuery {
    /// The current attempt's stream from its start.
    #[must_use]
    pub fn of(turn: TurnId) -> Self {
        Self { turn, after: None, limit: 100 }
    }

    /// What follows a place that was seen.
    #[must_use]
    pub fn after(mut self, seen: Position) -> Self {
        self.after = Some(seen);
        self
    }

    /// So many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// Some chunks of a turn's stream, and what is known about the turn at the same moment.
///
/// A reader has seen all there will ever be when there is no [more](Self::more) and the turn has ended. One that is not
/// there yet asks again with the position of the last chunk, or the same `after` if there was none.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkPage {
    /// The chunks with their places, in order, all of the current attempt.
    pub chunks: Vec<(Position, Json)>,
    /// The current attempt at the turn, or the last.
    pub attempt: u64,
    /// What is known about the turn's life.
    pub status: TurnStatus,
    /// Whether more chunks follow already.
    pub more: bool,
    /// Whether chunks that would have come first are gone: the stream was over its limit, or its grace period is over.
    pub dropped: bool,
}
