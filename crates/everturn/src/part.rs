//! The parts of messages, with Genkit's JSON names.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{Json, Node, quote};
use crate::{Error, Result, metadata};

/// What a part of a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartKind {
    /// Text.
    Text,
    /// A picture, a sound, a document, by URL.
    Media,
    /// The model asks for a tool.
    ToolRequest,
    /// A tool's answer.
    ToolResponse,
    /// The model's reasoning.
    Reasoning,
    /// Structured data.
    Data,
    /// Whatever a provider needs.
    Custom,
    /// A resource by its URI.
    Resource,
    /// Something Everturn does not know; it is kept as it is.
    Unknown,
}

/// What a model asks a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolRequest {
    /// The tool.
    pub name: String,
    /// What tells this call from others of the same tool, as the model's provider spells it.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// What the tool is given.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResponse {
    /// The tool.
    pub name: String,
    /// The call it answers.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The answer.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
}

/// One part of a message, kept as its JSON text.
///
/// ```
/// use everturn::{Json, Part, PartKind};
///
/// let part = Part::tool_request("lookup", Some("r1"), &Json::parse(r#"{"q":"tea"}"#)?);
/// assert_eq!(part.kind(), PartKind::ToolRequest);
/// assert_eq!(part.as_str(), r#"{"toolRequest":{"name":"lookup","ref":"r1","input":{"q":"tea"}}}"#);
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Part(Json);

impl Part {
    /// A text.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        let mut out = String::from("{\"text\":");
        quote(text.as_ref(), &mut out);
        out.push('}');
        Self(Json::trusted(out))
    }

    /// Media by URL, with its type when it is known.
    #[must_use]
    pub fn media(url: &str, content_type: Option<&str>) -> Self {
        let mut out = String::from("{\"media\":{\"url\":");
        quote(url, &mut out);
        if let Some(content_type) = content_type {
            out.push_str(",\"contentType\":");
            quote(content_type, &mut out);
        }
        out.push_str("}}");
        Self(Json::trusted(out))
    }

    /// A request for a tool.
    #[must_use]
    pub fn tool_request(name: &str, reference: Option<&str>, input: &Json) -> Self {
        Self::tool("toolRequest", name, reference, "input", input)
    }

    /// A tool's answer.
    #[must_use]
    pub fn tool_response(name: &str, reference: Option<&str>, output: &Json) -> Self {
        Self::tool("toolResponse", name, reference, "output", output)
    }

    fn tool(member: &str, name: &str, reference: Option<&str>, payload: &str, json: &Json) -> Self {
        let mut out = format!("{{\"{member}\":{{\"name\":");
        quote(name, &mut out);
        if let Some(reference) = reference {
            out.push_str(",\"ref\":");
            quote(reference, &mut out);
        }
        out.push_str(&format!(",\"{payload}\":{json}}}}}"));
        Self(Json::trusted(out))
    }

    /// A piece of the model's reasoning.
    #[must_use]
    pub fn reasoning(text: impl AsRef<str>) -> Self {
        let mut out = String::from("{\"reasoning\":");
        quote(text.as_ref(), &mut out);
        out.push('}');
        Self(Json::trusted(out))
    }

    /// Structured data.
    #[must_use]
    pub fn data(data: &Json) -> Self {
        Self(Json::trusted(format!("{{\"data\":{data}}}")))
    }

    pub(crate) fn trusted(json: Json) -> Self {
        Self(json)
    }

    /// Any JSON object as a part.
    pub fn from_json(json: Json) -> Result<Self> {
        match json.node()? {
            Node::Object(_) => Ok(Self(json)),
            _ => Err(Error::invalid("a part is a JSON object")),
        }
    }

    /// What it holds.
    #[must_use]
    pub fn kind(&self) -> PartKind {
        let Ok(node) = self.0.node() else { return PartKind::Unknown };
        [
            ("text", PartKind::Text),
            ("media", PartKind::Media),
            ("toolRequest", PartKind::ToolRequest),
            ("toolResponse", PartKind::ToolResponse),
            ("reasoning", PartKind::Reasoning),
            ("data", PartKind::Data),
            ("custom", PartKind::Custom),
            ("resource", PartKind::Resource),
        ]
        .into_iter()
        .find(|(member, _)| node.get(member).is_some())
        .map_or(PartKind::Unknown, |(_, kind)| kind)
    }

    /// Its text or reasoning, if nothing else goes with it.
    pub(crate) fn plain(&self) -> Option<(PartKind, String)> {
        let Node::Object(members) = self.0.node().ok()? else { return None };
        let [(key, value)] = &members[..] else { return None };
        let kind = match &**key {
            "text" => PartKind::Text,
            "reasoning" => PartKind::Reasoning,
            _ => return None,
        };
        Some((kind, value.as_str()?.to_owned()))
    }

    /// Its text, if it is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<String> {
        self.0.node().ok()?.get("text")?.as_str().map(str::to_owned)
    }

    /// Its reasoning, if it is that.
    #[must_use]
    pub fn as_reasoning(&self) -> Option<String> {
        self.0.node().ok()?.get("reasoning")?.as_str().map(str::to_owned)
    }

    /// What it asks a tool, if it does. One without a name asks no tool.
    #[must_use]
    pub fn as_tool_request(&self) -> Option<ToolRequest> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Peek {
            tool_request: ToolRequest,
        }
        // Most parts are texts, and looking is cheaper than reading.
        self.as_str().contains("toolRequest").then(|| self.0.to::<Peek>().ok().map(|peek| peek.tool_request))?
    }

    /// What a tool answered, if it is that.
    #[must_use]
    pub fn as_tool_response(&self) -> Option<ToolResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Peek {
            tool_response: ToolResponse,
        }
        self.as_str().contains("toolResponse").then(|| self.0.to::<Peek>().ok().map(|peek| peek.tool_response))?
    }

    /// What is noted in its `metadata` under a key.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<Json> {
        metadata::get(&self.0, key)
    }

    /// All that is noted in its `metadata`.
    pub(crate) fn all_metadata(&self) -> Option<std::collections::BTreeMap<String, Json>> {
        #[derive(Deserialize)]
        struct Peek {
            metadata: Option<std::collections::BTreeMap<String, Json>>,
        }
        self.0.to::<Peek>().ok()?.metadata
    }

    /// The same with something noted in its `metadata`.
    #[must_use]
    pub fn with_metadata(&self, key: &str, value: &Json) -> Self {
        metadata::set(&self.0, key, Some(value)).map_or_else(|_| self.clone(), Self)
    }

    /// The same with nothing noted in its `metadata` under a key.
    #[must_use]
    pub fn without_metadata(&self, key: &str) -> Self {
        metadata::set(&self.0, key, None).map_or_else(|_| self.clone(), Self)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The JSON.
    #[must_use]
    pub fn json(&self) -> &Json {
        &self.0
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
