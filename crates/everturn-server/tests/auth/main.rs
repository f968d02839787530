//! Who may do what, asked of the built binary by friends, strangers and people who try.

mod browsers;
#[path = "../common/mod.rs"]
mod common;
mod credentials;
mod keys;
mod open;
mod others;
mod strangers;
mod tokens;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{Answer, Server, sqlite_in};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;

const JSON: &str = "Content-Type: application/json\r\n";
const NOBODYS_SNAPSHOT: &str = "01a1e2e4-4bb5-75c4-9ad9-08b69f3d5317";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn everturn(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everturn")).args(args).current_dir(dir).output().expect("the binary runs")
}

/// What a command printed, which must have gone well.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The command fails with a message that says why and, if it is ours, is one line.
fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{said}");
}

/// A directory with a store and keys in it.
struct Home {
    dir: TempDir,
    store: String,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = sqlite_in(dir.path());
        Self { dir, store }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn keys(&self, args: &[&str]) -> Output {
        everturn(self.path(), &[&["keys", "--store", &self.store], args].concat())
    }

    /// A new key.
    fn key(&self, user: &str, more: &[&str]) -> String {
        said(&self.keys(&[&["create", "--user", user], more].concat()))
    }

    fn serve(&self, options: &[&str]) -> Server {
        Server::start_with(self.path(), &self.store, &[&["--addr", "127.0.0.1:0"], options].concat())
    }
}

fn id_of(key: &str) -> &str {
    key.split('_').nth(1).expect("evt_ID_SECRET")
}

fn post(server: &Server, key: &str, path: &str, body: &str) -> Answer {
    server.request("POST", path, &format!("{JSON}Authorization: Bearer {key}\r\n"), body)
}

fn message(text: &str, init: &Value) -> String {
    let message = json!({"role": "user", "content": [{"text": text}]});
    json!({"data": {"message": message}, "init": init}).to_string()
}

/// A turn that goes well.
fn turn(server: &Server, key: &str, agent: &str, text: &str, init: &Value) -> Value {
    let answer = post(server, key, &format!("/genkit/{agent}"), &message(text, init));
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str::<Value>(&answer.body).expect("JSON")["result"].clone()
}

/// Waits until an answer has a status. Changes of the keys take a moment, not longer.
fn becomes(server: &Server, key: &str, status: u16) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = post(server, key, "/genkit/echo/getSnapshot", r#"{"data":{"sessionId":"x"}}"#);
        if answer.status == status {
            return;
        }
        assert!(Instant::now() < end, "still {}", answer.status);
        thread::sleep(Duration::from_millis(100));
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn jwt(header: &Value, claims: &Value, secret: &str) -> String {
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encoded(header), encoded(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).expect("it is written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
}
