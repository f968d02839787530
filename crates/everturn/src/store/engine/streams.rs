//! Durable streams: the chunks of a turn that are kept while it runs and for a while after.
//!
//! A stream is no part of a session's tree. It has packs of chunks and, once its turn has ended, a row; no record, no
//! number and no head knows of it, and a turn that keeps no chunk writes nothing for it.
//!
//! Invariant: a turn's packs are of its current attempt, without a gap from the oldest to the newest. They go with the
//! attempt, with the session, from the oldest on when there are too many, and by and by once the turn has ended a grace
//! period ago. Readers see them gone when that is over, whether they have been removed by then or not.

use std::sync::Arc;

use super::body::{decode, encode};
use super::page::page_limit;
use super::read::turn_status;
use super::rules::{Ctx, Env};
use super::tables::{Flow, PackAt, PackMeta, PackRow, Read, StreamRow, TurnRow};
use super::turns::{fenced_turn, last_record};
use crate::json::{Json, Scanner};
use crate::store::{ChunkPage, ChunkQuery, KeepChunks, Limits};
use crate::stream::Position;
use crate::turn::{Fence, RecordKind, TurnStatus};
use crate::{Error, Result, Timestamp, TurnId};

/// The most text a page has, unless one chunk alone has more.
const PAGE_BYTES: usize = 1 << 20;
/// Packs of streams whose time is over that are removed with a write: more than it adds, so that they get fewer.
const SWEEP: usize = 64;
/// The same when a store is opened.
#[cfg(feature = "sqlite")]
const SWEEP_AT_OPENING: usize = 4096;

/// Chunks to keep, made ready.
pub(crate) struct NewPack {
    fence: Fence,
    first: u64,
    count: u64,
    size: u64,
    body: Vec<u8>,
}

impl NewPack {
    pub(crate) fn prepare(pack: &KeepChunks, limits: &Limits) -> Result<Self> {
        if pack.chunks.is_empty() {
            return Err(Error::invalid("there are no chunks to keep: keep at least one, or nothing at all"));
        }
        let size = pack.chunks.iter().map(|chunk| chunk.as_str().len() + 1).sum::<usize>() + 1;
        if size > limits.body {
            return Err(Error::too_large(format!(
                "chunks of {size} bytes are to be kept together, {} is the most: keep fewer at a time",
                limits.body
            )));
        }
        let mut text = String::with_capacity(size);
        for chunk in &pack.chunks {
            text.push(if text.is_empty() { '[' } else { ',' });
            text.push_str(chunk.as_str());
        }
        text.push(']');
        Ok(Self {
            fence: pack.fence,
            first: pack.first,
            count: pack.chunks.len() as u64,
            size: text.len() as u64,
            body: encode(&text)?,
        })
    }

    /// The bytes that are to be stored.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }
}

pub(crate) fn keep(ctx: &mut Ctx<'_>, new: &NewPack, limits: &Limits) -> Result<()> {
    let (_, mut turn) = fenced_turn(ctx, &new.fence)?;
    let newest = match turn.streams {
        true => ctx.tx.pack(turn.num, turn.begin, PackAt::Newest)?,
        false => None,
    };
    let next = newest.map_or(0, |pack| pack.next());
    if new.first != next {
        return Err(Error::invalid(format!(
            "the chunks begin at {}, but {next} is the next of this attempt: keep each chunk once, in order",
            new.first
        )));
    }
    let start = newest.map_or(0, |pack| pack.start + pack.size);
    let meta = PackMeta { num: turn.num, turn: turn.begin, first: new.first, count: new.count, start, size: new.size };
    ctx.tx.put_pack(&PackRow { meta, body: new.body.clone() })?;
    if !turn.streams {
        turn.streams = true;
        ctx.tx.put_turn(&turn)?;
    }
    ctx.trim_stream(&meta, limits.stream as u64)?;
    ctx.sweep_streams(SWEEP)
}

impl Ctx<'_> {
    /// Removes a stream's oldest packs until it has no more than so much text, or only its newest pack.
    fn trim_stream(&mut self, newest: &PackMeta, most: u64) -> Result<()> {
        let enough = (newest.start + newest.size).saturating_sub(most);
        // A newer pack starts where the one before it ended, so none is looked for until that is too early.
        while enough > 0
            && let Some(oldest) = self.tx.pack(newest.num, newest.turn, PackAt::Oldest)?
            && oldest.start < enough
            && oldest.first < newest.first
        {
            self.tx.remove_pack(&oldest)?;
        }
        Ok(())
    }

    /// An attempt is void, and its stream with it.
    pub(crate) fn drop_stream(&mut self, turn: &mut TurnRow) -> Result<()> {
        if std::mem::take(&mut turn.streams) {
            self.tx.remove_packs(turn.num, turn.begin)?;
        }
        Ok(())
    }

    /// A turn has ended: from now on its stream is kept for the grace period.
    pub(crate) fn end_stream(&mut self, turn: &TurnRow) -> Result<()> {
        if !turn.streams {
            return Ok(());
        }
        let chunks = self.tx.pack(turn.num, turn.begin, PackAt::Newest)?.map_or(0, |pack| pack.next());
        self.tx.put_stream(&StreamRow { num: turn.num, turn: turn.begin, chunks, ended_at: Some(self.env.now) })?;
        self.sweep_streams(SWEEP)
    }

    /// Removes at most so many packs of streams whose grace period is over.
    fn sweep_streams(&mut self, most: usize) -> Result<()> {
        let over = self.env.streams_over();
        let mut left = most;
        while left > 0
            && let Some(row) = self.tx.stream_ended_by(over)?
        {
            left -= 1;
            match self.tx.pack(row.num, row.turn, PackAt::Oldest)? {
                Some(oldest) => self.tx.remove_pack(&oldest)?,
                None => self.tx.put_stream(&StreamRow { ended_at: None, ..row })?,
            }
        }
        Ok(())
    }
}

/// Removes what is over since the store was last used.
#[cfg(feature = "sqlite")]
pub(crate) fn sweep_at_opening(ctx: &mut Ctx<'_>) -> Result<()> {
    ctx.sweep_streams(SWEEP_AT_OPENING)
}

impl Env<'_> {
    /// Streams of turns that ended then or before are over.
    fn streams_over(&self) -> Timestamp {
        let grace = i64::try_from(self.stream_grace).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.now.as_micros().saturating_sub(grace))
    }
}

/// What is known of a turn's stream.
struct Stream {
    attempt: u64,
    status: TurnStatus,
    /// How many chunks the attempt has had.
    chunks: u64,
    /// The first one that is still there; their number when none is.
    kept_from: u64,
}

pub(crate) fn chunks(read: &dyn Read, env: &Env<'_>, query: &ChunkQuery) -> Result<ChunkPage> {
    let limit = page_limit(query.limit)?;
    let TurnId { session: num, begin } = query.turn;
    let stream = find_stream(read, env, query.turn)?;
    let wanted = stream.first_after(query.after)?;
    let from = wanted.max(stream.kept_from);
    let mut chunks = Vec::new();
    let mut bytes = 0;
    if from < stream.chunks {
        read.packs(num, begin, from, &mut |pack: PackRow| {
            for (n, chunk) in (pack.meta.first..).zip(unpack(&pack)?) {
                if n < from {
                    continue;
                }
                bytes += chunk.as_str().len();
                if chunks.len() == limit || (bytes > PAGE_BYTES && !chunks.is_empty()) {
                    return Ok(Flow::Stop);
                }
                chunks.push((Position::new(stream.attempt, n), chunk));
            }
            Ok(Flow::More)
        })?;
    }
    let next = chunks.last().map_or(from, |(position, _)| position.n + 1);
    let Stream { attempt, status, .. } = stream;
    Ok(ChunkPage { chunks, attempt, status, more: next < stream.chunks, dropped: wanted < stream.kept_from })
}

fn find_stream(read: &dyn Read, env: &Env<'_>, id: TurnId) -> Result<Stream> {
    let TurnId { session: num, begin } = id;
    let unknown = || Error::not_found(format!("there is no turn {id}: check the id; a deleted session has none"));
    read.session(num)?.filter(|session| !session.deleted).ok_or_else(unknown)?;
    if let Some(turn) = read.turn(num, begin)? {
        let newest = if turn.streams { read.pack(num, begin, PackAt::Newest)? } else { None };
        let chunks = newest.map_or(0, |pack| pack.next());
        let kept_from = kept_from(read, id, chunks)?;
        return Ok(Stream { attempt: turn.attempt, status: turn_status(env, &turn), chunks, kept_from });
    }
    let meta = read.meta(num, begin)?.filter(|meta| meta.kind == RecordKind::Begin && meta.turn == Some(begin));
    meta.ok_or_else(unknown)?;
    let (end, status, _) = last_record(read, num, begin)?
        .ok_or_else(|| Error::corrupt(format!("turn {id} has neither ended nor is it running")))?;
    let row = read.stream(num, begin)?;
    let chunks = row.map_or(0, |row| row.chunks);
    let kept = row.and_then(|row| row.ended_at).is_some_and(|at| at > env.streams_over());
    let kept_from = if kept { kept_from(read, id, chunks)? } else { chunks };
    Ok(Stream { attempt: end.attempt, status: status.into(), chunks, kept_from })
}

/// The first chunk of a stream that is still there.
fn kept_from(read: &dyn Read, id: TurnId, chunks: u64) -> Result<u64> {
    if chunks == 0 {
        return Ok(0);
    }
    Ok(read.pack(id.session, id.begin, PackAt::Oldest)?.map_or(chunks, |pack| pack.first))
}

impl Stream {
    /// The number of the first chunk a reader wants that has seen those up to a place.
    fn first_after(&self, seen: Option<Position>) -> Result<u64> {
        let Some(seen) = seen else { return Ok(0) };
        let Self { attempt, chunks, .. } = *self;
        if seen.attempt == 0 || seen.attempt > attempt {
            return Err(Error::invalid(format!(
                "position {seen} is of an attempt that does not exist, the last is {attempt}: start without a position"
            )));
        }
        if seen.attempt < attempt {
            return Ok(0);
        }
        if seen.n >= chunks {
            return Err(Error::invalid(format!(
                "position {seen} is beyond the stream's end, it has {chunks} chunks: start without a position"
            )));
        }
        Ok(seen.n + 1)
    }
}

/// The chunks of a pack, sharing its text.
fn unpack(pack: &PackRow) -> Result<Vec<Json>> {
    let PackMeta { num, turn, first, count, .. } = pack.meta;
    let damaged = || Error::corrupt(format!("chunks {first} and on of turn {num}.{turn} are damaged"));
    let text: Arc<str> = decode(&pack.body).map_err(|e| damaged().with_source(e))?.into();
    let mut chunks = Vec::new();
    // Chunks are written one after the other with a single byte before each.
    let mut start = 1;
    let mut scanner = Scanner::new(&text);
    scanner.items(|scanner| {
        let end = start + scanner.value()?.len();
        chunks.push(Json::piece(&text, start..end));
        start = end + 1;
        Ok(())
    })?;
    scanner.end()?;
    if chunks.len() as u64 == count && start == text.len() { Ok(chunks) } else { Err(damaged()) }
}
