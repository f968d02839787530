//! Bad input over plain sockets, on every route of every wire: a precise 4xx, never a 5xx, a panic or a hung connection.
//!
//! The routes, what they take and which headers they read come from `/v1/openapi.json`, so that a new route is tried by
//! being described; Genkit's wire has no description, and its few routes are listed here.

mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod frames;
mod inputs;
mod mutated;
mod sockets;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{Server, sqlite_in};
use serde_json::Value;

const JSON: &str = "application/json";

/// Longer than any of these needs, and short enough that a hang is told.
const PATIENCE: Duration = Duration::from_secs(20);

/// One route with things in its path that exist.
struct Route {
    method: String,
    /// As it is described, for messages.
    name: String,
    path: String,
    /// The path's variables, as they are filled in.
    ids: Vec<String>,
    /// What it reads beside the path, as OpenAPI describes it.
    query: Vec<Value>,
    headers: Vec<String>,
    /// What a body is sent as.
    kind: String,
    /// A body that would do.
    body: Option<Value>,
}

/// An answer, or none where the connection was closed without one.
struct Answer {
    status: Option<u16>,
    text: String,
}

impl Answer {
    #[track_caller]
    fn refused(&self, about: &str) {
        assert!(self.status.is_some_and(|status| (400..500).contains(&status)), "{about}: {}", shown(&self.text));
        // What a route refuses it refuses in JSON, saying why; what is no HTTP is refused before.
        let (head, body) = self.text.split_once("\r\n\r\n").expect("a whole head");
        if head.to_ascii_lowercase().contains("content-type: ") {
            let why: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{about}: {}", shown(&self.text)));
            let said = why["detail"].as_str().or(why["message"].as_str());
            assert!(said.is_some_and(|said| !said.is_empty() && said.len() < 4_000), "{about}: {why}");
        } else {
            assert_eq!(body, "", "{about}");
        }
    }

    #[track_caller]
    fn no_failure(&self, about: &str) {
        assert!(self.status.is_some_and(|status| status < 500), "{about}: {}", shown(&self.text));
    }
}

fn shown(text: &str) -> String {
    text.chars().take(600).collect()
}

/// A server with a session in it, and its routes.
struct Target {
    server: Server,
    host: String,
    routes: Vec<Route>,
    _dir: tempfile::TempDir,
}

impl Target {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &sqlite_in(dir.path()));
        let out = server.turn("echo", "artifact a.txt words", r#"{"sessionId":"s"}"#);
        server.turn("echo", "artifact a.txt words", r#"{"sessionId":"spare"}"#);
        let snapshot = out["result"]["snapshotId"].as_str().unwrap().to_owned();
        let read = |path: &str| -> Value { serde_json::from_str(&server.request("GET", path, "", "").body).unwrap() };
        let records = read("/v1/agents/echo/sessions/s/records");
        let turn = records["items"].as_array().unwrap().iter().find_map(|record| record["turn"].as_str());
        let known = [
            ("agent", "echo"),
            ("session", "s"),
            ("snapshot", &snapshot),
            ("turn", turn.unwrap()),
            ("branch", "main"),
            ("artifact", "a.txt"),
        ];
        let mut routes = described(&read("/v1/openapi.json"), &known);
        routes.extend(genkit(&snapshot));
        let host = server.url.trim_start_matches("http://").to_owned();
        Self { server, host, routes, _dir: dir }
    }

    /// A request to a route, with a body if one is given.
    fn request(&self, route: &Route, path: &str, headers: &[u8], body: Option<&[u8]>) -> Vec<u8> {
        let mut request = format!("{} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", route.method, self.host);
        if let Some(body) = body {
            request += &format!("Content-Type: {}\r\nContent-Length: {}\r\n", route.kind, body.len());
        }
        [request.as_bytes(), headers, b"\r\n", body.unwrap_or_default()].concat()
    }

    fn ask(&self, route: &Route, path: &str, headers: &[u8], body: Option<&[u8]>) -> Answer {
        self.send(&self.request(route, path, headers, body))
    }

    /// Sends bytes and reads until the server closes, which it must.
    fn send(&self, request: &[u8]) -> Answer {
        let mut stream = self.server.stream();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may answer and close before all of it is sent.
        let _ = stream.write_all(request);
        self.rest(&mut stream, request)
    }

    fn rest(&self, stream: &mut std::net::TcpStream, request: &[u8]) -> Answer {
        let (mut bytes, since) = (Vec::new(), Instant::now());
        match stream.read_to_end(&mut bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no answer in {:?} to {}", since.elapsed(), shown(&String::from_utf8_lossy(request)))
            }
            _ => {}
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer { status, text }
    }

    /// Nothing broke, and nothing was harmed.
    #[track_caller]
    fn unharmed(&self) {
        let logs = self.server.logs();
        assert!(!logs.contains("panicked"), "{logs}");
        let session = self.server.request("GET", "/v1/agents/echo/sessions/s", "", "");
        let session: Value = serde_json::from_str(&session.body).unwrap();
        assert_eq!((&session["id"], &session["turns"]), (&"s".into(), &1.into()), "{session}");
        assert_eq!(session["branches"].as_array().map(Vec::len), Some(1), "{session}");
        assert_eq!(self.server.turn("echo", "still here", "{}")["result"]["finishReason"], "stop");
    }
}

/// Every route of the description.
fn described(api: &Value, known: &[(&str, &str)]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (template, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let (mut path, mut ids) = (format!("/v1{template}"), Vec::new());
            for (name, value) in known {
                if path.contains(&format!("{{{name}}}")) {
                    path = path.replace(&format!("{{{name}}}"), value);
                    ids.push((*value).to_owned());
                }
            }
            assert!(!path.contains('{'), "{path}: say here what to fill in");
            let params: Vec<Value> = operation["parameters"].as_array().cloned().unwrap_or_default();
            let of = |place: &str| params.iter().filter(|param| param["in"] == place).cloned().collect::<Vec<_>>();
            let headers = of("header").iter().filter_map(|param| param["name"].as_str().map(str::to_owned)).collect();
            let body = operation.get("requestBody").map(|_| inputs::sample(template, method));
            let kinds = operation["requestBody"]["content"].as_object();
            let kind = kinds.and_then(|kinds| kinds.keys().next()).map_or(JSON, String::as_str).to_owned();
            let method = method.to_uppercase();
            let name = format!("{method} {template}");
            routes.push(Route { method, name, path, ids, query: of("query"), headers, kind, body });
        }
    }
    assert!(routes.len() > 20);
    routes
}

/// Genkit's routes.
fn genkit(snapshot: &str) -> Vec<Route> {
    let turn = serde_json::json!({ "data": { "message": { "role": "user", "content": [{ "text": "x" }] } } });
    let look_up = serde_json::json!({ "data": { "snapshotId": snapshot } });
    let route = |path: &str, body: &Value| Route {
        method: "POST".to_owned(),
        name: format!("POST {path}"),
        path: path.to_owned(),
        ids: vec!["echo".to_owned()],
        query: Vec::new(),
        headers: Vec::new(),
        kind: JSON.to_owned(),
        body: Some(body.clone()),
    };
    vec![
        route("/genkit/echo", &turn),
        route("/genkit/echo/getSnapshot", &look_up),
        route("/genkit/echo/waitForSnapshot", &look_up),
        route("/genkit/echo/abort", &look_up),
    ]
}

/// Half a connection is closed: what was asked is still answered, what was not asked to its end is not waited for.
#[test]
fn sockets_that_are_half_closed_are_answered_or_closed() {
    let target = Target::start();
    for route in target.routes.iter().filter(|route| route.method == "GET" || route.body.is_some()) {
        let body = route.body.as_ref().map(ToString::to_string);
        let request = target.request(route, &route.path, b"", body.as_deref().map(str::as_bytes));
        for end in [request.len() - 1, request.len() / 2, 1] {
            let mut stream = target.server.stream();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&request[..end]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let answer = target.rest(&mut stream, &request[..end]);
            assert!(answer.status.is_none_or(|status| status < 500), "{}: {}", route.name, answer.text);
        }
    }
    target.unharmed();
}
