//! Sessions and what is in them.

use serde_json::json;

use crate::common::{Server, sqlite_in};
use crate::{ask, get, post, turn};

const SESSIONS: &str = "/v1/agents/echo/sessions";

#[test]
fn a_session_is_made_changed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let body = r#"{"id":"a/b ü","title":"Tea","labels":["x","y"],"metadata":{"tier":"gold"},
                   "state":{"last":"before","user:tone":"dry"}}"#;
    let made = post(&server, SESSIONS, body);
    assert_eq!(made.status, 201, "{}", made.json);
    let place = made.header("location").unwrap().to_owned();
    assert_eq!(place, "/v1/agents/echo/sessions/a%2Fb%20%C3%BC");
    assert_eq!(made.header("etag").unwrap(), format!("\"{}\"", made.json["head"]));
    post(&server, SESSIONS, body).refused(409, "already_exists");
    assert_eq!(get(&server, &format!("{place}/state")).ok()["custom"], json!({ "last": "before" }));
    assert_eq!(get(&server, "/v1/agents/echo/scopes").ok(), json!({ "user:tone": "dry" }));
    turn(&server, "a/b ü", "hi");

    let change =
        r#"{"title":null,"addLabels":["z"],"removeLabels":["x"],"setMetadata":{"n":null},"removeMetadata":["tier"]}"#;
    let changed = ask(&server, "PATCH", &place, "", change).ok();
    assert_eq!((&changed["labels"], &changed["metadata"]), (&json!(["y", "z"]), &json!({ "n": null })));
    assert!(changed.get("title").is_none());
    assert_eq!(ask(&server, "PATCH", &place, "", "{}").ok()["labels"], json!(["y", "z"]), "nothing changes nothing");

    assert_eq!(ask(&server, "DELETE", &place, "", "").status, 204);
    ask(&server, "DELETE", &place, "", "").refused(404, "not_found");
    get(&server, &place).refused(404, "not_found");
    assert_eq!(ask(&server, "POST", &format!("{place}/purge"), "", "").status, 200, "also when it is deleted already");
    turn(&server, "t", "hi");
    let purged = ask(&server, "POST", &format!("{SESSIONS}/t/purge"), "", "").ok();
    assert!(purged["removed"].as_u64().unwrap() > 0, "{purged}");
    get(&server, &format!("{SESSIONS}/t")).refused(404, "not_found");
}

#[test]
fn sessions_are_listed_page_by_page_as_filters_say() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    for n in 0..7 {
        let body = json!({ "id": format!("s{n}"), "labels": [if n % 2 == 0 { "even" } else { "odd" }], "metadata": { "n": n } });
        post(&server, SESSIONS, &body.to_string()).ok();
    }
    // Those of another agent are not among them.
    post(&server, "/v1/agents/redact/sessions", r#"{"id":"other"}"#).ok();
    let list = |query: &str| -> Vec<String> {
        let (mut ids, mut next) = (Vec::new(), String::new());
        loop {
            let page = get(&server, &format!("{SESSIONS}?{query}{next}")).ok();
            ids.extend(
                page["items"].as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap().to_owned()),
            );
            let Some(cursor) = page["next"].as_str() else { return ids };
            next = format!("&cursor={cursor}");
        }
    };
    assert_eq!(list("limit=3&sort=created&order=asc"), ["s0", "s1", "s2", "s3", "s4", "s5", "s6"]);
    assert_eq!(list("limit=2&sort=created&label=odd"), ["s5", "s3", "s1"]);
    assert_eq!(list("metadata=%7B%22n%22%3A4%7D"), ["s4"]);
    assert_eq!(list("status=running"), Vec::<String>::new());
    turn(&server, "s2", "touched");
    assert_eq!(list("limit=100")[0], "s2", "the one written to last comes first");
}

#[test]
fn events_and_records_are_read_on_from_where_a_page_ended() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    for text in ["one", "fail this", "two", "three"] {
        turn(&server, "s", text);
    }
    for what in ["events", "records"] {
        let whole = get(&server, &format!("{SESSIONS}/s/{what}")).ok()["items"].clone();
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let page = get(&server, &format!("{SESSIONS}/s/{what}?limit=2{next}")).ok();
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            let Some(cursor) = page["next"].as_str() else { break };
            next = format!("&cursor={cursor}");
        }
        assert!(all.len() > 4 && json!(all) == whole, "{what}: {all:?}");
        let seq = all[2]["seq"].as_u64().unwrap();
        let after = get(&server, &format!("{SESSIONS}/s/{what}?after={seq}")).ok();
        assert_eq!(after["items"][0]["seq"], all[3]["seq"]);
    }
    let plain = get(&server, &format!("{SESSIONS}/s/events")).ok();
    let voided = get(&server, &format!("{SESSIONS}/s/events?voided=true")).ok();
    assert!(voided["items"].as_array().unwrap().len() > plain["items"].as_array().unwrap().len());
    assert_eq!(get(&server, &format!("{SESSIONS}/s/events?tail=1")).ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn the_state_is_read_at_any_place() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let first = turn(&server, "s", "one");
    turn(&server, "s", "two");
    let count =
        |query: String| get(&server, &format!("{SESSIONS}/s/state{query}")).ok()["messages"].as_array().unwrap().len();
    assert_eq!(count(String::new()), 4);
    assert_eq!(count("?branch=main".to_owned()), 4);
    assert_eq!(count(format!("?snapshot={}", first["snapshotId"].as_str().unwrap())), 2);
    assert_eq!(count(format!("?point={}", first["point"])), 2);
    get(&server, &format!("{SESSIONS}/s/state?branch=none")).refused(404, "not_found");
    get(&server, &format!("{SESSIONS}/s/state?point=1&branch=main")).refused(400, "invalid");
    turn(&server, "t", "elsewhere");
    let other = format!("{SESSIONS}/t/state?snapshot={}", first["snapshotId"].as_str().unwrap());
    get(&server, &other).refused(404, "not_found");
}
