//! Branches, rewinds and forks.

use serde_json::json;

use crate::common::Server;
use crate::{ask, get, post, turn};

const S: &str = "/v1/agents/echo/sessions/s";

#[test]
fn branches_are_made_gone_on_with_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let one = turn(&server, "s", "one");
    turn(&server, "s", "two");
    let body = json!({ "name": "try", "at": { "snapshot": one["snapshotId"] } }).to_string();
    let made = post(&server, &format!("{S}/branches"), &body);
    assert_eq!((made.status, &made.json["head"]), (201, &one["point"]), "{}", made.json);
    post(&server, &format!("{S}/branches"), &body).refused(409, "already_exists");
    let on = json!({ "session": "s", "branch": "try", "input": { "text": "other" } }).to_string();
    let other = post(&server, "/v1/agents/echo/turns?state=true", &on).ok();
    assert_eq!(other["state"]["messages"].as_array().unwrap().len(), 4);
    let branches = get(&server, &format!("{S}/branches")).ok();
    assert_eq!(branches["branches"].as_array().unwrap().len(), 2);
    let stale = format!("If-Match: \"{}\"\r\n", one["point"]);
    ask(&server, "DELETE", &format!("{S}/branches/try"), &stale, "").refused(412, "conflict");
    let now = format!("If-Match: \"{}\"\r\n", other["point"]);
    assert_eq!(ask(&server, "DELETE", &format!("{S}/branches/try"), &now, "").status, 204);
    ask(&server, "DELETE", &format!("{S}/branches/try"), "", "").refused(404, "not_found");
    assert_eq!(ask(&server, "DELETE", &format!("{S}/branches/main"), "", "").status, 400);
}

#[test]
fn a_rewind_is_conditional_and_undone_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let (one, two) = (turn(&server, "s", "one"), turn(&server, "s", "two"));
    let to = |out: &serde_json::Value| json!({ "to": { "snapshot": out["snapshotId"] } }).to_string();
    let main = format!("{S}/branches/main");
    let seen = format!("If-Match: \"{}\"\r\n", two["point"]);
    let moved = ask(&server, "PUT", &main, &seen, &to(&one));
    assert_eq!(moved.header("etag"), Some(&*format!("\"{}\"", one["point"])), "{}", moved.json);
    ask(&server, "PUT", &main, &seen, &to(&one)).refused(412, "conflict");
    assert_eq!(get(&server, S).ok()["turns"], 1);
    ask(&server, "PUT", &main, "", &to(&two)).ok();
    assert_eq!(get(&server, S).ok()["turns"], 2);
    for forged in
        [json!({ "to": { "point": 9999 } }), json!({ "to": { "snapshot": "00000000-0000-7000-8000-000000000000" } })]
    {
        let refused = ask(&server, "PUT", &main, "", &forged.to_string());
        assert!((400..500).contains(&refused.status), "{}", refused.json);
    }
}

#[test]
fn a_branch_on_which_a_turn_runs_is_moved_by_force_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let one = turn(&server, "s", "one");
    turn(&server, "s", "two");
    let slow = json!({ "session": "s", "input": { "text": "slow 60000", "detach": true } }).to_string();
    let out = post(&server, "/v1/agents/echo/turns", &slow).ok();
    let to = |force: bool| json!({ "to": { "snapshot": one["snapshotId"] }, "force": force }).to_string();
    let busy = ask(&server, "PUT", &format!("{S}/branches/main"), "", &to(false));
    busy.refused(409, "busy");
    assert_eq!(busy.header("retry-after"), Some("1"));
    ask(&server, "PUT", &format!("{S}/branches/main"), "", &to(true)).ok();
    let abort = format!("/v1/agents/echo/snapshots/{}/abort", out["snapshotId"].as_str().unwrap());
    ask(&server, "POST", &abort, "", "").ok();
}

#[test]
fn a_fork_goes_its_own_way() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let one = turn(&server, "s", "one");
    turn(&server, "s", "two");
    let body = json!({ "id": "f", "at": { "snapshot": one["snapshotId"] } }).to_string();
    let made = post(&server, &format!("{S}/fork"), &body);
    assert_eq!((made.status, &made.json["forkedFrom"]["session"]), (201, &"s".into()), "{}", made.json);
    assert_eq!(made.header("location"), Some("/v1/agents/echo/sessions/f"));
    post(&server, &format!("{S}/fork"), &body).refused(409, "already_exists");
    turn(&server, "f", "three");
    assert_eq!(get(&server, "/v1/agents/echo/sessions/f").ok()["turns"], 2);
    assert_eq!(get(&server, S).ok()["turns"], 2);
    assert_eq!(post(&server, &format!("{S}/fork"), "{}").status, 201, "at the head, under an id of its own");
}
