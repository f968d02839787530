//! Creating sessions and finding them again.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, answer, end, json, key, key_of, turn};
use super::verdict::{Check, fail, holds, same, there};
use crate::store::{ArtifactQuery, At, Busy, CreateSession, ListSessions, SnapshotRef, Store, StoreExt};
use crate::{
    AgentName, AppName, Artifact, Branch, BranchName, Changes, Clock, ErrorKind, Part, Point, RecordKind, SessionKey,
    SessionStatus, SnapshotStatus, Usage, UserId,
};

pub(super) async fn a_created_session_is_read_back_whole(t: Bench) -> Check {
    let mut wanted = CreateSession::at(key("s"))
        .title("An order")
        .label("new")
        .label("paid")
        .metadata(json(r#"{"shop":{"price":1.10},"big":9007199254740993}"#));
    wanted.agent = Some(AgentName::new("helper")?);
    let made = t.store.create(wanted).await?;
    let found = t.record(&key("s")).await?;
    same(&found, &made, "the session as read and as created")?;
    same(found.key(), key("s"), "the key")?;
    same(found.title.as_deref(), Some("An order"), "the title")?;
    same(found.labels.len(), 2, "the number of labels")?;
    same(found.metadata, json(r#"{"shop":{"price":1.10},"big":9007199254740993}"#), "the metadata")?;
    same(found.agent.map(|agent| agent.to_string()), Some("helper".to_owned()), "the agent")?;
    same((found.created_at, found.updated_at), (t.clock.now(), t.clock.now()), "the times")?;
    same(found.head, Point::new(1), "the head")?;
    same(found.branches, vec![Branch { name: BranchName::main(), head: Point::new(1) }], "the branches")?;
    same((found.turns, found.usage, found.inherited_usage), (0, Usage::default(), Usage::default()), "the counts")?;
    same(found.status, SessionStatus::Idle, "the status")?;
    same(found.forked_from, None, "the origin")
}

pub(super) async fn without_an_id_a_fresh_one_is_made(t: Bench) -> Check {
    let create = CreateSession::new(AppName::new("shop")?, UserId::new("ann")?);
    let one = t.store.create(create.clone()).await?;
    let two = t.store.create(create).await?;
    holds(one.id != two.id, "two generated ids differ")?;
    same(t.record(&one.key()).await?, one, "the session under a generated id")
}

pub(super) async fn a_taken_id_is_refused(t: Bench) -> Check {
    let create = CreateSession::new(AppName::new("shop")?, UserId::new("ann")?).title("first");
    let made = t.store.create(create).await?;
    t.say(&made.key(), "hello").await?;
    let again = CreateSession::at(made.key()).title("second").state("user:k", json("1"));
    super::verdict::refused(t.store.create(again).await, ErrorKind::AlreadyExists, "creating a taken id")?;
    let found = t.record(&made.key()).await?;
    same(found.title.as_deref(), Some("first"), "the title of the one that was there")?;
    same(found.turns, 1, "the turns of the one that was there")?;
    let scopes = t.second().await?.scopes(&made.app, Some(&made.user)).await?;
    same(scopes.len(), 0, "the scoped keys a refused creation wrote")
}

pub(super) async fn what_is_unknown_reads_as_nothing(t: Bench) -> Check {
    let unknown = key("unknown");
    same(t.store.session(&unknown).await?, None, "the unknown session")?;
    holds(t.store.state(At::head(unknown.clone())).await?.is_none(), "an unknown session has no state")?;
    same(t.store.snapshot(SnapshotRef::Latest(unknown.clone())).await?, None, "its latest snapshot")?;
    same(t.store.snapshot(SnapshotRef::Id(t.snapshot_id())).await?, None, "an unknown snapshot")?;
    holds(t.store.state(At::Snapshot(t.snapshot_id())).await?.is_none(), "an unknown snapshot has no state")?;
    same(t.store.list(ListSessions::of(unknown.app, unknown.user)).await?.items, vec![], "the sessions of nobody")
}

pub(super) async fn a_turn_in_an_unknown_session_is_not_found(t: Bench) -> Check {
    let begin = t.store.begin(turn(&key("unknown"), "hello")).await;
    super::verdict::refused(begin, ErrorKind::NotFound, "a turn in an unknown session")?;
    let edit = t.store.commit(super::bench::edit(&key("unknown"), "hello")).await;
    super::verdict::refused(edit, ErrorKind::NotFound, "an edit of an unknown session")?;
    same(t.second().await?.session(&key("unknown")).await?, None, "what the refusals created")
}

pub(super) async fn one_id_names_a_session_per_app_and_user(t: Bench) -> Check {
    let keys = [key_of("ann", "s"), key_of("bob", "s"), SessionKey::of("bank", "ann", "s")?];
    for (i, key) in keys.iter().enumerate() {
        t.store.create(CreateSession::at(key.clone())).await?;
        t.say(key, &format!("turn {i}")).await?;
    }
    for (i, key) in keys.iter().enumerate() {
        same(t.texts(key).await?, super::bench::told(&[&format!("turn {i}")]), "what was said in one of them")?;
    }
    same(t.second().await?.session(&key_of("eve", "s")).await?, None, "the id for a user who has none")
}

pub(super) async fn odd_ids_are_ordinary_and_distinct(t: Bench) -> Check {
    let long = "x".repeat(256);
    let ids = [
        "../x",
        "..",
        ".",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:\\x",
        "a",
        "A",
        "a ",
        " a",
        "naïve",
        "nai\u{308}ve",
        "🙂",
        "%2e%2e",
        "'; drop table sessions; --",
        "a:b",
        "con",
        "*",
        "a.b",
        "a\u{200b}b",
        &long,
    ];
    for id in ids {
        let key = key_of("o/../dd", id);
        t.store.create(CreateSession::at(key.clone()).title(id)).await?;
        t.say(&key, "hello").await?;
    }
    let store = t.second().await?;
    for id in ids {
        let found = there(store.session(&key_of("o/../dd", id)).await?, id)?;
        same(found.title.as_deref(), Some(id), "the title of the session with that id")?;
        same(found.turns, 1, "its turns")?;
    }
    let listed = store.list(ListSessions::of(AppName::new("shop")?, UserId::new("o/../dd")?)).await?;
    same(listed.items.len(), ids.len(), "the sessions listed")
}

pub(super) async fn racing_creations_of_one_key_make_one_session(t: Bench) -> Check {
    let handles = [t.store.clone(), t.second().await?];
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let store = handles[i % 2].clone();
            tokio::spawn(create_often(store, 32))
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        made += task.await.unwrap_or_else(|panic| fail(format!("a creation panicked: {panic}")))?;
    }
    same(made, 1, "how many of 512 racing creations succeeded")
}

async fn create_often(store: Arc<dyn Store>, times: usize) -> Check<usize> {
    let mut made = 0;
    for _ in 0..times {
        match store.create(CreateSession::at(key("s"))).await {
            Ok(_) => made += 1,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return fail(format!("a racing creation answered {error:?}")),
        }
    }
    Ok(made)
}

pub(super) async fn first_uses_at_once_all_succeed(t: Bench) -> Check {
    let mut tasks = Vec::new();
    for i in 0..8 {
        let store = t.second().await?;
        tasks.push(tokio::spawn(async move { store.create(CreateSession::at(key(&format!("s{i}")))).await }));
    }
    for task in tasks {
        task.await.map_err(|panic| fail::<()>(format!("{panic}")).unwrap_err())??;
    }
    let listed = t.second().await?.list(ListSessions::default()).await?;
    same(listed.items.len(), 8, "the sessions that first uses created")
}

pub(super) async fn racing_openers_share_one_session(t: Bench) -> Check {
    let handles = [t.store.clone(), t.second().await?];
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let store = handles[i % 2].clone();
            tokio::spawn(open_and_say(store, i))
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|panic| fail(format!("an opener panicked: {panic}")))?;
    }
    let found = t.record(&key("s")).await?;
    same(found.turns, 8, "the turns of eight openers")?;
    same(t.texts(&key("s")).await?.len(), 16, "the messages of eight openers")
}

async fn open_and_say(store: Arc<dyn Store>, i: usize) -> Check {
    let session = store.open_or_create(CreateSession::at(key("s"))).await?;
    let text = format!("turn {i}");
    let begin = turn(&session.key(), &text).busy(Busy::Wait(Duration::from_secs(60)));
    let begun = store.begin(begin).await?.begun()?;
    store.end(end(begun.fence, &text)).await?;
    Ok(())
}

pub(super) async fn initial_state_is_split_by_scope(t: Bench) -> Check {
    let create = CreateSession::at(key("s"))
        .state("k", json("5.0"))
        .state("nothing", json("null"))
        .state("app:a", json("1"))
        .state("user:u", json("2"))
        .state("temp:t", json("3"));
    t.store.create(create).await?;
    same(t.custom(&key("s")).await?, Some(json(r#"{"k":5.0,"nothing":null}"#)), "the custom state")?;
    let scopes = t.second().await?.scopes(&key("s").app, Some(&key("s").user)).await?;
    let wanted = [("app:a".to_owned(), json("1")), ("user:u".to_owned(), json("2"))];
    same(scopes, wanted.into(), "the scopes")?;
    let records = t.records(&key("s")).await?;
    same((records.len(), records[0].seq, records[0].kind), (1, 1, RecordKind::Edit), "the log")?;
    holds(!records[0].body.as_str().contains("temp:"), "the log has no temp: key")
}

pub(super) async fn what_a_session_starts_with_is_at_its_first_point(t: Bench) -> Check {
    let mut create = CreateSession::at(key("s"));
    create.changes = answer("welcome").custom(json("[1]")).artifact(Artifact::new("a", vec![Part::text("x")]));
    let made = t.store.create(create).await?;
    let state = t.state(&key("s")).await?;
    same(state.point(), made.head, "the first point")?;
    same(super::bench::texts(&state), vec!["welcome".to_owned()], "what was said")?;
    same(state.custom(), Some(&json("[1]")), "the custom state")?;
    same(state.artifacts().len(), 1, "the artifacts")?;
    same(state.turns(), 0, "the turns so far")?;
    let versions = t.second().await?.artifacts(ArtifactQuery::of(key("s"))).await?;
    same(versions.len(), 1, "the artifact's versions")
}

pub(super) async fn a_seed_makes_an_empty_session_resumable(t: Bench) -> Check {
    let seed = t.snapshot_id();
    let made = t.store.create(CreateSession::at(key("s")).seed(seed)).await?;
    let found = t.snapshot(seed).await?;
    same((found.status, found.event), (SnapshotStatus::Completed, None), "status and occasion of a seed")?;
    same((found.point, found.index, found.turn_index), (made.head, 0, 0), "where a seed stands")?;
    same(found.parent_id, None, "what comes before a seed")?;
    same(t.second().await?.latest(&key("s")).await?.map(|s| s.snapshot_id), Some(seed), "the latest snapshot")?;
    let (first, _) = t.run_snap(super::bench::turn_at(seed, "hello"), "hello").await?;
    let first = t.snapshot(first).await?;
    same((first.index, first.parent_id), (0, Some(seed)), "index and parent of the first snapshot after a seed")
}

pub(super) async fn an_empty_session_reads_empty(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let state = t.state(&one).await?;
    holds(state.messages().is_empty() && state.custom().is_none(), "nothing was said and there is no custom state")?;
    holds(state.artifacts().is_empty() && state.view().is_none(), "there are no artifacts and no view")?;
    same((state.turns(), state.index(), state.schema_version()), (0, 0, 0), "the counts")?;
    same(t.events(&one).await?.len(), 0, "the number of events")?;
    same(state.digest(), t.state(&two).await?.digest(), "the digests of two empty sessions")
}

pub(super) async fn metadata_that_is_no_object_is_refused(t: Bench) -> Check {
    for metadata in ["1", "[]", "null", "\"x\""] {
        let create = CreateSession::at(key("s")).metadata(json(metadata));
        super::verdict::refused(t.store.create(create).await, ErrorKind::Invalid, metadata)?;
    }
    same(t.second().await?.session(&key("s")).await?, None, "what the refusals created")?;
    let plain = t.store.create(CreateSession::at(key("s"))).await?;
    same(plain.metadata.as_str(), "{}", "the metadata of a session that was given none")
}

pub(super) async fn times_are_the_clocks(t: Bench) -> Check {
    let key = t.session("s").await?;
    let created = t.clock.now();
    t.clock.advance(Duration::from_micros(1_500_001));
    let receipt = t.say(&key, "hello").await?;
    let found = t.record(&key).await?;
    same((found.created_at, found.updated_at), (created, t.clock.now()), "creation and last write")?;
    same(receipt.at, t.clock.now(), "the time on the receipt")?;
    t.clock.set_wall(created.plus(Duration::from_secs(5)));
    t.change(&key, Changes::new()).await?;
    same(t.record(&key).await?.updated_at, t.clock.now(), "the last write")
}
