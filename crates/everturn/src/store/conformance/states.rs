//! Reading state at the places a line goes through: messages, splices, views.

use super::bench::{Bench, answer, edit, json, texts, told};
use super::verdict::{Check, holds, refused, same};
use crate::store::{At, BeginTurn, EndTurn, Start};
use crate::{BranchName, Changes, ErrorKind, Event, EventKind, Input, Message, Point, View, ViewChange};

pub(super) async fn every_point_reads_as_it_was(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut wanted = vec![(t.head(&key).await?, Vec::new())];
    let words: Vec<_> = (0..10).map(|i| format!("turn {i}")).collect();
    for i in 0..words.len() {
        let receipt = t.say(&key, &words[i]).await?;
        let said: Vec<_> = words[..=i].iter().map(String::as_str).collect();
        wanted.push((receipt.point, told(&said)));
    }
    for (point, said) in wanted.iter().rev() {
        let state = t.state_at(At::Point(key.clone(), *point)).await?;
        same(&texts(&state), said, "what was said up to a point")?;
        same(state.point(), *point, "the point of the state")?;
    }
    Ok(())
}

pub(super) async fn a_place_that_is_not_there_reads_as_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.say(&key, "one").await?.point;
    let places = [
        At::Point(key.clone(), Point::new(head.seq() + 1)),
        At::Point(key.clone(), Point::new(0)),
        At::Point(key.clone(), Point::new(u64::MAX)),
        At::Head(key.clone(), BranchName::new("unknown")?),
        At::Snapshot(t.snapshot_id()),
    ];
    for at in places {
        holds(t.second().await?.state(at.clone()).await?.is_none(), &format!("there is nothing at {at:?}"))?;
    }
    Ok(())
}

pub(super) async fn a_state_in_hand_does_not_change(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, answer("first").custom(json(r#"{"n":1}"#))).await?;
    let before = crate::store::StoreExt::head_state(&*t.store, &key).await?;
    for i in 0..70 {
        t.change(&key, answer("more").custom(json(&format!(r#"{{"n":{i}}}"#)))).await?;
    }
    same(texts(&before), vec!["first".to_owned()], "the messages of a state read before")?;
    same(before.custom(), Some(&json(r#"{"n":1}"#)), "its custom state")
}

pub(super) async fn a_splice_keeps_the_first_and_replaces_the_rest(t: Bench) -> Check {
    let key = t.session("s").await?;
    let whole = t.say(&key, "one").await?;
    t.say(&key, "two").await?;
    t.change(&key, Changes::new().splice(2, vec![Message::user("instead")])).await?;
    let wanted = [told(&["one"]), vec!["instead".into()]].concat();
    same(t.texts(&key).await?, wanted, "the messages after the splice")?;
    t.say(&key, "three").await?;
    t.change(&key, Changes::new().splice(2, vec![])).await?;
    let cut = t.state(&key).await?;
    same(texts(&cut), told(&["one"]), "the messages after a cut")?;
    same(cut.digest(), whole.digest, "the digest after cutting back to an earlier state")?;
    t.change(&key, Changes::new().splice(0, vec![])).await?;
    same(t.texts(&key).await?.len(), 0, "the messages after keeping none")
}

pub(super) async fn a_splice_of_a_long_conversation_is_exact(t: Bench) -> Check {
    let (key, fresh) = (t.session("s").await?, t.session("fresh").await?);
    let messages = |range: std::ops::Range<usize>| range.map(|i| Message::user(format!("m{i}"))).collect::<Vec<_>>();
    t.change(&key, Changes::new().splice(0, messages(0..200))).await?;
    for keep in [199, 129, 128, 127, 65, 64, 63, 1] {
        let spliced = t.change(&key, Changes::new().splice(keep, vec![Message::user("tail")])).await?;
        let mut wanted = messages(0..usize::try_from(keep).unwrap_or(0));
        wanted.push(Message::user("tail"));
        let told = t.change(&fresh, Changes::new().splice(0, wanted.clone())).await?;
        same(t.state(&key).await?.messages().to_vec(), wanted, "the messages after the splice")?;
        same(spliced.digest, told.digest, "the digests of one conversation told twice")?;
        t.change(&key, Changes::new().splice(keep, messages(usize::try_from(keep).unwrap_or(0)..200))).await?;
    }
    Ok(())
}

pub(super) async fn a_splice_cannot_keep_what_is_not_there(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    let before = t.footprint(&key).await?;
    let end = |keep| EndTurn::completed(begun.fence, Changes::new().splice(keep, vec![]));
    refused(t.store.end(end(4)).await, ErrorKind::Invalid, "keeping four of three messages")?;
    refused(t.store.end(end(u64::MAX)).await, ErrorKind::Invalid, "keeping very many messages")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    holds(t.store.end(end(3)).await?.on_head, "the turn still ends")
}

fn compaction(replaces: u64, summary: &str) -> Changes {
    let mut event = Event::new("compactor");
    event.kind = EventKind::Compaction;
    Changes::new().event(event).view(View::new(replaces, vec![Message::model(summary)]))
}

fn shown(state: &crate::PointState) -> Vec<String> {
    state.model_messages().iter().map(Message::text).collect()
}

pub(super) async fn a_compaction_changes_the_view_not_what_was_said(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let before = t.say(&key, "two").await?;
    let mut commit = edit(&key, "");
    commit.changes = compaction(4, "summary 1");
    let compacted = t.store.commit(commit).await?;
    holds(compacted.digest != before.digest, "a view is part of the digest")?;
    let state = t.state(&key).await?;
    same(texts(&state), told(&["one", "two"]), "what was said")?;
    same(shown(&state), vec!["summary 1".to_owned()], "what the model is shown")?;
    t.say(&key, "three").await?;
    let state = t.state(&key).await?;
    let wanted = [vec!["summary 1".to_owned()], told(&["three"])].concat();
    same(shown(&state), wanted, "what the model is shown after another turn")?;
    let old = t.state_at(At::Point(key.clone(), before.point)).await?;
    same(shown(&old), told(&["one", "two"]), "what the model is shown at an older point")
}

pub(super) async fn compactions_follow_each_other_and_stay_readable(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let first = t.change(&key, compaction(2, "summary 1")).await?;
    t.say(&key, "two").await?;
    t.change(&key, compaction(4, "summary 2")).await?;
    let state = t.state(&key).await?;
    same(shown(&state), vec!["summary 2".to_owned()], "what the model is shown")?;
    same(texts(&state), told(&["one", "two"]), "what was said")?;
    let at_first = t.state_at(At::Point(key.clone(), first.point)).await?;
    same(shown(&at_first), vec!["summary 1".to_owned()], "what it was shown after the first")?;
    let kinds: Vec<_> = t.events(&key).await?.iter().map(|event| event.kind).collect();
    same(kinds.iter().filter(|kind| **kind == EventKind::Compaction).count(), 2, "the compactions among the events")?;
    let mut clear = Changes::new();
    clear.view = Some(ViewChange::Clear);
    t.change(&key, clear).await?;
    same(shown(&t.state(&key).await?), told(&["one", "two"]), "what it is shown without a view")
}

pub(super) async fn pinned_messages_stay_in_view(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    t.say(&key, "two").await?;
    let mut view = View::new(3, vec![Message::model("summary")]);
    view.pinned = vec![0, 2];
    t.change(&key, Changes::new().view(view.clone())).await?;
    let state = t.state(&key).await?;
    same(state.view(), Some(&view), "the view as read back")?;
    let wanted = ["summary", "one", "two", "re: two"].map(String::from).to_vec();
    same(shown(&state), wanted, "what the model is shown")
}

pub(super) async fn partial_events_are_taken_and_not_kept(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut partial = Event::model("m", Message::model("hel")).with_state(super::bench::delta("k", "1"));
    partial = partial.with_state(super::bench::delta("user:k", "1")).with_usage(crate::Usage::tokens(1, 1));
    partial.partial = true;
    let begin = BeginTurn::new(Start::Session(key.clone()), super::bench::invocation("i"), Input::default());
    let begun = t.store.begin(begin).await?.begun()?;
    let step = crate::store::StepTurn::new(begun.fence, Changes::new().event(partial.clone()));
    t.store.step(step).await?;
    let whole = answer("hello").event(partial.clone());
    t.store.end(EndTurn::completed(begun.fence, whole)).await?;
    let mut commit = edit(&key, "bye");
    commit.changes = commit.changes.event(partial);
    t.store.commit(commit).await?;
    same(t.texts(&key).await?, ["hello", "bye"].map(String::from).to_vec(), "what was said")?;
    holds(t.events(&key).await?.iter().all(|event| !event.partial), "no event is partial")?;
    same(t.custom(&key).await?, None, "the custom state")?;
    same(t.second().await?.scopes(&key.app, Some(&key.user)).await?.len(), 0, "the scoped keys")?;
    same(t.record(&key).await?.usage, crate::Usage::default(), "what was spent")
}
