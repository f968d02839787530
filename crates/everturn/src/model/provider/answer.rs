//! What a provider says, put together into chunks.

use std::collections::{HashMap, VecDeque};

use genai::chat::{ChatStreamEvent, StopReason, StreamEnd, ToolCall};
use serde_json::{Map, Value};

use super::messages::{PROVIDER, SIGNATURE, redacted_part};
use super::name::{Name, Wire};
use super::watch::Seen;
use crate::json::Json;
use crate::model::ModelChunk;
use crate::part::Part;
use crate::snapshot::FinishReason;
use crate::{Result, Usage};

/// An answer under way.
#[derive(Default)]
pub(super) struct Answer {
    /// Chunks to hand on.
    pub(super) ready: VecDeque<ModelChunk>,
    /// Whether it is whole.
    pub(super) done: bool,
    text_bytes: usize,
    call_bytes: HashMap<String, usize>,
    signature: String,
    signed_block: u64,
}

impl Answer {
    /// Bytes said so far.
    pub(super) fn bytes(&self) -> usize {
        self.text_bytes + self.call_bytes.values().sum::<usize>()
    }

    /// Takes an event in. An end that the provider did not say is no end: the stream goes on to its real one.
    pub(super) fn take(&mut self, event: ChatStreamEvent, seen: &mut Seen, name: &Name) -> Result<()> {
        if !matches!(event, ChatStreamEvent::ThoughtSignatureChunk(_)) || seen.blocks != self.signed_block {
            self.flush_signature(name)?;
        }
        for block in seen.redacted.drain(..) {
            self.push(block["data"].as_str().and_then(redacted_part));
        }
        match event {
            ChatStreamEvent::Chunk(chunk) => {
                self.text_bytes += chunk.content.len();
                self.push((!chunk.content.is_empty()).then(|| Part::text(chunk.content)));
            }
            ChatStreamEvent::ReasoningChunk(chunk) => {
                self.text_bytes += chunk.content.len();
                self.push((!chunk.content.is_empty()).then(|| Part::reasoning(chunk.content)));
            }
            // Gemini's signatures are on the tool requests they belong to.
            ChatStreamEvent::ThoughtSignatureChunk(chunk) if name.wire() == Wire::Anthropic => {
                self.signature.push_str(&chunk.content);
                self.signed_block = seen.blocks;
            }
            ChatStreamEvent::ToolCallChunk(chunk) => {
                let bytes = chunk.tool_call.fn_arguments.as_str().map_or(0, str::len);
                self.call_bytes.insert(chunk.tool_call.call_id, bytes);
            }
            ChatStreamEvent::End(end) if is_said(&end, name.wire()) => self.end(end, name)?,
            _ => {}
        }
        Ok(())
    }

    /// The provider will not answer this.
    pub(super) fn refuse(&mut self) {
        self.ready.push_back(ModelChunk::new(Vec::new()).finished(FinishReason::Blocked, Usage::default()));
        self.done = true;
    }

    fn push(&mut self, part: Option<Part>) {
        self.ready.extend(part.map(|part| ModelChunk::new(vec![part])));
    }

    /// The reasoning is handed on already, so its signature follows on a piece of its own.
    fn flush_signature(&mut self, name: &Name) -> Result<()> {
        if !self.signature.is_empty() {
            let signature = std::mem::take(&mut self.signature);
            self.push(Some(sign(&Part::reasoning(""), &signature, name)?));
        }
        Ok(())
    }

    fn end(&mut self, mut end: StreamEnd, name: &Name) -> Result<()> {
        let reason = finish_reason(end.captured_stop_reason.take());
        let usage = end.captured_usage.take().map(usage).unwrap_or_default();
        for (call, reference) in numbered(end.captured_into_tool_calls().unwrap_or_default()) {
            self.push(Some(tool_request(&call, &reference, name)?));
        }
        self.ready.push_back(ModelChunk::new(Vec::new()).finished(reason, usage));
        self.done = true;
        Ok(())
    }
}

/// Whether the provider itself said that it is done. genai makes up an end for some whose connection just closes.
fn is_said(end: &StreamEnd, wire: Wire) -> bool {
    match wire {
        Wire::Gemini => end.captured_stop_reason.is_some(),
        // It counts tokens only in its last line.
        Wire::Ollama => end.captured_stop_reason.is_some() || end.captured_usage.is_some(),
        _ => true,
    }
}

/// Calls with references that tell them apart.
///
/// Servers that count calls from one leave a gap that genai fills with a copy of the first piece. Gemini's calls without
/// ids are numbered anew in every frame.
fn numbered(calls: Vec<ToolCall>) -> Vec<(ToolCall, String)> {
    let mut numbered: Vec<(ToolCall, String)> = Vec::with_capacity(calls.len());
    for (index, call) in calls.iter().enumerate() {
        let made_up = call.call_id.is_empty() || call.call_id.starts_with("call#");
        let copied = !made_up && calls[index + 1..].iter().any(|later| later.call_id == call.call_id);
        if copied {
            continue;
        }
        let reference = match made_up {
            true => format!("call#{}#{}", call.fn_name, numbered.len()),
            false => call.call_id.clone(),
        };
        numbered.push((call.clone(), reference));
    }
    numbered
}

fn tool_request(call: &ToolCall, reference: &str, name: &Name) -> Result<Part> {
    let input = match &call.fn_arguments {
        Value::Null => Value::Object(Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        other => other.clone(),
    };
    let part = Part::tool_request(&call.fn_name, Some(reference), &Json::from_value(&input)?);
    let signature = call.thought_signatures.as_ref().and_then(|all| all.first());
    match signature.filter(|_| name.wire() == Wire::Gemini) {
        Some(signature) => sign(&part, signature, name),
        None => Ok(part),
    }
}

fn sign(part: &Part, signature: &str, name: &Name) -> Result<Part> {
    let signed = part.with_metadata(SIGNATURE, &Json::from_value(signature)?);
    Ok(signed.with_metadata(PROVIDER, &Json::from_value(name.provider())?))
}

fn finish_reason(reason: Option<StopReason>) -> FinishReason {
    match reason {
        None => FinishReason::Unknown,
        Some(StopReason::Completed(_) | StopReason::ToolCall(_) | StopReason::StopSequence(_)) => FinishReason::Stop,
        Some(StopReason::MaxTokens(_)) => FinishReason::Length,
        Some(StopReason::ContentFilter(_)) => FinishReason::Blocked,
        Some(StopReason::Other(_)) => FinishReason::Other,
    }
}

fn usage(usage: genai::chat::Usage) -> Usage {
    let count = |count: Option<i32>| count.map_or(0, |count| u64::try_from(count).unwrap_or(0));
    let mut out = Usage::tokens(count(usage.prompt_tokens), count(usage.completion_tokens));
    if let Some(total) = usage.total_tokens {
        out.total_tokens = count(Some(total));
    }
    out.cached_content_tokens = count(usage.prompt_tokens_details.and_then(|details| details.cached_tokens));
    out.thoughts_tokens = count(usage.completion_tokens_details.and_then(|details| details.reasoning_tokens));
    out
}
