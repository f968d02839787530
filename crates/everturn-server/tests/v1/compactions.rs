//! Compactions, and state that sessions share.

use serde_json::{Value, json};

use crate::common::Server;
use crate::{ask, get, post, turn};

const S: &str = "/v1/agents/echo/sessions/s";

#[test]
fn a_compaction_is_made_listed_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let one = turn(&server, "s", "one");
    let two = turn(&server, "s", "two");
    let path = format!("{S}/compactions");
    post(&server, &path, "{}").refused(400, "invalid");
    post(&server, &path, r#"{"summary":"  "}"#).refused(400, "invalid");
    let body = r#"{"summary":"They counted.","keepTurns":1}"#;
    let stale = format!("If-Match: \"{}\"\r\n", one["point"]);
    ask(&server, "POST", &path, &stale, body).refused(412, "conflict");
    let made = ask(&server, "POST", &path, &format!("If-Match: \"{}\"\r\n", two["point"]), body);
    assert_eq!((made.status, made.header("etag")), (201, get(&server, S).header("etag")), "{}", made.json);
    assert_eq!(made.json["replaced"].as_array().map(Vec::len), Some(2));
    assert_eq!(made.json["summary"][0]["content"][0]["text"], "They counted.");
    assert_eq!(post(&server, &path, body).status, 204, "there is nothing new to sum up");
    assert_eq!(get(&server, &path).ok()["items"], json!([made.json]));
    assert_eq!(get(&server, &format!("{S}/state")).ok()["messages"].as_array().map(Vec::len), Some(4));
    let to = json!({ "to": { "snapshot": two["snapshotId"] } }).to_string();
    ask(&server, "PUT", &format!("{S}/branches/main"), "", &to).ok();
    assert_eq!(get(&server, &path).ok()["items"], json!([]));
    get(&server, &format!("{path}?branch=none")).refused(404, "not_found");
    post(&server, &path, r#"{"summary":"x","branch":"none"}"#).refused(404, "not_found");
}

#[test]
fn shared_state_is_changed_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let path = "/v1/agents/echo/scopes";
    let change = |body: Value| ask(&server, "PATCH", path, "", &body.to_string());
    let set = change(json!({ "set": { "app:motd": "hi", "user:tier": null } })).ok();
    assert_eq!(set, json!({ "app:motd": "hi", "user:tier": null }));
    assert_eq!(get(&server, path).ok(), set);
    assert_eq!(
        change(json!({ "set": { "user:a": 1 }, "remove": ["app:motd"] })).ok(),
        json!({ "user:tier": null, "user:a": 1 })
    );
    for bad in [json!({ "a": 1 }), json!({ "user:b": 1, "temp:c": 2 }), json!({ "user:": 1 }), json!({ "app:": 1 })] {
        change(json!({ "set": bad })).refused(400, "invalid");
    }
    change(json!({ "set": { "user:b": 1 }, "remove": ["user:b"] })).refused(400, "invalid");
    ask(&server, "PATCH", path, "If-Match: \"1\"\r\n", "{}").refused(400, "invalid");
    assert_eq!(get(&server, path).ok(), json!({ "user:tier": null, "user:a": 1 }));
}
