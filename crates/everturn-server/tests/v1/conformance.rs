//! Every answer that a test is given is held against what `/v1/openapi.json` says of it.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::Said;
use crate::common::Server;

/// The description, read once from the first server that is asked.
static API: OnceLock<Value> = OnceLock::new();

/// Fails unless the status, the content type and the body are described for this route.
#[track_caller]
pub(crate) fn check(server: &Server, method: &str, path: &str, said: &Said) {
    let api = API.get_or_init(|| {
        let answer = server.request("GET", "/v1/openapi.json", "", "");
        serde_json::from_str(&answer.body).expect("the description is JSON")
    });
    let Some(operation) = operation(api, method, path) else { return };
    let about = || format!("{method} {path} answered {}: {}", said.status, said.json);
    let Some(described) = operation["responses"].get(said.status.to_string()) else {
        panic!("not described: {}", about());
    };
    let kind = said.header("content-type").unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default();
    let Some(content) = described.get("content") else {
        assert!(said.json.is_null() && kind.is_empty(), "described as empty: {}", about());
        return;
    };
    let Some(content) = content.get(essence) else { panic!("not described as {kind:?}: {}", about()) };
    if essence == "application/json" || essence == "application/problem+json" {
        let schema = json!({ "allOf": [content["schema"]], "components": api["components"] });
        let schema = jsonschema::validator_for(&schema).expect("the schema is one");
        let wrong: Vec<_> =
            schema.iter_errors(&said.json).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), about());
    }
}

/// What the description has for a request; none where it has no such route.
fn operation<'a>(api: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let path = path.split('?').next()?.strip_prefix("/v1")?;
    let fits = |route: &str| {
        let (route, path) = (route.split('/'), path.split('/'));
        route.clone().count() == path.clone().count()
            && route.zip(path).all(|(part, given)| part == given || (part.starts_with('{') && !given.is_empty()))
    };
    let (_, item) = api["paths"].as_object()?.iter().find(|(route, _)| fits(route))?;
    item.get(method.to_ascii_lowercase())
}
