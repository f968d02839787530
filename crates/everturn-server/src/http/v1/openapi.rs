//! The description of the API. What comes in is described by the structs that read it; what goes out are the library's
//! types, described in `schemas.json`.

use serde_json::{Map, Value, json};
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
        for (path, item) in members(&mut api["paths"]) {
            for (_, operation) in members(item) {
                common_answers(path, operation);
            }
        }
        Ok(api)
    };
    read().unwrap_or_else(|error| {
        tracing::error!(%error, "the description of the API cannot be written");
        Value::Null
    })
}

fn members(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

/// Adds what every route may answer, so that no route can forget it: who asks is looked at before the route is, ids and
/// bodies are read before it runs, and the store may be out of reach. Problems get their content type, streams what their
/// events are.
fn common_answers(path: &str, operation: &mut Value) {
    let takes = |name: &str| operation.get(name).is_some();
    let mut common = vec!["401", "403", "429", "500", "503"];
    if takes("parameters") || takes("requestBody") {
        common.push("400");
    }
    if path.contains('{') {
        common.push("404");
    }
    if takes("requestBody") {
        common.extend(["408", "413", "415"]);
    }
    let answers = &mut operation["responses"];
    for status in common {
        if answers.get(status).is_none() {
            let schema = json!({ "$ref": "#/components/schemas/Problem" });
            answers[status] = json!({ "description": "", "content": { "application/json": { "schema": schema } } });
        }
    }
    for (status, answer) in members(answers) {
        let problem = answer.pointer("/content/application~1json/schema/$ref");
        if problem.is_some_and(|schema| schema == "#/components/schemas/Problem") {
            let content = answer["content"]["application/json"].take();
            answer["content"] = json!({ "application/problem+json": content });
        }
        if let Some(stream) = answer.pointer_mut("/content/text~1event-stream/schema") {
            *stream = json!({ "$ref": "#/components/schemas/StreamEvent" });
        }
        if answer["description"] == "" {
            answer["description"] = described(status).into();
        }
    }
}

/// What a status means where a route says no more about it.
fn described(status: &str) -> &'static str {
    match status {
        "200" => "As asked.",
        "201" => "It was made.",
        "202" => "Not done yet.",
        "204" => "Done; there is nothing to say.",
        "400" => "Something in the request is not as it should be; `detail` says what.",
        "401" => "Nobody is known by this key, or there was none.",
        "403" => "This caller may not do that.",
        "404" => "It does not exist, or is somebody else's.",
        "408" => "The body did not come in time.",
        "409" => "It conflicts with what is there; `code` says how.",
        "410" => "It is gone.",
        "412" => "The head is not where `If-Match` says.",
        "413" => "The body, or what it adds up to, is larger than the limit.",
        "415" => "The body is not of the content type that is described.",
        "429" => "Too many requests: `Retry-After` says when to come back.",
        "500" => "Something broke; `code` is `unknown_outcome` where what was to be written may be kept or not.",
        "503" => "The store cannot be reached at the moment: `Retry-After` says when to try again.",
        _ => "See `detail`.",
    }
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
