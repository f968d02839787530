//! Who may do what, asked of the built binary by friends, strangers and people who try.

mod common;

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

#[test]
fn keys_are_shown_once_kept_private_and_listed_without_their_secrets() {
    let home = Home::new();
    assert!(said(&home.keys(&["list"])).contains("keys create"), "an empty list says what to do");
    let ann = home.key("ann", &["--app", "echo", "--rights", "read", "--label", "the shop, 漢字", "--expires", "30d"]);
    let bob = home.key("bob", &[]);
    assert!(ann.starts_with("evt_") && ann.len() == 81 && ann.is_ascii(), "{}", ann.len());

    let file = home.path().join("keys.json");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let (kept, list) = (fs::read_to_string(&file).unwrap(), said(&home.keys(&["list"])));
    for key in [&ann, &bob] {
        let secret = key.rsplit('_').next().unwrap();
        assert!(kept.contains(id_of(key)) && list.contains(id_of(key)));
        assert!(!kept.contains(secret) && !list.contains(secret), "the secret is nowhere");
    }
    let row = list.lines().find(|line| line.contains(id_of(&ann))).unwrap();
    assert!(["ann", "echo", "read", "until ", "the shop, 漢字"].iter().all(|cell| row.contains(cell)), "{row}");

    assert!(said(&home.keys(&["revoke", id_of(&bob)])).contains("is revoked"));
    assert!(said(&home.keys(&["revoke", id_of(&bob)])).contains("already"));
    assert!(said(&home.keys(&["list"])).contains("revoked 20"));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "after a change too");
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let home = Home::new();
    refused(&home.keys(&["create"]), "--user");
    refused(&home.keys(&["create", "--user", ""]), "blank");
    refused(&home.keys(&["create", "--user", "a\u{1b}b"]), "control character");
    refused(&home.keys(&["create", "--user", "ann", "--rights", "all"]), "read, write and admin");
    refused(&home.keys(&["create", "--user", "ann", "--expires", "soon"]), "30d");
    refused(&home.keys(&["create", "--user", "ann", "--label", "a\nb"]), "one line");
    refused(&home.keys(&["revoke", "0123456789ab"]), "keys list");
    refused(&home.keys(&["revoke", "../x"]), "12 hexadecimal digits");
    refused(&everturn(home.path(), &["keys", "list", "--store", "memory:"]), "--keys FILE");
    let serve = |options: &[&str]| everturn(home.path(), &[&["serve", "--store", "memory:"], options].concat());
    refused(&serve(&["--keys", "none.json"]), "everturn keys create");
    refused(&serve(&["--jwt-key", "none"]), "--jwt-audience");
    refused(&serve(&["--jwt-key", "none", "--jwt-audience", "x"]), "openssl rand");
    refused(&serve(&["--cors-origin", "*"]), "there is none for all");
    refused(&serve(&["--rate", "0/s"]), "50/s");

    let secret = home.path().join("secret");
    private(&secret, "short");
    refused(&serve(&["--jwt-key", "secret", "--jwt-audience", "x"]), "fewer than 32");
    private(&secret, SECRET);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&serve(&["--jwt-key", "secret", "--jwt-audience", "x"]), "chmod 600");
    home.key("ann", &["--keys", "k.json"]);
    fs::set_permissions(home.path().join("k.json"), fs::Permissions::from_mode(0o640)).unwrap();
    refused(&serve(&["--keys", "k.json"]), "chmod 600");

    let help = said(&home.keys(&["create", "--help"]));
    assert!(help.contains("Examples:") && help.contains("Bearer"), "{help}");
}

#[test]
fn other_machines_are_let_near_only_where_somebody_has_a_key() {
    let home = Home::new();
    let serve = || everturn(home.path(), &["serve", "--store", &home.store, "--addr", "0.0.0.0:0"]);
    refused(&serve(), "everturn keys create");
    let revoked = home.key("ann", &[]);
    said(&home.keys(&["revoke", id_of(&revoked)]));
    refused(&serve(), "everturn keys create");

    let key = home.key("ann", &[]);
    let server = Server::start_with(home.path(), &home.store, &["--addr", "0.0.0.0:0"]);
    let from_afar = "Host: everturn.example\r\n";
    let ask = |headers: String| server.request("POST", "/genkit/echo", &headers, &message("hi", &json!({}))).status;
    assert_eq!(ask(format!("{from_afar}{JSON}")), 401);
    assert_eq!(ask(format!("{from_afar}{JSON}Authorization: Bearer {key}\r\n")), 200);
    let page = format!("{from_afar}{JSON}Authorization: Bearer {key}\r\nOrigin: https://evil.example\r\n");
    assert_eq!(ask(page), 403);
    assert_eq!(server.request("GET", "/healthz", from_afar, "").body, "ok");
}

/// Every route there is, with a body it takes. New routes belong here.
const ROUTES: [(&str, &str); 14] = [
    ("POST", "/genkit/echo"),
    ("GET", "/genkit/echo"),
    ("POST", "/genkit/echo/getSnapshot"),
    ("POST", "/genkit/echo/waitForSnapshot"),
    ("POST", "/genkit/echo/abort"),
    ("POST", "/genkit/echoClient"),
    ("POST", "/genkit/redact"),
    ("POST", "/genkit/asker"),
    ("POST", "/genkit/nobody"),
    ("DELETE", "/genkit/echo/abort"),
    ("OPTIONS", "/genkit/echo"),
    ("GET", "/"),
    ("GET", "/v1/sessions"),
    ("POST", "/healthz/../genkit/echo"),
];

#[test]
fn strangers_get_one_answer_wherever_they_knock_and_whatever_they_bear() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let revoked = home.key("ann", &[]);
    said(&home.keys(&["revoke", id_of(&revoked)]));
    let server = home.serve(&[]);
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);

    let stranger = server.request("GET", "/nothing", "", "");
    assert_eq!(stranger.status, 401);
    assert_eq!(stranger.header("www-authenticate"), Some("bearer realm=\"everturn\""));
    let problem: Value = serde_json::from_str(&stranger.body).unwrap();
    assert_eq!(problem["status"], "UNAUTHENTICATED");
    // Below /v1 it is said in the words of /v1, with the same headers.
    let ours = server.request("GET", "/v1/nothing", "", "");
    assert_eq!((ours.status, ours.header("www-authenticate")), (401, stranger.header("www-authenticate")));
    assert_eq!(ours.header("content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_str(&ours.body).unwrap();
    assert_eq!((&problem["code"], &problem["status"]), (&json!("unauthenticated"), &json!(401)));
    for (method, path) in ROUTES {
        let answer = server.request(method, path, JSON, &message("hi", &json!({})));
        assert_eq!(&answer, if path.starts_with("/v1/") { &ours } else { &stranger }, "{method} {path}");
    }

    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let claims = URL_SAFE_NO_PAD.encode(json!({"sub": "ann", "exp": now() + 60, "rights": ["admin"]}).to_string());
    let other_secret = format!("evt_{}_{}", id_of(&ann), "0".repeat(64));
    for header in [
        format!("Authorization: Bearer {revoked}"),
        format!("Authorization: Bearer {other_secret}"),
        format!("Authorization: Bearer evt_0123456789ab_{}", "0".repeat(64)),
        format!("Authorization: Bearer {}", ann.to_uppercase()),
        format!("Authorization: Bearer {ann}0"),
        format!("Authorization: Bearer {none}.{claims}."),
        format!("Authorization: Basic {ann}"),
        format!("Authorization: {ann}"),
        format!("Authorization: Bearer {ann}\r\nAuthorization: Bearer {ann}"),
        "Authorization: Bearer".to_owned(),
        "Authorization: Bearer evt_".to_owned(),
        "Authorization: Bearer é漢🙂".to_owned(),
        "Authorization: Bearer \u{202e}evt_".to_owned(),
        format!("Authorization: Bearer {}", "a".repeat(50_000)),
        format!("Authorization: Bearer {}", ".".repeat(50_000)),
        format!("X-Api-Key: {ann}"),
        format!("Cookie: key={ann}"),
    ] {
        let answer = server.request("POST", "/genkit/echo", &format!("{JSON}{header}\r\n"), "{}");
        assert_eq!(answer, stranger, "{}", header.chars().take(80).collect::<String>());
    }
    let by_query = server.request("POST", &format!("/genkit/echo?access_token={ann}"), JSON, "{}");
    assert_eq!(by_query, stranger);
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop", "and ann is let in");
}

#[test]
fn headers_without_end_are_refused_and_harm_nobody() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let mut stream = server.stream();
    let huge = format!("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}", "a".repeat(4 << 20));
    // The server may close while this is still being sent.
    let _ = std::io::Write::write_all(&mut stream, huge.as_bytes());
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    assert_eq!(server.request("GET", "/", &many, "").status, 431);
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop");
}

/// Asks for something by two ids and returns both answers, with the ids made equal.
fn both(
    server: &Server,
    key: &str,
    path: &str,
    body: impl Fn(&str) -> String,
    real: &str,
    unknown: &str,
) -> [Answer; 2] {
    [real, unknown].map(|id| {
        let mut answer = post(server, key, path, &body(id));
        answer.body = answer.body.replace(id, "ID");
        answer
    })
}

#[test]
fn what_belongs_to_another_is_answered_exactly_as_what_does_not_exist() {
    let home = Home::new();
    let (ann, bob) = (home.key("ann", &[]), home.key("bob", &["--rights", "admin"]));
    let server = home.serve(&[]);
    let done = turn(&server, &ann, "echo", "my secret plan", &json!({"sessionId": "anns-session"}));
    let done = done["snapshotId"].as_str().unwrap();
    let mut slow: Value = serde_json::from_str(&message("slow 60000", &json!({"sessionId": "anns-other"}))).unwrap();
    slow["data"]["detach"] = true.into();
    let pending = post(&server, &ann, "/genkit/echo", &slow.to_string());
    let pending: Value = serde_json::from_str(&pending.body).unwrap();
    let pending = pending["result"]["snapshotId"].as_str().expect("a detached turn").to_owned();

    let by_snapshot = |id: &str| json!({"data": {"snapshotId": id}}).to_string();
    for snapshot in [done, &pending] {
        for route in ["getSnapshot", "waitForSnapshot", "abort"] {
            let path = format!("/genkit/echo/{route}");
            let [anns, nobodys] = both(&server, &bob, &path, by_snapshot, snapshot, NOBODYS_SNAPSHOT);
            assert_eq!(anns, nobodys, "{route}");
        }
        let resume = |id: &str| message("go on", &json!({"snapshotId": id}));
        let [anns, nobodys] = both(&server, &bob, "/genkit/echo", resume, snapshot, NOBODYS_SNAPSHOT);
        assert_eq!(anns, nobodys, "a turn from a snapshot");
        let streamed = [snapshot, NOBODYS_SNAPSHOT].map(|id| {
            let headers = format!("{JSON}Accept: text/event-stream\r\nAuthorization: Bearer {bob}\r\n");
            let mut answer = server.request("POST", "/genkit/echo", &headers, &resume(id));
            answer.body = answer.body.replace(id, "ID");
            answer
        });
        assert_eq!(streamed[0], streamed[1], "a stream from a snapshot");
        assert!(!anns.body.contains("secret plan"), "{}", anns.body);
        let resume = |id: &str| {
            let mut body: Value = serde_json::from_str(&resume(id)).unwrap();
            body["data"]["detach"] = true.into();
            body.to_string()
        };
        let [anns, nobodys] = both(&server, &bob, "/genkit/echo", resume, snapshot, NOBODYS_SNAPSHOT);
        assert_eq!(anns, nobodys, "a detached turn from a snapshot");
    }
    let by_session = |id: &str| json!({"data": {"sessionId": id}}).to_string();
    let path = "/genkit/echo/getSnapshot";
    let [anns, nobodys] = both(&server, &bob, path, by_session, "anns-session", "nobodys-1234");
    assert_eq!(anns, nobodys, "a session");
    assert_eq!(anns.status, 404);
    // A session of the same name is bob's own.
    let own = turn(&server, &bob, "echo", "hi", &json!({"sessionId": "anns-session"}));
    let own = post(&server, &bob, path, &by_snapshot(own["snapshotId"].as_str().unwrap()));
    let own: Value = serde_json::from_str(&own.body).unwrap();
    assert_eq!(own["result"]["state"]["messages"].as_array().unwrap().len(), 2);

    // None of it touched what is ann's.
    let look = post(&server, &ann, path, &by_snapshot(&pending));
    assert!(look.body.contains(r#""status":"pending""#), "{}", look.body);
    assert!(post(&server, &ann, path, &by_snapshot(done)).body.contains("my secret plan"));
    assert_eq!(post(&server, &ann, "/genkit/echo/abort", &by_snapshot(&pending)).status, 200);
}

#[test]
fn a_key_of_one_app_does_not_know_the_others() {
    let home = Home::new();
    let (bound, reader) =
        (home.key("ann", &["--app", "echo"]), home.key("ann", &["--app", "echo", "--rights", "read"]));
    let server = home.serve(&[]);
    assert_eq!(turn(&server, &bound, "echo", "hi", &json!({}))["finishReason"], "stop");
    for key in [&bound, &reader] {
        for route in ["", "/getSnapshot", "/waitForSnapshot", "/abort"] {
            for body in [message("hi", &json!({})), json!({"data": {"snapshotId": NOBODYS_SNAPSHOT}}).to_string()] {
                let ask = |agent: &str| {
                    let mut answer = post(&server, key, &format!("/genkit/{agent}{route}"), &body);
                    answer.body = answer.body.replace(agent, "AGENT");
                    answer
                };
                // As long as each other, so that the length of the answer is the same.
                let (other, unknown) = (ask("redact"), ask("nobody"));
                assert_eq!(other, unknown, "{route}");
                assert_eq!(other.status, 404);
            }
        }
    }
}

#[test]
fn who_may_only_read_changes_nothing() {
    let home = Home::new();
    let (writer, reader) = (home.key("ann", &[]), home.key("ann", &["--rights", "read"]));
    let server = home.serve(&[]);
    let snapshot = turn(&server, &writer, "echo", "hi", &json!({}))["snapshotId"].clone();
    let look = json!({"data": {"snapshotId": snapshot}}).to_string();
    for route in ["getSnapshot", "waitForSnapshot"] {
        assert_eq!(post(&server, &reader, &format!("/genkit/echo/{route}"), &look).status, 200, "{route}");
    }
    for (path, body) in [("/genkit/echo", message("hi", &json!({}))), ("/genkit/echo/abort", look)] {
        let answer = post(&server, &reader, path, &body);
        assert_eq!(answer.status, 403, "{path}");
        assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap()["status"], "PERMISSION_DENIED");
    }
}

#[test]
fn a_running_server_notices_new_and_revoked_keys() {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(server.turn("echo", "no key yet", "{}")["result"]["finishReason"], "stop");
    let first = home.key("ann", &[]);
    becomes(&server, "none", 401);
    becomes(&server, &first, 404);
    let second = home.key("ann", &[]);
    becomes(&server, &second, 404);
    said(&home.keys(&["revoke", id_of(&first)]));
    becomes(&server, &first, 401);
    assert_eq!(turn(&server, &second, "echo", "still here", &json!({}))["finishReason"], "stop");
    fs::remove_file(home.path().join("keys.json")).unwrap();
    becomes(&server, &second, 401);
    becomes(&server, "none", 401);
}

#[test]
fn tokens_carry_user_app_and_rights() {
    let home = Home::new();
    private(&home.path().join("secret"), &format!("{SECRET}\n"));
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    let header = json!({"alg": "HS256", "typ": "JWT"});
    let claims = json!({"sub": "Änne", "aud": "everturn", "exp": now() + 600, "rights": ["read", "write"]});
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let ask = |token: &str| post(&server, token, "/genkit/redact", &message("hi", &json!({})));
    assert_eq!(ask(&jwt(&header, &claims, SECRET)).status, 200);
    assert_eq!(ask(&jwt(&header, &with("rights", json!(["read"])), SECRET)).status, 403);
    assert_eq!(ask(&jwt(&header, &with("app", json!("echo")), SECRET)).status, 404);

    let stranger = ask("nothing");
    assert_eq!(stranger.status, 401);
    for (what, token) in [
        ("alg none", jwt(&json!({"alg": "none"}), &claims, SECRET)),
        ("another alg", jwt(&json!({"alg": "HS384"}), &claims, SECRET)),
        ("another secret", jwt(&header, &claims, "fedcba9876543210fedcba9876543210")),
        ("expired", jwt(&header, &with("exp", json!(now() - 1)), SECRET)),
        ("not yet", jwt(&header, &with("nbf", json!(now() + 600)), SECRET)),
        ("another audience", jwt(&header, &with("aud", json!("other")), SECRET)),
        ("no audience", jwt(&header, &with("aud", Value::Null), SECRET)),
        ("no end", jwt(&header, &with("exp", Value::Null), SECRET)),
        ("no rights", jwt(&header, &with("rights", json!([])), SECRET)),
        ("an app of null", jwt(&header, &with("app", Value::Null), SECRET)),
        ("a long one", jwt(&header, &with("pad", json!("x".repeat(9000))), SECRET)),
    ] {
        assert_eq!(ask(&token), stranger, "{what}");
    }
}

#[test]
fn tokens_alone_are_enough_for_other_machines() {
    let home = Home::new();
    private(&home.path().join("secret"), SECRET);
    let options = ["--addr", "0.0.0.0:0", "--jwt-key", "secret", "--jwt-audience", "everturn"];
    let server = Server::start_with(home.path(), "memory:", &options);
    let claims = json!({"sub": "ann", "aud": ["everturn"], "exp": now() + 600, "rights": "write"});
    let token = jwt(&json!({"alg": "HS256"}), &claims, SECRET);
    assert_eq!(turn(&server, &token, "echo", "hi", &json!({}))["finishReason"], "stop");
    let key = home.key("ann", &[]);
    assert_eq!(post(&server, &key, "/genkit/echo", "{}").status, 401, "a key of which this server knows nothing");
}

#[test]
fn one_keys_haste_is_not_anothers() {
    let home = Home::new();
    let (hasty, calm) = (home.key("ann", &[]), home.key("bob", &[]));
    let server = home.serve(&["--rate", "30/m"]);
    let look = |key: &str| post(&server, key, "/genkit/echo/getSnapshot", r#"{"data":{"sessionId":"x"}}"#);
    thread::scope(|scope| {
        let asked = scope.spawn(|| (0..80).map(|_| look(&hasty)).collect::<Vec<_>>());
        for _ in 0..20 {
            assert_eq!(look(&calm).status, 404, "side by side with the other");
        }
        let answers = asked.join().unwrap();
        let passed = answers.iter().filter(|answer| answer.status == 404).count();
        assert!((60..75).contains(&passed), "{passed}");
        let last = answers.iter().find(|answer| answer.status == 429).expect("one too many");
        let wait: u64 = last.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=2).contains(&wait), "{wait}");
        assert!(last.body.contains("RESOURCE_EXHAUSTED"));
    });
}

#[test]
fn strangers_who_go_on_are_told_to_wait_and_lock_nobody_out() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let asked: Vec<_> = thread::scope(|scope| {
            let ask = || server.request("GET", "/", "", "");
            let all: Vec<_> = (0..40).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        if let Some(limited) = asked.iter().find(|answer| answer.status == 429) {
            assert!(limited.header("retry-after").is_some());
            break;
        }
        assert!(Instant::now() < end, "never limited");
    }
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop");
}

#[test]
fn two_users_work_side_by_side_without_meeting() {
    let home = Home::new();
    let keys = ["ann", "bob"].map(|user| (user, home.key(user, &[])));
    let server = home.serve(&["--rate", "1000/s"]);
    thread::scope(|scope| {
        for (user, key) in &keys {
            let server = &server;
            scope.spawn(move || {
                for n in 0..10 {
                    turn(server, key, "echo", &format!("{user} {n}"), &json!({"sessionId": "shared-name"}));
                }
            });
        }
    });
    for (user, key) in &keys {
        let look = r#"{"data":{"sessionId":"shared-name"}}"#;
        let found: Value = serde_json::from_str(&post(&server, key, "/genkit/echo/getSnapshot", look).body).unwrap();
        let messages = found["result"]["state"]["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 20);
        assert!(messages.iter().all(|message| message["content"][0]["text"].as_str().unwrap().contains(user)));
    }
}

#[test]
fn every_answer_is_closed_to_sniffing_framing_and_caches() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let stream = format!("{JSON}Accept: text/event-stream\r\nAuthorization: Bearer {ann}\r\n");
    let hi = message("hi", &json!({}));
    for answer in [
        server.request("GET", "/healthz", "", ""),
        server.request("GET", "/healthz", "Host: x\r\nOrigin: https://evil.example\r\n", ""),
        server.request("GET", "/nothing", "", ""),
        server.request("GET", "/nothing", &format!("Authorization: Bearer {ann}\r\n"), ""),
        server.request("POST", "/genkit/echo", &stream, &hi),
        server.request("POST", "/genkit/echo", &stream, "{"),
        post(&server, &ann, "/genkit/echo", &hi),
    ] {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{answer:?}");
        }
        assert!(!answer.headers.iter().any(|line| line.starts_with("access-control-")), "{answer:?}");
    }
}

#[test]
fn pages_of_another_origin_may_ask_only_where_they_were_named() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&["--cors-origin", "https://app.example", "--cors-origin", "http://localhost:3000"]);
    let preflight = |origin: &str| {
        let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
        server.request("OPTIONS", "/genkit/echo", &headers, "")
    };
    for origin in ["https://app.example", "http://localhost:3000"] {
        let answer = preflight(origin);
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(answer.header("vary"), Some("origin"));
        let headers = format!("{JSON}Authorization: Bearer {ann}\r\nOrigin: {origin}\r\n");
        let answer = server.request("POST", "/genkit/echo", &headers, &message("hi", &json!({})));
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
        let keyless = server.request("POST", "/genkit/echo", &format!("{JSON}Origin: {origin}\r\n"), "{}");
        assert_eq!((keyless.status, keyless.header("access-control-allow-origin")), (401, Some(origin)));
    }
    for origin in ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null", "*"] {
        let answer = preflight(origin);
        assert_eq!(answer.status, 403, "{origin}");
        assert!(!answer.headers.iter().any(|line| line.starts_with("access-control-")), "{answer:?}");
    }
}

#[test]
fn no_secret_is_ever_written_down() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    private(&home.path().join("secret"), SECRET);
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    turn(&server, &ann, "echo", "for your eyes only", &json!({}));
    post(&server, &format!("{ann}x"), "/genkit/echo", "{}");
    post(&server, &ann, "/genkit/echo", "{\"data\": \"for your eyes only\"");
    let (logs, secret) = (server.logs(), ann.rsplit('_').next().unwrap());
    assert!(!logs.contains(secret) && !logs.contains(SECRET) && !logs.contains("for your eyes only"), "{logs}");
}

/// Every route of `/v1` that the document describes, with something in place of what it names.
fn described(server: &Server, key: &str, session: &str, snapshot: &str) -> Vec<(String, String)> {
    let bearer = format!("Authorization: Bearer {key}\r\n");
    let document: Value = serde_json::from_str(&server.request("GET", "/v1/openapi.json", &bearer, "").body).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let named = [("{agent}", "echo"), ("{session}", session), ("{snapshot}", snapshot), ("{id}", snapshot)];
        let mut path = named.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
        while let Some((before, rest)) = path.split_once('{') {
            let after = rest.split_once('}').expect("a name ends").1;
            path = format!("{before}1.1{after}");
        }
        let methods = methods.as_object().expect("methods").keys();
        routes.extend(methods.map(|method| (method.to_uppercase(), format!("/v1{path}"))));
    }
    assert!(routes.len() > 25, "{routes:?}");
    routes
}

#[test]
fn on_v1_what_is_anothers_is_answered_as_what_is_not_there() {
    let home = Home::new();
    let (ann, bob, other) = (home.key("ann", &[]), home.key("bob", &[]), home.key("ann", &["--app", "redact"]));
    let server = home.serve(&["--rate", "1000/s"]);
    let made = turn(&server, &ann, "echo", "hi", &json!({"sessionId": "mine"}));
    let snapshot = made["snapshotId"].as_str().expect("a snapshot");
    let ask = |key: &str, method: &str, path: &str| {
        server.request(method, path, &format!("{JSON}Authorization: Bearer {key}\r\n"), "{}")
    };
    let stranger = server.request("GET", "/v1/nothing", "", "");
    for (method, path) in described(&server, &ann, "mine", snapshot) {
        assert_eq!(server.request(&method, &path, JSON, "{}"), stranger, "{method} {path}");
        let unknown = path.replace("mine", "none").replace(snapshot, NOBODYS_SNAPSHOT);
        if path != unknown {
            let (theirs, nobodys) = (ask(&bob, &method, &path), ask(&bob, &method, &unknown));
            let told = theirs.body.replace("mine", "none").replace(snapshot, NOBODYS_SNAPSHOT);
            assert_eq!((theirs.status, told), (nobodys.status, nobodys.body), "{method} {path}");
        }
        // An agent of another app is not there at all.
        if path.contains("/echo") {
            assert_eq!(ask(&other, &method, &path).status, 404, "{method} {path}");
        }
    }
    let agents: Value = serde_json::from_str(&ask(&other, "GET", "/v1/agents").body).unwrap();
    assert_eq!(agents["agents"].as_array().map(Vec::len), Some(1));
    let mine: Value = serde_json::from_str(&ask(&ann, "GET", "/v1/agents/echo/sessions/mine").body).unwrap();
    assert_eq!(mine["turns"], 1, "nothing was harmed: {mine}");
}
