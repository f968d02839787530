//! Older shapes of custom state: brought up step by step where they are read, left alone where they are kept.

use std::sync::{Arc, Mutex};

use everturn::store::{At, Store, StoreExt, VerifyScope};
use everturn::{
    Agent, AgentBuilder, Error, ErrorKind, Failure, Init, Input, Json, Message, SnapshotStatus, StateDelta, Turn,
};

use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

/// `set JSON` replaces the custom state, `show` says it, `fail` fails; anything else leaves it alone.
fn agent(store: Arc<dyn Store>) -> AgentBuilder<Json> {
    let flow = Agent::flow("echo", |turn: Turn<Json>| async move {
        let text = turn.text();
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("set", custom) => turn.set_custom_json(Some(json(custom)))?,
            ("show", _) => {
                let custom = turn.custom_json().map_or("nothing".to_owned(), |custom| custom.to_string());
                turn.add_message(Message::model(custom))?;
            }
            ("fail", why) => return Err(Failure::new("INTERNAL", why)),
            _ => {}
        }
        Ok(())
    });
    flow.shared_store(store)
}

/// From 0 to 1: a name becomes a list of names.
fn listed(custom: Json) -> everturn::Result<Json> {
    let old: serde_json::Value = custom.to()?;
    Json::from_value(&serde_json::json!({ "names": [old["name"]] }))
}

/// From 1 to 2: the list is counted.
fn counted(custom: Json) -> everturn::Result<Json> {
    let old: serde_json::Value = custom.to()?;
    let names = old["names"].as_array().ok_or_else(|| Error::new(ErrorKind::Corrupt, "there are no names"))?;
    Json::from_value(&serde_json::json!({ "names": names, "count": names.len() }))
}

fn second(store: Arc<dyn Store>) -> AgentBuilder<Json> {
    agent(store).upcast(listed).upcast(counted)
}

const OLD: &str = r#"{"name":"Ann"}"#;
const NEW: &str = r#"{"names":["Ann"],"count":1}"#;

async fn old_session(home: &Home) -> everturn::Output {
    agent(home.store()).build().unwrap().run_text(format!("set {OLD}"), s()).await.unwrap().ok().unwrap()
}

fn needs_count() -> Json {
    json(r#"{"type":"object","required":["count"]}"#)
}

on_every_store! {
    async fn a_state_goes_up_step_by_step(home: Home) {
        old_session(&home).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let (one, two) = (order.clone(), order.clone());
        let agent = agent(home.elsewhere())
            .upcast(move |custom| {
                one.lock().unwrap().push(0);
                listed(custom)
            })
            .upcast(move |custom| {
                two.lock().unwrap().push(1);
                counted(custom)
            });
        let output = agent.build().unwrap().run_text("show", s()).await.unwrap().ok().unwrap();
        assert_eq!(json(&output.text()), json(NEW), "the handler sees the present shape");
        let steps = order.lock().unwrap();
        assert!(steps.chunks(2).all(|steps| steps == [0, 1]), "{steps:?}");
    }

    async fn a_state_starts_at_the_version_it_was_written_with(home: Home) {
        let middle = agent(home.store()).upcast(listed).build().unwrap();
        middle.run_text(r#"set {"names":["Ann","Bob"]}"#, s()).await.unwrap().ok().unwrap();
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().schema_version(), 1);
        let output = second(home.elsewhere()).build().unwrap().run_text("show", s()).await.unwrap().ok().unwrap();
        assert_eq!(json(&output.text()), json(r#"{"names":["Ann","Bob"],"count":2}"#));
    }

    async fn what_is_kept_stays_as_it_was_until_the_next_commit(home: Home) {
        let old = old_session(&home).await;
        let kept = home.store().head_state(&key("s")).await.unwrap();
        let same = async || {
            let now = home.elsewhere().head_state(&key("s")).await.unwrap();
            assert_eq!(now.custom().unwrap().as_str(), OLD);
            assert_eq!((now.schema_version(), now.digest(), now.point()), (0, kept.digest(), kept.point()));
        };
        let agent = second(home.store()).build().unwrap();
        let read = agent.latest(&sid("s")).await.unwrap().unwrap();
        assert_eq!(read.state.unwrap().custom, Some(json(NEW)));
        assert_eq!(read.digest, kept.digest(), "the digest is of what is kept");
        same().await;
        let failed = agent.run_text("fail it", s()).await.unwrap();
        assert_eq!(failed.state.custom_json(), Some(&json(NEW)), "last good, in the present shape");
        same().await;
        let next = agent.run_text("leave it", s()).await.unwrap().ok().unwrap();
        let head = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((head.custom(), head.schema_version()), (Some(&json(NEW)), 2), "the next turn writes it");
        assert_eq!(next.state.custom_json(), Some(&json(NEW)));
        let before = home.elsewhere().state(At::Snapshot(old.snapshot_id.unwrap())).await.unwrap().unwrap();
        assert_eq!((before.custom().unwrap().as_str(), before.schema_version()), (OLD, 0), "older points stay");
        assert_eq!(before.digest(), kept.digest());
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None);
    }

    async fn a_step_inside_a_turn_writes_the_present_shape(home: Home) {
        old_session(&home).await;
        let flow = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.tool_iteration_end().await?;
            turn.add_message(Message::model("done"))?;
            Ok(())
        });
        let agent = flow.shared_store(home.store()).upcast(listed).upcast(counted).build().unwrap();
        let output = agent.run_text("go", s()).await.unwrap().ok().unwrap();
        for id in output.snapshot_ids {
            let state = home.store().state(At::Snapshot(id)).await.unwrap().unwrap();
            assert_eq!((state.custom(), state.schema_version()), (Some(&json(NEW)), 2));
        }
    }

    async fn snapshots_of_any_age_are_read_in_the_present_shape(home: Home) {
        let old = old_session(&home).await.snapshot_id.unwrap();
        let agent = second(home.store()).build().unwrap();
        let new = agent.run_text(r#"set {"names":["Ann","Bob"],"count":2}"#, s()).await.unwrap().snapshot_id.unwrap();
        let custom = |snapshot: everturn::Snapshot| snapshot.state.unwrap().custom.unwrap();
        assert_eq!(custom(agent.snapshot(old).await.unwrap().unwrap()), json(NEW));
        let diff = agent.diff(old, new).await.unwrap().custom;
        assert_eq!(diff.apply(&json(NEW)).unwrap(), json(r#"{"names":["Ann","Bob"],"count":2}"#));
        let back = agent.run_text("show", Init::snapshot(old)).await.unwrap().ok().unwrap();
        assert_eq!(json(&back.text()), json(NEW), "and resumed in it");
    }

    async fn a_newer_state_than_the_agent_knows_is_refused(home: Home) {
        old_session(&home).await;
        let newest = second(home.store()).build().unwrap();
        let output = newest.run_text("leave it", s()).await.unwrap();
        for older in [agent(home.store()), agent(home.store()).upcast(listed)] {
            let older = older.build().unwrap();
            refused(older.run_text("show", s()).await, ErrorKind::Unsupported, "run a newer agent");
            refused(older.latest(&sid("s")).await, ErrorKind::Unsupported, "version 2");
            let at = Init::snapshot(output.snapshot_id.unwrap());
            refused(older.run_text("show", at).await, ErrorKind::Unsupported, "run a newer agent");
        }
        let record = home.store().existing(&key("s")).await.unwrap();
        assert_eq!((Some(record.head), record.status), (output.point, everturn::SessionStatus::Idle));
        assert!(newest.run_text("show", s()).await.unwrap().ok().is_ok(), "the session is unharmed");
    }

    async fn the_schema_is_checked_after_upcasting(home: Home) {
        old_session(&home).await;
        let strict = second(home.store()).state_schema(needs_count()).build().unwrap();
        assert!(strict.run_text("leave it", s()).await.unwrap().ok().is_ok(), "the old shape alone would not fit");
        let other = Init::session(sid("other"));
        let old = agent(home.store()).build().unwrap();
        old.run_text(format!("set {OLD}"), other.clone()).await.unwrap();
        let half = agent(home.store()).upcast(listed).state_schema(needs_count()).build().unwrap();
        refused(half.run_text("show", other.clone()).await, ErrorKind::Invalid, "count");
        assert!(old.run_text("show", other).await.unwrap().ok().is_ok());
    }

    async fn an_upcaster_that_fails_refuses_the_start(home: Home) {
        let old = agent(home.store()).build().unwrap();
        old.run_text(r#"set {"name":"Ann"}"#, s()).await.unwrap();
        let broken = agent(home.store()).upcast(Ok).upcast(counted).build().unwrap();
        let words = "could not be brought from version 1 to 2";
        refused(broken.run_text("show", s()).await, ErrorKind::Invalid, words);
        refused(broken.latest(&sid("s")).await, ErrorKind::Invalid, words);
        let rows = old.snapshots(&sid("s"), |query| query).await.unwrap().items;
        assert!(rows.iter().all(|row| row.status == SnapshotStatus::Completed), "nothing began");
    }

    async fn what_a_fresh_session_is_given_has_the_present_shape(home: Home) {
        let agent = second(home.store()).state_schema(needs_count()).build().unwrap();
        let init = s().initial(&json(NEW)).unwrap();
        let output = agent.run_text("show", init).await.unwrap().ok().unwrap();
        assert_eq!(json(&output.text()), json(NEW));
        let delta = StateDelta::new().set("count", json("0")).set("names", json("[]"));
        let input = Input::text("show").with_state(delta);
        let output = agent.run(input, Init::session(sid("by delta"))).await.unwrap().ok().unwrap();
        assert_eq!(json(&output.text()), json(r#"{"names":[],"count":0}"#), "an input's keys are not older");
    }

    async fn absent_state_needs_no_upcaster(home: Home) {
        agent(home.store()).build().unwrap().run_text("hi", s()).await.unwrap();
        let agent = agent(home.store()).upcast(|_| Err(Error::new(ErrorKind::Internal, "there is nothing to bring up")));
        let agent = agent.build().unwrap();
        assert_eq!(agent.run_text("show", s()).await.unwrap().ok().unwrap().text(), "nothing");
        let output = agent.run_text("set {}", s()).await.unwrap().ok().unwrap();
        assert_eq!(output.state.custom_json(), Some(&json("{}")));
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().schema_version(), 1);
        assert_eq!(agent.run_text("show", s()).await.unwrap().ok().unwrap().text(), "{}");
    }
}
