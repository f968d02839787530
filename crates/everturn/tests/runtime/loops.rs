//! Handlers that take their turns themselves.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{At, StoreExt};
use everturn::{
    Agent, AgentBuilder, ErrorKind, Failure, FinishReason, Handled, Init, Message, Patience, Session, TurnKey,
};
use tokio::sync::Notify;

use crate::faulty::{Faults, Write};
use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

fn looping<F, Fut>(handler: F) -> AgentBuilder<Tally>
where
    F: Fn(Session<Tally>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled<()>> + Send + 'static,
{
    Agent::flow_loop("echo", handler)
}

on_every_store! {
    async fn a_turn_ends_when_the_next_is_taken(home: Home) {
        let agent = Agent::flow_loop("echo", |session: Session<Tally>| async move {
            let mut turns = 0;
            while let Some(turn) = session.next_turn().await? {
                turn.add_message(Message::model(format!("{turns}: {}", turn.text())))?;
                turns += 1;
            }
            Ok(turns)
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b"] {
            connection.send_text(text).await.unwrap();
            let end = connection.receive_turn().await.last().unwrap().turn_end.unwrap();
            assert!(end.snapshot_id.is_some());
        }
        let output = connection.output().await.unwrap();
        assert_eq!((said(&output), output.output_as::<u32>().unwrap()), (vec!["a".into(), "0: a".into(), "b".into(), "1: b".into()], Some(2)));
    }

    async fn a_turn_can_be_ended_by_hand(home: Home) {
        let agent = looping(|session| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.add_message(Message::model("ok"))?;
                turn.finish_reason(FinishReason::Length)?;
                match turn.text().as_str() {
                    "responder" => {
                        session.responder().end_turn().await?;
                        assert_eq!(turn.tool_iteration_end().await.unwrap_err().kind(), ErrorKind::Fenced);
                        assert_eq!(turn.end().await.unwrap_err().kind(), Some(ErrorKind::Fenced));
                    }
                    _ => turn.end().await?,
                }
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["turn", "responder"] {
            connection.send_text(text).await.unwrap();
            let end = connection.receive_turn().await.last().unwrap().turn_end.unwrap();
            assert_eq!(end.finish_reason, FinishReason::Length);
        }
        assert_eq!(said(&connection.output().await.unwrap().ok().unwrap()).len(), 4);
    }

    async fn an_older_turns_handle_does_nothing_to_the_next(home: Home) {
        let agent = looping(|session| async move {
            let old = session.next_turn().await?.unwrap();
            let new = session.next_turn().await?.unwrap();
            assert_eq!(kind(old.label("x")), ErrorKind::Fenced);
            assert_eq!(kind(old.finish_reason(FinishReason::Other)), ErrorKind::Fenced);
            assert_eq!(old.fail(Failure::new("INTERNAL", "x")).await.unwrap_err().kind(), Some(ErrorKind::Fenced));
            new.end().await
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        assert_eq!(said(&connection.output().await.unwrap().ok().unwrap()), ["a", "b"]);
    }

    async fn a_loop_can_fail_a_turn_and_go_on(home: Home) {
        let agent = looping(|session| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.update_custom(|tally| tally.turns += 1)?;
                if turn.text() == "bad" {
                    turn.fail(Failure::new("UNAVAILABLE", "no")).await?;
                    assert_eq!(session.messages().len(), 1, "back at the last good state");
                }
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        let mut reasons = Vec::new();
        for text in ["good", "bad", "good"] {
            connection.send_text(text).await.unwrap();
            reasons.push(connection.receive_turn().await.last().unwrap().turn_end.unwrap().finish_reason);
        }
        assert_eq!(reasons, [FinishReason::Stop, FinishReason::Failed, FinishReason::Stop]);
        let output = connection.output().await.unwrap().ok().unwrap();
        assert_eq!((said(&output), output.state.custom::<Tally>().unwrap().unwrap().turns), (vec!["good".into(), "good".into()], 2));
        assert_eq!(connection.custom_json(), output.state.custom_json());
    }

    async fn a_loop_that_fails_fails_its_open_turn(home: Home) {
        let agent = looping(|session| async move {
            let turn = session.next_turn().await?.unwrap();
            turn.add_message(Message::model("lost"))?;
            Err(Failure::new("UNAVAILABLE", "no"))
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!((output.error.as_ref().unwrap().status.as_str(), said(&output).len()), ("UNAVAILABLE", 0));
        assert_eq!(output.unprocessed.len(), 1);
        assert_eq!(home.store().running(None).await.unwrap(), []);
    }

    async fn edits_between_turns_are_kept(home: Home) {
        let agent = looping(|session| async move {
            assert_eq!(kind(session.add_message(Message::model("early"))), ErrorKind::Invalid, "no turn has begun");
            while let Some(turn) = session.next_turn().await? {
                assert!(!turn.head_moved());
                turn.add_message(Message::model("ok"))?;
                turn.end().await?;
                session.add_message(Message::model("between"))?;
                session.update_custom(|tally| tally.turns += 1)?;
                session.state().await?.set("user:seen", &session.turn_count())?;
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b"] {
            connection.send_text(text).await.unwrap();
            connection.receive_turn().await;
        }
        let output = connection.output().await.unwrap().ok().unwrap();
        assert_eq!(said(&output), ["a", "ok", "between", "b", "ok", "between"]);
        let head = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((head.messages().len(), Some(head.point()), head.turns()), (6, output.point, 2));
        assert_eq!(head.custom(), Some(&json(r#"{"turns":2,"last":""}"#)));
        let scopes = home.store().scopes(agent.app(), Some(&user("user"))).await.unwrap();
        assert_eq!(scopes["user:seen"], json("2"));
    }

    async fn a_head_that_moved_between_turns_is_told(home: Home) {
        let (ended, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (ended.clone(), go.clone());
        let agent = looping(move |session| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                let turn = session.next_turn().await?.unwrap();
                turn.end().await?;
                session.add_message(Message::model("beside"))?;
                tell.notify_one();
                wait.notified().await;
                let turn = session.next_turn().await?.unwrap();
                assert!(turn.head_moved());
                assert_eq!(texts(&turn.messages()), ["a", "other", "echo: other", "b"], "it goes on with the head");
                turn.end().await
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        ended.notified().await;
        stored(&home).run_text("other", s()).await.unwrap();
        go.notify_one();
        let output = connection.output().await.unwrap().ok().unwrap();
        assert!(output.on_head);
        assert_eq!(said(&output).len(), 4);
        let mut beside = 0;
        for seq in 1..20 {
            let state = home.store().state(At::Point(key("s"), everturn::Point::new(seq))).await.unwrap();
            beside += usize::from(state.is_some_and(|state| texts(state.messages()) == ["a", "beside"]));
        }
        assert_eq!(beside, 1, "what was changed in between is kept beside the head");
    }

    async fn an_edit_after_the_last_turn_does_not_wait_for_another_turn(home: Home) {
        let (ended, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (ended.clone(), go.clone());
        let agent = looping(move |session| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                session.next_turn().await?.unwrap().end().await?;
                session.add_message(Message::model("beside"))?;
                tell.notify_one();
                wait.notified().await;
                Ok(())
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut first = agent.connect(s()).await.unwrap();
        first.send_text("a").await.unwrap();
        first.close();
        ended.notified().await;
        let hold = Arc::new(Notify::new());
        let held = hold.clone();
        let holder = Agent::flow("echo", move |turn: everturn::Turn<Tally>| {
            let held = held.clone();
            async move {
                turn.responder().text("running").await?;
                held.notified().await;
                Ok(())
            }
        });
        let holder = holder.shared_store(home.store()).build().unwrap();
        let mut second = holder.connect(s()).await.unwrap();
        second.send_text("b").await.unwrap();
        second.receive().await.unwrap();
        go.notify_one();
        let output = first.output().await.unwrap().ok().unwrap();
        assert_eq!((said(&output), output.on_head), (vec!["a".into(), "beside".into()], false));
        hold.notify_one();
        let other = second.output().await.unwrap().ok().unwrap();
        assert!(other.on_head);
        let kept = stored(&home).run_text("c", Init::snapshot(output.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&kept)[..2], ["a", "beside"]);
    }

    async fn a_refused_first_turn_refuses_the_invocation(home: Home) {
        let agent = looping(|session| async move {
            while session.next_turn().await?.is_some() {}
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        agent.run_text("a", s()).await.unwrap();
        let init = s().expect(everturn::Point::new(1));
        assert_eq!(kind(agent.run_text("b", init).await), ErrorKind::Conflict);
    }

    async fn a_refused_later_turn_leaves_what_the_others_did(home: Home) {
        let faults = Faults::default();
        let agent = looping(|session| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.add_message(Message::model("ok"))?;
                turn.end().await?;
            }
            Ok(())
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.receive_turn().await;
        faults.fail(Write::Begin, ErrorKind::Unavailable);
        connection.send_text("b").await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!((output.error.as_ref().unwrap().status.as_str(), said(&output).len()), ("UNAVAILABLE", 2));
        assert_eq!(output.unprocessed.len(), 1);
    }

    async fn a_repeated_key_is_answered_to_a_loop_too(home: Home) {
        let agent = looping(|session| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.update_custom(|tally| tally.turns += 1)?;
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let keyed = || s().key(TurnKey::new("k").unwrap());
        let first = agent.run_text("a", keyed()).await.unwrap();
        let again = agent.run_text("a", keyed()).await.unwrap().ok().unwrap();
        assert_eq!((again.point, again.snapshot_id), (first.point, first.snapshot_id));
        assert_eq!(again.state.custom::<Tally>().unwrap().unwrap().turns, 1);
    }

    async fn keys_read_in_one_turn_are_fresh_in_the_next(home: Home) {
        let agent = looping(|session| async move {
            let turn = session.next_turn().await?.unwrap();
            let state = session.state().await?;
            state.set("user:n", &1)?;
            turn.end().await?;
            assert_eq!(state.get::<u32>("user:n")?, Some(1));
            let turn = session.next_turn().await?.unwrap();
            assert_eq!(state.get::<u32>("user:n")?, Some(1), "what was written is still read");
            state.remove("user:n")?;
            turn.end().await?;
            assert_eq!(state.get::<u32>("user:n")?, None);
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        connection.output().await.unwrap().ok().unwrap();
        assert!(home.store().scopes(agent.app(), Some(&user("user"))).await.unwrap().is_empty());
    }

    async fn waiting_for_a_turn_can_be_given_up_and_taken_up_again(home: Home) {
        let faults = Faults::default();
        let begin = faults.pause(Write::Begin);
        let reached = begin.clone();
        let agent = looping(move |session| {
            let begin = reached.clone();
            async move {
                tokio::select! {
                    biased;
                    _ = session.next_turn() => unreachable!("nothing was sent yet"),
                    () = std::future::ready(()) => {}
                }
                tokio::select! {
                    _ = session.next_turn() => unreachable!("its begin is paused"),
                    () = begin.reached() => {}
                }
                begin.go();
                let mut seen = 0;
                while let Some(turn) = session.next_turn().await? {
                    turn.add_message(Message::model("ok"))?;
                    seen += 1;
                }
                assert_eq!(seen, 2, "no input is lost and none is worked on twice");
                Ok(())
            }
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        assert_eq!(said(&connection.output().await.unwrap().ok().unwrap()), ["a", "ok", "b", "ok"]);
    }

    async fn a_turn_nobody_asks_for_any_more_is_not_worked_on(home: Home) {
        let faults = Faults::default();
        let inner = faults.clone();
        let agent = looping(move |session| {
            let faults = inner.clone();
            async move {
                session.next_turn().await?.unwrap().end().await?;
                let begin = faults.pause(Write::Begin);
                tokio::select! {
                    _ = session.next_turn() => unreachable!("its begin is paused"),
                    () = begin.reached() => {}
                }
                begin.go();
                Ok(())
            }
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("a").await.unwrap();
        connection.send_text("b").await.unwrap();
        let output = connection.output().await.unwrap().ok().unwrap();
        assert_eq!((said(&output), output.unprocessed.len()), (vec!["a".into()], 1));
        assert_eq!(output.finish_reason, Some(FinishReason::Stop));
        assert_eq!(home.store().running(None).await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_input_is_no_turns_time() {
    let home = Home::memory();
    let mut patience = Patience::default();
    patience.turn = Some(Duration::from_secs(60));
    let agent = looping(|session| async move {
        while let Some(turn) = session.next_turn().await? {
            let wait: u64 = turn.text().parse()?;
            tokio::time::sleep(Duration::from_secs(wait)).await;
        }
        Ok(())
    });
    let agent = agent.shared_store(home.store()).patience(patience).build().unwrap();
    let mut connection = agent.connect(s()).await.unwrap();
    for seconds in ["50", "50"] {
        tokio::time::sleep(Duration::from_secs(300)).await;
        connection.send_text(seconds).await.unwrap();
        let end = connection.receive_turn().await.last().unwrap().turn_end.unwrap();
        assert_eq!(end.finish_reason, FinishReason::Stop);
    }
    connection.send_text("70").await.unwrap();
    let output = connection.output().await.unwrap();
    assert_eq!(output.error.unwrap().status, "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn without_a_store_a_loop_works_on_what_it_was_given() {
    let agent = looping(|session| async move {
        while let Some(turn) = session.next_turn().await? {
            turn.add_message(Message::model("ok"))?;
            turn.end().await?;
            session.add_message(Message::model("between"))?;
        }
        Ok(())
    });
    let agent = agent.build().unwrap();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    connection.send_text("a").await.unwrap();
    connection.send_text("b").await.unwrap();
    let output = connection.output().await.unwrap().ok().unwrap();
    assert_eq!(said(&output), ["a", "ok", "between", "b", "ok", "between"]);
}
