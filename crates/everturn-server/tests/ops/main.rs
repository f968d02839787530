//! `everturn serve` as whoever runs it has it: its settings, its limits, its numbers, its logs and its bad days.

mod answers;
mod backup;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod disks;
mod documents;
mod logs;
mod metrics;
mod overload;
mod refused_bodies;
mod signals;
mod slow_clients;
mod traces;
mod verify;

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use common::{Answer, Server};
use serde_json::Value;

const JSON: &str = "Content-Type: application/json\r\n";

fn everturn(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everturn")).args(args).current_dir(dir).output().expect("the binary runs")
}

/// A server with these options beside the usual ones.
fn serve(dir: &Path, store: &str, options: &[&str]) -> Server {
    Server::start_with(dir, store, &[&["--addr", "127.0.0.1:0"], options].concat())
}

/// A turn of the echo agent under `/v1`.
fn v1_turn(server: &Server, headers: &str, text: &str) -> Answer {
    let body = serde_json::json!({"input": {"text": text}}).to_string();
    server.request("POST", "/v1/agents/echo/turns", &format!("{JSON}{headers}"), &body)
}

/// Starts a turn whose answer is not read yet.
fn start_turn(server: &Server, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = server.stream();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{JSON}Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it is sent");
    stream
}

/// A turn of the echo agent that goes on for ten minutes or until its client goes away.
fn slow_turn(server: &Server, headers: &str) -> TcpStream {
    start_turn(server, "/v1/agents/echo/turns", headers, r#"{"input":{"text":"slow 600000"}}"#)
}

/// Asks until something is so. What happens elsewhere takes a moment, not longer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match ask() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < end, "{what}: {last}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The value of a metric, by its name with its labels; nothing if it is not told.
fn metric(server: &Server, name: &str) -> Option<f64> {
    let text = server.request("GET", "/metrics", "", "").body;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until a metric has a value.
fn becomes(server: &Server, name: &str, value: f64) {
    until(name, || match metric(server, name) {
        Some(now) if now == value => Ok(()),
        now => Err(format!("{now:?}")),
    });
}

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}
