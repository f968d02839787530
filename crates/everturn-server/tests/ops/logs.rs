//! What is logged, and what never is.

use std::io::{Read as _, Write as _};

use serde_json::Value;

use crate::common::{Server, sqlite_in};
use crate::{JSON, everturn, serve, until};

/// A request as it is written, and the head of its answer.
fn head(server: &Server, request: &str) -> String {
    let mut stream = server.stream();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase()
}

/// The line about a request.
fn line(server: &Server, id: &str) -> String {
    until("a line", || {
        let log = server.log("stderr");
        log.lines().find(|line| line.contains(id)).map(str::to_owned).ok_or(log)
    })
}

#[test]
fn each_request_is_one_line_with_its_id_its_route_and_the_name_of_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let made = everturn(dir.path(), &["keys", "--store", &store, "create", "--user", "ann"]);
    let key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let server = serve(dir.path(), &store, &["--log-format", "json"]);
    let answer = head(
        &server,
        &format!(
            "GET /v1/agents/echo/sessions/mine?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             X-Request-Id: my-id.1\r\nAuthorization: Bearer {key}\r\n\r\n"
        ),
    );
    assert!(answer.contains("x-request-id: my-id.1"), "{answer}");
    let line: Value = serde_json::from_str(&line(&server, "my-id.1")).unwrap();
    assert_eq!(line["route"], "/v1/agents/{agent}/sessions/{session}");
    assert_eq!((line["method"].as_str(), line["status"].as_u64()), (Some("GET"), Some(404)));
    assert!(line["ms"].as_f64().unwrap() >= 0.0 && line["timestamp"].is_string());
    let id = key.split('_').nth(1).unwrap();
    assert!(line["key"].as_str().unwrap().contains(id), "{line}");
    assert!(!server.logs().contains(&key));
}

#[test]
fn an_id_is_made_where_none_is_sent_or_one_that_is_not_sane() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    for sent in ["", "X-Request-Id: a b\r\n", "X-Request-Id: x\" forged=\"y\r\n"] {
        let answer =
            head(&server, &format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{sent}\r\n"));
        let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("an id");
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let line = line(&server, id);
        assert!(line.contains("INFO") && line.contains("/healthz") && line.contains("status=200"), "{line}");
    }
}

#[test]
fn a_stream_is_logged_when_it_ends_and_a_client_that_left_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    let stream = crate::slow_turn(&server, "X-Request-Id: left-early\r\n");
    crate::becomes(&server, "everturn_turns_running", 1.0);
    assert!(!server.log("stderr").contains("left-early"));
    drop(stream);
    assert!(line(&server, "left-early").contains("status=499"));
}

#[test]
fn a_secret_is_logged_nowhere_wherever_it_is_sent() {
    const SECRET: &str = "s3cr3t-hunter2";
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), &sqlite_in(dir.path()), &["--log-level", "trace", "--log-format", format]);
        let message = format!(r#"{{"input":{{"text":"{SECRET}"}},"session":"{SECRET}"}}"#);
        let genkit = format!(r#"{{"data":{{"message":{{"role":"user","content":[{{"text":"{SECRET}"}}]}}}}}}"#);
        let headers = format!(
            "{JSON}Authorization: Bearer {SECRET}\r\nCookie: a={SECRET}\r\nX-Api-Key: {SECRET}\r\n\
             Idempotency-Key: {SECRET}\r\nLast-Event-ID: {SECRET}\r\nX-Request-Id: {SECRET}!\r\n"
        );
        let asked: [(&str, &str, &str, &str); 9] = [
            ("POST", "/v1/agents/echo/turns", &headers, &message),
            ("POST", &format!("/v1/agents/echo/turns?state=true&token={SECRET}"), JSON, &message),
            ("POST", "/genkit/echo", JSON, &genkit),
            ("POST", "/genkit/echo", JSON, &format!("{{ {SECRET}")),
            ("POST", &format!("/genkit/{SECRET}"), JSON, &genkit),
            ("GET", &format!("/v1/agents/{SECRET}/sessions"), "", ""),
            ("GET", &format!("/v1/agents/echo/sessions/{SECRET}"), "", ""),
            ("GET", &format!("/{SECRET}?key={SECRET}"), "", ""),
            (SECRET, "/", "", ""),
        ];
        let count = asked.len();
        for (method, path, headers, body) in asked {
            server.request(method, path, headers, body);
        }
        let failing = format!(r#"{{"input":{{"text":"fail {SECRET}"}}}}"#);
        server.request("POST", "/v1/agents/echo/turns", JSON, &failing);
        // The last line is out when a request after it has one, and there is a line for each.
        server.request("GET", "/healthz", "X-Request-Id: the-last\r\n", "");
        line(&server, "the-last");
        let logs = server.logs();
        assert!(logs.lines().filter(|line| line.contains("request_id")).count() > count, "{logs}");
        assert!(!logs.contains(SECRET), "{logs}");
        assert!(!server.request("GET", "/metrics", "", "").body.contains(SECRET));
    }
}

#[test]
fn only_what_is_asked_for_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--log-level", "warn"]);
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);
    let pid = server.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    until("its end", || if server.log("stdout").ends_with("stopped\n") { Ok(()) } else { Err(server.logs()) });
    assert_eq!(server.log("stderr"), "");
}
