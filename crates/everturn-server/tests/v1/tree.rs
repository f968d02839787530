//! A session as a page draws it.

use serde_json::{Value, json};

use crate::common::Server;
use crate::{ask, get, post, turn};

const S: &str = "/v1/agents/echo/sessions/s";

#[test]
fn a_tree_has_turns_branches_voids_and_compactions() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let one = turn(&server, "s", "one");
    let two = turn(&server, "s", "two");
    turn(&server, "s", "fail badly");
    let to = json!({ "to": { "snapshot": one["snapshotId"] } }).to_string();
    ask(&server, "PUT", &format!("{S}/branches/main"), "", &to).ok();
    post(&server, &format!("{S}/compactions"), r#"{"summary":"They said one."}"#).ok();
    let tree = get(&server, &format!("{S}/tree")).ok();
    let nodes = tree["items"].as_array().unwrap();
    let told: Vec<_> =
        nodes.iter().map(|node| (node["kind"].as_str().unwrap(), node["status"].as_str().unwrap())).collect();
    let (turn, done) = ("turn", "completed");
    assert_eq!(told, [("root", done), (turn, done), (turn, done), (turn, "failed"), ("compaction", done)], "{tree}");
    assert_eq!((&nodes[1]["input"], &nodes[1]["answer"]), (&json!("one"), &json!("echo: one")));
    assert_eq!((&nodes[1]["from"], &nodes[1]["end"]), (&nodes[0]["end"], &one["point"]));
    assert_eq!(nodes[1]["snapshots"][0]["id"], one["snapshotId"]);
    assert_eq!(
        (&nodes[2]["from"], &nodes[2]["end"], &nodes[2]["orphaned"]),
        (&one["point"], &two["point"], &json!(true))
    );
    assert_eq!((&nodes[3]["from"], &nodes[3]["error"]["status"]), (&two["point"], &json!("UNAVAILABLE")));
    assert_eq!((&nodes[4]["from"], &nodes[4]["heads"]), (&one["point"], &json!(["main"])));
    assert!(tree.get("next").is_none() && tree["position"].is_string(), "{tree}");
}

#[test]
fn a_tree_is_read_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    for text in ["one", "two", "three", "four"] {
        turn(&server, "s", text);
    }
    let whole = get(&server, &format!("{S}/tree")).ok();
    let (mut found, mut path) = (Vec::new(), format!("{S}/tree?limit=2"));
    loop {
        let page = get(&server, &path).ok();
        found.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{S}/tree?limit=2&cursor={next}");
    }
    assert_eq!(Value::from(found), whole["items"]);
    for bad in ["limit=0", "limit=101", "cursor=t", "cursor=r1", "cursor=%FF", "surprise=1"] {
        get(&server, &format!("{S}/tree?{bad}")).refused(400, "invalid");
    }
}

#[test]
fn lists_have_what_a_page_shows_of_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    turn(&server, "s", &"long ".repeat(100));
    post(&server, "/v1/agents/echo/sessions", r#"{"id":"empty","title":"Nothing yet"}"#).ok();
    let listed = get(&server, "/v1/agents/echo/sessions?sort=created&order=asc").ok();
    let (full, empty) = (&listed["items"][0], &listed["items"][1]);
    assert_eq!((&full["messages"], &full["turns"], &full["agent"]), (&json!(2), &json!(1), &json!("echo")));
    assert_eq!((&full["status"], full["usage"].is_object()), (&json!("idle"), true));
    assert_eq!(full["lastMessage"]["role"], "model");
    let text = full["lastMessage"]["text"].as_str().unwrap();
    assert!(text.starts_with("echo: long") && text.chars().count() == 201 && text.ends_with('…'), "{text}");
    assert!(full["log"].as_u64().unwrap() > 2);
    assert_eq!((&empty["messages"], &empty["title"]), (&json!(0), &json!("Nothing yet")));
    assert!(empty.get("lastMessage").is_none());
    assert_eq!(get(&server, S).ok()["lastMessage"], full["lastMessage"]);
}
