//! An agent as a tool of another's: it works inside the call, and the call's answer is what it says last.

use std::sync::Arc;

use serde::Deserialize;

use super::floor::{Ended, Floor, converse};
use super::hook::HookContext;
use super::seat::Seat;
use super::team::{Child, Speaker, Team};
use crate::agent::{CustomState, Handled};
use crate::event::Event;
use crate::json::Json;
use crate::message::{Message, Role};
use crate::part::Part;
use crate::tool::{OnToolError, Tool, ToolContext, ToolError};
use crate::{Error, Input};

const INPUT: &str = r#"{"type":"object","properties":{"request":{"type":"string","description":"What it is to do, with all it needs to know."}},"required":["request"]}"#;

#[derive(Deserialize)]
struct Request {
    request: String,
}

/// The tool that an agent is for another.
pub(super) fn agent_tool<S: CustomState>(child: &Child<S>, team: Arc<Team<S>>, caller: String) -> Tool {
    let output = team.root().output.as_ref().map(|schema| schema.json().clone());
    let call = move |input: Json, context: ToolContext| {
        let (team, caller) = (team.clone(), caller.clone());
        async move { serve(&team, &caller, &input, &context).await.map_err(ToolError::fatal) }
    };
    let tool = Tool::untyped(&child.name, &child.description, Json::trusted(INPUT), call);
    let tool = match output {
        Some(schema) => tool.output_schema(schema),
        None => tool,
    };
    // A retry runs it again under the same call, and there it goes on where it was.
    tool.idempotent().on_error(OnToolError::FailTurn)
}

async fn serve<S: CustomState>(team: &Team<S>, caller: &str, input: &Json, context: &ToolContext) -> Handled<Json> {
    let session = context
        .session::<S>()
        .ok_or_else(|| Error::invalid("an agent that is a tool works in the turn of a prompt agent with its state"))?;
    let Request { request } = input.to()?;
    let hooks = Arc::new(HookContext::new(session.clone(), Input::text(&request)));
    let call = context.call_id().to_owned();
    let messages = session.messages();
    let begun = messages.iter().rev().any(|message| Seat::of(message).call.as_ref() == Some(&call));
    if !begun {
        let seat = Seat { path: team.root().noted.clone(), call: Some(call.clone()) };
        let mut event = Event::new(caller).with_messages([seat.sign(&Message::user(request))]);
        event.path.clone_from(&team.root().path);
        session.run().work().add_event(event)?;
    }
    let first = match team.speaker(&messages, Some(&call)) {
        Speaker::Member(member) => member,
        Speaker::Gone(_) => 0,
    };
    let floor = Floor { team, session, context: hooks, call: Some(call) };
    Ok(answer(converse(&floor, first, None).await?))
}

/// What the call answers: the structured output, the tools' answer if that was to be the last word, or what was said.
fn answer(ended: Ended) -> Json {
    if let Some(output) = ended.output {
        return output;
    }
    let last = ended.generated.conversation.last();
    let said = last.filter(|_| ended.generated.actions.skip_summarization).filter(|last| last.role() == Role::Tool);
    let mut outputs: Vec<Json> = said
        .map(Message::parts)
        .unwrap_or_default()
        .iter()
        .filter_map(Part::as_tool_response)
        .map(|response| response.output.unwrap_or_default())
        .collect();
    let told = match outputs.len() {
        0 => Json::from_value(&ended.generated.message.text()),
        1 => Ok(outputs.remove(0)),
        _ => Json::from_value(&outputs),
    };
    told.unwrap_or_default()
}
