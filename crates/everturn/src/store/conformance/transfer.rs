//! Sessions taken out of one store and brought into another.

use super::bench::{Bench, answer, edit, end, iteration, key, key_of, step, turn_at};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{
    ArtifactQuery, At, BranchChange, Commit, CreateSession, EndTurn, Entry, ForkSession, ImportSession, ListSnapshots,
    MAX_PAGE, MemoryStore, RecordQuery, SnapshotIds, Store, StoreExt, UpdateSession, VerifyScope,
};
use crate::{
    Artifact, Changes, ErrorKind, Event, Json, Message, Part, RecordKind, SessionId, SessionKey, Snapshot, StateDelta,
    TurnStatus, Usage, View,
};

pub(super) async fn exported(store: &dyn Store, key: &SessionKey) -> crate::Result<Vec<Entry>> {
    let mut page = store.export(key, None).await?;
    let mut entries = page.entries;
    while let Some(next) = page.next {
        page = store.export(key, Some(&next)).await?;
        entries.extend(page.entries);
    }
    Ok(entries)
}

/// Everything about a session that is the same wherever it is.
#[derive(Debug, PartialEq)]
struct Portrait {
    records: Vec<Json>,
    snapshots: Vec<(Snapshot, Option<Json>)>,
    heads: Vec<(String, u64, String)>,
    artifacts: Vec<(String, u64, crate::Digest)>,
    session: Json,
}

async fn portrait(store: &dyn Store, key: &SessionKey) -> Check<Portrait> {
    let records = store.records(RecordQuery::of(key.clone()).limit(MAX_PAGE)).await?.items;
    let records = records.into_iter().map(|record| {
        // Where it is kept is a store's own affair: the number of its segment, and of its session in its turn's id.
        let turn = record.turn.map(|turn| turn.begin);
        let marks = (record.seq, record.kind, record.at, turn, record.attempt, record.voided, record.event);
        Json::from_value(&(marks, record.body))
    });
    let records = records.collect::<crate::Result<_>>()?;
    let mut snapshots = Vec::new();
    for mut snapshot in store.snapshots(ListSnapshots::of(key.clone()).limit(MAX_PAGE)).await?.items {
        let state = store.state(At::Snapshot(snapshot.snapshot_id)).await?;
        let state = state.map(|state| Json::from_value(&state.to_session_state())).transpose()?;
        snapshot.session = None;
        snapshots.push((snapshot, state));
    }
    let mut session = store.existing(key).await?;
    let mut heads = Vec::new();
    for branch in &session.branches {
        let state = there(store.state(At::Head(key.clone(), branch.name.clone())).await?, "a head's state")?;
        heads.push((branch.name.to_string(), branch.head.seq(), state.digest().to_string()));
    }
    let artifacts = store.artifacts(ArtifactQuery::of(key.clone())).await?.into_iter().map(|stored| stored.version);
    let artifacts = artifacts.map(|version| (version.name, version.version, version.digest)).collect();
    session.status = crate::SessionStatus::Idle;
    Ok(Portrait { records, snapshots, heads, artifacts, session: Json::from_value(&session)? })
}

/// A session with everything in it that a session can have.
async fn eventful(t: &Bench, id: &str) -> Check<SessionKey> {
    let session = key(id);
    let create = CreateSession::at(session.clone()).title("Tea").label("kitchen").seed(t.snapshot_id());
    t.store.create(create.state("a", Json::parse("1.10")?).state("user:tier", Json::parse("\"gold\"")?)).await?;
    let (one, first) = t.snap(&session, "one").await?;
    t.fail_snap(&session, "bad").await?;
    let begun = t.begin(&session, "two").await?;
    t.store.step(iteration(begun.fence, "half", t.snapshot_id())).await?;
    let artifact = |text: &str| Changes::new().artifact(Artifact::new("plan.txt", vec![Part::text(text)]));
    let mut changes = artifact("boil");
    changes.usage = Usage::tokens(5, 6);
    let put = changes.event(Event::model("m", Message::model("2")).with_state(StateDelta::new().set("a", json("2"))));
    t.store.end(EndTurn::completed(begun.fence, put)).await?;
    t.change(&session, artifact("pour")).await?;
    t.run(turn_at(one, "beside"), "beside").await?;
    t.branch_off(&session, "green", first.point).await?;
    t.store.begin(super::bench::turn(&session, "green one").branch(crate::BranchName::new("green")?)).await?.begun()?;
    t.outlive_leases();
    t.store.commit(edit(&session, "by hand")).await?;
    t.change(&session, Changes::new().splice(1, vec![Message::model("rewritten")])).await?;
    t.store
        .commit(Commit::new(session.clone(), Changes::new().view(View::new(1, vec![Message::user("short")]))))
        .await?;
    t.store.update(&session, UpdateSession::metadata("n", json("9007199254740993"))).await?;
    // The turn on `green` died; somebody takes it over, and it dies again.
    let dead = there(t.store.running(Some(&session)).await?.pop(), "a dead turn")?;
    let again = t.store.take_over(dead.turn).await?;
    t.store.end(end(again.fence, "green one")).await?;
    Ok(session)
}

fn json(text: &str) -> Json {
    super::bench::json(text)
}

pub(super) async fn what_is_brought_in_is_what_was_taken_out(t: Bench) -> Check {
    let session = eventful(&t, "s").await?;
    let before = portrait(&*t.second().await?, &session).await?;
    let entries = exported(&*t.second().await?, &session).await?;
    let elsewhere = MemoryStore::new();
    elsewhere.import(ImportSession::new(session.clone(), entries.clone())).await?;
    same(&portrait(&elsewhere, &session).await?, &before, "the session in another store")?;
    same(elsewhere.verify(VerifyScope::All).await?.damage, None, "the damage there")?;
    same(exported(&elsewhere, &session).await?.len(), entries.len(), "what is taken out there")?;

    // And back, where the original was. Its snapshots keep their ids until the session is reclaimed.
    t.store.purge(&session).await?;
    t.store.import(ImportSession::new(session.clone(), exported(&elsewhere, &session).await?)).await?;
    same(&portrait(&*t.second().await?, &session).await?, &before, "the session that came back")?;
    same(t.second().await?.verify(VerifyScope::Session(session.clone())).await?.damage, None, "the damage")?;
    same(t.say(&session, "and on").await?.on_head, true, "whether it goes on")?;
    let versions = t.second().await?.artifacts(ArtifactQuery::of(session.clone()).newest()).await?;
    same(versions[0].version.version, 1, "the newest version of its artifact")?;
    t.change(&session, Changes::new().artifact(Artifact::new("plan.txt", vec![Part::text("wait")]))).await?;
    let versions = t.second().await?.artifacts(ArtifactQuery::of(session).newest()).await?;
    same(versions[0].version.version, 2, "the version after it")
}

pub(super) async fn a_copy_lives_beside_its_original(t: Bench) -> Check {
    let session = eventful(&t, "s").await?;
    let before = portrait(&*t.second().await?, &session).await?;
    let entries = exported(&*t.store, &session).await?;
    let taken = t.store.import(ImportSession::new(session.clone(), entries.clone())).await;
    refused(taken, ErrorKind::AlreadyExists, "an import over a session")?;
    let taken = t.store.import(ImportSession::new(key("copy"), entries.clone())).await;
    refused(taken, ErrorKind::AlreadyExists, "an import of snapshots that are there")?;
    same(t.second().await?.session(&key("copy")).await?.is_none(), true, "whether nothing is left of it")?;
    let mut fresh = ImportSession::new(key_of("bob", "copy"), entries);
    fresh.snapshots = SnapshotIds::Fresh;
    t.store.import(fresh).await?;
    let copy = portrait(&*t.second().await?, &key_of("bob", "copy")).await?;
    same(&copy.records, &before.records, "the records of the copy")?;
    same(&copy.heads, &before.heads, "its heads")?;
    same(&portrait(&*t.second().await?, &session).await?, &before, "the original")?;
    let parents = |portrait: &Portrait| portrait.snapshots.iter().filter(|(row, _)| row.parent_id.is_some()).count();
    same(parents(&copy), parents(&before), "how many of its snapshots follow another")?;
    t.say(&key_of("bob", "copy"), "on").await?;
    same(&portrait(&*t.second().await?, &session).await?, &before, "the original after a turn in the copy")
}

pub(super) async fn a_fork_brings_along_where_it_comes_from(t: Bench) -> Check {
    let origin = eventful(&t, "s").await?;
    let at = t.head(&origin).await?;
    t.store.fork(ForkSession::at(At::Point(origin.clone(), at)).id(SessionId::new("f1")?)).await?;
    t.say(&key("f1"), "in the fork").await?;
    t.store.fork(ForkSession::at(At::head(key("f1"))).id(SessionId::new("f2")?)).await?;
    let fork = key("f2");
    t.say(&fork, "in its fork").await?;
    let back = t.branch_off(&fork, "back", at).await?;
    let before = portrait(&*t.second().await?, &fork).await?;
    let elsewhere = MemoryStore::new();
    elsewhere.import(ImportSession::new(fork.clone(), exported(&*t.second().await?, &fork).await?)).await?;
    same(&portrait(&elsewhere, &fork).await?, &before, "the fork in another store")?;
    same(elsewhere.session(&origin).await?.is_none(), true, "whether its origin is not there")?;
    same(elsewhere.verify(VerifyScope::All).await?.damage, None, "the damage there")?;
    t.store.delete(&origin).await?;
    t.store.delete(&key("f1")).await?;
    t.store.purge(&fork).await?;
    t.store.import(ImportSession::new(fork.clone(), exported(&elsewhere, &fork).await?)).await?;
    same(&portrait(&*t.second().await?, &fork).await?, &before, "the fork that came back")?;
    t.say(&fork, "and on").await?;
    t.store.branch(&fork, BranchChange::Delete { name: back, expect: None, under_lease: Default::default() }).await?;
    // What it needs of the others is not swept away with what is deleted.
    t.store.purge(&origin).await?;
    same(t.second().await?.verify(VerifyScope::Session(fork)).await?.damage, None, "the damage")
}

pub(super) async fn a_turn_that_runs_arrives_aborted(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "one").await?;
    let mut begin = super::bench::turn(&session, "two");
    begin.snapshot = Some(t.snapshot_id());
    let begun = t.store.begin(begin).await?.begun()?;
    t.store.step(step(begun.fence, "half").detach()).await?;
    let entries = exported(&*t.second().await?, &session).await?;
    t.store.end(end(begun.fence, "two")).await?;
    let elsewhere = MemoryStore::new();
    elsewhere.import(ImportSession::new(session.clone(), entries)).await?;
    same(elsewhere.running(Some(&session)).await?.len(), 0, "the turns that run there")?;
    same(elsewhere.verify(VerifyScope::All).await?.damage, None, "the damage there")?;
    let nodes = elsewhere.tree(crate::store::TreeQuery::of(session.clone())).await?.nodes;
    same(nodes.last().map(|node| node.status), Some(TurnStatus::Aborted), "what became of the turn")?;
    let turn = there(nodes.last().and_then(|node| node.turn), "the turn")?;
    same(there(elsewhere.turn(turn).await?, "the turn")?.status, TurnStatus::Aborted, "what is known about it")?;
    let pending = elsewhere.snapshots(ListSnapshots::of(session.clone())).await?.items;
    same(pending.last().map(|row| row.status), Some(crate::SnapshotStatus::Aborted), "its snapshot")?;
    same(elsewhere.head_state(&session).await?.messages().len(), 2, "the messages at the head")
}

pub(super) async fn what_is_shared_stays_where_it_is(t: Bench) -> Check {
    let session = eventful(&t, "s").await?;
    let entries = exported(&*t.store, &session).await?;
    let elsewhere = MemoryStore::new();
    elsewhere.import(ImportSession::new(session.clone(), entries)).await?;
    let scopes = elsewhere.scopes(&session.app, Some(&session.user)).await?;
    holds(scopes.is_empty(), "the scopes of the other store are untouched")
}

pub(super) async fn what_does_not_hold_together_is_refused(t: Bench) -> Check {
    let session = eventful(&t, "s").await?;
    let entries = exported(&*t.store, &session).await?;
    let target = key_of("bob", "s");
    for at in 0..entries.len() {
        let mut less = entries.clone();
        less.remove(at);
        if matches!(entries[at], Entry::Version(_)) || is_spare(&entries, at) {
            continue;
        }
        let mut import = ImportSession::new(target.clone(), less);
        import.snapshots = SnapshotIds::Fresh;
        refused(t.store.import(import).await, ErrorKind::Invalid, &format!("an export without {:?}", entries[at]))?;
    }
    for (what, forged) in forgeries(&entries) {
        let mut import = ImportSession::new(target.clone(), forged);
        import.snapshots = SnapshotIds::Fresh;
        refused(t.store.import(import).await, ErrorKind::Invalid, what)?;
    }
    same(t.second().await?.session(&target).await?.is_none(), true, "whether nothing was brought in")?;
    holds(t.second().await?.previews(&[session]).await?[0].is_some(), "the original is still there")
}

/// A stretch of the tree that holds no record of its own says nothing.
fn is_spare(entries: &[Entry], at: usize) -> bool {
    let Entry::Segment(segment) = &entries[at] else { return false };
    !entries.iter().any(|entry| matches!(entry, Entry::Record(record) if record.segment == segment.id))
}

fn forgeries(entries: &[Entry]) -> Vec<(&'static str, Vec<Entry>)> {
    let mut forged = Vec::new();
    let mut forge = |what: &'static str, how: &dyn Fn(&mut Entry) -> bool| {
        let mut copy = entries.to_vec();
        if copy.iter_mut().any(how) {
            forged.push((what, copy));
        }
    };
    forge("a changed message", &|entry| match entry {
        Entry::Record(record) if record.body.as_str().contains("re: one") => {
            record.body = Json::trusted(record.body.as_str().replace("re: one", "re: 0ne"));
            true
        }
        _ => false,
    });
    forge("a changed artifact", &|entry| match entry {
        Entry::Record(record) if !record.contents.is_empty() => {
            record.contents[0] = Artifact::new("plan.txt", vec![Part::text("spill")]);
            true
        }
        _ => false,
    });
    forge("a record of another kind", &|entry| match entry {
        Entry::Record(record) if record.kind == RecordKind::Void => {
            record.kind = RecordKind::End;
            true
        }
        _ => false,
    });
    forge("a branch that stands inside a turn", &|entry| match entry {
        Entry::Session(session) => {
            session.branches[0].at.seq += 1;
            true
        }
        _ => false,
    });
    forge("a session without main", &|entry| match entry {
        Entry::Session(session) => {
            session.branches.remove(0);
            true
        }
        _ => false,
    });
    forge("an origin that is not there", &|entry| match entry {
        Entry::Session(session) => {
            session.forked_from = Some(crate::ForkOrigin { session: session.id.clone(), point: crate::Point::new(1) });
            true
        }
        _ => false,
    });
    forge("a stretch that hangs from itself", &|entry| match entry {
        Entry::Segment(segment) if segment.parent.is_some() => {
            segment.parent = segment.parent.map(|parent| crate::store::PlaceEntry { segment: segment.id, ..parent });
            true
        }
        _ => false,
    });
    forge("a snapshot that is pending", &|entry| match entry {
        Entry::Record(record) if record.snapshot.is_some() => {
            record.snapshot.iter_mut().for_each(|row| row.status = crate::SnapshotStatus::Pending);
            true
        }
        _ => false,
    });
    forge("a turn that never ended", &|entry| match entry {
        Entry::Session(session) => {
            let start = session.branches[0].at;
            session.open.push(crate::store::OpenEntry { begin: 3, attempt: 1, start, segment: None });
            true
        }
        _ => false,
    });
    forged
}

pub(super) async fn a_session_that_goes_while_it_is_taken_out_is_told(t: Bench) -> Check {
    let session = t.session("s").await?;
    for i in 0..3 {
        t.store.begin(super::bench::turn(&session, &i.to_string())).await?.begun()?;
        t.outlive_leases();
    }
    let changes = answer("kept");
    t.store.commit(Commit::new(session.clone(), changes)).await?;
    let page = t.store.export(&session, None).await?;
    let next = there(page.next, "more of the export")?;
    t.store.delete(&session).await?;
    refused(t.store.export(&session, Some(&next)).await, ErrorKind::NotFound, "an export of what is deleted")?;
    t.session("s").await?;
    refused(t.store.export(&session, Some(&next)).await, ErrorKind::Deleted, "an export of what was another session")?;
    refused(t.store.export(&key("unknown"), None).await, ErrorKind::NotFound, "an export of an unknown session")
}
