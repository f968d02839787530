//! The description of the API. What comes in is described by the structs that read it; what goes out are the library's
//! types, described in `schemas.json`.

use serde_json::{Map, Value};
use utoipa::OpenApi as _;
use utoipa::openapi::{OpenApi, Server};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Everturn", description = "Durable sessions for AI agents."),
    components(schemas(super::problem::Problem)),
    tags(
        (name = "agents", description = "Who can be talked to"),
        (name = "turns", description = "One input and all it led to"),
        (name = "sessions", description = "Conversations, and what is in them"),
        (name = "snapshots", description = "Points with a name"),
        (name = "branches", description = "Named heads, and forks"),
        (name = "artifacts", description = "What agents made"),
    )
)]
struct Api;

const SCHEMAS: &str = include_str!("schemas.json");

/// What is described without any route.
pub(super) fn base() -> OpenApi {
    let mut api = Api::openapi();
    api.servers = Some(vec![Server::new("/v1")]);
    api
}

/// The whole description, with what the routes refer to.
pub(super) fn complete(api: &OpenApi) -> Value {
    let read = || -> serde_json::Result<Value> {
        let mut api = serde_json::to_value(api)?;
        let schemas: Map<String, Value> = serde_json::from_str(SCHEMAS)?;
        if let Some(Value::Object(described)) = api.pointer_mut("/components/schemas") {
            described.extend(schemas);
        }
        Ok(api)
    };
    read().unwrap_or_else(|error| {
        tracing::error!(%error, "the description of the API cannot be written");
        Value::Null
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    found.push(reference.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let (_, api) = super::super::described().split_for_parts();
        let api = complete(&api);
        let mut found = Vec::new();
        references(&api, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(api.pointer(pointer).is_some(), "{reference}");
        }
    }
}
