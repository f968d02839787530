//! Models: a request goes in, a stream of chunks comes out.
//!
//! Nothing here knows of sessions. A flow takes a session's messages, asks a model, and adds what it says:
//!
//! ```
//! use everturn::Message;
//! use everturn::model::{ModelRequest, Reply, ScriptedModel, generate_stream};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let model = ScriptedModel::new([Reply::text("Hello, Ann!").in_pieces(5)]);
//! let mut stream = generate_stream(&model, ModelRequest::new(vec![Message::user("I am Ann.")]));
//! let mut heard = String::new();
//! while let Some(chunk) = stream.next().await {
//!     heard += &chunk?.as_text();
//! }
//! assert_eq!(heard, "Hello, Ann!");
//! assert_eq!(stream.response()?.message.text(), "Hello, Ann!");
//! # Ok(()) }
//! ```

mod ask;
pub(crate) mod generation;
#[cfg(feature = "providers")]
mod provider;
mod scripted;

use std::fmt;
use std::pin::Pin;

use futures_core::Stream;
use serde::{Deserialize, Serialize};

pub use ask::{Generating, ModelResponse, generate, generate_stream};
pub use generation::{Generated, Generation, GenerationStream, ToolMode};
#[cfg(feature = "providers")]
pub use provider::Provider;
pub use scripted::{Reply, ScriptedModel};

use crate::json::Json;
use crate::message::{Message, Role};
use crate::part::Part;
use crate::snapshot::FinishReason;
use crate::{Result, Usage};

/// What a model is asked.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelRequest {
    /// The conversation so far, instructions first.
    pub messages: Vec<Message>,
    /// Settings of the model: `temperature`, `maxOutputTokens`, `topP`, `stopSequences`, and whatever else its provider
    /// knows, by its own name.
    pub config: Option<Json>,
    /// The tools it may ask for.
    pub tools: Vec<ToolDefinition>,
    /// The JSON schema its answer must follow, when text will not do.
    pub output_schema: Option<Json>,
    /// Tells a provider which requests share a beginning, so that it can keep what it has read. The same for every
    /// request of a session, different for every session, and nothing can be learnt from it.
    pub cache_key: Option<String>,
}

impl ModelRequest {
    /// A request with a conversation.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// The same with settings.
    #[must_use]
    pub fn config(mut self, config: Json) -> Self {
        self.config = Some(config);
        self
    }

    /// The same with tools the model may ask for. A [`Generation`] adds
    /// and runs its own; a model alone only asks.
    #[must_use]
    pub fn tools(mut self, tools: impl IntoIterator<Item = ToolDefinition>) -> Self {
        self.tools = tools.into_iter().collect();
        self
    }

    /// The same with a schema for the answer.
    #[must_use]
    pub fn output_schema(mut self, schema: Json) -> Self {
        self.output_schema = Some(schema);
        self
    }
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON schema of what it is given.
    pub input_schema: Json,
    /// The JSON schema of what it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Json>,
}

impl ToolDefinition {
    /// A tool by name, purpose and the schema of its input.
    #[must_use]
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: Json) -> Self {
        Self { name: name.into(), description: description.into(), input_schema, output_schema: None }
    }
}

/// A piece of what a model says. The last ones also say what it cost and why it stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ModelChunk {
    /// Who speaks.
    #[serde(default = "model_role")]
    pub role: Role,
    /// What was added.
    #[serde(default)]
    pub content: Vec<Part>,
    /// What it cost so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Why the model stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

fn model_role() -> Role {
    Role::Model
}

impl ModelChunk {
    /// A chunk of parts.
    #[must_use]
    pub fn new(content: Vec<Part>) -> Self {
        Self { role: Role::Model, content, usage: None, finish_reason: None }
    }

    /// A piece of text.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::new(vec![Part::text(text)])
    }

    /// The same with why the model stopped and what it cost.
    #[must_use]
    pub fn finished(mut self, reason: FinishReason, usage: Usage) -> Self {
        self.finish_reason = Some(reason);
        self.usage = Some(usage);
        self
    }

    /// The texts of its parts, one after the other.
    #[must_use]
    pub fn as_text(&self) -> String {
        self.content.iter().filter_map(Part::as_text).collect()
    }

    pub(crate) fn weight(&self) -> usize {
        self.content.iter().map(|part| part.as_str().len() + 32).sum()
    }
}

/// What a model answers with.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelChunk>> + Send>>;

/// Something that answers conversations.
pub trait Model: Send + Sync + fmt::Debug {
    /// Its name, like `openai/gpt-5`.
    fn name(&self) -> &str;

    /// Answers. The stream ends after the last chunk or the first error; dropping it stops the model.
    fn stream(&self, request: ModelRequest) -> ModelStream;
}
