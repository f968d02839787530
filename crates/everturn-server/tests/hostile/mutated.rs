//! Good requests with something changed in them, and no requests at all, made up by a seed: each is answered, none with a
//! failure of the server's.
//!
//! `EVERTURN_REQUESTS` is how many there are, `EVERTURN_SEED` picks what is changed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Shutdown;

use serde_json::{Value, json};

use super::{PATIENCE, Route, Target};

/// Numbers that look random and come again with their seed.
struct Dice(u64);

impl Dice {
    fn seeded(default: u64) -> Self {
        let seed = setting("EVERTURN_SEED", default);
        println!("EVERTURN_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("a usize") % limit
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Bodies with all that a route takes, by the end of its path.
fn full(route: &Route) -> Vec<Value> {
    let message = json!({ "role": "user", "content": [{ "text": "x" }], "metadata": { "a": [1, 2.5, null] } });
    let at = json!({ "branch": "main" });
    let more = match &*route.path {
        path if path.ends_with("/turns") => vec![
            json!({ "session": "spare", "branch": "main", "input": { "messages": [message], "stateDelta": { "set": { "a": { "b": [1, 2, 3] } } } } }),
            json!({ "input": { "text": "artifact a.txt words", "detach": true } }),
            json!({ "initial": { "state": { "messages": [message], "custom": { "n": 1 } } }, "input": { "text": "x" } }),
        ],
        path if path.ends_with("/sessions") => {
            vec![json!({ "title": "t", "labels": ["a"], "metadata": { "k": { "v": [1] } }, "state": { "a": 1 } })]
        }
        path if path.ends_with("/branches") => vec![json!({ "name": "spare-branch", "at": at })],
        path if path.ends_with("/fork") => vec![json!({ "at": at })],
        path if path.ends_with("/compactions") => vec![json!({ "summary": "said", "keepTurns": 1 })],
        path if path.ends_with("/scopes") => vec![json!({ "set": { "user:a": { "b": 1 } }, "remove": ["user:c"] })],
        "/genkit/echo" => vec![
            json!({ "data": { "message": message, "detach": true }, "init": { "sessionId": "spare" } }),
            json!({ "data": { "message": message }, "init": { "sessionId": "spare" } }),
        ],
        _ => Vec::new(),
    };
    route.body.iter().cloned().chain(more).collect()
}

/// What values are replaced with, as they are written.
const ODD: [&str; 26] = [
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "1e400",
    "-1e400",
    "1e-400",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740993",
    "0.1000000000000000055511151231257827",
    "\"\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\u{202e}\u{feff}\"",
    "[]",
    "{}",
    "[[]]",
    "{\"\":{}}",
    "{\"__proto__\":{\"a\":1}}",
    "{\"a\":1,\"a\":2}",
    "\"../../etc/passwd\"",
    "\"1' OR '1'='1\"",
    "[null,null]",
];

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

/// A body with something changed in it.
fn mutated(mut body: Value, dice: &mut Dice) -> Vec<u8> {
    let mut odd = Vec::new();
    for n in 0..1 + dice.below(2) {
        let mut found = Vec::new();
        places(&body, "", &mut found);
        let at = found[dice.below(found.len())].clone();
        // Written by itself afterwards, because it need not be JSON that anything here could hold.
        let mark = format!("@{n}@");
        let place = body.pointer_mut(&at).expect("a place that was found");
        match (dice.below(4), place) {
            (0, Value::Object(members)) => drop(members.insert(dice.pick(&ODD).to_owned(), mark.clone().into())),
            (1, Value::Array(items)) => items.push(mark.clone().into()),
            (_, place) => *place = mark.clone().into(),
        }
        odd.push((
            format!("\"{mark}\""),
            match dice.below(30) {
                0 => "[".repeat(5_000) + &"]".repeat(5_000),
                1 => format!("\"{}\"", "x".repeat(200_000)),
                2 => format!("{{{}\"z\":1}}", (0..500).map(|n| format!("\"k{n}\":{n},")).collect::<String>()),
                _ => dice.pick(&ODD).to_owned(),
            },
        ));
    }
    let text = odd.iter().fold(body.to_string(), |text, (mark, odd)| text.replace(mark, odd));
    let mut bytes = text.into_bytes();
    // In one of three, bytes too: most of those are no JSON any more.
    let flips = if dice.below(3) == 0 { 1 + dice.below(3) } else { 0 };
    for _ in 0..flips {
        let at = dice.below(bytes.len().max(1)).min(bytes.len());
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.insert(at, dice.below(256).to_le_bytes()[0]),
            3 => bytes.truncate(at),
            4 => bytes.extend_from_within(at..),
            _ => drop(bytes.splice(at..at, dice.pick(&ODD).bytes())),
        }
    }
    bytes
}

#[test]
fn bodies_with_something_changed_in_them_are_answered_and_never_with_a_failure() {
    let target = Target::start();
    let mut dice = Dice::seeded(111);
    let routes: Vec<_> = target.routes.iter().filter(|route| route.body.is_some()).collect();
    let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
    let requests = setting("EVERTURN_REQUESTS", 1200);
    for _ in 0..requests {
        let route = routes[dice.below(routes.len())];
        let bodies = full(route);
        let body = mutated(bodies[dice.below(bodies.len())].clone(), &mut dice);
        // What is looked at in the end is left in peace.
        let path = route.path.replace("/sessions/s", "/sessions/spare");
        let answer = target.ask(route, &path, b"", Some(&body));
        let about = format!("{} with {}", route.name, String::from_utf8_lossy(&body[..body.len().min(2_000)]));
        let status = answer.status.unwrap_or_else(|| panic!("{about}: no answer: {}", answer.text));
        assert!(status < 500 || status == 503, "{about}: {}", answer.text);
        *statuses.entry(status).or_default() += 1;
    }
    target.unharmed();
    println!("{requests} bodies with something changed: {statuses:?}; 0 failures");
    assert!(statuses.len() > 2, "{statuses:?}");
}

#[test]
fn bytes_that_are_no_request_are_answered_or_closed() {
    let target = Target::start();
    let mut dice = Dice::seeded(112);
    let requests = setting("EVERTURN_REQUESTS", 1200) / 6;
    // Following has no end of its own, and a request that is still good would be answered as one.
    let routes: Vec<_> = target.routes.iter().filter(|route| !route.path.ends_with("/follow")).collect();
    let (mut answered, mut closed) = (0, 0);
    for n in 0..requests {
        let mut bytes = match n % 3 {
            // Of all values; of those that requests are made of; a request with some of it changed.
            0 => (0..1 + dice.below(3_000)).map(|_| dice.below(256).to_le_bytes()[0]).collect::<Vec<_>>(),
            1 => (0..1 + dice.below(60)).flat_map(|_| dice.pick(&TOKENS).bytes()).collect(),
            _ => {
                let route = routes[dice.below(routes.len())];
                let body = route.body.as_ref().map(ToString::to_string);
                let path = route.path.replace("/sessions/s", "/sessions/spare");
                let mut request = target.request(route, &path, b"", body.as_deref().map(str::as_bytes));
                for _ in 0..1 + dice.below(4) {
                    let at = dice.below(request.len());
                    request[at] = dice.below(256).to_le_bytes()[0];
                }
                request
            }
        };
        bytes.extend_from_slice(b"\r\n\r\n");
        let mut stream = target.server.stream();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&bytes);
        // Some of these announce more than they are, and would be waited for.
        let _ = stream.shutdown(Shutdown::Write);
        let answer = target.rest(&mut stream, &bytes);
        match answer.status {
            Some(status) => {
                let shown = String::from_utf8_lossy(&bytes).into_owned();
                assert!(status < 500 || matches!(status, 503 | 505), "{shown:?}: {}", answer.text);
                answered += 1;
            }
            None => closed += 1,
        }
    }
    target.unharmed();
    println!("{requests} times bytes that are no request: {answered} answered, {closed} closed; 0 failures");
}

/// What requests are made of.
const TOKENS: [&str; 24] = [
    "GET ",
    "POST ",
    "/",
    "/v1/agents",
    "/genkit/echo",
    "?",
    "%00",
    " HTTP/1.1",
    " HTTP/1.0",
    " HTTP/2",
    "\r\n",
    "\n",
    "\r",
    "Host: 127.0.0.1",
    ":",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "Connection: upgrade",
    "Upgrade: h2c",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\0",
    "{}",
    "0\r\n\r\n",
];
