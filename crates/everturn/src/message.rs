//! Messages, with Genkit's JSON names.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{Json, Node};
use crate::part::Part;
use crate::{Error, Result, metadata};

const SNAPSHOT_ID: &str = "snapshotId";

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
            text.push_str(part.as_str());
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
        self.0.to::<Peek>().map(|peek| peek.content.into_iter().map(Part::trusted).collect()).unwrap_or_default()
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

    /// What is noted in its `metadata` under a key.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<Json> {
        metadata::get(&self.0, key)
    }

    /// The same with something noted in its `metadata`.
    #[must_use]
    pub fn with_metadata(&self, key: &str, value: &Json) -> Self {
        metadata::set(&self.0, key, Some(value)).map_or_else(|_| self.clone(), Self)
    }

    /// The same with other parts; whatever else it carries stays.
    #[must_use]
    pub fn with_parts(&self, parts: &[Part]) -> Self {
        let Ok(Node::Object(mut members)) = self.0.node() else { return Self::new(self.role(), parts) };
        let nodes = parts.iter().filter_map(|part| part.json().node().ok()).collect();
        match members.iter_mut().find(|(key, _)| &**key == "content") {
            Some((_, content)) => *content = Node::Array(nodes),
            None => members.push(("content".into(), Node::Array(nodes))),
        }
        Self(Json::trusted(Node::Object(members).print()))
    }

    /// The message with the id of the snapshot it is the last message of, for a reader who wants to go back there.
    pub(crate) fn with_snapshot_id(&self, id: crate::SnapshotId) -> Self {
        self.with_metadata(SNAPSHOT_ID, &Json::trusted(format!("\"{id}\"")))
    }

    /// The message without `metadata.snapshotId`, which is added where state leaves Everturn and belongs to no message.
    pub fn without_snapshot_id(self) -> Result<Self> {
        let may_have = memchr::memmem::find(self.as_str().as_bytes(), SNAPSHOT_ID.as_bytes()).is_some();
        if !may_have || self.metadata(SNAPSHOT_ID).is_none() {
            return Ok(self);
        }
        metadata::set(&self.0, SNAPSHOT_ID, None).map(Self)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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
