//! Accounts are settled: what was promised to the clients is compared with what is there.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use everturn::store::{SqliteStore, Store as _, VerifyScope};
use serde_json::{Value, json};

use super::client::{Acknowledged, GIVEN_UP, Sent};
use super::{Client, PATIENCE, Refusals, Way, ask, get, name_of, post, until};
use crate::common::Server;

/// What has a key is sent until it is acknowledged; some of what was acknowledged is sent again, to another server if there
/// is one, and answered the same. Gives how many were.
pub(crate) fn settle(servers: &[&str], clients: &mut [Client], limit: Duration) -> usize {
    let mut replayed = 0;
    for client in clients.iter_mut().filter(|client| client.has_key()) {
        let (text, since) = (client.text(), Instant::now());
        until("the end of the turn before", limit, || {
            if client.last_has_ended(servers[0], Refusals::None) { Ok(()) } else { Err(text.clone()) }
        });
        let answer = until("an answer", limit, || match client.send(servers[0], &text) {
            Sent::Acknowledged(answer) => Ok(Some(answer)),
            Sent::Refused(reply) if reply.status == 200 => Ok(None),
            Sent::Refused(reply) => Err(format!("{reply:?}")),
            Sent::Broke | Sent::Unheard => Err("the connection broke".to_owned()),
        });
        match answer {
            Some(answer) => client.note(answer, since),
            None => client.in_doubt.push(text),
        }
        for (at, turn) in client.acknowledged.iter().rev().step_by(7).enumerate() {
            match client.send(servers[at % servers.len()], &turn.text) {
                Sent::Acknowledged(again) => {
                    assert_eq!(again["snapshotId"], turn.answer["snapshotId"], "{}: {again}", turn.text);
                }
                Sent::Refused(reply) if client.way == Way::Detached && reply.body.contains(GIVEN_UP) => {}
                Sent::Refused(reply) => panic!("{} was acknowledged; sent again it gets {reply:?}", turn.text),
                Sent::Broke | Sent::Unheard => panic!("{} was acknowledged; sent again it gets nothing", turn.text),
            }
            replayed += 1;
        }
    }
    replayed
}

/// Whether a server says it is ready, and a turn in a session of its own goes well.
pub(crate) fn works(server: &str) -> Result<(), String> {
    let ready = get(server, "/readyz");
    let reply = post(server, "/v1/agents/echo/turns", &json!({ "input": { "text": "well again" } }));
    if (ready.status, reply.status) == (200, 200) { Ok(()) } else { Err(format!("{ready:?} {reply:?}")) }
}

fn sessions_of(clients: &[Client]) -> BTreeSet<&str> {
    clients.iter().map(|client| &*client.session).collect()
}

/// Every turn is where it was acknowledged, once, with its answer behind it; what ran in the background has completed, but
/// for those whose server was killed at every attempt, whose number this gives.
#[track_caller]
pub(crate) fn check_accounts(server: &str, clients: &[Client]) -> usize {
    check_accounts_before(server, clients, Instant::now())
}

/// The same of what was acknowledged before a moment. The rest may be there or not.
#[track_caller]
pub(crate) fn check_accounts_before(server: &str, clients: &[Client], moment: Instant) -> usize {
    // Those that run end first, so that their lines move no more.
    let detached = clients.iter().filter(|client| client.way == Way::Detached);
    let detached = detached.flat_map(|client| &client.acknowledged).filter(|turn| turn.at < moment);
    let given_up: BTreeSet<_> = detached.filter(|turn| !has_completed(server, turn)).map(|turn| &*turn.text).collect();
    for session in sessions_of(clients) {
        let state = get(server, &format!("/v1/agents/echo/sessions/{session}/state"));
        let state = if state.status == 404 { json!({ "messages": [] }) } else { state.ok() };
        let messages = state["messages"].as_array().expect("messages");
        let mut times: HashMap<&str, usize> = HashMap::new();
        for turn in messages.chunks(2) {
            let (said, name) = (&turn[0]["content"][0]["text"], name_of(&turn[0]));
            let answer = turn.get(1).map(|answer| &answer["content"][0]["text"]);
            let expected = if said == name { format!("echo: {name}") } else { "slow done".to_owned() };
            assert_eq!(answer, Some(&json!(expected)), "{session}: {name}");
            *times.entry(name).or_default() += 1;
        }
        let alone = clients.iter().filter(|client| client.session == session).count() == 1;
        for client in clients.iter().filter(|client| client.session == session) {
            for turn in client.acknowledged.iter().filter(|turn| !given_up.contains(&*turn.text)) {
                match times.remove(&*turn.text) {
                    None if turn.at >= moment => {}
                    Some(times) => assert_eq!(times, 1, "{session}: {} is there {times} times", turn.text),
                    None => is_beside(server, alone, turn),
                }
            }
            for text in &client.in_doubt {
                let times = times.remove(&**text).unwrap_or(0);
                let kept = times > 0 && client.not_kept.contains(text);
                assert!(!kept, "{session}: {text} was refused, and is there");
                assert!(times <= 1, "{session}: {text} is there {times} times");
            }
            // The last one of a client with a key whose campaign ended before it was settled.
            let times = times.remove(&*client.text()).unwrap_or(0);
            assert!(times <= 1, "{session}: {} is there {times} times", client.text());
        }
        assert!(times.is_empty(), "{session}: no client sent {times:?}");
    }
    given_up.len()
}

/// A turn that runs in the background ends as completed, or when its server died at every attempt.
fn has_completed(server: &str, turn: &Acknowledged) -> bool {
    let id = turn.answer["snapshotId"].as_str().expect("a snapshot");
    let path = format!("/v1/agents/echo/snapshots/{id}/wait?seconds=30");
    let snapshot = until(&turn.text, PATIENCE, || match get(server, &path) {
        reply if reply.status == 200 => Ok(reply.json()),
        reply => Err(format!("{reply:?}")),
    });
    if snapshot["error"]["message"].as_str().is_some_and(|error| error.contains(GIVEN_UP)) {
        return false;
    }
    assert_eq!((&snapshot["status"], &snapshot["finishReason"]), (&json!("completed"), &json!("stop")), "{snapshot}");
    true
}

/// A turn that is not on the line was acknowledged so, after others went on without it: it is complete beside the line, and
/// can be gone on from. One in the background is acknowledged before it is known how it ends.
fn is_beside(server: &str, alone: bool, turn: &Acknowledged) {
    let Acknowledged { text, answer, .. } = turn;
    let told = answer["onHead"] == false || answer["finishReason"] == "detached";
    assert!(!alone && told, "{text} was acknowledged and is lost: {answer}");
    let id = answer["snapshotId"].as_str().expect("a snapshot");
    let snapshot = get(server, &format!("/v1/agents/echo/snapshots/{id}")).ok();
    assert_eq!((&snapshot["status"], &snapshot["orphaned"]), (&json!("completed"), &json!(true)), "{snapshot}");
    let messages = snapshot["state"]["messages"].as_array().expect("messages");
    assert_eq!(messages.iter().filter(|message| name_of(message) == text).count(), 1, "{snapshot}");
}

/// No turn is told to be running or dead for longer than recovery takes.
pub(crate) fn none_is_left_open(server: &str, clients: &[Client]) {
    for session in sessions_of(clients) {
        until("the end of every turn", PATIENCE, || {
            let mut path = format!("/v1/agents/echo/sessions/{session}/tree?limit=100");
            loop {
                let page = get(server, &path).ok();
                let open = |node: &&Value| matches!(node["status"].as_str(), Some("running" | "dead"));
                if let Some(open) = page["items"].as_array().expect("nodes").iter().find(open) {
                    return Err(open.to_string());
                }
                let Some(next) = page["next"].as_str() else { return Ok(()) };
                path = format!("/v1/agents/echo/sessions/{session}/tree?limit=100&cursor={next}");
            }
        });
    }
}

/// Every session's export is a file that another server takes, with the same messages in it.
pub(crate) fn exports_come_in(server: &str, clients: &[Client]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let other = Server::start(dir.path(), "memory:");
    let other = other.url.trim_start_matches("http://");
    let sessions = sessions_of(clients);
    for session in &sessions {
        let path = format!("/v1/agents/echo/sessions/{session}");
        let file = get(server, &format!("{path}/export"));
        if file.status == 404 {
            continue;
        }
        let kind = "Content-Type: application/x-ndjson\r\n";
        let made = ask(other, "POST", "/v1/agents/echo/import", kind, &file.body).unwrap();
        assert_eq!(made.status, 201, "{session}: {}", made.body);
        let [here, there] = [server, other].map(|server| get(server, &format!("{path}/state")).ok());
        assert_eq!(here, there, "{session}");
    }
    sessions.len()
}

/// The file is sound to SQLite, and the sessions in it to Everturn. No server may have it open.
pub(crate) fn sound(dir: &Path) {
    let file = dir.join("store.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = SqliteStore::open(&file).unwrap();
    let verified = runtime.block_on(store.verify(VerifyScope::All)).unwrap();
    assert!(verified.damage.is_none(), "{:?}", verified.damage);
    drop((store, runtime));
    let file = rusqlite::Connection::open(&file).unwrap();
    let said: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
}
