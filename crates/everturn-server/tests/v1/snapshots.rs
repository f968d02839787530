//! Snapshots.

use serde_json::json;

use crate::common::Server;
use crate::{ask, get, post, turn};

#[test]
fn snapshots_are_listed_read_labelled_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let (one, two) = (turn(&server, "s", "one"), turn(&server, "s", "two"));
    let path = |out: &serde_json::Value| format!("/v1/agents/echo/snapshots/{}", out["snapshotId"].as_str().unwrap());
    let aside = json!({ "snapshot": one["snapshotId"], "branch": "main", "input": { "text": "beside" } });
    post(&server, "/v1/agents/echo/turns", &aside.to_string()).ok();

    let found = get(&server, &path(&one)).ok();
    assert_eq!(found["state"]["messages"].as_array().unwrap().len(), 2);
    assert!(get(&server, &format!("{}?state=false", path(&one))).ok().get("state").is_none());
    let labelled = ask(&server, "PATCH", &path(&one), "", r#"{"label":"good"}"#).ok();
    assert_eq!(labelled["label"], "good");
    assert!(ask(&server, "PATCH", &path(&one), "", r#"{"label":null}"#).ok().get("label").is_none());

    let listed = get(&server, "/v1/agents/echo/sessions/s/snapshots?order=desc").ok();
    let listed = listed["items"].as_array().unwrap();
    let parent = |of: &serde_json::Value| {
        listed.iter().find(|snapshot| snapshot["snapshotId"] == of["snapshotId"]).unwrap()["parentId"].clone()
    };
    assert_eq!(parent(&two), one["snapshotId"]);
    let first = get(&server, "/v1/agents/echo/sessions/s/snapshots?limit=1").ok();
    let cursor = first["next"].as_str().unwrap();
    let second = get(&server, &format!("/v1/agents/echo/sessions/s/snapshots?limit=1&cursor={cursor}")).ok();
    assert_ne!(first["items"], second["items"]);

    let diff = get(&server, &format!("{}/diff?to={}", path(&one), two["snapshotId"].as_str().unwrap())).ok();
    assert_eq!((&diff["messages"]["common"], diff["messages"]["added"].as_array().unwrap().len()), (&2.into(), 2));
}

#[test]
fn a_turn_in_the_background_is_waited_for_and_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let detach = |text: &str| {
        let body = json!({ "session": text, "input": { "text": text, "detach": true } });
        let out = post(&server, "/v1/agents/echo/turns", &body.to_string()).ok();
        format!("/v1/agents/echo/snapshots/{}", out["snapshotId"].as_str().unwrap())
    };
    let soon = detach("slow 300");
    assert_eq!(get(&server, &format!("{soon}/wait")).ok()["status"], "completed");

    let never = detach("slow 500000");
    let pending = get(&server, &format!("{never}/wait?seconds=0"));
    assert_eq!((pending.status, &pending.json["status"]), (202, &"pending".into()));
    assert_eq!(ask(&server, "POST", &format!("{never}/abort"), "", "").ok(), json!({ "before": "pending" }));
    assert_eq!(get(&server, &format!("{never}/wait?seconds=20")).ok()["status"], "aborted");
    assert_eq!(ask(&server, "POST", &format!("{never}/abort"), "", "").ok(), json!({ "before": "aborted" }));
    let id = never.rsplit('/').next().unwrap();
    let resumed =
        post(&server, "/v1/agents/echo/turns", &json!({ "snapshot": id, "input": { "text": "x" } }).to_string());
    resumed.refused(409, "not_resumable");
    get(&server, &format!("{never}/wait?seconds=601")).refused(400, "invalid");
}
