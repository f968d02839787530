//! Starting where the head is not: side lines, and what becomes of the head.

use super::bench::{
    Bench, edit, end, iteration, json, key_of, move_main, step, told, turn, turn_at, turn_from, turn_key,
};
use super::verdict::{Check, holds, refused, same};
use crate::store::{At, Busy, CreateSession, Start, UnderLease};
use crate::{Begun, BranchName, ErrorKind, NewSnapshot, Point};

pub(super) async fn a_snapshot_at_a_free_head_takes_the_lease(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (id, receipt) = t.snap(&key, "one").await?;
    let begun = t.store.begin(turn_at(id, "two")).await?.begun()?;
    same((begun.from, begun.leased, &begun.session), (receipt.point, true, &key), "start, lease and session")?;
    refused(t.store.begin(turn(&key, "three")).await, ErrorKind::Busy, "a turn beside it")?;
    holds(t.store.end(end(begun.fence, "two")).await?.on_head, "it ends on the head")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what was said")
}

pub(super) async fn a_start_by_snapshot_never_waits(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (id, receipt) = t.snap(&key, "one").await?;
    let main = t.begin(&key, "two").await?;
    for busy in [Busy::Refuse, Busy::Wait(std::time::Duration::from_secs(100)), Busy::Branch] {
        let begun = t.store.begin(turn_at(id, "beside").busy(busy)).await?.begun()?;
        same((begun.from, begun.leased), (receipt.point, false), "where a start by snapshot stands, and its lease")?;
        t.store.end(end(begun.fence, "beside")).await?;
    }
    holds(t.store.end(end(main.fence, "two")).await?.on_head, "the leaseholder ends on the head")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what is at the head")
}

pub(super) async fn the_head_moves_when_the_side_line_completes(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (id, _) = t.snap(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    let begun = t.store.begin(turn_at(id, "instead")).await?.begun()?;
    same((begun.leased, begun.turn_index), (false, 1), "lease and index of a turn from an old snapshot")?;
    t.store.step(step(begun.fence, "half")).await?;
    same(t.head(&key).await?, two.point, "the head while it runs")?;
    let ended = t.store.end(end(begun.fence, "instead")).await?;
    holds(ended.on_head, "a side line moves a head that stayed where it was")?;
    let wanted = [told(&["one"]), ["instead", "half", "re: instead"].map(String::from).to_vec()].concat();
    same(t.texts(&key).await?, wanted, "what is at the head")?;
    same(t.texts_at(At::Point(key.clone(), two.point)).await?, told(&["one", "two"]), "what the old line says")?;
    same(t.record(&key).await?.turns, 2, "the turns along the line")
}

pub(super) async fn parallel_turns_from_one_snapshot_all_survive(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let words = ["a", "b", "c", "d"];
    let mut begun: Vec<Begun> = Vec::new();
    for word in words {
        begun.push(t.store.begin(turn_at(base, word)).await?.begun()?);
    }
    let mut ends = Vec::new();
    for (one, word) in begun.iter().zip(words) {
        let id = t.snapshot_id();
        let receipt = t.store.end(end(one.fence, word).snapshot(NewSnapshot::new(id))).await?;
        ends.push((id, word, receipt));
    }
    let on_head: Vec<_> = ends.iter().map(|(_, _, receipt)| receipt.on_head).collect();
    same(on_head, vec![true, false, false, false], "who is on the head: the first to end")?;
    same(t.head(&key).await?, ends[0].2.point, "the head")?;
    for (id, word, receipt) in &ends {
        let snapshot = t.snapshot(*id).await?;
        holds(snapshot.is_resumable(), "every one of them is resumable")?;
        same(snapshot.orphaned, !receipt.on_head, "whether it is orphaned")?;
        same(t.texts_at(At::Snapshot(*id)).await?, told(&["base", word]), "what it says")?;
    }
    let begun = t.store.begin(turn_at(ends[2].0, "again")).await?.begun()?;
    holds(t.store.end(end(begun.fence, "again")).await?.on_head, "an orphan that is resumed comes back")?;
    same(t.texts(&key).await?, told(&["base", "c", "again"]), "what is at the head")?;
    holds(!t.snapshot(ends[2].0).await?.orphaned, "it is no longer orphaned")?;
    holds(t.snapshot(ends[0].0).await?.orphaned, "the one it replaced is")
}

pub(super) async fn a_side_line_never_pushes_a_leaseholder_off(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    let main = t.begin(&key, "main").await?;
    let ended = t.store.end(end(aside.fence, "aside")).await?;
    holds(!ended.on_head, "a side line that ends under a lease stays off the head")?;
    let done = t.store.end(end(main.fence, "main")).await?;
    holds(done.on_head, "the leaseholder ends on the head")?;
    same(t.texts(&key).await?, told(&["base", "old", "main"]), "what is at the head")?;
    same(t.texts_at(At::Point(key.clone(), ended.point)).await?, told(&["base", "aside"]), "what is on the side line")
}

pub(super) async fn a_side_line_does_not_undo_what_came_meanwhile(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    let newer = t.say(&key, "newer").await?;
    holds(!t.store.end(end(aside.fence, "aside")).await?.on_head, "it ends off the head")?;
    same(t.head(&key).await?, newer.point, "the head")?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    let edited = t.store.commit(edit(&key, "noted")).await?;
    holds(!t.store.end(end(aside.fence, "aside")).await?.on_head, "it ends off the head after an edit as well")?;
    same(t.head(&key).await?, edited.point, "the head after the edit")?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    t.rewind(&key, newer.point).await?;
    holds(!t.store.end(end(aside.fence, "aside")).await?.on_head, "it ends off the head after a rewind as well")?;
    same(t.head(&key).await?, newer.point, "the head after the rewind")
}

pub(super) async fn a_failed_turn_meanwhile_is_no_change(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    t.fail(&key, "lost").await?;
    holds(t.store.end(end(aside.fence, "aside")).await?.on_head, "the head stayed, so the side line moves it")?;
    same(t.texts(&key).await?, told(&["base", "aside"]), "what is at the head")
}

pub(super) async fn a_failed_side_line_moves_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    let old = t.say(&key, "old").await?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    holds(!t.store.end(super::bench::failure(aside.fence, "aside")).await?.on_head, "it ends off the head")?;
    same(t.head(&key).await?, old.point, "the head")?;
    t.say(&key, "more").await?;
    same(t.texts(&key).await?, told(&["base", "old", "more"]), "what is at the head")
}

pub(super) async fn side_lines_pass_the_dead(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let dead = t.begin(&key, "dead").await?;
    t.outlive_leases();
    let (_, receipt) = t.run_snap(turn_at(base, "aside"), "aside").await?;
    holds(receipt.on_head, "the dead turn's lease does not hold the head")?;
    let late = t.store.end(end(dead.fence, "dead")).await;
    holds(late.is_err() || late.is_ok_and(|late| !late.on_head), "the dead turn does not take the head back")?;
    same(t.texts(&key).await?, told(&["base", "aside"]), "what is at the head")
}

pub(super) async fn a_turn_may_start_at_any_settled_point(t: Bench) -> Check {
    let key = t.session("s").await?;
    let root = t.head(&key).await?;
    let one = t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    let stepped = t.store.step(step(begun.fence, "half")).await?;
    let two = t.store.end(end(begun.fence, "two")).await?;
    let cases = [
        (root, vec![]),
        (one.point, told(&["one"])),
        (stepped.point, [told(&["one"]), ["two", "half"].map(String::from).to_vec()].concat()),
        (two.point, [told(&["one"]), ["two", "half", "re: two"].map(String::from).to_vec()].concat()),
    ];
    for (point, before) in cases {
        let receipt = t.run(turn_from(&key, point, "from here"), "from here").await?;
        let at = At::Point(key.clone(), receipt.point);
        same(t.texts_at(at).await?, [before, told(&["from here"])].concat(), "what was said from that point on")?;
        holds(receipt.on_head, "the head followed")?;
    }
    let begin = t.store.begin(turn_from(&key, begun.point, "x")).await;
    refused(begin, ErrorKind::NotResumable, "a start at a begin, where nothing is settled")?;
    let nowhere = t.store.begin(turn_from(&key, Point::new(9999), "x")).await;
    refused(nowhere, ErrorKind::NotFound, "a start at a point that is not there")
}

pub(super) async fn a_running_turns_point_can_be_gone_on_from(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let id = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", id)).await?;
    let aside = t.store.begin(turn_at(id, "aside")).await?.begun()?;
    let ended = t.store.end(end(aside.fence, "aside")).await?;
    holds(!ended.on_head, "it ends off the head, which is taken")?;
    t.store.step(step(begun.fence, "more")).await?;
    t.store.end(end(begun.fence, "x")).await?;
    same(t.texts(&key).await?, ["x", "half", "more", "re: x"].map(String::from).to_vec(), "what the turn said")?;
    let wanted = ["x", "half", "aside", "re: aside"].map(String::from).to_vec();
    same(t.texts_at(At::Point(key.clone(), ended.point)).await?, wanted, "what the side line said")
}

pub(super) async fn a_snapshot_must_belong_to_the_session_named(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let (id, _) = t.snap(&one, "x").await?;
    let start = |session| {
        let mut begin = turn_at(id, "y");
        begin.start = Start::Snapshot { id, session: Some(session) };
        begin
    };
    let before = (t.footprint(&one).await?, t.footprint(&two).await?);
    refused(t.store.begin(start(two.clone())).await, ErrorKind::Invalid, "a snapshot of another session")?;
    let bobs = key_of("bob", "one");
    t.store.create(CreateSession::at(bobs.clone())).await?;
    refused(t.store.begin(start(bobs)).await, ErrorKind::NotFound, "a snapshot of another user")?;
    refused(t.store.begin(turn_at(t.snapshot_id(), "y")).await, ErrorKind::NotFound, "an unknown snapshot")?;
    same((t.footprint(&one).await?, t.footprint(&two).await?), before, "what the refusals left")?;
    holds(t.run(start(one), "y").await?.on_head, "the right session goes through")
}

pub(super) async fn a_snapshot_finds_its_branch(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (shared, receipt) = t.snap(&key, "shared").await?;
    let side = t.branch_off(&key, "side", receipt.point).await?;
    let (early, _) = t.run_snap(turn(&key, "early").branch(side.clone()), "early").await?;
    let (tip, _) = t.run_snap(turn(&key, "tip").branch(side.clone()), "tip").await?;
    t.say(&key, "main").await?;
    let branch_of = async |begin| -> Check<BranchName> {
        let begun = t.store.begin(begin).await?.begun()?;
        t.store.abort(crate::store::TurnRef::Turn(begun.turn)).await?;
        Ok(begun.branch)
    };
    same(branch_of(turn_at(tip, "x")).await?, side.clone(), "the branch whose head it is")?;
    same(branch_of(turn_at(early, "x")).await?, side.clone(), "the only branch whose line holds it")?;
    same(branch_of(turn_at(shared, "x")).await?, BranchName::main(), "main, where several hold it")?;
    let named = turn_at(shared, "x").branch(side.clone());
    same(branch_of(named).await?, side, "the branch that was named")
}

pub(super) async fn a_side_line_may_name_the_branch_it_moves(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (shared, receipt) = t.snap(&key, "shared").await?;
    let main = t.say(&key, "main").await?;
    let side = t.branch_off(&key, "side", main.point).await?;
    let moved = t.run(turn_at(shared, "other").branch(side.clone()), "other").await?;
    holds(moved.on_head, "it ends on the head of the branch it named")?;
    same(t.head(&key).await?, main.point, "main's head")?;
    same(t.texts_at(At::Head(key.clone(), side)).await?, told(&["shared", "other"]), "what is on the other branch")?;
    holds(receipt.point < moved.point, "points only grow")
}

pub(super) async fn an_expectation_holds_for_side_lines_too(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, receipt) = t.snap(&key, "base").await?;
    let head = t.say(&key, "old").await?.point;
    let before = t.footprint(&key).await?;
    let wrong = turn_at(base, "x").expect(receipt.point).key(turn_key("k"));
    refused(t.store.begin(wrong).await, ErrorKind::Conflict, "a side line that expected another head")?;
    same(t.footprint(&key).await?, before, "what the refusal left")?;
    holds(t.run(turn_at(base, "x").expect(head), "x").await?.on_head, "with the right head it goes through")
}

pub(super) async fn a_turn_forced_off_its_head_still_completes(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    t.say(&key, "two").await?;
    let begun = t.begin(&key, "three").await?;
    refused(t.store.branch(&key, move_main(one.point, UnderLease::Refuse)).await, ErrorKind::Busy, "a rewind")?;
    t.store.branch(&key, move_main(one.point, UnderLease::Force)).await?;
    t.store.step(step(begun.fence, "half")).await?;
    let meanwhile = t.say(&key, "meanwhile").await?;
    let delta = super::bench::delta("user:k", "1");
    let (id, ending) = (t.snapshot_id(), end(begun.fence, "three").scopes(delta));
    let ended = t.store.end(ending.snapshot(NewSnapshot::new(id))).await?;
    holds(!ended.on_head, "it ends off the head")?;
    same(t.head(&key).await?, meanwhile.point, "the head")?;
    let wanted = [told(&["one", "two"]), ["three", "half", "re: three"].map(String::from).to_vec()].concat();
    same(t.texts_at(At::Snapshot(id)).await?, wanted, "what it said is kept")?;
    same(t.texts(&key).await?, told(&["one", "meanwhile"]), "what is at the head")?;
    let scopes = t.second().await?.scopes(&key.app, Some(&key.user)).await?;
    same(scopes, [("user:k".to_owned(), json("1"))].into(), "the scopes of a turn that completed off the head")
}

pub(super) async fn a_turn_forced_off_holds_no_lease(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let begun = t.begin(&key, "two").await?;
    t.store.branch(&key, move_main(one.point, UnderLease::Force)).await?;
    let running = t.second().await?.running(Some(&key)).await?;
    same((running[0].turn, running[0].leased), (begun.turn, false), "the running turn, and its lease")?;
    let next = t.begin(&key, "three").await?;
    holds(next.leased, "the branch is free")?;
    t.store.abort(crate::store::TurnRef::Turn(begun.turn)).await?;
    refused(t.store.begin(turn(&key, "four")).await, ErrorKind::Busy, "a turn beside the one that holds it now")
}
