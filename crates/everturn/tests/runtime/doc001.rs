//! Session snapshots: a test for each thing their document describes.

use everturn::store::{ListSnapshots, SnapshotRef, VerifyScope};
use everturn::{Agent, ErrorKind, Init, Json, Message, Session, SnapshotEvent, SnapshotPolicy, SnapshotStatus, Turn};
use serde_json::Value;

use crate::support::*;

use SnapshotEvent::{InvocationEnd, ToolIterationEnd, TurnEnd};

fn s() -> Init {
    Init::session(sid("s"))
}

/// An agent that owns its loop, ends each turn, and says goodbye.
fn chat_agent(home: &Home, policy: SnapshotPolicy) -> Agent<Json> {
    let agent = Agent::flow_loop("echo", |session: Session<Json>| async move {
        while let Some(turn) = session.next_turn().await? {
            turn.add_message(Message::model(format!("re: {}", turn.text())))?;
            session.responder().end_turn().await?;
        }
        Ok("done")
    });
    agent.shared_store(home.store()).snapshots(policy).build().unwrap()
}

on_every_store! {
    async fn a_snapshot_has_its_place_in_the_session(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap();
        let second = agent.run_text("two", s()).await.unwrap();
        let row = agent.snapshot(second.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((row.session_id.as_str(), row.parent_id), ("s", first.snapshot_id));
        assert_eq!((row.index, row.turn_index, row.event, row.orphaned), (1, 1, Some(TurnEnd), false));
        let json: Value = serde_json::to_value(&row).unwrap();
        assert_eq!((json["event"].as_str(), json.get("orphaned")), (Some("turnEnd"), None));
    }

    async fn a_snapshot_never_changes(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let before = agent.snapshot(first).await.unwrap();
        agent.run_text("two", s()).await.unwrap();
        agent.run_text("fail x", s()).await.unwrap();
        assert_eq!(agent.snapshot(first).await.unwrap(), before);
    }

    async fn there_are_three_occasions(home: Home) {
        let agent = Agent::flow_loop("echo", |session: Session<Json>| async move {
            let turn = session.next_turn().await?.unwrap();
            turn.add_message(Message::model("tool"))?;
            turn.tool_iteration_end().await?;
            turn.add_message(Message::model("answer"))?;
            turn.end().await?;
            session.add_message(Message::model("after"))?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let output = agent.run_text("x", s()).await.unwrap();
        let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
        let events: Vec<_> = rows.iter().map(|row| row.event.unwrap()).collect();
        assert_eq!(events, [ToolIterationEnd, TurnEnd, InvocationEnd]);
        let ids: Vec<_> = rows.iter().map(|row| row.snapshot_id).collect();
        assert_eq!(output.snapshot_ids, ids, "the output names all of them");
    }

    async fn an_output_says_all_an_agent_left(home: Home) {
        let output = chat_agent(&home, SnapshotPolicy::always()).run_text("x", s()).await.unwrap();
        assert_eq!(output.output_as::<String>().unwrap().as_deref(), Some("done"));
        assert_eq!((output.session_id.as_str(), output.artifacts.len()), ("s", 0));
        assert_eq!((said(&output).len(), output.snapshot_ids.len()), (2, 1));
    }

    async fn equal_states_have_equal_digests(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            match turn.text().as_str() {
                "forth" => turn.set_custom_json(Some(json(r#"{"a":1,"b":2}"#)))?,
                "spelt" => turn.set_custom_json(Some(json(r#"{ "b":2, "a":1 }"#)))?,
                _ => turn.set_custom_json(None)?,
            }
            turn.set_messages([])?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut digests = Vec::new();
        for (session, text) in [("s", "back"), ("s", "forth"), ("s", "back"), ("t", "forth"), ("t", "spelt")] {
            let output = agent.run_text(text, Init::session(sid(session))).await.unwrap();
            digests.push(agent.snapshot(output.snapshot_id.unwrap()).await.unwrap().unwrap().digest);
        }
        assert_eq!((digests[0], digests[1]), (digests[2], digests[3]), "whatever their path, session or time");
        assert_eq!(digests[3], digests[4], "whatever the order of members");
        assert_ne!(digests[0], digests[1]);
        let found = home.store().snapshot(SnapshotRef::Digest(key("s"), digests[0])).await.unwrap().unwrap();
        assert_eq!((found.digest, found.index), (digests[0], 2), "a digest finds the newest");
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None, "and proves what is kept");
    }

    async fn restoring_goes_on_in_the_same_session_from_its_turn(home: Home) {
        let agent = stored(&home);
        let mut ids = Vec::new();
        for text in ["one", "two", "three"] {
            ids.push(agent.run_text(text, s()).await.unwrap().snapshot_id.unwrap());
        }
        let other = agent.run_text("instead", Init::snapshot(ids[0])).await.unwrap();
        let row = agent.snapshot(other.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((row.session_id.as_str(), row.index, row.turn_index), ("s", 1, 1));
        assert_eq!(row.parent_id, Some(ids[0]));
        let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
        let orphaned: Vec<_> = rows.iter().map(|row| row.orphaned).collect();
        assert_eq!(orphaned, [false, true, true, false], "what followed is off the line, and still there");
        let active = agent.snapshots(&sid("s"), ListSnapshots::without_orphans).await.unwrap().items;
        let active: Vec<_> = active.iter().map(|row| row.snapshot_id).collect();
        assert_eq!(active, [ids[0], row.snapshot_id]);
    }

    async fn a_restore_that_fails_orphans_nothing(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let second = agent.run_text("two", s()).await.unwrap().snapshot_id.unwrap();
        agent.run_text("fail x", Init::snapshot(first)).await.unwrap();
        assert!(!agent.snapshot(second).await.unwrap().unwrap().orphaned);
        assert_eq!(agent.latest(&sid("s")).await.unwrap().unwrap().snapshot_id, second);
    }

    async fn options_that_contradict_each_other_are_refused(home: Home) {
        let agent = stored(&home);
        let id = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let with_state = Init::snapshot(id).initial(&Tally::default()).unwrap();
        assert_eq!(kind(agent.run_text("x", with_state).await), ErrorKind::Invalid);
        let mismatched = Init::snapshot(id).of_session(sid("other"));
        assert_eq!(kind(agent.run_text("x", mismatched).await), ErrorKind::Invalid);
        agent.run_text("x", Init::snapshot(id).of_session(sid("s"))).await.unwrap().ok().unwrap();
    }

    async fn an_agent_that_owns_its_loop_ends_its_turns_itself(home: Home) {
        let agent = chat_agent(&home, SnapshotPolicy::on([TurnEnd, InvocationEnd]));
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b"] {
            connection.send_text(text).await.unwrap();
            connection.receive_turn().await;
        }
        let output = connection.output().await.unwrap();
        assert_eq!((output.snapshot_ids.len(), said(&output).len()), (2, 4));
        let other = agent.run_text("instead", Init::snapshot(output.snapshot_ids[0])).await.unwrap();
        assert_eq!(said(&other), ["a", "re: a", "instead", "re: instead"]);
    }

    async fn a_callback_may_count_messages(home: Home) {
        let policy = SnapshotPolicy::when(|cx| async move {
            match cx.event {
                TurnEnd => cx.state.messages().len() % 4 == 0,
                InvocationEnd => true,
                ToolIterationEnd => false,
            }
        });
        let agent = chat_agent(&home, policy);
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b", "c"] {
            connection.send_text(text).await.unwrap();
        }
        connection.output().await.unwrap();
        let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
        let taken: Vec<_> = rows.iter().map(|row| (row.event.unwrap(), row.turn_index)).collect();
        assert_eq!(taken, [(TurnEnd, 1), (InvocationEnd, 3)]);
    }

    async fn a_callback_may_compare_with_the_last_snapshot(home: Home) {
        let policy = SnapshotPolicy::when(|cx| async move {
            if cx.event != TurnEnd {
                return false;
            }
            match cx.prev_state().await.unwrap() {
                None => true,
                Some(before) => cx.state.messages().len() > before.messages().len() + 2,
            }
        });
        let agent = chat_agent(&home, policy);
        let mut taken = Vec::new();
        for text in ["a", "b", "c", "d"] {
            taken.push(agent.run_text(text, s()).await.unwrap().snapshot_ids.len());
        }
        assert_eq!(taken, [1, 0, 1, 0]);
    }

    async fn a_callback_may_take_every_third_opportunity(home: Home) {
        let agent = chat_agent(&home, SnapshotPolicy::when(|cx| async move { cx.index % 3 == 0 && cx.event == TurnEnd }));
        for text in ["a", "b", "c", "d"] {
            agent.run_text(text, s()).await.unwrap();
        }
        let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
        assert_eq!(rows.iter().map(|row| row.index).collect::<Vec<_>>(), [0, 3]);
    }

    async fn what_is_tracked_about_snapshots_is_there_after_loading(home: Home) {
        let first = stored(&home).run_text("one", s()).await.unwrap();
        let elsewhere = echo().shared_store(home.elsewhere()).build().unwrap();
        let second = elsewhere.run_text("two", s()).await.unwrap();
        let row = elsewhere.snapshot(second.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((row.parent_id, row.index, row.turn_index), (first.snapshot_id, 1, 1));
        assert_eq!(row.status, SnapshotStatus::Completed);
    }
}

#[test]
fn a_policy_needs_a_store() {
    let agent = Agent::flow("f", |_: Turn<Json>| async { Ok(()) }).snapshots(SnapshotPolicy::always());
    assert_eq!(kind(agent.build()), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_snapshot_id_needs_a_store() {
    let agent = echo().build().unwrap();
    let init = Init::snapshot(everturn::SnapshotId::nil());
    assert_eq!(kind(agent.run_text("x", init).await), ErrorKind::WrongMode);
}
