//! Streams: keeping the chunks of a turn, and reading them from anywhere.

use std::sync::Arc;

use super::bench::{Bench, end, json, turn, turn_from};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{
    ChunkPage, ChunkQuery, KeepChunks, Limits, ListSessions, MAX_PAGE, Store, VerifyScope, WatchTarget,
};
use crate::{Begun, ErrorKind, Fence, Json, Position, TurnId, TurnStatus};

/// Numbered chunks.
pub(super) fn numbered(from: u64, to: u64) -> Vec<Json> {
    (from..to).map(|n| json(&format!("{{\"n\":{n}}}"))).collect()
}

/// Chunks `from` to `to`, kept together.
pub(super) fn pack(fence: Fence, from: u64, to: u64) -> KeepChunks {
    KeepChunks::new(fence, from, numbered(from, to))
}

/// What reading those of an attempt gives.
pub(super) fn places(attempt: u64, from: u64, to: u64) -> Vec<(Position, Json)> {
    (from..to).zip(numbered(from, to)).map(|(n, chunk)| (Position::new(attempt, n), chunk)).collect()
}

/// A page, as a fresh handle sees it.
pub(super) async fn page(t: &Bench, query: ChunkQuery) -> crate::Result<ChunkPage> {
    t.second().await?.chunks(query).await
}

/// Reads on, page by page, until nothing more is there.
pub(super) async fn read_on(
    store: &Arc<dyn Store>,
    turn: TurnId,
    mut seen: Option<Position>,
    limit: usize,
) -> Check<Vec<(Position, Json)>> {
    let mut found = Vec::new();
    loop {
        let mut query = ChunkQuery::of(turn).limit(limit);
        query.after = seen;
        let before = found.len();
        let page = store.chunks(query).await?;
        holds(page.chunks.len() <= limit, "a page has no more than was asked for")?;
        holds(!page.dropped, "nothing was dropped")?;
        for (position, chunk) in page.chunks {
            // Otherwise a store that repeats a chunk would be read for ever.
            holds(seen.is_none_or(|seen| seen < position), "places only grow")?;
            seen = Some(position);
            found.push((position, chunk));
        }
        if !page.more {
            return Ok(found);
        }
        holds(found.len() > before, "a page with more to come is not empty")?;
    }
}

async fn streaming(t: &Bench, id: &str) -> Check<Begun> {
    let key = t.session(id).await?;
    Ok(t.begin(&key, "x").await?)
}

pub(super) async fn what_is_kept_is_read_back_to_the_letter(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    let texts = [
        r#"{"text":"Hel", "n" : 1.10,"é":"\u00e9\n"}"#,
        "null",
        r#""a \"quoted\", [bracketed] text""#,
        "[ 1, [2,{}], 1e5 ]",
        "9007199254740993",
        "{}",
    ];
    let chunks: Vec<Json> = texts.iter().map(|text| json(text)).collect();
    t.store.keep_chunks(KeepChunks::new(begun.fence, 0, chunks[..4].to_vec())).await?;
    t.store.keep_chunks(KeepChunks::new(begun.fence, 4, chunks[4..].to_vec())).await?;
    let page = page(&t, ChunkQuery::of(begun.turn)).await?;
    let found: Vec<_> = page.chunks.iter().map(|(_, chunk)| chunk.as_str()).collect();
    same(found, texts.to_vec(), "the chunks' texts")?;
    let positions: Vec<_> = page.chunks.iter().map(|(position, _)| *position).collect();
    same(positions, (0..6).map(|n| Position::new(1, n)).collect(), "their places")?;
    same((page.attempt, page.status), (1, TurnStatus::Running), "attempt and status")?;
    same((page.more, page.dropped), (false, false), "whether there is more, and whether less than there was")
}

pub(super) async fn a_stream_is_read_from_anywhere(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    for (from, to) in [(0, 1), (1, 4), (4, 5), (5, 12), (12, 14)] {
        t.store.keep_chunks(pack(begun.fence, from, to)).await?;
    }
    let other = t.second().await?;
    for limit in [1, 2, 3, 14, 100] {
        same(read_on(&other, begun.turn, None, limit).await?, places(1, 0, 14), "all of it")?;
        for n in 0..14 {
            let seen = Some(Position::new(1, n));
            same(read_on(&other, begun.turn, seen, limit).await?, places(1, n + 1, 14), "what follows a place")?;
        }
    }
    let middle = page(&t, ChunkQuery::of(begun.turn).after(Position::new(1, 3)).limit(4)).await?;
    same((middle.chunks, middle.more), (places(1, 4, 8), true), "a page in the middle")?;
    let last = page(&t, ChunkQuery::of(begun.turn).after(Position::new(1, 9)).limit(4)).await?;
    same((last.chunks, last.more), (places(1, 10, 14), false), "a page that ends where the stream does")
}

pub(super) async fn a_reader_follows_a_running_turn(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    let readers = [t.store.clone(), t.second().await?];
    let mut seen: [Vec<(Position, Json)>; 2] = [Vec::new(), Vec::new()];
    let mut kept = 0;
    for round in 0..12 {
        let next = kept + 1 + round % 3;
        t.store.keep_chunks(pack(begun.fence, kept, next)).await?;
        kept = next;
        // One reads along, the other comes back now and then.
        for (i, reader) in readers.iter().enumerate().filter(|(i, _)| *i == 0 || round % 4 == 3) {
            let last = seen[i].last().map(|(position, _)| *position);
            seen[i].extend(read_on(reader, begun.turn, last, 3).await?);
        }
    }
    t.store.end(end(begun.fence, "x")).await?;
    for (reader, mut seen) in readers.iter().zip(seen) {
        let last = seen.last().map(|(position, _)| *position);
        seen.extend(read_on(reader, begun.turn, last, 100).await?);
        same(seen, places(1, 0, kept), "what a reader has seen in the end")?;
    }
    Ok(())
}

pub(super) async fn chunks_are_kept_once_and_in_order(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    let nothing = KeepChunks::new(begun.fence, 0, Vec::new());
    refused(t.store.keep_chunks(nothing).await, ErrorKind::Invalid, "keeping nothing")?;
    refused(t.store.keep_chunks(pack(begun.fence, 1, 2)).await, ErrorKind::Invalid, "a gap before the first")?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, Vec::new(), "what the refusals left")?;
    t.store.keep_chunks(pack(begun.fence, 0, 3)).await?;
    for wrong in [0, 2, 4, u64::MAX] {
        let chunk = KeepChunks::new(begun.fence, wrong, numbered(3, 4));
        refused(t.store.keep_chunks(chunk).await, ErrorKind::Invalid, "a gap, or a repeat")?;
    }
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 3), "what the refusals left")?;
    t.store.keep_chunks(pack(begun.fence, 3, 4)).await?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 4), "the stream after the next")
}

pub(super) async fn of_racing_packs_one_is_kept(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    let handles = [t.store.clone(), t.second().await?];
    for n in 0..8 {
        let tasks = handles.clone().map(|store| {
            let pack = pack(begun.fence, n, n + 1);
            tokio::spawn(async move { store.keep_chunks(pack).await })
        });
        let mut won = 0;
        for task in tasks {
            match task.await {
                Ok(Ok(())) => won += 1,
                Ok(Err(error)) => same(error.kind(), ErrorKind::Invalid, "what the other one is told")?,
                Err(_) => return fail("a racing request panicked"),
            }
        }
        same(won, 1, "how many were kept")?;
    }
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 8), "the stream")
}

pub(super) async fn streams_do_not_mix(t: Bench) -> Check {
    let key = t.session("s").await?;
    let from = t.say(&key, "zero").await?.point;
    let main = t.begin(&key, "one").await?;
    let beside = t.store.begin(turn_from(&key, from, "two")).await?.begun()?;
    let other = streaming(&t, "other").await?;
    for n in 0..4 {
        t.store.keep_chunks(pack(main.fence, n * 2, n * 2 + 2)).await?;
        t.store.keep_chunks(pack(beside.fence, n * 3, n * 3 + 3)).await?;
        t.store.keep_chunks(pack(other.fence, n, n + 1)).await?;
    }
    t.store.end(end(main.fence, "one")).await?;
    for (turn, count) in [(main.turn, 8), (beside.turn, 12), (other.turn, 4)] {
        same(page(&t, ChunkQuery::of(turn)).await?.chunks, places(1, 0, count), "a turn's own chunks")?;
    }
    // The next turn of the session begins with none.
    let next = t.begin(&key, "three").await?;
    same(page(&t, ChunkQuery::of(next.turn)).await?.chunks, Vec::new(), "the next turn's chunks")?;
    t.store.keep_chunks(pack(next.fence, 0, 1)).await?;
    same(page(&t, ChunkQuery::of(main.turn)).await?.chunks, places(1, 0, 8), "the last turn's chunks")
}

pub(super) async fn a_turn_without_a_stream_has_an_empty_one(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let empty = |status| ChunkPage { chunks: Vec::new(), attempt: 1, status, more: false, dropped: false };
    same(page(&t, ChunkQuery::of(begun.turn)).await?, empty(TurnStatus::Running), "while it runs")?;
    t.store.end(end(begun.fence, "x")).await?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?, empty(TurnStatus::Completed), "after it ended")
}

pub(super) async fn a_stream_leaves_no_trace_in_its_session(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let later = t.session("later").await?;
    let begun = t.begin(&key, "two").await?;
    t.say(&later, "newer").await?;
    let before = (t.footprint(&key).await?, t.record(&key).await?, t.records(&key).await?);
    let state = t.state(&key).await?.digest();
    let verified = t.second().await?.verify(VerifyScope::Session(key.clone())).await?;
    let running = t.second().await?.running(Some(&key)).await?;
    let mut watch = t.store.watch(WatchTarget::Session(key.clone())).await?;
    t.clock.advance(std::time::Duration::from_secs(1));
    for n in 0..5 {
        t.store.keep_chunks(pack(begun.fence, n, n + 1)).await?;
    }
    let listed = t.second().await?.list(ListSessions::default()).await?;
    same(listed.items.first().map(|first| first.key()), Some(later), "the session written to last")?;
    let mut told = Box::pin(watch.next());
    holds(t.settle(&mut told).await?.is_none(), "a watcher of the session is told nothing")?;
    let after = (t.footprint(&key).await?, t.record(&key).await?, t.records(&key).await?);
    same(after, before, "the session, its head, its times and its log")?;
    same(t.state(&key).await?.digest(), state, "the digest of its state")?;
    same(t.second().await?.running(Some(&key)).await?, running, "the running turn, its last sign of life too")?;
    let found = t.second().await?.verify(VerifyScope::Session(key.clone())).await?;
    same((found.records, found.damage), (verified.records, None), "what is verified")?;
    let receipt = t.store.end(end(begun.fence, "two")).await?;
    // A turn without a stream leaves the same.
    let twin = t.session("twin").await?;
    t.say(&twin, "one").await?;
    let plain = t.say(&twin, "two").await?;
    same(
        (receipt.point, receipt.digest),
        (plain.point, plain.digest),
        "the end, and the one of a turn without a stream",
    )
}

pub(super) async fn a_pack_has_a_limit(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    t.store.keep_chunks(pack(begun.fence, 0, 2)).await?;
    let huge = json(&format!("\"{}\"", "x".repeat(Limits::default().body)));
    let keep = |chunks| t.store.keep_chunks(KeepChunks::new(begun.fence, 2, chunks));
    refused(keep(vec![huge]).await, ErrorKind::TooLarge, "one huge chunk")?;
    let half = json(&format!("\"{}\"", "x".repeat(Limits::default().body / 2)));
    refused(keep(vec![half.clone(), half]).await, ErrorKind::TooLarge, "two large ones together")?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 2), "what the refusals left")?;
    t.store.keep_chunks(pack(begun.fence, 2, 3)).await?;
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "the turn still ends")
}

pub(super) async fn a_page_has_a_limit(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    refused(t.store.chunks(ChunkQuery::of(begun.turn).limit(0)).await, ErrorKind::Invalid, "a page of nothing")?;
    let many = MAX_PAGE as u64 + 7;
    t.store.keep_chunks(pack(begun.fence, 0, many)).await?;
    let first = page(&t, ChunkQuery::of(begun.turn).limit(usize::MAX)).await?;
    same((first.chunks.len(), first.more), (MAX_PAGE, true), "a page of very many")?;
    // Each of these is a page of its own if need be, and none is left out.
    let long: Vec<Json> = (0..4).map(|n| json(&format!("\"{n}{}\"", "x".repeat(3 << 20)))).collect();
    t.store.keep_chunks(KeepChunks::new(begun.fence, many, long.clone())).await?;
    let (mut found, mut pages) = (Vec::new(), 0);
    let mut seen = Position::new(1, many - 1);
    loop {
        let page = page(&t, ChunkQuery::of(begun.turn).after(seen)).await?;
        pages += 1;
        holds(pages <= 4, "there are no more pages than chunks")?;
        let last = page.chunks.last().map(|(position, _)| *position);
        found.extend(page.chunks.into_iter().map(|(_, chunk)| chunk));
        match last {
            Some(last) if page.more => seen = last,
            _ => break,
        }
    }
    holds(found == long, "long chunks are read back whole")?;
    holds(pages > 1, "twelve megabytes are not one page")
}

pub(super) async fn a_stream_is_bounded(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    let most = Limits::default().stream;
    let large = |n: u64| json(&format!("\"{n} {}\"", "x".repeat(most / 8)));
    for n in 0..6 {
        t.store.keep_chunks(KeepChunks::new(begun.fence, n, vec![large(n)])).await?;
    }
    same(page(&t, ChunkQuery::of(begun.turn).limit(1)).await?.dropped, false, "whether anything was dropped so far")?;
    for n in 6..20 {
        t.store.keep_chunks(KeepChunks::new(begun.fence, n, vec![large(n)])).await?;
    }
    let fresh = page(&t, ChunkQuery::of(begun.turn).limit(1)).await?;
    holds(fresh.dropped, "a reader from the start is told that the start is gone")?;
    let [(first, _)] = &fresh.chunks[..] else { return fail("there is nothing left") };
    holds((10..14).contains(&first.n), "about as much is kept as may be")?;
    // A reader before what is left goes on there, and is told; one that is not is told nothing.
    for n in [0, first.n - 2] {
        let behind = page(&t, ChunkQuery::of(begun.turn).after(Position::new(1, n)).limit(1)).await?;
        same(
            (behind.dropped, behind.chunks.first().map(|(p, _)| *p)),
            (true, Some(*first)),
            "a reader that is behind",
        )?;
    }
    let mut seen = Position::new(1, first.n - 1);
    for n in first.n..20 {
        let page = page(&t, ChunkQuery::of(begun.turn).after(seen).limit(1)).await?;
        same((page.dropped, page.more), (false, n < 19), "whether there is less, or more")?;
        holds(page.chunks == [(Position::new(1, n), large(n))], "the chunks that are left are whole and in order")?;
        seen = Position::new(1, n);
    }
    t.store.end(end(begun.fence, "x")).await?;
    let after = page(&t, ChunkQuery::of(begun.turn).limit(1)).await?;
    same((after.dropped, after.chunks.first().map(|(p, _)| *p)), (true, Some(*first)), "the same after the end")
}

pub(super) async fn a_position_that_is_not_there_is_refused(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let at = |attempt, n| ChunkQuery::of(begun.turn).after(Position::new(attempt, n));
    refused(t.store.chunks(at(1, 0)).await, ErrorKind::Invalid, "a place in an empty stream")?;
    t.store.keep_chunks(pack(begun.fence, 0, 3)).await?;
    for (attempt, n) in [(1, 3), (1, u64::MAX), (2, 0), (0, 0), (u64::MAX, 0)] {
        refused(t.store.chunks(at(attempt, n)).await, ErrorKind::Invalid, "a place that is not there")?;
    }
    let last = page(&t, at(1, 2)).await?;
    same((last.chunks, last.more, last.dropped), (Vec::new(), false, false), "what follows the last")?;
    t.store.end(end(begun.fence, "x")).await?;
    refused(t.store.chunks(at(1, 3)).await, ErrorKind::Invalid, "a place beyond the end of an ended stream")?;
    same(page(&t, at(1, 1)).await?.chunks, places(1, 2, 3), "what follows a place of an ended stream")
}

pub(super) async fn an_unknown_turn_is_not_found(t: Bench) -> Check {
    let key = t.session("s").await?;
    let receipt = t.say(&key, "one").await?;
    let begun = t.store.begin(turn(&key, "two")).await?.begun()?;
    let session = begun.turn.session();
    let nowhere = [
        TurnId::new(session + 1000, begun.point),
        TurnId::new(session, crate::Point::new(begun.point.seq() + 1)),
        // These are records, but no turn began there.
        TurnId::new(session, receipt.point),
        TurnId::new(session, crate::Point::new(1)),
    ];
    for turn in nowhere {
        refused(t.store.chunks(ChunkQuery::of(turn)).await, ErrorKind::NotFound, "the stream of an unknown turn")?;
    }
    Ok(())
}

pub(super) async fn a_reopened_store_has_its_streams(t: Bench) -> Check {
    let begun = streaming(&t, "s").await?;
    t.store.keep_chunks(pack(begun.fence, 0, 3)).await?;
    let ended = streaming(&t, "ended").await?;
    t.store.keep_chunks(pack(ended.fence, 0, 2)).await?;
    t.store.end(end(ended.fence, "x")).await?;
    t.store.reopen().await?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 3), "the stream of the running turn")?;
    same(page(&t, ChunkQuery::of(ended.turn)).await?.chunks, places(1, 0, 2), "the stream of the other")?;
    t.store.keep_chunks(pack(begun.fence, 3, 4)).await?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 4), "the stream as it goes on")
}
