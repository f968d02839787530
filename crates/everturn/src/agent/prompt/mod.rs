//! Prompt agents: a model, instructions and tools, stored correctly turn after turn.
//!
//! ```
//! use everturn::model::{Reply, ScriptedModel};
//! use everturn::store::MemoryStore;
//! use everturn::{Agent, Init, Prompt};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let model = ScriptedModel::new([Reply::text("Hello, Ann."), Reply::text("You are Ann.")]);
//! let prompt = Prompt::new(model).system("You are brief.");
//! let agent = Agent::prompt("helper", prompt).store(MemoryStore::new()).build()?;
//!
//! let first = agent.run_text("I am Ann.", Init::new()).await?;
//! let second = agent.run_text("Who am I?", Init::session(first.session_id)).await?;
//! assert_eq!(second.text(), "You are Ann.");
//! // The instructions are sent each time and stored never.
//! assert_eq!(second.state.messages().len(), 4);
//! # Ok(()) }
//! ```

mod hook;
mod speaking;
mod template;
mod turn;

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;

pub use hook::{Hook, HookContext, HookError, HookResult, Preparation, StopVerdict, ToolAnswer, ToolCall, ToolVerdict};

use super::builder::AgentBuilder;
use super::definition::Handler;
use super::{Agent, CustomState};
use crate::json::Json;
use crate::live::Session;
use crate::message::Message;
use crate::model::generation::MAX_ITERATIONS;
use crate::model::{Model, ToolMode};
use crate::schema::Schema;
use crate::tool::{Tool, check_all};
use crate::{Error, Result};

type Instructions<S> = dyn Fn(&Session<S>) -> Result<String> + Send + Sync;

/// What instructs the model.
enum System<S> {
    /// A text in which `{{key}}` stands for a key of the session's state.
    Template(String),
    /// A function of the session.
    Function(Arc<Instructions<S>>),
}

impl<S> Clone for System<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Template(text) => Self::Template(text.clone()),
            Self::Function(function) => Self::Function(function.clone()),
        }
    }
}

/// A model with its instructions, tools and settings: what [`Agent::prompt`] makes an agent of.
///
/// `S` is the type of the sessions' custom state. [`Prompt::new`] leaves it untyped; [`Prompt::of`] names it.
#[must_use = "a prompt does nothing until an agent is made of it"]
pub struct Prompt<S = Json> {
    pub(super) model: Arc<dyn Model>,
    system: Option<System<S>>,
    preamble: Vec<Message>,
    config: Option<Json>,
    tools: Vec<Tool>,
    mode: ToolMode,
    max_iterations: usize,
    output: Option<Result<Json>>,
    hooks: Vec<Arc<dyn Hook<S>>>,
}

impl<S> Clone for Prompt<S> {
    fn clone(&self) -> Self {
        let output = self.output.as_ref().map(|output| match output {
            Ok(json) => Ok(json.clone()),
            Err(error) => Err(Error::new(error.kind(), error.to_string())),
        });
        Self {
            model: self.model.clone(),
            system: self.system.clone(),
            preamble: self.preamble.clone(),
            config: self.config.clone(),
            tools: self.tools.clone(),
            mode: self.mode,
            max_iterations: self.max_iterations,
            output,
            hooks: self.hooks.clone(),
        }
    }
}

impl<S> fmt::Debug for Prompt<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt").field("model", &self.model).field("tools", &self.tools).finish_non_exhaustive()
    }
}

impl Prompt<Json> {
    /// A prompt for a model, over untyped custom state.
    pub fn new(model: impl Model + 'static) -> Self {
        Self::of(Arc::new(model))
    }
}

impl<S: CustomState> Prompt<S> {
    /// A prompt for a shared model, over custom state of a type.
    pub fn of(model: Arc<dyn Model>) -> Self {
        Self {
            model,
            system: None,
            preamble: Vec::new(),
            config: None,
            tools: Vec::new(),
            mode: ToolMode::default(),
            max_iterations: MAX_ITERATIONS,
            output: None,
            hooks: Vec::new(),
        }
    }

    /// Instructs the model. `{{key}}` stands for a key of the session's state, with its prefix (`{{user:name}}`); a key
    /// that is not there fails the turn, unless it is written as `{{key?}}`. `{{{{` is two braces.
    pub fn system(mut self, template: impl Into<String>) -> Self {
        self.system = Some(System::Template(template.into()));
        self
    }

    /// Instructs the model by a function of the session.
    pub fn system_of(mut self, instructions: impl Fn(&Session<S>) -> Result<String> + Send + Sync + 'static) -> Self {
        self.system = Some(System::Function(Arc::new(instructions)));
        self
    }

    /// Messages the model is shown before the conversation, such as examples. They are never stored.
    pub fn preamble(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.preamble = messages.into_iter().collect();
        self
    }

    /// Settings of the model.
    pub fn config(mut self, config: Json) -> Self {
        self.config = Some(config);
        self
    }

    /// A tool the model may ask for.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Tools the model may ask for.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// How the calls of one answer run: all at once unless set.
    pub fn tool_mode(mut self, mode: ToolMode) -> Self {
        self.mode = mode;
        self
    }

    /// How often the model may be asked in one turn: 16 times unless set.
    pub fn max_iterations(mut self, most: usize) -> Self {
        self.max_iterations = most;
        self
    }

    /// The model answers with a value of this type, which is the turn's output. An answer that is none fails the turn.
    pub fn output<T: JsonSchema>(mut self) -> Self {
        self.output = Some(Json::from_value(&schemars::schema_for!(T)));
        self
    }

    /// The same by a JSON schema.
    pub fn output_schema(mut self, schema: Json) -> Self {
        self.output = Some(Ok(schema));
        self
    }

    /// Something that follows the turn and may change or refuse what happens. Hooks are called in the order they were
    /// added.
    pub fn hook(mut self, hook: impl Hook<S> + 'static) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Checked, and with what is compiled once compiled.
    fn ready(&self) -> Result<Ready<S>> {
        check_all(&self.tools)?;
        if self.max_iterations == 0 {
            return Err(Error::invalid("a prompt with max_iterations 0 would never ask its model: allow at least 1"));
        }
        let output = self.clone().output.transpose()?;
        let output = output.map(|json| Schema::new("the output schema", json)).transpose()?;
        if let Some(System::Template(text)) = &self.system {
            template::check(text)?;
        }
        Ok(Ready { prompt: self.clone(), output })
    }
}

/// A prompt that was checked.
pub(super) struct Ready<S> {
    prompt: Prompt<S>,
    output: Option<Schema>,
}

impl<S: CustomState> Agent<S> {
    /// An agent that asks a model: instructions, conversation and tools go in, and what is said is stored.
    pub fn prompt(name: impl Into<String>, prompt: Prompt<S>) -> AgentBuilder<S> {
        match prompt.ready() {
            Ok(ready) => {
                let ready = Arc::new(ready);
                let handler = move |turn| -> super::definition::HandlerFuture {
                    let ready = ready.clone();
                    Box::pin(async move { turn::run(&ready, crate::live::Turn::of(turn)).await })
                };
                AgentBuilder::new(name.into(), Handler::PerTurn(Arc::new(handler)))
            }
            Err(error) => AgentBuilder::broken(name.into(), error),
        }
    }
}
