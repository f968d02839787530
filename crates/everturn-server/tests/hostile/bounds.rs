//! What a caller may send takes bounded work, and nobody else waits for it.

use std::time::Instant;

use serde_json::json;

use super::common::{Answer, Server, sqlite_in};
use super::*;

const SEND: &str = "Content-Type: application/json\r\n";

fn start() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    (dir, server)
}

fn post(server: &Server, path: &str, body: &str) -> Answer {
    server.request("POST", path, SEND, body)
}

/// A large object whose members are each found where another one was: members are looked for, and all are looked through.
#[test]
fn the_health_check_is_answered_while_the_worst_turns_run() {
    let (_dir, server) = start();
    let turn = |session: usize, from: usize| {
        let members: Vec<_> = (from..60_000).map(|i| format!("\"key{i:06}\":1")).collect();
        let delta = format!("{{\"set\":{{\"k\":{{{}}}}}}}", members.join(","));
        format!(r#"{{"session":"s{session}","input":{{"text":"x","stateDelta":{delta}}}}}"#)
    };
    let sessions = 0..4;
    for session in sessions.clone() {
        assert_eq!(post(&server, "/v1/agents/asker/turns", &turn(session, 0)).status, 200);
    }
    std::thread::scope(|scope| {
        let server = &server;
        let turns: Vec<_> = sessions
            .map(|session| scope.spawn(move || post(server, "/v1/agents/asker/turns", &turn(session, 1)).status))
            .collect();
        let mut answered = 0;
        while turns.iter().any(|turn| !turn.is_finished()) {
            let since = Instant::now();
            assert_eq!(server.request("GET", "/healthz", "", "").status, 200);
            let waited = since.elapsed();
            assert!(waited < Duration::from_secs(5), "the health check took {waited:?}");
            answered += 1;
        }
        assert!(answered >= 5, "only {answered} while the turns ran");
        turns.into_iter().for_each(|turn| assert_eq!(turn.join().unwrap(), 200));
    });
}

/// A file of 67 KB whose patches double what is there until it is too deep to walk; one of 2 KB until it fills the memory.
#[test]
fn an_import_that_grows_is_refused_and_the_server_lives() {
    let (_dir, server) = start();
    let mut deep = vec![json!({"op": "add", "path": "", "value": {"x": {}}})];
    let mut depth = 1;
    while depth < 20_000 {
        deep.push(json!({"op": "copy", "from": "/x", "path": "/x".repeat(depth + 1)}));
        depth *= 2;
    }
    let mut large = vec![json!({"op": "add", "path": "", "value": {"x": "0".repeat(200)}})];
    large.extend((0..24).map(|i| json!({"op": "copy", "from": "", "path": format!("/b{i}")})));
    for patch in [deep, large] {
        let lines = ["application/x-ndjson", &file(&patch.into())];
        let headers = format!("Content-Type: {}\r\n", lines[0]);
        let answer = server.request("POST", "/v1/agents/echo/import", &headers, lines[1]);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains("copy"), "{}", answer.body);
        assert_eq!(server.turn("echo", "still here", "{}")["result"]["finishReason"], "stop");
    }
}

/// A session whose state is changed by a patch, as a file.
fn file(patch: &Value) -> String {
    use sha2::{Digest as _, Sha256};

    let (at, empty) = ("2026-01-01T00:00:00Z", "903b993f5b8c922231abf70de21446a6e540e05340aae2461360e4b9ecb347d9");
    let record = |seq: u64, body: Value| json!({"record": {"seq": seq, "segment": 1, "kind": "edit", "at": at, "digest": empty, "body": body}});
    let lines = [
        json!({"export": {"version": 1}}),
        json!({"session": {
            "app": "echo", "user": "u", "id": "b", "metadata": {}, "createdAt": at, "updatedAt": at, "usage": {},
            "inheritedUsage": {}, "interrupted": false, "branches": [{"name": "main", "at": {"segment": 1, "seq": 2}}],
        }}),
        json!({"segment": {"id": 1}}),
        record(1, json!({})),
        record(2, json!({"custom": {"patch": patch}})),
        json!({"end": {"lines": 5}}),
    ];
    let (mut file, mut before) = (String::new(), [0; 32]);
    for line in lines {
        let text = line.to_string();
        before = Sha256::new().chain_update(before).chain_update(&text).finalize().into();
        let sum: String = before.iter().map(|byte| format!("{byte:02x}")).collect();
        file += &format!("[\"{sum}\",{text}]\n");
    }
    file
}

/// Wherever JSON comes in, it is refused by name of the limit, or it comes out again and can be brought in.
#[test]
fn what_is_taken_can_be_exported_however_deep_it_is() {
    let (_dir, server) = start();
    let (mut taken, mut refused) = (0, 0);
    for depth in [10, 80, 90, 92, 94, 96, 98, 99, 100, 101, 102, 110, 118, 120, 122, 124, 125, 126, 127, 128, 129] {
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let turn = |n: usize, rest: &str| format!(r#"{{"session":"t{depth}-{n}",{rest}}}"#);
        let said = format!(r#"{{"role":"user","content":[{{"text":"x"}}],"metadata":{{"k":{deep}}}}}"#);
        let asked = format!(r#"{{"role":"user","content":[{{"toolRequest":{{"name":"t","input":{deep}}}}}]}}"#);
        let turns = "/v1/agents/asker/turns";
        let sent = [
            (turns, turn(0, &format!(r#""input":{{"messages":[{said}]}}"#))),
            (turns, turn(1, &format!(r#""input":{{"text":"x","stateDelta":{{"set":{{"k":{deep}}}}}}}"#))),
            (turns, turn(2, &format!(r#""input":{{"text":"x","data":{deep}}}"#))),
            (turns, turn(3, &format!(r#""input":{{"text":"x"}},"initial":{{"k":{deep}}}"#))),
            (turns, turn(4, &format!(r#""input":{{"messages":[{asked}]}}"#))),
            ("/v1/agents/asker/sessions", format!(r#"{{"id":"t{depth}-5","metadata":{{"k":{deep}}}}}"#)),
            ("/v1/agents/asker/sessions", format!(r#"{{"id":"t{depth}-6","state":{{"k":{deep}}}}}"#)),
        ];
        for (n, (path, body)) in sent.iter().enumerate() {
            let answer = post(&server, path, body);
            if !(200..300).contains(&answer.status) {
                assert_eq!(answer.status, 400, "{depth} {body}: {}", answer.body);
                assert!(answer.body.contains("levels, which is the limit"), "{depth} {body}: {}", answer.body);
                refused += 1;
                continue;
            }
            taken += 1;
            let session = format!("t{depth}-{n}");
            let export = server.request("GET", &format!("/v1/agents/asker/sessions/{session}/export"), "", "");
            let lines: Vec<_> = export.body.lines().filter(|line| line.starts_with('[')).collect();
            assert!(lines.last().is_some_and(|last| last.contains("{\"end\":")), "{session}: {}", export.body);
            let file = lines.join("\n") + "\n";
            let import = "/v1/agents/asker/import?fresh=true&snapshots=fresh";
            let made = server.request("POST", import, "Content-Type: application/x-ndjson\r\n", &file);
            assert_eq!(made.status, 201, "{session}: {}", made.body);
        }
    }
    assert!(taken >= 40 && refused >= 60, "{taken} were taken, {refused} refused");
}
