//! What is described is what there is.

use std::collections::BTreeSet;

use crate::common::Server;
use crate::{ask, get};

/// Every route: a new one is added here, and to `inputs.rs` what it must refuse.
pub(crate) const ROUTES: &[&str] = &[
    "GET /agents",
    "GET /agents/{agent}",
    "POST /agents/{agent}/turns",
    "GET /agents/{agent}/turns/{turn}/stream",
    "GET /agents/{agent}/scopes",
    "PATCH /agents/{agent}/scopes",
    "POST /agents/{agent}/import",
    "GET /agents/{agent}/sessions",
    "POST /agents/{agent}/sessions",
    "GET /agents/{agent}/sessions/{session}",
    "PATCH /agents/{agent}/sessions/{session}",
    "DELETE /agents/{agent}/sessions/{session}",
    "POST /agents/{agent}/sessions/{session}/purge",
    "GET /agents/{agent}/sessions/{session}/state",
    "GET /agents/{agent}/sessions/{session}/events",
    "GET /agents/{agent}/sessions/{session}/records",
    "GET /agents/{agent}/sessions/{session}/tree",
    "GET /agents/{agent}/sessions/{session}/follow",
    "GET /agents/{agent}/sessions/{session}/export",
    "GET /agents/{agent}/sessions/{session}/compactions",
    "POST /agents/{agent}/sessions/{session}/compactions",
    "GET /agents/{agent}/sessions/{session}/snapshots",
    "GET /agents/{agent}/sessions/{session}/branches",
    "POST /agents/{agent}/sessions/{session}/branches",
    "PUT /agents/{agent}/sessions/{session}/branches/{branch}",
    "DELETE /agents/{agent}/sessions/{session}/branches/{branch}",
    "POST /agents/{agent}/sessions/{session}/fork",
    "GET /agents/{agent}/sessions/{session}/artifacts",
    "GET /agents/{agent}/sessions/{session}/artifacts/{artifact}",
    "GET /agents/{agent}/sessions/{session}/artifacts/{artifact}/download",
    "GET /agents/{agent}/snapshots/{snapshot}",
    "PATCH /agents/{agent}/snapshots/{snapshot}",
    "GET /agents/{agent}/snapshots/{snapshot}/diff",
    "POST /agents/{agent}/snapshots/{snapshot}/abort",
    "GET /agents/{agent}/snapshots/{snapshot}/wait",
    "GET /agents/{agent}/snapshots/{snapshot}/stream",
];

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let api = get(&server, "/v1/openapi.json").ok();
    assert!(api["openapi"].as_str().unwrap().starts_with("3."));
    assert_eq!(api["servers"][0]["url"], "/v1");
    let mut described = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            described.insert(format!("{} {path}", method.to_uppercase()));
            assert!(operation["summary"].is_string(), "{method} {path}");
            let params = operation["parameters"].as_array().cloned().unwrap_or_default();
            for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
                assert!(params.iter().any(|param| param["in"] == "path" && param["name"] == name), "{path} {name}");
            }
        }
    }
    assert_eq!(described, ROUTES.iter().map(|route| (*route).to_owned()).collect());

    let paths: BTreeSet<_> = ROUTES.iter().map(|route| route.split_once(' ').unwrap().1).collect();
    for path in paths {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let real = format!("/v1{path}").replace("{agent}", "nobody").replace(['{', '}'], "");
            let answer = ask(&server, method, &real, "", "");
            match ROUTES.contains(&&*format!("{method} {path}")) {
                // A route of the router is one that does not say 405, and is not told as no address at all.
                true => assert!(
                    answer.status != 405 && !answer.json["detail"].to_string().contains("this address"),
                    "{method} {path}"
                ),
                false => answer.refused(405, "method_not_allowed"),
            }
        }
    }
    let page = server.request("GET", "/v1/reference", "", "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !page.body.contains("<script"), "{policy}");
    get(&server, "/v1/nothing").refused(404, "not_found");
    get(&server, "/v1").refused(404, "not_found");
}
