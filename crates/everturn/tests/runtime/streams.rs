//! The stream: what leaves an agent while it works, and what becomes of it when its reader is slow.

use std::sync::Arc;

use everturn::model::{ModelChunk, ModelRequest, Reply, ScriptedModel, generate_stream};
use everturn::store::StoreExt;
use everturn::{
    Agent, Artifact, Chunk, ErrorKind, FinishReason, Handled, Init, Input, Json, Message, Part, StreamLimits, Turn,
};
use futures_util::StreamExt as _;

use crate::support::*;

pub(crate) fn limits(change: impl FnOnce(&mut StreamLimits)) -> StreamLimits {
    let mut limits = StreamLimits::default();
    change(&mut limits);
    limits
}

/// The chunks of one turn on a fresh session.
async fn chunks_of<F, Fut>(home: &Home, work: F) -> Vec<Chunk>
where
    F: Fn(Turn<Json>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled<()>> + Send + 'static,
{
    let agent = Agent::flow("echo", work).shared_store(home.store()).build().unwrap();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    connection.send_text("hi").await.unwrap();
    let chunks = connection.receive_turn().await;
    assert_eq!(connection.output().await.unwrap().error, None);
    chunks
}

fn printed(chunks: &[Chunk]) -> Vec<String> {
    patches(chunks).iter().map(ToString::to_string).collect()
}

on_every_store! {
    async fn chunks_come_in_the_order_they_were_sent(home: Home) {
        let chunks = chunks_of(&home, |turn| async move {
            let responder = turn.responder();
            responder.text("a").await?;
            turn.set_custom_json(Some(json(r#"{"n":1}"#)))?;
            responder.status(&("busy", 1)).await?;
            responder.artifact(Artifact::new("f", vec![Part::text("x")])).await?;
            responder.model_chunk(ModelChunk::text("b")).await?;
            turn.set_custom_json(Some(json(r#"{"n":2}"#)))?;
            Ok(())
        })
        .await;
        let kinds: Vec<_> = chunks
            .iter()
            .map(|chunk| match chunk {
                Chunk { model_chunk: Some(_), .. } => "model",
                Chunk { status: Some(_), .. } => "status",
                Chunk { custom_patch: Some(_), .. } => "patch",
                Chunk { artifact: Some(_), .. } => "artifact",
                Chunk { turn_end: Some(_), .. } => "end",
                _ => "other",
            })
            .collect();
        assert_eq!(kinds, ["model", "patch", "status", "artifact", "model", "patch", "end"]);
        assert_eq!(spoken(&chunks), "ab");
        assert_eq!(chunks[2].status, Some(json(r#"["busy",1]"#)));
        assert!(chunks.last().unwrap().turn_end.unwrap().snapshot_id.is_some());
    }

    async fn a_responder_refuses_what_the_framework_says_itself(home: Home) {
        chunks_of(&home, |turn| async move {
            let frames = [
                r#"{"customPatch":[{"op":"replace","path":"","value":1}]}"#,
                r#"{"snapshotCreated":"00000000-0000-0000-0000-000000000000"}"#,
                r#"{"turnEnd":{"finishReason":"stop"}}"#,
            ];
            for frame in frames {
                let chunk: Chunk = json(frame).to()?;
                refused(turn.responder().send(chunk).await, ErrorKind::Invalid, "not sent by hand");
            }
            let end = turn.responder().end_turn().await;
            assert_eq!(end.unwrap_err().kind(), Some(ErrorKind::Invalid), "this handler ends its turn by returning");
            Ok(())
        })
        .await;
    }

    async fn several_members_of_a_chunk_travel_together(home: Home) {
        let chunks = chunks_of(&home, |turn| async move {
            let mut chunk = Chunk::model(ModelChunk::text("a"));
            chunk.status = Some(json("1"));
            chunk.artifact = Some(Artifact::new("f", vec![Part::text("x")]));
            turn.responder().send(chunk).await?;
            assert_eq!(turn.artifacts().len(), 1, "an artifact that is sent is in the session");
            Ok(())
        })
        .await;
        assert_eq!(chunks[0].clone().split().len(), 3);
    }

    async fn the_first_patch_of_each_turn_replaces_all(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            let n = turn.index();
            turn.state().await?.set("n", &n)?;
            turn.state().await?.set("long", &"x".repeat(300))?;
            turn.state().await?.set("n", &(n + 10))?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        for turn in 0..3u64 {
            connection.send_text("go").await.unwrap();
            let chunks = connection.receive_turn().await;
            let printed = printed(&chunks);
            assert!(printed[0].starts_with(r#"[{"op":"replace","path":"","value":{"#), "{}", printed[0]);
            assert_eq!(printed.last().unwrap(), &format!(r#"[{{"op":"replace","path":"/n","value":{}}}]"#, turn + 10));
        }
    }

    async fn patches_are_as_small_as_the_change(home: Home) {
        let chunks = chunks_of(&home, |turn| async move {
            let item = |n: u32| format!(r#"{{"id":{n},"text":"{}"}}"#, "word ".repeat(10));
            let list = |ids: &[u32]| {
                let items: Vec<_> = ids.iter().map(|id| item(*id)).collect();
                json(&format!(r#"{{"list":[{}]}}"#, items.join(",")))
            };
            for ids in [&[1, 2, 3, 4, 5][..], &[2, 3, 4, 5], &[2, 3, 9, 4, 5], &[7]] {
                turn.set_custom_json(Some(list(ids)))?;
            }
            Ok(())
        })
        .await;
        let printed = printed(&chunks);
        assert_eq!(printed[1], r#"[{"op":"remove","path":"/list/0"}]"#, "the head of a list goes in one operation");
        assert!(printed[2].starts_with(r#"[{"op":"add","path":"/list/2","#), "{}", printed[2]);
        let (patch, whole) = (printed[3].len(), r#"[{"op":"replace","path":"","value":{}}]"#.len());
        assert!(patch <= whole + chunks[chunks.len() - 2].custom.as_ref().unwrap().as_str().len(), "{}", printed[3]);
    }

    async fn a_write_that_changes_nothing_sends_nothing(home: Home) {
        let chunks = chunks_of(&home, |turn| async move {
            turn.set_custom_json(Some(json("{}")))?;
            turn.set_custom_json(Some(json("{}")))?;
            Ok(())
        })
        .await;
        assert_eq!(patches(&chunks).len(), 1);
    }

    async fn each_chunk_carries_the_custom_state_so_far(home: Home) {
        let agent = stored(&home);
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("one").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert_eq!(chunks[0].custom.as_ref().unwrap(), &json(r#"{"turns":1,"last":"one"}"#));
        assert_eq!(chunks.last().unwrap().custom, chunks[0].custom);
        assert_eq!(connection.custom::<Tally>().unwrap().unwrap().turns, 1);
    }

    async fn artifacts_stream_once_whoever_puts_them(home: Home) {
        let chunks = chunks_of(&home, |turn| async move {
            turn.add_artifact(Artifact::new("a", vec![Part::text("1")])).await?;
            turn.responder().artifact(Artifact::new("b", vec![Part::text("1")])).await?;
            turn.set_artifacts([Artifact::new("c", vec![])])?;
            turn.remove_artifact("c")?;
            Ok(())
        })
        .await;
        let names: Vec<_> = chunks.iter().filter_map(|chunk| chunk.artifact.as_ref()?.name.clone()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    async fn a_stream_is_left_at_a_turns_end_and_taken_up_again(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        for turn in 0..20 {
            connection.send_text(format!("turn {turn}")).await.unwrap();
            let chunks = connection.receive_turn().await;
            assert_eq!(spoken(&chunks), format!("echo: turn {turn}"));
            assert_eq!(chunks.last().unwrap().turn_end.unwrap().finish_reason, FinishReason::Stop);
            assert!(!connection.is_done());
        }
        connection.close();
        assert!(connection.receive().await.is_none());
        let output = connection.output().await.unwrap();
        assert_eq!((said(&output).len(), output.snapshot_ids.len()), (40, 20));
        assert!(connection.is_done());
    }

    async fn inputs_may_be_sent_before_their_turns(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.send_messages([Message::user("two"), Message::user("!")]).await.unwrap();
        connection.send(Input::text("three")).await.unwrap();
        connection.close();
        let ends = connection.chunks().filter(|chunk| std::future::ready(chunk.turn_end.is_some())).count().await;
        assert_eq!(ends, 3);
        let output = connection.output().await.unwrap();
        assert_eq!(said(&output)[2..5], ["two", "!", "echo: two!"]);
    }

    async fn nothing_is_sent_after_closing(home: Home) {
        let mut connection = stored(&home).connect(Init::session(sid("s"))).await.unwrap();
        connection.close();
        refused(connection.send_text("late").await, ErrorKind::Invalid, "closed");
        let output = connection.output().await.unwrap();
        assert_eq!((output.finish_reason, output.message, output.snapshot_id), (None, None, None));
        assert!(home.store().session(&key("s")).await.unwrap().is_none(), "without a turn there is no session");
        refused(connection.send_text("late").await, ErrorKind::Invalid, "closed");
    }

    async fn an_output_can_be_had_without_reading(home: Home) {
        let agent = echo().shared_store(home.store()).stream_limits(limits(|l| l.chunks = 2)).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        for text in ["one", "two", "three"] {
            connection.send_text(text).await.unwrap();
        }
        assert_eq!(said(&connection.output().await.unwrap()).len(), 6);
        assert_eq!(said(&connection.output().await.unwrap()).len(), 6, "and again");
    }

    async fn done_is_when_the_invocation_has_ended(home: Home) {
        let mut connection = stored(&home).connect(Init::new()).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.close();
        connection.done().await;
        assert!(connection.is_done());
        assert_eq!(spoken(&connection.receive_turn().await), "echo: one", "what was said can still be read");
    }

    async fn a_chunk_transform_shapes_and_drops(home: Home) {
        let agent = echo().shared_store(home.store()).transform_chunk(|mut chunk, caller| {
            assert_eq!((caller.agent.as_str(), caller.user.as_str()), ("echo", "user"));
            assert_eq!(caller.session, Some(sid("s")));
            if chunk.custom_patch.is_some() {
                return Ok(None);
            }
            if chunk.model_chunk.is_some() {
                chunk.status = Some(json("\"seen\""));
            }
            Ok(Some(chunk))
        });
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert!(patches(&chunks).is_empty());
        assert_eq!(chunks[0].status, Some(json("\"seen\"")));
        assert_eq!(connection.custom_json(), None, "what was dropped is not known");
    }

    async fn a_state_transform_shapes_the_patches(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.set_custom_json(Some(json(r#"{"secret":1,"n":1}"#)))?;
            turn.set_custom_json(Some(json(r#"{"secret":2,"n":1}"#)))?;
            turn.set_custom_json(Some(json(r#"{"secret":3,"n":2}"#)))?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).transform_state(|mut state, _| {
            let open = state.custom.as_ref().map(|custom| custom.to::<std::collections::BTreeMap<String, Json>>());
            if let Some(mut open) = open.transpose()? {
                open.remove("secret");
                state.custom = Some(Json::from_value(&open)?);
            }
            Ok(state)
        });
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("go").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert_eq!(printed(&chunks).len(), 2, "a change nobody may see is not told");
        assert!(!printed(&chunks).concat().contains("secret"));
        let output = connection.output().await.unwrap();
        assert_eq!(output.state.custom_json(), Some(&json(r#"{"n":2}"#)));
        let raw = home.store().head_state(&key("s")).await.unwrap();
        assert_eq!(raw.custom(), Some(&json(r#"{"secret":3,"n":2}"#)), "what is kept is whole");
    }

    async fn a_models_answer_streams_into_the_session(home: Home) {
        let model = Arc::new(ScriptedModel::new([Reply::text("Hello, Ann!").in_pieces(4)]));
        let chunks = chunks_of(&home, move |turn| {
            let model = model.clone();
            async move {
                let mut stream = generate_stream(&*model, ModelRequest::new(turn.model_messages()));
                while let Some(chunk) = stream.next().await {
                    turn.responder().model_chunk(chunk?).await?;
                }
                turn.add_message(stream.response()?.message)?;
                Ok(())
            }
        })
        .await;
        assert_eq!((spoken(&chunks).as_str(), chunks.len()), ("Hello, Ann!", 5));
    }
}
