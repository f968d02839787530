//! Messages, as genai takes them.
//!
//! What a provider cannot take is left out or becomes text; only a request with nothing left is refused.

use std::collections::VecDeque;

use genai::chat::{ChatMessage, ChatRole, ContentPart, MessageContent, ToolCall, ToolResponse};
use serde_json::{Map, Value, json};

use super::media;
use super::name::{Name, Wire};
use crate::json::Json;
use crate::message::{Message, Role};
use crate::part::{Part, PartKind};

/// Where a signature is noted on a part.
pub(super) const SIGNATURE: &str = "thoughtSignature";
/// Whose signature it is.
pub(super) const PROVIDER: &str = "provider";

/// A conversation for a provider.
pub(super) fn convert(messages: &[Message], name: &Name) -> Vec<ChatMessage> {
    let mut conversation = Conversation { name, wire: name.wire(), calls: 0, unanswered: VecDeque::new(), out: vec![] };
    for message in messages {
        match message.role() {
            Role::System => conversation.system(message),
            Role::User | Role::Tool => conversation.input(message),
            Role::Model => conversation.model(message),
        }
    }
    conversation.out
}

struct Conversation<'a> {
    name: &'a Name,
    wire: Wire,
    /// Calls so far that came without an id.
    calls: usize,
    /// The names and ids of calls that came without an id and wait for an answer.
    unanswered: VecDeque<(String, String)>,
    out: Vec<ChatMessage>,
}

impl Conversation<'_> {
    fn push(&mut self, role: ChatRole, content: Vec<ContentPart>) {
        if !content.is_empty() {
            self.out.push(ChatMessage::new(role, MessageContent::from_parts(content)));
        }
    }

    fn system(&mut self, message: &Message) {
        let texts = message.parts().iter().filter_map(text_of).map(ContentPart::from_text).collect();
        self.push(ChatRole::System, texts);
    }

    /// What a person said, and what tools answered: providers want the answers apart and first.
    fn input(&mut self, message: &Message) {
        let mut said = Vec::new();
        let mut answers = Vec::new();
        for part in message.parts() {
            match part.kind() {
                PartKind::ToolResponse => answers.extend(self.answer(&part)),
                PartKind::Media => said.extend(media::content(&part, self.wire)),
                _ => said.extend(text_of(&part).map(ContentPart::from_text)),
            }
        }
        if self.wire == Wire::Ollama {
            // Its adapter keeps only the last answer of a message.
            for answer in answers {
                self.push(ChatRole::Tool, vec![answer]);
            }
        } else {
            self.push(ChatRole::Tool, answers);
        }
        self.push(ChatRole::User, said);
    }

    fn answer(&mut self, part: &Part) -> Option<ContentPart> {
        let response = part.as_tool_response()?;
        let id = response.reference.clone().unwrap_or_else(|| self.call_id(&response.name));
        let output = response.output.unwrap_or_else(Json::null);
        let content = output.to::<String>().unwrap_or_else(|_| output.as_str().to_owned());
        Some(ContentPart::ToolResponse(ToolResponse::new(id, content).with_fn_name(response.name)))
    }

    /// The id that was made up for the oldest unanswered call of a tool.
    fn call_id(&mut self, tool: &str) -> String {
        let found = self.unanswered.iter().position(|(name, _)| name == tool);
        found.and_then(|index| self.unanswered.remove(index)).map_or_else(|| tool.to_owned(), |(_, id)| id)
    }

    fn model(&mut self, message: &Message) {
        let parts = message.parts();
        let mut content = self.reasoning(&parts);
        for part in &parts {
            match part.kind() {
                PartKind::ToolRequest => content.extend(self.call(part)),
                PartKind::Reasoning | PartKind::Custom => {}
                _ => content.extend(text_of(part).map(ContentPart::from_text)),
            }
        }
        self.push(ChatRole::Assistant, content);
    }

    fn call(&mut self, part: &Part) -> Option<ContentPart> {
        let request = part.as_tool_request()?;
        let call_id = request.reference.clone().unwrap_or_else(|| {
            self.calls += 1;
            let id = format!("call_{}", self.calls);
            self.unanswered.push_back((request.name.clone(), id.clone()));
            id
        });
        let fn_arguments = arguments(request.input.as_ref());
        let thought_signatures =
            (self.wire == Wire::Gemini).then(|| self.signature(part)).flatten().map(|own| vec![own]);
        Some(ContentPart::ToolCall(ToolCall { call_id, fn_name: request.name, fn_arguments, thought_signatures }))
    }

    /// Reasoning goes back only where the provider asks for it: signed, or in the middle of a round of tools.
    fn reasoning(&self, parts: &[Part]) -> Vec<ContentPart> {
        use genai::adapter::AdapterKind as Kind;
        match self.name.kind {
            _ if self.wire == Wire::Anthropic => self.signed(parts),
            Kind::DeepSeek | Kind::Kimi | Kind::Moonshot | Kind::Mistral => {
                let asks = parts.iter().any(|part| part.kind() == PartKind::ToolRequest);
                let text: String = parts.iter().filter_map(Part::as_reasoning).collect();
                if asks && !text.is_empty() { vec![ContentPart::ReasoningContent(text)] } else { vec![] }
            }
            _ => vec![],
        }
    }

    /// A block of reasoning may have come in many pieces; its signature came with the last one.
    fn signed(&self, parts: &[Part]) -> Vec<ContentPart> {
        let mut content = Vec::new();
        let mut text = String::new();
        for part in parts {
            if let Some(piece) = part.as_reasoning() {
                text.push_str(&piece);
                if let Some(signature) = self.signature(part) {
                    content.push(ContentPart::ReasoningContent(std::mem::take(&mut text)));
                    content.push(ContentPart::ThoughtSignature(signature));
                }
            } else if let Some(data) = redacted(part) {
                content.push(ContentPart::from_custom(json!({"type": "redacted_thinking", "data": data}), None));
            } else {
                // Reasoning without a signature came from somebody else, and is nobody's business here.
                text.clear();
            }
        }
        content
    }

    /// A part's signature, if it is this provider's.
    fn signature(&self, part: &Part) -> Option<String> {
        let signature = part.metadata(SIGNATURE)?.to::<String>().ok()?;
        let whose = part.metadata(PROVIDER).and_then(|whose| whose.to::<String>().ok());
        whose.is_none_or(|whose| whose == self.name.provider()).then_some(signature)
    }
}

/// A part of reasoning that only its provider can read.
pub(super) fn redacted_part(data: &str) -> Option<Part> {
    Part::from_json(Json::from_value(&json!({"custom": {"redactedThinking": data}})).ok()?).ok()
}

fn redacted(part: &Part) -> Option<String> {
    let value = part.json().to::<Value>().ok()?;
    value.get("custom")?.get("redactedThinking")?.as_str().map(Into::into)
}

/// Providers take only objects for arguments; a model that wrote something else sees it wrapped.
fn arguments(input: Option<&Json>) -> Value {
    match input.and_then(|input| input.to::<Value>().ok()) {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::Object(members)) => Value::Object(members),
        Some(other) => json!({"input": other}),
    }
}

/// A part as text, if it says anything.
fn text_of(part: &Part) -> Option<String> {
    let value = || part.json().to::<Value>().ok();
    match part.kind() {
        PartKind::Text => part.as_text(),
        PartKind::Data => value().and_then(|value| value.get("data").map(Value::to_string)),
        PartKind::Resource => value().and_then(|value| value["resource"]["uri"].as_str().map(Into::into)),
        _ => None,
    }
    .filter(|text| !text.is_empty())
}
