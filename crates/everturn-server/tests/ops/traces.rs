//! Traces, sent to a collector by the variables that OpenTelemetry has for it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::Server;
use crate::v1_turn;

/// What a collector was sent: its request's head and body.
struct Export {
    head: String,
    body: Vec<u8>,
}

/// A collector that takes everything.
fn collector() -> (String, Receiver<Export>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (exports, received) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let exports = exports.clone();
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                while let Some(export) = read(&mut stream) {
                    let json = export.head.contains("application/json");
                    let (kind, body) = if json { ("application/json", "{}") } else { ("application/x-protobuf", "") };
                    let length = body.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}");
                    stream.write_all(answer.as_bytes()).unwrap();
                    if exports.send(export).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, received)
}

fn read(stream: &mut TcpStream) -> Option<Export> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Export { head, body })
}

fn server(dir: &std::path::Path, variables: &[(&str, &str)]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
    command.args(["serve", "--demo", "--store", "memory:", "--addr", "127.0.0.1:0"]).envs(variables.iter().copied());
    // Soon, so that the test need not wait for a batch.
    command.env("OTEL_BSP_SCHEDULE_DELAY", "100");
    Server::spawn(dir, command)
}

const WAIT: Duration = Duration::from_secs(30);

#[test]
fn a_turn_arrives_at_the_collector_below_the_trace_of_its_sender() {
    let dir = tempfile::tempdir().unwrap();
    let (url, exports) = collector();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_SERVICE_NAME", "shop"),
    ];
    let server = server(dir.path(), &variables);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    assert_eq!(v1_turn(&server, &format!("traceparent: 00-{trace}-{parent}-01\r\n"), "private words").status, 200);
    let mut spans = Vec::new();
    while !spans.iter().any(|span: &Value| span["name"] == "POST /v1/agents/{agent}/turns") {
        let export = exports.recv_timeout(WAIT).unwrap_or_else(|_| panic!("no export\n{}", server.logs()));
        assert!(export.head.starts_with("post /v1/traces "), "{}", export.head);
        let text = String::from_utf8(export.body).unwrap();
        assert!(text.contains("\"shop\"") && !text.contains("private words"), "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        let scopes = json["resourceSpans"].as_array().unwrap().iter().flat_map(|r| r["scopeSpans"].as_array().unwrap());
        spans.extend(scopes.flat_map(|scope| scope["spans"].as_array().unwrap().clone()));
    }
    let named =
        |name: &str| spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {spans:?}"));
    let request = named("POST /v1/agents/{agent}/turns");
    assert_eq!((request["traceId"].as_str(), request["parentSpanId"].as_str()), (Some(trace), Some(parent)));
    assert_eq!(named("sessionFlow/turn/0")["traceId"], trace);
    assert_eq!(named("echo")["parentSpanId"], request["spanId"]);
}

#[test]
fn spans_are_protobuf_unless_told_and_the_last_ones_are_sent_when_the_server_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (url, exports) = collector();
    let traces = format!("{url}/my/traces");
    let variables = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*traces), ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")];
    let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
    command.args(["serve", "--demo", "--store", "memory:", "--addr", "127.0.0.1:0"]).envs(variables);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "600000");
    let mut server = Server::spawn(dir.path(), command);
    assert_eq!(v1_turn(&server, "", "hi").status, 200);
    assert!(Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success());
    let export = exports.recv_timeout(WAIT).unwrap_or_else(|_| panic!("no export\n{}", server.logs()));
    assert!(export.head.starts_with("post /my/traces "), "{}", export.head);
    assert!(export.head.contains("application/x-protobuf") && export.head.contains("x-token: abc"), "{}", export.head);
    let text = String::from_utf8_lossy(&export.body);
    assert!(
        text.contains("sessionFlow/turn/0") && text.contains("service.name") && text.contains("everturn"),
        "{text}"
    );
    assert!(server.child.wait().unwrap().success(), "{}", server.logs());
}

#[test]
fn nothing_is_sent_unless_asked_for_and_a_collector_that_is_not_there_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (url, exports) = collector();
    {
        let server = server(dir.path(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_SDK_DISABLED", "true")]);
        assert_eq!(v1_turn(&server, "", "hi").status, 200);
    }
    assert!(exports.try_recv().is_err());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = server(dir.path(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", &*format!("http://{nobody}"))]);
    for _ in 0..3 {
        assert_eq!(v1_turn(&server, "", "hi").status, 200);
    }
    assert!(Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success());
    assert!(server.child.wait().unwrap().success(), "{}", server.logs());
}
