//! `everturn verify`: what it says of a sound store, of one in use, and of a damaged one.

use std::fs;

use serde_json::Value;

use crate::common::{Server, sqlite_in};
use crate::{JSON, everturn};

fn said(output: &std::process::Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_sound_store_is_told_from_a_damaged_one_and_from_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let none = everturn(dir.path(), &["verify", "--store", &store]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");

    let server = Server::start(dir.path(), &store);
    for session in ["to-be-damaged", "sound"] {
        let body = format!(r#"{{"input":{{"text":"hi"}},"session":"{session}"}}"#);
        assert_eq!(server.request("POST", "/v1/agents/echo/turns", JSON, &body).status, 200);
    }
    let (code, text) = said(&everturn(dir.path(), &["verify", "--store", &store]));
    assert!(code == Some(0) && text.starts_with("2 sessions, "), "in use: {code:?} {text}");
    drop(server);

    let path = dir.path().join(store.strip_prefix("sqlite:").unwrap_or(&store));
    // Whatever the server left in the log comes into the file when the last one closes it.
    let (code, text) = said(&everturn(dir.path(), &["verify", "--store", &store]));
    assert_eq!(code, Some(0), "{text}");
    let mut bytes = fs::read(&path).unwrap();
    let places: Vec<_> =
        bytes.windows(13).enumerate().filter(|(_, at)| *at == b"to-be-damaged").map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the session's name is not in the file");
    places.iter().for_each(|at| bytes[*at] = b'T');
    fs::write(&path, bytes).unwrap();

    let (code, text) = said(&everturn(dir.path(), &["verify", "--store", &store]));
    assert!(code == Some(1) && text.contains("damages"), "{code:?} {text}");
    let (code, text) = said(&everturn(dir.path(), &["verify", "--json", "--store", &store]));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(code == Some(1) && report["sound"] == false && report["damaged"].as_u64() > Some(0), "{report}");
    let one = ["verify", "--session", "echo/user/sound", "--store", &store];
    let (code, text) = said(&everturn(dir.path(), &one));
    assert!(code == Some(0) && text.starts_with("1 sessions, "), "{code:?} {text}");
}
