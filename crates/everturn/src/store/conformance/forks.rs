//! Forks: sessions whose line begins at a point of another one.

use super::bench::{Bench, answer, edit, end, iteration, json, key, told, turn, turn_at, turn_from};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{
    ArtifactQuery, At, Commit, CreateSession, EndTurn, EventQuery, ForkSession, ListSnapshots, SnapshotRef, StoreExt,
    TurnRef, UpdateSession,
};
use crate::{
    Artifact, ErrorKind, Event, FinishReason, ForkOrigin, Message, NewSnapshot, Outcome, Part, SessionId, SessionKey,
    SessionStatus, SnapshotStatus, Usage,
};

fn fork_at(at: At, id: &str) -> ForkSession {
    ForkSession::at(at).id(SessionId::new(id).expect("ids of cases are valid"))
}

async fn fork(t: &Bench, key: &SessionKey, id: &str) -> crate::Result<SessionKey> {
    Ok(t.store.fork(fork_at(At::head(key.clone()), id)).await?.key())
}

pub(super) async fn a_fork_begins_where_the_other_stands(t: Bench) -> Check {
    let create = CreateSession::at(key("s")).title("An order").label("new").metadata(json(r#"{"n":1.10}"#));
    t.store.create(create).await?;
    let session = key("s");
    let mut changes = answer("one");
    changes.usage = Usage::tokens(10, 5);
    let one = t.change(&session, changes).await?;
    let made = t.store.fork(fork_at(At::head(session.clone()), "f")).await?;
    let found = t.record(&key("f")).await?;
    same(&found, &made, "the fork as read and as answered")?;
    same(found.title.as_deref(), Some("An order"), "its title")?;
    same(found.metadata, json(r#"{"n":1.10}"#), "its metadata")?;
    same(found.labels.len(), 0, "its labels: nothing else is copied")?;
    same((found.usage, found.inherited_usage), (Usage::default(), Usage::tokens(10, 5)), "own and inherited usage")?;
    same((found.turns, found.status), (1, SessionStatus::Idle), "turns and status")?;
    same(found.forked_from, Some(ForkOrigin { session: session.id.clone(), point: one.point }), "its origin")?;
    holds(found.head > one.point, "its numbers go on from the fork point")?;
    let log: Vec<_> = t.records(&key("f")).await?.iter().map(|record| record.seq).collect();
    same(log, vec![found.head.seq()], "its own log")?;
    let (theirs, its) = (t.state(&session).await?, t.state(&key("f")).await?);
    same(its.digest(), theirs.digest(), "the digests of both")?;
    same(super::bench::texts(&its), vec!["one".to_owned()], "what was said")?;
    same(its.to_session_state().session_id, Some(key("f").id), "whose state it is")
}

pub(super) async fn forks_and_originals_go_their_own_ways(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "shared").await?;
    let forked = fork(&t, &session, "f").await?;
    t.say(&forked, "fork").await?;
    t.say(&session, "original").await?;
    t.store.update(&forked, UpdateSession::title("fork")).await?;
    same(t.texts(&session).await?, told(&["shared", "original"]), "what was said in the original")?;
    same(t.texts(&forked).await?, told(&["shared", "fork"]), "what was said in the fork")?;
    same(t.record(&session).await?.title, None, "the original's title")?;
    same(super::bench::said(&t.events(&forked).await?), told(&["shared", "fork"]), "the fork's events")?;
    let events = t.events(&forked).await?;
    holds(events.is_sorted_by(|a, b| a.seq < b.seq), "their numbers only grow")?;
    let turns: Vec<_> = events.iter().map(|event| event.turn_index).collect();
    same(turns, [0, 0, 1, 1].map(Some).to_vec(), "their turns go on counting")
}

pub(super) async fn a_fork_has_a_first_snapshot_of_its_own(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (theirs, receipt) = t.snap(&session, "one").await?;
    let id = t.snapshot_id();
    let mut request = fork_at(At::Snapshot(theirs), "f");
    request.snapshot = Some(id);
    t.store.fork(request).await?;
    let first = t.snapshot(id).await?;
    same((first.event, first.status), (None, SnapshotStatus::Completed), "its occasion and status")?;
    same((first.session, first.digest), (Some(key("f")), receipt.digest), "its session and digest")?;
    same((first.parent_id, first.orphaned), (None, false), "its parent, and whether it is orphaned")?;
    let listed = t.second().await?.snapshots(ListSnapshots::of(key("f"))).await?.items;
    same(listed.len(), 1, "the fork's snapshots: the original's are not among them")?;
    same(t.second().await?.latest(&key("f")).await?.map(|s| s.snapshot_id), Some(id), "the fork's latest")?;
    let (next, _) = t.run_snap(turn_at(id, "two"), "two").await?;
    let next = t.snapshot(next).await?;
    same((next.session, next.parent_id), (Some(key("f")), Some(id)), "session and parent of the next one")?;
    same((next.index, next.turn_index), (1, 1), "its index and turn: they go on counting")?;
    same(t.texts(&session).await?, told(&["one"]), "what was said in the original")
}

pub(super) async fn a_fork_may_begin_at_any_settled_point(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (one, _) = t.snap(&session, "one").await?;
    let begun = t.begin(&session, "two").await?;
    let inside = t.snapshot_id();
    let stepped = t.store.step(iteration(begun.fence, "half", inside)).await?;
    t.store.end(super::bench::failure(begun.fence, "two")).await?;
    let three = t.say(&session, "three").await?;
    t.rewind(&session, crate::Point::new(1)).await?;
    let half = [told(&["one"]), ["two", "half"].map(String::from).to_vec()].concat();
    let places = [
        (At::Snapshot(one), told(&["one"])),
        (At::Snapshot(inside), half.clone()),
        (At::Point(session.clone(), stepped.point), half),
        (At::Point(session.clone(), three.point), told(&["one", "three"])),
        (At::head(session.clone()), vec![]),
    ];
    for (i, (at, wanted)) in places.into_iter().enumerate() {
        let forked = t.store.fork(fork_at(at, &format!("f{i}"))).await?.key();
        same(t.texts(&forked).await?, wanted.clone(), "what was said up to the fork point")?;
        t.say(&forked, "more").await?;
        same(t.texts(&forked).await?, [wanted, told(&["more"])].concat(), "what was said after a turn in the fork")?;
    }
    same(t.texts(&session).await?.len(), 0, "what is at the original's head")
}

pub(super) async fn what_cannot_be_forked_is_refused(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.session("taken").await?;
    let (failed, receipt) = t.fail_snap(&session, "lost").await?;
    let at = |at| fork_at(at, "f");
    let taken = fork_at(At::head(session.clone()), "taken");
    refused(t.store.fork(taken).await, ErrorKind::AlreadyExists, "a fork under a taken id")?;
    refused(t.store.fork(at(At::Snapshot(failed))).await, ErrorKind::NotResumable, "a fork at a failed snapshot")?;
    let point = At::Point(session.clone(), receipt.point);
    refused(t.store.fork(at(point)).await, ErrorKind::NotResumable, "a fork at a void")?;
    for unknown in [
        At::head(key("unknown")),
        At::Snapshot(t.snapshot_id()),
        At::Point(session.clone(), crate::Point::new(999)),
        At::Head(session.clone(), crate::BranchName::new("unknown")?),
    ] {
        refused(t.store.fork(at(unknown)).await, ErrorKind::NotFound, "a fork at an unknown place")?;
    }
    same(t.second().await?.session(&key("f")).await?, None, "what the refusals created")
}

pub(super) async fn a_fork_does_not_wait_for_a_running_turn(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.say(&session, "one").await?;
    let begun = t.begin(&session, "two").await?;
    let forked = fork(&t, &session, "f").await?;
    same(t.record(&forked).await?.status, SessionStatus::Idle, "the fork's status")?;
    same(t.second().await?.running(Some(&forked)).await?.len(), 0, "the fork's running turns")?;
    t.say(&forked, "three").await?;
    holds(t.store.end(end(begun.fence, "two")).await?.on_head, "the turn in the original ends on its head")?;
    same(t.texts(&forked).await?, told(&["one", "three"]), "what was said in the fork")
}

pub(super) async fn a_fork_of_a_question_does_not_wait_for_its_answer(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "ask").await?;
    t.store.end(end(begun.fence, "ask").outcome(Outcome::finished(FinishReason::Interrupted))).await?;
    let forked = fork(&t, &session, "f").await?;
    same(t.record(&forked).await?.status, SessionStatus::Idle, "the fork's status")?;
    same(t.record(&session).await?.status, SessionStatus::Interrupted, "the original's status")
}

pub(super) async fn forks_of_forks_reach_all_the_way(t: Bench) -> Check {
    let mut session = t.session("s0").await?;
    let mut words = Vec::new();
    for i in 1..5 {
        let word = format!("turn {i}");
        t.say(&session, &word).await?;
        words.push(word);
        session = fork(&t, &session, &format!("s{i}")).await?;
    }
    let wanted: Vec<_> = words.iter().map(String::as_str).collect();
    same(t.texts(&session).await?, told(&wanted), "what was said up to the fourth fork")?;
    same(super::bench::said(&t.events(&session).await?), told(&wanted), "its events")?;
    same(t.record(&session).await?.turns, 4, "its turns")
}

pub(super) async fn a_fork_can_go_back_before_its_own_beginning(t: Bench) -> Check {
    let session = t.session("s").await?;
    let one = t.say(&session, "one").await?;
    t.say(&session, "two").await?;
    let forked = fork(&t, &session, "f").await?;
    let tip = t.say(&forked, "three").await?;
    t.rewind(&forked, one.point).await?;
    same(t.texts(&forked).await?, told(&["one"]), "what is at the fork's head after a rewind")?;
    t.say(&forked, "instead").await?;
    same(t.texts(&forked).await?, told(&["one", "instead"]), "what is there after another turn")?;
    t.run(turn_from(&forked, one.point, "again"), "again").await?;
    same(t.texts(&forked).await?, told(&["one", "again"]), "what is there after a turn from an inherited point")?;
    t.rewind(&forked, tip.point).await?;
    same(t.texts(&forked).await?, told(&["one", "two", "three"]), "what is there after the redo")?;
    same(t.texts(&session).await?, told(&["one", "two"]), "what is at the original's head")
}

pub(super) async fn a_fork_outlives_its_original(t: Bench) -> Check {
    let session = t.session("s").await?;
    let big = Event::model("m", Message::model("x".repeat(10_000)));
    t.change(&session, crate::Changes::new().event(big).artifact(Artifact::new("a", vec![Part::text("kept")]))).await?;
    let forked = fork(&t, &session, "f").await?;
    t.say(&session, "after the fork").await?;
    let before = t.state(&forked).await?.digest();
    t.store.delete(&session).await?;
    same(t.state(&forked).await?.digest(), before, "the fork's state after the original is deleted")?;
    let purged = t.store.purge(&session).await?;
    holds(purged.kept_for_forks > 0, "the purge says what stays for the fork")?;
    let state = t.state(&forked).await?;
    same((state.digest(), state.messages().len()), (before, 1), "the fork's state after the purge")?;
    same(state.artifacts().len(), 1, "its artifacts")?;
    t.say(&forked, "on").await?;
    same(t.texts(&forked).await?.len(), 3, "its messages after another turn")?;
    let verified = t.second().await?.verify(crate::store::VerifyScope::All).await?;
    same(verified.damage, None, "the damage")?;
    t.session("s").await?;
    same(t.texts(&session).await?.len(), 0, "what is in a new session under the original's id")
}

pub(super) async fn a_fork_names_no_snapshot_of_an_original_that_is_gone(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (inherited, one) = t.snap(&session, "one").await?;
    let forked = fork(&t, &session, "f").await?;
    t.rewind(&forked, one.point).await?;
    let (id, _) = t.snap(&forked, "while it lives").await?;
    same(t.snapshot(id).await?.parent_id, Some(inherited), "the parent while the original is there")?;

    // Its head is a point of the original's, and so is where two of the turns start.
    t.rewind(&forked, one.point).await?;
    let aborted = t.snapshot_id();
    let running = t.store.begin(turn_from(&forked, one.point, "aborted").snapshot(aborted)).await?.begun()?;
    t.store.delete(&session).await?;
    t.store.abort(TurnRef::Turn(running.turn)).await?;
    same(t.snapshot(aborted).await?.parent_id, None, "the parent of an aborted turn's snapshot")?;
    let edited = t.snapshot_id();
    let commit = Commit { snapshot: Some(NewSnapshot::new(edited)), ..edit(&forked, "edit") };
    t.store.commit(commit).await?;
    same(t.snapshot(edited).await?.parent_id, None, "the parent of an edit's snapshot")?;
    let (again, _) = t.run_snap(turn_from(&forked, one.point, "again"), "again").await?;
    same(t.snapshot(again).await?.parent_id, None, "the parent of a turn's snapshot")?;
    let nearest = t.store.snapshot(SnapshotRef::Nearest(forked, one.point)).await?;
    same(nearest.map(|snapshot| snapshot.snapshot_id), None, "the nearest snapshot of an inherited point")
}

pub(super) async fn a_fork_knows_whose_turns_it_has_inherited(t: Bench) -> Check {
    let session = t.session("s").await?;
    let dead = t.begin(&session, "one").await?;
    t.outlive_leases();
    t.say(&session, "two").await?;
    // The first attempt is off every line now; the second one goes on beside the branch.
    let again = t.store.take_over(dead.turn).await?;
    let two = answer("one").event(Event::model("helper", Message::model("and more")));
    let receipt = t.store.end(EndTurn::completed(again.fence, two)).await?;
    let forked = t.store.fork(fork_at(At::Point(session.clone(), receipt.point), "f")).await?.key();
    // Without the turn's begin, which says whose it is.
    let last = EventQuery { tail: Some(1), ..EventQuery::of(forked) };
    let before = t.query(last.clone()).await?;
    holds(before.iter().any(|event| event.invocation_id.is_some()), "its last event has an invocation")?;
    t.store.delete(&session).await?;
    same(t.query(last.clone()).await?, before.clone(), "its last event once the original is deleted")?;
    t.store.purge(&session).await?;
    same(t.query(last).await?, before, "its last event once the original is purged")
}

pub(super) async fn a_fork_goes_on_counting_versions(t: Bench) -> Check {
    let session = t.session("s").await?;
    let put = |text: &str| answer("made").artifact(Artifact::new("a", vec![Part::text(text)]));
    t.change(&session, put("v0")).await?;
    t.change(&session, put("v1")).await?;
    let forked = fork(&t, &session, "f").await?;
    t.change(&session, put("v2 of the original")).await?;
    t.change(&forked, put("v2 of the fork")).await?;
    let versions = async |key: &SessionKey| -> Check<Vec<(u64, String)>> {
        let found = t.second().await?.artifacts(ArtifactQuery::of(key.clone()).name("a")).await?;
        let text = |part: &Part| part.as_text().unwrap_or_default();
        Ok(found.iter().map(|a| (a.version.version, a.artifact.parts.iter().map(text).collect())).collect())
    };
    let wanted = |last: &str| [(0, "v0"), (1, "v1"), (2, last)].map(|(n, text)| (n, text.to_owned())).to_vec();
    same(versions(&session).await?, wanted("v2 of the original"), "the original's versions")?;
    same(versions(&forked).await?, wanted("v2 of the fork"), "the fork's versions")
}

pub(super) async fn a_fork_stays_with_its_user(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.change(&session, super::bench::set(super::bench::delta("user:k", "1").set("own", json("2")))).await?;
    let forked = fork(&t, &session, "f").await?;
    same((&forked.app, &forked.user), (&session.app, &session.user), "the fork's app and user")?;
    let merged = t.second().await?.scoped_state(&forked).await?;
    same(merged, [("own".to_owned(), json("2")), ("user:k".to_owned(), json("1"))].into(), "the keys it sees")?;
    let made = t.store.fork(ForkSession::at(At::head(session.clone()))).await?;
    holds(made.id != session.id && made.id != forked.id, "without an id a fresh one is made")?;
    let begun = t.store.begin(turn(&made.key(), "x")).await?.begun()?;
    t.store.end(end(begun.fence, "x")).await?;
    t.store.commit(edit(&made.key(), "y")).await?;
    let events = t.second().await?.events(EventQuery::of(made.key())).await?;
    same(there(events.items.last(), "the last event")?.messages.len(), 1, "the messages of the last event")
}
