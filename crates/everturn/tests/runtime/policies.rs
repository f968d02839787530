//! When snapshots are taken, by which numbers, and what they are called.

use std::sync::{Arc, Mutex};

use everturn::store::{ListSnapshots, StoreExt};
use everturn::{
    Agent, Artifact, Init, Json, Message, Output, Session, Snapshot, SnapshotEvent, SnapshotPolicy, SnapshotStatus,
    Turn,
};

use crate::support::*;

use SnapshotEvent::{InvocationEnd, ToolIterationEnd, TurnEnd};

/// An agent whose turns have as many tool iterations as their text says, and that changes something after its last turn
/// when it is told to `trail`.
fn iterating(home: &Home, policy: SnapshotPolicy) -> Agent<Json> {
    iterating_on(home.store(), policy)
}

fn iterating_on(store: Arc<dyn everturn::store::Store>, policy: SnapshotPolicy) -> Agent<Json> {
    let agent = Agent::flow_loop("echo", |session: Session<Json>| async move {
        let mut trail = false;
        while let Some(turn) = session.next_turn().await? {
            for n in 0..turn.text().parse::<u32>().unwrap_or(0) {
                turn.add_message(Message::model(format!("tool {n}")))?;
                turn.tool_iteration_end().await?;
            }
            trail = turn.text() == "trail";
            if turn.text() != "silent" {
                turn.add_message(Message::model("ok"))?;
            }
        }
        if trail {
            session.add_message(Message::model("afterthought"))?;
        }
        Ok(())
    });
    agent.shared_store(store).snapshots(policy).build().unwrap()
}

fn s() -> Init {
    Init::session(sid("s"))
}

async fn rows(agent: &Agent<Json>) -> Vec<Snapshot> {
    agent.snapshots(&sid("s"), |all| all).await.unwrap().items
}

/// Each snapshot's occasion, index and turn.
fn places(rows: &[Snapshot]) -> Vec<(SnapshotEvent, u64, u64)> {
    rows.iter().map(|row| (row.event.unwrap(), row.index, row.turn_index)).collect()
}

async fn say(agent: &Agent<Json>, text: &str) -> Output {
    agent.run_text(text, s()).await.unwrap().ok().unwrap()
}

on_every_store! {
    async fn always_names_every_opportunity(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::always());
        let output = say(&agent, "2").await;
        let all = [(ToolIterationEnd, 0, 0), (ToolIterationEnd, 1, 0), (TurnEnd, 2, 0)];
        let rows = rows(&agent).await;
        assert_eq!(places(&rows), all);
        let ids: Vec<_> = rows.iter().map(|row| row.snapshot_id).collect();
        assert_eq!(output.snapshot_ids, ids, "nothing changed after the turn, so the invocation's end adds none");
        assert_eq!(output.snapshot_id, ids.last().copied());
        let parents: Vec<_> = rows.iter().map(|row| row.parent_id).collect();
        assert_eq!(parents, [None, Some(ids[0]), Some(ids[1])]);
    }

    async fn always_is_what_a_store_gets(home: Home) {
        let agent = stored(&home);
        let output = agent.run_text("one", s()).await.unwrap();
        assert_eq!(output.snapshot_ids, [output.snapshot_id.unwrap()]);
    }

    async fn never_names_nothing(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::never());
        let output = say(&agent, "2").await;
        assert_eq!((output.snapshot_id, output.snapshot_ids), (None, vec![]));
        assert!(rows(&agent).await.is_empty());
        assert_eq!(said(&say(&agent, "0").await).len(), 6, "the session goes on all the same");
    }

    async fn a_policy_may_name_its_occasions(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::on([ToolIterationEnd]));
        let output = say(&agent, "1").await;
        assert_eq!(places(&rows(&agent).await), [(ToolIterationEnd, 0, 0)]);
        assert_eq!(output.snapshot_id, None, "no snapshot names what was reached");
        say(&agent, "1").await;
        assert_eq!(places(&rows(&agent).await)[1], (ToolIterationEnd, 2, 1), "what was not taken was counted");
    }

    async fn empty_lists_never_fire(home: Home) {
        for policy in [SnapshotPolicy::on([]), SnapshotPolicy::on_change([])] {
            let agent = iterating(&home, policy);
            say(&agent, "1").await;
        }
        assert!(home.store().snapshots(ListSnapshots::of(key("s"))).await.unwrap().items.is_empty());
    }

    async fn on_change_names_only_what_is_new(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            match turn.text().as_str() {
                "custom" => turn.set_custom_json(Some(json(r#"{"n":1}"#)))?,
                "artifact" => turn.add_artifact(Artifact::new("a", vec![])).await?,
                _ => {}
            }
            // Input and answer are taken back, so that only what is above can make a difference.
            turn.set_messages([])?;
            Ok(())
        });
        let policy = SnapshotPolicy::on_change([TurnEnd]);
        let agent = agent.shared_store(home.store()).snapshots(policy).build().unwrap();
        let mut taken = Vec::new();
        for text in ["nothing", "nothing", "custom", "custom", "nothing", "artifact", "nothing"] {
            taken.push(agent.run_text(text, s()).await.unwrap().ok().unwrap().snapshot_ids.len());
        }
        assert_eq!(taken, [1, 0, 1, 0, 0, 1, 0], "the first is always taken");
        assert_eq!(places(&rows(&agent).await), [(TurnEnd, 0, 0), (TurnEnd, 2, 2), (TurnEnd, 5, 5)]);
    }

    async fn an_unchanged_state_is_named_by_the_snapshot_before(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.set_messages([])?;
            Ok(())
        });
        let policy = SnapshotPolicy::on_change([TurnEnd]);
        let agent = agent.shared_store(home.store()).snapshots(policy).build().unwrap();
        let first = agent.run_text("a", s()).await.unwrap();
        let second = agent.run_text("b", s()).await.unwrap();
        assert_eq!((second.snapshot_ids.len(), second.snapshot_id), (0, first.snapshot_id));
    }

    async fn a_function_decides_by_what_it_is_shown(home: Home) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = seen.clone();
        let policy = SnapshotPolicy::when(move |cx| {
            let note = note.clone();
            async move {
                let before = cx.prev_state().await.unwrap().map(|state| state.messages().len());
                assert_eq!(before.is_some(), cx.prev_id().is_some());
                note.lock().unwrap().push((cx.event, cx.index, cx.turn_index, cx.state.messages().len(), before));
                cx.index % 3 == 0
            }
        });
        let agent = iterating(&home, policy);
        say(&agent, "1").await;
        say(&agent, "1").await;
        let seen = seen.lock().unwrap().clone();
        let all = [
            (ToolIterationEnd, 0, 0, 2, None),
            (TurnEnd, 1, 0, 3, Some(2)),
            (InvocationEnd, 2, 1, 3, Some(2)),
            (ToolIterationEnd, 2, 1, 5, Some(2)),
            (TurnEnd, 3, 1, 6, Some(2)),
            (InvocationEnd, 4, 2, 6, Some(6)),
        ];
        assert_eq!(seen, all);
        assert_eq!(places(&rows(&agent).await), [(ToolIterationEnd, 0, 0), (TurnEnd, 3, 1)]);
    }

    async fn what_changed_after_the_last_turn_is_kept_and_named(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::always());
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("trail").await.unwrap();
        connection.receive_turn().await;
        connection.close();
        let last = connection.receive().await.unwrap();
        let output = connection.output().await.unwrap();
        assert_eq!(last.snapshot_created, output.snapshot_id, "no turn's end carries it");
        assert_eq!(places(&rows(&agent).await), [(TurnEnd, 0, 0), (InvocationEnd, 1, 1)]);
        assert_eq!(said(&output), ["trail", "ok", "afterthought"]);
        assert_eq!(said(&say(&agent, "0").await)[2], "afterthought");
        assert_eq!(places(&rows(&agent).await)[2], (TurnEnd, 2, 1), "it left a record, so it was counted");
    }

    async fn what_changed_after_the_last_turn_is_kept_unnamed_too(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::on([TurnEnd]));
        let output = say(&agent, "trail").await;
        assert_eq!((output.snapshot_ids.len(), output.snapshot_id), (1, None), "the state reached has no name");
        assert_eq!(output.point, Some(home.store().existing(&key("s")).await.unwrap().head));
        say(&agent, "0").await;
        assert_eq!(places(&rows(&agent).await)[1], (TurnEnd, 2, 1));
    }

    async fn an_invocations_end_is_named_where_turns_are_not(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::on([InvocationEnd]));
        let mut connection = agent.connect(s()).await.unwrap();
        for _ in 0..3 {
            connection.send_text("0").await.unwrap();
            assert_eq!(connection.receive_turn().await.last().unwrap().turn_end.unwrap().snapshot_id, None);
        }
        let output = connection.output().await.unwrap();
        assert_eq!(places(&rows(&agent).await), [(InvocationEnd, 3, 3)]);
        assert_eq!(output.snapshot_ids, [output.snapshot_id.unwrap()]);
        let next = agent.run_text("0", Init::snapshot(output.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&next).len(), 8);
    }

    async fn counting_goes_on_in_another_process(home: Home) {
        let third = || SnapshotPolicy::when(|cx| async move { cx.event == TurnEnd && cx.index % 3 == 0 });
        let mut taken = Vec::new();
        for _ in 0..7 {
            let agent = iterating_on(home.elsewhere(), third());
            taken.push(say(&agent, "0").await.snapshot_ids.len());
        }
        assert_eq!(taken, [1, 0, 0, 1, 0, 0, 1]);
        let rows = rows(&iterating_on(home.elsewhere(), third())).await;
        assert_eq!(places(&rows), [(TurnEnd, 0, 0), (TurnEnd, 3, 3), (TurnEnd, 6, 6)]);
        assert_eq!(rows[1].parent_id, Some(rows[0].snapshot_id));
    }

    async fn what_is_compared_with_is_there_in_another_process(home: Home) {
        let agent = || {
            let flow = Agent::flow("echo", |turn: Turn<Json>| async move {
                turn.set_messages([])?;
                Ok(())
            });
            flow.shared_store(home.elsewhere()).snapshots(SnapshotPolicy::on_change([TurnEnd])).build().unwrap()
        };
        assert_eq!(agent().run_text("a", s()).await.unwrap().snapshot_ids.len(), 1);
        assert_eq!(agent().run_text("b", s()).await.unwrap().snapshot_ids.len(), 0);
    }

    async fn tool_iterations_are_announced_and_can_be_resumed(home: Home) {
        let agent = iterating(&home, SnapshotPolicy::always());
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("2").await.unwrap();
        let chunks = connection.receive_turn().await;
        let announced: Vec<_> = chunks.iter().filter_map(|chunk| chunk.snapshot_created).collect();
        let output = connection.output().await.unwrap();
        assert_eq!(announced, output.snapshot_ids[..2]);
        let inside = agent.snapshot(announced[0]).await.unwrap().unwrap();
        assert_eq!(inside.status, SnapshotStatus::Completed);
        assert_eq!(inside.state.unwrap().messages.len(), 2);
        let other = agent.run_text("0", Init::snapshot(announced[0])).await.unwrap();
        assert_eq!(said(&other), ["2", "tool 0", "0", "ok"]);
    }

    async fn the_id_is_reserved_before_the_turn_runs(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move { Ok(turn.snapshot_id().unwrap()) });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let output = agent.run_text("a", s()).await.unwrap();
        assert_eq!(output.output_as().unwrap(), output.snapshot_id);
        assert_eq!(output.snapshot_id.unwrap().uuid().get_version_num(), 7);
    }

    async fn snapshots_can_be_labelled_by_the_turn_and_later(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.label(turn.text())?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let first = agent.run_text("draft", s()).await.unwrap().snapshot_id.unwrap();
        agent.run_text("final", s()).await.unwrap();
        let labels = async || -> Vec<_> { rows(&agent).await.into_iter().map(|row| row.label.unwrap()).collect() };
        assert_eq!(labels().await, ["draft", "final"]);
        agent.label(first, Some("approved".into())).await.unwrap();
        assert_eq!(labels().await, ["approved", "final"]);
        assert_eq!(kind(agent.for_user(user("ann")).label(first, None).await), everturn::ErrorKind::NotFound);
    }

    async fn turns_that_did_not_complete_leave_their_row_anyway(home: Home) {
        let policy = SnapshotPolicy::on([InvocationEnd]);
        let agent = echo().shared_store(home.store()).snapshots(policy).build().unwrap();
        let failed = agent.run_text("fail x", s()).await.unwrap();
        let row = agent.snapshot(failed.snapshot_ids[0]).await.unwrap().unwrap();
        assert_eq!((row.status, row.event), (SnapshotStatus::Failed, Some(TurnEnd)));
    }

    async fn the_last_message_says_which_snapshot_it_belongs_to(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap();
        let marked = |message: &Message, id: Option<everturn::SnapshotId>| {
            let json: serde_json::Value = message.json().to().unwrap();
            json["metadata"]["snapshotId"].as_str().map(str::to_owned) == id.map(|id| id.to_string())
        };
        assert!(marked(first.message.as_ref().unwrap(), first.snapshot_id));
        let read = agent.snapshot(first.snapshot_id.unwrap()).await.unwrap().unwrap().state.unwrap();
        assert!(marked(&read.messages[1], first.snapshot_id) && marked(&read.messages[0], None));
        let raw = home.store().head_state(&key("s")).await.unwrap();
        assert!(marked(raw.messages().last().unwrap(), None), "it is never stored");
        let echoed = agent.run(everturn::Input::messages(read.messages), s()).await.unwrap();
        let raw = home.store().head_state(&key("s")).await.unwrap();
        assert!(raw.messages().iter().all(|message| marked(message, None)), "and stripped from what comes in");
        assert!(echoed.error.is_none());
    }
}
