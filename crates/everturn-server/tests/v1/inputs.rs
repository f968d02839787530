//! What must be refused, precisely, and without harm.

use crate::common::Server;
use crate::openapi::ROUTES;
use crate::{ask, get, post, turn};

const NO_SNAPSHOT: &str = "00000000-0000-7000-8000-000000000000";

/// A route's path with things that exist, as far as they do.
fn path(route: &str, agent: &str, session: &str, snapshot: &str) -> String {
    let path = route.split_once(' ').unwrap().1;
    let path = path.replace("{agent}", agent).replace("{session}", session).replace("{snapshot}", snapshot);
    format!("/v1{}", path.replace("{branch}", "main").replace("{artifact}", "none").replace("{turn}", "1.1"))
}

fn body(route: &str) -> &'static str {
    match route {
        _ if route.ends_with("/turns") => r#"{"input":{"text":"x"}}"#,
        _ if route.ends_with("/branches") => r#"{"name":"b"}"#,
        _ if route.starts_with("PUT") => r#"{"to":{}}"#,
        _ if route.starts_with("PATCH") && route.contains("{snapshot}") => r#"{"label":"x"}"#,
        _ => "{}",
    }
}

#[test]
fn unknown_ids_are_not_found_on_every_route() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let out = turn(&server, "s", "one");
    let known = out["snapshotId"].as_str().unwrap();
    for route in ROUTES {
        let (method, _) = route.split_once(' ').unwrap();
        let query = if route.ends_with("/diff") { format!("?to={known}") } else { String::new() };
        let sent = |path: String| ask(&server, method, &format!("{path}{query}"), "", body(route));
        if route.contains("{agent}") {
            sent(path(route, "nobody", "s", known)).refused(404, "not_found");
        }
        if route.contains("{session}") && !route.ends_with("/purge") {
            sent(path(route, "echo", "none", known)).refused(404, "not_found");
            // One of another agent is as unknown.
            sent(path(route, "asker", "s", known)).refused(404, "not_found");
        }
        if route.contains("{snapshot}") {
            sent(path(route, "echo", "s", NO_SNAPSHOT)).refused(404, "not_found");
            sent(path(route, "asker", "s", known)).refused(404, "not_found");
            sent(path(route, "echo", "s", "not-a-uuid")).refused(400, "invalid");
        }
        if route.contains("{session}") {
            sent(path(route, "echo", "%20", known)).refused(400, "invalid");
            sent(path(route, "echo", "%FF", known)).refused(400, "invalid");
        }
    }
    get(&server, "/v1/agents/echo/turns/x/stream").refused(400, "invalid");
    get(&server, "/v1/agents/echo/turns/99.99/stream").refused(404, "not_found");
    assert_eq!(get(&server, "/v1/agents/echo/sessions/s").ok()["turns"], 1, "nothing was harmed");
}

#[test]
fn bodies_that_are_not_json_are_refused_on_every_route_that_takes_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let out = turn(&server, "s", "one");
    let known = out["snapshotId"].as_str().unwrap();
    let deep = "[".repeat(200_000);
    let takes = |route: &&&str| !route.starts_with("GET") && !route.starts_with("DELETE");
    // A file that is brought in is no JSON; what it must be is told in `transfer.rs`.
    let others = ["/purge", "/abort", "/import"];
    let bodiless = |route: &&&str| !others.iter().any(|end| route.ends_with(end));
    for route in ROUTES.iter().filter(takes).filter(bodiless) {
        let (method, _) = route.split_once(' ').unwrap();
        let path = path(route, "echo", "s", known);
        for bad in ["{", "[]", "null", "\"x\"", "7", "{} {}", "{\"input\":", r#"{"surprise":1}"#, &deep] {
            ask(&server, method, &path, "", bad).refused(400, "invalid");
        }
        let plain = server.request(method, &path, "Content-Type: text/plain\r\n", "{}");
        assert_eq!(plain.status, 415, "{route}");
        assert_eq!(server.request(method, &path, "", "{}").status, 415, "{route}");
        let host = server.url.trim_start_matches("http://");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        );
        let latin = [head.as_bytes(), b"Content-Length: 8\r\n\r\n{\"a\xE9\":1}"].concat();
        assert_eq!(server.raw(&latin).status, 400, "{route}");
        let large = format!("{head}Content-Length: 16777217\r\n\r\n");
        let answer = server.raw(large.as_bytes());
        assert!(answer.status == 413 && answer.body.contains("too_large"), "{route} {}", answer.body);
    }
}

#[test]
fn a_body_that_turns_out_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let host = server.url.trim_start_matches("http://");
    let mut request = format!(
        "POST /v1/agents/echo/turns HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1000001\r\n"
    )
    .into_bytes();
    request.resize(request.len() + 0x100_0001, b' ');
    // Nothing follows: the server must answer without waiting for the end.
    let answer = server.raw(&request);
    assert_eq!(answer.status, 413, "{}", answer.body);
}

#[test]
fn wrong_values_are_refused_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let out = turn(&server, "s", "one");
    let snapshot = format!("/v1/agents/echo/snapshots/{}", out["snapshotId"].as_str().unwrap());
    let session = "/v1/agents/echo/sessions/s";
    for (path, body, says) in [
        ("/v1/agents/echo/turns", r#"{}"#, "input"),
        ("/v1/agents/echo/turns", r#"{"input":{}}"#, "empty"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":1}}"#, "invalid type"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a","messages":[]}}"#, "not both"),
        ("/v1/agents/echo/turns", r#"{"input":{"messages":[{"role":"wizard","content":[]}]}}"#, ""),
        ("/v1/agents/echo/turns", r#"{"input":{"messages":[7]}}"#, ""),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a","detach":"yes"}}"#, "invalid type"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a","stateDelta":{"a":1}}}"#, "unknown field"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a"},"session":" "}"#, "blank"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a"},"snapshot":"x"}"#, "UUID"),
        ("/v1/agents/echo/turns", r#"{"input":{"text":"a"},"session":"s","initial":{}}"#, "fresh session"),
        ("/v1/agents/echoClient/turns", r#"{"input":{"text":"a"},"state":{"messages":7}}"#, ""),
        ("/v1/agents/echo/sessions", r#"{"id":7}"#, "invalid type"),
        ("/v1/agents/echo/sessions", r#"{"id":""}"#, ""),
        ("/v1/agents/echo/sessions", r#"{"labels":"x"}"#, "invalid type"),
        ("/v1/agents/echo/sessions", r#"{"metadata":[]}"#, "invalid type"),
        ("/v1/agents/echo/sessions", r#"{"state":[]}"#, "invalid type"),
        ("/v1/agents/echo/sessions/s/branches", r#"{"name":""}"#, ""),
        ("/v1/agents/echo/sessions/s/branches", r#"{"name":"b","at":{"point":-1}}"#, "invalid value"),
        ("/v1/agents/echo/sessions/s/branches", r#"{"name":"b","at":{"point":1,"branch":"main"}}"#, "not several"),
        ("/v1/agents/echo/sessions/s/fork", r#"{"at":{"snapshot":"x"}}"#, "UUID"),
        ("/v1/agents/echo/sessions/s/fork", r#"{"at":["main",null,null]}"#, "object"),
        ("/v1/agents/echo/turns", r#"{"input":["hi"]}"#, "object"),
    ] {
        let refused = post(&server, path, body);
        refused.refused(400, "invalid");
        assert!(refused.json["detail"].as_str().unwrap().contains(says), "{body}: {}", refused.json);
    }
    for (path, body) in [
        (session, r#"{"title":7}"#),
        (session, r#"{"addLabels":"x"}"#),
        (session, r#"{"setMetadata":[]}"#),
        (snapshot.as_str(), "{}"),
        (snapshot.as_str(), r#"{"label":7}"#),
    ] {
        ask(&server, "PATCH", path, "", body).refused(400, "invalid");
    }
    for (method, path) in [("PATCH", session), ("DELETE", session), ("PATCH", &*snapshot)] {
        ask(&server, method, path, "If-Match: \"1\"\r\n", r#"{"label":"x"}"#).refused(400, "invalid");
    }
    ask(&server, "PUT", &format!("{session}/branches/main"), "", r#"{"to":{"point":"x"}}"#).refused(400, "invalid");
    let long = "k".repeat(300);
    for key in [" ", &long] {
        let header = format!("Idempotency-Key: {key}\r\n");
        ask(&server, "POST", "/v1/agents/echo/turns", &header, r#"{"input":{"text":"x"}}"#).refused(400, "invalid");
    }
}

#[test]
fn what_was_sent_is_not_sent_back_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let long = get(&server, &format!("/v1/agents/{}", "é".repeat(5_000).replace('é', "%C3%A9")));
    long.refused(404, "not_found");
    let detail = long.json["detail"].as_str().unwrap();
    assert!(detail.len() < 2_010 && detail.ends_with('…'), "{detail}");
}

#[test]
fn queries_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let out = turn(&server, "s", "one");
    let snapshot = format!("/v1/agents/echo/snapshots/{}", out["snapshotId"].as_str().unwrap());
    let session = "/v1/agents/echo/sessions/s";
    for listing in [
        "/v1/agents/echo/sessions".to_owned(),
        format!("{session}/events"),
        format!("{session}/records"),
        format!("{session}/snapshots"),
    ] {
        for query in [
            "limit=0",
            "limit=101",
            "limit=-1",
            "limit=x",
            "cursor=",
            "cursor=forged",
            "cursor=x1.2.3",
            "cursor=%FF",
            "surprise=1",
            "limit=1&limit=2",
        ] {
            get(&server, &format!("{listing}?{query}")).refused(400, "invalid");
        }
    }
    for path in [
        "/v1/agents/echo/sessions?sort=size".to_owned(),
        "/v1/agents/echo/sessions?order=up".to_owned(),
        "/v1/agents/echo/sessions?status=tired".to_owned(),
        "/v1/agents/echo/sessions?label=%FF".to_owned(),
        "/v1/agents/echo/sessions?label=%C3".to_owned(),
        "/v1/agents/echo/sessions?metadata=7".to_owned(),
        "/v1/agents/echo/sessions?metadata=%7B".to_owned(),
        format!("{session}/events?after=x"),
        format!("{session}/events?snapshot=x"),
        format!("{session}/events?branch=main&point=1"),
        format!("{session}/records?after=-1"),
        format!("{session}/state?point=x"),
        format!("{session}/state?surprise=1"),
        format!("{session}/snapshots?orphans=2"),
        format!("{session}/artifacts/x/download?version=x"),
        format!("{session}/artifacts/x/download?part=-1"),
        format!("{snapshot}?state=2"),
        format!("{snapshot}/diff"),
        format!("{snapshot}/diff?to=x"),
        format!("{snapshot}/wait?seconds=x"),
    ] {
        get(&server, &path).refused(400, "invalid");
    }
    post(&server, "/v1/agents/echo/turns?state=2", r#"{"input":{"text":"x"}}"#).refused(400, "invalid");
    ask(&server, "DELETE", &format!("{session}/branches/main?force=2"), "", "").refused(400, "invalid");
}
