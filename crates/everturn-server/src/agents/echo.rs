//! `echo` and `echoClient`: they say what they hear, and do what the first word asks for.

use std::sync::Arc;
use std::time::Duration;

use everturn::model::ModelChunk;
use everturn::store::Store;
use everturn::{Agent, AgentBuilder, Artifact, Failure, Handled, Json, Message, Part, Role, Turn};
use serde::{Deserialize, Serialize};

/// The longest `slow` waits.
const MAX_SLOW: u64 = 10 * 60 * 1000;

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Echo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    poison: Option<bool>,
}

pub(super) fn stored(store: Arc<dyn Store>) -> everturn::Result<Agent<Echo>> {
    define("echo")
        .description("Says what it hears; its sessions are kept in the store.")
        .shared_store(store)
        .recovery(super::RECOVERY)
        .build()
}

pub(super) fn client_managed() -> everturn::Result<Agent<Echo>> {
    let schema = Json::parse(
        r#"{
          "type": "object",
          "properties": {"turns": {"type": "number"}, "last": {"type": "string"}, "status": {"type": "string"}},
          "additionalProperties": true
        }"#,
    )?;
    define("echoClient").description("Says what it hears; its callers keep the state.").state_schema(schema).build()
}

fn define(name: &str) -> AgentBuilder<Echo> {
    Agent::flow(name, |turn: Turn<Echo>| async move {
        let text = turn.text();
        let turns = turn.messages().iter().filter(|message| message.role() == Role::User).count() as u64;
        turn.update_custom(|custom| custom.status = Some("working".to_owned()))?;
        let reply = answer(&turn, &text, turns).await?;
        turn.add_message(Message::model(reply))?;
        turn.update_custom(|custom| {
            custom.turns = Some(turns);
            custom.last = Some(text);
            custom.status = Some("idle".to_owned());
        })?;
        Ok(())
    })
}

async fn answer(turn: &Turn<Echo>, text: &str, turns: u64) -> Handled<String> {
    let (command, rest) = text.split_once(' ').unwrap_or((text, ""));
    match command {
        "artifact" => {
            let (name, body) = rest.split_once(' ').unwrap_or((rest, ""));
            if name.is_empty() {
                return Err(Failure::new("INVALID_ARGUMENT", "an artifact needs a name: artifact NAME BODY"));
            }
            let mut artifact = Artifact::new(name, vec![Part::text(body)]);
            artifact.metadata = Some(Json::parse(format!(r#"{{"turn":{turns}}}"#))?);
            turn.add_artifact(artifact).await?;
            say(turn, format!("stored {name}")).await
        }
        "fail" => {
            turn.update_custom(|custom| custom.poison = Some(true))?;
            turn.add_message(Message::model("partial"))?;
            Err(Failure::new("UNAVAILABLE", rest).details(&serde_json::json!({"hint": "demo"})))
        }
        "slow" => {
            let wait: u64 = rest.trim().parse().unwrap_or(0);
            tokio::select! {
                () = turn.cancelled() => Err(Failure::new("CANCELLED", "the turn was cancelled")),
                () = tokio::time::sleep(Duration::from_millis(wait.min(MAX_SLOW))) => say(turn, "slow done".to_owned()).await,
            }
        }
        _ => {
            turn.responder().model_chunk(ModelChunk::text("echo: ")).await?;
            turn.responder().model_chunk(ModelChunk::text(text)).await?;
            Ok(format!("echo: {text}"))
        }
    }
}

async fn say(turn: &Turn<Echo>, reply: String) -> Handled<String> {
    turn.responder().text(&reply).await?;
    Ok(reply)
}
