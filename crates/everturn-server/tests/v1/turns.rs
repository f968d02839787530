//! Turns that are answered at their end.

use crate::common::{Server, sqlite_in};
use crate::{ask, get, post, turn};

const TURNS: &str = "/v1/agents/echo/turns";

#[test]
fn agents_are_listed_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let listed = get(&server, "/v1/agents").ok();
    let names: Vec<_> =
        listed["agents"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["asker", "echo", "echoClient", "redact"]);
    let redact = get(&server, "/v1/agents/redact");
    assert_eq!(redact.header("cache-control"), Some("no-store"));
    assert_eq!(redact.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(redact.json["transformed"], true);
    assert_eq!(get(&server, "/v1/agents/echoClient").ok()["stateManagement"], "client");
    get(&server, "/v1/agents/nobody").refused(404, "not_found");
}

#[test]
fn a_turn_goes_on_where_the_last_ended_also_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let first = turn(&server, "s", "one");
    assert_eq!(first["message"]["content"][0]["text"], "echo: one");
    assert_eq!((&first["finishReason"], &first["onHead"]), (&"stop".into(), &true.into()));
    assert!(first.get("state").is_none(), "nobody asked for it");
    drop(server);

    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let body = r#"{"session":"s","input":{"messages":[{"role":"user","content":[{"text":"two"}]}]}}"#;
    let second = post(&server, "/v1/agents/echo/turns?state=true", body).ok();
    assert_eq!(second["state"]["messages"].as_array().unwrap().len(), 4);
    let aside = serde_json::json!({ "snapshot": first["snapshotId"], "input": { "text": "other" } });
    let aside = post(&server, "/v1/agents/echo/turns?state=true", &aside.to_string()).ok();
    assert_eq!(aside["state"]["messages"].as_array().unwrap().len(), 4, "from the first turn on");
}

#[test]
fn a_key_that_is_sent_again_runs_nothing_even_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let (key, body) = ("Idempotency-Key: k1\r\n", r#"{"session":"s","input":{"text":"once"}}"#);
    let first = ask(&server, "POST", TURNS, key, body).ok();
    drop(server);
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let again = ask(&server, "POST", TURNS, key, body).ok();
    assert_eq!(again["snapshotId"], first["snapshotId"]);
    assert_eq!(again["message"], first["message"]);
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").ok()["turns"], 1);
    let other = r#"{"session":"s","input":{"text":"another"}}"#;
    ask(&server, "POST", TURNS, key, other).refused(409, "conflict");
    // A retried first request without a session makes one session.
    let (key, body) = ("Idempotency-Key: k2\r\n", r#"{"input":{"text":"fresh"}}"#);
    let first = ask(&server, "POST", TURNS, key, body).ok();
    assert_eq!(ask(&server, "POST", TURNS, key, body).ok()["sessionId"], first["sessionId"]);
}

#[test]
fn a_head_that_moved_refuses_a_conditional_turn() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let body = r#"{"session":"s","input":{"text":"go on"}}"#;
    turn(&server, "s", "one");
    let seen = get(&server, "/v1/agents/echo/sessions/s");
    let stale = format!("If-Match: {}\r\n", seen.header("etag").unwrap());
    let moved = ask(&server, "POST", TURNS, &stale, body);
    let tag = moved.header("etag").unwrap().to_owned();
    let point = moved.ok()["point"].clone();
    assert_eq!(tag, format!("\"{point}\""));
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").header("etag"), Some(&*tag));

    ask(&server, "POST", TURNS, &stale, body).refused(412, "conflict");
    ask(&server, "POST", TURNS, &format!("{stale}Accept: text/event-stream\r\n"), body).refused(412, "conflict");
    ask(&server, "POST", TURNS, &format!("{stale}Idempotency-Key: k\r\n"), body).refused(412, "conflict");
    ask(&server, "POST", TURNS, "If-Match: \"forged\"\r\n", body).refused(412, "conflict");
    ask(&server, "POST", TURNS, "If-Match: \"99999999999999999999\"\r\n", body).refused(412, "conflict");
    let fresh = r#"{"session":"none yet","input":{"text":"go on"}}"#;
    ask(&server, "POST", TURNS, "If-Match: \"1\"\r\n", fresh).refused(412, "conflict");
    for odd in ["*", "W/\"1\"", "1", "\"1\", \"2\"", ""] {
        ask(&server, "POST", TURNS, &format!("If-Match: {odd}\r\n"), body).refused(400, "invalid");
    }
    // With a key that was used before and the right head, the key is what is wrong.
    let head = format!("If-Match: {tag}\r\nIdempotency-Key: k3\r\n");
    let used = ask(&server, "POST", TURNS, &head, body);
    let now = format!("If-Match: {}\r\nIdempotency-Key: k3\r\n", used.header("etag").unwrap());
    ask(&server, "POST", TURNS, &now, r#"{"session":"s","input":{"text":"else"}}"#).refused(409, "conflict");
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").ok()["turns"], 3);
}

#[test]
fn a_turn_that_fails_is_an_output_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let failed = turn(&server, "s", "fail badly");
    assert_eq!((&failed["finishReason"], &failed["error"]["status"]), (&"failed".into(), &"UNAVAILABLE".into()));
}

#[test]
fn callers_who_keep_the_state_get_it_and_bring_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let path = "/v1/agents/echoClient/turns";
    let first = post(&server, path, r#"{"input":{"text":"one"}}"#).ok();
    let body = serde_json::json!({ "state": first["state"], "input": { "text": "two" } });
    let second = post(&server, path, &body.to_string()).ok();
    assert_eq!(second["state"]["messages"].as_array().unwrap().len(), 4);
    post(&server, path, r#"{"session":"s","input":{"text":"x"}}"#).refused(400, "wrong_mode");
    get(&server, "/v1/agents/echoClient/sessions").refused(400, "wrong_mode");
    let body = serde_json::json!({ "state": first["state"], "input": { "text": "two" } });
    post(&server, "/v1/agents/echo/turns", &body.to_string()).refused(400, "wrong_mode");
}
