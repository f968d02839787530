//! Copies of a store that is written to, and what comes of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::{Server, sqlite_in};
use crate::{JSON, everturn, json, until};

fn say(server: &Server, session: &str) {
    let body = format!(r#"{{"input":{{"text":"hi"}},"session":"{session}"}}"#);
    let answer = server.request("POST", "/v1/agents/echo/turns", JSON, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// How many messages a session has.
fn messages(server: &Server, session: &str) -> u64 {
    let state = server.request("GET", &format!("/v1/agents/echo/sessions/{session}/state"), "", "");
    assert_eq!(state.status, 200, "{}", state.body);
    json(&state)["messages"].as_array().unwrap().len() as u64
}

#[test]
fn a_copy_made_while_turns_go_on_has_all_that_was_acknowledged_before_and_can_be_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let server = Server::start(dir.path(), &store);
    let (done, stop) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let acknowledged = thread::scope(|scope| {
        for (i, done) in done.iter().enumerate() {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    say(server, &format!("s{i}"));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        until("some turns", || {
            if done.iter().all(|done| done.load(Ordering::SeqCst) >= 5) { Ok(()) } else { Err(server.logs()) }
        });
        let before: Vec<_> = done.iter().map(|done| done.load(Ordering::SeqCst)).collect();
        let copied = everturn(dir.path(), &["backup", "copy.db", "--store", &store]);
        let at_once: Vec<_> = done.iter().map(|done| done.load(Ordering::SeqCst)).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        before.into_iter().zip(at_once).collect::<Vec<_>>()
    });
    // The server that goes on is not the one that was copied: it may be stopped, and its file be lost.
    drop(server);
    std::fs::create_dir(dir.path().join("restored")).unwrap();
    std::fs::rename(dir.path().join("copy.db"), dir.path().join("restored/store.db")).unwrap();
    let restored = Server::start(&dir.path().join("restored"), &sqlite_in(&dir.path().join("restored")));
    for (i, (before, after)) in acknowledged.into_iter().enumerate() {
        let session = format!("s{i}");
        let kept = messages(&restored, &session) / 2;
        assert!((before..=after + 1).contains(&kept), "{kept} of {before} to {after}");
        say(&restored, &session);
        assert_eq!(messages(&restored, &session) / 2, kept + 1);
    }
}

#[test]
fn a_copy_takes_nobodys_place_and_is_made_of_stores_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    drop(Server::start(dir.path(), &store));
    std::fs::write(dir.path().join("there"), "precious").unwrap();
    std::fs::write(
        dir.path().join("other.db"),
        "this is no store of ours, and longer than a header would be".repeat(9),
    )
    .unwrap();
    for (args, why) in [
        (["backup", "there", "--store", &store], "there is there already"),
        (["backup", "copy", "--store", "sqlite:other.db"], "other.db"),
        (["backup", "copy", "--store", "sqlite:none.db"], "no store"),
        (["backup", "copy", "--store", "memory:"], "sqlite:PATH"),
        (["backup", "no/such/place", "--store", &store], "no/such/place"),
    ] {
        let output = everturn(dir.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why) && said.trim_end().lines().count() == 1, "{said}");
    }
    assert_eq!(std::fs::read(dir.path().join("there")).unwrap(), b"precious");
    assert!(!dir.path().join("copy").exists() && !dir.path().join("none.db").exists());
    let private = everturn(dir.path(), &["backup", "copy", "--store", &store]);
    assert!(private.status.success());
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(dir.path().join("copy")).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}
