//! Sessions and state: a test for each thing their document describes.

use everturn::store::{At, StoreExt};
use everturn::{
    Agent, Artifact, Error, ErrorKind, FinishReason, Init, Json, Message, Part, Session, SessionId, SnapshotStatus,
    Turn,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::*;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TaskState {
    tasks: Vec<String>,
    next_id: u32,
    internal_notes: Option<String>,
}

/// A list of tasks, changed by a tool that finds the session by itself.
fn tasks() -> everturn::AgentBuilder<TaskState> {
    Agent::flow("echo", |turn: Turn<TaskState>| async move {
        add_task(&turn.text()).await?;
        turn.add_message(Message::model("noted"))?;
        Ok(())
    })
}

async fn add_task(title: &str) -> everturn::Result<()> {
    let session = Session::<TaskState>::current().expect("a tool runs inside a turn");
    session.update_custom(|state| {
        state.tasks.push(title.to_owned());
        state.next_id += 1;
        state.internal_notes = Some(format!("added {title}"));
    })
}

fn without_notes(mut state: everturn::SessionState) -> everturn::Result<everturn::SessionState> {
    if let Some(custom) = &state.custom {
        let mut shown: Value = custom.to()?;
        if let Some(members) = shown.as_object_mut() {
            members.remove("internalNotes");
        }
        state.custom = Some(Json::from_value(&shown)?);
    }
    Ok(state)
}

fn s() -> Init {
    Init::session(sid("s"))
}

on_every_store! {
    async fn server_managed_state_continues_by_id(home: Home) {
        let agent = tasks().shared_store(home.store()).build().unwrap();
        let first = agent.run_text("milk", s()).await.unwrap();
        let by_session = agent.run_text("tea", s()).await.unwrap();
        let by_snapshot = agent.run_text("bread", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        let listed = |output: &everturn::Output| output.state.custom::<TaskState>().unwrap().unwrap().tasks;
        assert_eq!((listed(&by_session), listed(&by_snapshot)), (vec!["milk".into(), "tea".into()], vec!["milk".into(), "bread".into()]));
    }

    async fn a_chat_tracks_what_its_next_turn_needs(home: Home) {
        let mut stored = tasks().shared_store(home.store()).build().unwrap().chat(Init::new());
        let mut kept = tasks().build().unwrap().chat(Init::new());
        for text in ["milk", "tea"] {
            stored.send_text(text).await.unwrap();
            kept.send_text(text).await.unwrap();
        }
        assert_eq!(stored.custom::<TaskState>().unwrap(), kept.custom::<TaskState>().unwrap());
        assert!(stored.snapshot_id().is_some() && stored.session_id().is_some());
        assert!(kept.snapshot_id().is_none());
    }

    async fn custom_state_changes_through_the_active_session(home: Home) {
        let agent = tasks().shared_store(home.store()).build().unwrap();
        let output = agent.run_text("milk", Init::new()).await.unwrap();
        let state = output.state.custom::<TaskState>().unwrap().unwrap();
        assert_eq!((state.tasks, state.next_id), (vec!["milk".to_owned()], 1));
    }

    async fn every_successful_turn_writes_a_completed_snapshot(home: Home) {
        let agent = tasks().shared_store(home.store()).build().unwrap();
        let first = agent.run_text("milk", s()).await.unwrap();
        let second = agent.run_text("tea", s()).await.unwrap();
        let row = agent.snapshot(second.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((row.status, row.finish_reason), (SnapshotStatus::Completed, Some(FinishReason::Stop)));
        assert_eq!((row.session_id, row.parent_id), (sid("s"), first.snapshot_id));
        assert!(row.created_at <= row.updated_at && row.state.is_some());
    }

    async fn failed_turns_return_what_was_good(home: Home) {
        let agent = stored(&home);
        let good = agent.run_text("one", s()).await.unwrap();
        let failed = agent.run_text("fail x", s()).await.unwrap();
        assert_eq!((failed.snapshot_id, failed.state.messages().len()), (good.snapshot_id, 2));
        let row = agent.snapshot(failed.snapshot_ids[0]).await.unwrap().unwrap();
        assert_eq!((row.status, row.error), (SnapshotStatus::Failed, failed.error));
    }

    async fn a_snapshot_is_read_by_id_or_as_the_latest(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let second = agent.run_text("two", s()).await.unwrap().snapshot_id.unwrap();
        assert_eq!(agent.snapshot(first).await.unwrap().unwrap().snapshot_id, first);
        assert_eq!(agent.latest(&sid("s")).await.unwrap().unwrap().snapshot_id, second);
        assert!(agent.latest(&sid("none")).await.unwrap().is_none());
    }

    async fn only_completed_snapshots_are_resumed(home: Home) {
        let agent = stored(&home);
        let failed = agent.run_text("fail x", s()).await.unwrap().snapshot_ids[0];
        assert_eq!(kind(agent.run_text("y", Init::snapshot(failed)).await), ErrorKind::NotResumable);
    }

    async fn with_both_ids_the_session_proves_ownership(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        agent.run_text("two", s()).await.unwrap();
        let at_first = agent.run_text("three", Init::snapshot(first).of_session(sid("s"))).await.unwrap();
        assert_eq!(said(&at_first)[2], "three", "the snapshot chooses the place");
        let foreign = Init::snapshot(first).of_session(sid("t"));
        assert_eq!(kind(agent.run_text("x", foreign).await), ErrorKind::Invalid);
    }

    async fn custom_state_is_live_on_each_chunk(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<TaskState>| async move {
            for title in ["a", "b"] {
                add_task(title).await?;
                turn.responder().text(title).await?;
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut chat = agent.chat(Init::new());
        let mut turn = chat.send_stream(everturn::Input::text("go")).await.unwrap();
        let mut lengths = Vec::new();
        while let Some(chunk) = turn.receive().await {
            if chunk.model_chunk.is_some() {
                let custom: TaskState = chunk.custom.unwrap().to().unwrap();
                lengths.push(custom.tasks.len());
            }
        }
        turn.output().await.unwrap();
        assert_eq!(lengths, [1, 2]);
        assert_eq!(chat.custom::<TaskState>().unwrap().unwrap().tasks, ["a", "b"]);
    }

    async fn the_first_patch_of_a_turn_rebases_the_client(home: Home) {
        let agent = tasks().shared_store(home.store()).build().unwrap();
        agent.run_text("milk", s()).await.unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("tea").await.unwrap();
        let chunks = connection.receive_turn().await;
        let first = patches(&chunks)[0].to_string();
        assert!(first.starts_with(r#"[{"op":"replace","path":"","value":{"tasks":["milk","tea"]"#), "{first}");
    }

    async fn named_artifacts_replace_and_unnamed_ones_add(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            let name = turn.text();
            let parts = vec![Part::text(format!("turn {}", turn.index()))];
            let artifact = if name == "-" { Artifact::unnamed(parts) } else { Artifact::new(name, parts) };
            turn.add_artifact(artifact).await?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut counts = Vec::new();
        for name in ["plan.json", "-", "plan.json", "-"] {
            counts.push(agent.run_text(name, s()).await.unwrap().artifacts.len());
        }
        assert_eq!(counts, [1, 2, 2, 3]);
        let last = agent.run_text("plan.json", s()).await.unwrap();
        assert_eq!(last.artifacts[0].parts[0].as_text().as_deref(), Some("turn 4"), "where it stood");
    }

    async fn a_state_transform_shapes_what_leaves_and_not_what_is_kept(home: Home) {
        let agent = tasks().shared_store(home.store()).transform_state(|state, _| without_notes(state));
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("milk").await.unwrap();
        let chunks = connection.receive_turn().await;
        let output = connection.output().await.unwrap();
        let read = agent.snapshot(output.snapshot_id.unwrap()).await.unwrap().unwrap().state.unwrap();
        let latest = agent.latest(&sid("s")).await.unwrap().unwrap().state.unwrap();
        for shown in [output.state.custom_json().unwrap(), &read.custom.unwrap(), &latest.custom.unwrap()] {
            assert_eq!(shown, &json(r#"{"nextId":1,"tasks":["milk"]}"#));
        }
        assert!(!patches(&chunks)[0].to_string().contains("internalNotes"));
        let raw = agent.store().unwrap().state(At::Snapshot(output.snapshot_id.unwrap())).await.unwrap().unwrap();
        assert!(raw.custom().unwrap().as_str().contains("internalNotes"), "the store's own view is raw");
        let next = agent.run_text("tea", s()).await.unwrap();
        assert_eq!(next.state.custom::<TaskState>().unwrap().unwrap().next_id, 2, "the agent itself sees everything");
    }

    async fn a_stream_transform_drops_or_fails_closed(home: Home) {
        let agent = echo().shared_store(home.store()).transform_chunk(|chunk, _| match chunk.text() {
            text if text.contains("hide") => Ok(None),
            text if text.contains("break") => Err(Error::new(ErrorKind::Internal, "cannot")),
            _ => Ok(Some(chunk)),
        });
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("hide me").await.unwrap();
        assert_eq!(spoken(&connection.receive_turn().await), "");
        connection.send_text("break me").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert_eq!((spoken(&chunks).as_str(), chunks.last().unwrap().turn_end.unwrap().finish_reason), ("", FinishReason::Failed));
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().messages().len(), 2);
    }

    async fn a_session_can_be_branched_from_a_saved_point(home: Home) {
        let agent = stored(&home);
        let base = agent.run_text("plan", Init::new()).await.unwrap();
        let rain = agent.run_text("rain", Init::snapshot(base.snapshot_id.unwrap())).await.unwrap();
        let sun = agent.run_text("sun", Init::snapshot(base.snapshot_id.unwrap())).await.unwrap();
        assert_eq!((said(&rain)[2].as_str(), said(&sun)[2].as_str()), ("rain", "sun"));
        assert!(agent.snapshot(rain.snapshot_id.unwrap()).await.unwrap().is_some(), "both survive");
    }
}

#[tokio::test]
async fn client_managed_state_goes_out_and_comes_back() {
    let agent = tasks().build().unwrap();
    let state: everturn::SessionState =
        serde_json::from_str(r#"{"custom":{"tasks":[],"nextId":1},"messages":[],"artifacts":[]}"#).unwrap();
    let first = agent.run_text("milk", Init::state(state)).await.unwrap();
    let saved = serde_json::to_string(&first.state.to_session_state()).unwrap();
    let second = agent.run_text("tea", Init::state(serde_json::from_str(&saved).unwrap())).await.unwrap();
    let state = second.state.custom::<TaskState>().unwrap().unwrap();
    assert_eq!((state.tasks.len(), state.next_id, second.state.messages().len()), (2, 3, 4));
}

#[tokio::test]
async fn the_state_object_has_three_visible_pieces() {
    let output = tasks().build().unwrap().run_text("milk", Init::new()).await.unwrap();
    let state: Value = serde_json::to_value(output.state.to_session_state()).unwrap();
    let mut names: Vec<_> = state.as_object().unwrap().keys().cloned().collect();
    names.sort();
    assert_eq!(names, ["artifacts", "custom", "messages", "sessionId"]);
}

#[test]
fn an_empty_session_id_is_refused() {
    assert_eq!(kind(SessionId::new("")), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_state_is_not_combined_with_ids() {
    let agent = tasks().build().unwrap();
    let state = agent.run_text("milk", Init::new()).await.unwrap().state.to_session_state();
    let mut with_snapshot = Init::state(state.clone());
    with_snapshot.snapshot = Some(everturn::SnapshotId::nil());
    let combined = [Init::state(state).of_session(sid("s")), with_snapshot];
    for init in combined {
        assert_eq!(kind(agent.run_text("x", init).await), ErrorKind::WrongMode);
    }
}
