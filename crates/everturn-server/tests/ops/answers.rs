//! Answers that are large, and clients that do not read them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use crate::common::{Server, sqlite_in};
use crate::{JSON, becomes, json, metric, serve, until};

const MIB: usize = 1 << 20;

/// The most a page has, and what is around its items.
const PAGE: usize = 4 * MIB + 1024;

/// So many turns of a text that has few bytes on disk; the agent says each again.
fn grow(server: &Server, session: &str, turns: usize, bytes: usize) {
    let body = json!({"session": session, "input": {"text": "x".repeat(bytes)}}).to_string();
    for _ in 0..turns {
        let answer = server.request("POST", "/v1/agents/echo/turns", JSON, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// Asks for something and reads how the answer begins, and no more.
fn ask(server: &Server, path: &str) -> (TcpStream, u16) {
    let mut stream = server.stream();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).unwrap();
    let status = String::from_utf8_lossy(&begin[9..]).parse().unwrap();
    (stream, status)
}

#[test]
fn a_page_ends_at_some_megabytes_and_goes_on_behind_that() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    grow(&server, "s", 6, MIB);
    for what in ["records", "events"] {
        let (mut seen, mut pages, mut cursor) = (Vec::new(), 0, String::new());
        loop {
            let page = server.request("GET", &format!("/v1/agents/echo/sessions/s/{what}?limit=100{cursor}"), "", "");
            assert!(page.status == 200 && page.body.len() <= PAGE, "{} with {} bytes", page.status, page.body.len());
            let page = json(&page);
            seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["seq"].as_u64().unwrap()));
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert!(pages > 2 && seen.is_sorted_by(|a, b| a < b), "{what}: {pages} pages, {seen:?}");
        assert!(seen.len() >= 12, "{seen:?}");
    }
}

#[test]
fn artifacts_are_listed_without_reading_them_all_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    for n in 0..5 {
        let text = format!("artifact a{n}.txt {}", "x".repeat(2 * MIB));
        let body = json!({"session": "s", "input": {"text": text}}).to_string();
        assert_eq!(server.request("POST", "/v1/agents/echo/turns", JSON, &body).status, 200);
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = json(&server.request("GET", &format!("/v1/agents/echo/sessions/s/artifacts?{cursor}"), "", ""));
        names.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("cursor={next}");
    }
    assert_eq!(names, ["a0.txt", "a1.txt", "a2.txt", "a3.txt", "a4.txt"]);
}

#[test]
fn large_answers_that_nobody_reads_are_bounded_and_the_rest_of_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &["--max-answer-bytes", "32MiB"]);
    // A state of 12 MiB, which is more than the system keeps for a client that does not read.
    grow(&server, "s", 6, MIB);
    grow(&server, "small", 1, 10);
    let snapshot = json(&server.request("GET", "/v1/agents/echo/sessions/s/snapshots", "", ""));
    let snapshot = snapshot["items"][5]["snapshotId"].as_str().unwrap().to_owned();
    let state = "/v1/agents/echo/sessions/s/state".to_owned();
    let snapshot = format!("/v1/agents/echo/snapshots/{snapshot}");
    let readers: Vec<_> = (0..6).map(|n| ask(&server, [&state, &snapshot][n % 2])).collect();
    let taken = readers.iter().filter(|(_, status)| *status == 200).count();
    let refused = readers.iter().filter(|(_, status)| *status == 503).count();
    assert!((1..=2).contains(&taken) && taken + refused == 6, "{taken} taken, {refused} refused");
    let held = metric(&server, "everturn_answer_bytes").unwrap();
    assert!(held > 0.0 && held <= (32 * MIB) as f64, "{held}");

    let refused = server.request("GET", &state, "", "");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{}", refused.body);
    assert_eq!(json(&refused)["code"], "unavailable");
    let genkit = server.request("POST", "/genkit/echo/getSnapshot", JSON, r#"{"data":{"sessionId":"s"}}"#);
    assert_eq!((genkit.status, json(&genkit)["status"].as_str()), (503, Some("UNAVAILABLE")), "{}", genkit.body);
    for path in ["/healthz", "/readyz", "/v1/agents/echo/sessions/small/state", "/v1/agents/echo/sessions"] {
        assert_eq!(server.request("GET", path, "", "").status, 200, "{path}");
    }
    grow(&server, "small", 1, MIB);

    drop(readers);
    becomes(&server, "everturn_answer_bytes", 0.0);
    until("room", || match server.request("GET", &state, "", "") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn a_stream_whose_large_frames_have_no_room_ends_and_is_followed_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &["--max-answer-bytes", "1MiB"]);
    grow(&server, "s", 6, MIB);
    let tree = json(&server.request("GET", "/v1/agents/echo/sessions/s/tree", "", ""));
    let beginning = tree["position"].as_str().unwrap().split('.').next().unwrap().to_owned();
    let follow = format!("/v1/agents/echo/sessions/s/follow?after={beginning}.0");
    // Where nothing else is held one answer is given, whatever it weighs: then there is no room.
    let reader = ask(&server, "/v1/agents/echo/sessions/s/state");
    assert_eq!(reader.1, 200);
    let (mut stream, status) = ask(&server, &follow);
    assert_eq!(status, 200);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8_lossy(&rest);
    let last = text.rfind("event: ").map_or("", |at| &text[at..]);
    assert!(last.starts_with("event: error\n") && last.contains("\"unavailable\""), "{last}");
    drop(reader);
    becomes(&server, "everturn_answer_bytes", 0.0);
    let (mut stream, status) = ask(&server, &follow);
    assert_eq!(status, 200);
    let (mut seen, mut part) = (0, vec![0; MIB]);
    while seen < 8 * MIB {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "it ended after {seen} bytes");
        seen += read;
    }
}
