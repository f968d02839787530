//! Reading events: what they hold, and which of them are read.

use std::time::Duration;

use super::bench::{Bench, answer, delta, edit, end, invocation, json, said, step, told, turn, turn_at};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, Cursor, EndTurn, EventQuery};
use crate::{Changes, Clock, ErrorKind, Event, EventId, EventKind, Message, SessionKey, StateDelta, Timestamp, Usage};

fn full_event(at: Timestamp) -> crate::Result<Event> {
    let mut event = Event::model("helper", Message::model("with everything"))
        .with_id(EventId::new("my own id")?)
        .with_time(at)
        .with_usage(Usage::tokens(1, 1))
        .with_state(StateDelta::new().set("user:k2", json("\"v2\"")).set("k", json("null")).remove("app:gone"));
    event.invocation_id = Some(invocation("another invocation"));
    event.path = "planner.researcher".into();
    event.kind = EventKind::ToolCall;
    event.actions.skip_summarization = true;
    event.actions.transfer_to_agent = Some("researcher".into());
    event.actions.escalate = true;
    event.actions.requested_tool_confirmations = [("call".to_owned(), json(r#"{"hint":"sure?"}"#))].into();
    event.long_running_tool_ids = vec!["tool123".into()];
    event.error_code = Some("E1".into());
    event.error_message = Some("broken".into());
    event.metadata = Some(json(r#"{"groundingMetadata":{"searchEntryPoint":{"sdkBlob":"aGk="}},"n":1.10}"#));
    Ok(event)
}

pub(super) async fn an_event_is_read_back_whole(t: Bench) -> Check {
    let key = t.session("s").await?;
    let wanted = full_event(t.clock.now().plus(Duration::from_micros(1)))?;
    t.change(&key, Changes::new().event(wanted.clone())).await?;
    let mut found = there(t.events(&key).await?.pop(), "the event")?;
    holds(found.seq > 0, "the store says where it stands")?;
    same(found.turn_index, Some(0), "the turn it belongs to")?;
    (found.seq, found.turn_index) = (0, None);
    same(found, wanted, "the event as it was given")
}

pub(super) async fn the_store_fills_in_what_was_left_out(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.clock.advance(Duration::from_secs(1));
    t.store.step(step(begun.fence, "half")).await?;
    t.store.end(EndTurn::completed(begun.fence, answer("a").event(Event::new("b")))).await?;
    let mut commit = edit(&key, "noted");
    commit.invocation = Some(invocation("of the edit"));
    t.store.commit(commit).await?;
    let events = t.events(&key).await?;
    same(events.len(), 5, "the number of events")?;
    let mut ids: Vec<_> = events.iter().filter_map(|event| event.id.clone()).collect();
    ids.sort();
    ids.dedup();
    same(ids.len(), 5, "the number of distinct ids")?;
    for event in &events[..4] {
        same(event.invocation_id.clone(), Some(invocation("invocation of x")), "the invocation")?;
    }
    same(events[4].invocation_id.clone(), Some(invocation("of the edit")), "the edit's invocation")?;
    same(events[0].author.as_str(), "user", "the author of the input")?;
    same(events[0].at.map(|at| at.plus(Duration::from_secs(1))), events[1].at, "the times")?;
    same(events[1].at, Some(t.clock.now()), "the time of a step's event")?;
    same(t.events(&key).await?, events, "the same events read again")
}

pub(super) async fn events_keep_the_order_they_were_written_in(t: Bench) -> Check {
    let key = t.session("s").await?;
    let times = ["2026-10-25T00:30:00.123456Z", "2026-10-25T01:30:00Z", "2025-01-01T00:00:00Z", "1969-12-31T23:59:59Z"];
    for (i, time) in times.iter().enumerate() {
        let event = Event::user(Message::user(i.to_string())).with_time(time.parse()?);
        t.change(&key, Changes::new().event(event.clone()).event(event)).await?;
    }
    let events = t.events(&key).await?;
    same(said(&events), ["0", "0", "1", "1", "2", "2", "3", "3"].map(String::from).to_vec(), "their order")?;
    for (i, time) in times.iter().enumerate() {
        same(events[2 * i].at, Some(time.parse()?), "their exact times")?;
    }
    Ok(())
}

/// Five events, a second apart.
async fn five(t: &Bench) -> Check<(SessionKey, Timestamp)> {
    let key = t.session("s").await?;
    let start: Timestamp = "2025-01-01T00:00:00Z".parse()?;
    for i in 1..=5 {
        let time = start.plus(Duration::from_secs(i));
        let event = Event::user(Message::user(format!("e{i}"))).with_time(time);
        t.change(&key, Changes::new().event(event)).await?;
    }
    Ok((key, start))
}

async fn picked(t: &Bench, query: EventQuery) -> Check<Vec<String>> {
    Ok(said(&t.query(query).await?))
}

fn names(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|i| format!("e{i}")).collect()
}

pub(super) async fn a_tail_is_the_last_so_many(t: Bench) -> Check {
    let (key, _) = five(&t).await?;
    let all = || EventQuery::of(key.clone());
    same(picked(&t, all()).await?, names(1..=5), "all of them")?;
    same(picked(&t, all().tail(3)).await?, names(3..=5), "the last three")?;
    same(picked(&t, all().tail(5)).await?, names(1..=5), "the last five")?;
    same(picked(&t, all().tail(100)).await?, names(1..=5), "the last hundred")?;
    same(picked(&t, all().tail(1)).await?, names(5..=5), "the last one")
}

pub(super) async fn a_tail_of_none_is_none(t: Bench) -> Check {
    let (key, _) = five(&t).await?;
    same(picked(&t, EventQuery::of(key).tail(0)).await?, vec![], "the last none")
}

pub(super) async fn a_tail_counts_events_inside_records(t: Bench) -> Check {
    let (key, _) = five(&t).await?;
    let changes = (6..=9).fold(Changes::new(), |changes, i| changes.event(Event::user(Message::user(format!("e{i}")))));
    t.change(&key, changes).await?;
    t.fail(&key, "lost").await?;
    for count in 1..=9_u32 {
        let query = EventQuery::of(key.clone()).tail(usize::try_from(count).unwrap_or(0));
        same(picked(&t, query).await?, names(10 - count..=9), "the last so many")?;
    }
    let voided = EventQuery::of(key).tail(3).with_voided();
    let head = picked(&t, voided).await?;
    same(head.len(), 3, "the last three with void ones")
}

pub(super) async fn a_time_is_inclusive(t: Bench) -> Check {
    let (key, start) = five(&t).await?;
    let since = |seconds| EventQuery::of(key.clone()).since(start.plus(Duration::from_secs(seconds)));
    same(picked(&t, since(2)).await?, names(2..=5), "those since the second")?;
    same(picked(&t, since(4)).await?, names(4..=5), "those since the fourth")?;
    same(picked(&t, since(0)).await?, names(1..=5), "those since before")?;
    same(picked(&t, since(100)).await?, vec![], "those since long after")
}

pub(super) async fn the_tail_is_taken_before_the_time(t: Bench) -> Check {
    let (key, start) = five(&t).await?;
    let both = |tail, seconds| EventQuery::of(key.clone()).tail(tail).since(start.plus(Duration::from_secs(seconds)));
    same(picked(&t, both(2, 1)).await?, names(4..=5), "the last two, since the first")?;
    same(picked(&t, both(3, 4)).await?, names(4..=5), "the last three, since the fourth")?;
    // Out of order: the last one is the oldest.
    let early = Event::user(Message::user("early")).with_time(start);
    t.change(&key, Changes::new().event(early)).await?;
    same(picked(&t, both(2, 1)).await?, names(5..=5), "the last two, of which one is too old")
}

pub(super) async fn sequence_numbers_cut_out_a_stretch(t: Bench) -> Check {
    let (key, _) = five(&t).await?;
    let seqs: Vec<_> = t.events(&key).await?.iter().map(|event| event.seq).collect();
    let stretch = |after, until| {
        let mut query = EventQuery::of(key.clone());
        (query.after, query.until) = (after, until);
        query
    };
    same(picked(&t, stretch(Some(seqs[1]), None)).await?, names(3..=5), "those after the second")?;
    same(picked(&t, stretch(None, Some(seqs[1]))).await?, names(1..=2), "those up to the second")?;
    same(picked(&t, stretch(Some(seqs[0]), Some(seqs[3]))).await?, names(2..=4), "those in between")?;
    same(picked(&t, stretch(Some(seqs[4]), None)).await?, vec![], "those after the last")
}

pub(super) async fn pages_neither_repeat_nor_hide_events(t: Bench) -> Check {
    let (key, start) = five(&t).await?;
    let many = (6..=8).fold(Changes::new(), |changes, i| changes.event(Event::user(Message::user(format!("e{i}")))));
    let last = t.change(&key, many).await?.point;
    let queries = [
        (EventQuery::of(key.clone()), names(1..=8)),
        (EventQuery::of(key.clone()).tail(6), names(3..=8)),
        (EventQuery::of(key.clone()).since(start.plus(Duration::from_secs(3))), names(3..=8)),
    ];
    for limit in [1, 2, 3, 8] {
        for (query, wanted) in &queries {
            let mut found = page_through(&t, &key, query.clone().limit(limit)).await?;
            found.retain(|text| text != "meanwhile");
            same(&found, wanted, "all pages together")?;
            t.rewind(&key, last).await?;
        }
    }
    let wrong = EventQuery::of(key).from(Cursor::from_text("not a cursor"));
    refused(t.store.events(wrong).await, ErrorKind::Invalid, "what is no cursor")
}

/// Reads page by page, while others write.
async fn page_through(t: &Bench, key: &SessionKey, query: EventQuery) -> Check<Vec<String>> {
    let mut found = Vec::new();
    let mut next = query.clone();
    loop {
        let page = t.second().await?.events(next).await?;
        holds(page.items.len() <= query.limit, "a page has at most as many as were asked for")?;
        found.extend(said(&page.items));
        t.store.commit(edit(key, "meanwhile")).await?;
        match page.next {
            Some(cursor) => next = query.clone().from(cursor),
            None => return Ok(found),
        }
    }
}

pub(super) async fn events_are_read_along_any_line(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, receipt) = t.snap(&key, "base").await?;
    t.say(&key, "main").await?;
    let side = t.branch_off(&key, "side", receipt.point).await?;
    let on_side = t.run(turn(&key, "side").branch(side.clone()), "side").await?;
    let places = [
        (At::head(key.clone()), told(&["base", "main"])),
        (At::Head(key.clone(), side), told(&["base", "side"])),
        (At::Snapshot(base), told(&["base"])),
        (At::Point(key.clone(), on_side.point), told(&["base", "side"])),
    ];
    for (at, wanted) in places {
        same(picked(&t, EventQuery::at(at)).await?, wanted, "what was said along the line")?;
    }
    t.run(turn_at(base, "again"), "again").await?;
    same(picked(&t, EventQuery::of(key.clone())).await?, told(&["base", "again"]), "what was said along the new line")?;
    let nowhere = EventQuery::at(At::Snapshot(t.snapshot_id()));
    refused(t.store.events(nowhere).await, ErrorKind::NotFound, "the events of an unknown place")
}

pub(super) async fn filters_do_not_change_the_state(t: Bench) -> Check {
    let (key, _) = five(&t).await?;
    let before = t.state(&key).await?.digest();
    t.store.events(EventQuery::of(key.clone()).tail(1)).await?;
    same(t.store.state(At::head(key.clone())).await?.map(|state| state.digest()), Some(before), "the digest")?;
    same(t.texts(&key).await?, names(1..=5), "what was said")
}

pub(super) async fn temporary_keys_are_not_in_events(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mixed = || delta("temp:t", "1").set("kept", json("2")).remove("temp:gone");
    let mut begin = turn(&key, "x");
    begin.input = begin.input.with_state(mixed());
    let begun = t.store.begin(begin).await?.begun()?;
    let event = || Event::new("m").with_state(mixed());
    t.store.step(crate::store::StepTurn::new(begun.fence, Changes::new().event(event()))).await?;
    t.store.end(EndTurn::completed(begun.fence, Changes::new().event(event())).scopes(mixed())).await?;
    let mut commit = edit(&key, "noted");
    commit.changes = Changes::new().event(event());
    t.store.commit(commit).await?;
    for event in t.events(&key).await? {
        let keys = event.state_delta.keys().chain(&event.state_removed);
        holds(keys.clone().all(|key| !key.starts_with("temp:")), "no event carries a temp: key")?;
        same(event.state_delta.get("kept"), Some(&json("2")), "the other key")?;
    }
    same(t.custom(&key).await?, Some(json(r#"{"kept":2}"#)), "the custom state")?;
    let bodies = t.records(&key).await?;
    holds(bodies.iter().all(|record| !record.body.as_str().contains("temp:")), "no record carries one")
}

pub(super) async fn an_end_without_events_says_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.store.end(end(begun.fence, "x")).await?;
    t.change(&key, Changes::new().custom(json("{}"))).await?;
    same(t.events(&key).await?.len(), 2, "the number of events")
}
