//! What signals do.

use std::io::{Read as _, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::Server;
use crate::{serve, until};

fn signal(server: &Server, name: &str) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

fn stops(mut server: Server) {
    until("the end", || match server.child.try_wait().unwrap() {
        Some(status) if status.success() => Ok(()),
        status => Err(format!("{status:?}\n{}", server.logs())),
    });
    assert!(server.log("stdout").ends_with("stopped\n"), "{}", server.logs());
}

#[test]
fn a_hangup_and_the_signals_of_users_are_noted_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "memory:", &[]);
    for name in ["HUP", "USR1", "USR2"] {
        signal(&server, name);
        until(name, || match server.log("stderr").contains(&format!("SIG{name}")) {
            true => Ok(()),
            false => Err(format!("{:?} {}", server.child.try_wait(), server.logs())),
        });
    }
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);
    signal(&server, "TERM");
    stops(server);
}

#[test]
fn a_quit_lets_what_runs_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "memory:", &["--drain", "60s"]);
    let body = r#"{"input":{"text":"slow 1500"}}"#;
    let mut running = crate::start_turn(&server, "/v1/agents/echo/turns", "", body);
    crate::becomes(&server, "everturn_turns_running", 1.0);
    signal(&server, "QUIT");
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stops(server);
}

#[test]
fn a_head_that_does_not_end_keeps_no_server_from_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "memory:", &["--drain", "120s", "--header-timeout", "120s"]);
    let (silent, mut half) = (server.stream(), server.stream());
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127").unwrap();
    let mut used = server.stream();
    used.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    assert!(used.read(&mut [0; 512]).unwrap() > 0);
    used.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
    crate::becomes(&server, "everturn_connections_open", 4.0);
    let since = Instant::now();
    signal(&server, "TERM");
    assert!(server.child.wait().unwrap().success(), "{}", server.logs());
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    drop((silent, half, used));
}
