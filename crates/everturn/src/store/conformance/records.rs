//! A session's log: every record, in order.

use super::bench::{Bench, edit, end, failure, key, step};
use super::verdict::{Check, holds, refused, same};
use crate::store::{EventQuery, RecordQuery, UpdateSession};
use crate::{ErrorKind, RecordKind};

pub(super) async fn sequence_numbers_start_at_one_and_never_repeat(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut points = vec![t.head(&key).await?];
    same(points[0].seq(), 1, "the first point")?;
    for round in 0..3 {
        let begun = t.begin(&key, "x").await?;
        points.push(begun.point);
        points.push(t.store.step(step(begun.fence, "half")).await?.point);
        points.push(t.store.end(end(begun.fence, "x")).await?.point);
        points.push(t.fail(&key, "y").await?.point);
        t.store.update(&key, UpdateSession::title(format!("round {round}"))).await?;
        points.push(t.store.commit(edit(&key, "z")).await?.point);
    }
    holds(points.is_sorted_by(|a, b| a < b), "every answer names a later point than the one before")?;
    let seqs: Vec<_> = t.records(&key).await?.iter().map(|record| record.seq).collect();
    same(seqs[0], 1, "the first record")?;
    holds(seqs.is_sorted_by(|a, b| a < b), "the log's numbers only grow")?;
    let events = t.query(EventQuery::of(key).with_voided()).await?;
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    holds(seqs.is_sorted_by(|a, b| a < b), "the events' numbers only grow")
}

pub(super) async fn the_log_says_what_each_record_is(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.store.step(step(begun.fence, "half")).await?;
    t.store.end(end(begun.fence, "x")).await?;
    t.fail(&key, "y").await?;
    t.store.update(&key, UpdateSession::title("t")).await?;
    t.store.commit(edit(&key, "z")).await?;
    let records = t.records(&key).await?;
    let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
    use RecordKind::{Admin, Begin, Edit, End, Step, Void};
    same(kinds, vec![Edit, Begin, Step, End, Begin, Void, Admin, Edit], "the kinds of records")?;
    let voided: Vec<_> = records.iter().map(|record| record.voided).collect();
    same(voided[..4].iter().any(|v| *v), false, "whether the completed turn is void")?;
    holds(voided[4], "the failed turn's records are void")?;
    same(records[1].turn, Some(begun.turn), "the turn of a begin")?;
    same(records[3].attempt, Some(1), "the attempt of an end")?;
    same((records[6].segment, records[6].turn), (0, None), "segment and turn of an admin record")?;
    holds(records[1].segment != 0, "a turn's records belong to a segment")
}

pub(super) async fn the_log_keeps_void_records(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "lost").await?;
    t.store.step(step(begun.fence, "half")).await?;
    t.store.end(failure(begun.fence, "lost")).await?;
    t.say(&key, "kept").await?;
    let records = t.records(&key).await?;
    let of_turn: Vec<_> = records.iter().filter(|record| record.turn == Some(begun.turn)).collect();
    let kinds: Vec<_> = of_turn.iter().map(|record| record.kind).collect();
    same(kinds, vec![RecordKind::Begin, RecordKind::Step, RecordKind::Void], "the records of the void turn")?;
    holds(of_turn[..2].iter().all(|record| record.voided), "they are marked void")?;
    holds(of_turn[1].body.as_str().contains("half"), "they still say what happened")?;
    let kept = records.iter().filter(|record| record.turn.is_some_and(|turn| turn != begun.turn));
    holds(kept.clone().count() == 2 && kept.clone().all(|record| !record.voided), "the completed turn is not marked")
}

pub(super) async fn the_log_is_read_in_pages(t: Bench) -> Check {
    let session = t.session("s").await?;
    for i in 0..5 {
        t.say(&session, &i.to_string()).await?;
        t.store.update(&session, UpdateSession::title(i.to_string())).await?;
    }
    let all = t.records(&session).await?;
    same(all.len(), 16, "the number of records")?;
    for limit in [1, 4, 16, 100] {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let query = RecordQuery::of(session.clone()).after(after).limit(limit);
            let page = t.second().await?.records(query).await?;
            holds(page.items.len() <= limit, "a page has at most as many as were asked for")?;
            let Some(last) = page.items.last() else { break };
            after = last.seq;
            found.extend(page.items);
        }
        same(&found, &all, "all pages together")?;
    }
    let unknown = RecordQuery::of(key("unknown"));
    refused(t.store.records(unknown).await, ErrorKind::NotFound, "the log of an unknown session")
}

pub(super) async fn the_log_is_the_same_for_everybody(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "x").await?;
    t.store.step(step(begun.fence, "half")).await?;
    t.store.end(end(begun.fence, "x")).await?;
    let own = t.store.records(RecordQuery::of(session.clone())).await?.items;
    same(t.records(&session).await?, own, "the log as another handle reads it")
}
