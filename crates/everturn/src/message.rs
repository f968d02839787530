//! Messages and their parts, with Genkit's JSON names.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{Json, Node, quote};
use crate::{Error, Result};

/// Who a message is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions to the model.
    System,
    /// A person.
    User,
    /// The model.
    Model,
    /// A tool's answer.
    Tool,
}

impl Role {
    /// The role's name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Model => "model",
            Self::Tool => "tool",
        }
    }

    fn read(name: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Model, Self::Tool].into_iter().find(|role| role.name() == name)
    }
}

/// One message of a conversation: `{role, content: [Part], metadata?}`.
///
/// Kept as the JSON text it came in, so that members Everturn does not know and the spelling of numbers survive.
/// Cheap to clone.
///
/// ```
/// use everturn::{Message, Role};
///
/// let message = Message::parse(r#"{"role":"user","content":[{"text":"hi","x":1.10}]}"#)?;
/// assert_eq!(message.role(), Role::User);
/// assert_eq!(message.text(), "hi");
/// assert!(message.as_str().contains("1.10"));
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Message(Json);

impl Message {
    /// Reads a message from JSON, checking role and content.
    pub fn parse(text: impl AsRef<str>) -> Result<Self> {
        Self::from_json(Json::parse(text)?)
    }

    /// Takes JSON that has a message's shape.
    pub fn from_json(json: Json) -> Result<Self> {
        let node = json.node()?;
        let wrong = |what: &str| Error::invalid(format!("not a message: {what}"));
        if !matches!(node, Node::Object(_)) {
            return Err(wrong("an object with `role` and `content` was expected"));
        }
        let role = node.get("role").and_then(Node::as_str).and_then(Role::read);
        role.ok_or_else(|| wrong("`role` must be system, user, model or tool"))?;
        match node.get("content") {
            Some(Node::Array(parts)) if parts.iter().all(|part| matches!(part, Node::Object(_))) => {}
            _ => return Err(wrong("`content` must be an array of parts, each an object")),
        }
        match node.get("metadata") {
            None | Some(Node::Object(_)) => Ok(Self(json)),
            Some(_) => Err(wrong("`metadata` must be an object")),
        }
    }

    /// A message made of parts.
    #[must_use]
    pub fn new(role: Role, parts: &[Part]) -> Self {
        let mut text = format!("{{\"role\":\"{}\",\"content\":[", role.name());
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            text.push_str(part.0.as_str());
        }
        text.push_str("]}");
        Self(Json::trusted(text))
    }

    /// A message of one text.
    #[must_use]
    pub fn of_text(role: Role, text: impl AsRef<str>) -> Self {
        Self::new(role, &[Part::text(text)])
    }

    /// A user's text.
    #[must_use]
    pub fn user(text: impl AsRef<str>) -> Self {
        Self::of_text(Role::User, text)
    }

    /// A model's text.
    #[must_use]
    pub fn model(text: impl AsRef<str>) -> Self {
        Self::of_text(Role::Model, text)
    }

    pub(crate) fn trusted(json: Json) -> Self {
        Self(json)
    }

    /// Who it is from.
    #[must_use]
    pub fn role(&self) -> Role {
        // Nearly every message begins with its role; the others are looked through.
        if let Some((name, _)) = self.as_str().strip_prefix(r#"{"role":""#).and_then(|rest| rest.split_once('"'))
            && let Some(role) = Role::read(name)
        {
            return role;
        }
        #[derive(Deserialize)]
        struct Peek {
            role: Role,
        }
        self.0.to::<Peek>().map_or(Role::User, |peek| peek.role)
    }

    /// Its parts.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        #[derive(Deserialize)]
        struct Peek {
            content: Vec<Json>,
        }
        self.0.to::<Peek>().map(|peek| peek.content.into_iter().map(Part).collect()).unwrap_or_default()
    }

    /// The texts of its parts, one after the other.
    #[must_use]
    pub fn text(&self) -> String {
        self.parts().iter().filter_map(Part::as_text).collect()
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

    /// The message with the id of the snapshot it is the last message of, for a reader who wants to go back there.
    pub(crate) fn with_snapshot_id(&self, id: crate::SnapshotId) -> Self {
        let Ok(Node::Object(mut members)) = self.0.node() else { return self.clone() };
        let value = || Node::String(id.to_string().into());
        match members.iter_mut().find(|(key, _)| &**key == "metadata") {
            Some((_, Node::Object(metadata))) => {
                metadata.retain(|(key, _)| &**key != "snapshotId");
                metadata.push(("snapshotId".into(), value()));
            }
            _ => members.push(("metadata".into(), Node::Object(vec![("snapshotId".into(), value())]))),
        }
        Self(Json::trusted(Node::Object(members).print()))
    }

    /// The message without `metadata.snapshotId`, which is added where state leaves Everturn and belongs to no message.
    pub fn without_snapshot_id(self) -> Result<Self> {
        if !self.as_str().contains("snapshotId") {
            return Ok(self);
        }
        let mut node = self.0.node()?;
        let Node::Object(members) = &mut node else { return Ok(self) };
        let Some(index) = members.iter().position(|(key, _)| &**key == "metadata") else { return Ok(self) };
        let Node::Object(metadata) = &mut members[index].1 else { return Ok(self) };
        let before = metadata.len();
        metadata.retain(|(key, _)| &**key != "snapshotId");
        if metadata.len() == before {
            return Ok(self);
        }
        if metadata.is_empty() {
            members.remove(index);
        }
        Ok(Self(Json::trusted(node.print())))
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

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

    /// Its text, if it is a text and nothing else goes with it.
    pub(crate) fn plain_text(&self) -> Option<String> {
        match self.0.node().ok()? {
            Node::Object(members) if members.len() == 1 && &*members[0].0 == "text" => {
                members[0].1.as_str().map(str::to_owned)
            }
            _ => None,
        }
    }

    /// Its text, if it is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<String> {
        self.0.node().ok()?.get("text")?.as_str().map(str::to_owned)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_refused() {
        for text in [
            "1",
            "{}",
            r#"{"role":"user"}"#,
            r#"{"role":"robot","content":[]}"#,
            r#"{"role":"user","content":"hi"}"#,
            r#"{"role":"user","content":["hi"]}"#,
            r#"{"role":"user","content":[],"metadata":1}"#,
        ] {
            assert!(Message::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_snapshot_id_is_stripped_and_nothing_else() {
        let strip = |text: &str| Message::parse(text).unwrap().without_snapshot_id().unwrap();
        let plain = r#"{"role":"user","content":[{"text":"snapshotId"}],"n":1.10}"#;
        assert_eq!(strip(plain).as_str(), plain);
        let with = r#"{"role":"user","content":[],"metadata":{"snapshotId":"x","keep":1.10}}"#;
        assert_eq!(strip(with).as_str(), r#"{"role":"user","content":[],"metadata":{"keep":1.10}}"#);
        let only = r#"{"role":"user","content":[],"metadata":{"snapshotId":"x"}}"#;
        assert_eq!(strip(only).as_str(), r#"{"role":"user","content":[]}"#);
    }
}
