//! Every route of every wire, asked by somebody else for what is ann's: the answer is the one for what does not exist, in
//! status, headers and body, and takes as long. Whoever has no key gets one answer everywhere.
//!
//! The routes of `/v1` come from its description, so that a new one is walked by being described.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Answer, Server, sqlite_in};
use serde_json::{Value, json};

/// What is ann's, and what nobody has: as long, so that lengths tell nothing either.
struct Ids {
    session: String,
    running: String,
    snapshot: String,
    pending: String,
    turn: String,
}

/// A request that names something.
struct Knock {
    method: String,
    path: String,
    body: String,
}

struct World {
    server: Server,
    ann: String,
    bob: String,
    anns: Ids,
    nobodys: Ids,
    _dir: tempfile::TempDir,
}

fn key(dir: &std::path::Path, store: &str, user: &str) -> String {
    let args = ["keys", "--store", store, "create", "--rights", "admin", "--user", user];
    let output = Command::new(env!("CARGO_BIN_EXE_everturn")).args(args).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl World {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite_in(dir.path());
        let (ann, bob) = (key(dir.path(), &store, "ann"), key(dir.path(), &store, "bob"));
        let server = Server::start_with(dir.path(), &store, &["--addr", "127.0.0.1:0", "--rate", "100000/s"]);
        let ask = |method: &str, path: &str, body: &Value| -> Value {
            let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {ann}\r\n");
            let answer = server.request(method, path, &headers, &body.to_string());
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            serde_json::from_str(&answer.body).unwrap()
        };
        let turns = "/v1/agents/echo/turns";
        let done = ask("POST", turns, &json!({ "session": "anns-1", "input": { "text": "artifact a.txt my plan" } }));
        let slow = json!({ "text": "slow 600000", "detach": true });
        let slow = ask("POST", turns, &json!({ "session": "anns-2", "input": slow }));
        let records = ask("GET", "/v1/agents/echo/sessions/anns-1/records", &json!({}));
        let turn = records["items"].as_array().unwrap().iter().find_map(|record| record["turn"].as_str()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let anns = Ids {
            session: "anns-1".to_owned(),
            running: "anns-2".to_owned(),
            snapshot: text(&done["snapshotId"]),
            pending: text(&slow["snapshotId"]),
            turn: turn.to_owned(),
        };
        let nobodys = Ids {
            session: "none-1".to_owned(),
            running: "none-2".to_owned(),
            snapshot: "01a1e2e4-4bb5-75c4-9ad9-08b69f3d5317".to_owned(),
            pending: "01a1e2e4-4bb5-75c4-9ad9-08b69f3d5318".to_owned(),
            turn: turn.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect(),
        };
        Self { server, ann, bob, anns, nobodys, _dir: dir }
    }

    fn ask(&self, key: Option<&str>, knock: &Knock) -> Answer {
        let bearer = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let headers = format!("Content-Type: application/json\r\n{bearer}");
        self.server.request(&knock.method, &knock.path, &headers, &knock.body)
    }

    /// The same by somebody unknown: whoever knocks too often is told when to come back.
    fn knock(&self, key: Option<&str>, knock: &Knock) -> Answer {
        loop {
            let answer = self.ask(key, knock);
            let Some(wait) = answer.header("retry-after").filter(|_| answer.status == 429) else { return answer };
            std::thread::sleep(Duration::from_secs(wait.parse().expect("seconds")));
        }
    }

    /// Every route, in each way that something of somebody's can be named to it.
    fn knocks(&self, ids: &Ids) -> Vec<Knock> {
        let mut knocks = genkit(ids);
        let bearer = format!("Authorization: Bearer {}\r\n", self.ann);
        let api = self.server.request("GET", "/v1/openapi.json", &bearer, "");
        let api: Value = serde_json::from_str(&api.body).unwrap();
        for (template, item) in api["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                for (session, snapshot) in [(&ids.session, &ids.snapshot), (&ids.running, &ids.pending)] {
                    let path = filled(template, session, snapshot, &ids.turn);
                    let query = if template.ends_with("/diff") { format!("?to={snapshot}") } else { String::new() };
                    let body = body_for(method, template, snapshot).to_string();
                    knocks.push(Knock { method: method.to_uppercase(), path: format!("/v1{path}{query}"), body });
                }
            }
        }
        knocks
    }
}

/// A path with ids in it. What only exists within a session is there in ann's.
fn filled(template: &str, session: &str, snapshot: &str, turn: &str) -> String {
    let known = [
        ("{agent}", "echo"),
        ("{session}", session),
        ("{snapshot}", snapshot),
        ("{turn}", turn),
        ("{branch}", "main"),
        ("{artifact}", "a.txt"),
    ];
    let path = known.iter().fold(template.to_owned(), |path, (name, value)| path.replace(name, value));
    assert!(!path.contains('{'), "{path}: say here what to fill in");
    path
}

/// A body that the owner could send.
fn body_for(method: &str, template: &str, snapshot: &str) -> Value {
    match (method, template) {
        (_, path) if path.ends_with("/turns") => json!({ "snapshot": snapshot, "input": { "text": "go on" } }),
        ("put", path) if path.ends_with("/{branch}") => json!({ "to": { "snapshot": snapshot }, "force": true }),
        ("post", path) if path.ends_with("/branches") => json!({ "name": "b", "at": { "snapshot": snapshot } }),
        ("post", path) if path.ends_with("/fork") => json!({ "at": { "snapshot": snapshot } }),
        ("patch", path) if path.ends_with("/{snapshot}") => json!({ "label": "mine" }),
        ("patch", path) if path.ends_with("/{session}") => json!({ "title": "mine" }),
        _ => json!({}),
    }
}

/// Genkit's routes.
fn genkit(ids: &Ids) -> Vec<Knock> {
    let post = |path: &str, body: Value| Knock {
        method: "POST".to_owned(),
        path: format!("/genkit/echo{path}"),
        body: body.to_string(),
    };
    let message = json!({ "role": "user", "content": [{ "text": "go on" }] });
    let mut knocks = vec![post("/getSnapshot", json!({ "data": { "sessionId": ids.session } }))];
    for snapshot in [&ids.snapshot, &ids.pending] {
        for route in ["/getSnapshot", "/waitForSnapshot", "/abort"] {
            knocks.push(post(route, json!({ "data": { "snapshotId": snapshot } })));
        }
        let init = json!({ "snapshotId": snapshot });
        knocks.push(post("", json!({ "data": { "message": message }, "init": init })));
        knocks.push(post("", json!({ "data": { "message": message, "detach": true }, "init": init })));
        let init = json!({ "snapshotId": snapshot, "sessionId": ids.session });
        knocks.push(post("", json!({ "data": { "message": message }, "init": init })));
    }
    knocks
}

/// An answer with what nobody has in place of what is ann's.
fn told(mut answer: Answer, anns: &Ids, nobodys: &Ids) -> Answer {
    for (ann, nobody) in [
        (&anns.session, &nobodys.session),
        (&anns.running, &nobodys.running),
        (&anns.snapshot, &nobodys.snapshot),
        (&anns.pending, &nobodys.pending),
    ] {
        answer.body = answer.body.replace(ann, nobody);
    }
    // A turn's number is too short to be replaced wherever it stands.
    answer.body = answer.body.replace(&format!("turn {}", anns.turn), &format!("turn {}", nobodys.turn));
    answer.body = answer.body.replace(&format!("'{}'", anns.turn), &format!("'{}'", nobodys.turn));
    answer
}

#[test]
fn what_is_anothers_is_answered_as_what_is_not_there_on_every_route_of_every_wire() {
    let world = World::start();
    // The same wherever they knock, in the words of the wire.
    let [ours, genkits] = ["/v1/nothing", "/nothing"].map(|path| world.server.request("GET", path, "", ""));
    assert_eq!((ours.status, genkits.status), (401, 401));
    let stranger = |path: &str| if path.starts_with("/v1/") { &ours } else { &genkits };
    let (theirs, none) = (world.knocks(&world.anns), world.knocks(&world.nobodys));
    let mut compared = 0;
    for (knock, unknown) in theirs.iter().zip(&none) {
        let about = format!("{} {} {}", knock.method, knock.path, knock.body);
        assert_eq!(world.knock(None, knock), *stranger(&knock.path), "without a key: {about}");
        assert_eq!(
            world.knock(Some("evt_000000000000_x"), knock),
            *stranger(&knock.path),
            "with a key of nobody: {about}"
        );
        if (&knock.path, &knock.body) != (&unknown.path, &unknown.body) {
            let (anns, nobodys) = (world.ask(Some(&world.bob), knock), world.ask(Some(&world.bob), unknown));
            assert!(!anns.body.contains("my plan") && anns.status < 500, "{about}: {}", anns.body);
            assert_eq!(told(anns, &world.anns, &world.nobodys), nobodys, "{about}");
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} were compared");
    untouched(&world);
}

/// None of it reached what is ann's.
fn untouched(world: &World) {
    let read = |path: &str| -> Value {
        let knock = Knock { method: "GET".to_owned(), path: path.to_owned(), body: String::new() };
        serde_json::from_str(&world.ask(Some(&world.ann), &knock).body).unwrap()
    };
    let session = read("/v1/agents/echo/sessions/anns-1");
    assert_eq!((&session["turns"], &session["title"]), (&json!(1), &Value::Null), "{session}");
    assert_eq!(session["branches"].as_array().map(Vec::len), Some(1), "{session}");
    let pending = read(&format!("/v1/agents/echo/snapshots/{}?state=false", world.anns.pending));
    assert_eq!(pending["status"], "pending", "{pending}");
}

/// How long the two answers take is printed. What is asserted is coarse: a machine that others use is no clock.
#[test]
fn what_is_anothers_takes_as_long_as_what_is_not_there() {
    let world = World::start();
    let (theirs, none) = (world.knocks(&world.anns), world.knocks(&world.nobodys));
    let pairs: Vec<_> = theirs.iter().zip(&none).filter(|(knock, unknown)| knock.path != unknown.path).collect();
    let reads = pairs.into_iter().filter(|(knock, _)| knock.method == "GET");
    for (knock, unknown) in reads.chain([(&theirs[0], &none[0])]) {
        let (mut anns, mut nobodys) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            for (knock, times) in [(knock, &mut anns), (unknown, &mut nobodys)] {
                let start = Instant::now();
                world.ask(Some(&world.bob), knock);
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        let (anns, nobodys) = (median(anns), median(nobodys));
        println!("{anns:6.0} µs for what is ann's, {nobodys:6.0} µs for what is not there: {}", knock.path);
        assert!((anns - nobodys).abs() < 2_000.0 + 2.0 * anns.min(nobodys), "{}: {anns} and {nobodys}", knock.path);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
