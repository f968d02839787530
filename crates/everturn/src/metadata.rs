//! The `metadata` member that messages and parts may carry.

use crate::json::{Json, Node};
use crate::{Error, Result};

/// What is noted under a key.
pub(crate) fn get(json: &Json, key: &str) -> Option<Json> {
    // Most carry none, and the text is scanned faster than read.
    if !json.as_str().contains("\"metadata\"") {
        return None;
    }
    let node = json.node().ok()?;
    Some(Json::trusted(node.get("metadata")?.get(key)?.print()))
}

/// The same with something noted under a key, or nothing any more. An empty `metadata` is left out.
pub(crate) fn set(json: &Json, key: &str, value: Option<&Json>) -> Result<Json> {
    let Node::Object(mut members) = json.node()? else {
        return Err(Error::invalid("only objects carry metadata"));
    };
    let found = members.iter().position(|(name, _)| &**name == "metadata");
    let mut metadata = match found.map(|index| members.remove(index)) {
        Some((_, Node::Object(metadata))) => metadata,
        _ => Vec::new(),
    };
    metadata.retain(|(name, _)| &**name != key);
    if let Some(value) = value {
        metadata.push((key.into(), value.node()?));
    }
    if !metadata.is_empty() {
        let index = found.unwrap_or(members.len());
        members.insert(index, ("metadata".into(), Node::Object(metadata)));
    }
    Ok(Json::trusted(Node::Object(members).print()))
}
