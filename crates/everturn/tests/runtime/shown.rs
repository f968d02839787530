//! What is shown to whom: everything that is read passes the transforms, but for the store, which is raw.

use std::sync::{Arc, Mutex};

use everturn::store::{ListSnapshots, StoreExt};
use everturn::{Agent, Caller, ErrorKind, Init, Input, Json, Message, SessionState, SnapshotId, SnapshotStatus};

use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

/// Shows nobody's words, only to whom they were said.
fn redacted(state: SessionState, caller: &Caller) -> everturn::Result<SessionState> {
    let words = format!("said to {}", caller.user);
    let messages = state.messages.iter().map(|message| Message::of_text(message.role(), &words)).collect();
    let custom = state.custom.map(|_| Json::from_value(&caller.user)).transpose()?;
    Ok(SessionState { messages, custom, ..state })
}

type Callers = Arc<Mutex<Vec<Caller>>>;

/// An echo whose states leave it redacted, and the callers they were shown to.
fn redacting(home: &Home) -> (Agent<Tally>, Callers) {
    let callers = Callers::default();
    let seen = callers.clone();
    let agent = echo().shared_store(home.store()).transform_state(move |state, caller| {
        seen.lock().unwrap().push(caller.clone());
        redacted(state, caller)
    });
    (agent.build().unwrap(), callers)
}

fn texts_of(state: &SessionState) -> Vec<String> {
    state.messages.iter().map(Message::text).collect()
}

/// The snapshot a message says it belongs to.
fn named_by(message: &Message) -> Option<SnapshotId> {
    let message: serde_json::Value = message.json().to().unwrap();
    message["metadata"]["snapshotId"].as_str().map(|id| id.parse().unwrap())
}

on_every_store! {
    async fn every_way_of_reading_passes_the_transform(home: Home) {
        let (agent, callers) = redacting(&home);
        let one = agent.run_text("secret one", s()).await.unwrap().snapshot_id.unwrap();
        let two = agent.run_text("secret two", s()).await.unwrap().snapshot_id.unwrap();
        callers.lock().unwrap().clear();
        let read = agent.snapshot(one).await.unwrap().unwrap();
        assert_eq!((read.snapshot_id, read.status), (one, SnapshotStatus::Completed));
        assert_eq!(texts_of(read.state.as_ref().unwrap()), ["said to user", "said to user"]);
        assert_eq!(read.state.unwrap().custom, Some(json(r#""user""#)));
        let latest = agent.latest(&sid("s")).await.unwrap().unwrap();
        assert_eq!(latest.snapshot_id, two);
        assert_eq!(texts_of(latest.state.as_ref().unwrap()), ["said to user"; 4]);
        assert_eq!(latest.state.unwrap().session_id, Some(sid("s")));
        let diff = agent.diff(one, two).await.unwrap();
        assert_eq!(diff.messages.added.iter().map(Message::text).collect::<Vec<_>>(), ["said to user"; 2]);
        assert!(diff.custom.is_empty(), "what is not shown does not differ");
        let listed = agent.snapshots(&sid("s"), |query| query).await.unwrap().items;
        assert!(listed.iter().all(|row| row.state.is_none()), "a listing shows no states");
        let seen = callers.lock().unwrap().clone();
        assert_eq!(seen.len(), 4);
        for caller in seen {
            assert_eq!((caller.agent.as_str(), caller.user.as_str()), ("echo", "user"));
            assert_eq!(caller.session, Some(sid("s")));
        }
    }

    async fn what_a_failed_turn_said_passes_the_transform_too(home: Home) {
        let (agent, _) = redacting(&home);
        let failed = agent.run_text("fail it", s()).await.unwrap().snapshot_ids[0];
        let read = agent.snapshot(failed).await.unwrap().unwrap();
        assert_eq!(read.status, SnapshotStatus::Failed);
        assert_eq!(texts_of(&read.state.unwrap()), ["said to user", "said to user"]);
    }

    async fn the_store_is_raw(home: Home) {
        let (agent, _) = redacting(&home);
        let output = agent.run_text("secret", s()).await.unwrap();
        assert_eq!(said(&output), ["said to user", "said to user"]);
        let raw = agent.store().unwrap().head_state(&key("s")).await.unwrap();
        assert_eq!(texts(raw.messages()), ["secret", "echo: secret"]);
        assert_eq!(raw.custom(), Some(&json(r#"{"turns":1,"last":"secret"}"#)));
    }

    async fn a_query_cannot_be_turned_to_anothers_session(home: Home) {
        let agent = stored(&home);
        agent.run_text("one", s()).await.unwrap();
        let ann = agent.for_user(user("ann"));
        ann.run_text("hers", Init::session(sid("hers"))).await.unwrap();
        let sly = ann.snapshots(&sid("hers"), |_| ListSnapshots::of(key("s"))).await.unwrap().items;
        assert!(sly.iter().all(|row| row.session_id == sid("hers")));
        assert_eq!(kind(ann.snapshots(&sid("s"), |query| query).await), ErrorKind::NotFound);
    }

    async fn what_is_not_there_reads_as_nothing(home: Home) {
        let agent = stored(&home);
        let one = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let unknown = SnapshotId::nil();
        assert_eq!(agent.snapshot(unknown).await.unwrap(), None);
        assert_eq!(agent.latest(&sid("unknown")).await.unwrap(), None);
        assert_eq!(kind(agent.snapshots(&sid("unknown"), |query| query).await), ErrorKind::NotFound);
        assert_eq!(kind(agent.label(unknown, None).await), ErrorKind::NotFound);
        assert_eq!(kind(agent.diff(one, unknown).await), ErrorKind::NotFound);
        assert_eq!(kind(agent.diff(unknown, one).await), ErrorKind::NotFound);
    }

    async fn a_message_names_its_snapshot_where_it_leaves_and_nowhere_else(home: Home) {
        let (redacting, _) = redacting(&home);
        for agent in [stored(&home), redacting] {
            let session = agent.run_text("one", Init::new()).await.unwrap().session_id;
            let output = agent.run_text("two", Init::session(session.clone())).await.unwrap();
            let id = output.snapshot_id;
            assert_eq!(output.message.as_ref().and_then(named_by), id);
            let state = output.state.to_session_state();
            let read = agent.snapshot(id.unwrap()).await.unwrap().unwrap().state.unwrap();
            let latest = agent.latest(&session).await.unwrap().unwrap().state.unwrap();
            for state in [&state, &read, &latest] {
                let named: Vec<_> = state.messages.iter().map(named_by).collect();
                assert_eq!(named, [None, None, None, id], "the last one, though the transform made it anew");
            }
            let raw = home.elsewhere().head_state(&key(session.as_str())).await.unwrap();
            assert!(raw.messages().iter().all(|message| !message.as_str().contains("snapshotId")));
        }
    }

    async fn a_message_that_comes_back_is_the_one_that_was_kept(home: Home) {
        let agent = stored(&home);
        let message = agent.run_text("one", s()).await.unwrap().message.unwrap();
        assert!(named_by(&message).is_some());
        agent.run(Input::messages([message, Message::user("two")]), s()).await.unwrap();
        let raw = home.store().head_state(&key("s")).await.unwrap();
        assert!(raw.messages().iter().all(|message| !message.as_str().contains("snapshotId")));
        assert_eq!(raw.messages().get(1), raw.messages().get(2));
    }
}

#[tokio::test]
async fn without_a_store_there_is_nothing_to_read() {
    let agent = echo().build().unwrap();
    assert!(agent.store().is_none());
    refused(agent.snapshot(SnapshotId::nil()).await, ErrorKind::WrongMode, "keeps no snapshots");
    refused(agent.latest(&sid("s")).await, ErrorKind::WrongMode, "keeps no snapshots");
    refused(agent.snapshots(&sid("s"), |query| query).await, ErrorKind::WrongMode, "keeps no snapshots");
    refused(agent.label(SnapshotId::nil(), None).await, ErrorKind::WrongMode, "keeps no snapshots");
    let output = agent.run_text("hi", Init::new()).await.unwrap();
    assert_eq!(output.message.as_ref().and_then(named_by), None, "no snapshot, no name");
}
