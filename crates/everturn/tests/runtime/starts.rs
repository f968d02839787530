//! Where an invocation starts: the table of what may be given, row by row, and every refusal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use everturn::store::{BranchChange, CreateSession, MemoryStore, StoreExt};
use everturn::{
    Agent, AppName, ErrorKind, FinishReason, Init, Json, OnFailure, Point, SessionId, SessionState, SigningKey,
    SnapshotId, SnapshotPolicy, SnapshotStatus, Turn, TurnKey,
};

use crate::support::*;

on_every_store! {
    async fn nothing_given_makes_a_fresh_session(home: Home) {
        let agent = stored(&home);
        let one = agent.run_text("hi", Init::new()).await.unwrap();
        let two = agent.run_text("hi", Init::new()).await.unwrap();
        assert_ne!(one.session_id, two.session_id);
        assert_eq!(said(&one), ["hi", "echo: hi"]);
        assert_eq!((one.finish_reason, one.on_head), (Some(FinishReason::Stop), true));
        let record = home.store().session(&key(one.session_id.as_str())).await.unwrap().unwrap();
        assert_eq!(record.agent.as_ref(), Some(agent.name()));
        assert_eq!(Some(record.head), one.point);
    }

    async fn a_fresh_session_may_be_given_its_first_custom_state(home: Home) {
        let agent = stored(&home);
        let init = Init::new().initial(&Tally { turns: 41, last: String::new() }).unwrap();
        let output = agent.run_text("hi", init).await.unwrap();
        assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 42);
        let init = Init::session(sid("named")).initial(&json(r#"{"turns":1,"more":true}"#)).unwrap();
        let output = agent.run_text("hi", init).await.unwrap();
        assert_eq!(output.state.custom_json().unwrap(), &json(r#"{"turns":2,"last":"hi","more":true}"#));
    }

    async fn a_session_goes_on_at_its_head(home: Home) {
        let agent = stored(&home);
        agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let second = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&second), ["one", "echo: one", "two", "echo: two"]);
        assert_eq!(second.session_id, sid("s"));
    }

    async fn an_unknown_session_is_made_under_its_id(home: Home) {
        let output = stored(&home).run_text("hi", Init::session(sid("../odd id"))).await.unwrap();
        assert_eq!(output.session_id.as_str(), "../odd id");
        assert!(home.elsewhere().session(&key("../odd id")).await.unwrap().is_some());
    }

    async fn a_snapshot_is_where_a_turn_starts(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let second = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        let other = agent.run_text("instead", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&other), ["one", "echo: one", "instead", "echo: instead"]);
        assert_eq!(other.session_id, sid("s"));
        assert!(other.on_head, "the head was unchanged and free, so the turn that completed moved it");
        let orphan = agent.snapshot(second.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert!(orphan.orphaned);
        let back = agent.run_text("back", Init::snapshot(orphan.snapshot_id)).await.unwrap();
        assert_eq!(said(&back)[2], "two", "an orphan can be resumed");
    }

    async fn a_snapshot_may_be_named_with_its_session(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let init = Init::snapshot(first.snapshot_id.unwrap()).of_session(sid("s"));
        assert_eq!(said(&agent.run_text("two", init).await.unwrap()).len(), 4);
    }

    async fn a_snapshot_of_another_session_is_refused(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        agent.run_text("one", Init::session(sid("other"))).await.unwrap();
        for named in ["other", "unknown"] {
            let init = Init::snapshot(first.snapshot_id.unwrap()).of_session(sid(named));
            refused(agent.run_text("two", init).await, ErrorKind::Invalid, "does not belong to session");
        }
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().messages().len(), 2);
    }

    async fn snapshots_of_others_are_not_found(home: Home) {
        let agent = stored(&home);
        let id = agent.run_text("one", Init::new()).await.unwrap().snapshot_id.unwrap();
        let same_app = Agent::flow("other", echo_turn).app(AppName::new("echo").unwrap());
        let same_app = same_app.shared_store(home.store()).build().unwrap();
        let other_app = Agent::flow("other", echo_turn).shared_store(home.store()).build().unwrap();
        for stranger in [agent.for_user(user("ann")), same_app, other_app] {
            refused(stranger.run_text("two", Init::snapshot(id)).await, ErrorKind::NotFound, "not found");
        }
        refused(agent.run_text("two", Init::snapshot(SnapshotId::nil())).await, ErrorKind::NotFound, "not found");
    }

    async fn another_agents_session_is_a_conflict(home: Home) {
        stored(&home).run_text("one", Init::session(sid("s"))).await.unwrap();
        let other = Agent::flow("other", echo_turn).app(AppName::new("echo").unwrap());
        let other = other.shared_store(home.store()).build().unwrap();
        refused(other.run_text("two", Init::session(sid("s"))).await, ErrorKind::Conflict, "another agent");
    }

    async fn one_id_is_a_session_per_user(home: Home) {
        let agent = stored(&home);
        agent.run_text("mine", Init::session(sid("s"))).await.unwrap();
        let other = agent.for_user(user("ann")).run_text("hers", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&other), ["hers", "echo: hers"]);
    }

    async fn what_did_not_complete_is_not_resumable(home: Home) {
        let agent = stored(&home);
        agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let failed = agent.run_text("fail it", Init::session(sid("s"))).await.unwrap().snapshot_ids[0];
        assert_eq!(agent.snapshot(failed).await.unwrap().unwrap().status, SnapshotStatus::Failed);
        refused(agent.run_text("two", Init::snapshot(failed)).await, ErrorKind::NotResumable, "status: failed");
    }

    async fn a_state_is_the_wrong_mode_for_a_store(home: Home) {
        let agent = stored(&home);
        let state = agent.run_text("one", Init::new()).await.unwrap().state.to_session_state();
        refused(agent.run_text("two", Init::state(state)).await, ErrorKind::WrongMode, "server-managed store");
        refused(agent.run_text("two", Init::new().signature("k.00")).await, ErrorKind::WrongMode, "server-managed");
    }

    async fn an_initial_state_is_for_fresh_sessions_only(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let starts = [
            Init::session(sid("s")),
            Init::snapshot(first.snapshot_id.unwrap()),
            Init::session(sid("s")).at(first.point.unwrap()),
        ];
        for init in starts {
            let init = init.initial(&Tally::default()).unwrap();
            refused(agent.run_text("two", init).await, ErrorKind::Invalid, "fresh session");
        }
        let prefixed = Init::new().initial(&json(r#"{"user:name":"Ann"}"#)).unwrap();
        refused(agent.run_text("two", prefixed).await, ErrorKind::Invalid, "user:name");
    }

    async fn a_stored_state_that_breaks_the_schema_is_refused(home: Home) {
        let lax = stored(&home);
        let init = Init::session(sid("s")).initial(&json(r#"{"turns":1,"extra":{"n":"x"}}"#)).unwrap();
        let first = lax.run_text("one", init).await.unwrap();
        let schema = json(r#"{"type":"object","properties":{"extra":{"properties":{"n":{"type":"integer"}}}}}"#);
        let strict = echo().shared_store(home.store()).state_schema(schema).build().unwrap();
        let starts = [
            Init::session(sid("s")),
            Init::snapshot(first.snapshot_id.unwrap()),
            Init::session(sid("s")).at(first.point.unwrap()),
        ];
        for init in starts {
            refused(strict.run_text("two", init).await, ErrorKind::Invalid, "/extra/n");
        }
        let fresh = Init::new().initial(&json(r#"{"extra":{"n":"x"}}"#)).unwrap();
        refused(strict.run_text("two", fresh).await, ErrorKind::Invalid, "/extra/n");
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().messages().len(), 2, "the session is unharmed");
        lax.run_text("two", Init::session(sid("s"))).await.unwrap();
    }

    async fn the_schema_can_be_made_of_the_type(home: Home) {
        let agent = echo().shared_store(home.store()).schema_of_state().build().unwrap();
        let wrong = Init::new().initial(&json(r#"{"turns":"many"}"#)).unwrap();
        refused(agent.run_text("one", wrong).await, ErrorKind::Invalid, "/turns");
        agent.run_text("one", Init::new().initial(&Tally::default()).unwrap()).await.unwrap();
    }

    async fn an_agent_may_have_a_default_session(home: Home) {
        let agent = echo().shared_store(home.store()).default_session(sid("lobby")).build().unwrap();
        agent.run_text("one", Init::new()).await.unwrap();
        let second = agent.run_text("two", Init::new()).await.unwrap();
        assert_eq!((second.session_id.as_str(), said(&second).len()), ("lobby", 4));
        let named = agent.run_text("else", Init::session(sid("room"))).await.unwrap();
        assert_eq!(said(&named).len(), 2);
    }

    async fn a_turn_may_start_at_any_completed_point(home: Home) {
        let agent = echo().shared_store(home.store()).snapshots(SnapshotPolicy::never()).build().unwrap();
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        let init = Init::session(sid("s")).at(first.point.unwrap());
        let other = agent.run_text("instead", init).await.unwrap();
        assert_eq!(said(&other)[2..], ["instead", "echo: instead"]);
        let nowhere = Init::session(sid("s")).at(Point::new(9999));
        assert!(matches!(kind(agent.run_text("x", nowhere).await), ErrorKind::NotFound | ErrorKind::NotResumable));
        let unknown = Init::session(sid("none")).at(Point::new(1));
        refused(agent.run_text("x", unknown).await, ErrorKind::NotFound, "no session");
        refused(agent.run_text("x", Init::new().at(Point::new(1))).await, ErrorKind::Invalid, "needs the session");
        let both = Init::snapshot(SnapshotId::nil()).of_session(sid("s")).at(Point::new(1));
        refused(agent.run_text("x", both).await, ErrorKind::Invalid, "not both");
    }

    async fn a_turn_may_go_on_with_a_branch(home: Home) {
        let agent = stored(&home);
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        let create = BranchChange::Create { name: branch("draft"), at: first.point.unwrap() };
        home.store().branch(&key("s"), create).await.unwrap();
        let on_draft = || Init::session(sid("s")).branch(branch("draft"));
        agent.run_text("a", on_draft()).await.unwrap();
        let second = agent.run_text("b", on_draft()).await.unwrap();
        assert_eq!(said(&second), ["one", "echo: one", "a", "echo: a", "b", "echo: b"]);
        assert!(second.on_head);
        let main = home.store().head_state(&key("s")).await.unwrap();
        assert_eq!(texts(main.messages())[2], "two", "main stands where it stood");
        let unknown = Init::session(sid("s")).branch(branch("none"));
        refused(agent.run_text("x", unknown).await, ErrorKind::NotFound, "none");
        let fresh = Init::session(sid("fresh")).branch(branch("draft"));
        refused(agent.run_text("x", fresh).await, ErrorKind::NotFound, "draft");
        assert!(home.store().session(&key("fresh")).await.unwrap().is_none(), "a refusal makes no session");
    }

    async fn an_unexpected_head_refuses_before_any_work(home: Home) {
        let ran = Arc::new(AtomicU32::new(0));
        let count = ran.clone();
        let agent = Agent::flow("echo", move |turn: Turn<Tally>| {
            count.fetch_add(1, Ordering::SeqCst);
            echo_turn(turn)
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let first = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let expect = |point| Init::session(sid("s")).expect(point);
        let second = agent.run_text("two", expect(first.point.unwrap())).await.unwrap();
        refused(agent.run_text("three", expect(first.point.unwrap())).await, ErrorKind::Conflict, "read again");
        refused(agent.run_text("x", Init::new().expect(Point::new(1))).await, ErrorKind::Conflict, "read again");
        assert_eq!(ran.load(Ordering::SeqCst), 2, "what was refused did not run");
        assert_eq!(home.store().session(&key("s")).await.unwrap().unwrap().head, second.point.unwrap());
    }

    async fn a_repeated_key_is_answered_and_nothing_runs(home: Home) {
        let ran = Arc::new(AtomicU32::new(0));
        let count = ran.clone();
        let agent = Agent::flow("echo", move |turn: Turn<Tally>| {
            let runs = count.fetch_add(1, Ordering::SeqCst);
            async move {
                echo_turn(turn).await?;
                Ok(runs)
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let keyed = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        let first = agent.run_text("one", keyed()).await.unwrap();
        let again = agent.run_text("one", keyed()).await.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_eq!((again.output, again.snapshot_id, again.point), (first.output, first.snapshot_id, first.point));
        assert_eq!((again.message, again.finish_reason), (first.message, first.finish_reason));
        refused(agent.run_text("other", keyed()).await, ErrorKind::Conflict, "another input");
        let failed = agent.run_text("fail x", Init::session(sid("s")).key(TurnKey::new("f").unwrap())).await.unwrap();
        let again = agent.run_text("fail x", Init::session(sid("s")).key(TurnKey::new("f").unwrap())).await.unwrap();
        assert_eq!((ran.load(Ordering::SeqCst), again.error), (2, failed.error));
    }

    async fn a_retried_first_request_makes_one_session(home: Home) {
        let agent = stored(&home);
        let keyed = || Init::new().key(TurnKey::new("first").unwrap());
        let one = agent.run_text("hi", keyed()).await.unwrap();
        let mut connection = agent.connect(keyed()).await.unwrap();
        connection.send_text("hi").await.unwrap();
        let two = connection.output().await.unwrap();
        assert_eq!(one.session_id, two.session_id);
        assert_eq!(connection.session_id(), &one.session_id, "known once the turn began");
        assert_eq!(said(&two).len(), 2);
    }

    async fn a_session_somebody_else_created_is_taken_up(home: Home) {
        home.store().create(CreateSession::at(key("s")).state("turns", json("7"))).await.unwrap();
        let output = stored(&home).run_text("one", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 8);
    }
}

fn stateless() -> Agent<Tally> {
    echo().build().unwrap()
}

#[tokio::test]
async fn without_a_store_nothing_given_is_fresh_and_nothing_is_kept() {
    let agent = stateless();
    let one = agent.run_text("one", Init::new()).await.unwrap();
    let two = agent.run_text("two", Init::new()).await.unwrap();
    assert_eq!((said(&one).len(), said(&two).len()), (2, 2));
    assert_eq!((two.snapshot_id, two.point, two.on_head), (None, None, false));
    let seeded = agent.run_text("hi", Init::new().initial(&json(r#"{"turns":4}"#)).unwrap()).await.unwrap();
    assert_eq!(seeded.state.custom::<Tally>().unwrap().unwrap().turns, 5);
}

#[tokio::test]
async fn without_a_store_a_state_is_where_a_turn_starts() {
    let agent = stateless();
    let one = agent.run_text("one", Init::new()).await.unwrap();
    let two = agent.run_text("two", Init::state(one.state.to_session_state())).await.unwrap();
    assert_eq!(two.session_id, one.session_id);
    assert_eq!(said(&two), ["one", "echo: one", "two", "echo: two"]);
    assert_eq!(two.state.custom::<Tally>().unwrap().unwrap().turns, 2);
}

#[tokio::test]
async fn without_a_store_what_needs_one_is_the_wrong_mode() {
    let agent = stateless();
    let starts = [
        Init::session(sid("s")),
        Init::snapshot(SnapshotId::nil()),
        Init::snapshot(SnapshotId::nil()).of_session(sid("s")),
        Init::new().at(Point::new(1)),
        Init::new().branch(branch("b")),
        Init::new().expect(Point::new(1)),
        Init::new().key(TurnKey::new("k").unwrap()),
    ];
    for init in starts {
        refused(agent.run_text("hi", init).await, ErrorKind::WrongMode, "client-managed");
    }
    let state = SessionState { session_id: None, messages: vec![], custom: None, artifacts: vec![] };
    let both = Init::state(state.clone()).of_session(sid("s"));
    refused(agent.run_text("hi", both).await, ErrorKind::WrongMode, "client-managed");
    let both = Init::state(state).initial(&Tally::default()).unwrap();
    refused(agent.run_text("hi", both).await, ErrorKind::Invalid, "not both");
    refused(agent.run_text("hi", Init::new().signature("k.00")).await, ErrorKind::Invalid, "without the state");
    refused(agent.snapshot(SnapshotId::nil()).await, ErrorKind::WrongMode, "client-managed");
}

#[tokio::test]
async fn without_a_store_a_state_is_checked() {
    let agent = echo().schema_of_state().build().unwrap();
    let state = |custom: &str| SessionState {
        session_id: None,
        messages: vec![],
        custom: Some(json(custom)),
        artifacts: vec![],
    };
    refused(agent.run_text("x", Init::state(state(r#"{"turns":-1}"#))).await, ErrorKind::Invalid, "/turns");
    refused(agent.run_text("x", Init::state(state(r#"{"app:x":1}"#))).await, ErrorKind::Invalid, "app:x");
    agent.run_text("x", Init::state(state(r#"{"turns":1}"#))).await.unwrap();
}

#[test]
fn blank_and_broken_ids_are_no_ids() {
    for id in ["", "  ", "a\nb", &"x".repeat(257)] {
        assert_eq!(kind(SessionId::new(id)), ErrorKind::Invalid, "{id:?}");
        assert_eq!(kind(TurnKey::new(id)), ErrorKind::Invalid, "{id:?}");
    }
    assert_eq!(kind("not a uuid".parse::<SnapshotId>()), ErrorKind::Invalid);
}

#[test]
fn what_does_not_fit_together_is_no_agent() {
    let flow = || Agent::flow("echo", |_: Turn<Json>| async { Ok(()) });
    refused(flow().snapshots(SnapshotPolicy::always()).build(), ErrorKind::Invalid, "no store");
    refused(flow().default_session(sid("s")).build(), ErrorKind::Invalid, "no store");
    let signing = || SigningKey::new("k", &[7; 32]).unwrap();
    refused(flow().store(MemoryStore::new()).sign_states([signing()]).build(), ErrorKind::Invalid, "store");
    refused(flow().sign_states([signing(), signing()]).build(), ErrorKind::Invalid, "own");
    refused(flow().state_schema(json(r#"{"type":"nonsense"}"#)).build(), ErrorKind::Invalid, "schema");
    refused(Agent::flow(" ", |_: Turn<Json>| async { Ok(()) }).build(), ErrorKind::Invalid, "blank");
    flow().on_failure(OnFailure::Keep).build().unwrap();
}
