//! Titles, labels and metadata.

use super::bench::{Bench, end, json, key, step, told};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{CreateSession, UpdateSession};
use crate::{ErrorKind, RecordKind};

pub(super) async fn an_update_changes_what_it_names(t: Bench) -> Check {
    let create = CreateSession::at(key("s")).title("old").label("a").metadata(json(r#"{"x":1,"y":{"z":1.10}}"#));
    t.store.create(create).await?;
    let answered = t.store.update(&key("s"), UpdateSession::title("new")).await?;
    let found = t.record(&key("s")).await?;
    same(&found, &answered, "the session as answered and as read")?;
    same(found.title.as_deref(), Some("new"), "the title")?;
    same(found.metadata, json(r#"{"x":1,"y":{"z":1.10}}"#), "the metadata, which was not named")?;
    let mut update = UpdateSession::metadata("w", json("null"));
    update.remove_metadata = ["x".to_owned()].into();
    update.add_labels = ["b".to_owned(), "c".to_owned()].into();
    update.remove_labels = ["a".to_owned(), "unknown".to_owned()].into();
    t.store.update(&key("s"), update).await?;
    let found = t.record(&key("s")).await?;
    same(found.metadata, json(r#"{"y":{"z":1.10},"w":null}"#), "the metadata")?;
    same(found.labels, ["b".to_owned(), "c".to_owned()].into(), "the labels")?;
    t.store.update(&key("s"), UpdateSession { title: Some(None), ..UpdateSession::default() }).await?;
    same(t.record(&key("s")).await?.title, None, "the title after it was taken away")
}

pub(super) async fn an_update_never_meets_a_running_turn(t: Bench) -> Check {
    let session = t.session("s").await?;
    let one = t.say(&session, "one").await?;
    let begun = t.begin(&session, "two").await?;
    t.store.update(&session, UpdateSession::title("while it runs")).await?;
    same(t.head(&session).await?, one.point, "the head")?;
    t.store.step(step(begun.fence, "half")).await?;
    t.second().await?.update(&session, UpdateSession::label("by another handle")).await?;
    let ended = t.store.end(end(begun.fence, "two")).await?;
    holds(ended.on_head, "the turn ends on the head")?;
    t.store.update(&session, UpdateSession::label("after")).await?;
    same(t.head(&session).await?, ended.point, "the head after the updates")?;
    let wanted = [told(&["one"]), ["two", "half", "re: two"].map(String::from).to_vec()].concat();
    same(t.texts(&session).await?, wanted, "what was said")?;
    same(t.state(&session).await?.digest(), ended.digest, "the digest")
}

pub(super) async fn an_update_is_an_admin_record(t: Bench) -> Check {
    let session = t.session("s").await?;
    let before = t.say(&session, "one").await?;
    t.store.update(&session, UpdateSession::title("x")).await?;
    let after = t.say(&session, "two").await?;
    let records = t.records(&session).await?;
    let admin: Vec<_> = records.iter().filter(|record| record.kind == RecordKind::Admin).collect();
    same(admin.len(), 1, "the admin records")?;
    same((admin[0].segment, admin[0].turn, admin[0].voided), (0, None, false), "segment, turn, void")?;
    holds(before.point.seq() < admin[0].seq && admin[0].seq < after.point.seq(), "it has its place in the order")?;
    same(t.texts(&session).await?, told(&["one", "two"]), "what was said")
}

pub(super) async fn an_update_survives_every_rewind(t: Bench) -> Check {
    let session = t.session("s").await?;
    let one = t.say(&session, "one").await?;
    t.say(&session, "two").await?;
    let mut update = UpdateSession::title("kept");
    update.add_labels = ["kept".to_owned()].into();
    update.set_metadata = [("kept".to_owned(), json("true"))].into();
    t.store.update(&session, update).await?;
    t.rewind(&session, one.point).await?;
    t.say(&session, "three").await?;
    let found = t.record(&session).await?;
    same(found.title.as_deref(), Some("kept"), "the title")?;
    same((found.labels.len(), found.metadata), (1, json(r#"{"kept":true}"#)), "labels and metadata")
}

pub(super) async fn an_update_of_nothing_writes_nothing(t: Bench) -> Check {
    let session = t.session("s").await?;
    let before = t.footprint(&session).await?;
    t.store.update(&session, UpdateSession::default()).await?;
    same(t.footprint(&session).await?, before, "what it left")?;
    let unknown = t.store.update(&key("unknown"), UpdateSession::title("x")).await;
    refused(unknown, ErrorKind::NotFound, "an update of an unknown session")?;
    same(t.second().await?.session(&key("unknown")).await?, None, "what the refusal created")
}

pub(super) async fn updates_and_turns_may_race(t: Bench) -> Check {
    let session = t.session("s").await?;
    let other = t.second().await?;
    let updates = tokio::spawn({
        let session = session.clone();
        async move {
            for i in 0..30 {
                other.update(&session, UpdateSession::metadata(format!("k{i}"), json(&i.to_string()))).await?;
            }
            Ok::<_, crate::Error>(())
        }
    });
    for i in 0..20 {
        holds(t.say(&session, &i.to_string()).await?.on_head, "every turn ends on the head")?;
    }
    match updates.await {
        Ok(done) => done?,
        Err(panic) => return fail(format!("an update panicked: {panic}")),
    }
    let found = t.record(&session).await?;
    let metadata: std::collections::BTreeMap<String, u32> = found.metadata.to()?;
    same((found.turns, metadata.len()), (20, 30), "the turns and the members")
}

pub(super) async fn wrong_updates_are_refused_whole(t: Bench) -> Check {
    let session = t.session("s").await?;
    let before = t.footprint(&session).await?;
    let mut blank = UpdateSession::title("fine");
    blank.add_labels = [" ".to_owned()].into();
    refused(t.store.update(&session, blank).await, ErrorKind::Invalid, "a blank label")?;
    let long = UpdateSession::title("x".repeat(1 << 20));
    refused(t.store.update(&session, long).await, ErrorKind::TooLarge, "a title of a megabyte")?;
    same(t.footprint(&session).await?, before, "what the refusals left")?;
    same(t.record(&session).await?.title, None, "the title")
}
