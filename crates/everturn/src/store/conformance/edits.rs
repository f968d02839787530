//! Edits: changes outside turns.

use std::sync::Arc;

use super::bench::{Bench, edit, end, texts, told};
use super::verdict::{Check, fail, holds, refused, same, there};
use crate::store::{At, Store};
use crate::{ErrorKind, NewSnapshot, SnapshotEvent};

pub(super) async fn an_edit_needs_no_turn(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "one").await?;
    let (before, id) = (t.state(&key).await?, t.snapshot_id());
    let commit = edit(&key, "noted").snapshot(NewSnapshot::new(id)).event(SnapshotEvent::InvocationEnd);
    let receipt = t.store.commit(commit).await?;
    holds(receipt.on_head, "an edit moves the head")?;
    let state = t.state(&key).await?;
    same((state.point(), state.digest()), (receipt.point, receipt.digest), "where and what the receipt says it is")?;
    same(state.turns(), before.turns(), "the number of turns")?;
    same(texts(&state).last().map(String::as_str), Some("noted"), "what was said last")?;
    let event = there(t.events(&key).await?.pop(), "the edit's event")?;
    same(event.turn_index, None, "the turn of an event outside turns")?;
    let snapshot = t.snapshot(id).await?;
    same((snapshot.event, snapshot.point), (Some(SnapshotEvent::InvocationEnd), receipt.point), "its snapshot")
}

pub(super) async fn an_edit_beside_a_running_turn_is_refused(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let before = t.footprint(&key).await?;
    refused(t.store.commit(edit(&key, "y")).await, ErrorKind::Busy, "an edit beside a running turn")?;
    same(t.footprint(&key).await?, before, "what the refused edit left")?;
    t.store.end(end(begun.fence, "x")).await?;
    holds(t.store.commit(edit(&key, "y")).await?.on_head, "the edit goes through after the turn")
}

pub(super) async fn an_edit_may_insist_on_its_head(t: Bench) -> Check {
    let key = t.session("s").await?;
    let old = t.say(&key, "one").await?.point;
    let new = t.say(&key, "two").await?.point;
    let before = t.footprint(&key).await?;
    refused(t.store.commit(edit(&key, "y").expect(old)).await, ErrorKind::Conflict, "an edit of an old head")?;
    same(t.footprint(&key).await?, before, "what the refused edit left")?;
    let receipt = t.store.commit(edit(&key, "beside").expect(old).or_side_line()).await?;
    holds(!receipt.on_head, "an edit kept beside the line is not on the head")?;
    same(t.head(&key).await?, new, "the head")?;
    let beside = t.texts_at(At::Point(key.clone(), receipt.point)).await?;
    same(beside, [told(&["one"]), vec!["beside".into()]].concat(), "what is at the edit's point")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what is at the head")?;
    holds(t.store.commit(edit(&key, "z").expect(new)).await?.on_head, "an edit of the right head goes through")
}

pub(super) async fn racing_edits_of_one_head_have_one_winner(t: Bench) -> Check {
    let key = t.session("s").await?;
    let handles = [t.store.clone(), t.second().await?];
    for round in 0..8 {
        let head = t.head(&key).await?;
        let tasks = handles.clone().map(|store: Arc<dyn Store>| {
            let commit = edit(&key, &format!("round {round}")).expect(head);
            tokio::spawn(async move { store.commit(commit).await })
        });
        let mut won = 0;
        for task in tasks {
            match task.await {
                Ok(Ok(receipt)) => won += usize::from(receipt.on_head),
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => {}
                other => return fail(format!("a racing edit answered {other:?}")),
            }
        }
        same(won, 1, "the winners of one round")?;
    }
    same(t.texts(&key).await?.len(), 8, "the messages of eight rounds")
}

pub(super) async fn an_edit_of_an_old_head_does_not_wait(t: Bench) -> Check {
    let key = t.session("s").await?;
    let old = t.say(&key, "one").await?.point;
    t.say(&key, "two").await?;
    let begun = t.begin(&key, "three").await?;
    let (id, commit) = (t.snapshot_id(), edit(&key, "late").expect(old).or_side_line());
    let receipt = t.store.commit(commit.snapshot(NewSnapshot::new(id))).await?;
    holds(!receipt.on_head, "it is kept beside the line, though a turn runs")?;
    let snapshot = t.snapshot(id).await?;
    holds(snapshot.orphaned && snapshot.is_resumable(), "its snapshot is orphaned, and resumable")?;
    holds(t.store.end(end(begun.fence, "three")).await?.on_head, "the turn ends on the head")?;
    same(t.texts(&key).await?, told(&["one", "two", "three"]), "what is at the head")
}

pub(super) async fn an_edit_may_go_beside_a_running_turn(t: Bench) -> Check {
    let key = t.session("s").await?;
    let head = t.say(&key, "one").await?.point;
    let begun = t.begin(&key, "two").await?;
    let (id, commit) = (t.snapshot_id(), edit(&key, "beside").expect(head).or_side_line());
    let receipt = t.store.commit(commit.snapshot(NewSnapshot::new(id))).await?;
    holds(!receipt.on_head, "an edit beside a running turn is not on the head")?;
    let beside = t.texts_at(At::Point(key.clone(), receipt.point)).await?;
    same(beside, [told(&["one"]), vec!["beside".into()]].concat(), "what is at the edit's point")?;
    holds(t.store.end(end(begun.fence, "two")).await?.on_head, "the turn ends on the head")?;
    same(t.texts(&key).await?, told(&["one", "two"]), "what is at the head")?;
    holds(t.snapshot(id).await?.is_resumable(), "the edit can be gone on from")
}
