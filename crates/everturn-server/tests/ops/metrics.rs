//! `/metrics` and `/readyz`: what is told, and to whom.

use std::collections::BTreeSet;

use crate::common::{Server, sqlite_in};
use crate::{everturn, metric, serve, until, v1_turn};

/// The names of all families that are told.
pub(crate) fn families(server: &Server) -> BTreeSet<String> {
    let text = server.request("GET", "/metrics", "", "").body;
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn turns_requests_and_commits_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    for _ in 0..3 {
        assert_eq!(v1_turn(&server, "", "hi").status, 200);
    }
    assert_eq!(v1_turn(&server, "", "fail now").status, 200);
    assert_eq!(server.turn("echoClient", "hi", "{}")["result"]["finishReason"], "stop");
    assert_eq!(server.request("GET", "/v1/agents/echo/sessions/nobody", "", "").status, 404);
    assert_eq!(server.request("GET", "/no/such/place", "", "").status, 404);
    let count = |name: &str| metric(&server, name).unwrap_or(0.0);
    until("the turns", || match count("everturn_turn_seconds_count{agent=\"echo\",outcome=\"stop\"}") {
        3.0 => Ok(()),
        now => Err(now.to_string()),
    });
    assert_eq!(count("everturn_turn_seconds_count{agent=\"echo\",outcome=\"failed\"}"), 1.0);
    assert_eq!(count("everturn_turn_seconds_count{agent=\"echoClient\",outcome=\"stop\"}"), 1.0);
    let requests = |method: &str, route: &str, status: u16| {
        count(&format!(
            "everturn_http_request_seconds_count{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}}"
        ))
    };
    assert_eq!(requests("POST", "/v1/agents/{agent}/turns", 200), 4.0);
    assert_eq!(requests("GET", "/v1/agents/{agent}/sessions/{session}", 404), 1.0);
    assert_eq!(requests("GET", "none", 404), 1.0);
    assert_eq!(requests("POST", "/genkit/{name}", 200), 1.0);
    assert!(count("everturn_store_commits_total") >= 4.0 && count("everturn_store_syncs_total") >= 4.0);
    assert!(count("everturn_store_batch_size_bucket{le=\"+Inf\"}") == count("everturn_store_batch_size_count"));
    assert!(count("everturn_store_operations_total{operation=\"end\",result=\"ok\"}") >= 4.0);
    assert!(count("process_resident_memory_bytes") > 1e6 && count("everturn_connections_open") >= 1.0);
}

#[test]
fn conflicts_are_counted_and_no_name_of_anybody_is_a_label() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    let body = r#"{"input":{"text":"hi"},"session":"secret-session"}"#;
    let turn = |headers: &str| server.request("POST", "/v1/agents/echo/turns", headers, body).status;
    let json = "Content-Type: application/json\r\n";
    assert_eq!(turn(json), 200);
    assert_eq!(turn(&format!("{json}If-Match: \"99999\"\r\n")), 412);
    let conflicts = metric(&server, "everturn_store_operations_total{operation=\"begin\",result=\"conflict\"}");
    assert_eq!(conflicts, Some(1.0));
    let text = server.request("GET", "/metrics", "", "").body;
    assert!(!text.contains("secret-session") && !text.contains("user=") && !text.contains("session=\""), "{text}");
}

#[test]
fn addresses_and_methods_that_people_make_up_do_not_become_labels() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    let lines = |server: &Server| server.request("GET", "/metrics", "", "").body.lines().count();
    for path in ["/a", "/metrics"] {
        server.request("GET", path, "", "");
        server.request("MADEUP", path, "", "");
    }
    let before = lines(&server);
    for i in 0..50 {
        server.request("GET", &format!("/made/up/{i}"), "", "");
        server.request(&format!("MADEUP{i}"), "/a", "", "");
    }
    assert_eq!(lines(&server), before);
}

#[test]
fn metrics_are_for_admins_where_keys_are_asked_for_and_on_a_port_of_their_own_for_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let key = |rights: &str| {
        let args = ["keys", "--store", &store, "create", "--user", "ann", "--rights", rights];
        String::from_utf8(everturn(dir.path(), &args).stdout).unwrap().trim().to_owned()
    };
    let (writer, admin) = (key("write"), key("admin"));
    let server = serve(dir.path(), &store, &["--metrics-addr", "127.0.0.1:0"]);
    let asked =
        |path: &str, key: &str| server.request("GET", path, &format!("Authorization: Bearer {key}\r\n"), "").status;
    assert_eq!((asked("/metrics", "no"), asked("/metrics", &writer), asked("/metrics", &admin)), (401, 403, 200));
    assert_eq!((asked("/readyz", "no"), asked("/healthz", "no")), (200, 200));

    let said = server.log("stdout");
    let (_, rest) = said.split_once("metrics are at http://").expect("it says where");
    let addr = rest.split('/').next().unwrap();
    let ask = |host: &str, path: &str| {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer
    };
    let answer = ask("127.0.0.1", "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("everturn_store_commits_total"), "{answer}");
    assert!(ask("evil.example", "/metrics").starts_with("HTTP/1.1 403 "));
    assert!(ask("127.0.0.1", "/v1/agents").starts_with("HTTP/1.1 404 "));
}
