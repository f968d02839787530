//! Bad input, and too much of it.

use super::bench::{Bench, answer, end, invocation, json, turn};
use super::verdict::{Check, holds, refused, same};
use crate::store::{
    BeginTurn, CreateSession, EndTurn, EventQuery, Limits, ListSnapshots, RecordQuery, Start, StepTurn,
};
use crate::{Artifact, Changes, ErrorKind, Event, Input, Message, Part, ToolEntry, ToolPhase};

pub(super) async fn a_long_message_goes_through(t: Bench) -> Check {
    let key = t.session("s").await?;
    let long = "long ".repeat(400_000);
    let input = Input::text(&long);
    let begin = BeginTurn::new(Start::Session(key.clone()), invocation("i"), input);
    let begun = t.store.begin(begin).await?.begun()?;
    t.store.end(EndTurn::completed(begun.fence, answer(&long))).await?;
    let state = t.state(&key).await?;
    same(state.messages().len(), 2, "the messages")?;
    holds(state.messages().iter().all(|message| message.text() == long), "they say all that was said")?;
    let listed = t.second().await?.list(crate::store::ListSessions::default()).await?;
    same(listed.items.len(), 1, "the sessions listed")
}

pub(super) async fn a_record_has_a_limit(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let before = t.footprint(&key).await?;
    let huge = answer(&"x".repeat(Limits::default().body + 1));
    refused(t.store.step(StepTurn::new(begun.fence, huge.clone())).await, ErrorKind::TooLarge, "a huge step")?;
    refused(t.store.end(EndTurn::completed(begun.fence, huge.clone())).await, ErrorKind::TooLarge, "a huge end")?;
    let artifact = Artifact::new("a", vec![Part::text("x".repeat(Limits::default().body + 1))]);
    let ending = EndTurn::completed(begun.fence, Changes::new().artifact(artifact));
    refused(t.store.end(ending).await, ErrorKind::TooLarge, "a huge artifact")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "the turn still ends")?;
    let mut commit = super::bench::edit(&key, "");
    commit.changes = huge;
    refused(t.store.commit(commit).await, ErrorKind::TooLarge, "a huge edit")?;
    let begin = BeginTurn::new(
        Start::Session(key.clone()),
        invocation("i"),
        Input::text("x".repeat(Limits::default().body + 1)),
    );
    refused(t.store.begin(begin).await, ErrorKind::TooLarge, "a huge input")?;
    holds(t.say(&key, "y").await?.on_head, "a refused begin holds no lease")
}

pub(super) async fn custom_state_has_a_limit(t: Bench) -> Check {
    let key = t.session("s").await?;
    let of = |bytes: usize| json(&format!("\"{}\"", "x".repeat(bytes - 2)));
    let most = Limits::default().custom;
    let begun = t.begin(&key, "x").await?;
    let before = t.footprint(&key).await?;
    let ending = |bytes| EndTurn::completed(begun.fence, Changes::new().custom(of(bytes)));
    refused(t.store.end(ending(most + 1)).await, ErrorKind::TooLarge, "one byte too many")?;
    same(t.footprint(&key).await?, before, "what the refusal left")?;
    t.store.end(ending(most)).await?;
    same(t.custom(&key).await?.map(|custom| custom.as_str().len()), Some(most), "the length of the largest")?;
    let create = CreateSession::at(super::bench::key("t")).state("k", of(most));
    refused(t.store.create(create).await, ErrorKind::TooLarge, "initial state of too many bytes")?;
    same(t.second().await?.session(&super::bench::key("t")).await?, None, "what the refusal created")
}

pub(super) async fn state_grows_key_by_key_up_to_its_limit(t: Bench) -> Check {
    let key = t.session("s").await?;
    let value = format!("\"{}\"", "x".repeat(300 << 10));
    for i in 0..3 {
        t.change(&key, super::bench::set(super::bench::delta(&format!("k{i}"), &value))).await?;
    }
    let begun = t.begin(&key, "x").await?;
    let ending = EndTurn::completed(begun.fence, super::bench::set(super::bench::delta("k3", &value)));
    refused(t.store.end(ending).await, ErrorKind::TooLarge, "the key that goes over the limit")?;
    holds(t.store.end(end(begun.fence, "x")).await?.on_head, "the turn still ends")
}

pub(super) async fn a_page_of_nothing_is_refused(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    refused(t.store.events(EventQuery::of(key.clone()).limit(0)).await, ErrorKind::Invalid, "no events")?;
    refused(t.store.records(RecordQuery::of(key.clone()).limit(0)).await, ErrorKind::Invalid, "no records")?;
    refused(t.store.snapshots(ListSnapshots::of(key.clone()).limit(0)).await, ErrorKind::Invalid, "no snapshots")?;
    let page = t.store.events(EventQuery::of(key).limit(usize::MAX)).await?;
    same(page.items.len(), 2, "a page of very many")
}

pub(super) async fn a_refused_end_can_be_corrected(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    t.store.step(super::bench::step(begun.fence, "half")).await?;
    let nameless = ToolEntry::new("", "", ToolPhase::Started, None);
    let wrong = [
        Changes::new().tool(nameless),
        Changes::new().splice(99, vec![]),
        Changes::new().custom(json(r#"{"user:k":1}"#)),
        Changes::new().artifact(Artifact::new("", vec![])),
    ];
    for changes in wrong {
        let ending = EndTurn::completed(begun.fence, changes.clone());
        refused(t.store.end(ending).await, ErrorKind::Invalid, "a wrong end")?;
        refused(t.store.step(StepTurn::new(begun.fence, changes)).await, ErrorKind::Invalid, "a wrong step")?;
    }
    same(t.second().await?.running(Some(&key)).await?.len(), 1, "the running turns: it is still one of them")?;
    t.store.end(end(begun.fence, "x")).await?;
    same(t.texts(&key).await?, ["x", "half", "re: x"].map(String::from).to_vec(), "what was said")
}

pub(super) async fn a_refused_begin_leaves_nothing(t: Bench) -> Check {
    let session = super::bench::key("s");
    let create = CreateSession::at(session.clone());
    let begin = |delta| {
        let start = Start::OpenOrCreate(Box::new(create.clone()));
        BeginTurn::new(start, invocation("i"), Input::text("x").with_state(delta))
    };
    let wrong = begin(super::bench::delta("user:", "1"));
    refused(t.store.begin(wrong).await, ErrorKind::Invalid, "an input with a key that has no name")?;
    same(t.second().await?.session(&session).await?, None, "what the refusal created")?;
    let right = t.store.begin(begin(super::bench::delta("k", "1"))).await?.begun()?;
    t.store.end(end(right.fence, "x")).await?;
    same(t.custom(&session).await?, Some(json(r#"{"k":1}"#)), "the state")?;
    refused(t.store.begin(turn(&session, "y").expect(crate::Point::new(77))).await, ErrorKind::Conflict, "a conflict")?;
    same(t.record(&session).await?.turns, 1, "the turns")
}

pub(super) async fn many_small_events_fit_one_record(t: Bench) -> Check {
    let key = t.session("s").await?;
    let event = |i: usize| Event::user(Message::user(i.to_string()));
    let changes = (0..2000).fold(Changes::new(), |changes, i| changes.event(event(i)));
    t.change(&key, changes).await?;
    let mut found = Vec::new();
    let mut next = EventQuery::of(key.clone()).limit(1000);
    loop {
        let page = t.second().await?.events(next).await?;
        found.extend(super::bench::said(&page.items));
        match page.next {
            Some(cursor) => next = EventQuery::of(key.clone()).limit(1000).from(cursor),
            None => break,
        }
    }
    same(found, (0..2000).map(|i| i.to_string()).collect::<Vec<_>>(), "what all pages say")?;
    t.say(&key, "more").await?;
    same(t.texts(&key).await?.len(), 2002, "the messages after another turn")
}
