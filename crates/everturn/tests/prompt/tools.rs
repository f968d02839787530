//! Tools and agents that the tests of prompt agents share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use everturn::model::{Reply, ScriptedModel};
use everturn::store::{At, EventQuery, MAX_PAGE};
use everturn::tool::{Tool, ToolError};
use everturn::{Agent, AgentBuilder, Event, Json, Output, Part, Prompt, Role, SessionKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::support::Home;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Sum {
    pub(crate) a: i64,
    pub(crate) b: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Question {
    pub(crate) question: String,
}

/// How often something happened.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Adds, and counts how often it ran.
pub(crate) fn add(ran: &Count) -> Tool {
    let ran = ran.clone();
    Tool::new("add", "Adds two numbers.", move |sum: Sum, _| {
        let ran = ran.clone();
        async move {
            ran.up();
            Ok(sum.a + sum.b)
        }
    })
}

/// Always asks a person.
pub(crate) fn confirm() -> Tool {
    Tool::new("confirm", "Asks a person.", |asked: Question, _| async move {
        Err::<bool, _>(ToolError::interrupt(&asked.question))
    })
}

/// An agent over scripted answers, called `helper`.
pub(crate) fn helper(model: &ScriptedModel, tools: impl IntoIterator<Item = Tool>) -> AgentBuilder<Json> {
    Agent::prompt("helper", Prompt::new(model.clone()).system("Be brief.").tools(tools))
}

pub(crate) fn script(replies: impl IntoIterator<Item = Reply>) -> ScriptedModel {
    ScriptedModel::new(replies)
}

pub(crate) fn of_helper(id: &str) -> SessionKey {
    SessionKey::of("helper", "user", id).unwrap()
}

/// The roles of an output's messages.
pub(crate) fn roles(output: &Output) -> Vec<&'static str> {
    output.state.messages().iter().map(|message| message.role().name()).collect()
}

/// What tools answered, in order.
pub(crate) fn answers(output: &Output) -> Vec<String> {
    let tools = output.state.messages().iter().filter(|message| message.role() == Role::Tool);
    let parts = tools.flat_map(|message| message.parts());
    parts.filter_map(|part: Part| part.as_tool_response()?.output).map(|output| output.to_string()).collect()
}

/// All events of a session's head.
pub(crate) async fn events(home: &Home, session: &str) -> Vec<Event> {
    let query = EventQuery::at(At::head(of_helper(session))).limit(MAX_PAGE);
    home.elsewhere().events(query).await.unwrap().items
}
