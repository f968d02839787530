//! Who wins when two do the same at once.

use std::sync::Arc;

use super::bench::{Bench, end, told, turn, turn_at};
use super::verdict::{Check, fail, holds, same, there};
use crate::store::{At, BranchChange, ForkSession, Store, TurnRef};
use crate::{BranchName, ErrorKind, Receipt, SessionId, TurnStatus};

const ROUNDS: usize = 10;

/// Runs one request on each of two handles at once.
async fn both<T, F>(handles: &[Arc<dyn Store>; 2], request: impl Fn(Arc<dyn Store>, usize) -> F) -> Check<[T; 2]>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let first = tokio::spawn(request(handles[0].clone(), 0));
    let second = tokio::spawn(request(handles[1].clone(), 1));
    match (first.await, second.await) {
        (Ok(first), Ok(second)) => Ok([first, second]),
        _ => fail("a racing request panicked"),
    }
}

/// How many succeeded; the others must have been refused with this kind.
fn winners<T: std::fmt::Debug>(results: [crate::Result<T>; 2], others: ErrorKind) -> Check<Vec<T>> {
    let mut won = Vec::new();
    for result in results {
        match result {
            Ok(done) => won.push(done),
            Err(error) => same(error.kind(), others, "what the other one is told")?,
        }
    }
    Ok(won)
}

async fn handles(t: &Bench) -> crate::Result<[Arc<dyn Store>; 2]> {
    Ok([t.store.clone(), t.second().await?])
}

pub(super) async fn a_turn_ends_once(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = handles(&t).await?;
    for round in 0..ROUNDS {
        let begun = t.begin(&key, "x").await?;
        let ends = both(&handles, |store, i| async move { store.end(end(begun.fence, &i.to_string())).await }).await?;
        same(winners(ends, ErrorKind::Fenced)?.len(), 1, "the ends that succeeded")?;
        same(t.record(&key).await?.turns, round as u64 + 1, "the number of turns")?;
    }
    same(t.texts(&key).await?.len(), 2 * ROUNDS, "the messages: each turn's input and one answer")
}

pub(super) async fn an_abort_and_an_end_agree(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = handles(&t).await?;
    let mut completed = 0;
    for _ in 0..ROUNDS {
        let begun = t.begin(&key, "x").await?;
        let aborting = {
            let store = handles[1].clone();
            tokio::spawn(async move { store.abort(TurnRef::Turn(begun.turn)).await })
        };
        let ended = handles[0].end(end(begun.fence, "x")).await;
        let Ok(aborted) = aborting.await else { return fail("the abort panicked") };
        let status = there(t.second().await?.turn(begun.turn).await?, "the turn")?.status;
        match ended {
            Ok(_) => {
                completed += 1;
                same((aborted?.before, status), (TurnStatus::Completed, TurnStatus::Completed), "who ended it")?;
            }
            Err(error) => {
                same(error.kind(), ErrorKind::Aborted, "what the end is told")?;
                same((aborted?.before, status), (TurnStatus::Running, TurnStatus::Aborted), "who ended it")?;
            }
        }
    }
    same(t.record(&key).await?.turns, completed, "the turns that completed")
}

pub(super) async fn one_of_two_side_lines_moves_the_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let handles = handles(&t).await?;
    for _ in 0..ROUNDS {
        let ends = both(&handles, |store, i| async move {
            let begun = store.begin(turn_at(base, &i.to_string())).await?.begun()?;
            store.end(end(begun.fence, &i.to_string())).await
        })
        .await?;
        let ends = winners(ends, ErrorKind::Internal)?;
        same(ends.len(), 2, "the turns that completed")?;
        let head = t.head(&key).await?;
        let on_head: Vec<&Receipt> = ends.iter().filter(|receipt| receipt.on_head).collect();
        holds(on_head.iter().any(|receipt| receipt.point == head), "the head is where the last of them moved it")?;
        for (i, receipt) in ends.iter().enumerate() {
            let said = t.texts_at(At::Point(key.clone(), receipt.point)).await?;
            same(said, told(&["base", &i.to_string()]), "what each of them said")?;
        }
    }
    Ok(())
}

pub(super) async fn one_of_two_names_is_taken(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.say(&key, "one").await?.point;
    let handles = handles(&t).await?;
    for round in 0..ROUNDS {
        let name = BranchName::new(format!("b{round}"))?;
        let made = both(&handles, |store, _| {
            let (key, change) = (key.clone(), BranchChange::Create { name: name.clone(), at: head });
            async move { store.branch(&key, change).await }
        })
        .await?;
        same(winners(made, ErrorKind::AlreadyExists)?.len(), 1, "the branches made under one name")?;
        let id = SessionId::new(format!("f{round}"))?;
        let made = both(&handles, |store, _| {
            let fork = ForkSession::at(At::head(key.clone())).id(id.clone());
            async move { store.fork(fork).await }
        })
        .await?;
        same(winners(made, ErrorKind::AlreadyExists)?.len(), 1, "the forks made under one id")?;
    }
    same(t.record(&key).await?.branches.len(), ROUNDS + 1, "the branches")
}

pub(super) async fn a_deletion_and_an_end_agree(t: Bench) -> Check {
    let handles = handles(&t).await?;
    for round in 0..ROUNDS {
        let key = t.session(&format!("s{round}")).await?;
        let begun = t.begin(&key, "x").await?;
        let deleting = {
            let (store, key) = (handles[1].clone(), key.clone());
            tokio::spawn(async move { store.delete(&key).await })
        };
        let ended = handles[0].end(end(begun.fence, "x")).await;
        let Ok(deleted) = deleting.await else { return fail("the deletion panicked") };
        same(deleted?, true, "whether there was a session to delete")?;
        if let Err(error) = ended {
            same(error.kind(), ErrorKind::Deleted, "what the end is told")?;
        }
        same(t.second().await?.session(&key).await?, None, "the session")?;
        let late = t.store.begin(turn(&key, "late")).await;
        super::verdict::refused(late, ErrorKind::NotFound, "a turn after the deletion")?;
    }
    Ok(())
}
