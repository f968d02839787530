//! Readers of a turn's stream break off at random places and come back by the last position they saw, to this server or
//! to another one on the same file: together they have read the whole stream, without gap or repeat, while the turn runs
//! and after it has ended. A reader of a turn whose server is killed reads on, on a server that lives or on the one that is
//! started again, is told that the turn is tried anew, and gets to its end.
//!
//! `EVERTURN_READERS` is how many readers there are, `EVERTURN_SEED` picks the places.

use std::io::Read as _;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{Event, PATIENCE, Peers, Rng, events, get, post, seeded, setting, start_stream, until};

/// How long a reader sits before a stream on which nothing comes, before it goes and comes back.
const BORED: Duration = Duration::from_secs(2);

/// Reads events behind a position, until the stream ends, some bytes were read or nothing comes. Nothing if the server is
/// gone.
fn read_some(server: &str, path: &str, after: Option<&str>, bytes: usize) -> Vec<Event> {
    let headers = after.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
    let Ok(mut stream) = start_stream(server, "GET", path, &headers, "") else { return Vec::new() };
    stream.set_read_timeout(Some(BORED)).unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 64]);
    loop {
        let read = stream.read(&mut piece).unwrap_or(0);
        text.extend_from_slice(&piece[..read]);
        let said = String::from_utf8_lossy(&text);
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
        if read == 0 || body.len() >= bytes {
            assert!(head.is_empty() || head.split(' ').nth(1).is_none_or(|status| status == "200"), "{said}");
            return events(body);
        }
    }
}

/// Reads a stream to the end of its turn, breaking off now and then, each time from a server that is asked for. Gives its
/// events, and how often it broke off.
fn read_in_pieces(path: &str, rng: &mut Rng, server: impl Fn(&mut Rng) -> String) -> (Vec<Event>, usize) {
    let (mut seen, mut cuts) = (Vec::<Event>::new(), 0);
    let (enough, mut budget) = (PATIENCE, 0);
    until("the end of a stream", enough, || {
        let last = seen.iter().rev().find_map(|event| event.id.clone());
        // More each time, so that one event that is longer than it is no obstacle for ever.
        budget += 1 + rng.index(300);
        let read = read_some(&server(rng), path, last.as_deref(), budget);
        if read.iter().any(|event| event.id.is_some()) {
            budget = 0;
        }
        seen.extend(read);
        if seen.last().is_some_and(is_end) {
            return Ok(());
        }
        cuts += 1;
        Err(format!("{:?}", seen.last()))
    });
    (seen, cuts)
}

fn is_end(event: &Event) -> bool {
    event.data.get("turnEnd").is_some()
}

fn is_restart(event: &Event) -> bool {
    event.data.get("restarted").is_some()
}

/// A turn in the background, by its stream.
fn begin(server: &str, session: &str, text: &str) -> String {
    let input = json!({ "text": text, "detach": true });
    let begun = post(server, "/v1/agents/echo/turns", &json!({ "session": session, "input": input })).ok();
    format!("/v1/agents/echo/snapshots/{}/stream", begun["snapshotId"].as_str().expect("a snapshot"))
}

fn whole(server: &str, path: &str) -> Vec<Event> {
    events(&get(server, path).body)
}

#[test]
fn readers_that_break_off_anywhere_miss_nothing_and_read_nothing_twice() {
    let mut rng = seeded(71);
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::started(dir.path(), dir.path(), 2);
    let servers = [peers.address(0).to_owned(), peers.address(1).to_owned()];
    let readers = setting("EVERTURN_READERS", 24);
    let (mut cuts, mut read) = (0, 0);
    for reader in 0..readers {
        let text = match reader % 3 {
            0 => format!("slow {}", rng.below(200)),
            1 => format!("artifact a{reader}.txt some words"),
            _ => format!("{} words of an echo", "many ".repeat(rng.index(50))),
        };
        let path = begin(&servers[rng.index(2)], &format!("s{}", reader % 8), &text);
        let (seen, broken_off) = read_in_pieces(&path, &mut rng, |rng| servers[rng.index(2)].clone());
        for server in &servers {
            assert_eq!(seen, whole(server, &path), "{text}");
        }
        assert_eq!(seen.last().expect("an end").data["turnEnd"]["finishReason"], "stop");
        (cuts, read) = (cuts + broken_off, read + seen.len());
    }
    peers.unharmed();
    println!("{readers} readers broke off {cuts} times and read {read} events: 0 gaps, 0 repeats");
    assert!(cuts > 0, "none broke off");
}

#[test]
fn readers_of_a_turn_whose_server_is_killed_get_to_its_end() {
    let mut rng = seeded(72);
    let dir = tempfile::tempdir().unwrap();
    let mut peers = Peers::new(dir.path(), dir.path(), 2);
    peers.option("--recovery-poll", "100ms");
    (0..2).for_each(|server| peers.start(server));
    let kills = setting("EVERTURN_READERS", 24).div_ceil(8);
    let mut restarted = 0;
    for kill in 0..kills {
        let session = format!("s{kill}");
        let path = begin(peers.address(0), &session, &format!("slow {}", 300 + rng.below(200)));
        let living = peers.address(1).to_owned();
        let (mut parts, moment) = ([rng.part(), rng.part()], Duration::from_millis(rng.below(300)));
        let stage = peers.stage();
        let seen = thread::scope(|scope| {
            let [one, other] = &mut parts;
            // One stays where it is; the other goes to whichever server there is.
            let stays = scope.spawn(|| read_in_pieces(&path, one, |_| living.clone()).0);
            let moves = scope.spawn(|| {
                let any = |rng: &mut Rng| stage.server(rng.index(2)).unwrap_or_else(|| living.clone());
                read_in_pieces(&path, other, any).0
            });
            thread::sleep(moment);
            peers.kill(0);
            peers.start(0);
            [stays, moves].map(|reader| reader.join().expect("a reader"))
        });
        for seen in seen {
            let again = seen.iter().rposition(is_restart);
            restarted += usize::from(again.is_some());
            // What was said before a new attempt does not count; the rest is the whole stream of the last one.
            let said = &seen[again.map_or(0, |at| at + 1)..];
            let kept = whole(&living, &path);
            let kept: Vec<_> = kept.into_iter().filter(|event| !is_restart(event)).collect();
            assert_eq!(said, kept, "{seen:?}");
            assert_eq!(said.last().expect("an end").data["turnEnd"]["finishReason"], "stop", "{seen:?}");
        }
    }
    peers.unharmed();
    println!("{kills} kills, {} readers, {restarted} told that the turn is tried anew: all got to its end", 2 * kills);
    assert!(restarted > 0, "no turn was interrupted");
}

#[test]
fn the_stream_of_an_attached_turn_whose_server_was_killed_ends() {
    let mut rng = seeded(73);
    let dir = tempfile::tempdir().unwrap();
    let mut peers = Peers::new(dir.path(), dir.path(), 2);
    peers.option("--recovery-poll", "100ms");
    (0..2).for_each(|server| peers.start(server));
    let kills = setting("EVERTURN_READERS", 24).div_ceil(8);
    for kill in 0..kills {
        let body = json!({ "session": format!("s{kill}"), "input": { "text": "slow 60000" } }).to_string();
        let (turns, accept) = ("/v1/agents/echo/turns", "Accept: text/event-stream\r\n");
        let mut stream = start_stream(peers.address(0), "POST", turns, accept, &body).unwrap();
        let begun = until("that it has begun", PATIENCE, || {
            let (mut piece, mut text) = ([0; 4096], String::new());
            while !text.contains("snapshotId") || !text.ends_with("\n\n") {
                let read = stream.read(&mut piece).map_err(|error| error.to_string())?;
                text.push_str(&String::from_utf8_lossy(&piece[..read]));
            }
            let (_, body) = text.split_once("\r\n\r\n").ok_or("no head")?;
            events(body).into_iter().next().ok_or(text)
        });
        let path = format!("/v1/agents/echo/snapshots/{}/stream", begun.data["snapshotId"].as_str().expect("an id"));
        let living = peers.address(1).to_owned();
        let mut part = rng.part();
        thread::scope(|scope| {
            let follower = scope.spawn(|| read_in_pieces(&path, &mut part, |_| living.clone()).0);
            peers.kill(0);
            peers.start(0);
            let seen = follower.join().expect("a follower");
            assert_ne!(seen.last().expect("an end").data["turnEnd"]["finishReason"], "stop", "{seen:?}");
        });
        // And so does one that comes back to the server that was started again.
        let (seen, _) = read_in_pieces(&path, &mut rng, |_| peers.address(0).to_owned());
        assert!(seen.last().is_some_and(is_end), "{seen:?}");
    }
    peers.unharmed();
    println!("{kills} attached turns died with their server: every stream of theirs ended");
}
