//! A session followed as it is written to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::json;

use crate::common::{Server, sqlite_in};
use crate::{Event, ask, events, get, post, stream_request, turn};

const S: &str = "/v1/agents/echo/sessions/s";

/// A session that is followed.
struct Followed(BufReader<TcpStream>);

impl Followed {
    fn start(server: &Server, query: &str, headers: &str) -> Self {
        let mut socket = server.stream();
        socket.write_all(&stream_request(server, "GET", &format!("{S}/follow{query}"), headers, "")).unwrap();
        let mut followed = Self(BufReader::new(socket));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(followed.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        followed
    }

    /// The next event; nothing at the end.
    fn next(&mut self) -> Option<Event> {
        let mut text = String::new();
        loop {
            if self.0.read_line(&mut text).unwrap() == 0 {
                return None;
            }
            if text.ends_with("\n\n") {
                if let Some(event) = events(&text).pop() {
                    return Some(event);
                }
                text.clear();
            }
        }
    }

    /// The next event of a name.
    fn next_of(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().expect("the stream goes on");
            if event.name == name {
                return event;
            }
        }
    }
}

fn kinds(followed: &mut Followed, count: usize) -> Vec<String> {
    (0..count).map(|_| followed.next_of("record").data["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_written_is_told_by_whichever_process() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let elsewhere = tempfile::tempdir().unwrap();
    let second = Server::start(elsewhere.path(), &sqlite_in(dir.path()));
    turn(&server, "s", "one");
    let mut followed = Followed::start(&server, "", "");
    assert_eq!(followed.next().unwrap().name, "session");
    turn(&second, "s", "two");
    assert_eq!(kinds(&mut followed, 2), ["begin", "end"]);
    assert_eq!(followed.next_of("session").data["turns"], 2);
    ask(&second, "PATCH", S, "", r#"{"title":"Tea"}"#).ok();
    assert_eq!(kinds(&mut followed, 1), ["admin"]);
    assert_eq!(followed.next_of("session").data["title"], "Tea");
    assert_eq!(ask(&second, "DELETE", S, "", "").status, 204);
    assert_eq!(followed.next_of("deleted").data, json!({}));
    assert_eq!(followed.next(), None, "nothing follows");
}

#[test]
fn a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    turn(&server, "s", "one");
    let tree = get(&server, &format!("{S}/tree")).ok();
    let position = tree["position"].as_str().unwrap();
    turn(&server, "s", "two");
    let mut followed = Followed::start(&server, &format!("?after={position}"), "");
    let seen = followed.next_of("record");
    assert_eq!((seen.data["kind"].as_str(), seen.data["body"].is_object()), (Some("begin"), true));
    drop(followed);
    turn(&server, "s", "three");
    // What the browser saw last goes before where it began.
    let header = format!("Last-Event-ID: {}\r\n", seen.id.unwrap());
    let mut followed = Followed::start(&server, &format!("?after={position}"), &header);
    assert_eq!(followed.next().unwrap().name, "session");
    assert_eq!(kinds(&mut followed, 3), ["end", "begin", "end"]);
}

#[test]
fn a_position_of_a_session_that_is_gone_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    turn(&server, "s", "one");
    let tree = get(&server, &format!("{S}/tree")).ok();
    let position = tree["position"].as_str().unwrap();
    ask(&server, "DELETE", S, "", "");
    turn(&server, "s", "another");
    let mut followed = Followed::start(&server, &format!("?after={position}"), "");
    assert_eq!(followed.next().unwrap().name, "deleted");
    assert_eq!(followed.next(), None);
    let epoch = get(&server, &format!("{S}/tree")).ok();
    let (epoch, _) = epoch["position"].as_str().unwrap().split_once('.').unwrap();
    for bad in ["x", "1", "1.x", "-1.0", &format!("{epoch}.999")] {
        get(&server, &format!("{S}/follow?after={bad}")).refused(400, "invalid");
        ask(&server, "GET", &format!("{S}/follow"), &format!("Last-Event-ID: {bad}\r\n"), "").refused(400, "invalid");
    }
}

#[test]
fn a_server_that_stops_lets_go_of_its_followers() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), "memory:");
    turn(&server, "s", "one");
    let mut followed = Followed::start(&server, "", "");
    assert_eq!(followed.next().unwrap().name, "session");
    let kill = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(followed.next(), None, "it ends, and not with an error");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_transform_keeps_bodies_and_texts_from_those_who_may_not_see_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    // Without credentials everybody is an admin; what others see is proved beside the handlers.
    post(&server, "/v1/agents/redact/turns", r#"{"session":"s","input":{"text":"hi"}}"#).ok();
    let tree = get(&server, "/v1/agents/redact/sessions/s/tree").ok();
    assert_eq!(tree["items"][1]["input"], "hi");
}
