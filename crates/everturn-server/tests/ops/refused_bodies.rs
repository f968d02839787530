//! What is refused before its body was read, as clients see it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::common::Server;
use crate::{JSON, everturn, serve};

/// How often each is tried: whether an answer is lost depends on who is quicker.
const TRIES: usize = 8;

/// What a program says, which must go well.
fn said(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: scripts/test installs it"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Posts so many bytes a few times and tells the statuses, or what went wrong.
const FETCH: &str = "
const [url, bytes, tries] = process.argv.slice(1);
const body = 'x'.repeat(Number(bytes));
const said = [];
for (let i = 0; i < Number(tries); i++) {
  const headers = {'content-type': 'application/json'};
  said.push(await fetch(url, {method: 'POST', headers, body}).then(
    async answer => (await answer.text(), answer.status), error => error.cause?.code ?? String(error)));
}
console.log(said.join(' '));
";

const HTTP_CLIENT: &str = "
import http.client, sys, urllib.parse
url, size, tries = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
said = []
for _ in range(tries):
    try:
        c = http.client.HTTPConnection(url.netloc, timeout=30)
        c.request('POST', url.path, b'x' * size, {'content-type': 'application/json'})
        answer = c.getresponse()
        answer.read()
        said.append(str(answer.status))
    except Exception as e:
        said.append(type(e).__name__)
print(' '.join(said))
";

fn node(url: &str, bytes: usize) -> String {
    let mut command = Command::new("node");
    command.args(["--input-type=module", "-e", FETCH, url, &bytes.to_string(), &TRIES.to_string()]);
    said(command)
}

fn python(url: &str, bytes: usize) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", HTTP_CLIENT, url, &bytes.to_string(), &TRIES.to_string()]);
    said(command)
}

fn curl(dir: &Path, url: &str, bytes: usize) -> String {
    let body = dir.join("body");
    std::fs::write(&body, vec![b'x'; bytes]).unwrap();
    let mut command = Command::new("curl");
    command.args(["-s", "-w", "%{http_code} ", "-H", "Content-Type: application/json"]);
    command.arg("--data-binary").arg(format!("@{}", body.display()));
    for _ in 0..TRIES {
        command.args(["-o", "/dev/null", url]);
    }
    said(command)
}

#[test]
fn the_refusal_of_a_large_body_arrives_whoever_asks() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    for (path, bytes, status) in [
        ("/v1/agents/echo/turns", 17 << 20, "413"),
        ("/genkit/echo", 17 << 20, "413"),
        ("/v1/agents/nobody/turns", 15 << 20, "404"),
        ("/v1/agents/nobody/turns", 1 << 20, "404"),
        ("/genkit/nobody", 3 << 20, "404"),
    ] {
        let (url, wanted) = (format!("{}{path}", server.url), [status; TRIES].join(" "));
        assert_eq!(node(&url, bytes), wanted, "fetch of node: {path} with {bytes} bytes");
        assert_eq!(python(&url, bytes), wanted, "http.client of Python: {path} with {bytes} bytes");
        assert_eq!(curl(dir.path(), &url, bytes), wanted, "curl: {path} with {bytes} bytes");
    }
}

#[test]
fn the_refusal_of_a_stranger_with_a_large_body_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::common::sqlite_in(dir.path());
    assert!(everturn(dir.path(), &["keys", "--store", &store, "create", "--user", "ann"]).status.success());
    let server = serve(dir.path(), &store, &[]);
    let url = format!("{}/v1/agents/echo/turns", server.url);
    let wanted = ["401"; TRIES].join(" ");
    assert_eq!(node(&url, 1 << 20), wanted, "fetch of node");
    assert_eq!(python(&url, 1 << 20), wanted, "http.client of Python");
    assert_eq!(curl(dir.path(), &url, 1 << 20), wanted, "curl");
}

/// The head of a request whose body is sent later.
fn head(path: &str, bytes: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}Content-Length: {bytes}\r\n\r\n")
}

/// Reads one answer to its end, and tells its head.
fn answer(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "closed: {}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
    let head = String::from_utf8(read).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    head
}

fn refused(server: &Server, bytes: usize) -> (TcpStream, String) {
    let mut stream = server.stream();
    stream.write_all(head("/v1/agents/nobody/turns", bytes).as_bytes()).unwrap();
    let head = answer(&mut stream);
    assert!(head.starts_with("http/1.1 404 "), "{head}");
    (stream, head)
}

#[test]
fn a_small_body_that_comes_after_its_refusal_does_not_cost_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    let (mut stream, first) = refused(&server, 30);
    assert!(!first.contains("connection: close"), "{first}");
    for _ in 0..3 {
        stream.write_all(&[b'x'; 30]).unwrap();
        stream.write_all(head("/genkit/nobody", 30).as_bytes()).unwrap();
        assert!(answer(&mut stream).starts_with("http/1.1 404 "));
    }
    stream.write_all(&[b'x'; 30]).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    assert!(answer(&mut stream).starts_with("http/1.1 200 "));
}

#[test]
fn the_refusal_of_a_large_body_says_that_the_connection_is_closed_and_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    let (mut stream, first) = refused(&server, 8 << 20);
    assert!(first.contains("connection: close"), "{first}");
    // Half of it comes and then no more: it is not waited for long.
    stream.write_all(&vec![b'x'; 4 << 20]).unwrap();
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
}

#[test]
fn a_body_without_an_end_is_not_read_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &[]);
    let (mut stream, _) = refused(&server, 1 << 40);
    let part = vec![b'x'; 1 << 20];
    let sent = (0..4096).take_while(|_| stream.write_all(&part).is_ok()).count();
    assert!(sent < 1024, "{sent} MiB were read");
}
