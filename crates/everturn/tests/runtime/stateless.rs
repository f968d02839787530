//! Without a store, and with no more of a session than three methods.

use std::sync::Arc;

use everturn::store::{At, StoreExt};
use everturn::{
    Agent, AgentClient, Changes, ErrorKind, Init, Json, MemoryTranscript, Message, Role, SessionId, StateManagement,
    StoredTranscript, Transcript, Turn, Usage, View,
};

use crate::faulty::{Faults, Write};
use crate::support::*;

#[tokio::test]
async fn an_agent_without_a_store_keeps_nothing() {
    let agent = Agent::flow("f", |turn: Turn<Json>| async move {
        turn.add_message(Message::model("ok"))?;
        Ok(turn.messages().len())
    });
    let agent = agent.build().unwrap();
    assert_eq!(agent.info().state_management, StateManagement::Client);
    for _ in 0..3 {
        let output = agent.run_text("hi", Init::new()).await.unwrap();
        assert_eq!(output.output_as::<usize>().unwrap(), Some(2), "each run begins anew");
    }
}

#[tokio::test]
async fn turns_on_one_connection_still_follow_each_other() {
    let agent = echo().build().unwrap();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    for text in ["one", "two"] {
        connection.send_text(text).await.unwrap();
    }
    let output = connection.output().await.unwrap();
    assert_eq!(said(&output), ["one", "echo: one", "two", "echo: two"]);
    assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 2);
}

/// Somebody's own loop, which may or may not have a session.
async fn round(session: Option<&dyn Transcript>, text: &str) -> everturn::Result<usize> {
    let mut messages = match session {
        Some(session) => session.messages().await?,
        None => Vec::new(),
    };
    messages.push(Message::user(text));
    let shown = messages.len();
    if let Some(session) = session {
        let turn = vec![Message::user(text), Message::model(format!("{shown} shown"))];
        session.save_turn(turn, Usage::tokens(10, 2)).await?;
    }
    Ok(shown)
}

#[tokio::test]
async fn a_loop_of_ones_own_works_with_any_session_or_none() {
    let transient = MemoryTranscript::new(SessionId::new("t").unwrap());
    for (turn, shown) in [1, 3, 5].into_iter().enumerate() {
        assert_eq!(round(None, "x").await.unwrap(), 1);
        assert_eq!(round(Some(&transient), "x").await.unwrap(), shown, "turn {turn}");
    }
    assert_eq!((transient.id().as_str(), transient.total_usage()), ("t", Usage::tokens(30, 6)));
}

on_every_store! {
    async fn a_saved_turn_is_a_turn_like_any_other(home: Home) {
        let session = StoredTranscript::open(home.store(), key("s")).await.unwrap();
        assert!(session.messages().await.unwrap().is_empty());
        for shown in [1, 3, 5] {
            assert_eq!(round(Some(&session), "x").await.unwrap(), shown);
        }
        assert_eq!(session.id(), &sid("s"));
        let state = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((state.turns(), state.messages().len(), state.usage()), (3, 6, Usage::tokens(30, 6)));
        let agent = stored(&home);
        let output = agent.run_text("y", Init::session(sid("s"))).await.unwrap();
        assert_eq!((said(&output).len(), output.snapshot_ids.len()), (8, 1), "an agent goes on with it");
        let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
        assert_eq!(rows.len(), 4, "each turn has a snapshot");
    }

    async fn an_open_session_is_opened_again(home: Home) {
        let first = StoredTranscript::open(home.store(), key("s")).await.unwrap();
        first.save_turn(vec![Message::user("a")], Usage::default()).await.unwrap();
        let again = StoredTranscript::open(home.elsewhere(), key("s")).await.unwrap();
        let mut messages = again.messages().await.unwrap();
        assert_eq!(messages.len(), 1);
        messages.clear();
        assert_eq!(again.messages().await.unwrap().len(), 1, "what was handed out changes nothing");
        assert_eq!(again.key(), &key("s"));
    }

    async fn authors_and_order_of_a_saved_turn_survive(home: Home) {
        let session = StoredTranscript::open(home.store(), key("s")).await.unwrap();
        let roles = [Role::User, Role::User, Role::Model, Role::Tool, Role::User, Role::Model];
        let turn = roles.iter().enumerate().map(|(n, role)| Message::of_text(*role, n.to_string())).collect();
        session.save_turn(turn, Usage::default()).await.unwrap();
        assert_eq!(kind(session.save_turn(vec![], Usage::default()).await), ErrorKind::Invalid);
        let kept = session.messages().await.unwrap();
        assert_eq!(kept.iter().map(Message::role).collect::<Vec<_>>(), roles);
        assert_eq!(kept.iter().map(Message::text).collect::<String>(), "012345");
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().turns(), 1);
    }

    async fn a_turn_that_cannot_be_saved_leaves_nothing(home: Home) {
        let faults = Faults::default();
        let session = StoredTranscript::open(faults.store(home.store()), key("s")).await.unwrap();
        round(Some(&session), "a").await.unwrap();
        faults.fail(Write::End, ErrorKind::Unavailable);
        assert_eq!(kind(round(Some(&session), "b").await), ErrorKind::Unavailable);
        assert_eq!(session.messages().await.unwrap().len(), 2);
        assert_eq!(home.store().running(None).await.unwrap(), [], "the session is free");
        round(Some(&session), "c").await.unwrap();
    }

    async fn parallel_savers_take_turns(home: Home) {
        let session = Arc::new(StoredTranscript::open(home.store(), key("s")).await.unwrap());
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let session = session.clone();
                tokio::spawn(async move {
                    let turn = vec![Message::user(format!("q{n}")), Message::model(format!("a{n}"))];
                    session.save_turn(turn, Usage::tokens(1, 1)).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let messages = session.messages().await.unwrap();
        assert_eq!(messages.len(), 20);
        for pair in messages.chunks(2) {
            assert_eq!(pair[0].text().replace('q', "a"), pair[1].text(), "no turn is mixed with another");
        }
    }

    async fn a_compacted_session_shows_its_summary(home: Home) {
        let session = StoredTranscript::open(home.store(), key("s")).await.unwrap();
        round(Some(&session), "a").await.unwrap();
        let view = View::new(2, vec![Message::user("a summary")]);
        let commit = everturn::store::Commit::new(key("s"), Changes::new().view(view));
        home.store().commit(commit).await.unwrap();
        let shown = session.messages().await.unwrap();
        assert_eq!(shown.iter().map(Message::text).collect::<Vec<_>>(), ["a summary"]);
        let whole = home.store().state(At::head(key("s"))).await.unwrap().unwrap();
        assert_eq!(whole.messages().len(), 2, "what was said stays whole");
    }
}
