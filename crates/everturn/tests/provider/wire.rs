//! The streaming languages of four providers.

use serde_json::{Value, json};

/// Whom the loopback provider stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    OpenAi,
    Anthropic,
    Gemini,
    Ollama,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Tools,
    Length,
    Blocked,
    Odd,
}

/// A tool call: its id, its name and the pieces of its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) arguments: Vec<&'static str>,
    pub(crate) signature: Option<&'static str>,
}

/// What the provider says.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) reasoning: Vec<&'static str>,
    pub(crate) signature: Vec<&'static str>,
    pub(crate) text: Vec<&'static str>,
    pub(crate) calls: Vec<Call>,
    pub(crate) finish: Finish,
}

impl Said {
    pub(crate) fn text(pieces: &[&'static str]) -> Self {
        Self { reasoning: vec![], signature: vec![], text: pieces.to_vec(), calls: vec![], finish: Finish::Stop }
    }

    pub(crate) fn reasoning(mut self, pieces: &[&'static str], signature: &[&'static str]) -> Self {
        self.reasoning = pieces.to_vec();
        self.signature = signature.to_vec();
        self
    }

    pub(crate) fn call(mut self, id: &'static str, name: &'static str, arguments: &[&'static str]) -> Self {
        self.calls.push(Call { id, name, arguments: arguments.to_vec(), signature: None });
        self.finish = Finish::Tools;
        self
    }

    pub(crate) fn signed_call(mut self, id: &'static str, name: &'static str, signature: &'static str) -> Self {
        self.calls.push(Call { id, name, arguments: vec!["{}"], signature: Some(signature) });
        self.finish = Finish::Tools;
        self
    }

    pub(crate) fn finish(mut self, finish: Finish) -> Self {
        self.finish = finish;
        self
    }
}

impl Wire {
    pub(crate) const ALL: [Self; 4] = [Self::OpenAi, Self::Anthropic, Self::Gemini, Self::Ollama];

    pub(crate) fn model(self) -> &'static str {
        match self {
            Self::OpenAi => "openai/gpt-test",
            Self::Anthropic => "anthropic/claude-test",
            Self::Gemini => "gemini/gemini-test",
            Self::Ollama => "ollama/llama-test:8b",
        }
    }

    pub(crate) fn base(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Anthropic => "/v1/",
            Self::Gemini => "/v1beta/",
            Self::Ollama => "/",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::OpenAi => "/v1/chat/completions",
            Self::Anthropic => "/v1/messages",
            Self::Gemini => "/v1beta/models/gemini-test:streamGenerateContent?alt=sse",
            Self::Ollama => "/api/chat",
        }
    }

    /// The frames of an answer, the last one included. Every wire says it used 20 tokens, 8 of them cached, for 5.
    pub(crate) fn encode(self, said: &Said) -> Vec<Vec<u8>> {
        match self {
            Self::OpenAi => openai(said),
            Self::Anthropic => anthropic(said),
            Self::Gemini => gemini(said),
            Self::Ollama => ollama(said),
        }
    }

    /// One more piece of text, as a frame.
    pub(crate) fn text_frame(self, text: &str) -> Vec<u8> {
        match self {
            Self::OpenAi => data(&delta(json!({"content": text}))),
            Self::Anthropic => event(json!({
                "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}
            })),
            Self::Gemini => data(&candidate(json!([{"text": text}]), None)),
            Self::Ollama => line(&json!({"message": {"role": "assistant", "content": text}, "done": false})),
        }
    }

    /// A frame that only keeps the connection alive.
    pub(crate) fn keep_alive(self) -> Vec<u8> {
        match self {
            Self::Anthropic => event(json!({"type": "ping"})),
            Self::OpenAi | Self::Gemini => b": still there\n\n".to_vec(),
            Self::Ollama => line(&json!({"message": {"role": "assistant", "content": ""}, "done": false})),
        }
    }

    /// An error's body.
    pub(crate) fn error(self, status: u16, message: &str) -> Vec<u8> {
        match self {
            Self::OpenAi => json!({"error": {"message": message, "type": "some_error", "code": null}}),
            Self::Anthropic => json!({"type": "error", "error": {"type": "some_error", "message": message}}),
            Self::Gemini => json!([{"error": {"code": status, "message": message, "status": "SOME_ERROR"}}]),
            Self::Ollama => json!({"error": message}),
        }
        .to_string()
        .into_bytes()
    }

    /// An error in the middle of an answer.
    pub(crate) fn error_frame(self, message: &str) -> Vec<u8> {
        match self {
            Self::OpenAi => data(&json!({"error": {"message": message, "type": "server_error"}})),
            Self::Anthropic => {
                event(json!({"type": "error", "error": {"type": "overloaded_error", "message": message}}))
            }
            Self::Gemini => data(&json!({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})),
            Self::Ollama => line(&json!({"error": message})),
        }
    }

    fn reason(self, finish: Finish) -> &'static str {
        match (self, finish) {
            (Self::Gemini, Finish::Stop | Finish::Tools) => "STOP",
            (Self::Gemini, Finish::Length) => "MAX_TOKENS",
            (Self::Gemini, Finish::Blocked) => "SAFETY",
            (Self::Anthropic, Finish::Stop) => "end_turn",
            (Self::Anthropic, Finish::Tools) => "tool_use",
            (Self::Anthropic, Finish::Length) => "max_tokens",
            (Self::Anthropic, Finish::Blocked) => "refusal",
            (Self::OpenAi, Finish::Tools) => "tool_calls",
            (Self::OpenAi | Self::Ollama, Finish::Blocked) => "content_filter",
            (_, Finish::Stop | Finish::Tools) => "stop",
            (_, Finish::Length) => "length",
            (_, Finish::Odd) => "because",
        }
    }
}

fn data(json: &Value) -> Vec<u8> {
    format!("data: {json}\n\n").into_bytes()
}

fn event(json: Value) -> Vec<u8> {
    format!("event: {}\ndata: {json}\n\n", json["type"].as_str().unwrap()).into_bytes()
}

fn line(json: &Value) -> Vec<u8> {
    format!("{json}\n").into_bytes()
}

fn delta(delta: Value) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn openai(said: &Said) -> Vec<Vec<u8>> {
    let mut frames = vec![data(&delta(json!({"role": "assistant", "content": ""})))];
    frames.extend(said.reasoning.iter().map(|piece| data(&delta(json!({"reasoning_content": piece})))));
    frames.extend(said.text.iter().map(|piece| data(&delta(json!({"content": piece})))));
    // All calls are begun before the first is done.
    let longest = said.calls.iter().map(|call| call.arguments.len()).max().unwrap_or(0);
    for piece in 0..=longest {
        for (index, call) in said.calls.iter().enumerate() {
            let mut part = json!({"index": index, "function": {}});
            if piece == 0 {
                part["id"] = json!(call.id);
                part["type"] = json!("function");
                part["function"] = json!({"name": call.name, "arguments": ""});
            } else if let Some(arguments) = call.arguments.get(piece - 1) {
                part["function"]["arguments"] = json!(arguments);
            } else {
                continue;
            }
            frames.push(data(&delta(json!({"tool_calls": [part]}))));
        }
    }
    let reason = Wire::OpenAi.reason(said.finish);
    frames.push(data(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})));
    frames.push(data(&json!({"choices": [], "usage": {
        "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 2},
    }})));
    frames.push(b"data: [DONE]\n\n".to_vec());
    frames
}

fn anthropic(said: &Said) -> Vec<Vec<u8>> {
    let mut frames = vec![event(json!({"type": "message_start", "message": {
        "id": "m", "role": "assistant", "content": [],
        "usage": {"input_tokens": 12, "cache_read_input_tokens": 8, "output_tokens": 1},
    }}))];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        frames.push(event(json!({"type": "content_block_start", "index": index, "content_block": start})));
        for delta in deltas {
            frames.push(event(json!({"type": "content_block_delta", "index": index, "delta": delta})));
        }
        frames.push(event(json!({"type": "content_block_stop", "index": index})));
        index += 1;
    };
    if !said.reasoning.is_empty() {
        let thoughts = said.reasoning.iter().map(|piece| json!({"type": "thinking_delta", "thinking": piece}));
        let signed = said.signature.iter().map(|piece| json!({"type": "signature_delta", "signature": piece}));
        block(json!({"type": "thinking", "thinking": "", "signature": ""}), thoughts.chain(signed).collect());
    }
    if !said.text.is_empty() {
        let texts = said.text.iter().map(|piece| json!({"type": "text_delta", "text": piece})).collect();
        block(json!({"type": "text", "text": ""}), texts);
    }
    for call in &said.calls {
        let pieces = call.arguments.iter().map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        block(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}), pieces.collect());
    }
    let reason = Wire::Anthropic.reason(said.finish);
    frames.push(event(json!({
        "type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5},
    })));
    frames.push(event(json!({"type": "message_stop"})));
    frames
}

fn candidate(parts: Value, reason: Option<&str>) -> Value {
    let mut json = json!({"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}}]});
    if let Some(reason) = reason {
        json["candidates"][0]["finishReason"] = json!(reason);
        json["usageMetadata"] = json!({
            "promptTokenCount": 20, "cachedContentTokenCount": 8, "candidatesTokenCount": 3, "thoughtsTokenCount": 2,
            "totalTokenCount": 25,
        });
    }
    json
}

fn gemini(said: &Said) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    frames.extend(said.reasoning.iter().map(|piece| data(&candidate(json!([{"text": piece, "thought": true}]), None))));
    frames.extend(said.text.iter().map(|piece| data(&candidate(json!([{"text": piece}]), None))));
    let calls: Vec<Value> = said.calls.iter().map(function_call).collect();
    if !calls.is_empty() {
        frames.push(data(&candidate(json!(calls), None)));
    }
    frames.push(data(&candidate(json!([]), Some(Wire::Gemini.reason(said.finish)))));
    frames
}

fn function_call(call: &Call) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments.concat()).unwrap();
    let mut part = json!({"functionCall": {"name": call.name, "args": arguments}});
    if !call.id.is_empty() {
        part["functionCall"]["id"] = json!(call.id);
    }
    if let Some(signature) = call.signature {
        part["thoughtSignature"] = json!(signature);
    }
    part
}

fn ollama(said: &Said) -> Vec<Vec<u8>> {
    let message = |mut message: Value| {
        message["role"] = json!("assistant");
        line(&json!({"model": "llama-test:8b", "message": message, "done": false}))
    };
    let mut frames = Vec::new();
    frames.extend(said.reasoning.iter().map(|piece| message(json!({"content": "", "thinking": piece}))));
    frames.extend(said.text.iter().map(|piece| message(json!({"content": piece}))));
    for call in &said.calls {
        let arguments: Value = serde_json::from_str(&call.arguments.concat()).unwrap();
        let call = json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}});
        frames.push(message(json!({"content": "", "tool_calls": [call]})));
    }
    frames.push(line(&json!({
        "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": Wire::Ollama.reason(said.finish),
        "prompt_eval_count": 20, "prompt_eval_cached_count": 8, "eval_count": 5,
    })));
    frames
}
