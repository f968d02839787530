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

mod agent_tool;
mod floor;
mod hook;
mod late;
mod seat;
mod shown;
mod speaking;
mod team;
mod template;
mod turn;

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;

pub use hook::{Hook, HookContext, HookError, HookResult, Preparation, StopVerdict, ToolAnswer, ToolCall, ToolVerdict};

use team::{Child, Team};

use super::builder::AgentBuilder;
use super::definition::Handler;
use super::{Agent, CustomState};
use crate::json::Json;
use crate::live::Session;
use crate::message::Message;
use crate::model::generation::MAX_ITERATIONS;
use crate::model::{Model, ToolMode};
use crate::schema::Schema;
use crate::tool::Tool;
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
    sub_agents: Vec<Arc<Child<S>>>,
    agent_tools: Vec<Arc<Child<S>>>,
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
            sub_agents: self.sub_agents.clone(),
            agent_tools: self.agent_tools.clone(),
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
            sub_agents: Vec::new(),
            agent_tools: Vec::new(),
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

    /// How often the model may be asked in one turn, or each time it is handed the conversation: 16 times unless set.
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

    /// An agent that the conversation can be handed over to, with its own model, instructions, tools, settings and
    /// hooks; it may have sub-agents itself.
    ///
    /// The model finds a tool `transfer_to_agent` by which it hands over to a sub-agent, to its own parent or to another
    /// sub-agent of that parent. Whoever was handed the conversation goes on in the same turn, and is still the one who
    /// answers in the next, until it hands over in its turn; a tool of its can also
    /// [`escalate`](crate::tool::ToolContext::escalate) to its parent. A conversation that is handed over more than 16
    /// times in one turn fails it.
    ///
    /// A sub-agent sees what people said, its own part of the conversation and that of the agents above it, whose calls
    /// and answers it is told in words. It sees nothing of its siblings, and nobody above sees what it said.
    ///
    /// ```
    /// use everturn::model::{Reply, ScriptedModel};
    /// use everturn::{Agent, Init, Prompt};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
    /// let sales = ScriptedModel::new([Reply::text("A pot is 12 euros."), Reply::text("Two are 24.")]);
    /// let front = ScriptedModel::new([Reply::call("transfer_to_agent", r#"{"agent":"sales"}"#)]);
    /// let prompt = Prompt::new(front).sub_agent("sales", "Knows all prices.", Prompt::new(sales));
    /// let agent = Agent::prompt("shop", prompt).build()?;
    ///
    /// let first = agent.run_text("What is a teapot?", Init::new()).await?;
    /// assert_eq!(first.text(), "A pot is 12 euros.");
    /// // The one who spoke last goes on.
    /// let second = agent.run_text("And two?", Init::state(first.state.to_session_state())).await?;
    /// assert_eq!(second.text(), "Two are 24.");
    /// # Ok(()) }
    /// ```
    pub fn sub_agent(mut self, name: impl Into<String>, description: impl Into<String>, prompt: Prompt<S>) -> Self {
        self.sub_agents.push(Arc::new(Child { name: name.into(), description: description.into(), prompt }));
        self
    }

    /// An agent as a tool: the model asks it something (`{"request": "…"}`), it works with its own model, tools and hooks
    /// inside the call, and the call's answer is what it says last, or its [`output`](Self::output). Calls run side by
    /// side as those of other tools do.
    ///
    /// It sees its request and nothing else of the conversation; it shares the session's state. What it says is stored
    /// with the turn, counted where it was spent, and not streamed. If it fails, the turn fails. Nobody can be asked
    /// while it works: a tool of its that interrupts or needs approval is told to its model as an error. Use
    /// [`sub_agent`](Self::sub_agent) for agents whose tools ask people.
    ///
    /// ```
    /// use everturn::model::{Reply, ScriptedModel};
    /// use everturn::{Agent, Init, Prompt};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
    /// let counter = ScriptedModel::new([Reply::text("42")]);
    /// let asking = ScriptedModel::new([Reply::call("counter", r#"{"request":"6 * 7"}"#), Reply::text("It is 42.")]);
    /// let prompt = Prompt::new(asking).agent_tool("counter", "Counts.", Prompt::new(counter));
    /// let agent = Agent::prompt("helper", prompt).build()?;
    /// assert_eq!(agent.run_text("What is six times seven?", Init::new()).await?.text(), "It is 42.");
    /// # Ok(()) }
    /// ```
    pub fn agent_tool(mut self, name: impl Into<String>, description: impl Into<String>, prompt: Prompt<S>) -> Self {
        self.agent_tools.push(Arc::new(Child { name: name.into(), description: description.into(), prompt }));
        self
    }

    /// Checked, and with what is compiled once compiled. What it has because of others its team adds.
    fn ready(&self, name: String, path: String) -> Result<Ready<S>> {
        if self.max_iterations == 0 {
            return Err(Error::invalid("a prompt with max_iterations 0 would never ask its model: allow at least 1"));
        }
        let output = self.clone().output.transpose()?;
        let output = output.map(|json| Schema::new("the output schema", json)).transpose()?;
        if let Some(System::Template(text)) = &self.system {
            template::check(text)?;
        }
        Ok(Ready {
            prompt: self.clone(),
            output,
            name,
            description: String::new(),
            path,
            noted: None,
            parent: None,
            reach: Vec::new(),
            tools: Vec::new(),
        })
    }
}

/// A prompt that was checked, as a member of its team.
struct Ready<S> {
    prompt: Prompt<S>,
    output: Option<Schema>,
    name: String,
    description: String,
    /// The agents on the way to it, like `planner.researcher`.
    path: String,
    /// The path as its messages note it: nothing for the root of a conversation.
    noted: Option<String>,
    parent: Option<usize>,
    /// Whom it may hand over to.
    reach: Vec<usize>,
    /// Its own tools, and those it has because of others.
    tools: Vec<Tool>,
}

impl<S: CustomState> Agent<S> {
    /// An agent that asks a model: instructions, conversation and tools go in, and what is said is stored.
    pub fn prompt(name: impl Into<String>, prompt: Prompt<S>) -> AgentBuilder<S> {
        let name = name.into();
        match Team::new(&name, &prompt) {
            Ok(team) => {
                let team = Arc::new(team);
                let handler = move |turn| -> super::definition::HandlerFuture {
                    let team = team.clone();
                    Box::pin(async move { turn::run(&team, crate::live::Turn::of(turn)).await })
                };
                AgentBuilder::new(name, Handler::PerTurn(Arc::new(handler)))
            }
            Err(error) => AgentBuilder::broken(name, error),
        }
    }
}
