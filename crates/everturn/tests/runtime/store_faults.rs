//! Stores that refuse what a turn writes.

use std::time::Duration;

use everturn::store::StoreExt;
use everturn::{Agent, Artifact, ErrorKind, Failure, Init, Json, Message, OnFailure, SnapshotPolicy, Turn, Usage};
use tokio::sync::mpsc;

use crate::faulty::{Faults, Write};
use crate::support::*;

on_every_store! {
    async fn a_store_that_cannot_write_the_end_fails_the_turn(home: Home) {
        for on_failure in [OnFailure::Rollback, OnFailure::Keep] {
            let faults = Faults::default();
            let agent = echo().shared_store(faults.store(home.store())).on_failure(on_failure).build().unwrap();
            let good = agent.run_text("one", Init::new()).await.unwrap();
            let session = || Init::session(good.session_id.clone());
            faults.fail(Write::End, ErrorKind::Unavailable);
            let failed = agent.run_text("two", session()).await.unwrap();
            assert_eq!(failed.error.as_ref().unwrap().status, "UNAVAILABLE");
            assert_eq!(failed.snapshot_id, good.snapshot_id);
            assert_eq!(said(&failed).len(), 2, "what was not written did not happen, whatever {on_failure:?} says");
            assert_eq!(said(&agent.run_text("three", session()).await.unwrap()).len(), 4);
        }
    }

    async fn a_turn_that_was_taken_over_fails_and_writes_nothing(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        let good = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        faults.fail(Write::End, ErrorKind::Fenced);
        let failed = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        assert_eq!((failed.error.unwrap().status.as_str(), failed.snapshot_id), ("ABORTED", good.snapshot_id));
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().messages().len(), 2);
    }

    async fn a_session_that_is_deleted_under_a_turn_fails_it(home: Home) {
        let store = home.store();
        let agent = Agent::flow("echo", move |turn: Turn<Json>| {
            let store = store.clone();
            async move {
                store.delete(&key(turn.id().as_str())).await?;
                Ok(())
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let failed = agent.run_text("x", Init::new()).await.unwrap();
        assert_eq!((failed.error.unwrap().status.as_str(), failed.snapshot_id), ("NOT_FOUND", None));
    }

    async fn a_step_that_cannot_be_written_is_the_handlers_to_deal_with(home: Home) {
        let faults = Faults::default();
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.add_message(Message::model("half"))?;
            let refused = turn.tool_iteration_end().await;
            assert_eq!(kind(refused), ErrorKind::Unavailable);
            turn.tool_iteration_end().await?;
            Ok(())
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        faults.fail(Write::Step, ErrorKind::Unavailable);
        let output = agent.run_text("x", Init::new()).await.unwrap().ok().unwrap();
        assert_eq!(said(&output), ["x", "half"]);
    }

    async fn an_invocations_end_that_cannot_be_written_is_told(home: Home) {
        let faults = Faults::default();
        let policy = SnapshotPolicy::on([everturn::SnapshotEvent::InvocationEnd]);
        let agent = echo().shared_store(faults.store(home.store())).snapshots(policy).build().unwrap();
        faults.fail(Write::Commit, ErrorKind::Unavailable);
        let output = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.error.as_ref().unwrap().status, "UNAVAILABLE");
        assert_eq!(said(&output), ["one", "echo: one"], "the turn itself was kept");
        assert_eq!(output.point, Some(home.store().existing(&key("s")).await.unwrap().head));
    }

    async fn a_turn_that_cannot_begin_leaves_what_the_others_did(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.receive_turn().await;
        faults.fail(Write::Begin, ErrorKind::Unavailable);
        connection.send_text("two").await.unwrap();
        connection.send_text("three").await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!(output.error.unwrap().status, "UNAVAILABLE");
        assert_eq!(texts(output.state.messages()), ["one", "echo: one"]);
        assert!(output.snapshot_id.is_some());
        assert_eq!(output.unprocessed.len(), 2);
    }

    async fn what_is_changed_while_a_step_is_written_is_kept(home: Home) {
        for fails in [false, true] {
            let faults = Faults::default();
            let step = faults.pause(Write::Step);
            if fails {
                faults.fail(Write::Step, ErrorKind::Unavailable);
            }
            let agent = Agent::flow("echo", move |turn: Turn<Tally>| {
                let step = step.clone();
                async move {
                    turn.add_message(Message::model("before"))?;
                    turn.add_usage(Usage::tokens(1, 0))?;
                    let (written, ()) = tokio::join!(turn.tool_iteration_end(), async {
                        step.reached().await;
                        turn.add_message(Message::model("meanwhile")).unwrap();
                        turn.update_custom(|tally| tally.turns += 1).unwrap();
                        turn.add_artifact(Artifact::new("a", vec![])).await.unwrap();
                        turn.add_usage(Usage::tokens(0, 1)).unwrap();
                        step.go();
                    });
                    assert_eq!(written.is_err(), fails);
                    assert_eq!(turn.total_usage(), Usage::tokens(1, 1));
                    Ok(())
                }
            });
            let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
            let output = agent.run_text("x", Init::new()).await.unwrap().ok().unwrap();
            let kept = home.elsewhere().head_state(&key(output.session_id.as_str())).await.unwrap();
            assert_eq!(texts(kept.messages()), ["x", "before", "meanwhile"]);
            assert_eq!((kept.custom().is_some(), kept.artifacts().len()), (true, 1));
            assert_eq!(kept.usage(), Usage::tokens(1, 1));
        }
    }

    async fn messages_replaced_while_a_step_fails_are_kept_as_replaced(home: Home) {
        let faults = Faults::default();
        let step = faults.pause(Write::Step);
        faults.fail(Write::Step, ErrorKind::Unavailable);
        let agent = Agent::flow("echo", move |turn: Turn<Json>| {
            let step = step.clone();
            async move {
                turn.add_message(Message::model("before"))?;
                let (written, ()) = tokio::join!(turn.tool_iteration_end(), async {
                    step.reached().await;
                    turn.set_messages([Message::user("instead")]).unwrap();
                    step.go();
                });
                assert!(written.is_err());
                turn.add_message(Message::model("after"))?;
                Ok(())
            }
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        agent.run_text("x", Init::session(sid("s"))).await.unwrap().ok().unwrap();
        assert_eq!(texts(home.elsewhere().head_state(&key("s")).await.unwrap().messages()), ["instead", "after"]);
    }

    async fn nothing_is_changed_while_the_end_is_written(home: Home) {
        let faults = Faults::default();
        let end = faults.pause(Write::End);
        let (tell, mut sessions) = mpsc::unbounded_channel();
        let agent = Agent::flow("echo", move |turn: Turn<Json>| {
            let sent = tell.send(turn.session().clone());
            async move { sent.map_err(|_| Failure::new("INTERNAL", "nobody listens")) }
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("x").await.unwrap();
        end.reached().await;
        let session = sessions.recv().await.unwrap();
        assert_eq!(kind(session.add_message(Message::model("late"))), ErrorKind::Fenced, "refused, not lost");
        end.go();
        assert_eq!(said(&connection.output().await.unwrap()), ["x"]);
    }

    async fn a_step_that_nobody_waits_for_is_written_once(home: Home) {
        let faults = Faults::default();
        let step = faults.pause(Write::Step);
        let agent = Agent::flow("echo", move |turn: Turn<Json>| {
            let step = step.clone();
            async move {
                turn.add_message(Message::model("half"))?;
                tokio::select! {
                    _ = turn.tool_iteration_end() => unreachable!("it is paused"),
                    () = step.reached() => {}
                }
                step.go();
                Ok(())
            }
        });
        let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
        let output = agent.run_text("x", Init::session(sid("s"))).await.unwrap().ok().unwrap();
        assert_eq!((said(&output), output.snapshot_ids.len()), (vec!["x".into(), "half".into()], 2));
        assert_eq!(home.elsewhere().head_state(&key("s")).await.unwrap().messages().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_a_moment_costs_no_turn() {
    let home = Home::memory();
    let faults = Faults::default();
    let agent = Agent::flow("echo", |_: Turn<Json>| async {
        tokio::time::sleep(Duration::from_secs(25)).await;
        Ok(())
    });
    let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
    faults.fail(Write::Renew, ErrorKind::Unavailable);
    agent.run_text("one", Init::new()).await.unwrap().ok().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_lost_its_fence_is_stopped() {
    let home = Home::memory();
    let faults = Faults::default();
    let (tell, mut told) = mpsc::unbounded_channel();
    let agent = Agent::flow("echo", move |turn: Turn<Json>| {
        let tell = tell.clone();
        async move {
            turn.cancelled().await;
            tell.send(())?;
            Ok(())
        }
    });
    let agent = agent.shared_store(faults.store(home.store())).build().unwrap();
    faults.fail(Write::Renew, ErrorKind::Fenced);
    let output = agent.run_text("one", Init::new()).await.unwrap();
    assert_eq!(output.error.unwrap().status, "ABORTED");
    told.recv().await.unwrap();
}
