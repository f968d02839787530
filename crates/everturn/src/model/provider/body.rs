//! A whole request, as genai takes it.

use genai::chat::{ChatMessage, ChatOptions, ChatRequest, Tool};
use serde_json::Value;

use super::name::{Name, Wire};
use super::{messages, settings};
use crate::model::{ModelRequest, ToolDefinition};
use crate::{Error, Result};

/// What is sent; the same for every try.
pub(super) struct Body {
    pub(super) request: ChatRequest,
    pub(super) options: ChatOptions,
}

impl Body {
    pub(super) fn new(request: &ModelRequest, name: &Name) -> Result<Self> {
        let options = settings::convert(request, name)?;
        let mut conversation = messages::convert(&request.messages, name);
        if conversation.is_empty() {
            return Err(Error::invalid(format!("{}: no message has anything that can be sent", name.full)));
        }
        if let (Wire::Ollama, Some(schema)) = (name.wire(), &request.output_schema) {
            conversation.insert(0, ChatMessage::system(format!("Answer with JSON that follows this schema: {schema}")));
        }
        let mut chat = ChatRequest::new(conversation);
        if !request.tools.is_empty() {
            chat = chat.with_tools(request.tools.iter().map(tool).collect::<Result<Vec<_>>>()?);
        }
        Ok(Self { request: chat, options })
    }
}

fn tool(definition: &ToolDefinition) -> Result<Tool> {
    Ok(Tool::new(definition.name.clone())
        .with_description(definition.description.clone())
        .with_schema(definition.input_schema.to::<Value>()?))
}
