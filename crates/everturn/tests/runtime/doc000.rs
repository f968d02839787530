//! Session flows with snapshots: a test for each thing their document describes.

use std::sync::{Arc, Mutex};

use everturn::model::{ModelRequest, Reply, ScriptedModel, generate_stream};
use everturn::store::{At, SnapshotRef};
use everturn::{
    Agent, Artifact, Chunk, ErrorKind, FinishReason, Init, Input, Json, Message, Part, Registry, Session, SessionState,
    Snapshot, SnapshotEvent, SnapshotId, SnapshotPolicy, Turn,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json as value};

use crate::support::*;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ChatState {
    topic_history: Vec<String>,
}

#[derive(Serialize)]
struct ChatStatus {
    phase: &'static str,
}

/// A chat over a scripted model: it says what it does, streams what the model says, and notes the topic.
fn chat_flow(home: &Home, replies: &[&str]) -> Agent<ChatState> {
    let model = ScriptedModel::new(replies.iter().map(|reply| Reply::text(reply).in_pieces(3)));
    let flow = Agent::flow("chatFlow", move |turn: Turn<ChatState>| {
        let model = model.clone();
        async move {
            let responder = turn.responder();
            responder.status(&ChatStatus { phase: "generating" }).await?;
            let mut stream = generate_stream(&model, ModelRequest::new(turn.messages().to_vec()));
            while let Some(chunk) = stream.next().await {
                responder.model_chunk(chunk?).await?;
            }
            turn.add_message(stream.response()?.message)?;
            turn.update_custom(|state| state.topic_history.push(turn.text()))?;
            responder.status(&ChatStatus { phase: "complete" }).await?;
            Ok(())
        }
    });
    flow.shared_store(home.store()).build().unwrap()
}

fn wire<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap()
}

on_every_store! {
    async fn a_snapshot_wraps_the_portable_state(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::new()).await.unwrap();
        let second = agent.run_text("two", Init::session(first.session_id.clone())).await.unwrap();
        let snapshot = wire(&agent.snapshot(second.snapshot_id.unwrap()).await.unwrap().unwrap());
        assert_eq!(snapshot["snapshotId"], wire(&second.snapshot_id));
        assert_eq!(snapshot["parentId"], wire(&first.snapshot_id));
        assert_eq!(snapshot["turnIndex"], 1);
        assert!(snapshot["createdAt"].as_str().unwrap().ends_with('Z'));
        let state = snapshot["state"].as_object().unwrap();
        assert_eq!(state["messages"].as_array().unwrap().len(), 4);
        assert_eq!(state["custom"]["turns"], 2);
        let read: SessionState = serde_json::from_value(snapshot["state"].clone()).unwrap();
        assert_eq!(wire(&read), snapshot["state"], "the state travels by itself, without the snapshot's fields");
        let again: Snapshot = serde_json::from_value(snapshot.clone()).unwrap();
        assert_eq!(wire(&again), snapshot);
    }

    async fn an_output_has_the_final_state_and_the_last_snapshot(home: Home) {
        let output = stored(&home).run_text("one", Init::new()).await.unwrap();
        assert_eq!(said(&output), ["one", "echo: one"]);
        let at = home.store().state(At::Snapshot(output.snapshot_id.unwrap())).await.unwrap().unwrap();
        assert_eq!(at.messages().len(), 2);
    }

    async fn a_session_adds_the_inputs_messages_before_the_function_runs(home: Home) {
        let agent = Agent::flow("f", |turn: Turn<Json>| async move {
            assert_eq!(texts(&turn.messages()), ["a", "b"]);
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let input = Input::messages([Message::user("a"), Message::user("b")]);
        agent.run(input, Init::new()).await.unwrap().ok().unwrap();
    }

    async fn a_session_is_found_by_nested_operations(home: Home) {
        async fn tool() -> usize {
            Session::<Tally>::current().expect("inside a turn").messages().len()
        }
        let agent = Agent::flow("f", |_: Turn<Tally>| async { Ok(tool().await) });
        let agent = agent.shared_store(home.store()).build().unwrap();
        assert_eq!(agent.run_text("a", Init::new()).await.unwrap().output_as::<usize>().unwrap(), Some(1));
    }

    async fn a_responder_sends_chunks_statuses_and_artifacts(home: Home) {
        let agent = Agent::flow("f", |turn: Turn<Json>| async move {
            let responder = turn.responder();
            responder.send(Chunk::status(&"raw")?).await?;
            responder.text("token").await?;
            responder.status(&ChatStatus { phase: "busy" }).await?;
            responder.artifact(Artifact::new("f.txt", vec![Part::text("v1")])).await?;
            responder.artifact(Artifact::new("f.txt", vec![Part::text("v2")])).await?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("a").await.unwrap();
        let chunks = connection.receive_turn().await;
        let frames: Vec<_> = chunks.iter().map(wire).collect();
        assert_eq!(frames[0], value!({"status": "raw"}));
        assert_eq!(frames[1]["modelChunk"]["content"], value!([{"text": "token"}]));
        assert_eq!(frames[2], value!({"status": {"phase": "busy"}}));
        assert_eq!(frames[4]["artifact"]["name"], "f.txt");
        assert!(frames[5]["turnEnd"]["snapshotId"].is_string());
        let output = connection.output().await.unwrap();
        assert_eq!(output.artifacts.len(), 1, "the second replaced the first, and the session has it");
    }

    async fn a_missing_snapshot_reads_as_nothing(home: Home) {
        let agent = stored(&home);
        assert!(home.store().snapshot(SnapshotRef::Id(SnapshotId::nil())).await.unwrap().is_none());
        assert!(agent.snapshot(SnapshotId::nil()).await.unwrap().is_none());
    }

    async fn a_callback_sees_the_state_and_the_one_before(home: Home) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = seen.clone();
        let policy = SnapshotPolicy::when(move |cx| {
            let note = note.clone();
            async move {
                let before = cx.prev_state().await.unwrap().map(|state| state.messages().len());
                if cx.event == SnapshotEvent::TurnEnd {
                    note.lock().unwrap().push((cx.turn_index, cx.state.messages().len(), before));
                }
                true
            }
        });
        let agent = echo().shared_store(home.store()).snapshots(policy).build().unwrap();
        let first = agent.run_text("one", Init::new()).await.unwrap();
        agent.run_text("two", Init::session(first.session_id)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [(0, 2, None), (1, 4, Some(2))]);
    }

    async fn snapshots_are_taken_at_a_turns_and_an_invocations_end(home: Home) {
        let agent = Agent::flow_loop("f", |session: Session<Json>| async move {
            while let Some(turn) = session.next_turn().await? {
                turn.end().await?;
            }
            session.add_message(Message::model("closing words"))?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("a").await.unwrap();
        let at_turn = connection.receive_turn().await.last().unwrap().turn_end.unwrap().snapshot_id;
        connection.close();
        let at_end = connection.receive().await.unwrap().snapshot_created;
        let output = connection.output().await.unwrap();
        assert_eq!(output.snapshot_ids, [at_turn.unwrap(), at_end.unwrap()]);
        assert_eq!(output.snapshot_id, at_end);
    }

    async fn a_resumed_snapshot_is_the_next_ones_parent(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::new()).await.unwrap();
        agent.run_text("two", Init::session(first.session_id.clone())).await.unwrap();
        let other = agent.run_text("other", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        let snapshot = agent.snapshot(other.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(snapshot.parent_id, first.snapshot_id);
        assert_eq!(other.state.custom::<Tally>().unwrap().unwrap().turns, 2, "custom state was restored too");
    }

    async fn an_error_stops_the_loop(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        for text in ["one", "fail x", "two"] {
            connection.send_text(text).await.unwrap();
        }
        let output = connection.output().await.unwrap();
        assert_eq!((output.finish_reason, output.unprocessed.len()), (Some(FinishReason::Failed), 1));
    }

    async fn a_chat_flow_holds_two_turns_on_one_connection(home: Home) {
        let flow = chat_flow(&home, &["Go is a language.", "They connect goroutines."]);
        let mut connection = flow.connect(Init::new()).await.unwrap();
        connection.send_text("Tell me about Go.").await.unwrap();
        assert_eq!(spoken(&connection.receive_turn().await), "Go is a language.");
        connection.send_text("What are channels for?").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert_eq!(spoken(&chunks), "They connect goroutines.");
        let phases: Vec<_> = chunks.iter().filter_map(|chunk| chunk.status.as_ref()).map(wire).collect();
        assert_eq!(phases, [value!({"phase": "generating"}), value!({"phase": "complete"})]);
        connection.close();
        let output = connection.output().await.unwrap();
        assert_eq!(output.state.messages().len(), 4);
        let topics = output.state.custom::<ChatState>().unwrap().unwrap().topic_history;
        assert_eq!(topics, ["Tell me about Go.", "What are channels for?"]);
        assert!(output.snapshot_id.is_some());
    }

    async fn a_chat_flow_resumes_from_a_snapshot(home: Home) {
        let flow = chat_flow(&home, &["One.", "Two."]);
        let first = flow.run_text("a", Init::new()).await.unwrap();
        let second = flow.run_text("b", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&second), ["a", "One.", "b", "Two."]);
    }

    async fn a_flow_with_artifacts_keeps_them(home: Home) {
        let flow = Agent::flow("codeFlow", |turn: Turn<Json>| async move {
            let mut code = Artifact::new("main.go", vec![Part::text("func main() {}")]);
            code.metadata = Some(json(r#"{"language":"go"}"#));
            turn.responder().artifact(code).await?;
            turn.add_message(Message::model("Here is the code."))?;
            Ok(())
        });
        let flow = flow.shared_store(home.store()).build().unwrap();
        let output = flow.run_text("code!", Init::new()).await.unwrap();
        let state = flow.snapshot(output.snapshot_id.unwrap()).await.unwrap().unwrap().state.unwrap();
        assert_eq!(wire(&state.artifacts[0])["metadata"]["language"], "go");
    }
}

#[tokio::test]
async fn client_managed_state_has_no_parent_snapshot() {
    let agent = echo().build().unwrap();
    let first = agent.run_text("one", Init::new()).await.unwrap();
    let mut connection = agent.connect(Init::state(first.state.to_session_state())).await.unwrap();
    connection.send_text("two").await.unwrap();
    assert_eq!(connection.receive_turn().await.last().unwrap().turn_end.unwrap().snapshot_id, None);
    let second = connection.output().await.unwrap();
    assert_eq!((second.snapshot_id, second.snapshot_ids.len(), said(&second).len()), (None, 0, 4));
}

#[tokio::test]
async fn a_start_is_by_a_snapshot_or_by_a_state() {
    let home = Home::memory();
    let agent = stored(&home);
    let first = agent.run_text("one", Init::new()).await.unwrap();
    let mut both = Init::snapshot(first.snapshot_id.unwrap());
    both.state = Some(first.state.to_session_state());
    assert_eq!(kind(agent.run_text("x", both).await), ErrorKind::WrongMode);
}

#[test]
fn flows_are_registered_once_by_name() {
    let home = Home::memory();
    let mut registry = Registry::new();
    registry.register(stored(&home)).unwrap();
    registry.register(chat_flow(&home, &[])).unwrap();
    assert_eq!(kind(registry.register(stored(&home))), ErrorKind::AlreadyExists);
    let names: Vec<_> = registry.list().into_iter().map(|info| info.name.to_string()).collect();
    assert_eq!(names, ["chatFlow", "echo"]);
    assert!(registry.get("chatFlow").is_some() && registry.get("none").is_none());
}
