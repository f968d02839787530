//! What is wrong with a request as such: its frame, its size, its order.

use std::io::Write as _;

use super::{PATIENCE, Target};

/// One byte more than is taken.
const TOO_LARGE: usize = (16 << 20) + 1;

#[test]
fn bodies_that_are_too_large_are_refused_before_they_are_read() {
    let target = Target::start();
    for route in target.routes.iter().filter(|route| route.body.is_some()) {
        let head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {}\r\n",
            route.method, route.path, target.host, route.kind
        );
        for length in [TOO_LARGE.to_string(), u64::MAX.to_string(), "99999999999999999999999".to_owned()] {
            let answer = target.send(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes());
            answer.refused(&format!("{} with {length} bytes", route.name));
        }
        // Told in pieces, it is refused when it is too much, without waiting for the end.
        let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{TOO_LARGE:x}\r\n").into_bytes();
        chunked.resize(chunked.len() + TOO_LARGE, b' ');
        let answer = target.send(&chunked);
        assert_eq!(answer.status, Some(413), "{}: {}", route.name, answer.text);
    }
    target.unharmed();
}

#[test]
fn what_is_not_http_is_refused_or_closed() {
    let target = Target::start();
    let host = &target.host;
    let path = "/v1/agents/echo/sessions/s";
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = "x".repeat(1 << 20);
    for request in [
        "hello\r\n\r\n".to_owned(),
        format!("GET {path}\r\n\r\n"),
        format!("GET {path} HTTP/9.9\r\nHost: {host}\r\n\r\n"),
        format!("G\0T {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nno colon\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX: a\0b\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n X: folded\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{many}\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        format!(
            "POST {path}/fork HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}"
        ),
        format!("POST {path}/fork HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: -1\r\n\r\n{{}}"),
        format!(
            "POST {path}/fork HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        ),
        format!(
            "POST {path}/fork HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: gzip\r\n\r\n{{}}"
        ),
    ] {
        let answer = target.send(request.as_bytes());
        let refused = answer.status.is_none_or(|status| (400..500).contains(&status));
        assert!(refused, "{}: {}", &request[..request.len().min(200)], answer.text);
    }
    target.unharmed();
}

#[test]
fn a_body_that_says_its_length_in_two_ways_is_not_taken_for_two_requests() {
    let target = Target::start();
    let smuggled = "DELETE /v1/agents/echo/sessions/s HTTP/1.1\r\nHost: x\r\n\r\n";
    let request = format!(
        "POST /v1/agents/echo/turns HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
        target.host,
        smuggled.len() + 5
    );
    target.send(request.as_bytes()).refused("two lengths");
    target.unharmed();
}

#[test]
fn requests_that_come_at_once_are_answered_in_order() {
    let target = Target::start();
    let get = |path: &str, rest: &str| format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{rest}\r\n", target.host);
    let requests = [
        get("/v1/agents/echo", ""),
        get("/v1/agents/nobody", ""),
        get("/v1/agents/echo/sessions/s/snapshots?limit=x", ""),
        get("/v1/agents/redact", "Connection: close\r\n"),
    ]
    .concat();
    let mut stream = target.server.stream();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    let text = target.rest(&mut stream, requests.as_bytes()).text;
    let statuses: Vec<_> = text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "404", "400", "200"], "{text}");
    assert!(text.find("\"echo\"") < text.find("nobody") && text.find("nobody") < text.find("\"redact\""), "{text}");
    target.unharmed();
}
