//! Many clients write to one session at once, through two servers on one file.
//!
//! Plain turns, turns that name the head they follow (`If-Match`), keys that are sent twice at the same moment, and turns
//! over Genkit's wire all end on one line, each once, with its answer behind it. Turns that all go on from one snapshot
//! are each readable by their own snapshot, with what they went on from and themselves in it. Nothing is refused but what
//! says so beforehand: a head that moved, and more requests at once than a session takes.
//!
//! `EVERTURN_TURNS` is how many turns each client takes; `EVERTURN_SEED` picks who asks which server.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};

use crate::support::{Peers, Reply, Rng, ask, get, post, seeded, setting};

const CLIENTS: usize = 8;
const TURNS: &str = "/v1/agents/echo/turns";

/// Two servers, and how many turns each client takes.
struct Crowd {
    peers: Peers,
    turns: usize,
    rng: Rng,
    _dir: tempfile::TempDir,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peers = Peers::started(dir.path(), dir.path(), 2);
        let turns = usize::try_from(setting("EVERTURN_TURNS", 8)).expect("a number of turns");
        Self { peers, turns, rng: seeded(seed), _dir: dir }
    }

    /// Lets every client take its turns, each at a server of its choice, and gives what they tell.
    fn work<T: Send>(&mut self, take: impl Fn(&str, &str) -> T + Sync) -> Vec<T> {
        let (turns, servers) = (self.turns, [self.peers.address(0), self.peers.address(1)]);
        let rngs: Vec<_> = (0..CLIENTS).map(|_| self.rng.part()).collect();
        thread::scope(|scope| {
            let work = |(client, mut rng): (usize, Rng)| {
                let take = &take;
                let all = move || -> Vec<T> {
                    (0..turns).map(|turn| take(servers[rng.index(2)], &format!("c{client}-{turn}"))).collect()
                };
                scope.spawn(all)
            };
            let working: Vec<_> = rngs.into_iter().enumerate().map(work).collect();
            working.into_iter().flat_map(|client| client.join().expect("a client")).collect()
        })
    }

    /// The line has every turn once and nothing else.
    fn check(&self, session: &str) {
        for server in [self.peers.address(0), self.peers.address(1)] {
            let state = get(server, &format!("/v1/agents/echo/sessions/{session}/state")).ok();
            let messages = state["messages"].as_array().expect("messages");
            let mut found = HashSet::new();
            for turn in messages.chunks(2) {
                let name = text_of(&turn[0]);
                assert_eq!(text_of(&turn[1]), format!("echo: {name}"));
                assert!(found.insert(name.clone()), "{name} is there twice");
            }
            let expected = (0..CLIENTS).flat_map(|client| (0..self.turns).map(move |turn| format!("c{client}-{turn}")));
            assert_eq!(found, expected.collect());
        }
        self.peers.unharmed();
    }

    fn count(&self) -> usize {
        CLIENTS * self.turns
    }
}

fn text_of(message: &Value) -> String {
    message["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {message}")).to_owned()
}

fn turn(text: &str) -> Value {
    json!({ "session": "s", "input": { "text": text } })
}

/// An answer of a turn that is on the line.
fn on_line(reply: &Reply, text: &str) {
    let output = reply.ok();
    assert_eq!(output["message"]["content"][0]["text"], format!("echo: {text}"), "{output}");
    assert_eq!(output["onHead"], true, "{output}");
}

#[test]
fn plain_turns_of_many_clients_are_on_one_line_once() {
    let mut crowd = Crowd::new(41);
    crowd.work(|server, text| on_line(&post(server, TURNS, &turn(text)), text));
    crowd.check("s");
    println!("{} plain turns by {CLIENTS} clients: all on one line once", crowd.count());
}

#[test]
fn turns_that_name_the_head_they_follow_are_on_one_line_once() {
    let mut crowd = Crowd::new(42);
    post(crowd.peers.address(0), "/v1/agents/echo/sessions", &json!({ "id": "s" })).ok();
    let moved = crowd.work(|server, text| {
        for moved in 0.. {
            let seen = get(server, "/v1/agents/echo/sessions/s");
            let headers = format!("If-Match: {}\r\n", seen.header("etag").expect("a tag"));
            let reply = ask(server, "POST", TURNS, &headers, &turn(text).to_string()).unwrap();
            if reply.status != 412 {
                on_line(&reply, text);
                return moved;
            }
        }
        unreachable!("it ends when the head has not moved")
    });
    crowd.check("s");
    let moved: u64 = moved.into_iter().sum();
    println!(
        "{} conditional turns by {CLIENTS} clients, {moved} found a moved head: all on one line once",
        crowd.count()
    );
    assert!(moved > 0, "they were never in each other's way");
}

#[test]
fn keys_that_are_sent_twice_at_once_run_once() {
    let mut crowd = Crowd::new(43);
    let servers = [crowd.peers.address(0).to_owned(), crowd.peers.address(1).to_owned()];
    crowd.work(|_, text| {
        let send = |server: &String| {
            let headers = format!("Idempotency-Key: {text}\r\n");
            ask(server, "POST", TURNS, &headers, &turn(text).to_string()).unwrap().ok()
        };
        let [one, other] = thread::scope(|scope| {
            let sent = servers.each_ref().map(|server| scope.spawn(move || send(server)));
            sent.map(|sent| sent.join().expect("an answer"))
        });
        assert_eq!(one["snapshotId"], other["snapshotId"], "{text}: {one} {other}");
        assert_eq!(one["message"], other["message"], "{text}");
    });
    crowd.check("s");
    println!("{} keys, each sent to both servers at once: all on one line once", crowd.count());
}

#[test]
fn turns_over_genkits_wire_are_on_one_line_once() {
    let mut crowd = Crowd::new(44);
    crowd.work(|server, text| {
        let message = json!({ "role": "user", "content": [{ "text": text }] });
        let body = json!({ "data": { "message": message }, "init": { "sessionId": "s" } });
        let output = post(server, "/genkit/echo", &body).ok();
        assert_eq!(output["result"]["finishReason"], "stop", "{output}");
    });
    crowd.check("s");
    println!("{} turns over Genkit's wire by {CLIENTS} clients: all on one line once", crowd.count());
}

#[test]
fn turns_from_one_snapshot_are_all_readable() {
    let mut crowd = Crowd::new(45);
    let first = post(crowd.peers.address(0), TURNS, &turn("first")).ok();
    let from = &first["snapshotId"];
    let made = crowd.work(|server, text| {
        let body = json!({ "snapshot": from, "input": { "text": text } });
        (text.to_owned(), post(server, TURNS, &body).ok()["snapshotId"].as_str().expect("a snapshot").to_owned())
    });
    for (text, snapshot) in &made {
        let found = get(crowd.peers.address(1), &format!("/v1/agents/echo/snapshots/{snapshot}")).ok();
        assert_eq!(found["status"], "completed", "{found}");
        let said: Vec<_> = found["state"]["messages"].as_array().expect("messages").iter().map(text_of).collect();
        assert_eq!(said, ["first", "echo: first", text, &format!("echo: {text}")]);
    }
    crowd.peers.unharmed();
    println!("{} turns from one snapshot: all readable", made.len());
}

#[test]
fn a_crowd_that_comes_at_once_is_served_or_told_to_come_again() {
    let crowd = Crowd::new(46);
    let servers = [crowd.peers.address(0), crowd.peers.address(1)];
    let count = crowd.count().min(500);
    let gate = Barrier::new(count);
    let replies: Vec<_> = thread::scope(|scope| {
        let ask = |n: usize| {
            let gate = &gate;
            scope.spawn(move || {
                gate.wait();
                (format!("n{n}"), post(servers[n % 2], TURNS, &turn(&format!("n{n}"))))
            })
        };
        let asked: Vec<_> = (0..count).map(ask).collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    let (served, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|(_, reply)| reply.status == 200);
    for (text, reply) in &refused {
        assert!(matches!(reply.status, 409 | 429 | 503), "{text}: {reply:?}");
        assert!(reply.header("retry-after").is_some(), "{text}: {reply:?}");
    }
    let state = get(servers[0], "/v1/agents/echo/sessions/s/state").ok();
    let said: Vec<_> = state["messages"].as_array().expect("messages").iter().map(text_of).collect();
    for (text, reply) in &served {
        on_line(reply, text);
        assert_eq!(said.iter().filter(|said| *said == text).count(), 1, "{text}");
    }
    assert_eq!(said.len(), 2 * served.len(), "what was refused is not there");
    crowd.peers.unharmed();
    println!("{count} at once: {} on one line once, {} told to come again", served.len(), refused.len());
    assert!(!served.is_empty());
}
