//! Clients that are slow, half gone, or too many.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::Server;
use crate::{JSON, becomes, serve, until};

/// What came until the server closed, and how long that took.
fn rest(mut stream: TcpStream) -> (String, Duration) {
    let (since, mut bytes) = (Instant::now(), Vec::new());
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server did not close: {error}"),
    }
    (String::from_utf8_lossy(&bytes).into_owned(), since.elapsed())
}

fn send(server: &Server, text: &str) -> TcpStream {
    let mut stream = server.stream();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Shorter than the defaults of what is not looked at, and long enough for a busy machine.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn a_head_that_does_not_end_is_answered_408_and_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--header-timeout", "500ms"]);
    let mut slow = send(&server, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    // Bytes that trickle in do not buy more time.
    let mut trickle = slow.try_clone().unwrap();
    let trickling = std::thread::spawn(move || {
        while trickle.write_all(b"X-A: b\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    slow.set_read_timeout(Some(SOON)).unwrap();
    let mut first = [0; 32];
    let read = slow.read(&mut first).unwrap();
    assert!(String::from_utf8_lossy(&first[..read]).starts_with("HTTP/1.1 408"), "{:?}", &first[..read]);
    trickling.join().unwrap();
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);
}

#[test]
fn a_client_that_says_nothing_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--header-timeout", "300ms"]);
    let (said, took) = rest(server.stream());
    assert!(said.is_empty() && took < SOON, "{said:?} after {took:?}");
}

#[test]
fn a_connection_that_is_not_used_again_is_closed_and_one_that_is_stays() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--keep-alive", "1s", "--header-timeout", "100ms"]);
    let request = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let mut stream = server.stream();
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "it was closed too early");
            answer.push(byte[0]);
        }
        // Longer than a head may take: between requests another time holds.
        std::thread::sleep(Duration::from_millis(300));
    }
    let (said, took) = rest(stream);
    assert!(said.is_empty() && took < SOON, "{said:?} after {took:?}");
}

#[test]
fn a_body_that_stops_is_answered_408_on_every_wire() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--body-pause", "300ms"]);
    for path in ["/v1/agents/echo/turns", "/genkit/echo", "/v1/agents/echo/sessions"] {
        let half = format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}Content-Length: 100\r\n\r\n{{\"input\":");
        let (said, took) = rest(send(&server, &half));
        assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("in time"), "{path}: {said}");
        assert!(took < SOON, "{took:?}");
    }
}

#[test]
fn a_body_that_never_ends_is_answered_408_however_steadily_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--body-timeout", "1s"]);
    let head = format!("POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}Content-Length: 100000\r\n\r\n");
    let mut stream = send(&server, &head);
    let mut trickle = stream.try_clone().unwrap();
    let trickling = std::thread::spawn(move || {
        while trickle.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut first = [0; 32];
    let read = stream.read(&mut first).unwrap();
    assert!(String::from_utf8_lossy(&first[..read]).starts_with("HTTP/1.1 408"));
    drop(stream);
    trickling.join().unwrap();
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--header-limit", "8KiB"]);
    let large = format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: {}\r\n\r\n", "x".repeat(16 << 10));
    let (said, _) = rest(send(&server, &large));
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431 "), "{said}");
    let many = format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\n", "X-A: b\r\n".repeat(200));
    let (said, _) = rest(send(&server, &many));
    assert!(said.starts_with("HTTP/1.1 431 "), "{said}");
}

/// A request with a head of so many bytes.
fn with_head(bytes: usize) -> String {
    let (start, end) = ("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-A: ", "\r\n\r\n");
    format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len()))
}

#[test]
fn a_head_may_be_as_large_as_the_limit_and_no_larger() {
    let dir = tempfile::tempdir().unwrap();
    for (limit, bytes) in [("8KiB", 8 << 10), ("64KiB", 64 << 10)] {
        let server = serve(dir.path(), "memory:", &["--header-limit", limit]);
        let (said, _) = rest(send(&server, &with_head(bytes)));
        assert!(said.starts_with("HTTP/1.1 200 "), "{limit}: {said}");
        for more in [1, 100, bytes / 3] {
            let (said, _) = rest(send(&server, &with_head(bytes + more)));
            assert!(said.starts_with("HTTP/1.1 431 "), "{limit} and {more}: {said}");
        }
    }
}

#[test]
fn a_length_that_no_body_has_is_too_large_and_no_matter_of_the_head() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    for length in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
        let head = format!("POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}Content-Length: {length}\r\n\r\n");
        let (said, took) = rest(send(&server, &head));
        assert!(said.starts_with("HTTP/1.1 413 ") && took < SOON, "{length}: {said} after {took:?}");
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_by_the_limit_that_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--body-limit", "1KiB", "--page-limit", "3"]);
    let body = format!(r#"{{"input":{{"text":"{}"}}}}"#, "x".repeat(2000));
    for path in ["/v1/agents/echo/turns", "/genkit/echo"] {
        let answer = server.request("POST", path, JSON, &body);
        assert!(answer.status == 413 && answer.body.contains("1024"), "{} {}", answer.status, answer.body);
    }
    let chunked = format!(
        "POST /genkit/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let (said, _) = rest(send(&server, &chunked.replace("Host", "Connection: close\r\nHost")));
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    assert_eq!(server.request("GET", "/v1/agents/echo/sessions?limit=3", "", "").status, 200);
    let answer = server.request("GET", "/v1/agents/echo/sessions?limit=4", "", "");
    assert!(answer.status == 400 && answer.body.contains("from 1 to 3"), "{}", answer.body);
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--write-timeout", "500ms"]);
    // More than the system keeps for a client that does not read.
    let body = serde_json::json!({"input": {"text": "x".repeat(2 << 20)}, "session": "s"}).to_string();
    for _ in 0..8 {
        assert_eq!(server.request("POST", "/v1/agents/echo/turns", JSON, &body).status, 200);
    }
    let mut stream = send(&server, "GET /v1/agents/echo/sessions/s/state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(stream.read(&mut [0; 16]).unwrap() > 0, "the answer has begun");
    // The rest is not read. The only connection left is then the one that asks for the number.
    becomes(&server, "everturn_connections_open", 1.0);
    drop(stream);
}

#[test]
fn one_connection_too_many_is_told_so_and_there_is_room_again_when_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--max-connections", "2"]);
    let (one, two) = (server.stream(), server.stream());
    let refused = until("a refusal", || {
        let (said, _) = rest(send(&server, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"));
        if said.starts_with("HTTP/1.1 503 ") { Ok(said) } else { Err(said) }
    });
    assert!(refused.contains("retry-after: 1") && refused.contains("application/problem+json"), "{refused}");
    drop(one);
    until("room", || {
        let (said, _) = rest(send(&server, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"));
        if said.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(said) }
    });
    drop(two);
}

#[test]
fn a_server_takes_as_many_files_as_it_may_have() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_everturn"), "serve", "--demo"]);
    command.args(["--addr", "127.0.0.1:0", "--store", "memory:"]);
    let server = Server::spawn(dir.path(), command);
    let many: Vec<_> = (0..100).map(|_| server.stream()).collect();
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);
    drop(many);
}

#[test]
fn idle_connections_do_not_keep_a_server_from_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "memory:", &["--drain", "60s"]);
    let mut idle = server.stream();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 512]).unwrap() > 0);
    let since = Instant::now();
    assert!(
        std::process::Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success()
    );
    assert!(server.child.wait().unwrap().success(), "{}", server.logs());
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}
