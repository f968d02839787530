//! Deleting sessions, and those who have not heard of it.

use super::bench::{
    Bench, answer, delta, edit, end, failure, key, key_of, set, step, texts, told, turn, turn_at, turn_key,
};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{
    ArtifactQuery, At, CreateSession, EventQuery, ForkSession, ListSessions, ListSnapshots, RecordQuery, SnapshotRef,
    StoreExt, TurnRef, UpdateSession,
};
use crate::{Artifact, ErrorKind, Part, Point};

pub(super) async fn what_is_deleted_is_gone(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (id, receipt) = t.snap(&session, "one").await?;
    same(t.store.delete(&session).await?, true, "whether there was one")?;
    let store = t.second().await?;
    same(store.session(&session).await?, None, "the session")?;
    holds(store.state(At::head(session.clone())).await?.is_none(), "its head has no state")?;
    holds(store.state(At::Point(session.clone(), receipt.point)).await?.is_none(), "its points have no state")?;
    holds(store.state(At::Snapshot(id)).await?.is_none(), "its snapshots have no state")?;
    same(store.snapshot(SnapshotRef::Id(id)).await?, None, "its snapshot")?;
    same(store.latest(&session).await?, None, "its latest")?;
    same(store.list(ListSessions::default()).await?.items, vec![], "the sessions listed")?;
    refused(store.begin(turn(&session, "x")).await, ErrorKind::NotFound, "a turn in it")?;
    refused(store.begin(turn_at(id, "x")).await, ErrorKind::NotFound, "a turn at its snapshot")?;
    refused(store.commit(edit(&session, "x")).await, ErrorKind::NotFound, "an edit of it")?;
    refused(store.update(&session, UpdateSession::title("x")).await, ErrorKind::NotFound, "an update of it")?;
    refused(store.label(id, None).await, ErrorKind::NotFound, "a label for its snapshot")?;
    refused(store.events(EventQuery::of(session.clone())).await, ErrorKind::NotFound, "its events")?;
    refused(store.records(RecordQuery::of(session.clone())).await, ErrorKind::NotFound, "its records")
}

pub(super) async fn deleting_what_is_not_there_is_no_error(t: Bench) -> Check {
    same(t.store.delete(&key("unknown")).await?, false, "whether there was one")?;
    let session = t.session("s").await?;
    t.store.delete(&session).await?;
    same(t.store.delete(&session).await?, false, "whether there was one the second time")
}

pub(super) async fn another_users_session_is_not_deleted(t: Bench) -> Check {
    let mine = t.session("s").await?;
    t.say(&mine, "one").await?;
    same(t.store.delete(&key_of("bob", "s")).await?, false, "whether bob had one")?;
    t.store.create(CreateSession::at(key_of("bob", "s"))).await?;
    same(t.store.delete(&key_of("bob", "s")).await?, true, "whether bob had one now")?;
    same(t.texts(&mine).await?, told(&["one"]), "what was said in the other one")
}

pub(super) async fn a_session_created_again_is_a_new_one(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.store.begin(turn(&session, "one").key(turn_key("k"))).await?.begun()?;
    let changes = answer("x").artifact(Artifact::new("a", vec![Part::text("old")])).custom(super::bench::json("{}"));
    t.store.end(crate::store::EndTurn::completed(begun.fence, changes)).await?;
    let (old, _) = t.snap(&session, "two").await?;
    t.branch_off(&session, "side", Point::new(1)).await?;
    t.store.update(&session, UpdateSession::title("old")).await?;
    t.store.delete(&session).await?;
    let made = t.session("s").await?;
    let found = t.record(&made).await?;
    same((found.head, found.turns, found.branches.len()), (Point::new(1), 0, 1), "head, turns and branches")?;
    same((found.title, found.usage.is_empty()), (None, true), "title and usage")?;
    let state = t.state(&made).await?;
    holds(state.messages().is_empty() && state.custom().is_none(), "nothing was said in it")?;
    let store = t.second().await?;
    same(store.artifacts(ArtifactQuery::of(made.clone())).await?.len(), 0, "its artifacts")?;
    same(store.snapshots(ListSnapshots::of(made.clone())).await?.items, vec![], "its snapshots")?;
    same(store.snapshot(SnapshotRef::Id(old)).await?, None, "the old snapshot")?;
    same(t.records(&made).await?.len(), 1, "its records")?;
    t.change(&made, answer("y").artifact(Artifact::new("a", vec![Part::text("new")]))).await?;
    let versions = t.second().await?.artifacts(ArtifactQuery::of(made)).await?;
    same((versions.len(), versions[0].version.version), (1, 0), "the first version of an artifact")
}

pub(super) async fn late_writers_are_told_of_the_deletion(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.store.begin(turn(&session, "one")).await?.begun()?;
    t.store.step(crate::store::StepTurn::new(begun.fence, set(delta("user:k", "1")))).await?;
    t.second().await?.delete(&session).await?;
    for recreated in [false, true] {
        if recreated {
            t.session("s").await?;
            t.say(&session, "new").await?;
        }
        for store in [t.store.clone(), t.second().await?] {
            refused(store.step(step(begun.fence, "late")).await, ErrorKind::Deleted, "a late step")?;
            refused(store.end(end(begun.fence, "late")).await, ErrorKind::Deleted, "a late end")?;
            refused(store.end(failure(begun.fence, "late")).await, ErrorKind::Deleted, "a late failure")?;
            refused(store.renew(&begun.fence).await, ErrorKind::Deleted, "a late sign of life")?;
        }
    }
    same(t.texts(&session).await?, told(&["new"]), "what was said in the session created again")?;
    let scopes = t.second().await?.scopes(&session.app, Some(&session.user)).await?;
    same(scopes.len(), 0, "the scopes of the turn that never completed")
}

pub(super) async fn turns_of_the_deleted_are_gone(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "one").await?;
    t.store.delete(&session).await?;
    let store = t.second().await?;
    same(store.running(None).await?.len(), 0, "the running turns")?;
    holds(store.turn(begun.turn).await?.is_none(), "the turn reads as nothing")?;
    let gone = store.abort(TurnRef::Turn(begun.turn)).await;
    let kinds = [ErrorKind::NotFound, ErrorKind::Deleted];
    holds(gone.is_err_and(|error| kinds.contains(&error.kind())), "it cannot be aborted")?;
    t.outlive_leases();
    let gone = store.take_over(begun.turn).await;
    holds(gone.is_err_and(|error| kinds.contains(&error.kind())), "it cannot be taken over")?;
    t.session("s").await?;
    holds(t.store.begin(turn(&session, "x")).await?.begun()?.leased, "nothing holds the branch of the new session")
}

pub(super) async fn a_purge_leaves_nothing(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "one").await?;
    t.say(&session, "two").await?;
    let records = t.records(&session).await?.len() as u64;
    let purged = t.store.purge(&session).await?;
    same((purged.removed, purged.kept_for_forks), (records, 0), "what was removed, and what stays")?;
    same(t.second().await?.session(&session).await?, None, "the session")?;
    let again = t.store.purge(&session).await?;
    same((again.removed, again.kept_for_forks), (0, 0), "what a second purge removed")?;
    let unknown = t.store.purge(&key("unknown")).await?;
    same((unknown.removed, unknown.kept_for_forks), (0, 0), "what purging an unknown session removed")
}

pub(super) async fn what_is_deleted_already_can_be_purged(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "old").await?;
    t.store.delete(&session).await?;
    t.session("s").await?;
    t.store.delete(&session).await?;
    t.store.purge(&session).await?;
    same(t.second().await?.session(&session).await?, None, "the session")?;
    t.session("s").await?;
    t.say(&session, "new").await?;
    same(t.texts(&session).await?, told(&["new"]), "what was said in a session created afterwards")
}

pub(super) async fn snapshot_ids_of_the_deleted_are_free(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "one").await?;
    let id = t.snapshot_id();
    t.store.end(end(begun.fence, "one").snapshot(crate::NewSnapshot::new(id))).await?;
    t.store.purge(&session).await?;
    t.session("s").await?;
    let begun = t.begin(&session, "two").await?;
    let again = t.store.end(end(begun.fence, "two").snapshot(crate::NewSnapshot::new(id))).await?;
    same(again.snapshot_id, Some(id), "the snapshot on the receipt")?;
    same(t.texts_at(At::Snapshot(id)).await?, told(&["two"]), "what it names")
}

pub(super) async fn numbers_of_the_purged_are_not_given_again(t: Bench) -> Check {
    let session = t.session("s").await?;
    let late = t.begin(&session, "old").await?;
    t.store.purge(&session).await?;
    t.session("s").await?;
    let begun = t.begin(&session, "new").await?;
    holds(begun.turn != late.turn, "no turn's name is given twice")?;
    refused(t.store.step(step(late.fence, "late")).await, ErrorKind::Deleted, "a late step")?;
    refused(t.store.end(end(late.fence, "late")).await, ErrorKind::Deleted, "a late end")?;
    t.store.end(end(begun.fence, "new")).await?;
    same(t.texts(&session).await?, told(&["new"]), "what was said")
}

pub(super) async fn points_of_a_session_created_again_are_its_own(t: Bench) -> Check {
    let create = |text: &str| CreateSession { changes: answer(text), ..CreateSession::at(key("s")) };
    let old = t.store.create(create("old")).await?;
    // A turn runs there, and a fork keeps what it started from in use.
    t.begin(&key("s"), "runs").await?;
    let before = there(t.store.state(At::Point(key("s"), old.head)).await?, "the old session's first point")?;
    same(texts(&before), vec!["old".to_owned()], "what was there")?;
    t.store.fork(ForkSession::at(At::head(key("s"))).id(key("f").id)).await?;
    t.store.delete(&key("s")).await?;
    let inherited = there(t.store.state(At::Point(key("f"), old.head)).await?, "what the fork inherited")?;
    same(texts(&inherited), vec!["old".to_owned()], "what the fork inherited")?;
    let new = t.store.create(create("new")).await?;
    same(new.head, old.head, "the number of the new session's head")?;
    let found = there(t.store.state(At::Point(key("s"), new.head)).await?, "the new session's first point")?;
    same(texts(&found), vec!["new".to_owned()], "what is there")
}
