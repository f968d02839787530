//! What is open when its key ends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::*;

/// Sends a request whose answer is read later.
fn open(server: &Server, method: &str, path: &str, key: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = server.stream();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n{JSON}{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .expect("it is sent");
    stream
}

/// What comes until the server closes, within a minute.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the server ends it");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until something was said.
fn until_said(stream: &mut TcpStream, what: &str) {
    let mut text = String::new();
    while !text.contains(what) {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).expect("it is said");
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&part[..read]));
    }
}

/// The last event of a stream of `/v1` says that the key has ended.
fn ended_with_an_error(text: &str) {
    let last = text.rfind("event: ").map_or("", |at| &text[at..]);
    assert!(last.starts_with("event: error\n") && last.contains("\"code\":\"unauthenticated\""), "{text}");
}

#[test]
fn what_is_open_ends_soon_after_its_key_is_revoked() {
    let home = Home::new();
    let (key, other) = (home.key("ann", &[]), home.key("ann", &[]));
    let server = home.serve(&[]);
    turn(&server, &key, "echo", "hi", &json!({"sessionId": "s"}));
    let text = |text: &str, detach: bool| json!({"input": {"text": text, "detach": detach}}).to_string();
    let pending = post(&server, &key, "/v1/agents/echo/turns", &text("slow 600000", true));
    let pending: Value = serde_json::from_str(&pending.body).unwrap();
    let pending = pending["snapshotId"].as_str().unwrap();
    let of = |path: &str| format!("/v1/agents/echo/snapshots/{pending}/{path}");
    let sse = "Accept: text/event-stream\r\n";

    let mut follow = open(&server, "GET", "/v1/agents/echo/sessions/s/follow", &key, "", "");
    until_said(&mut follow, "event: session");
    let mut stream = open(&server, "GET", &of("stream"), &key, "", "");
    until_said(&mut stream, "200 OK");
    let wait = open(&server, "GET", &of("wait?seconds=600"), &key, "", "");
    let lookup = json!({"data": {"snapshotId": pending}}).to_string();
    let genkit_wait = open(&server, "POST", "/genkit/echo/waitForSnapshot", &key, "", &lookup);
    let mut running = open(&server, "POST", "/v1/agents/echo/turns", &key, sse, &text("slow 20000", false));
    until_said(&mut running, "event: begun");
    let body = message("slow 600000", &json!({}));
    let mut genkit = open(&server, "POST", "/genkit/echo", &key, sse, &body);
    until_said(&mut genkit, "200 OK");
    let kept = open(&server, "GET", "/v1/agents/echo/sessions/s/follow", &other, "", "");

    said(&home.keys(&["revoke", id_of(&key)]));
    ended_with_an_error(&rest(follow));
    ended_with_an_error(&rest(stream));
    ended_with_an_error(&rest(running));
    let last = rest(genkit);
    assert!(last.trim_end().ends_with('}') || last.contains("\"error\""), "{last}");
    assert!(last.contains("\"UNAUTHENTICATED\""), "{last}");
    for waiting in [wait, genkit_wait] {
        let answer = rest(waiting);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    assert_eq!(turn(&server, &other, "echo", "hi", &json!({"sessionId": "s"}))["finishReason"], "stop");
    let mut kept = kept;
    until_said(&mut kept, "\"seq\":5");
}

#[test]
fn a_turn_goes_on_to_its_end_though_the_key_that_reads_it_is_revoked() {
    let home = Home::new();
    let (key, other) = (home.key("ann", &[]), home.key("ann", &[]));
    let server = home.serve(&[]);
    let body = json!({"session": "s", "input": {"text": "slow 8000"}}).to_string();
    let sse = "Accept: text/event-stream\r\n";
    let mut running = open(&server, "POST", "/v1/agents/echo/turns", &key, sse, &body);
    until_said(&mut running, "event: begun");
    said(&home.keys(&["revoke", id_of(&key)]));
    let told = rest(running);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let answer =
            server.request("GET", "/v1/agents/echo/sessions/s", &format!("Authorization: Bearer {other}\r\n"), "");
        let session: Value = serde_json::from_str(&answer.body).unwrap();
        if session["turns"] == 1 {
            break;
        }
        assert!(Instant::now() < end, "{session}\n{told}");
        thread::sleep(Duration::from_millis(100));
    }
    ended_with_an_error(&told);
}

#[test]
fn an_export_breaks_off_when_its_key_is_revoked() {
    let home = Home::new();
    let (key, other) = (home.key("ann", &[]), home.key("ann", &[]));
    let server = home.serve(&[]);
    let body = json!({"session": "s", "input": {"text": "x".repeat(1 << 20)}}).to_string();
    for _ in 0..12 {
        assert_eq!(post(&server, &key, "/v1/agents/echo/turns", &body).status, 200);
    }
    let path = "/v1/agents/echo/sessions/s/export";
    let whole = rest(open(&server, "GET", path, &other, "", ""));
    assert!(whole.ends_with("0\r\n\r\n") && whole.contains("\"end\""), "{}", whole.len());
    let mut export = open(&server, "GET", path, &key, "", "");
    until_said(&mut export, "200 OK");
    let mut follow = open(&server, "GET", "/v1/agents/echo/sessions/s/follow", &key, "", "");
    until_said(&mut follow, "event: session");
    said(&home.keys(&["revoke", id_of(&key)]));
    // This one is looked after the other: when it has ended, the time to look after the other has come.
    ended_with_an_error(&rest(follow));
    let mut bytes = Vec::new();
    let _ = export.read_to_end(&mut bytes);
    assert!(bytes.len() < whole.len() / 2, "{} of {}", bytes.len(), whole.len());
}

#[test]
fn what_is_open_ends_with_its_token() {
    let home = Home::new();
    private(&home.path().join("secret"), SECRET);
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    let token = |seconds: u64| {
        let claims = json!({"sub": "ann", "aud": "everturn", "exp": now() + seconds, "rights": ["read", "write"]});
        jwt(&json!({"alg": "HS256"}), &claims, SECRET)
    };
    let (short, long) = (token(4), token(600));
    turn(&server, &long, "echo", "hi", &json!({"sessionId": "s"}));
    let path = "/v1/agents/echo/sessions/s/follow";
    let mut kept = open(&server, "GET", path, &long, "", "");
    until_said(&mut kept, "event: session");
    ended_with_an_error(&rest(open(&server, "GET", path, &short, "", "")));
    turn(&server, &long, "echo", "again", &json!({"sessionId": "s"}));
    until_said(&mut kept, "event: record");
}
