//! The server is killed while many clients are at work, again and again, on one store.
//!
//! Clients take turns over `/v1`, with and without a key, as a plain answer and as a stream, and over `/genkit`; some have a
//! session of their own, some share one. A client whose connection breaks does not know what became of its turn. With a
//! key it sends the same again once the server is back; without one it goes on with the next. At the end every turn that
//! was acknowledged is on its session's line exactly once, and no turn is there twice. A turn that died while others went on
//! with their session ends beside its line; that is acknowledged as `onHead: false`, and then it is exactly there.
//!
//! `EVERTURN_SEED` picks the moments, `EVERTURN_KILLS` how many there are.

mod common;

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use common::{Server, sqlite_in};
use everturn::store::{SqliteStore, Store as _, VerifyScope};
use serde_json::{Value, json};

/// How a client sends its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Keyed,
    KeyedStream,
    Plain,
    Genkit,
}

/// Who takes part, and in which session.
const CLIENTS: [(Way, &str); 10] = [
    (Way::Keyed, "own-keyed"),
    (Way::Keyed, "own-keyed-too"),
    (Way::KeyedStream, "own-stream"),
    (Way::Plain, "own-plain"),
    (Way::Genkit, "own-genkit"),
    (Way::Keyed, "shared"),
    (Way::KeyedStream, "shared"),
    (Way::Plain, "shared"),
    (Way::Genkit, "shared"),
    (Way::Keyed, "shared"),
];

/// A turn that was acknowledged.
struct Acknowledged {
    text: String,
    answer: Value,
}

struct Client {
    way: Way,
    session: &'static str,
    name: usize,
    sent: usize,
    acknowledged: Vec<Acknowledged>,
    /// Sent, without a key, and never answered: there or not, but not twice.
    in_doubt: Vec<String>,
    /// How many turns were answered only when they were sent again.
    retried: usize,
}

impl Client {
    fn new(name: usize, (way, session): (Way, &'static str)) -> Self {
        Self { way, session, name, sent: 0, acknowledged: Vec::new(), in_doubt: Vec::new(), retried: 0 }
    }

    fn text(&self) -> String {
        format!("c{}-{}", self.name, self.sent)
    }

    /// Takes turns until the server is gone.
    fn work(&mut self, server: &str) {
        let mut again = true;
        while let Ok(answer) = self.send(server, &self.text()) {
            let text = self.text();
            assert_eq!(answer["message"]["content"][0]["text"], format!("echo: {text}"), "{answer}");
            self.acknowledged.push(Acknowledged { text, answer });
            self.retried += usize::from(again && self.sent > 0);
            (self.sent, again) = (self.sent + 1, false);
        }
        if !self.has_key() {
            self.in_doubt.push(self.text());
            self.sent += 1;
        }
    }

    fn has_key(&self) -> bool {
        matches!(self.way, Way::Keyed | Way::KeyedStream)
    }

    /// Sends a turn; an error is a connection that broke.
    fn send(&self, server: &str, text: &str) -> io::Result<Value> {
        let (session, accept) = (self.session, if self.way == Way::KeyedStream { "text/event-stream" } else { "*/*" });
        let key = if self.has_key() { format!("Idempotency-Key: {text}\r\n") } else { String::new() };
        let (path, body) = match self.way {
            Way::Genkit => {
                let message = json!({ "role": "user", "content": [{ "text": text }] });
                let body = json!({ "data": { "message": message }, "init": { "sessionId": session } });
                ("/genkit/echo", body.to_string())
            }
            _ => ("/v1/agents/echo/turns", json!({ "session": session, "input": { "text": text } }).to_string()),
        };
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: {server}\r\nAccept: {accept}\r\nContent-Type: application/json\r\n{key}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        let answer = exchange(server, &request)?;
        match self.way {
            Way::Keyed | Way::Plain => whole(&answer),
            Way::Genkit => whole(&answer).map(|mut answer| answer["result"].take()),
            Way::KeyedStream => last_of_stream(&answer),
        }
    }
}

fn broken() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Sends a request, and reads until the server closes.
fn exchange(server: &str, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "the server hangs");
        return Err(error);
    }
    let text = String::from_utf8(bytes).map_err(|_| broken())?;
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return Err(broken()) };
    assert!(head.split(' ').nth(1) == Some("200"), "a turn was refused: {text}");
    Ok(text)
}

/// An answer that came to its end.
fn whole(answer: &str) -> io::Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    assert!(length.is_some(), "an answer without a length: {head}");
    if length != Some(body.len()) {
        return Err(broken());
    }
    Ok(serde_json::from_str(body).expect("JSON"))
}

/// What the last event of a stream says, if it came.
fn last_of_stream(answer: &str) -> io::Result<Value> {
    let (_, rest) = answer.split_once("event: output\n").ok_or_else(broken)?;
    let (data, _) = rest.split_once("\n\n").ok_or_else(broken)?;
    let data = data.lines().find_map(|line| line.strip_prefix("data: ")).ok_or_else(broken)?;
    Ok(serde_json::from_str(data).expect("JSON"))
}

/// Numbers that look random and come again with their seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn no_acknowledged_turn_is_lost_or_doubled_when_the_server_is_killed_under_load() {
    let seed = setting("EVERTURN_SEED", 21);
    println!("EVERTURN_SEED={seed}");
    let mut rng = Rng(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut clients: Vec<_> = CLIENTS.into_iter().enumerate().map(|(name, client)| Client::new(name, client)).collect();
    for _ in 0..setting("EVERTURN_KILLS", 10) {
        let mut server = Server::start(dir.path(), &sqlite_in(dir.path()));
        let addr = server.url.trim_start_matches("http://").to_owned();
        std::thread::scope(|scope| {
            for client in &mut clients {
                let addr = &addr;
                scope.spawn(move || client.work(addr));
            }
            std::thread::sleep(Duration::from_millis(20 + rng.below(600)));
            server.child.kill().unwrap();
            server.child.wait().unwrap();
        });
        assert!(!server.logs().contains("panicked"), "{}", server.logs());
    }
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    settle(&server, &mut clients);
    compare(&server, &clients);
    drop(server);
    verify(dir.path());
    let count = |of: fn(&Client) -> usize| clients.iter().map(of).sum::<usize>();
    let (turns, retried) = (count(|client| client.acknowledged.len()), count(|client| client.retried));
    println!("{turns} turns, {retried} of them sent again, {} in doubt", count(|client| client.in_doubt.len()));
    assert!(turns > 100 && retried > 0, "too little was under way to be lost");
}

/// What has a key is sent until it is answered; what was answered is answered the same again.
fn settle(server: &Server, clients: &mut [Client]) {
    let addr = server.url.trim_start_matches("http://");
    for client in clients.iter_mut().filter(|client| client.has_key()) {
        let text = client.text();
        let answer = client.send(addr, &text).expect("an answer");
        client.acknowledged.push(Acknowledged { text, answer });
        client.sent += 1;
        for turn in client.acknowledged.iter().rev().step_by(7) {
            let again = client.send(addr, &turn.text).expect("an answer");
            assert_eq!(again["snapshotId"], turn.answer["snapshotId"], "{}: {again}", turn.text);
        }
    }
}

/// Every turn is where it was acknowledged, once, with its answer behind it.
fn compare(server: &Server, clients: &[Client]) {
    let sessions: std::collections::BTreeSet<_> = clients.iter().map(|client| client.session).collect();
    for session in sessions {
        let answer = server.request("GET", &format!("/v1/agents/echo/sessions/{session}/state"), "", "");
        let state: Value = serde_json::from_str(&answer.body).expect("JSON");
        let said: Vec<_> = state["messages"].as_array().expect("messages").iter().map(text_of).collect();
        let mut times: HashMap<&str, usize> = HashMap::new();
        for turn in said.chunks(2) {
            assert_eq!(turn.get(1).map(String::as_str), Some(&*format!("echo: {}", turn[0])), "{session}");
            *times.entry(&turn[0]).or_default() += 1;
        }
        for client in clients.iter().filter(|client| client.session == session) {
            for turn in &client.acknowledged {
                match times.remove(&*turn.text) {
                    Some(times) => assert_eq!(times, 1, "{session}: {} is there twice", turn.text),
                    None => is_beside(server, session, turn),
                }
            }
            for text in &client.in_doubt {
                assert!(times.remove(&**text).unwrap_or(0) <= 1, "{session}: {text} is there twice");
            }
        }
        assert!(times.is_empty(), "{session}: nobody sent {times:?}");
    }
}

/// A turn that is not on the line was acknowledged so, after others went on without it: it is complete beside the line, and
/// can be gone on from.
fn is_beside(server: &Server, session: &str, turn: &Acknowledged) {
    let Acknowledged { text, answer } = turn;
    assert!(
        session == "shared" && answer["onHead"] == false,
        "{session}: {text} was acknowledged and is lost: {answer}"
    );
    let id = answer["snapshotId"].as_str().expect("a snapshot");
    let answer = server.request("GET", &format!("/v1/agents/echo/snapshots/{id}"), "", "");
    let snapshot: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!((&snapshot["status"], &snapshot["orphaned"]), (&json!("completed"), &json!(true)), "{snapshot}");
    let said = snapshot["state"]["messages"].as_array().expect("messages").iter().map(text_of);
    assert_eq!(said.filter(|said| said == text).count(), 1, "{snapshot}");
}

fn text_of(message: &Value) -> String {
    message["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {message}")).to_owned()
}

fn verify(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = SqliteStore::open(dir.join("store.db")).unwrap();
    let verified = runtime.block_on(store.verify(VerifyScope::All)).unwrap();
    assert!(verified.damage.is_none(), "{:?}", verified.damage);
    assert_eq!(verified.sessions, 6);
}
