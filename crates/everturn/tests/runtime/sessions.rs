//! The live session: everything a handler reads and changes while its turn runs.

use std::sync::Arc;

use everturn::store::StoreExt;
use everturn::{
    Agent, AgentBuilder, Artifact, ErrorKind, Handled, Init, Json, Message, Part, Role, Session, Turn, Usage,
};
use serde::{Deserialize, Serialize};

use crate::support::*;

/// An agent whose turns do what the test says.
pub(crate) fn doing<F, Fut>(home: &Home, work: F) -> Agent<Tally>
where
    F: Fn(Turn<Tally>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled<()>> + Send + 'static,
{
    flow(work).shared_store(home.store()).build().unwrap()
}

pub(crate) fn flow<F, Fut>(work: F) -> AgentBuilder<Tally>
where
    F: Fn(Turn<Tally>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled<()>> + Send + 'static,
{
    Agent::flow("echo", work)
}

pub(crate) fn s() -> Init {
    Init::session(sid("s"))
}

/// Runs one turn that must not fail; what it asserts is asserted.
pub(crate) async fn turn(agent: &Agent<Tally>, text: &str) -> everturn::Output {
    let output = agent.run_text(text, s()).await.unwrap();
    if let Some(error) = &output.error {
        panic!("{}: {}", error.status, error.message);
    }
    output
}

fn file(name: &str, text: &str) -> Artifact {
    Artifact::new(name, vec![Part::text(text)])
}

fn names(artifacts: &[Arc<Artifact>]) -> Vec<String> {
    let content = |artifact: &Artifact| artifact.parts.iter().filter_map(Part::as_text).collect::<String>();
    artifacts.iter().map(|a| format!("{}={}", a.name.as_deref().unwrap_or("-"), content(a))).collect()
}

on_every_store! {
    async fn messages_are_added_and_read_at_once(home: Home) {
        let agent = doing(&home, |turn| async move {
            assert_eq!(texts(&turn.messages()), ["hi"]);
            turn.add_message(Message::model("a"))?;
            turn.add_messages([Message::user("b"), Message::of_text(Role::Tool, "c")])?;
            assert_eq!(texts(&turn.messages()), ["hi", "a", "b", "c"]);
            Ok(())
        });
        turn(&agent, "hi").await;
        let stored = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!(texts(stored.messages()), ["hi", "a", "b", "c"]);
        assert_eq!(stored.messages().last().unwrap().role(), Role::Tool);
    }

    async fn setting_messages_replaces_them_and_leaves_older_points_alone(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "shorten" => turn.set_messages([Message::user("sum"), Message::model("mary")])?,
                "edit" => {
                    turn.add_message(Message::model("added"))?;
                    let mut all = turn.messages().to_vec();
                    all.remove(0);
                    turn.set_messages(all)?;
                    turn.add_message(Message::model("after"))?;
                }
                "keep" => {
                    turn.add_message(Message::model("more"))?;
                    turn.set_messages(turn.messages().to_vec())?;
                }
                "twice" => {
                    turn.set_messages([])?;
                    turn.add_message(Message::model("x"))?;
                    turn.set_messages([Message::user("sum"), Message::model("y")])?;
                }
                _ => turn.add_message(Message::model("ok"))?,
            }
            Ok(())
        });
        let first = turn(&agent, "one").await;
        assert_eq!(said(&turn(&agent, "shorten").await), ["sum", "mary"]);
        assert_eq!(said(&turn(&agent, "edit").await), ["mary", "edit", "added", "after"]);
        assert_eq!(said(&turn(&agent, "keep").await), ["mary", "edit", "added", "after", "keep", "more"]);
        let last = turn(&agent, "twice").await;
        assert_eq!(said(&last), ["sum", "y"]);
        let stored = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!(texts(stored.messages()), ["sum", "y"]);
        let old = agent.snapshot(first.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(old.state.unwrap().messages.len(), 2, "older points are as they were");
        let verified = home.store().verify(everturn::store::VerifyScope::All).await.unwrap();
        assert_eq!(verified.damage, None, "the digests are those of the state");
    }

    async fn custom_state_begins_as_its_default(home: Home) {
        let agent = doing(&home, |turn| async move {
            assert_eq!(turn.custom_json(), None);
            assert_eq!(turn.custom()?, Tally::default());
            let before = turn.update_custom(|tally| {
                tally.turns += 5;
                tally.turns
            })?;
            assert_eq!((before, turn.custom()?.turns), (5, 5));
            turn.set_custom(&Tally { turns: 9, last: "x".into() })?;
            assert_eq!(turn.custom_json().unwrap(), json(r#"{"turns":9,"last":"x"}"#));
            Ok(())
        });
        let output = turn(&agent, "hi").await;
        assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 9);
    }

    async fn absent_null_and_empty_custom_state_are_three_things(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "null" => turn.set_custom_json(Some(Json::null()))?,
                "empty" => turn.set_custom_json(Some(Json::empty_object()))?,
                "absent" => turn.set_custom_json(None)?,
                _ => {}
            }
            Ok(())
        });
        for (text, want) in [("keep", None), ("null", Some("null")), ("empty", Some("{}")), ("keep", Some("{}"))] {
            assert_eq!(turn(&agent, text).await.state.custom_json(), want.map(json).as_ref(), "{text}");
        }
        assert_eq!(turn(&agent, "absent").await.state.custom_json(), None);
        assert_eq!(home.elsewhere().head_state(&key("s")).await.unwrap().custom(), None);
    }

    async fn what_the_type_does_not_know_survives_typed_writes(home: Home) {
        #[derive(Default, Serialize, Deserialize)]
        struct Narrow {
            n: u64,
            list: Vec<Item>,
        }
        #[derive(Serialize, Deserialize)]
        struct Item {
            id: u64,
        }
        let agent = Agent::flow("echo", |turn: Turn<Narrow>| async move {
            turn.update_custom(|custom| {
                custom.n += 1;
                custom.list.insert(0, Item { id: 7 });
            })?;
            let custom = turn.custom()?;
            turn.set_custom(&custom)?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let before = r#"{"n":9007199254740993,"price":1.10,"list":[{"id":1,"note":"keep"}],"x":{"y":null}}"#;
        let output = agent.run_text("hi", s().initial(&json(before)).unwrap()).await.unwrap().ok().unwrap();
        let after = r#"{"n":9007199254740994,"price":1.10,"list":[{"id":7},{"id":1,"note":"keep"}],"x":{"y":null}}"#;
        assert_eq!(output.state.custom_json().unwrap().as_str(), after);
    }

    async fn parallel_updates_lose_nothing(home: Home) {
        let agent = doing(&home, |turn| async move {
            let mut tasks = Vec::new();
            for _ in 0..16 {
                let session = turn.session().clone();
                tasks.push(turn.spawn(async move {
                    for _ in 0..25 {
                        session.update_custom(|tally| tally.turns += 1)?;
                        session.state().await?.set("other", &true)?;
                        tokio::task::yield_now().await;
                    }
                    Handled::Ok(())
                }));
            }
            for task in tasks {
                task.await??;
            }
            assert_eq!(turn.custom()?.turns, 400);
            Ok(())
        });
        let output = turn(&agent, "hi").await;
        assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 400);
    }

    async fn a_change_inside_a_change_is_an_error_not_a_deadlock(home: Home) {
        let agent = doing(&home, |turn| async move {
            let session = turn.session().clone();
            let state = turn.state().await?;
            turn.update_custom(|tally| {
                assert_eq!(kind(session.update_custom(|tally| tally.turns = 7)), ErrorKind::Busy);
                assert_eq!(kind(session.set_custom(&Tally::default())), ErrorKind::Busy);
                assert_eq!(kind(state.set("turns", &7)), ErrorKind::Busy);
                assert_eq!(session.custom().unwrap().turns, 0, "reading is fine");
                tally.turns += 1;
            })?;
            turn.update_custom(|tally| tally.turns += 1)?;
            assert_eq!(turn.custom()?.turns, 2);
            Ok(())
        });
        turn(&agent, "hi").await;
    }

    async fn a_change_that_panics_changes_nothing(home: Home) {
        let agent = doing(&home, |turn| async move {
            let session = turn.session().clone();
            let ruined = tokio::spawn(async move { session.update_custom::<()>(|_| panic!("no")) }).await;
            assert!(ruined.unwrap_err().is_panic());
            turn.update_custom(|tally| tally.turns += 1)?;
            Ok(())
        });
        assert_eq!(turn(&agent, "hi").await.state.custom::<Tally>().unwrap().unwrap().turns, 1);
    }

    async fn what_is_handed_out_cannot_change_it(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.update_custom(|tally| tally.turns = 1)?;
            turn.add_artifact(file("a", "1")).await?;
            let (state, messages, mut list) = (turn.to_state(), turn.messages(), turn.messages().to_vec());
            let mut custom = turn.custom()?;
            custom.turns = 99;
            list.clear();
            let mut artifacts = turn.artifacts();
            artifacts.clear();
            turn.add_message(Message::model("later"))?;
            turn.update_custom(|tally| tally.turns = 2)?;
            assert_eq!((state.messages().len(), messages.len(), turn.messages().len()), (1, 1, 2));
            assert_eq!(state.custom::<Tally>()?.unwrap().turns, 1);
            assert_eq!((turn.custom()?.turns, turn.artifacts().len()), (2, 1));
            Ok(())
        });
        turn(&agent, "hi").await;
    }

    async fn artifacts_replace_by_name_and_append_without(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "put" => {
                    turn.add_artifact(file("a", "1")).await?;
                    turn.add_artifact(Artifact::unnamed(vec![Part::text("u")])).await?;
                    turn.add_artifact(file("b", "1")).await?;
                    turn.add_artifact(file("a", "2")).await?;
                    turn.responder().artifact(Artifact::unnamed(vec![Part::text("u")])).await?;
                }
                "remove" => {
                    assert!(turn.remove_artifact("a")?);
                    assert!(!turn.remove_artifact("a")?);
                }
                _ => turn.set_artifacts([file("c", "1"), file("c", "2"), file("d", "1")])?,
            }
            Ok(())
        });
        assert_eq!(names(&turn(&agent, "put").await.artifacts), ["a=2", "-=u", "b=1", "-=u"]);
        assert_eq!(names(&turn(&agent, "remove").await.artifacts), ["-=u", "b=1", "-=u"]);
        let output = turn(&agent, "set").await;
        assert_eq!(names(&output.artifacts), ["c=2", "d=1"]);
        assert_eq!(names(&home.elsewhere().head_state(&key("s")).await.unwrap().artifacts()), ["c=2", "d=1"]);
        assert_eq!(home.store().verify(everturn::store::VerifyScope::All).await.unwrap().damage, None);
    }

    async fn the_current_session_is_the_turns_own(home: Home) {
        let agent = doing(&home, |turn| async move {
            assert_eq!(Session::<Tally>::current().unwrap().id(), turn.id());
            assert!(Session::<Json>::current().is_none(), "its state is of another type");
            let carried = turn.spawn(async { Session::<Tally>::current().is_some() }).await?;
            let plain = tokio::spawn(async { Session::<Tally>::current().is_some() }).await?;
            let scoped = tokio::spawn(turn.scope(async { Session::<Tally>::current().is_some() })).await?;
            assert_eq!((carried, plain, scoped), (true, false, true));
            nested_tool().await?;
            Ok(())
        });
        assert!(Session::<Tally>::current().is_none());
        let output = turn(&agent, "hi").await;
        assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().last, "tool");
        assert!(Session::<Tally>::current().is_none());
    }

    async fn a_session_writes_nothing_after_its_turn(home: Home) {
        let kept = Arc::new(std::sync::Mutex::new(None));
        let keep = kept.clone();
        let agent = doing(&home, move |turn| {
            let keep = keep.clone();
            async move {
                *keep.lock().unwrap() = Some((turn.session().clone(), turn.responder()));
                Ok(())
            }
        });
        turn(&agent, "hi").await;
        let (session, responder) = kept.lock().unwrap().take().unwrap();
        assert_eq!(kind(session.add_message(Message::model("late"))), ErrorKind::Fenced);
        assert_eq!(kind(session.update_custom(|_| ())), ErrorKind::Fenced);
        assert_eq!(kind(session.add_artifact(file("a", "1")).await), ErrorKind::Fenced);
        assert_eq!(kind(session.add_usage(Usage::tokens(1, 1))), ErrorKind::Fenced);
        assert_eq!(kind(session.state().await.unwrap().set("user:x", &1)), ErrorKind::Fenced);
        assert_eq!(kind(responder.text("late").await), ErrorKind::Fenced);
        assert_eq!(texts(&session.messages()), ["hi"], "it can still be read");
    }
}

/// A tool that is handed nothing and finds the session by itself.
async fn nested_tool() -> Handled<()> {
    let session = Session::<Tally>::current().expect("called inside a turn");
    session.update_custom(|tally| tally.last = "tool".into())?;
    Ok(())
}
