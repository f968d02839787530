//! Turns are aborted at the moment they complete, and everybody agrees on what came of it.
//!
//! Two servers have one file open. A turn in the background or on a stream, begun over `/v1` or Genkit's wire, is aborted
//! by the same server or the other, over either wire, somewhere between its beginning and a little after its end. If the
//! abort found it pending, it is aborted: its stream says so, so do `wait`, the snapshot and the tree at both servers over
//! both wires, every other abort finds it aborted, and the session's line does not have it. If the abort came too late, all
//! of them say that it completed, and the line has it.
//!
//! `EVERTURN_SEED` picks the moments, `EVERTURN_ABORTS` how many turns there are.

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Event, Peers, Rng, events, get, post, seeded, setting, start_stream};

/// How a turn is begun.
#[derive(Clone, Copy, Debug)]
enum Begin {
    Detached,
    Stream,
    Genkit,
}

/// A turn that was begun.
struct Begun {
    session: String,
    /// What its message says it is.
    name: String,
    snapshot: String,
    stream: Option<(TcpStream, String)>,
}

#[test]
fn all_agree_on_whether_a_turn_was_aborted_or_completed() {
    let mut rng = seeded(31);
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::started(dir.path(), dir.path(), 2);
    let servers = [peers.address(0), peers.address(1)];
    let races = setting("EVERTURN_ABORTS", 40);
    let parts = [rng.part(), rng.part()];
    let won: u64 = thread::scope(|scope| {
        let workers = parts.into_iter().enumerate().map(|(worker, mut rng)| {
            scope.spawn(move || (0..races / 2).filter(|race| aborted(servers, worker, *race, &mut rng)).count() as u64)
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    peers.unharmed();
    println!("{races} races of an abort with completion, {won} won by the abort: 0 disagreements");
    assert!(won > 0 && won < races, "{won} of {races} were aborted: nothing was raced");
}

/// Begins a turn and aborts it. Tells whether it was in time.
fn aborted(servers: [&str; 2], worker: usize, race: u64, rng: &mut Rng) -> bool {
    let took = rng.below(12);
    let begin = *rng.pick(&[Begin::Detached, Begin::Stream, Begin::Genkit]);
    let session = format!("s{worker}-{}", race % 8);
    let mut turn = begun(servers[rng.index(2)], begin, &session, &format!("{worker}-{race}"), took);
    thread::sleep(Duration::from_micros(rng.below(took * 1500 + 3000)));
    let (server, genkit) = (servers[rng.index(2)], rng.below(2) == 0);
    let won = match &*abort(server, &turn.snapshot, genkit) {
        "pending" => true,
        "aborted" if genkit => true,
        "completed" => false,
        other => panic!("{begin:?} {}: the abort found {other}", turn.name),
    };
    let (status, reason) = if won { ("aborted", "aborted") } else { ("completed", "stop") };
    if let Some((stream, seen)) = turn.stream.take() {
        let output = rest(stream, seen).pop().expect("events");
        assert_eq!((&*output.name, &output.data["finishReason"]), ("output", &json!(reason)), "{}", output.data);
        // An aborted turn gives the last good point instead, so that one can go on from there.
        assert_eq!(output.data["snapshotId"] == *turn.snapshot, !won, "{}", output.data);
    }
    for server in servers {
        observed(server, &turn, status, reason);
    }
    won
}

/// What a server says of a turn that has ended, over both wires.
fn observed(server: &str, turn: &Begun, status: &str, reason: &str) {
    let Begun { session, name, snapshot, .. } = turn;
    let v1 = format!("/v1/agents/echo/snapshots/{snapshot}");
    for path in [format!("{v1}/wait?seconds=60"), v1.clone()] {
        let reply = get(server, &path);
        assert_eq!(reply.status, 200, "{name} {path}: {}", reply.body);
        let told = reply.json();
        assert_eq!((&told["status"], &told["finishReason"]), (&json!(status), &json!(reason)), "{name}: {told}");
    }
    let look = json!({ "data": { "snapshotId": snapshot } });
    for route in ["getSnapshot", "waitForSnapshot"] {
        let told = post(server, &format!("/genkit/echo/{route}"), &look).ok();
        assert_eq!(told["result"]["status"], status, "{name} {route}: {told}");
    }
    for genkit in [false, true] {
        assert_eq!(abort(server, snapshot, genkit), status, "{name}: aborted again");
    }
    let stream = get(server, &format!("{v1}/stream"));
    let stream = events(&stream.body);
    let end = &stream.last().expect("events").data["turnEnd"];
    assert_eq!(end["finishReason"], reason, "{name}: {stream:?}");
    // The line has what completed, at its end, and nothing of what was aborted.
    let state = get(server, &format!("/v1/agents/echo/sessions/{session}/state"));
    let messages = state.ok()["messages"].as_array().expect("messages").clone();
    let on_line = messages.iter().filter(|message| message["metadata"]["name"] == **name).count();
    assert_eq!(on_line, usize::from(status == "completed"), "{name}: {messages:?}");
    let tree = get(server, &format!("/v1/agents/echo/sessions/{session}/tree?limit=100")).ok();
    let nodes = tree["items"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["snapshots"][0]["id"] == **snapshot);
    // A session has no more turns here than a page has nodes, but for long campaigns.
    if let Some(node) = node {
        assert_eq!(node["status"], status, "{name}: {node}");
    } else {
        assert!(tree["next"].is_string(), "{name} is not in the tree: {tree}");
    }
}

/// Aborts a turn, and says what the abort found.
fn abort(server: &str, snapshot: &str, genkit: bool) -> String {
    let told = if genkit {
        post(server, "/genkit/echo/abort", &json!({ "data": { "snapshotId": snapshot } })).ok()["result"]["status"]
            .take()
    } else {
        post(server, &format!("/v1/agents/echo/snapshots/{snapshot}/abort"), &json!({})).ok()["before"].take()
    };
    told.as_str().unwrap_or_else(|| panic!("{told}")).to_owned()
}

fn begun(server: &str, begin: Begin, session: &str, name: &str, took: u64) -> Begun {
    let parts = json!([{ "text": format!("slow {took}") }]);
    let message = json!({ "role": "user", "content": parts, "metadata": { "name": name } });
    let turn = |snapshot: &Value, stream| Begun {
        session: session.to_owned(),
        name: name.to_owned(),
        snapshot: snapshot.as_str().unwrap_or_else(|| panic!("{name}: no snapshot")).to_owned(),
        stream,
    };
    let v1 = |detach: bool| json!({ "session": session, "input": { "messages": [message], "detach": detach } });
    match begin {
        Begin::Detached => turn(&post(server, "/v1/agents/echo/turns", &v1(true)).ok()["snapshotId"], None),
        Begin::Genkit => {
            let body = json!({ "data": { "message": message, "detach": true }, "init": { "sessionId": session } });
            turn(&post(server, "/genkit/echo", &body).ok()["result"]["snapshotId"], None)
        }
        Begin::Stream => {
            let (path, accept) = ("/v1/agents/echo/turns", "Accept: text/event-stream\r\n");
            let mut stream = start_stream(server, "POST", path, accept, &v1(false).to_string()).unwrap();
            let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                let read = stream.read(&mut piece).unwrap();
                assert!(read > 0, "the stream ended early: {}", String::from_utf8_lossy(&seen));
                seen.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&seen).into_owned();
                let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
                if let Some(first) = events(body).first() {
                    return turn(&first.data["snapshotId"], Some((stream, body.to_owned())));
                }
            }
        }
    }
}

/// The events of a stream, read to its end.
fn rest(mut stream: TcpStream, seen: String) -> Vec<Event> {
    let mut text = seen;
    stream.read_to_string(&mut text).unwrap();
    events(&text)
}
