//! Branches: named heads that are made, moved and deleted.

use super::bench::{Bench, answer, delta, edit, end, json, key, move_main, set, told, turn, turn_at};
use super::verdict::{Check, holds, refused, same};
use crate::store::{At, BranchChange, StoreExt, UnderLease, UpdateSession};
use crate::{Artifact, Branch, BranchName, ErrorKind, Part, Point, RecordKind, Usage};

fn delete(name: &BranchName, under_lease: UnderLease) -> BranchChange {
    BranchChange::Delete { name: name.clone(), expect: None, under_lease }
}

fn heads(branches: &[Branch]) -> Vec<(String, Point)> {
    let mut heads: Vec<_> = branches.iter().map(|b| (b.name.to_string(), b.head)).collect();
    heads.sort();
    heads
}

pub(super) async fn a_branch_stands_at_its_own_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    let side = t.branch_off(&key, "side", one.point).await?;
    let wanted = vec![("main".to_owned(), two.point), ("side".to_owned(), one.point)];
    same(heads(&t.record(&key).await?.branches), wanted, "the branches")?;
    let on_side = t.run(turn(&key, "three").branch(side.clone()), "three").await?;
    holds(on_side.on_head, "a turn on the branch ends on its head")?;
    let edited = t.store.commit(edit(&key, "noted").branch(side.clone())).await?;
    let wanted = vec![("main".to_owned(), two.point), ("side".to_owned(), edited.point)];
    same(heads(&t.record(&key).await?.branches), wanted, "the branches after a turn and an edit on one")?;
    let said = [told(&["one", "three"]), vec!["noted".into()]].concat();
    same(t.texts_at(At::Head(key.clone(), side)).await?, said, "what is on the branch")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what is on main")?;
    same(t.record(&key).await?.turns, 2, "the turns on the way to main's head")
}

pub(super) async fn a_branch_needs_a_free_name_and_a_settled_point(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let begun = t.begin(&key, "lost").await?;
    let stepped = t.store.step(super::bench::step(begun.fence, "half")).await?;
    let failed = t.store.end(super::bench::failure(begun.fence, "lost")).await?;
    t.branch_off(&key, "side", one.point).await?;
    let before = t.footprint(&key).await?;
    for name in ["side", "main"] {
        refused(t.branch_off(&key, name, one.point).await, ErrorKind::AlreadyExists, "a branch of a taken name")?;
    }
    refused(t.branch_off(&key, "x", Point::new(999)).await, ErrorKind::NotFound, "a branch at an unknown point")?;
    for point in [begun.point, stepped.point, failed.point] {
        refused(t.branch_off(&key, "x", point).await, ErrorKind::NotResumable, "a branch inside a turn")?;
        refused(t.rewind(&key, point).await, ErrorKind::NotResumable, "a rewind to inside a turn")?;
    }
    let unknown = super::bench::key("unknown");
    refused(t.branch_off(&unknown, "x", one.point).await, ErrorKind::NotFound, "a branch of an unknown session")?;
    same(t.footprint(&key).await?, before, "what the refusals left")
}

pub(super) async fn a_rewind_deletes_nothing_and_redo_brings_it_back(t: Bench) -> Check {
    let key = t.session("s").await?;
    let root = t.head(&key).await?;
    let one = t.say(&key, "one").await?;
    let two = t.change(&key, answer("two").custom(json(r#"{"n":2}"#))).await?;
    let back = t.rewind(&key, one.point).await?;
    same((back.head, back.turns), (one.point, 1), "head and turns as answered")?;
    let state = t.state(&key).await?;
    same((state.digest(), state.custom()), (one.digest, None), "the state after the rewind")?;
    same(t.events(&key).await?.len(), 2, "the events after the rewind")?;
    let ahead = t.state_at(At::Point(key.clone(), two.point)).await?;
    same(ahead.digest(), two.digest, "the state ahead of the head, still there")?;
    t.rewind(&key, root).await?;
    same(t.texts(&key).await?.len(), 0, "the messages before the first turn")?;
    t.rewind(&key, two.point).await?;
    let state = t.state(&key).await?;
    same((state.digest(), state.custom()), (two.digest, Some(&json(r#"{"n":2}"#))), "the state after the redo")?;
    same(t.record(&key).await?.turns, 2, "the turns after the redo")
}

pub(super) async fn a_turn_after_a_rewind_opens_another_line(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    t.rewind(&key, one.point).await?;
    let begun = t.begin(&key, "three").await?;
    same((begun.leased, begun.from, begun.turn_index), (true, one.point, 1), "lease, start and index")?;
    let three = t.store.end(end(begun.fence, "three")).await?;
    same(t.texts(&key).await?, told(&["one", "three"]), "what is at the head")?;
    t.rewind(&key, two.point).await?;
    t.say(&key, "four").await?;
    same(t.texts(&key).await?, told(&["one", "two", "four"]), "what is at the head after going on from the old line")?;
    t.rewind(&key, three.point).await?;
    same(t.texts(&key).await?, told(&["one", "three"]), "what is at the head after another redo")
}

pub(super) async fn a_rewind_concerns_the_line_only(t: Bench) -> Check {
    let key = t.session("s").await?;
    let root = t.head(&key).await?;
    let spent = answer("x").artifact(Artifact::new("a", vec![Part::text("v0")]));
    let mut changes = spent.event(crate::Event::new("m").with_state(delta("user:k", "1").set("own", json("1"))));
    changes.usage = Usage::tokens(3, 4);
    t.change(&key, changes).await?;
    t.store.update(&key, UpdateSession::title("after")).await?;
    t.rewind(&key, root).await?;
    let session = t.record(&key).await?;
    same(session.title.as_deref(), Some("after"), "the title")?;
    same(session.usage, Usage::tokens(3, 4), "what was spent")?;
    same(t.custom(&key).await?, None, "the session's own state")?;
    let store = t.second().await?;
    same(store.scopes(&key.app, Some(&key.user)).await?.len(), 1, "the user's state")?;
    same(store.artifacts(crate::store::ArtifactQuery::of(key.clone())).await?.len(), 1, "the artifact's versions")?;
    same(t.state(&key).await?.artifacts().len(), 0, "the artifacts at the head")
}

pub(super) async fn a_branch_can_be_deleted_but_not_main(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let side = t.branch_off(&key, "side", one.point).await?;
    let (id, receipt) = t.run_snap(turn(&key, "side").branch(side.clone()), "side").await?;
    t.store.branch(&key, delete(&side, UnderLease::Refuse)).await?;
    same(heads(&t.record(&key).await?.branches), vec![("main".to_owned(), one.point)], "the branches left")?;
    let gone = t.second().await?.state(At::Head(key.clone(), side.clone())).await?;
    holds(gone.is_none(), "the branch has no state")?;
    let snapshot = t.snapshot(id).await?;
    holds(snapshot.orphaned && snapshot.is_resumable(), "what was on it is orphaned, not lost")?;
    same(t.texts_at(At::Snapshot(id)).await?, told(&["one", "side"]), "what was said on it")?;
    for name in [side.clone(), BranchName::new("unknown")?] {
        let change = delete(&name, UnderLease::Refuse);
        refused(t.store.branch(&key, change).await, ErrorKind::NotFound, "deleting a branch that is not there")?;
        let change = BranchChange::Move { name, to: one.point, expect: None, under_lease: UnderLease::Refuse };
        refused(t.store.branch(&key, change).await, ErrorKind::NotFound, "moving a branch that is not there")?;
    }
    let main = delete(&BranchName::main(), UnderLease::Force);
    refused(t.store.branch(&key, main).await, ErrorKind::Invalid, "deleting main")?;
    let again = t.branch_off(&key, "side", receipt.point).await?;
    same(t.texts_at(At::Head(key.clone(), again)).await?, told(&["one", "side"]), "a branch of that name again")
}

pub(super) async fn a_leased_branch_stays_where_it_is_unless_forced(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let side = t.branch_off(&key, "side", one.point).await?;
    let on_main = t.begin(&key, "main").await?;
    let on_side = t.store.begin(turn(&key, "side").branch(side.clone())).await?.begun()?;
    let before = t.footprint(&key).await?;
    let root = Point::new(1);
    refused(t.store.branch(&key, move_main(root, UnderLease::Refuse)).await, ErrorKind::Busy, "a rewind")?;
    refused(t.store.rewind(&key, one.point).await, ErrorKind::Busy, "a move to where the head stands")?;
    let change = delete(&side, UnderLease::Refuse);
    refused(t.store.branch(&key, change).await, ErrorKind::Busy, "a deletion")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    t.branch_off(&key, "free", one.point).await?;
    t.store.branch(&key, delete(&side, UnderLease::Force)).await?;
    let ended = t.store.end(end(on_side.fence, "side")).await?;
    holds(!ended.on_head, "a turn whose branch was deleted ends off the head")?;
    same(t.texts_at(At::Point(key.clone(), ended.point)).await?, told(&["one", "side"]), "what it said is kept")?;
    holds(t.store.end(end(on_main.fence, "main")).await?.on_head, "the other turn ends on its head")
}

pub(super) async fn a_move_may_insist_on_the_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    let to = |expect: Point| BranchChange::Move {
        name: BranchName::main(),
        to: Point::new(1),
        expect: Some(expect),
        under_lease: UnderLease::Force,
    };
    let before = t.footprint(&key).await?;
    refused(t.store.branch(&key, to(one.point)).await, ErrorKind::Conflict, "a move that expects another head")?;
    same(t.footprint(&key).await?, before, "what the refusal left")?;
    same(t.store.branch(&key, to(two.point)).await?.head, Point::new(1), "the head after a move that expected it")
}

pub(super) async fn the_dead_do_not_hold_a_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    t.say(&key, "two").await?;
    let dead = t.begin(&key, "dead").await?;
    t.outlive_leases();
    t.rewind(&key, one.point).await?;
    same(t.head(&key).await?, one.point, "the head")?;
    refused(t.store.end(end(dead.fence, "dead")).await, ErrorKind::Fenced, "the dead turn's end")?;
    same(t.texts(&key).await?, told(&["one"]), "what is at the head")
}

pub(super) async fn branch_changes_are_admin_records(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let side = t.branch_off(&key, "side", one.point).await?;
    let (name, to) = (side.clone(), Point::new(1));
    t.store.branch(&key, BranchChange::Move { name, to, expect: None, under_lease: UnderLease::Refuse }).await?;
    t.rewind(&key, Point::new(1)).await?;
    t.store.branch(&key, delete(&side, UnderLease::Refuse)).await?;
    let records = t.records(&key).await?;
    let admin = records.iter().filter(|record| record.kind == RecordKind::Admin);
    same(admin.clone().count(), 4, "the admin records")?;
    holds(admin.clone().all(|record| record.segment == 0 && record.turn.is_none()), "they are in no segment or turn")?;
    let admin_point = Point::new(records.last().map_or(0, |record| record.seq));
    holds(t.second().await?.state(At::Point(key.clone(), admin_point)).await?.is_none(), "they are no points")
}

pub(super) async fn a_line_through_many_branches_reads_right(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut wanted = Vec::new();
    for i in 0..40 {
        let (base, _) = t.snap(&session, &format!("turn {i}")).await?;
        t.say(&session, "regretted").await?;
        wanted.push(format!("turn {i}"));
        t.run(turn_at(base, &format!("better {i}")), &format!("better {i}")).await?;
        wanted.push(format!("better {i}"));
    }
    let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
    same(t.texts(&key("s")).await?, told(&wanted), "what is at the head")?;
    same(t.record(&session).await?.turns, 80, "the turns along the line")?;
    same(t.events(&session).await?.len(), 100, "the first page of events")
}

pub(super) async fn state_of_one_branch_is_not_anothers(t: Bench) -> Check {
    let key = t.session("s").await?;
    let base = t.change(&key, set(delta("k", "0"))).await?;
    let side = t.branch_off(&key, "side", base.point).await?;
    t.change(&key, set(delta("k", "1"))).await?;
    let begun = t.store.begin(turn(&key, "x").branch(side.clone())).await?.begun()?;
    t.store.end(crate::store::EndTurn::completed(begun.fence, set(delta("other", "2")))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"k":1}"#)), "main's state")?;
    let on_side = t.state_at(At::Head(key.clone(), side)).await?;
    same(on_side.custom(), Some(&json(r#"{"k":0,"other":2}"#)), "the other branch's state")
}
