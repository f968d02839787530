//! Requests whose frames can be read in two ways, names that a server is called by, and paths in disguise.

use std::io::Write as _;
use std::net::Shutdown;

use super::{PATIENCE, Target};

/// What a request says about its length beside `Content-Length: N`, so that two programs could read it differently.
const KINDS: [&str; 29] = [
    "Transfer-Encoding: chunked",
    "transfer-encoding: CHUNKED",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding:chunked",
    "Transfer-Encoding: chunked ",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding:",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    "X: y\r\n Transfer-Encoding: chunked",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "Transfer_Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Content-Length: 0",
    "Content-Length: 5, 5",
    "Content-Length: +5",
    " Content-Length: 0",
    "Connection: Content-Length\r\nTransfer-Encoding: chunked",
];

#[test]
fn no_frame_that_can_be_read_in_two_ways_hides_a_request() {
    let target = Target::start();
    let hidden = format!("DELETE /v1/agents/echo/sessions/s HTTP/1.1\r\nHost: {}\r\n\r\n", target.host);
    let chunk = format!("{:x}\r\n", hidden.len());
    let mut tried = 0;
    for kind in KINDS {
        // One program takes it for a body by its length, the other for a request behind an empty body; or the other way.
        let behind = format!("0\r\n\r\n{hidden}");
        let within = format!("{chunk}{hidden}\r\n0\r\n\r\n");
        for (length, body) in [(behind.len(), behind), (chunk.len(), within)] {
            for named_first in [true, false] {
                let length = format!("Content-Length: {length}");
                let lines = if named_first { format!("{length}\r\n{kind}") } else { format!("{kind}\r\n{length}") };
                let request = format!(
                    "POST /v1/agents/echo/turns HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{lines}\r\n\r\n{body}",
                    target.host
                );
                let mut stream = target.server.stream();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let _ = stream.write_all(request.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
                let answer = target.rest(&mut stream, request.as_bytes());
                assert!(answer.status.is_none_or(|status| (400..500).contains(&status)), "{kind:?}: {}", answer.text);
                let session = target.server.request("GET", "/v1/agents/echo/sessions/s", "", "");
                assert_eq!(session.status, 200, "{kind:?} hid a request that was carried out");
                tried += 1;
            }
        }
    }
    target.unharmed();
    println!("{tried} frames that can be read in two ways: 0 requests smuggled");
}

#[test]
fn chunks_that_are_none_are_refused_or_closed() {
    let target = Target::start();
    let body = r#"{"input":{"text":"x"}}"#;
    let length = body.len();
    for chunks in [
        format!("0x{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("+{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("-1\r\n{body}\r\n0\r\n\r\n"),
        format!(" {length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("{length:x}g\r\n{body}\r\n0\r\n\r\n"),
        format!("ffffffffffffffff\r\n{body}\r\n0\r\n\r\n"),
        format!("fffffffffffffffff{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("{:x}\r\n{body}\r\n0\r\n\r\n", length - 1),
        format!("{:x}\r\n{body}\r\n0\r\n\r\n", length + 1),
        format!("{length:x}\n{body}\n0\n\n"),
        format!("{length:x}\r\n{body}0\r\n\r\n"),
        format!("{length:x};{}\r\n{body}\r\n0\r\n\r\n", "e".repeat(100_000)),
        format!("{}{length:x}\r\n{body}\r\n0\r\n\r\n", "0".repeat(100_000)),
        format!("\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("{length:x}\r\n{body}\r\n"),
    ] {
        let request = format!(
            "POST /v1/agents/echo/turns HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Transfer-Encoding: chunked\r\n\r\n{chunks}",
            target.host
        );
        let mut stream = target.server.stream();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let answer = target.rest(&mut stream, request.as_bytes());
        let refused = answer.status.is_none_or(|status| (400..500).contains(&status));
        assert!(refused, "{:?}: {}", &chunks[..chunks.len().min(60)], answer.text);
    }
    target.unharmed();
}

#[test]
fn names_and_origins_that_are_not_ours_reach_nothing() {
    let target = Target::start();
    let (_, port) = target.host.rsplit_once(':').unwrap();
    let path = "/v1/agents/echo/sessions/s";
    let ask = |line: &str, headers: &str| {
        target.send(format!("{line} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").as_bytes())
    };
    for name in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"] {
        for host in [format!("{name}:{port}"), name.to_owned()] {
            let answer = ask(&format!("GET {path}"), &format!("Host: {host}\r\n"));
            assert_eq!(answer.status, Some(200), "{host}: {}", answer.text);
        }
    }
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#127.0.0.1",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1,evil.example",
        "127.0.0.1 evil.example",
        "0.0.0.0",
        "10.0.0.1",
        "[::ffff:10.0.0.1]",
        "[::1",
        "xn--localhost",
        "localhost\u{3002}evil.example",
        "",
        "*",
        "null",
        "127.0.0.1/evil",
    ] {
        let answer = ask(&format!("GET {path}"), &format!("Host: {host}\r\n"));
        assert!(answer.status.is_some_and(|status| (400..500).contains(&status)), "{host:?}: {}", answer.text);
    }
    for origin in [
        "https://evil.example",
        "null",
        "*",
        "",
        "file://",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://evil.example#localhost",
        &format!("http://localhost:{port}.evil.example"),
        &format!("http://localhost:{port}@evil.example"),
        &format!("http://localhost:{port}/"),
        &format!("http://localhost:{port}, https://evil.example"),
        &format!("https://evil.example\r\nOrigin: http://localhost:{port}"),
        "chrome-extension://abc",
    ] {
        for (method, path) in [("POST", "/v1/agents/echo/turns"), ("POST", "/genkit/echo"), ("GET", path)] {
            let headers = format!("Host: 127.0.0.1:{port}\r\nOrigin: {origin}\r\nContent-Length: 0\r\n");
            let answer = ask(&format!("{method} {path}"), &headers);
            assert!(answer.status.is_some_and(|status| (400..500).contains(&status)), "{origin:?}: {}", answer.text);
            assert!(!answer.text.to_ascii_lowercase().contains("access-control-allow"), "{origin:?}: {}", answer.text);
        }
    }
    target.unharmed();
}

#[test]
fn paths_in_disguise_reach_nothing_that_they_do_not_name() {
    let target = Target::start();
    for path in [
        "//v1/agents/echo/sessions/s",
        "/v1//agents/echo/sessions/s",
        "/v1/./agents/echo/sessions/s",
        "/v1/agents/../agents/echo/sessions/s",
        "/v1/agents/%2e%2e/agents/echo/sessions/s",
        "/v1/agents/echo/sessions/%2e",
        "/v1/agents/echo/sessions/%2e%2e/sessions/s",
        "/v1/agents/echo%2fsessions%2fs",
        "/v1/agents/echo/sessions/s%2f",
        "/v1/agents/echo/sessions/s%00",
        "/v1/agents/echo/sessions/s%00.html",
        "/v1/agents/echo/sessions/s%20",
        "/v1/agents/echo/sessions/%73%2500",
        "/v1/agents/echo/sessions/%c1%b3",
        "/v1/agents/echo/sessions/%e0%81%b3",
        "/v1/agents/echo/sessions/%ud83d",
        "/v1/agents/echo/sessions/%",
        "/v1/agents/echo/sessions/%7",
        "/v1/agents/echo/sessions/%zz",
        "/v1/agents/echo/sessions/s;a=b",
        "/v1/agents/echo/sessions/s\\",
        "/v1/agents/echo/sessions/s/",
        "/V1/agents/echo/sessions/s",
        "/v1/agents/ECHO/sessions/s",
        "/v1/agents/echo/sessions/S",
        "/v1/agents/echo/sessions/ｓ",
        "/v1\\agents\\echo\\sessions\\s",
        "/genkit/../v1/agents/echo/sessions/s",
        "/healthz/../v1/agents/echo/sessions/s",
        "/healthz/v1/agents/echo/sessions/s",
        "/v1/agents/echo/sessions/s%3Fx",
        "*",
        "v1/agents/echo/sessions/s",
    ] {
        for method in ["GET", "DELETE"] {
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target.host);
            let answer = target.send(request.as_bytes());
            let refused = answer.status.is_none_or(|status| (400..500).contains(&status));
            assert!(refused, "{method} {path}: {}", answer.text);
        }
    }
    // The same path in other letters is the same path.
    for path in ["/v1/agents/echo/sessions/%73", "/v1/agents/%65cho/sessions/s"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target.host);
        assert_eq!(target.send(request.as_bytes()).status, Some(200), "{path}");
    }
    target.unharmed();
}
