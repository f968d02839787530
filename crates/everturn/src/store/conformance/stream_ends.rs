//! Streams: who may keep chunks, and when they go.

use std::time::Duration;

use super::bench::{Bench, end, failure, key, turn, turn_key};
use super::harness::GRACE;
use super::streams::{pack, page, places};
use super::verdict::{Check, Stop, holds, refused, same};
use crate::store::{At, ChunkPage, ChunkQuery, CreateSession, ForkSession, TurnRef};
use crate::{Begun, ErrorKind, Position, SessionKey, TurnId, TurnStatus};

/// A turn with three chunks.
async fn streamed(t: &Bench, key: &SessionKey) -> Check<Begun> {
    let begun = t.begin(key, "x").await?;
    t.store.keep_chunks(pack(begun.fence, 0, 2)).await?;
    t.store.keep_chunks(pack(begun.fence, 2, 3)).await?;
    Ok(begun)
}

pub(super) async fn who_may_not_write_may_not_stream(t: Bench) -> Check {
    let one = t.session("one").await?;
    let old = streamed(&t, &one).await?;
    t.outlive_leases();
    let new = t.store.take_over(old.turn).await?;
    refused(t.store.keep_chunks(pack(old.fence, 3, 4)).await, ErrorKind::Fenced, "the old attempt's chunks")?;
    refused(t.store.keep_chunks(pack(old.fence, 0, 1)).await, ErrorKind::Fenced, "the old attempt's chunks")?;
    t.store.keep_chunks(pack(new.fence, 0, 1)).await?;
    t.store.end(end(new.fence, "x")).await?;
    refused(t.store.keep_chunks(pack(new.fence, 1, 2)).await, ErrorKind::Fenced, "chunks after the end")?;
    same(page(&t, ChunkQuery::of(new.turn)).await?.chunks, places(2, 0, 1), "what the refusals left")?;

    let lost = streamed(&t, &one).await?;
    t.outlive_leases();
    t.say(&one, "another").await?;
    refused(t.store.keep_chunks(pack(lost.fence, 3, 4)).await, ErrorKind::Fenced, "chunks of who lost its branch")?;

    let two = t.session("two").await?;
    let aborted = streamed(&t, &two).await?;
    t.store.abort(TurnRef::Turn(aborted.turn)).await?;
    refused(t.store.keep_chunks(pack(aborted.fence, 3, 4)).await, ErrorKind::Aborted, "chunks after the abort")?;

    let deleted = streamed(&t, &two).await?;
    t.store.delete(&two).await?;
    let late = || t.store.keep_chunks(pack(deleted.fence, 3, 4));
    refused(late().await, ErrorKind::Deleted, "chunks after the deletion")?;
    t.store.create(CreateSession::at(two)).await?;
    refused(late().await, ErrorKind::Deleted, "chunks when the id exists again")
}

pub(super) async fn another_attempt_begins_with_an_empty_stream(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begin = || turn(&session, "x").key(turn_key("k"));
    let first = t.store.begin(begin()).await?.begun()?;
    t.store.keep_chunks(pack(first.fence, 0, 5)).await?;
    t.outlive_leases();
    let dead = page(&t, ChunkQuery::of(first.turn)).await?;
    same((dead.status, dead.chunks), (TurnStatus::Dead, places(1, 0, 5)), "a dead turn's stream")?;

    let second = t.store.begin(begin()).await?.begun()?;
    let query = || ChunkQuery::of(first.turn);
    for query in [query(), query().after(Position::new(1, 1)), query().after(Position::new(1, 4))] {
        let page = page(&t, query).await?;
        same((page.attempt, page.chunks, page.dropped), (2, Vec::new(), false), "the new attempt's stream")?;
    }
    t.store.keep_chunks(pack(second.fence, 0, 2)).await?;
    for query in [query(), query().after(Position::new(1, 1)), query().after(Position::new(1, 99))] {
        let page = page(&t, query).await?;
        same((page.attempt, page.chunks), (2, places(2, 0, 2)), "the new attempt's stream, for any reader of the old")?;
    }
    same(page(&t, query().after(Position::new(2, 0))).await?.chunks, places(2, 1, 2), "what follows a place in it")?;
    refused(t.store.chunks(query().after(Position::new(3, 0))).await, ErrorKind::Invalid, "an attempt to come")?;

    // Somebody else takes the branch: the attempt is void, and what it kept with it.
    t.outlive_leases();
    t.say(&session, "another").await?;
    let lost = page(&t, query()).await?;
    same((lost.attempt, lost.status, lost.chunks), (3, TurnStatus::Dead, Vec::new()), "who lost its branch")?;
    let third = t.store.take_over(first.turn).await?;
    same(third.fence.attempt(), 3, "the attempt after taking over")?;
    t.store.keep_chunks(pack(third.fence, 0, 1)).await?;
    t.store.end(end(third.fence, "x")).await?;
    let ended = page(&t, query().after(Position::new(2, 1))).await?;
    same((ended.attempt, ended.chunks), (3, places(3, 0, 1)), "the last attempt's stream, after the end")?;
    same(ended.status, TurnStatus::Completed, "its status")
}

pub(super) async fn a_page_says_how_the_turn_is(t: Bench) -> Check {
    let session = t.session("s").await?;
    let status = async |turn: TurnId| page(&t, ChunkQuery::of(turn)).await.map(|page| (page.status, page.chunks.len()));
    let completed = streamed(&t, &session).await?;
    same(status(completed.turn).await?, (TurnStatus::Running, 3), "a running turn")?;
    t.store.end(end(completed.fence, "x")).await?;
    same(status(completed.turn).await?, (TurnStatus::Completed, 3), "a completed turn")?;
    let failed = streamed(&t, &session).await?;
    t.store.end(failure(failed.fence, "x")).await?;
    same(status(failed.turn).await?, (TurnStatus::Failed, 3), "a failed turn")?;
    let aborted = streamed(&t, &session).await?;
    t.store.abort(TurnRef::Turn(aborted.turn)).await?;
    same(status(aborted.turn).await?, (TurnStatus::Aborted, 3), "an aborted turn")?;
    let dead = streamed(&t, &session).await?;
    t.outlive_leases();
    same(status(dead.turn).await?, (TurnStatus::Dead, 3), "a dead turn")
}

pub(super) async fn a_stream_outlives_its_turn_for_a_while(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = streamed(&t, &session).await?;
    t.store.end(end(begun.fence, "x")).await?;
    t.clock.advance(GRACE - Duration::from_micros(1));
    let still = page(&t, ChunkQuery::of(begun.turn)).await?;
    same((still.chunks, still.dropped), (places(1, 0, 3), false), "the stream shortly before its time is over")
}

pub(super) async fn a_stream_goes_when_its_time_is_over(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = streamed(&t, &session).await?;
    // However long it runs, what it kept stays.
    t.clock.advance(GRACE * 2);
    t.store.renew(&begun.fence).await?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 3), "the stream of a long turn")?;
    t.store.end(end(begun.fence, "x")).await?;
    t.clock.advance(GRACE);
    let query = || ChunkQuery::of(begun.turn);
    let gone = ChunkPage { chunks: Vec::new(), attempt: 1, status: TurnStatus::Completed, more: false, dropped: true };
    same(page(&t, query()).await?, gone.clone(), "the stream when its time is over")?;
    // What others keep now clears it away; the answers stay as they are.
    let next = streamed(&t, &session).await?;
    t.store.end(end(next.fence, "x")).await?;
    same(page(&t, query()).await?, gone.clone(), "the stream when others have been kept")?;
    same(page(&t, query().after(Position::new(1, 1))).await?, gone.clone(), "for a reader that has seen some")?;
    let all = ChunkPage { dropped: false, ..gone };
    same(
        page(&t, query().after(Position::new(1, 2))).await?,
        all,
        "for a reader that has seen all: it misses nothing",
    )?;
    refused(t.store.chunks(query().after(Position::new(1, 3))).await, ErrorKind::Invalid, "a place that never was")?;
    same(page(&t, ChunkQuery::of(next.turn)).await?.chunks, places(1, 0, 3), "the stream of the turn after it")
}

pub(super) async fn the_deleted_have_no_streams(t: Bench) -> Check {
    let session = t.session("s").await?;
    let ended = streamed(&t, &session).await?;
    t.store.end(end(ended.fence, "x")).await?;
    let running = streamed(&t, &session).await?;
    t.store.delete(&session).await?;
    let gone = async || {
        for turn in [ended.turn, running.turn] {
            let read = page(&t, ChunkQuery::of(turn)).await;
            refused(read, ErrorKind::NotFound, "the stream of a turn whose session is gone")?;
        }
        Ok::<_, Stop>(())
    };
    gone().await?;
    t.store.create(CreateSession::at(session.clone())).await?;
    gone().await?;
    let again = t.begin(&session, "x").await?;
    same(page(&t, ChunkQuery::of(again.turn)).await?.chunks, Vec::new(), "the stream of a turn under the same id")?;
    t.store.keep_chunks(pack(again.fence, 0, 1)).await?;
    t.store.purge(&session).await?;
    gone().await?;
    refused(page(&t, ChunkQuery::of(again.turn)).await, ErrorKind::NotFound, "the stream of a purged turn")
}

pub(super) async fn a_fork_has_no_streams(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = streamed(&t, &session).await?;
    t.store.end(end(begun.fence, "x")).await?;
    t.store.fork(ForkSession::at(At::head(session.clone())).id(key("fork").id)).await?;
    let own = t.begin(&key("fork"), "y").await?;
    let same_place = TurnId::new(own.turn.session(), begun.turn.begin());
    refused(page(&t, ChunkQuery::of(same_place)).await, ErrorKind::NotFound, "an inherited turn's stream")?;
    same(page(&t, ChunkQuery::of(begun.turn)).await?.chunks, places(1, 0, 3), "the original's stream")?;
    // The fork keeps the original's records, but not its streams.
    t.store.purge(&session).await?;
    refused(page(&t, ChunkQuery::of(begun.turn)).await, ErrorKind::NotFound, "the stream of a purged original")?;
    holds(t.store.end(end(own.fence, "y")).await?.on_head, "the fork goes on")
}
