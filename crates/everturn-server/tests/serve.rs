//! `everturn serve` as it is started, asked, stopped and killed.

mod common;

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Server, sqlite_in};

fn everturn(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everturn")).args(args).current_dir(dir).output().expect("the binary runs")
}

/// The command fails with one line that says why.
fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.contains(why), "{said}");
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    assert_eq!(server.request("GET", "/healthz", "", "").body, "ok");
    let first = server.turn("echo", "one", r#"{"sessionId":"s"}"#);
    assert_eq!(first["result"]["message"]["content"][0]["text"], "echo: one");
    drop(server);

    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let id = first["result"]["snapshotId"].as_str().unwrap();
    let look_up = format!(r#"{{"data":{{"snapshotId":"{id}"}}}}"#);
    let found = server.request("POST", "/genkit/echo/getSnapshot", "Content-Type: application/json\r\n", &look_up);
    assert_eq!(found.status, 200, "{}", found.body);
    let second = server.turn("echo", "two", r#"{"sessionId":"s"}"#);
    assert_eq!(second["result"]["sessionId"], "s");
    let look_up = r#"{"data":{"sessionId":"s"}}"#;
    let found = server.request("POST", "/genkit/echo/getSnapshot", "Content-Type: application/json\r\n", look_up);
    let found: serde_json::Value = serde_json::from_str(&found.body).unwrap();
    assert_eq!(found["result"]["state"]["messages"].as_array().unwrap().len(), 4);
}

#[test]
fn a_port_that_is_taken_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let output = everturn(dir.path(), &["serve", "--store", "memory:", "--addr", &addr]);
    refused(&output, "choose another port");
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for addr in ["0.0.0.0:0", "[::]:0", "192.0.2.1:4100"] {
        refused(&everturn(dir.path(), &["serve", "--store", "memory:", "--addr", addr]), "127.0.0.1");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("other.db"), "this is no store of ours, and longer than a header would be").unwrap();
    refused(&everturn(dir.path(), &["serve", "--store", "sqlite:other.db", "--addr", "127.0.0.1:0"]), "other.db");
    let output = everturn(dir.path(), &["serve", "--store", "sqlite:", "--addr", "127.0.0.1:0"]);
    assert!(!output.status.success());
}

#[test]
fn pages_from_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let host = server.url.trim_start_matches("http://").to_owned();
    for headers in [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: {host}\r\nOrigin: http://evil.example\r\n"),
        format!("Host: {host}\r\nOrigin: null\r\n"),
        "Host: 127.0.0.1.evil.example\r\n".to_owned(),
    ] {
        for path in ["/healthz", "/genkit/echo", "/nothing"] {
            let answer = server.request("GET", path, &headers, "");
            assert_eq!(answer.status, 403, "{path} {headers}");
        }
    }
    assert_eq!(server.request("GET", "/healthz", &format!("Origin: http://{host}\r\n"), "").status, 200);
}

#[test]
fn what_is_not_a_request_is_answered_or_closed_and_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let mut stream = server.stream();
    std::io::Write::write_all(&mut stream, b"\x16\x03\x01 not HTTP at all\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let half = server.stream();
    std::io::Write::write_all(&mut &half, b"POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le").unwrap();
    for (method, path, status) in [("GET", "/genkit/echo", 405), ("GET", "/", 404), ("POST", "/genkit/nobody", 404)] {
        let answer = server.request(method, path, "Content-Type: application/json\r\n", "{}");
        assert_eq!(answer.status, status, "{method} {path}");
        let body: serde_json::Value = serde_json::from_str(&answer.body).expect("an error in JSON");
        assert!(body["message"].is_string(), "{body}");
    }
    let answer = server.request("POST", "/genkit/echo", "Content-Type: text/plain\r\n", "{}");
    assert_eq!(answer.status, 415, "{}", answer.body);
    assert_eq!(server.turn("echo", "still here", "{}")["result"]["finishReason"], "stop");
}

#[test]
fn a_request_to_stop_lets_the_running_turn_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let pid = server.child.id().to_string();
    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"slow 1500"}]}}}"#;
    let (mut stream, length) = (server.stream(), body.len());
    let request = format!(
        "POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    // The first frame says that the turn runs.
    let mut first = [0; 512];
    let read = stream.read(&mut first).unwrap();
    assert!(read > 0);
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("slow done"), "{rest}");
    let status = server.child.wait().unwrap();
    assert!(status.success(), "{status}\n{}", server.logs());
}

#[test]
fn two_requests_to_stop_end_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), "memory:");
    let pid = server.child.id().to_string();
    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"slow 600000"}]}}}"#;
    let (mut stream, length) = (server.stream(), body.len());
    let request = format!(
        "POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 512]).unwrap() > 0);
    let since = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < Duration::from_secs(9), "it waits for the turn\n{}", server.logs());
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        std::thread::sleep(Duration::from_millis(50));
    }
}
