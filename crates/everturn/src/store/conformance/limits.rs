//! Bad input, and too much of it.

use super::bench::{Bench, answer, end, invocation, json, turn};
use super::verdict::{Check, holds, refused, same};
use crate::store::{
    BeginTurn, CreateSession, EndTurn, EventQuery, Limits, ListSnapshots, MemoryStore, RecordQuery, Start, StepTurn,
    Store, UpdateSession,
};
use crate::{
    Artifact, Changes, ErrorKind, Event, Exporter, Importer, Input, Json, Message, Part, Result, ToolEntry, ToolPhase,
};

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

/// Whether a write was made. One that was not was refused for what it holds.
fn taken<T>(outcome: Result<T>) -> Check<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) => {
            same(error.kind(), ErrorKind::Invalid, "why it was refused")?;
            holds(error.to_string().contains("levels"), "the refusal names the limit")?;
            Ok(false)
        }
    }
}

pub(super) async fn what_is_kept_can_be_taken_out_however_deep(t: Bench) -> Check {
    let read = |text: &str| serde_json::from_str::<Json>(text).map_err(|_| crate::Error::invalid("too many levels"));
    let mut kept = 0;
    for depth in (20..140).step_by(3) {
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let Ok(deep) = read(&deep) else { continue };
        let members = read(&format!("{{\"k\":{deep}}}")).ok();
        let said = members.as_ref().map(|members| {
            Message::from_json(read(&format!(r#"{{"role":"user","content":[],"metadata":{members}}}"#))?)
        });
        let said = said.and_then(Result::ok).unwrap_or_else(|| Message::user("plain"));

        let session = super::bench::key(&format!("at-{depth}"));
        let create = CreateSession::at(session.clone());
        if !taken(t.store.create(create.clone().state("k", deep.clone())).await)? {
            t.store.create(create).await?;
        }
        if let Some(members) = members.clone() {
            let with = CreateSession::at(super::bench::key(&format!("with-{depth}"))).metadata(members);
            taken(t.store.create(with).await)?;
        }
        taken(t.store.update(&session, UpdateSession::metadata("k", deep.clone())).await)?;
        let mut input = Input::messages([said.clone()]);
        input.data = Some(deep.clone());
        let turn = BeginTurn::new(Start::Session(session.clone()), invocation("i"), input);
        let begun = match t.store.begin(turn).await {
            Ok(begun) => begun.begun()?,
            refused => {
                taken(refused)?;
                t.begin(&session, "plain").await?
            }
        };
        let ledger = ToolEntry::new("1", "t", ToolPhase::Finished, Some(deep.clone()));
        taken(t.store.step(StepTurn::new(begun.fence, Changes::new().tool(ledger))).await)?;
        let long = json(&format!("{{\"text\":\"{}\",\"k\":0}}", "x".repeat(2_000)));
        t.store.step(StepTurn::new(begun.fence, Changes::new().custom(long.clone()))).await?;
        // As a difference it would be nested deeper than as a whole.
        if let Ok(deeper) = read(&long.as_str().replace(":0}", &format!(":{deep}}}"))) {
            taken(t.store.step(StepTurn::new(begun.fence, Changes::new().custom(deeper))).await)?;
        }
        let artifact = Artifact::new("a", vec![Part::data(&deep)]);
        let all = Changes::new().event(Event::model("m", said)).artifact(artifact);
        if taken(t.store.end(EndTurn::completed(begun.fence, all)).await)? {
            kept += 1;
        } else {
            t.store.end(end(begun.fence, "plain")).await?;
        }

        let mut exporter = Exporter::new(t.second().await?, session.clone());
        let mut importer = Importer::new(1 << 20);
        while let Some(piece) = exporter.next().await? {
            importer.push(piece.as_bytes())?;
        }
        let elsewhere = MemoryStore::new();
        elsewhere.import(importer.finish(session.clone())?).await?;
        let state = elsewhere.state(crate::store::At::head(session.clone())).await?;
        same(state.map(|state| state.digest()), Some(t.state(&session).await?.digest()), "the state elsewhere")?;
    }
    holds((25..39).contains(&kept), "what is nested up to some hundred levels is kept, and more is not")
}
