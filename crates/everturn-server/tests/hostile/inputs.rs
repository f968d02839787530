//! What is wrong inside a request: ids, queries, headers, bodies.

use serde_json::{Value, json};

use super::{Route, Target};

/// A body that would do for a route.
pub(crate) fn sample(path: &str, method: &str) -> Value {
    match (method, path) {
        (_, path) if path.ends_with("/turns") => json!({ "input": { "text": "x" }, "session": "other" }),
        ("put", _) => json!({ "to": {} }),
        ("post", path) if path.ends_with("/branches") => json!({ "name": "b" }),
        ("patch", path) if path.ends_with("/{snapshot}") => json!({ "label": "x" }),
        _ => json!({}),
    }
}

fn routes(target: &Target) -> impl Iterator<Item = (&Route, Option<String>)> {
    target.routes.iter().map(|route| (route, route.body.as_ref().map(ToString::to_string)))
}

#[test]
fn ids_that_cannot_be_are_refused_on_every_route() {
    let target = Target::start();
    let long = "x".repeat(10_000);
    for (route, body) in routes(&target) {
        let body = body.as_deref().map(str::as_bytes);
        for id in &route.ids {
            for bad in
                ["%FF%FE", "%00", "a%00b", "%0d%0aX-Injected:%201", "%20", "..%2F..%2Fetc%2Fpasswd", "..%5C..", &long]
            {
                let path = route.path.replacen(&format!("/{id}"), &format!("/{bad}"), 1);
                let answer = target.ask(route, &path, b"", body);
                let about = format!("{} with {}", route.name, &bad[..bad.len().min(40)]);
                assert!(!answer.text.to_ascii_lowercase().contains("\r\nx-injected"), "{about}");
                // A session by that name may be made, where it is a name.
                let name = bad.contains("..") && id != "echo";
                if name { answer.no_failure(&about) } else { answer.refused(&about) }
            }
            let latin = target.request(route, "PATH", b"", body);
            let latin = replaced(&latin, b"PATH", &[route.path.as_bytes(), b"\xE9\xFF"].concat());
            target.send(&latin).refused(&format!("{} with raw bytes", route.name));
        }
    }
    target.unharmed();
}

fn replaced(bytes: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let at = bytes.windows(what.len()).position(|window| window == what).unwrap();
    [&bytes[..at], with, &bytes[at + what.len()..]].concat()
}

#[test]
fn queries_that_cannot_be_are_refused_on_every_route_that_reads_one() {
    let target = Target::start();
    for (route, body) in routes(&target).filter(|(route, _)| !route.query.is_empty()) {
        let body = body.as_deref().map(str::as_bytes);
        let ask = |query: &str| {
            let required = route.query.iter().filter(|param| param["required"] == true);
            let given: String = required
                .filter_map(|param| param["name"].as_str())
                .filter(|name| !query.starts_with(&format!("{name}=")))
                .map(|name| format!("&{name}={}", route.ids.last().unwrap()))
                .collect();
            target.ask(route, &format!("{}?{query}{given}", route.path), b"", body)
        };
        for query in ["surprise=1", "%FF=1", "=", "a", "%00=%00"] {
            ask(query).refused(&format!("{}?{query}", route.name));
        }
        for param in &route.query {
            let name = param["name"].as_str().unwrap();
            let bad: &[&str] = match kind(&param["schema"]) {
                "integer" => &["", "-1", "1e3", "1.5", "NaN", "99999999999999999999999", "%00", "0x10", "x"],
                "boolean" => &["", "2", "yes", "%00", "TRUE"],
                _ if name == "cursor" => &["", "x", "%00", "%FF", "0", "-1", "AAAA.BBBB", "%2E%2E%2F"],
                _ if name == "snapshot" || name == "to" => &["", "x", "%00", "%FF", "00000000-0000"],
                _ => &["%00", "%FF"],
            };
            for bad in bad {
                let (answer, about) = (ask(&format!("{name}={bad}")), format!("{}?{name}={bad}", route.name));
                // A label that nothing can have is one that nothing has.
                if name == "label" && *bad == "%00" { answer.no_failure(&about) } else { answer.refused(&about) }
            }
            ask(&format!("{name}=1&{name}=1")).refused(&format!("{}: {name} twice", route.name));
        }
    }
    target.unharmed();
}

/// The type of a parameter, whether or not it may be left out.
fn kind(schema: &Value) -> &str {
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    match kinds.iter().find_map(|kind| kind.as_str().filter(|kind| *kind != "null")) {
        Some("integer") => "integer",
        Some("boolean") => "boolean",
        _ => "string",
    }
}

#[test]
fn cursors_that_were_changed_are_refused_or_harmless() {
    let target = Target::start();
    for n in 0..3 {
        target.server.turn("echo", &format!("more {n}"), r#"{"sessionId":"longer"}"#);
    }
    for listing in ["sessions", "sessions/longer/events", "sessions/longer/records", "sessions/longer/snapshots"] {
        let path = format!("/v1/agents/echo/{listing}?limit=1");
        let page = target.server.request("GET", &path, "", "");
        let page: Value = serde_json::from_str(&page.body).unwrap();
        let cursor = page["next"].as_str().unwrap_or_else(|| panic!("{listing} has one page: {page}"));
        for at in 0..cursor.len() {
            for other in ["", "0", "z", "99999999999999999999", "-", "%00"] {
                let forged = format!("{}{other}{}", &cursor[..at], &cursor[at + 1..]);
                let answer = target.server.request("GET", &format!("{path}&cursor={forged}"), "", "");
                assert!(answer.status == 200 || answer.status == 400, "{listing} {forged}: {}", answer.body);
            }
        }
        // One listing's is none of another's.
        for other in ["sessions", "sessions/longer/events", "sessions/longer/records"].iter().filter(|o| **o != listing)
        {
            let answer = target.server.request("GET", &format!("/v1/agents/echo/{other}?cursor={cursor}"), "", "");
            assert!(answer.status == 200 || answer.status == 400, "{other} with one of {listing}: {}", answer.body);
        }
    }
    target.unharmed();
}

#[test]
fn headers_that_cannot_be_are_refused_on_every_route_that_reads_them() {
    let target = Target::start();
    let long = "9".repeat(400);
    for (route, body) in routes(&target) {
        for header in &route.headers {
            let bad: &[&[u8]] = match &*header.to_ascii_lowercase() {
                "if-match" => {
                    &[b"\xFF", b"x", b"*", b"W/\"1\"", b"\"", b"\"1\", \"2\"", b"\"99999999999999999999999\"", b""]
                }
                "last-event-id" => {
                    &[b"\xFF", b"x", b"-1", b"1.2.3.4", b"99999999999999999999.1", b"0.-1", long.as_bytes()]
                }
                "idempotency-key" => &[b"\xFF", b" ", b"\xC3\xA9", long.as_bytes()],
                _ => &[b"\xFF"],
            };
            for bad in bad {
                let line = [header.as_bytes(), b": ", bad, b"\r\n"].concat();
                let answer = target.ask(route, &route.path, &line, body.as_deref().map(str::as_bytes));
                answer.refused(&format!("{} with {}", route.name, String::from_utf8_lossy(&line)));
            }
            let twice = format!("{header}: \"1\"\r\n{header}: \"1\"\r\n");
            let answer = target.ask(route, &route.path, twice.as_bytes(), body.as_deref().map(str::as_bytes));
            answer.refused(&format!("{} with {header} twice", route.name));
        }
    }
    target.unharmed();
}

/// What a body may not be, whatever the route.
fn no_bodies() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "7",
        "\"x\"",
        "{} {}",
        "{\"a\":1,}",
        "{'a':1}",
        "{a:1}",
        "{\"a\":NaN}",
        "\u{FEFF}{}",
        "{\"surprise\":1}",
        "{\"\u{0}\":1}",
        "// {}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":01}",
        "{\"a\":\"\t\"}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    bodies.extend([b"{\"a\":\"\xE9\"}".to_vec(), b"\xFF\xFE{\0}\0".to_vec(), b"\0".to_vec()]);
    for deep in ["[", "{\"a\":"] {
        bodies.push(deep.repeat(100_000).into_bytes());
        bodies.push(format!("{{\"a\":{}", deep.repeat(100_000)).into_bytes());
    }
    bodies.push(format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes());
    bodies
}

#[test]
fn bodies_that_are_no_requests_are_refused_on_every_route_that_takes_one() {
    let target = Target::start();
    for (route, body) in routes(&target).filter(|(route, _)| route.body.is_some()) {
        let genkit = route.path.starts_with("/genkit");
        for bad in no_bodies() {
            let about = format!("{} with {}", route.name, String::from_utf8_lossy(&bad[..bad.len().min(60)]));
            // Members nobody knows are no error on Genkit's wire; that nothing is asked is.
            let answer = target.ask(route, &route.path, b"", Some(&bad));
            if genkit && bad.starts_with(b"{\"a") { answer.no_failure(&about) } else { answer.refused(&about) }
        }
        let body = body.unwrap();
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "\u{e9}"]
        {
            let (length, host) = (body.len(), &target.host);
            let request = format!(
                "{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
                 Content-Length: {length}\r\n\r\n{body}",
                route.method, route.path
            );
            let answer = target.send(request.as_bytes());
            answer.refused(&format!("{} as {kind:?}", route.name));
            assert_eq!(answer.status, Some(415), "{} as {kind:?}", route.name);
        }
    }
    target.unharmed();
}

#[test]
fn members_of_another_type_are_refused_or_harmless_on_every_route_that_takes_a_body() {
    let target = Target::start();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let odd = [
        "null",
        "true",
        "7",
        "-1",
        "1e999999",
        "99999999999999999999999999",
        "\"\"",
        "\"x\"",
        "\"\\u0000\"",
        "[]",
        "{}",
        "[null]",
        "{\"\":null}",
        "{\"__proto__\":{}}",
        "\"..%2F\"",
        &deep,
    ];
    for (route, body) in routes(&target).filter(|(route, _)| route.body.is_some()) {
        let mut places = MEMBERS.to_vec();
        let sample = body.unwrap();
        let known: Value = serde_json::from_str(&sample).unwrap();
        places.extend(known.as_object().unwrap().keys().map(String::as_str));
        // These delete or move what others look at; the wrong types of their members are tried all the same.
        for place in places {
            for value in odd {
                let mut with = known.clone();
                with.as_object_mut().unwrap().remove(place);
                let rest = with.to_string();
                let separator = if rest == "{}" { "" } else { "," };
                let body = format!("{}{separator}\"{place}\":{value}}}", &rest[..rest.len() - 1]);
                let path = route.path.replace("/sessions/s", "/sessions/spare");
                let answer = target.ask(route, &path, b"", Some(body.as_bytes()));
                answer.no_failure(&format!("{} with {}", route.name, &body[..body.len().min(200)]));
            }
        }
    }
    target.unharmed();
}

/// Members that bodies have somewhere.
const MEMBERS: &[&str] = &[
    "input",
    "session",
    "snapshot",
    "branch",
    "initial",
    "state",
    "signature",
    "id",
    "title",
    "labels",
    "metadata",
    "addLabels",
    "removeLabels",
    "setMetadata",
    "removeMetadata",
    "name",
    "at",
    "to",
    "force",
    "label",
    "data",
    "init",
];
