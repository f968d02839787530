//! `asker`: a prompt agent whose tools stop to ask a person.

use std::sync::Arc;

use everturn::model::{Model, ModelChunk, ModelRequest, ModelStream};
use everturn::store::Store;
use everturn::tool::{Tool, ToolError};
use everturn::{Agent, FinishReason, Json, Message, Part, Prompt, Role, SnapshotEvent, SnapshotPolicy, Usage};
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) fn agent(store: Arc<dyn Store>) -> everturn::Result<Agent<Json>> {
    let prompt = Prompt::new(Rules)
        .system("Ask before you act. Answer with what the tools say.")
        .tool(confirm(Json::from_value(&json!({ "type": "object", "required": ["question"] }))?))
        .tool(pay(Json::from_value(&json!({ "type": "object", "required": ["amount"] }))?));
    Agent::prompt("asker", prompt)
        .description("Asks a person before it goes on: `ask QUESTION`, `pay AMOUNT`.")
        .shared_store(store)
        // A snapshot a turn is what Genkit's clients know.
        .snapshots(SnapshotPolicy::on([SnapshotEvent::TurnEnd]))
        .recovery(super::RECOVERY)
        .build()
}

fn confirm(input: Json) -> Tool {
    Tool::untyped("confirm", "Asks a person a question.", input, |_, _| async { Err(ToolError::interrupt(&true)) })
}

fn pay(input: Json) -> Tool {
    Tool::untyped("pay", "Pays an amount, once a person has agreed.", input, |input, context| async move {
        #[derive(Deserialize)]
        struct Payment {
            amount: Value,
        }
        let agreed = context.resumed().is_some_and(|said| !matches!(said.as_str(), "null" | "false"));
        if !agreed {
            return Err(ToolError::interrupt(&true));
        }
        let amount = match input.to::<Payment>()?.amount {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(Json::from_value(&format!("paid {amount}"))?)
    })
}

/// A model that follows rules instead of guessing.
#[derive(Debug)]
struct Rules;

impl Model for Rules {
    fn name(&self) -> &str {
        "demo/rules"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let part = request.messages.last().map_or_else(|| Part::text("plain: "), answer);
        let chunk = ModelChunk::new(vec![part]).finished(FinishReason::Stop, Usage::default());
        Box::pin(futures_util::stream::iter([Ok(chunk)]))
    }
}

fn answer(last: &Message) -> Part {
    if last.role() == Role::Tool {
        let output = last.parts().iter().find_map(Part::as_tool_response).and_then(|answer| answer.output);
        return Part::text(format!("answer: {}", output.unwrap_or_default()));
    }
    let text = last.text();
    let asked = |name, reference, input: Value| match Json::from_value(&input) {
        Ok(input) => Part::tool_request(name, Some(reference), &input),
        Err(error) => Part::text(error.to_string()),
    };
    match text.split_once(' ') {
        Some(("ask", question)) => asked("confirm", "r1", json!({ "question": question })),
        Some(("pay", amount)) => {
            let amount = serde_json::from_str::<serde_json::Number>(amount).map_or_else(|_| amount.into(), Value::from);
            asked("pay", "r2", json!({ "amount": amount }))
        }
        _ => Part::text(format!("plain: {text}")),
    }
}
