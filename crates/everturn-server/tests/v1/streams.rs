//! Turns that are followed, lost and followed again.

use std::io::{Read as _, Write as _};

use serde_json::Value;

use crate::common::{Server, sqlite_in};
use crate::{Event, ask, events, get, post, stream, stream_request};

const TURNS: &str = "/v1/agents/echo/turns";

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(|event| event.id.as_deref()).collect()
}

/// Reads a stream until its text has what is looked for, and hangs up.
fn read_until(server: &Server, request: &[u8], enough: impl Fn(&str) -> bool) -> Vec<Event> {
    let mut socket = server.stream();
    socket.write_all(request).unwrap();
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = socket.read(&mut piece).unwrap();
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if enough(body) {
            return events(body);
        }
        assert!(read > 0, "the stream ended early: {text}");
    }
}

#[test]
fn a_stream_begins_has_positions_and_ends_with_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let told = stream(&server, "POST", TURNS, "", r#"{"session":"s","input":{"text":"hé\nyou"}}"#);
    let names: Vec<_> = told.iter().map(|event| event.name.as_str()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("begun", "output"), "{names:?}");
    assert!(names[1..names.len() - 1].iter().all(|name| *name == "chunk"));
    let text = |events: &[Event]| -> String {
        let texts = events.iter().filter_map(|event| event.data["modelChunk"]["content"][0]["text"].as_str());
        texts.collect()
    };
    assert_eq!(text(&told), "echo: hé\nyou");
    let end = &told[told.len() - 2].data["turnEnd"];
    assert_eq!(end["snapshotId"], told[0].data["snapshotId"]);
    assert_eq!(told[told.len() - 1].data["snapshotId"], told[0].data["snapshotId"]);

    // What is kept is what was sent, from the beginning and from every place in it.
    let id = told[0].data["snapshotId"].as_str().unwrap();
    let chunks = &told[1..told.len() - 1];
    let path = format!("/v1/agents/echo/snapshots/{id}/stream");
    assert_eq!(stream(&server, "GET", &path, "", ""), chunks);
    let by_turn = format!("{TURNS}/{}/stream", told[0].data["turn"].as_str().unwrap());
    assert_eq!(stream(&server, "GET", &by_turn, "", ""), chunks);
    for (seen, event) in chunks.iter().enumerate() {
        let Some(id) = &event.id else { continue };
        let rest = stream(&server, "GET", &path, &format!("Last-Event-ID: {id}\r\n"), "");
        assert_eq!(rest, chunks[seen + 1..], "after {id}");
    }
}

#[test]
fn a_stream_that_broke_off_goes_on_without_gap_or_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let request = stream_request(&server, "POST", TURNS, "", r#"{"session":"s","input":{"text":"slow 1500"}}"#);
    let seen = read_until(&server, &request, |body| events(body).iter().any(|event| event.id.is_some()));
    let id = seen[0].data["snapshotId"].as_str().unwrap();
    let last = ids(&seen).last().unwrap().to_string();
    let path = format!("/v1/agents/echo/snapshots/{id}/stream");
    let rest = stream(&server, "GET", &path, &format!("Last-Event-ID: {last}\r\n"), "");
    assert_eq!(rest.last().unwrap().data["turnEnd"]["finishReason"], "stop", "it was not aborted: {rest:?}");
    let whole = stream(&server, "GET", &path, "", "");
    let both: Vec<_> = ids(&seen).into_iter().chain(ids(&rest)).collect();
    assert_eq!(both, ids(&whole));
    assert!(rest.iter().any(|event| event.data["modelChunk"]["content"][0]["text"] == "slow done"));
}

#[test]
fn a_turn_in_the_background_is_followed_across_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let out = post(&server, TURNS, r#"{"session":"s","input":{"text":"slow 1000","detach":true}}"#).ok();
    assert_eq!(out["finishReason"], "detached");
    let id = out["snapshotId"].as_str().unwrap();
    let path = format!("/v1/agents/echo/snapshots/{id}/stream");
    let request = stream_request(&server, "GET", &path, "", "");
    let seen = read_until(&server, &request, |body| events(body).iter().any(|event| event.id.is_some()));
    let last = ids(&seen).last().unwrap().to_string();
    drop(server);

    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let rest = stream(&server, "GET", &path, &format!("Last-Event-ID: {last}\r\n"), "");
    let restarted = rest.iter().position(|event| event.data["restarted"] == 2);
    assert!(restarted.is_some(), "the reader is told that the turn is tried anew: {rest:?}");
    assert!(ids(&rest).iter().all(|id| id.starts_with("2.")), "{rest:?}");
    assert_eq!(rest.last().unwrap().data["turnEnd"]["finishReason"], "stop");
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").ok()["turns"], 1);
}

/// What everybody is told of an attached turn whose server was killed, by a server that lives.
fn is_over(server: &Server, turn: &str, id: &str, seen: &[Event]) {
    let of_snapshot = format!("/v1/agents/echo/snapshots/{id}");
    let last = ids(seen).last().unwrap().to_string();
    for path in [format!("{of_snapshot}/stream"), format!("{TURNS}/{turn}/stream")] {
        let rest = stream(server, "GET", &path, &format!("Last-Event-ID: {last}\r\n"), "");
        assert!(rest.iter().all(|event| event.data["restarted"].is_null()), "nobody tries it anew: {rest:?}");
        let end = &rest.last().expect("an end").data["turnEnd"];
        assert_eq!((&end["finishReason"], &end["snapshotId"]), (&"failed".into(), &id.into()), "{rest:?}");
    }
    let row = get(server, &of_snapshot).ok();
    assert_eq!((&row["status"], &row["error"]["status"]), (&"failed".into(), &"UNAVAILABLE".into()), "{row}");
    let waited = get(server, &format!("{of_snapshot}/wait?seconds=20"));
    assert_eq!((waited.status, &waited.json["status"]), (200, &"failed".into()), "{}", waited.json);
    assert_eq!(post(server, &format!("{of_snapshot}/abort"), "").ok()["before"], "failed");
    let tree = get(server, "/v1/agents/echo/sessions/s/tree").ok();
    let node = tree["items"].as_array().unwrap().iter().find(|node| node["turn"] == turn).expect("a node");
    assert_eq!((&node["status"], &node["finishReason"]), (&"failed".into(), &"failed".into()), "{node}");
    assert_eq!(get(server, "/v1/agents/echo/sessions/s").ok()["status"], "idle");
}

#[test]
fn an_attached_turn_of_a_killed_server_is_over_for_everybody() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = sqlite_in(dir.path());
    let lives = Server::start(other.path(), &store);
    let killed = Server::start(dir.path(), &store);
    let request = stream_request(&killed, "POST", TURNS, "", r#"{"session":"s","input":{"text":"slow 500000"}}"#);
    let seen = read_until(&killed, &request, |body| events(body).iter().any(|event| event.id.is_some()));
    let (turn, id) = (seen[0].data["turn"].as_str().unwrap(), seen[0].data["snapshotId"].as_str().unwrap());
    // What was shown is kept for the other server to read.
    let path = format!("{TURNS}/{turn}/stream");
    read_until(&lives, &stream_request(&lives, "GET", &path, "", ""), |body| !events(body).is_empty());
    drop(killed);
    is_over(&lives, turn, id, &seen);
    let back = Server::start(dir.path(), &store);
    is_over(&back, turn, id, &seen);
    crate::turn(&back, "s", "next");
    is_over(&lives, turn, id, &seen);
    drop((lives, back));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = everturn::store::SqliteStore::open(dir.path().join("store.db")).unwrap();
    let left = runtime.block_on(everturn::store::Store::running(&store, None)).unwrap();
    assert!(left.is_empty(), "nothing is left of it: {left:?}");
}

#[test]
fn a_stream_asked_for_again_by_its_key_is_the_same_turn() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let (key, body) = ("Idempotency-Key: k\r\n", r#"{"session":"s","input":{"text":"slow 1200"}}"#);
    let request = stream_request(&server, "POST", TURNS, key, body);
    let seen = read_until(&server, &request, |body| events(body).iter().any(|event| event.id.is_some()));
    let running = stream(&server, "POST", TURNS, key, body);
    assert_eq!(running[0].data["turn"], seen[0].data["turn"]);
    assert_eq!(ids(&running)[..ids(&seen).len()], ids(&seen), "from its beginning");
    let output = running.last().unwrap();
    assert_eq!((output.name.as_str(), &output.data["finishReason"]), ("output", &Value::from("stop")));
    let ended = stream(&server, "POST", TURNS, key, body);
    assert_eq!(ended.len(), 1, "nothing runs: {ended:?}");
    assert_eq!(ended[0].data["snapshotId"], output.data["snapshotId"]);
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").ok()["turns"], 1);
}

#[test]
fn places_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let out = crate::turn(&server, "s", "one");
    let path = format!("/v1/agents/echo/snapshots/{}/stream", out["snapshotId"].as_str().unwrap());
    for forged in ["1.999", "9.0", "x", "1", "-1.0", "1.0 or so", "18446744073709551615.18446744073709551615"] {
        ask(&server, "GET", &path, &format!("Last-Event-ID: {forged}\r\n"), "").refused(400, "invalid");
    }
    ask(&server, "GET", &path, "Last-Event-ID: 1.0\r\nLast-Event-ID: 1.1\r\n", "").refused(400, "invalid");
}

#[test]
fn streams_of_callers_who_keep_the_state_have_no_positions() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let told = stream(&server, "POST", "/v1/agents/echoClient/turns", "", r#"{"input":{"text":"hi"}}"#);
    assert!(ids(&told).is_empty());
    let output = told.last().unwrap();
    assert_eq!((output.name.as_str(), &output.data["state"]["custom"]["last"]), ("output", &Value::from("hi")));
}

#[test]
fn what_a_transform_hides_no_stream_shows() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let told = stream(&server, "POST", "/v1/agents/redact/turns?state=true", "", r#"{"input":{"text":"hi"}}"#);
    let id = told[0].data["snapshotId"].as_str().unwrap();
    let again = stream(&server, "GET", &format!("/v1/agents/redact/snapshots/{id}/stream"), "", "");
    let all = format!("{told:?}{again:?}");
    assert!(!all.contains("s3cr3t") && !all.contains("INTERNAL"), "{all}");
}
