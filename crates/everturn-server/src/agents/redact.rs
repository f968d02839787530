//! `redact`: keeps a secret that nobody may see.

use std::sync::Arc;

use everturn::store::Store;
use everturn::{Agent, Json, Message, Turn};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Secretive {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(default)]
    seen: u64,
}

pub(super) fn agent(store: Arc<dyn Store>) -> everturn::Result<Agent<Secretive>> {
    Agent::flow("redact", |turn: Turn<Secretive>| async move {
        turn.update_custom(|custom| {
            custom.secret = Some("s3cr3t".to_owned());
            custom.seen += 1;
        })?;
        turn.responder().text("INTERNAL note").await?;
        turn.responder().text("ok").await?;
        turn.add_message(Message::model("ok"))?;
        Ok(())
    })
    .description("Keeps a secret in its state that never leaves.")
    .shared_store(store)
    .transform_state(|mut state, _| {
        state.custom = state.custom.as_ref().map(without_secret).transpose()?;
        Ok(state)
    })
    .transform_chunk(|chunk, _| {
        let internal = Json::from_value(&chunk)?.as_str().contains("INTERNAL");
        Ok((!internal).then_some(chunk))
    })
    .recovery(super::RECOVERY)
    .build()
}

fn without_secret(custom: &Json) -> everturn::Result<Json> {
    let mut value: Value = custom.to()?;
    if let Value::Object(members) = &mut value {
        members.remove("secret");
    }
    Json::from_value(&value)
}
