//! One turn at a time on a branch: waiting, refusing, going beside, and what is expected of a head.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, end, failure, key, step, told, turn, turn_key};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{Busy, Store};
use crate::{Begin, BranchName, ErrorKind, Point, SessionKey};

const LONG: Busy = Busy::Wait(Duration::from_secs(100));

pub(super) async fn a_busy_branch_refuses_and_consumes_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.begin(&key, "one").await?;
    let before = t.footprint(&key).await?;
    let id = t.snapshot_id();
    let second = turn(&key, "two").key(turn_key("k")).snapshot(id);
    for store in [t.store.clone(), t.second().await?] {
        refused(store.begin(second.clone()).await, ErrorKind::Busy, "a turn on a busy branch")?;
    }
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    t.store.end(end(first.fence, "one")).await?;
    match t.store.begin(second).await? {
        Begin::Begun(begun) => same(begun.fence.attempt(), 1, "the attempt: neither key nor snapshot id were used up"),
        other => fail(format!("a refused turn left its key behind: {other:?}")),
    }
}

pub(super) async fn a_waiting_turn_starts_where_the_other_ended(t: Bench) -> Check {
    let key = t.session("s").await?;
    for failing in [false, true] {
        let before = t.head(&key).await?;
        let first = t.begin(&key, "first").await?;
        let mut waiting = t.store.begin(turn(&key, "second").busy(LONG));
        holds(t.settle(&mut waiting).await?.is_none(), "the second turn waits")?;
        t.store.step(step(first.fence, "half")).await?;
        holds(t.settle(&mut waiting).await?.is_none(), "it still waits after a step")?;
        let ending = if failing { failure(first.fence, "first") } else { end(first.fence, "first") };
        let ended = t.store.end(ending).await?;
        let second = waiting.await?.begun()?;
        let from = if failing { before } else { ended.point };
        same(second.from, from, "where the waiting turn started")?;
        holds(second.leased, "it holds the branch")?;
        t.store.end(end(second.fence, "second")).await?;
    }
    Ok(())
}

pub(super) async fn an_abort_lets_the_next_one_in(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.begin(&key, "first").await?;
    let mut waiting = t.store.begin(turn(&key, "second").busy(LONG));
    holds(t.settle(&mut waiting).await?.is_none(), "the second turn waits")?;
    t.store.abort(crate::store::TurnRef::Turn(first.turn)).await?;
    holds(waiting.await?.begun()?.leased, "it holds the branch")
}

pub(super) async fn waiting_turns_go_in_order(t: Bench) -> Check {
    let key = t.session("s").await?;
    let mut last = t.begin(&key, "0").await?;
    let mut waiting = Vec::new();
    for i in 1..6 {
        let mut begin = t.store.begin(turn(&key, &i.to_string()).busy(LONG));
        holds(t.settle(&mut begin).await?.is_none(), "the turn waits")?;
        waiting.push(begin);
    }
    for (i, mut begin) in waiting.into_iter().enumerate() {
        t.store.end(end(last.fence, &i.to_string())).await?;
        let patience = Duration::from_secs(20);
        last = match tokio::time::timeout(patience, &mut begin).await {
            Ok(begun) => begun?.begun()?,
            Err(_) => return fail(format!("turn {} was let in before turn {}", i + 2, i + 1)),
        };
    }
    t.store.end(end(last.fence, "5")).await?;
    same(t.texts(&key).await?, told(&["0", "1", "2", "3", "4", "5"]), "what was said")
}

pub(super) async fn waiting_ends_at_its_deadline(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.begin(&key, "one").await?;
    let before = t.footprint(&key).await?;
    let waiting = turn(&key, "two").busy(Busy::Wait(Duration::from_millis(30))).key(turn_key("k"));
    refused(t.store.begin(waiting).await, ErrorKind::Busy, "waiting for a branch that stays busy")?;
    same(t.footprint(&key).await?, before, "what the wait left")?;
    t.store.end(end(first.fence, "one")).await?;
    holds(t.say(&key, "three").await?.on_head, "the branch is free afterwards")
}

pub(super) async fn who_stops_waiting_holds_nothing(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.begin(&key, "one").await?;
    let mut gone = t.store.begin(turn(&key, "gone").busy(LONG));
    holds(t.settle(&mut gone).await?.is_none(), "the turn waits")?;
    let mut patient = t.store.begin(turn(&key, "patient").busy(LONG));
    holds(t.settle(&mut patient).await?.is_none(), "another one waits behind it")?;
    drop(gone);
    t.store.end(end(first.fence, "one")).await?;
    let begun = patient.await?.begun()?;
    t.store.end(end(begun.fence, "patient")).await?;
    same(t.texts(&key).await?, told(&["one", "patient"]), "what was said")
}

pub(super) async fn turns_of_all_handles_come_one_after_the_other(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = [t.store.clone(), t.second().await?, t.second().await?];
    let tasks: Vec<_> = (0..12)
        .map(|i| tokio::spawn(say_patiently(handles[i % 3].clone(), key.clone(), format!("turn {i}"))))
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|panic| fail(format!("a turn panicked: {panic}")))?;
    }
    let found = t.texts(&key).await?;
    same(found.len(), 24, "the messages of twelve turns")?;
    let paired = found.chunks(2).all(|pair| pair[1] == format!("re: {}", pair[0]));
    holds(paired, "every input is followed by its own answer")?;
    let session = t.record(&key).await?;
    same(session.turns, 12, "the number of turns")
}

async fn say_patiently(store: Arc<dyn Store>, key: SessionKey, text: String) -> Check {
    let begun = store.begin(turn(&key, &text).busy(LONG)).await?.begun()?;
    holds(begun.leased, "a turn that waited holds the branch")?;
    let receipt = store.end(end(begun.fence, &text)).await?;
    holds(receipt.on_head, "a leaseholder's turn ends on the head")
}

pub(super) async fn going_beside_starts_from_the_same_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.say(&key, "one").await?.point;
    let main = t.begin(&key, "two").await?;
    let beside = t.store.begin(turn(&key, "beside").busy(Busy::Branch)).await?.begun()?;
    same((beside.from, beside.leased), (head, false), "where a turn beside starts, and its lease")?;
    let ended = t.store.end(end(main.fence, "two")).await?;
    let aside = t.store.end(end(beside.fence, "beside")).await?;
    holds(ended.on_head && !aside.on_head, "only the leaseholder's turn is on the head")?;
    same(t.head(&key).await?, ended.point, "the head")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what is at the head")?;
    let at = crate::store::At::Point(key.clone(), aside.point);
    same(t.texts_at(at).await?, told(&["one", "beside"]), "what is on the side line")?;
    let free = t.store.begin(turn(&key, "three").busy(Busy::Branch)).await?.begun()?;
    holds(free.leased, "on a free branch it simply takes the lease")
}

pub(super) async fn an_unexpected_head_is_a_conflict_before_any_work(t: Bench) -> Check {
    let key = t.session("s").await?;
    let old = t.say(&key, "one").await?.point;
    let head = t.say(&key, "two").await?.point;
    let before = t.footprint(&key).await?;
    for wrong in [old, Point::new(0), Point::new(head.seq() + 100)] {
        let begin = turn(&key, "three").expect(wrong).key(turn_key("k"));
        refused(t.store.begin(begin).await, ErrorKind::Conflict, "a turn that expected another head")?;
    }
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    let begin = turn(&key, "three").expect(head).key(turn_key("k"));
    holds(t.run(begin, "three").await?.on_head, "with the right head the turn goes through")
}

pub(super) async fn an_expectation_is_checked_once_the_branch_is_free(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.head(&key).await?;
    let first = t.begin(&key, "one").await?;
    let mut waiting = t.store.begin(turn(&key, "two").expect(head).busy(LONG));
    holds(t.settle(&mut waiting).await?.is_none(), "the second turn waits")?;
    t.store.end(end(first.fence, "one")).await?;
    refused(waiting.await, ErrorKind::Conflict, "a turn whose head moved while it waited")
}

pub(super) async fn racing_turns_that_expect_one_head_have_one_winner(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = [t.store.clone(), t.second().await?];
    for round in 0..8 {
        let head = t.head(&key).await?;
        let tasks = handles.clone().map(|store| {
            let begin = turn(&key, &format!("round {round}")).expect(head).busy(LONG);
            tokio::spawn(async move {
                let begun = store.begin(begin).await?.begun()?;
                store.end(end(begun.fence, "won")).await
            })
        });
        let mut won = 0;
        for task in tasks {
            match task.await {
                Ok(Ok(receipt)) => won += usize::from(receipt.on_head),
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => {}
                other => return fail(format!("a racing turn answered {other:?}")),
            }
        }
        same(won, 1, "the winners of one round")?;
    }
    same(t.record(&key).await?.turns, 8, "the number of turns")
}

pub(super) async fn branches_and_sessions_are_busy_by_themselves(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let head = t.say(&one, "base").await?.point;
    let side = t.branch_off(&one, "side", head).await?;
    let on_main = t.begin(&one, "main").await?;
    let on_side = t.store.begin(turn(&one, "side").branch(side.clone())).await?.begun()?;
    let elsewhere = t.begin(&two, "else").await?;
    holds(on_main.leased && on_side.leased && elsewhere.leased, "all three hold a lease")?;
    same((&on_side.branch, on_side.from), (&side, head), "branch and start of the turn on the other branch")?;
    for (begun, text) in [(&on_side, "side"), (&on_main, "main"), (&elsewhere, "else")] {
        holds(t.store.end(end(begun.fence, text)).await?.on_head, "it ends on its branch's head")?;
    }
    same(t.texts(&one).await?, told(&["base", "main"]), "what is on main")?;
    let at = crate::store::At::Head(one.clone(), side);
    same(t.texts_at(at).await?, told(&["base", "side"]), "what is on the other branch")
}

pub(super) async fn an_unknown_branch_is_not_found(t: Bench) -> Check {
    let key = t.session("s").await?;
    let before = t.footprint(&key).await?;
    let begin = turn(&key, "x").branch(BranchName::new("unknown")?);
    refused(t.store.begin(begin).await, ErrorKind::NotFound, "a turn on an unknown branch")?;
    let edit = super::bench::edit(&key, "x").branch(BranchName::new("unknown")?);
    refused(t.store.commit(edit).await, ErrorKind::NotFound, "an edit on an unknown branch")?;
    same(t.footprint(&key).await?, before, "what the refusals left")
}

pub(super) async fn a_deleted_session_lets_nobody_wait(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.begin(&session, "one").await?;
    let mut waiting = t.store.begin(turn(&key("s"), "two").busy(LONG));
    holds(t.settle(&mut waiting).await?.is_none(), "the second turn waits")?;
    t.store.delete(&session).await?;
    let patience = Duration::from_secs(20);
    match tokio::time::timeout(patience, waiting).await {
        Ok(Err(error)) => holds(
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Deleted),
            &format!("who waited is told that the session is gone, not {error:?}"),
        ),
        other => fail(format!("who waited for a deleted session got {other:?}")),
    }
}

pub(super) async fn a_waiting_turn_passes_the_dead(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.begin(&key, "dead").await?;
    let mut waiting = t.store.begin(turn(&key, "next").busy(LONG));
    holds(t.settle(&mut waiting).await?.is_none(), "the second turn waits")?;
    t.outlive_leases();
    match tokio::time::timeout(Duration::from_secs(20), waiting).await {
        Ok(begun) => holds(begun?.begun()?.leased, "it holds the branch"),
        Err(_) => fail("it still waits for a turn that is dead"),
    }
}
