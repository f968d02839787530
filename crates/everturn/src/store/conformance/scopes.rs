//! State beyond a session: `app:`, `user:` and `temp:` keys.

use std::time::Duration;

use super::bench::{Bench, delta, edit, end, failure, invocation, json, key, key_of, set, silent, turn, turn_at};
use super::verdict::{Check, fail, holds, refused, same};
use crate::store::{BeginTurn, Busy, CreateSession, EndTurn, Start, StepTurn, StoreExt, TurnRef};
use crate::{Changes, ErrorKind, Event, Input, Json, ScopedState, SessionKey, StateDelta, UserId};

async fn scopes(t: &Bench, key: &SessionKey) -> crate::Result<ScopedState> {
    t.second().await?.scopes(&key.app, Some(&key.user)).await
}

fn keys<const N: usize>(pairs: [(&str, &str); N]) -> ScopedState {
    pairs.map(|(key, value)| (key.to_owned(), json(value))).into()
}

pub(super) async fn app_keys_are_shared_by_all_users(t: Bench) -> Check {
    t.store.create(CreateSession::at(key_of("u1", "s")).state("app:k1", json("\"v1\""))).await?;
    t.change(&key_of("u1", "s"), set(delta("app:k2", "\"v2\""))).await?;
    t.store.create(CreateSession::at(key_of("u2", "s"))).await?;
    let wanted = keys([("app:k1", "\"v1\""), ("app:k2", "\"v2\"")]);
    same(scopes(&t, &key_of("u2", "s")).await?, wanted.clone(), "what another user sees")?;
    let app_only = t.second().await?.scopes(&key("s").app, None).await?;
    same(app_only, wanted, "what the app has without a user")?;
    let other = SessionKey::of("bank", "u1", "s")?;
    same(scopes(&t, &other).await?, ScopedState::new(), "what another app sees")
}

pub(super) async fn user_keys_are_shared_by_a_users_sessions(t: Bench) -> Check {
    t.store.create(CreateSession::at(key_of("u1", "s")).state("user:k1", json("1"))).await?;
    t.change(&key_of("u1", "s"), set(delta("user:k2", "2"))).await?;
    let other_session = key_of("u1", "t");
    t.store.create(CreateSession::at(other_session.clone())).await?;
    same(scopes(&t, &other_session).await?, keys([("user:k1", "1"), ("user:k2", "2")]), "the user's other session")?;
    same(scopes(&t, &key_of("u2", "s")).await?, ScopedState::new(), "another user")?;
    let other_app = SessionKey::of("bank", "u1", "s")?;
    same(scopes(&t, &other_app).await?, ScopedState::new(), "the same user of another app")?;
    let app_only = t.second().await?.scopes(&key("s").app, None).await?;
    same(app_only, ScopedState::new(), "the app without a user")
}

pub(super) async fn session_keys_are_not_shared(t: Bench) -> Check {
    t.store.create(CreateSession::at(key("one")).state("sk1", json("1"))).await?;
    t.change(&key("one"), set(delta("sk2", "2"))).await?;
    t.session("two").await?;
    same(t.custom(&key("two")).await?, None, "the other session's state")?;
    same(scopes(&t, &key("two")).await?, ScopedState::new(), "the scopes")?;
    same(t.custom(&key("one")).await?, Some(json(r#"{"sk1":1,"sk2":2}"#)), "its own state")
}

pub(super) async fn temporary_keys_are_never_kept(t: Bench) -> Check {
    t.store.create(CreateSession::at(key("s")).state("temp:a", json("1"))).await?;
    let mut begin = silent(&key("s"));
    begin.input = begin.input.with_state(delta("temp:b", "1"));
    let begun = t.store.begin(begin).await?.begun()?;
    t.store.step(StepTurn::new(begun.fence, set(delta("temp:c", "1")))).await?;
    let ending = EndTurn::completed(begun.fence, set(delta("temp:d", "1").set("sk", json("\"v2\""))));
    t.store.end(ending.scopes(delta("temp:e", "1"))).await?;
    same(t.custom(&key("s")).await?, Some(json(r#"{"sk":"v2"}"#)), "the custom state")?;
    same(scopes(&t, &key("s")).await?, ScopedState::new(), "the scopes")?;
    let merged = t.second().await?.scoped_state(&key("s")).await?;
    same(merged, keys([("sk", "\"v2\"")]), "all keys the session sees")
}

pub(super) async fn values_are_replaced_and_null_is_one(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.change(&session, set(delta("app:k", r#"{"a":1}"#).set("user:k", json("1")))).await?;
    t.change(&session, set(delta("app:k", r#"{"b":2}"#).set("user:k", json("null")))).await?;
    let seen = scopes(&t, &key("another session")).await?;
    same(seen, keys([("app:k", r#"{"b":2}"#), ("user:k", "null")]), "a replaced object and a null")?;
    t.change(&session, set(delta("user:no", "false"))).await?;
    t.change(&session, set(StateDelta::new().remove("app:k").remove("user:unknown"))).await?;
    let wanted = keys([("user:k", "null"), ("user:no", "false")]);
    same(scopes(&t, &session).await?, wanted, "after a key was removed")?;
    t.change(&session, set(delta("user:price", "1.10"))).await?;
    let price = scopes(&t, &session).await?.get("user:price").map(Json::to_string);
    same(price.as_deref(), Some("1.10"), "a number's spelling")
}

/// A turn that says something about scopes wherever it can.
async fn talkative(t: &Bench, session: &SessionKey) -> Check<EndTurn> {
    let input = Input::text("x").with_state(delta("user:input", "1").set("user:last", json("1")));
    let begin = BeginTurn::new(Start::Session(session.clone()), invocation("i"), input).busy(Busy::Refuse);
    let begun = t.store.begin(begin).await?.begun()?;
    t.store.step(StepTurn::new(begun.fence, set(delta("app:step", "2").set("user:last", json("2"))))).await?;
    let changes = set(delta("user:end", "3").set("user:last", json("3")));
    Ok(EndTurn::completed(begun.fence, changes).scopes(delta("app:scopes", "4").set("user:last", json("4"))))
}

pub(super) async fn scopes_are_written_when_a_turn_completes(t: Bench) -> Check {
    let session = t.session("s").await?;
    let ending = talkative(&t, &session).await?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes while the turn runs")?;
    t.store.end(ending).await?;
    let wanted =
        keys([("app:scopes", "4"), ("app:step", "2"), ("user:end", "3"), ("user:input", "1"), ("user:last", "4")]);
    same(scopes(&t, &session).await?, wanted, "the scopes after its end: what came last counts")
}

pub(super) async fn scopes_of_turns_that_did_not_complete_are_dropped(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut failed = talkative(&t, &session).await?;
    failed.status = crate::EndStatus::Failed;
    t.store.end(failed).await?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes after a failure")?;
    let mut stopped = talkative(&t, &session).await?;
    stopped.status = crate::EndStatus::Aborted;
    t.store.end(stopped).await?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes after an aborted end")?;
    let aborted = talkative(&t, &session).await?;
    t.store.abort(TurnRef::Turn(aborted.fence.turn())).await?;
    refused(t.store.end(aborted).await, ErrorKind::Aborted, "an aborted turn's end")?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes after an abort")?;
    let dead = talkative(&t, &session).await?;
    t.outlive_leases();
    t.say(&session, "next").await?;
    refused(t.store.end(dead).await, ErrorKind::Fenced, "a dead turn's end")?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes after a death")
}

pub(super) async fn scopes_of_a_refused_end_are_not_written(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut ending = talkative(&t, &session).await?;
    ending.changes = ending.changes.splice(99, vec![]);
    refused(t.store.end(ending.clone()).await, ErrorKind::Invalid, "an end that keeps what is not there")?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes after the refusal")?;
    ending.changes.splice = None;
    t.store.end(ending).await?;
    same(scopes(&t, &session).await?.len(), 5, "the scopes after the end")
}

pub(super) async fn a_turn_off_the_head_completes_with_its_scopes(t: Bench) -> Check {
    let session = t.session("s").await?;
    let (base, _) = t.snap(&session, "base").await?;
    t.say(&session, "old").await?;
    let aside = t.store.begin(turn_at(base, "aside")).await?.begun()?;
    t.say(&session, "newer").await?;
    let ended = t.store.end(end(aside.fence, "aside").scopes(delta("user:k", "1"))).await?;
    holds(!ended.on_head, "it ends off the head")?;
    same(scopes(&t, &session).await?, keys([("user:k", "1")]), "the scopes")
}

pub(super) async fn an_edit_writes_scopes_too(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mut commit = edit(&session, "");
    commit.changes = set(delta("user:k", "1").set("own", json("2")));
    let wrong = commit.clone().expect(crate::Point::new(99));
    refused(t.store.commit(wrong).await, ErrorKind::Conflict, "an edit of another head")?;
    same(scopes(&t, &session).await?, ScopedState::new(), "the scopes of a refused edit")?;
    t.store.commit(commit).await?;
    same(scopes(&t, &session).await?, keys([("user:k", "1")]), "the scopes")?;
    same(t.custom(&session).await?, Some(json(r#"{"own":2}"#)), "the custom state")
}

pub(super) async fn scopes_outlive_sessions_and_rewinds(t: Bench) -> Check {
    let session = t.session("s").await?;
    t.change(&session, set(delta("user:k", "1").set("app:k", json("2")))).await?;
    t.rewind(&session, crate::Point::new(1)).await?;
    let wanted = keys([("app:k", "2"), ("user:k", "1")]);
    same(scopes(&t, &session).await?, wanted.clone(), "the scopes after a rewind")?;
    t.store.delete(&session).await?;
    same(scopes(&t, &session).await?, wanted, "the scopes after the session is deleted")
}

pub(super) async fn scopes_are_there_before_any_session(t: Bench) -> Check {
    let nobody = UserId::new("nobody")?;
    same(t.store.scopes(&key("s").app, Some(&nobody)).await?, ScopedState::new(), "a user nobody knows")?;
    same(t.store.scopes(&key("s").app, None).await?, ScopedState::new(), "an app nobody knows")
}

pub(super) async fn racing_turns_merge_their_keys(t: Bench) -> Check {
    let handles = [t.store.clone(), t.second().await?];
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let store = handles[i % 2].clone();
            tokio::spawn(async move {
                let session = key(&format!("s{i}"));
                store.create(CreateSession::at(session.clone())).await?;
                for round in 0..4 {
                    let begin = turn(&session, "x").busy(Busy::Wait(Duration::from_secs(60)));
                    let begun = store.begin(begin).await?.begun()?;
                    let mine = delta(&format!("user:k{i}"), &round.to_string()).set("user:shared", json("1"));
                    store.end(EndTurn::completed(begun.fence, set(mine))).await?;
                }
                Ok::<_, crate::Error>(())
            })
        })
        .collect();
    for task in tasks {
        match task.await {
            Ok(done) => done?,
            Err(panic) => return fail(format!("a turn panicked: {panic}")),
        }
    }
    let found = scopes(&t, &key("s0")).await?;
    same(found.len(), 9, "the keys of eight sessions")?;
    for i in 0..8 {
        same(found.get(&format!("user:k{i}")), Some(&json("3")), "the last value of a session's key")?;
    }
    Ok(())
}

pub(super) async fn all_keys_a_session_sees_are_merged(t: Bench) -> Check {
    let session = t.session("s").await?;
    let mixed = delta("app:k", "1").set("user:k", json("2")).set("k", json("3"));
    t.change(&session, set(mixed)).await?;
    let merged = t.second().await?.scoped_state(&session).await?;
    same(merged, keys([("app:k", "1"), ("k", "3"), ("user:k", "2")]), "all keys")
}

pub(super) async fn keys_that_make_no_sense_are_refused(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "x").await?;
    let before = t.footprint(&session).await?;
    let mut both = Event::new("m").with_state(delta("user:k", "1"));
    both.state_removed.insert("user:k".into());
    for changes in [set(delta("user:", "1")), set(delta("", "1")), Changes::new().event(both)] {
        let ending = EndTurn::completed(begun.fence, changes);
        refused(t.store.end(ending).await, ErrorKind::Invalid, "a key that makes no sense")?;
    }
    same(t.footprint(&session).await?, before, "what the refusals left")?;
    t.store.end(failure(begun.fence, "x")).await?;
    Ok(())
}

pub(super) async fn scopes_are_changed_without_a_turn(t: Bench) -> Check {
    let key = t.session("s").await?;
    let delta = StateDelta::new().set("app:motd", json("1")).set("user:tier", json("null"));
    t.store.set_scopes(&key.app, Some(&key.user), delta).await?;
    let found = scopes(&t, &key).await?;
    same(found.get("app:motd"), Some(&json("1")), "an app's key")?;
    same(found.get("user:tier"), Some(&json("null")), "a user's key")?;
    let more = StateDelta::new().set("user:a", json("2")).remove("app:motd");
    t.store.set_scopes(&key.app, Some(&key.user), more).await?;
    let found = scopes(&t, &key).await?;
    holds(!found.contains_key("app:motd") && found.len() == 2, "a key is removed, the others stay")?;
    for bad in ["mine", "temp:x", "user:", "app:"] {
        let delta = StateDelta::new().set("user:b", json("3")).set(bad, json("4"));
        refused(t.store.set_scopes(&key.app, Some(&key.user), delta).await, ErrorKind::Invalid, bad)?;
    }
    let orphaned = StateDelta::new().set("user:b", json("3"));
    refused(t.store.set_scopes(&key.app, None, orphaned).await, ErrorKind::Invalid, "a user's key without a user")?;
    same(scopes(&t, &key).await?.len(), 2, "how many keys there are after what was refused")
}
