//! More than a server takes on at once.

use std::io::Read as _;

use crate::common::{Answer, Server};
use crate::{JSON, becomes, everturn, json, metric, serve, slow_turn, start_turn, until, v1_turn};

fn slow_genkit(server: &Server) -> std::net::TcpStream {
    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"slow 600000"}]}}}"#;
    start_turn(server, "/genkit/echo", "", body)
}

#[test]
fn one_turn_too_many_is_told_to_come_again_and_may_when_another_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--max-turns", "2"]);
    let running = (slow_turn(&server, ""), slow_genkit(&server));
    becomes(&server, "everturn_turns_running", 2.0);

    let refused = v1_turn(&server, "", "hi");
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let problem = json(&refused);
    assert_eq!((problem["code"].as_str(), problem["status"].as_u64()), (Some("unavailable"), Some(503)));

    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"hi"}]}}}"#;
    let refused = server.request("POST", "/genkit/echo", JSON, body);
    assert_eq!((refused.status, json(&refused)["status"].as_str()), (503, Some("UNAVAILABLE")), "{}", refused.body);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(server.request("GET", "/v1/agents", "", "").status, 200, "what is no turn is answered");
    assert_eq!(metric(&server, "everturn_refusals_total{limit=\"turns\"}"), Some(2.0));

    drop(running);
    until("room", || match v1_turn(&server, "", "hi") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn turns_in_the_background_count_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--max-turns", "1"]);
    let body = r#"{"input":{"text":"slow 600000","detach":true}}"#;
    let detached = server.request("POST", "/v1/agents/echo/turns", JSON, body);
    assert_eq!(detached.status, 200, "{}", detached.body);
    assert_eq!(v1_turn(&server, "", "hi").status, 503);
    let snapshot = json(&detached)["snapshotId"].as_str().expect("a pending snapshot").to_owned();
    let aborted = server.request("POST", &format!("/v1/agents/echo/snapshots/{snapshot}/abort"), JSON, "{}");
    assert_eq!(aborted.status, 200, "{}", aborted.body);
    until("room", || match v1_turn(&server, "", "hi") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
}

/// Waits until a key may open a stream.
fn becomes_free(server: &Server, headers: &str, path: &str) {
    until("room for a stream", || match server.request("GET", path, headers, "") {
        answer if answer.status == 404 => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn a_key_that_takes_too_much_is_refused_and_the_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::common::sqlite_in(dir.path());
    let key = |user: &str| {
        let made = everturn(dir.path(), &["keys", "--store", &store, "create", "--user", user]);
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (ann, bob) = (key("ann"), key("bob"));
    let bearer = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let server = serve(dir.path(), &store, &["--max-turns-per-key", "1", "--max-streams-per-key", "1"]);
    let streams = format!("{}Accept: text/event-stream\r\n", bearer(&ann));
    let mut running = slow_turn(&server, &streams);
    let mut begun = String::new();
    while !begun.contains("event: chunk") {
        let mut part = [0; 1024];
        let read = running.read(&mut part).unwrap();
        assert!(read > 0, "{begun}");
        begun.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    let refused = v1_turn(&server, &bearer(&ann), "hi");
    assert_eq!((refused.status, json(&refused)["code"].as_str()), (429, Some("too_many_requests")), "{}", refused.body);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let snapshot = "/v1/agents/echo/snapshots/01a1e2e4-4bb5-75c4-9ad9-08b69f3d5317/stream";
    let refused = server.request("GET", snapshot, &bearer(&ann), "");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("5")), "{}", refused.body);
    assert_eq!(v1_turn(&server, &bearer(&bob), "hi").status, 200);
    assert_eq!(server.request("GET", snapshot, &bearer(&bob), "").status, 404);
    drop(running);
    becomes_free(&server, &bearer(&ann), snapshot);
    assert_eq!(v1_turn(&server, &bearer(&ann), "hi").status, 429, "the turn goes on without its reader, and counts");
    let (_, id) = begun.split_once("\"snapshotId\":\"").unwrap();
    let abort = format!("/v1/agents/echo/snapshots/{}/abort", &id[..36]);
    assert_eq!(server.request("POST", &abort, &format!("{JSON}{}", bearer(&ann)), "{}").status, 200);
    until("room", || match v1_turn(&server, &bearer(&ann), "hi") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn one_stream_too_many_is_refused_and_closed_ones_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--max-streams", "1"]);
    let accept = "Accept: text/event-stream\r\n";
    let mut stream = slow_turn(&server, accept);
    assert!(stream.read(&mut [0; 256]).unwrap() > 0);
    becomes(&server, "everturn_streams_open", 1.0);
    let refused = v1_turn(&server, accept, "hi");
    assert_eq!((refused.status, json(&refused)["code"].as_str()), (503, Some("unavailable")), "{}", refused.body);
    assert_eq!(v1_turn(&server, "", "hi").status, 200, "what is no stream is answered");
    drop(stream);
    becomes(&server, "everturn_streams_open", 0.0);
    let answer = v1_turn(&server, accept, "hi");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A turn that goes on in the background; its snapshot.
fn detached(server: &Server, headers: &str) -> Answer {
    let body = r#"{"input":{"text":"slow 600000","detach":true}}"#;
    server.request("POST", "/v1/agents/echo/turns", &format!("{JSON}{headers}"), body)
}

#[test]
fn turns_in_the_background_count_for_the_key_that_asked_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::common::sqlite_in(dir.path());
    let bearer = |user: &str| {
        let made = everturn(dir.path(), &["keys", "--store", &store, "create", "--user", user]);
        format!("Authorization: Bearer {}\r\n", String::from_utf8(made.stdout).unwrap().trim())
    };
    let (ann, bob) = (bearer("ann"), bearer("bob"));
    let server = serve(dir.path(), &store, &["--max-turns", "4", "--max-turns-per-key", "2"]);
    let first = detached(&server, &ann);
    assert_eq!(first.status, 200, "{}", first.body);
    // By the other wire, as a stream: the request is over when the turn is detached.
    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"slow 600000"}]},"detach":true}}"#;
    let headers = format!("{JSON}{ann}Accept: text/event-stream\r\n");
    let second = server.request("POST", "/genkit/echo", &headers, body);
    assert!(second.status == 200 && second.body.contains("\"result\""), "{}", second.body);
    for refused in [detached(&server, &ann), v1_turn(&server, &ann, "hi")] {
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.body);
    }
    assert_eq!(v1_turn(&server, &bob, "hi").status, 200, "another key has room of its own");
    let snapshot = json(&first)["snapshotId"].as_str().unwrap().to_owned();
    let abort = format!("/v1/agents/echo/snapshots/{snapshot}/abort");
    assert_eq!(server.request("POST", &abort, &format!("{JSON}{ann}"), "{}").status, 200);
    until("room", || match v1_turn(&server, &ann, "hi") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn health_is_told_at_once_when_all_else_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--max-turns", "1", "--max-streams", "1"]);
    let mut running = slow_turn(&server, "Accept: text/event-stream\r\n");
    assert!(running.read(&mut [0; 256]).unwrap() > 0);
    becomes(&server, "everturn_turns_running", 1.0);
    assert_eq!(v1_turn(&server, "", "hi").status, 503);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.request("GET", path, "", "").status, 200, "{path}");
    }
}
