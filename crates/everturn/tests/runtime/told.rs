//! What a client is told of custom state that its own turn's handler did not change.

use std::sync::Arc;

use everturn::{
    Agent, AgentBuilder, Connection, Failure, Init, Input, Json, Message, OnFailure, Session, SessionState, StateDelta,
    StreamLimits, Turn,
};
use tokio::sync::Notify;

use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

/// `set JSON` replaces the custom state; anything else only adds a message.
fn setting(home: &Home) -> AgentBuilder<Json> {
    let flow = Agent::flow("echo", |turn: Turn<Json>| async move {
        let text = turn.text();
        match text.split_once(' ') {
            Some(("set", custom)) => turn.set_custom_json(Some(json(custom)))?,
            Some(("fail", why)) => return Err(Failure::new("INTERNAL", why)),
            _ => {}
        }
        turn.add_message(Message::model("ok"))?;
        Ok(())
    });
    flow.shared_store(home.store())
}

/// Shows how much was said beside the custom state.
fn with_length(mut state: SessionState, _: &everturn::Caller) -> everturn::Result<SessionState> {
    if state.custom.is_some() {
        state.custom = Some(Json::from_value(&state.messages.len())?);
    }
    Ok(state)
}

async fn turn(connection: &mut Connection, input: Input) -> Option<Json> {
    connection.send(input).await.unwrap();
    connection.receive_turn().await;
    connection.custom_json().cloned()
}

on_every_store! {
    async fn what_an_input_changes_is_told(home: Home) {
        let agent = setting(&home).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        let input = Input::text("hi").with_state(StateDelta::new().set("n", json("1")));
        assert_eq!(turn(&mut connection, input).await, Some(json(r#"{"n":1}"#)));
        let input = Input::text("fail it").with_state(StateDelta::new().set("n", json("2")));
        assert_eq!(turn(&mut connection, input).await, Some(json(r#"{"n":1}"#)), "and taken back with the turn");
        let output = connection.output().await.unwrap();
        assert_eq!(output.state.custom_json(), Some(&json(r#"{"n":1}"#)));
    }

    async fn what_others_made_of_it_meanwhile_is_told(home: Home) {
        let agent = setting(&home).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        turn(&mut connection, Input::text("set 1")).await;
        agent.run_text("set 2", s()).await.unwrap();
        assert_eq!(connection.custom_json(), Some(&json("1")), "nothing was sent in between");
        assert_eq!(turn(&mut connection, Input::text("hi")).await, Some(json("2")));
    }

    async fn a_client_that_was_told_nothing_is_told_of_no_change(home: Home) {
        let agent = setting(&home).build().unwrap();
        agent.run_text("set 1", s()).await.unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("hi").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert!(patches(&chunks).is_empty(), "patches are of changes");
    }

    async fn what_a_transform_makes_of_the_rest_of_the_state_is_told_by_the_end_of_the_turn(home: Home) {
        let agent = setting(&home).transform_state(with_length).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        assert_eq!(turn(&mut connection, Input::text("set {}")).await, Some(json("2")));
        assert_eq!(turn(&mut connection, Input::text("hi")).await, Some(json("4")));
        assert_eq!(turn(&mut connection, Input::text("hi")).await, Some(json("6")));
        assert_eq!(turn(&mut connection, Input::text("fail it")).await, Some(json("6")));
        assert_eq!(connection.output().await.unwrap().state.custom_json(), Some(&json("6")));
    }

    async fn what_found_no_room_before_a_turns_end_is_told_all_the_same(home: Home) {
        let mut limits = StreamLimits::default();
        limits.chunks = 1;
        let between = Agent::flow_loop("echo", |session: Session<Json>| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.end().await?;
                for n in 0..5 {
                    session.set_custom_json(Some(Json::from_value(&n)?))?;
                }
            }
            Ok(())
        });
        let agent = between.shared_store(home.store()).stream_limits(limits).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        for _ in 0..3 {
            connection.send_text("hi").await.unwrap();
        }
        let output = connection.output().await.unwrap().ok().unwrap();
        assert_eq!((connection.custom_json(), output.state.custom_json()), (Some(&json("4")), Some(&json("4"))));
    }

    async fn a_loop_that_gives_up_between_turns_drops_what_it_changed_there(home: Home) {
        let giving_up = || Agent::flow_loop("echo", |session: Session<Json>| async move {
            session.next_turn().await?.unwrap().end().await?;
            session.set_custom_json(Some(json("1")))?;
            session.add_message(Message::model("between"))?;
            Err::<(), _>(Failure::new("UNAVAILABLE", "no more"))
        });
        let agent = giving_up().shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!(output.error.as_ref().unwrap().message, "no more");
        assert_eq!((said(&output), output.state.custom_json()), (vec!["a".into()], None));
        assert_eq!(connection.custom_json(), None, "the client is told");
        assert_eq!(said(&setting(&home).build().unwrap().run_text("b", s()).await.unwrap()), ["a", "b", "ok"]);
        let keeping = giving_up().shared_store(home.store()).on_failure(OnFailure::Keep).build().unwrap();
        let output = keeping.run_text("c", Init::session(sid("kept"))).await.unwrap();
        assert!(output.error.is_some());
        assert_eq!((said(&output), output.state.custom_json()), (vec!["c".into(), "between".into()], Some(&json("1"))));
        let next = setting(&home).build().unwrap().run_text("d", Init::session(sid("kept"))).await.unwrap();
        assert_eq!(said(&next), ["c", "between", "d", "ok"]);
    }

    async fn what_a_loop_changes_after_a_turn_that_failed_is_kept(home: Home) {
        let agent = Agent::flow_loop("echo", |session: Session<Json>| async move {
            let turn = session.next_turn().await?.unwrap();
            turn.set_custom_json(Some(json("0")))?;
            turn.fail(Failure::new("UNAVAILABLE", "not this one")).await?;
            session.add_message(Message::model("Sorry."))?;
            session.set_custom_json(Some(json("1")))?;
            Ok("done")
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!(output.error.as_ref().unwrap().message, "not this one");
        assert_eq!((said(&output), output.state.custom_json()), (vec!["Sorry.".into()], Some(&json("1"))));
        assert_eq!(output.output_as::<String>().unwrap().as_deref(), Some("done"));
        assert_eq!(connection.custom_json(), Some(&json("1")));
        let next = setting(&home).build().unwrap().run_text("b", s()).await.unwrap();
        assert_eq!(said(&next), ["Sorry.", "b", "ok"]);
    }

    async fn a_loop_that_is_aborted_between_turns_drops_what_it_changed_there(home: Home) {
        let (edited, never) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (edited.clone(), never.clone());
        let agent = Agent::flow_loop("echo", move |session: Session<Json>| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                session.next_turn().await?.unwrap().end().await?;
                session.add_message(Message::model("between"))?;
                tell.notify_one();
                wait.notified().await;
                Ok(())
            }
        });
        let mut patience = everturn::Patience::default();
        patience.cancelled = std::time::Duration::from_millis(1);
        let agent = agent.shared_store(home.store()).patience(patience).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        edited.notified().await;
        connection.abort();
        let output = connection.output().await.unwrap();
        assert_eq!((output.finish_reason, said(&output)), (Some(everturn::FinishReason::Aborted), vec!["a".into()]));
        assert_eq!(said(&setting(&home).build().unwrap().run_text("b", s()).await.unwrap()), ["a", "b", "ok"]);
    }
}
