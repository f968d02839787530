//! Disks that are full, and disks that fail.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::common::small_disk::Small;
use crate::common::{Server, sqlite_in};
use crate::{JSON, json, metric, serve, start_turn, until, v1_turn};

/// Turns until one is refused.
fn refused(server: &Server) -> crate::common::Answer {
    until("a refusal", || match v1_turn(server, "", &"x".repeat(20_000)) {
        answer if answer.status == 200 => Err("it still works".to_owned()),
        answer => Ok(answer),
    })
}

#[test]
fn a_full_disk_is_told_and_gone_on_from_when_there_is_room() {
    let Some(small) = Small::mount("8m") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let server = serve(logs.path(), &sqlite_in(small.path()), &[]);
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    let ballast = small.fill_but(0);
    let answer = refused(&server);
    assert_eq!(answer.status, 503, "{}", answer.body);
    let problem = json(&answer);
    assert_eq!(problem["code"], "unavailable", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("make room"), "{problem}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    fs::remove_file(ballast).unwrap();
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    let sessions = json(&server.request("GET", "/v1/agents/echo/sessions?limit=100", "", ""));
    assert!(sessions["items"].as_array().unwrap().len() >= 2, "{sessions}");
}

const TURNS: &str = "/v1/agents/echo/turns";

/// What comes of a request until its connection is closed.
fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it ends");
    text
}

/// Waits until a session runs a turn.
fn runs(server: &Server, session: &str) {
    let path = format!("/v1/agents/echo/sessions/{session}");
    until("that a turn runs", || match server.request("GET", &path, "", "") {
        answer if answer.status == 200 && json(&answer)["status"] == "running" => Ok(()),
        answer => Err(answer.body),
    });
}

#[test]
fn a_turn_that_ends_on_a_full_disk_is_over_for_everybody() {
    let Some(small) = Small::mount("8m") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let server = serve(logs.path(), &sqlite_in(small.path()), &[]);
    let slow = |session: &str| format!(r#"{{"session":"{session}","input":{{"text":"slow 1500"}}}}"#);
    let plain = start_turn(&server, TURNS, "Idempotency-Key: k\r\n", &slow("plain"));
    let streamed = start_turn(&server, TURNS, "Accept: text/event-stream\r\n", &slow("streamed"));
    runs(&server, "plain");
    runs(&server, "streamed");
    let ballast = small.fill_but(0);
    // Both are told, whatever the disk does.
    let plain = rest(plain);
    assert!(plain.starts_with("HTTP/1.1 200") && plain.contains("make room"), "{plain}");
    let streamed = rest(streamed);
    assert!(streamed.contains("\"turnEnd\":{") && streamed.contains("event: output"), "{streamed}");
    assert!(streamed.contains("make room"), "{streamed}");
    fs::remove_file(ballast).unwrap();
    // Nobody waits for what was answered: a busy branch would be a 409 after half a minute.
    for session in ["plain", "streamed"] {
        let body = format!(r#"{{"session":"{session}","input":{{"text":"next"}}}}"#);
        let next = server.request("POST", TURNS, JSON, &body);
        assert_eq!((next.status, &json(&next)["finishReason"]), (200, &"stop".into()), "{}", next.body);
    }
    // It was not kept, so its key makes it happen; once.
    for _ in 0..2 {
        let headers = format!("{JSON}Idempotency-Key: k\r\n");
        let again = server.request("POST", TURNS, &headers, &slow("plain"));
        assert_eq!(json(&again)["message"]["content"][0]["text"], "slow done", "{}", again.body);
    }
    assert_eq!(json(&server.request("GET", "/v1/agents/echo/sessions/plain", "", ""))["turns"], 2);
}

/// A volume of its own for the store: nothing else can be removed from it. Only where a file system can be mounted, and with
/// `EVERTURN_SOAK` set, because it writes until the volume is full.
#[test]
fn a_full_volume_of_its_own_is_freed_by_deleting_sessions() {
    if std::env::var_os("EVERTURN_SOAK").is_none() {
        eprintln!("SKIPPED: set EVERTURN_SOAK to run it");
        return;
    }
    let Some(small) = Small::mount("14m") else {
        eprintln!("SKIPPED, ALTHOUGH IT WAS ASKED FOR: no file system can be mounted here");
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let server = serve(logs.path(), &sqlite_in(small.path()), &["--rate", "100000/s"]);
    let text = |i: u64| {
        let mut text = String::new();
        let mut state = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while text.len() < 8_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(&format!("{:016x}", state ^ (state >> 29)));
        }
        text
    };
    let (mut written, mut refusals) = (0, 0);
    while refusals < 20 {
        match v1_turn(&server, "", &text(written)) {
            answer if answer.status == 200 => written += 1,
            answer => {
                assert_eq!(
                    (answer.status, json(&answer)["code"].as_str()),
                    (503, Some("unavailable")),
                    "{}",
                    answer.body
                );
                refusals += 1;
            }
        }
    }
    assert!(written > 100, "only {written} turns found room");
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200, "reads and deletes go on");
    let page = json(&server.request("GET", "/v1/agents/echo/sessions?limit=100", "", ""));
    for session in page["items"].as_array().unwrap() {
        let path = format!("/v1/agents/echo/sessions/{}", session["id"].as_str().unwrap());
        let answer = server.request("DELETE", &path, "", "");
        assert!(answer.status < 300, "{}: {}", answer.status, answer.body);
    }
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    assert!(small.path().join("store.db-reserve").exists());
}

#[test]
fn a_process_that_stands_still_with_the_lock_is_told_by_readyz_and_by_refusals() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &["--store-lock-wait", "200ms"]);
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);
    let lock = fs::File::options().write(true).open(dir.path().join("store.db-lock")).unwrap();
    lock.lock().unwrap();
    let answer = server.request("GET", "/readyz", "", "");
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("nothing can be written"), "{}", answer.body);
    let answer = v1_turn(&server, "", "meanwhile");
    let problem = json(&answer);
    assert_eq!((answer.status, problem["code"].as_str()), (503, Some("unavailable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("store.db-lock"), "{problem}");
    assert_eq!(server.request("GET", "/v1/agents/echo/sessions", "", "").status, 200, "reads go on");
    lock.unlock().unwrap();
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);
}

#[test]
fn files_that_are_removed_under_a_server_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(dir.path().join(format!("store.db{suffix}"))).unwrap();
    }
    assert_eq!(server.request("GET", "/readyz", "", "").status, 503);
    let answer = v1_turn(&server, "", "after");
    assert_eq!(answer.status, 503, "a turn was acknowledged: {}", answer.body);
    assert!(json(&answer)["detail"].as_str().unwrap().contains("store.db was removed"), "{}", answer.body);
    assert!(!dir.path().join("store.db").exists(), "it was made anew");
}

/// Files may grow no further than this, as far as the server is concerned.
fn limit_files(server: &Server, bytes: &str) {
    let pid = server.child.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:unlimited")]).status();
    assert!(limited.unwrap().success());
}

/// A server whose files can be limited. One that may not grow fails like a disk that does; the signal that comes with it must
/// not kill.
fn limitable(dir: &Path) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_everturn"), "serve", "--demo"]);
    command.args(["--addr", "127.0.0.1:0", "--store", &sqlite_in(dir)]);
    Server::spawn(dir, command)
}

#[test]
fn a_turn_that_may_be_kept_is_told_as_such_and_its_key_settles_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = limitable(dir.path());
    let body = r#"{"session":"s","input":{"text":"slow 1500"}}"#;
    let headers = "Idempotency-Key: k\r\n";
    let turn = start_turn(&server, TURNS, headers, body);
    runs(&server, "s");
    // Nothing is written until it ends.
    limit_files(&server, "1024");
    let doubted = rest(turn);
    assert!(doubted.starts_with("HTTP/1.1 500") && doubted.contains("\"code\":\"unknown_outcome\""), "{doubted}");
    assert!(doubted.contains("turn 1."), "it names the turn: {doubted}");
    assert!(!doubted.to_ascii_lowercase().contains("retry-after"), "nobody is told to send it again: {doubted}");
    limit_files(&server, "unlimited");
    let again = until("an answer", || match server.request("POST", TURNS, &format!("{JSON}{headers}"), body) {
        answer if answer.status == 200 => Ok(json(&answer)),
        answer => Err(answer.body),
    });
    assert_eq!(again["message"]["content"][0]["text"], "slow done", "{again}");
    assert_eq!(json(&server.request("GET", "/v1/agents/echo/sessions/s", "", ""))["turns"], 1);

    let streamed = r#"{"session":"t","input":{"text":"slow 1500"}}"#;
    let streamed = start_turn(&server, TURNS, "Accept: text/event-stream\r\n", streamed);
    runs(&server, "t");
    limit_files(&server, "1024");
    let streamed = rest(streamed);
    assert!(streamed.contains("event: error"), "a stream ends as well: {streamed}");
    assert!(!streamed.contains("event: output"), "{streamed}");

    limit_files(&server, "unlimited");
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    let body = r#"{"data":{"message":{"role":"user","content":[{"text":"slow 1500"}]}},"init":{"sessionId":"g"}}"#;
    let turn = start_turn(&server, "/genkit/echo", "", body);
    runs(&server, "g");
    limit_files(&server, "1024");
    let doubted = rest(turn);
    assert!(doubted.starts_with("HTTP/1.1 500") && doubted.contains("\"status\":\"UNKNOWN\""), "{doubted}");
    assert!(!doubted.to_ascii_lowercase().contains("retry-after"), "{doubted}");
}

#[test]
fn a_store_that_closed_itself_is_opened_again_when_the_cause_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let server = limitable(dir.path());
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);

    limit_files(&server, "65536");
    let answer = refused(&server);
    // Whether it was the begin that failed or the end.
    let told = (answer.status, json(&answer)["code"].as_str().map(str::to_owned));
    let kinds = [(503, Some("unavailable".to_owned())), (500, Some("unknown_outcome".to_owned()))];
    assert!(kinds.contains(&told), "{}", answer.body);
    until("that it is not ready", || match server.request("GET", "/readyz", "", "") {
        answer if answer.status == 503 => Ok(()),
        answer => Err(answer.body),
    });
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200, "the process itself is well");

    limit_files(&server, "unlimited");
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);
    assert!(metric(&server, "everturn_store_reopened_total").unwrap() >= 1.0);
    assert!(metric(&server, "everturn_store_operations_total{operation=\"end\",result=\"ok\"}").unwrap() >= 2.0);
}
