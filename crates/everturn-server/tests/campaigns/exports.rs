//! Files of sessions that were tampered with are refused, or do no harm.
//!
//! A session with branches, a failed turn, artifacts, a compaction, and a fork of it are exported. The files are cut,
//! bytes of them are changed, lines are left out, swapped and doubled, and values are changed, taken away and replaced with
//! all checksums made anew. Each is brought in over HTTP. It is refused with a 4xx that leaves nothing behind, or what came
//! of it is sound: it can be read in every way, written to, exported, and that export is taken again.
//!
//! `EVERTURN_FILES` is how many files there are, `EVERTURN_SEED` picks what is changed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Peers, Reply, Rng, ask, get, post, seeded, setting, sound};

const SESSIONS: &str = "/v1/agents/echo/sessions";

/// Two sessions in which a lot happened.
fn eventful(server: &str) {
    let turn =
        |text: &str| post(server, "/v1/agents/echo/turns", &json!({ "session": "s", "input": { "text": text } }));
    let one = turn("one").ok();
    turn("fail badly").ok();
    turn("artifact plan.txt steps: boil").ok();
    let branch = json!({ "name": "green", "at": { "snapshot": one["snapshotId"] } });
    post(server, &format!("{SESSIONS}/s/branches"), &branch).ok();
    let aside = json!({ "session": "s", "branch": "green", "input": { "text": "on green" } });
    post(server, "/v1/agents/echo/turns", &aside).ok();
    post(server, &format!("{SESSIONS}/s/compactions"), &json!({ "summary": "They made a plan." })).ok();
    turn("and on").ok();
    post(server, &format!("{SESSIONS}/s/fork"), &json!({ "id": "f" })).ok();
    post(server, "/v1/agents/echo/turns", &json!({ "session": "f", "input": { "text": "forked" } })).ok();
}

/// What was done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    Byte,
    Cut,
    LeftOut,
    Swapped,
    Doubled,
    /// A value, with checksums that fit.
    Value,
}

const HARMS: [Harm; 8] =
    [Harm::Byte, Harm::Cut, Harm::LeftOut, Harm::Swapped, Harm::Doubled, Harm::Value, Harm::Value, Harm::Value];

/// Does harm to a file. Some of what changes lines is made to fit again, or it would only test the checksums.
fn harmed(file: &str, harm: Harm, rng: &mut Rng) -> Vec<u8> {
    let mut lines: Vec<&str> = file.lines().collect();
    let (at, other) = (rng.index(lines.len()), rng.index(lines.len()));
    match harm {
        Harm::Byte => {
            let mut bytes = file.as_bytes().to_vec();
            for _ in 0..1 + rng.below(3) {
                let at = rng.index(bytes.len());
                bytes[at] ^= 1 << rng.below(8);
            }
            return bytes;
        }
        Harm::Cut => return file.as_bytes()[..rng.index(file.len() - 1)].to_vec(),
        Harm::LeftOut => drop(lines.remove(at)),
        Harm::Swapped => lines.swap(at, other),
        Harm::Doubled => lines.insert(at, lines[other]),
        Harm::Value => {
            let mut objects: Vec<Value> = lines.iter().map(|line| object(line)).collect();
            for _ in 0..1 + rng.below(2) {
                spoil(&mut objects[at], rng);
            }
            return chained(&objects);
        }
    }
    if rng.below(2) == 0 {
        return chained(&lines.iter().map(|line| object(line)).collect::<Vec<_>>());
    }
    format!("{}\n", lines.join("\n")).into_bytes()
}

fn object(line: &str) -> Value {
    serde_json::from_str::<Value>(line).expect("a line of an export")[1].take()
}

/// A file of these objects, with checksums that fit and a last line that counts.
fn chained(objects: &[Value]) -> Vec<u8> {
    let (mut before, mut file) = ([0; 32].to_vec(), String::new());
    for (at, object) in objects.iter().enumerate() {
        let mut object = object.clone();
        if let Some(lines) = object.pointer_mut("/end/lines").filter(|_| at + 1 == objects.len()) {
            *lines = at.into();
        }
        let text = object.to_string();
        before.extend_from_slice(text.as_bytes());
        before = Sha256::digest(&before).to_vec();
        let digits: String = before.iter().map(|byte| format!("{byte:02x}")).collect();
        file += &format!("[\"{digits}\",{text}]\n");
    }
    file.into_bytes()
}

/// All places in a value, as pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            places(member, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// Changes something in a value, somewhere.
fn spoil(value: &mut Value, rng: &mut Rng) {
    let mut found = Vec::new();
    places(value, "", &mut found);
    let at = rng.pick(&found).clone();
    let place = value.pointer_mut(&at).expect("a place that was found");
    *place = match (rng.below(9), place.take()) {
        (0, Value::Number(number)) => number.as_u64().unwrap_or(0).wrapping_add(1).into(),
        (1, Value::Number(number)) => number.as_u64().unwrap_or(0).saturating_sub(1).into(),
        (2, _) => u64::MAX.into(),
        (3, _) => json!(-1.5e300),
        (4, _) => Value::Null,
        (5, Value::Array(items)) => items.iter().chain(&items).cloned().collect(),
        (6, Value::String(text)) => format!("{text}\u{0}x").into(),
        (7, other) => json!({ "": other }),
        (_, Value::Object(members)) => members.into_iter().skip(1).collect(),
        (_, Value::String(_)) => "".into(),
        (_, _) => json!([[], {}, ""]),
    };
}

fn import(server: &str, id: &str, file: &[u8]) -> Reply {
    let path = format!("/v1/agents/echo/import?id={id}&snapshots=fresh");
    // What is no UTF-8 any more is sent as its bytes would be read.
    let file = String::from_utf8_lossy(file);
    ask(server, "POST", &path, "Content-Type: application/x-ndjson\r\n", &file).unwrap()
}

#[test]
fn files_that_were_tampered_with_are_refused_or_do_no_harm() {
    let mut rng = seeded(91);
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::started(dir.path(), dir.path(), 1);
    let server = peers.address(0);
    eventful(server);
    let files = ["s", "f"].map(|session| get(server, &format!("{SESSIONS}/{session}/export")).body);
    let mut counts: BTreeMap<Harm, (u64, u64)> = BTreeMap::new();
    for n in 0..setting("EVERTURN_FILES", 240) {
        let (file, harm, id) = (rng.pick(&files), *rng.pick(&HARMS), format!("t{n}"));
        let harmed = harmed(file, harm, &mut rng);
        let reply = import(server, &id, &harmed);
        let count = counts.entry(harm).or_default();
        if reply.status == 201 {
            count.1 += 1;
            is_sound(server, &id);
        } else {
            count.0 += 1;
            let about = || format!("{harm:?} {n}: {reply:?}\n{}", String::from_utf8_lossy(&harmed));
            assert!((400..500).contains(&reply.status), "{}", about());
            let why = reply.json();
            assert!(why["detail"].as_str().is_some_and(|why| !why.is_empty()), "{}", about());
            assert_eq!(get(server, &format!("{SESSIONS}/{id}")).status, 404, "{}", about());
        }
    }
    peers.unharmed();
    drop(peers);
    sound(dir.path());
    println!("tampered files, as (refused, taken and sound): {counts:?}");
    assert!(counts[&Harm::Cut].1 == 0 && counts[&Harm::Value].0 > 0, "{counts:?}");
}

/// A session that was brought in can be read in every way, written to, and taken out and in again.
fn is_sound(server: &str, id: &str) {
    let path = format!("{SESSIONS}/{id}");
    for part in ["", "/state", "/events", "/records", "/tree", "/branches", "/snapshots", "/compactions", "/artifacts"]
    {
        let reply = get(server, &format!("{path}{part}"));
        assert_eq!(reply.status, 200, "{id}{part}: {}", reply.body);
    }
    let file = get(server, &format!("{path}/export")).body;
    let again = format!("{id}-again");
    let reply = import(server, &again, file.as_bytes());
    assert_eq!(reply.status, 201, "{id} was taken, and its export is not: {}", reply.body);
    let states = [&path, &format!("{SESSIONS}/{again}")].map(|path| get(server, &format!("{path}/state")).ok());
    assert_eq!(states[0]["messages"], states[1]["messages"], "{id}");
    let turn = json!({ "session": id, "input": { "text": "goes on" } });
    assert_eq!(post(server, "/v1/agents/echo/turns", &turn).ok()["finishReason"], "stop", "{id}");
}
