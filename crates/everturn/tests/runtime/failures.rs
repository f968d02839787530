//! What each failure leaves: of the handler, of its transforms, of its policy.

use everturn::store::StoreExt;
use everturn::{
    Agent, Error, ErrorKind, Failure, FinishReason, Init, Json, Message, OnFailure, SnapshotPolicy, SnapshotStatus,
    Turn,
};

use crate::support::*;

on_every_store! {
    async fn a_failing_handler_leaves_the_last_good_state(home: Home) {
        let agent = stored(&home);
        let good = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let failed = agent.run_text("fail broken", Init::session(sid("s"))).await.unwrap();
        let error = failed.error.clone().unwrap();
        assert_eq!((error.status.as_str(), error.message.as_str()), ("UNAVAILABLE", "broken"));
        assert_eq!(error.details, Some(json("[1,2]")));
        assert_eq!((failed.finish_reason, failed.message), (Some(FinishReason::Failed), None));
        assert_eq!((failed.snapshot_id, failed.point), (good.snapshot_id, good.point), "the last good ids");
        assert_eq!(texts(failed.state.messages()), ["one", "echo: one"]);
        assert_eq!(failed.state.custom_json(), good.state.custom_json());
        let head = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((head.point(), head.messages().len()), (good.point.unwrap(), 2));
        let next = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&next), ["one", "echo: one", "two", "echo: two"]);
    }

    async fn a_failed_snapshot_shows_what_was_said_and_is_not_resumed(home: Home) {
        let agent = stored(&home);
        let good = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let failed = agent.run_text("fail broken", Init::session(sid("s"))).await.unwrap();
        let id = failed.snapshot_ids[0];
        assert_eq!(failed.snapshot_ids, [id]);
        let snapshot = agent.snapshot(id).await.unwrap().unwrap();
        assert_eq!((snapshot.status, snapshot.finish_reason), (SnapshotStatus::Failed, Some(FinishReason::Failed)));
        assert_eq!((snapshot.error, snapshot.parent_id), (failed.error, good.snapshot_id));
        let state = snapshot.state.unwrap();
        let heard: Vec<_> = state.messages.iter().map(Message::text).collect();
        assert_eq!(heard, ["one", "echo: one", "fail broken", "partial"]);
        assert_eq!(state.custom.unwrap(), json(r#"{"turns":2,"last":"fail broken"}"#));
        assert_eq!(kind(agent.run_text("x", Init::snapshot(id)).await), ErrorKind::NotResumable);
        assert_eq!(agent.latest(&sid("s")).await.unwrap().unwrap().snapshot_id, good.snapshot_id.unwrap());
    }

    async fn a_failing_turn_takes_its_patches_back_before_it_ends(home: Home) {
        let agent = stored(&home);
        agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("fail broken").await.unwrap();
        let chunks = connection.receive_turn().await;
        let [.., back, end] = &chunks[..] else { panic!("{chunks:?}") };
        let whole = r#"[{"op":"replace","path":"","value":{"turns":1,"last":"one"}}]"#;
        assert_eq!(back.custom_patch.as_ref().unwrap().to_string(), whole);
        let end = end.turn_end.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!((end.finish_reason, end.snapshot_id), (FinishReason::Failed, Some(output.snapshot_ids[0])));
        assert_eq!(connection.custom_json(), output.state.custom_json());
    }

    async fn a_first_failing_turn_takes_custom_state_away_again(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        connection.send_text("fail broken").await.unwrap();
        let chunks = connection.receive_turn().await;
        let back = patches(&chunks).last().unwrap().to_string();
        assert_eq!(back, r#"[{"op":"replace","path":""}]"#, "there was none before");
        assert_eq!(connection.custom_json(), None);
    }

    async fn a_first_turn_that_fails_leaves_a_resumable_seed(home: Home) {
        let agent = stored(&home);
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("fail broken").await.unwrap();
        let chunks = connection.receive_turn().await;
        let failed = connection.output().await.unwrap();
        let seed = failed.snapshot_id.expect("something to go on from");
        assert!(chunks.iter().any(|chunk| chunk.snapshot_created == Some(seed)), "no turn's end carries it");
        assert_eq!(failed.snapshot_ids.len(), 2);
        let snapshot = agent.snapshot(seed).await.unwrap().unwrap();
        assert_eq!((snapshot.status, snapshot.event, snapshot.index), (SnapshotStatus::Completed, None, 0));
        assert!(snapshot.state.unwrap().messages.is_empty());
        let next = agent.run_text("one", Init::snapshot(seed)).await.unwrap();
        assert_eq!(said(&next), ["one", "echo: one"]);
        let first = agent.snapshot(next.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((first.index, first.turn_index, first.parent_id), (0, 0, Some(seed)), "a seed consumes no index");
    }

    async fn a_first_failure_keeps_the_initial_state(home: Home) {
        let agent = stored(&home);
        let init = Init::session(sid("s")).initial(&Tally { turns: 3, last: "x".into() }).unwrap();
        let failed = agent.run_text("fail broken", init).await.unwrap();
        assert_eq!(failed.state.custom::<Tally>().unwrap().unwrap().turns, 3);
        let next = agent.run_text("one", Init::snapshot(failed.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(next.state.custom::<Tally>().unwrap().unwrap().turns, 4);
    }

    async fn without_snapshots_a_failure_leaves_none(home: Home) {
        let agent = echo().shared_store(home.store()).snapshots(SnapshotPolicy::never()).build().unwrap();
        let failed = agent.run_text("fail broken", Init::session(sid("s"))).await.unwrap();
        assert_eq!((failed.snapshot_id, failed.snapshot_ids), (None, vec![]));
        assert!(agent.latest(&sid("s")).await.unwrap().is_none());
        assert_eq!(said(&agent.run_text("one", Init::session(sid("s"))).await.unwrap()).len(), 2);
    }

    async fn a_panic_is_a_failure_with_its_text(home: Home) {
        let agent = stored(&home);
        let failed = agent.run_text("panic ouch", Init::session(sid("s"))).await.unwrap();
        let error = failed.error.unwrap();
        assert_eq!(error.status, "INTERNAL");
        assert!(error.message.contains("ouch"), "{}", error.message);
        agent.run_text("one", Init::session(sid("s"))).await.unwrap();
    }

    async fn a_panic_before_the_handlers_future_is_one_too(home: Home) {
        let agent = Agent::flow("echo", |_: Turn<Json>| {
            if true {
                panic!("early");
            }
            async { Ok(()) }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let failed = agent.run_text("x", Init::new()).await.unwrap();
        assert!(failed.error.unwrap().message.contains("early"));
    }

    async fn with_keep_a_failed_turn_counts(home: Home) {
        let agent = echo().shared_store(home.store()).on_failure(OnFailure::Keep).build().unwrap();
        let failed = agent.run_text("fail broken", Init::session(sid("s"))).await.unwrap();
        assert_eq!(failed.error.as_ref().unwrap().message, "broken");
        assert_eq!(said(&failed), ["fail broken", "partial"]);
        let snapshot = agent.snapshot(failed.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(snapshot.status, SnapshotStatus::Completed);
        assert_eq!((snapshot.finish_reason, &snapshot.error), (Some(FinishReason::Failed), &failed.error));
        let next = agent.run_text("two", Init::snapshot(snapshot.snapshot_id)).await.unwrap();
        assert_eq!(said(&next).len(), 4);
        assert_eq!(next.state.custom::<Tally>().unwrap().unwrap().turns, 2);
    }

    async fn inputs_behind_a_failed_turn_are_reported(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        for text in ["one", "fail broken", "two", "three"] {
            connection.send_text(text).await.unwrap();
        }
        let output = connection.output().await.unwrap();
        let left: Vec<_> = output.unprocessed.iter().map(|input| input.messages[0].text()).collect();
        assert_eq!(left, ["two", "three"]);
        assert_eq!(said(&output), ["one", "echo: one"]);
        assert_eq!(kind(connection.send_text("four").await), ErrorKind::Invalid);
    }

    async fn a_snapshot_inside_a_failed_turn_is_not_the_last_good_one(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            if turn.text() == "good" {
                return Ok(());
            }
            turn.add_message(Message::model("half"))?;
            turn.tool_iteration_end().await?.expect("every opportunity is taken");
            Err(Failure::new("INTERNAL", "after it"))
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let good = agent.run_text("good", Init::session(sid("s"))).await.unwrap();
        let failed = agent.run_text("bad", Init::session(sid("s"))).await.unwrap();
        assert_eq!(failed.snapshot_id, good.snapshot_id);
        assert_eq!(failed.snapshot_ids.len(), 2, "the one inside and the failed one");
        let next = agent.run_text("good", Init::snapshot(failed.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&next), ["good", "good"]);
    }

    async fn a_transform_that_fails_on_custom_state_withholds_it(home: Home) {
        let agent = echo().shared_store(home.store()).transform_state(|state, _| {
            let secret = state.custom.as_ref().is_some_and(|custom| custom.as_str().contains("secret"));
            if secret { Err(Error::new(ErrorKind::Internal, "cannot shape it")) } else { Ok(state) }
        });
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.receive_turn().await;
        connection.send_text("secret").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert!(!chunks.iter().any(|chunk| format!("{chunk:?}").contains("secret")), "{chunks:?}");
        assert_eq!(chunks.last().unwrap().turn_end.unwrap().finish_reason, FinishReason::Failed);
        let output = connection.output().await.unwrap();
        assert!(output.error.unwrap().message.contains("nothing is shown"));
        assert_eq!(texts(output.state.messages()), ["one", "echo: one"]);
    }

    async fn a_transform_that_fails_on_a_chunk_fails_the_turn(home: Home) {
        let agent = echo().shared_store(home.store()).transform_chunk(|chunk, _| {
            if chunk.text().contains("secret") {
                return Err(Error::new(ErrorKind::Internal, "cannot shape it"));
            }
            Ok(Some(chunk))
        });
        let agent = agent.build().unwrap();
        let failed = agent.run_text("secret", Init::session(sid("s"))).await.unwrap();
        assert_eq!((failed.finish_reason, said(&failed).len()), (Some(FinishReason::Failed), 0));
        agent.run_text("one", Init::session(sid("s"))).await.unwrap().ok().unwrap();
    }

    async fn a_transform_or_a_policy_that_panics_fails_the_turn(home: Home) {
        let shapes = echo().shared_store(home.store()).transform_chunk(|chunk, _| {
            assert!(!chunk.text().contains("boom"), "a bug in the transform");
            Ok(Some(chunk))
        });
        let policy = SnapshotPolicy::when(|cx| async move {
            let text = cx.state.messages().last().map(Message::text).unwrap_or_default();
            assert!(!text.contains("boom"), "a bug in the policy");
            true
        });
        let decides = echo().shared_store(home.store()).snapshots(policy);
        for (name, agent) in [("shapes", shapes), ("decides", decides)] {
            let agent = agent.build().unwrap();
            let failed = agent.run_text("boom", Init::session(sid(name))).await.unwrap();
            assert_eq!(failed.finish_reason, Some(FinishReason::Failed), "{name}");
            agent.run_text("one", Init::session(sid(name))).await.unwrap().ok().unwrap();
        }
    }
}

#[tokio::test]
async fn without_a_store_a_failure_gives_the_last_good_state_back() {
    let agent = echo().build().unwrap();
    let good = agent.run_text("one", Init::new()).await.unwrap();
    let init = Init::state(good.state.to_session_state());
    let mut connection = agent.connect(init).await.unwrap();
    connection.send_text("fail broken").await.unwrap();
    let chunks = connection.receive_turn().await;
    assert_eq!(chunks.last().unwrap().turn_end.unwrap().snapshot_id, None);
    let failed = connection.output().await.unwrap();
    assert_eq!(failed.state, good.state);
    assert_eq!(connection.custom_json(), good.state.custom_json());
    assert_eq!((failed.error.unwrap().message.as_str(), failed.message), ("broken", None));
}
