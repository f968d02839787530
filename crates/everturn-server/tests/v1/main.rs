//! `/v1` as its clients have it: plain HTTP against the built binary.

mod artifacts;
mod branches;
#[path = "../common/mod.rs"]
mod common;
mod compactions;
mod conformance;
mod docs;
mod follow;
mod inputs;
mod openapi;
mod sessions;
mod snapshots;
mod streams;
mod transfer;
mod tree;
mod turns;

use common::Server;
use serde_json::Value;

/// An answer in JSON.
struct Said {
    status: u16,
    head: String,
    json: Value,
}

impl Said {
    /// The value of a header, by its name in lower case.
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.json);
        self.json
    }

    /// A problem with this status and code, as all problems are.
    #[track_caller]
    fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{}", self.json);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.json["status"], status);
        assert_eq!(self.json["type"], format!("urn:everturn:problem:{code}"));
        assert!(self.json["title"].is_string());
        assert!(self.json["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
}

/// Asks, with headers of one's own and a JSON body if there is one. What is answered must be as it is described.
#[track_caller]
fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Said {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let answer = server.request(method, path, &format!("{kind}{headers}"), body);
    let json = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
    let said = Said { status: answer.status, head: answer.head, json };
    conformance::check(server, method, path, &said);
    said
}

#[track_caller]
fn get(server: &Server, path: &str) -> Said {
    ask(server, "GET", path, "", "")
}

#[track_caller]
fn post(server: &Server, path: &str, body: &str) -> Said {
    ask(server, "POST", path, "", body)
}

/// A turn of the echo agent in a session.
fn turn(server: &Server, session: &str, text: &str) -> Value {
    let body = serde_json::json!({ "session": session, "input": { "text": text } });
    post(server, "/v1/agents/echo/turns", &body.to_string()).ok()
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: Value,
}

/// The events of a stream's text; one that is cut off is none.
fn events(text: &str) -> Vec<Event> {
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let frames = whole.split("\n\n").filter(|frame| !frame.starts_with(':') && !frame.is_empty());
    let read = |frame: &str| {
        let field =
            |name: &str| frame.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned);
        let data = serde_json::from_str(&field("data").expect("data")).expect("JSON");
        Event { id: field("id"), name: field("event").expect("a name"), data }
    };
    frames.map(read).collect()
}

/// A request for a stream. In HTTP/1.0, so that it comes without the frames of a chunked body.
fn stream_request(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let (host, length) = (server.url.trim_start_matches("http://"), body.len());
    format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// A whole stream.
fn stream(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Vec<Event> {
    let answer = server.raw(&stream_request(server, method, path, headers, body));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{}", answer.head);
    events(&answer.body)
}
