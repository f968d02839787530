//! The API's reference as a page, made from its description.
//!
//! Nothing on it runs and nothing is loaded; all text is escaped, though it is our own.

use std::fmt::Write as _;

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

/// The style is the page's own and named by its digest, so that no other is applied.
const STYLE: &str = include_str!("reference.css");

/// The page as it is answered.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    page: String,
    policy: HeaderValue,
}

impl Reference {
    /// Of a description.
    pub(super) fn new(api: &Value) -> Self {
        let policy = format!("default-src 'none'; style-src 'sha256-{}'; frame-ancestors 'none'", digest(STYLE));
        let closed = || HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
        Self { page: page(api), policy: HeaderValue::from_str(&policy).unwrap_or_else(|_| closed()) }
    }

    pub(super) fn answer(&self) -> Response {
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, self.policy.clone())];
        (headers, self.page.clone()).into_response()
    }
}

fn digest(text: &str) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// A text of ours, in which backticks mark code.
fn prose(text: &str) -> String {
    let parts = escaped(text);
    let marked = parts.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.to_owned(),
        _ => format!("<code>{part}</code>"),
    });
    marked.collect::<String>().replace("\n\n", "</p><p>")
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn members(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn page(api: &Value) -> String {
    let mut out = String::new();
    let (title, about) = (escaped(text(&api["info"], "title")), prose(text(&api["info"], "description")));
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}: the API</title>\
         <style>{STYLE}</style></head><body><main><h1>{title}: the API</h1><p>{about}</p>\
         <p>The same for machines: <a href=\"/v1/openapi.json\">/v1/openapi.json</a>.</p><nav><ul>"
    );
    for tag in items(api.get("tags")) {
        let name = escaped(text(tag, "name"));
        let _ = write!(out, "<li><a href=\"#{name}\">{name}</a> {}</li>", prose(text(tag, "description")));
    }
    out.push_str("<li><a href=\"#schemas\">schemas</a> What is sent and answered</li></ul></nav>");
    for tag in items(api.get("tags")) {
        let name = text(tag, "name");
        let _ = write!(out, "<section id=\"{0}\"><h2>{0}</h2>", escaped(name));
        for (path, methods) in members(api.get("paths")) {
            for (method, operation) in members(Some(methods)) {
                if items(operation.get("tags")).any(|tag| tag.as_str() == Some(name)) {
                    operate(&mut out, method, path, operation);
                }
            }
        }
        out.push_str("</section>");
    }
    out.push_str("<section id=\"schemas\"><h2>schemas</h2>");
    for (name, schema) in members(api.pointer("/components/schemas")) {
        describe(&mut out, name, schema);
    }
    out.push_str("</section></main></body></html>");
    out
}

fn operate(out: &mut String, method: &str, path: &str, operation: &Value) {
    let (summary, more) = (prose(text(operation, "summary")), prose(text(operation, "description")));
    let (method, path) = (escaped(&method.to_uppercase()), escaped(path));
    let _ = write!(out, "<article><h3><b>{method}</b> <code>/v1{path}</code></h3><p>{summary}</p>");
    if !more.is_empty() {
        let _ = write!(out, "<p>{more}</p>");
    }
    let parameters: Vec<_> = items(operation.get("parameters")).collect();
    if !parameters.is_empty() || operation.get("requestBody").is_some() {
        out.push_str("<table><thead><tr><th>given</th><th>in</th><th>what</th></tr></thead><tbody>");
        for parameter in parameters {
            let must = if parameter["required"] == true { " (needed)" } else { "" };
            let _ = write!(
                out,
                "<tr><td><code>{}</code>{must}</td><td>{}</td><td>{}</td></tr>",
                escaped(text(parameter, "name")),
                escaped(text(parameter, "in")),
                prose(text(parameter, "description"))
            );
        }
        for (kind, content) in members(operation.pointer("/requestBody/content")) {
            let (kind, what) = (escaped(kind), kind_of(&content["schema"]));
            let _ = write!(out, "<tr><td>the body</td><td>{kind}</td><td>{what}</td></tr>");
        }
        out.push_str("</tbody></table>");
    }
    out.push_str("<table><thead><tr><th>answer</th><th>what</th></tr></thead><tbody>");
    for (status, response) in members(operation.get("responses")) {
        let bodies: Vec<_> = members(response.get("content"))
            .map(|(kind, content)| format!("{} ({})", kind_of(&content["schema"]), escaped(kind)))
            .collect();
        let what = if bodies.is_empty() { "nothing".to_owned() } else { bodies.join(", or ") };
        let _ = write!(out, "<tr><td>{}</td><td>{what}</td></tr>", escaped(status));
    }
    out.push_str("</tbody></table></article>");
}

/// What a schema is, in short, with a link to where it is told at length.
fn kind_of(schema: &Value) -> String {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
        let name = escaped(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    let one_of = items(schema.get("oneOf").or_else(|| schema.get("anyOf")));
    let among: Vec<_> = one_of.map(kind_of).collect();
    if !among.is_empty() {
        return among.join(" or ");
    }
    let named: Vec<_> =
        items(schema.get("enum")).map(|value| format!("<code>{}</code>", escaped(&value.to_string()))).collect();
    if !named.is_empty() {
        return named.join(", ");
    }
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "array" => format!("list of {}", kind_of(&schema["items"])),
        Some(Value::String(kind)) => escaped(kind),
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).map(escaped).collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

fn describe(out: &mut String, name: &str, schema: &Value) {
    let _ = write!(
        out,
        "<article id=\"schema-{0}\"><h3>{0}</h3><p>{1}</p>",
        escaped(name),
        prose(text(schema, "description"))
    );
    let needed: Vec<_> = items(schema.get("required")).filter_map(Value::as_str).collect();
    let properties: Vec<_> = members(schema.get("properties")).collect();
    if properties.is_empty() {
        let _ = write!(out, "<p>{}</p>", kind_of(schema));
    } else {
        out.push_str("<table><thead><tr><th>member</th><th>is</th><th>what</th></tr></thead><tbody>");
        for (member, property) in properties {
            let must = if needed.contains(&member.as_str()) { "" } else { " (may be left out)" };
            let _ = write!(
                out,
                "<tr><td><code>{}</code></td><td>{}{must}</td><td>{}</td></tr>",
                escaped(member),
                kind_of(property),
                prose(text(property, "description"))
            );
        }
        out.push_str("</tbody></table>");
    }
    out.push_str("</article>");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_a_description_holds_stays_text() {
        let hostile = "<script>alert('x')</script>\" onload=\"x";
        let api = json!({
            "info": { "title": hostile, "description": hostile },
            "tags": [{ "name": hostile, "description": hostile }],
            "paths": { hostile: { "get": {
                "tags": [hostile], "summary": hostile, "description": hostile,
                "parameters": [{ "name": hostile, "in": hostile, "description": hostile }],
                "requestBody": { "content": { hostile: { "schema": { "$ref": format!("#/{hostile}") } } } },
                "responses": { hostile: { "content": { hostile: { "schema": { "enum": [hostile] } } } } },
            } } },
            "components": { "schemas": { hostile: { "properties": { hostile: { "type": hostile } } } } },
        });
        let page = page(&api);
        assert!(!page.contains("<script") && !page.contains("\" onload"), "{page}");
    }

    #[test]
    fn every_route_and_every_link_is_on_the_page() {
        let (_, api) = super::super::described().split_for_parts();
        let api = super::super::openapi::complete(&api);
        let page = page(&api);
        for (path, methods) in members(api.get("paths")) {
            for (method, _) in members(Some(methods)) {
                let line = format!("<b>{}</b> <code>/v1{}</code>", method.to_uppercase(), escaped(path));
                assert_eq!(page.matches(&line).count(), 1, "{line}");
            }
        }
        for link in page.split("href=\"#").skip(1) {
            let id = link.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
        }
    }
}
