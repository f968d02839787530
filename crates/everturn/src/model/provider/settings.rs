//! Settings of a request, as genai takes them.

use genai::chat::{CacheControl, ChatOptions, ChatResponseFormat, JsonSpec, ReasoningEffort};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::name::{Name, Wire};
use crate::model::ModelRequest;
use crate::{Error, Result};

/// What a request says elsewhere. A setting of that name would replace it.
const RESERVED: [&str; 16] = [
    "apiKey",
    "api_key",
    "contents",
    "input",
    "instructions",
    "messages",
    "model",
    "n",
    "prompt",
    "stream",
    "stream_options",
    "system",
    "systemInstruction",
    "system_instruction",
    "tools",
    "version",
];

/// Members of Gemini's requests that stand beside its settings and not among them.
const BESIDE: [&str; 4] = ["cachedContent", "labels", "safetySettings", "toolConfig"];

pub(super) fn convert(request: &ModelRequest, name: &Name) -> Result<ChatOptions> {
    let mut rest = members(request, name)?;
    let whole = rest.clone();
    let mut options = ChatOptions {
        temperature: take(&mut rest, "temperature", name)?,
        max_tokens: take(&mut rest, "maxOutputTokens", name)?,
        top_p: take(&mut rest, "topP", name)?,
        stop_sequences: take(&mut rest, "stopSequences", name)?.unwrap_or_default(),
        seed: take(&mut rest, "seed", name)?,
        reasoning_effort: effort(&mut rest, name)?,
        capture_usage: Some(true),
        capture_tool_calls: Some(true),
        ..ChatOptions::default()
    };
    let wire = name.wire();
    let reasons = !matches!(options.reasoning_effort, None | Some(ReasoningEffort::Zero));
    // Gemini's models that do not reason refuse to be asked for it.
    options.capture_reasoning_content = Some(wire != Wire::Gemini || reasons);
    options.extra_body = extra(rest, whole, request, name, reasons)?;
    if options.reasoning_effort.is_none() && wire == Wire::OpenAi {
        options.reasoning_effort = whole_name(name);
    }
    if let Some(schema) = &request.output_schema {
        options.response_format = Some(match wire {
            // Its adapter knows no schemas; the request's instructions carry it.
            Wire::Ollama => ChatResponseFormat::JsonMode,
            _ => JsonSpec::new("answer", schema.to::<Value>()?).into(),
        });
    }
    cache(&mut options, request, name);
    Ok(options)
}

fn members(request: &ModelRequest, name: &Name) -> Result<Map<String, Value>> {
    let Some(config) = &request.config else { return Ok(Map::new()) };
    let members = match config.to::<Value>()? {
        Value::Null => Map::new(),
        Value::Object(members) => members,
        _ => return Err(Error::invalid(format!("{}: the settings must be a JSON object", name.full))),
    };
    match members.keys().find(|key| RESERVED.contains(&key.as_str())) {
        Some(key) => Err(Error::invalid(format!("{}: {key:?} is no setting: take it out of the config", name.full))),
        None => Ok(members),
    }
}

fn take<T: DeserializeOwned>(members: &mut Map<String, Value>, key: &str, name: &Name) -> Result<Option<T>> {
    let Some(value) = members.remove(key).filter(|value| !value.is_null()) else { return Ok(None) };
    serde_json::from_value(value)
        .map(Some)
        .map_err(|error| Error::invalid(format!("{}: the setting {key:?} is wrong", name.full)).with_source(error))
}

fn effort(members: &mut Map<String, Value>, name: &Name) -> Result<Option<ReasoningEffort>> {
    let effort = match members.remove("reasoningEffort") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(word)) => ReasoningEffort::from_keyword(&word),
        Some(other) => other.as_u64().and_then(|tokens| u32::try_from(tokens).ok()).map(ReasoningEffort::Budget),
    };
    effort.map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "{}: the setting \"reasoningEffort\" is one of none, minimal, low, medium, high, xhigh, max, or a number of \
             tokens",
            name.full
        ))
    })
}

/// What the provider knows and Everturn does not, where genai has a place for it.
fn extra(
    mut rest: Map<String, Value>,
    whole: Map<String, Value>,
    request: &ModelRequest,
    name: &Name,
    reasons: bool,
) -> Result<Option<Value>> {
    let wire = name.wire();
    if wire != Wire::Gemini {
        let top_k = rest.remove("topK").filter(|_| wire == Wire::Anthropic);
        rest.extend(top_k.map(|value| ("top_k".to_owned(), value)));
        return Ok((!rest.is_empty()).then_some(Value::Object(rest)));
    }
    let (beside, among): (Map<_, _>, Map<_, _>) = rest.into_iter().partition(|(key, _)| BESIDE.contains(&key.as_str()));
    let mut body = beside;
    if !among.is_empty() {
        if reasons {
            return Err(Error::invalid(format!(
                "{}: with settings like {:?}, say how much to reason with Gemini's own \"thinkingConfig\", not with \
                 \"reasoningEffort\"",
                name.full,
                among.keys().next().map_or("", String::as_str)
            )));
        }
        // genai puts these in place of its own, so they must be whole; Gemini's names are ours.
        let mut settings: Map<_, _> =
            whole.into_iter().filter(|(key, _)| key != "reasoningEffort" && !BESIDE.contains(&key.as_str())).collect();
        if let Some(schema) = &request.output_schema {
            settings.insert("responseMimeType".into(), json!("application/json"));
            settings.insert("responseJsonSchema".into(), schema.to()?);
        }
        body.insert("generationConfig".into(), Value::Object(settings));
    }
    Ok((!body.is_empty()).then_some(Value::Object(body)))
}

/// genai takes a last word like `-max` in a name for a setting and cuts it off, unless there is one already. This one
/// says nothing on this wire.
fn whole_name(name: &Name) -> Option<ReasoningEffort> {
    let cut = ReasoningEffort::from_model_name(&name.model).0.is_some();
    (cut && name.kind != genai::adapter::AdapterKind::DeepSeek).then_some(ReasoningEffort::Budget(0))
}

fn cache(options: &mut ChatOptions, request: &ModelRequest, name: &Name) {
    use genai::adapter::AdapterKind as Kind;
    let Some(key) = &request.cache_key else { return };
    match name.kind {
        Kind::OpenAI | Kind::OpenAIResp => options.prompt_cache_key = Some(key.clone()),
        // It has no key, but keeps what it is told to.
        Kind::Anthropic => options.cache_control = Some(CacheControl::Ephemeral),
        _ => {}
    }
}
