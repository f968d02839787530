//! Turns that complete: begin, steps, end.

use std::time::Duration;

use super::bench::{
    Bench, answer, delta, edit, end, failure, invocation, iteration, json, key, said, set, step, texts, told, turn,
    turn_from,
};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, BeginTurn, Busy, CreateSession, EndTurn, Start, StepTurn, UpdateSession};
use crate::{
    AgentName, Artifact, Changes, EndStatus, ErrorKind, Event, FinishReason, Input, Message, NewSnapshot, Outcome,
    SessionStatus, SnapshotEvent, ToolEntry, ToolPhase, TurnError, TurnStatus, Usage,
};

pub(super) async fn a_turn_adds_its_input_and_its_answer(t: Bench) -> Check {
    let key = t.session("s").await?;
    let receipt = t.say(&key, "hello").await?;
    holds(receipt.on_head, "a leaseholder's turn ends on the head")?;
    let state = t.state(&key).await?;
    same(texts(&state), told(&["hello"]), "what was said")?;
    same((state.point(), state.digest()), (receipt.point, receipt.digest), "where and what the receipt says it is")?;
    let session = t.record(&key).await?;
    same((session.head, session.turns), (receipt.point, 1), "head and turns")?;
    same(session.status, SessionStatus::Idle, "the status after the turn")
}

pub(super) async fn turns_follow_each_other_in_order(t: Bench) -> Check {
    let key = t.session("s").await?;
    let words = ["one", "two", "three", "four", "five"];
    for word in words {
        t.say(&key, word).await?;
    }
    same(t.texts(&key).await?, told(&words), "what was said")?;
    same(t.record(&key).await?.turns, 5, "the number of turns")?;
    same(said(&t.events(&key).await?), told(&words), "what the events say")
}

pub(super) async fn a_begun_turn_is_visible_everywhere(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begin = turn(&key, "hello").agent(AgentName::new("helper")?);
    let begun = t.store.begin(begin).await?.begun()?;
    let store = t.second().await?;
    same(there(store.session(&key).await?, "the session")?.status, SessionStatus::Running, "its status")?;
    let running = store.running(Some(&key)).await?;
    same(running.len(), 1, "the number of running turns")?;
    same((running[0].turn, running[0].status), (begun.turn, TurnStatus::Running), "the running turn")?;
    same((running[0].attempt, running[0].leased), (1, true), "its attempt and lease")?;
    same(running[0].agent.as_ref().map(AgentName::as_str), Some("helper"), "its agent")?;
    let found = there(store.turn(begun.turn).await?, "the turn")?;
    same((found.status, found.session), (TurnStatus::Running, key.clone()), "the turn's status and session")?;
    same(found.input, Input::text("hello"), "what it was given")?;
    same(found.invocation, invocation("invocation of hello"), "its invocation")?;
    same(store.running(None).await?.len(), 1, "the running turns of all sessions")
}

pub(super) async fn an_input_is_kept_whole(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut input = Input::messages([Message::user("one"), Message::user("two")]);
    input.data = Some(json(r#"{"n":1.10}"#));
    input.resume = Some(json("[]"));
    input.detach = true;
    input.state_delta = delta("k", "1");
    let begin = BeginTurn::new(Start::Session(key.clone()), invocation("i"), input.clone());
    let begun = t.store.begin(begin).await?.begun()?;
    same(
        there(t.second().await?.turn(begun.turn).await?, "the turn")?.input,
        input.clone(),
        "the running turn's input",
    )?;
    t.store.end(end(begun.fence, "x")).await?;
    same(there(t.second().await?.turn(begun.turn).await?, "the turn")?.input, input, "the ended turn's input")
}

pub(super) async fn the_head_stays_until_the_end(t: Bench) -> Check {
    let key = t.session("s").await?;
    let before = t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    same(begun.from, before.point, "where the turn started")?;
    let stepped = t.store.step(step(begun.fence, "half")).await?;
    holds(!stepped.on_head, "a step does not move the head")?;
    same(t.head(&key).await?, before.point, "the head while the turn runs")?;
    same(t.texts(&key).await?, told(&["one"]), "what is at the head while the turn runs")?;
    same(said(&t.events(&key).await?), told(&["one"]), "the events up to the head while the turn runs")?;
    let ended = t.store.end(end(begun.fence, "two")).await?;
    same(t.head(&key).await?, ended.point, "the head after the end")
}

pub(super) async fn points_inside_a_turn_are_readable(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "question").await?;
    let stepped = t.store.step(step(begun.fence, "half")).await?;
    let ended = t.store.end(end(begun.fence, "question")).await?;
    let at = |point| At::Point(key.clone(), point);
    same(t.texts_at(at(begun.point)).await?, vec!["question".to_owned()], "what was said after the begin")?;
    same(t.texts_at(at(stepped.point)).await?, ["question", "half"].map(String::from).to_vec(), "after the step")?;
    let whole = ["question", "half", "re: question"].map(String::from).to_vec();
    same(t.texts_at(at(ended.point)).await?, whole, "after the end")?;
    same(t.state_at(at(stepped.point)).await?.digest(), stepped.digest, "the digest on the step's receipt")
}

pub(super) async fn a_record_changes_things_in_a_fixed_order(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let changes = answer("new").splice(1, vec![Message::user("spliced")]).event(Event::user(Message::user("last")));
    t.change(&key, changes).await?;
    let wanted = ["one", "spliced", "new", "last"].map(String::from).to_vec();
    same(t.texts(&key).await?, wanted, "the splice first, then the events in order")
}

pub(super) async fn a_turn_knows_where_it_started(t: Bench) -> Check {
    let key = t.session("s").await?;
    let root = t.head(&key).await?;
    let one = t.begin(&key, "one").await?;
    let from = async |turn| Check::Ok(there(t.second().await?.turn(turn).await?, "the turn")?.from);
    same(from(one.turn).await?, root, "where a running turn started")?;
    t.store.step(step(one.fence, "on its way")).await?;
    let ended = t.store.end(end(one.fence, "one")).await?;
    same(from(one.turn).await?, root, "where the first turn started")?;
    let lost = t.begin(&key, "lost").await?;
    t.store.end(failure(lost.fence, "lost")).await?;
    let edited = t.store.commit(edit(&key, "edit")).await?;
    let two = t.begin(&key, "two").await?;
    t.store.end(end(two.fence, "two")).await?;
    let side = t.store.begin(turn_from(&key, ended.point, "side")).await?.begun()?;
    t.store.end(end(side.fence, "side")).await?;
    let found = [from(lost.turn).await?, from(two.turn).await?, from(side.turn).await?];
    same(
        found,
        [ended.point, edited.point, ended.point],
        "where a void turn, one after an edit and a side line started",
    )
}

pub(super) async fn turns_are_counted_along_the_line(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut indexes = Vec::new();
    for round in 0..3 {
        let begun = t.begin(&key, "x").await?;
        indexes.push(begun.turn_index);
        t.store.end(end(begun.fence, "x")).await?;
        if round == 0 {
            let lost = t.begin(&key, "y").await?;
            indexes.push(lost.turn_index);
            t.store.end(failure(lost.fence, "y")).await?;
        }
    }
    same(indexes, vec![0, 1, 1, 2], "the turns' indexes; a failed one is not counted")?;
    same(t.state(&key).await?.turns(), 3, "the turns along the line")?;
    let events: Vec<_> = t.events(&key).await?.iter().map(|event| event.turn_index).collect();
    same(events, [0, 0, 1, 1, 2, 2].map(Some).to_vec(), "the turns that events belong to")
}

pub(super) async fn opportunities_count_whether_taken_or_not(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    same(begun.index, 0, "the first index")?;
    t.store.step(step(begun.fence, "no opportunity")).await?;
    t.store.step(step(begun.fence, "not taken").event(SnapshotEvent::ToolIterationEnd)).await?;
    let taken = t.snapshot_id();
    t.store.step(iteration(begun.fence, "taken", taken)).await?;
    t.store.end(end(begun.fence, "x")).await?;
    same(t.snapshot(taken).await?.index, 1, "the index of the one that was taken")?;
    same(t.state(&key).await?.index(), 3, "opportunities after the first turn")?;
    t.fail(&key, "y").await?;
    same(t.state(&key).await?.index(), 3, "opportunities after a failed turn")?;
    t.store.commit(edit(&key, "z")).await?;
    t.store.commit(edit(&key, "z").event(SnapshotEvent::InvocationEnd)).await?;
    let (last, _) = t.snap(&key, "w").await?;
    same(t.snapshot(last).await?.index, 4, "the index of the last one")?;
    same(t.state(&key).await?.index(), 5, "opportunities at the end")
}

pub(super) async fn an_empty_turn_counts(t: Bench) -> Check {
    let key = t.session("s").await?;
    let before = t.head(&key).await?;
    let receipt = t.change(&key, Changes::new()).await?;
    holds(receipt.on_head && receipt.point > before, "the head moved")?;
    let state = t.state(&key).await?;
    same((state.turns(), state.index(), state.messages().len()), (1, 1, 0), "turns, opportunities and messages")
}

pub(super) async fn what_a_turn_leaves_is_kept(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut outcome = Outcome::finished(FinishReason::Length);
    outcome.output = Some(json(r#"{"n":1.10}"#));
    outcome.message = Some(Message::model("bye"));
    let (id, begun) = (t.snapshot_id(), t.begin(&key, "x").await?);
    let ending = end(begun.fence, "x").outcome(outcome.clone()).snapshot(NewSnapshot::new(id).labelled("good"));
    let receipt = t.store.end(ending).await?;
    same(receipt.snapshot_id, Some(id), "the snapshot on the receipt")?;
    let found = there(t.second().await?.turn(begun.turn).await?, "the turn")?;
    same(found.status, TurnStatus::Completed, "its status")?;
    let ended = there(found.ended, "how it ended")?;
    same((ended.status, ended.outcome), (EndStatus::Completed, outcome), "how it ended")?;
    same((ended.point, ended.digest, ended.snapshot_id), (receipt.point, receipt.digest, Some(id)), "where it ended")?;
    let snapshot = t.snapshot(id).await?;
    same(snapshot.finish_reason, Some(FinishReason::Length), "the reason on its snapshot")?;
    same(snapshot.label.as_deref(), Some("good"), "the label on its snapshot")
}

pub(super) async fn a_failure_may_be_kept_as_a_completed_turn(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let outcome = Outcome::failed(TurnError::new("INTERNAL", "no luck"));
    let id = t.snapshot_id();
    t.store.end(end(begun.fence, "x").outcome(outcome.clone()).snapshot(NewSnapshot::new(id))).await?;
    same(t.texts(&key).await?, told(&["x"]), "what was said")?;
    let snapshot = t.snapshot(id).await?;
    holds(snapshot.is_resumable(), "its snapshot is resumable")?;
    same((snapshot.finish_reason, snapshot.error), (Some(FinishReason::Failed), outcome.error), "why it ended")
}

pub(super) async fn a_turn_that_waits_for_a_person_shows(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    let asks = t.store.end(end(begun.fence, "two").outcome(Outcome::finished(FinishReason::Interrupted))).await?;
    same(t.record(&key).await?.status, SessionStatus::Interrupted, "the status while a person is asked")?;
    let begun = t.begin(&key, "lost").await?;
    same(t.record(&key).await?.status, SessionStatus::Running, "the status while a turn runs")?;
    t.store.end(failure(begun.fence, "lost")).await?;
    same(t.record(&key).await?.status, SessionStatus::Interrupted, "the status after a failed answer")?;
    t.say(&key, "answer").await?;
    same(t.record(&key).await?.status, SessionStatus::Idle, "the status after the answer")?;
    t.rewind(&key, asks.point).await?;
    same(t.record(&key).await?.status, SessionStatus::Interrupted, "the status back at the question")?;
    t.rewind(&key, first.point).await?;
    same(t.record(&key).await?.status, SessionStatus::Idle, "the status before the question")
}

pub(super) async fn usage_adds_up_failed_turns_too(t: Bench) -> Check {
    let key = t.session("s").await?;
    let spent = |text: &str, usage| Changes::new().event(Event::model("m", Message::model(text)).with_usage(usage));
    t.change(&key, spent("a", Usage::tokens(10, 5))).await?;
    let mut beside = spent("b", Usage::tokens(15, 10));
    beside.usage = Usage::tokens(5, 5);
    t.change(&key, beside).await?;
    t.say(&key, "free").await?;
    same(t.record(&key).await?.usage, Usage::tokens(30, 20), "what three turns spent")?;
    let begun = t.begin(&key, "lost").await?;
    t.store.step(StepTurn::new(begun.fence, spent("c", Usage::tokens(1, 1)))).await?;
    let mut lost = failure(begun.fence, "lost");
    lost.changes = spent("d", Usage::tokens(2, 2));
    t.store.end(lost).await?;
    same(t.record(&key).await?.usage, Usage::tokens(33, 23), "the total with a failed turn")?;
    same(t.state(&key).await?.usage(), Usage::tokens(30, 20), "what the line's completed turns spent")
}

pub(super) async fn tool_calls_are_written_down(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let entry = |phase, payload: &str| ToolEntry::new("c1", "lookup", phase, Some(json(payload)));
    let started = entry(ToolPhase::Started, r#"{"q":1.10}"#);
    t.store.step(StepTurn::new(begun.fence, Changes::new().tool(started.clone()))).await?;
    let listed = there(t.second().await?.turn(begun.turn).await?, "the turn")?.tools;
    same(listed, vec![(1, started.clone())], "the ledger while the tool runs")?;
    let finished = entry(ToolPhase::Finished, "[]");
    t.store.end(EndTurn::completed(begun.fence, Changes::new().tool(finished.clone()))).await?;
    let listed = there(t.second().await?.turn(begun.turn).await?, "the turn")?.tools;
    same(listed, vec![(1, started), (1, finished)], "the ledger after the turn")
}

pub(super) async fn a_first_turn_may_create_its_session(t: Bench) -> Check {
    let create = CreateSession::at(key("s")).title("made").state("k", json("1"));
    let begin = |text: &str| {
        let start = Start::OpenOrCreate(Box::new(create.clone()));
        BeginTurn::new(start, invocation("i"), Input::text(text)).busy(Busy::Refuse)
    };
    let key = key("s");
    t.run(begin("one"), "one").await?;
    let renamed = UpdateSession::title("renamed");
    t.store.update(&key, renamed).await?;
    t.change(&key, set(delta("k", "2"))).await?;
    t.run(begin("two"), "two").await?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what was said")?;
    same(t.record(&key).await?.title.as_deref(), Some("renamed"), "the title")?;
    same(t.custom(&key).await?, Some(json(r#"{"k":2}"#)), "the state; an existing session is not initialised again")?;
    let unnamed = CreateSession::new(key.app.clone(), key.user.clone());
    let start = Start::OpenOrCreate(Box::new(unnamed));
    let begun = t.store.begin(BeginTurn::new(start, invocation("i"), Input::text("x"))).await?.begun()?;
    holds(begun.session != key, "without an id and a key a fresh session is made")
}

pub(super) async fn a_turn_does_not_open_another_agents_session(t: Bench) -> Check {
    let begin = |agent: Option<&str>| -> Result<BeginTurn, crate::Error> {
        let mut create = CreateSession::at(key("s"));
        create.agent = agent.map(AgentName::new).transpose()?;
        let start = Start::OpenOrCreate(Box::new(create));
        Ok(BeginTurn::new(start, invocation("i"), Input::text("hello")).busy(Busy::Refuse))
    };
    t.run(begin(Some("helper"))?, "one").await?;
    let other = t.store.begin(begin(Some("other"))?).await;
    refused(other, ErrorKind::Conflict, "a turn of another agent in the session")?;
    t.run(begin(Some("helper"))?, "two").await?;
    t.run(begin(None)?, "three").await?;
    same(t.record(&key("s")).await?.turns, 3, "the turns in the session")
}

pub(super) async fn what_messages_hold_survives_to_the_letter(t: Bench) -> Check {
    let key = t.session("s").await?;
    let texts = [
        r#"{"role":"model","content":[{"text":"hi","x":1.10},{"newKind":{"n":9007199254740993,"e":1E+2}}],"extra":[null]}"#,
        r#"{"role":"user","content":[{"media":{"url":"data:image/png;base64,dGVzdF9pbWFnZV9kYXRh","contentType":"image/png"}}]}"#,
        r#"{"role":"tool","content":[{"toolResponse":{"name":"f","ref":"r","output":"a\u0000b\ud83d\ude42"}}],"metadata":{"k":-0}}"#,
        r#"{"content":[],"role":"system"}"#,
    ];
    let messages = texts.iter().map(Message::parse).collect::<Result<Vec<_>, _>>()?;
    t.change(&key, Changes::new().event(Event::new("m").with_messages(messages))).await?;
    let state = t.state(&key).await?;
    let found: Vec<_> = state.messages().iter().map(|message| message.as_str().to_owned()).collect();
    same(found, texts.map(String::from).to_vec(), "the messages as text")
}

pub(super) async fn a_snapshot_id_inside_a_message_is_not_kept(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let message = |metadata: &str| {
        Message::parse(format!(r#"{{"role":"user","content":[{{"text":"hi"}}],"metadata":{metadata}}}"#))
    };
    for (key, metadata) in [(&one, r#"{"snapshotId":"x","keep":1}"#), (&two, r#"{"keep":1}"#)] {
        let input = Input::messages([message(metadata)?]);
        let begin = BeginTurn::new(Start::Session(key.clone()), invocation("i"), input);
        t.run(begin, "hi").await?;
    }
    let (one, two) = (t.state(&one).await?, t.state(&two).await?);
    holds(!one.messages().iter().any(|m| m.as_str().contains("snapshotId")), "the id is stripped")?;
    same(one.digest(), two.digest(), "the digests with and without it")
}

pub(super) async fn a_turn_may_take_its_time(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    for i in 0..100 {
        t.store.step(step(begun.fence, &format!("step {i}"))).await?;
    }
    t.clock.advance(Duration::from_secs(30));
    t.store.end(end(begun.fence, "x")).await?;
    let found = t.texts(&key).await?;
    same(found.len(), 102, "the messages of a hundred steps")?;
    same(found[100].as_str(), "step 99", "the last step")
}

pub(super) async fn a_turn_of_state_only_says_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, set(delta("k", "1"))).await?;
    same(t.texts(&key).await?, Vec::<String>::new(), "what was said")?;
    same(t.custom(&key).await?, Some(json(r#"{"k":1}"#)), "the state")?;
    same(t.events(&key).await?.len(), 1, "the number of events")
}

pub(super) async fn an_edit_does_not_answer_for_a_person(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "ask").await?;
    t.store.end(end(begun.fence, "ask").outcome(Outcome::finished(FinishReason::Interrupted))).await?;
    let edited = t.store.commit(edit(&key, "noted")).await?;
    same(t.record(&key).await?.status, SessionStatus::Interrupted, "the status after an edit")?;
    t.rewind(&key, crate::Point::new(1)).await?;
    same(t.record(&key).await?.status, SessionStatus::Idle, "the status before the question")?;
    t.rewind(&key, edited.point).await?;
    same(t.record(&key).await?.status, SessionStatus::Interrupted, "the status back at the edit")
}

pub(super) async fn null_is_a_value_wherever_it_is_written(t: Bench) -> Check {
    let key = t.session("s").await?;
    let null = || Some(json("null"));
    let mut begin = turn(&key, "x");
    (begin.input.data, begin.input.resume) = (null(), null());
    let input = begin.input.clone();
    let begun = t.store.begin(begin).await?.begun()?;
    let mut event = Event::new("m");
    event.metadata = null();
    let mut artifact = Artifact::new("a", vec![]);
    artifact.metadata = null();
    let tool = ToolEntry::new("c", "t", ToolPhase::Finished, null());
    let changes = Changes::new().event(event).artifact(artifact).tool(tool);
    let mut error = TurnError::new("INTERNAL", "kept");
    error.details = null();
    let mut outcome = Outcome::failed(error);
    outcome.output = null();
    t.store.end(EndTurn::completed(begun.fence, changes).outcome(outcome.clone())).await?;
    let found = there(t.second().await?.turn(begun.turn).await?, "the turn")?;
    same((found.input, found.tools[0].1.payload.clone()), (input, null()), "input and tool answer")?;
    same(there(found.ended, "its end")?.outcome, outcome, "the outcome")?;
    same(there(t.events(&key).await?.pop(), "the event")?.metadata, null(), "the event's metadata")?;
    same(t.state(&key).await?.artifacts()[0].metadata.clone(), null(), "the artifact's metadata")
}
