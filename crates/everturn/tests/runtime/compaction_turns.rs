//! Changing what the model is shown from within a turn.

use everturn::store::{StoreExt, VerifyScope};
use everturn::{
    Agent, Compaction, ErrorKind, EventKind, Failure, Handled, Message, Part, Role, Session, SnapshotPolicy, Summary,
    Turn, Usage, View, Window,
};

use crate::compaction::{count, head, of, shown};
use crate::sessions::{doing, flow, s, turn};
use crate::support::*;

async fn answer(turn: &Turn<Tally>) -> Handled<()> {
    Ok(turn.add_message(Message::model(format!("re {}", turn.text())))?)
}

fn request(reference: &str) -> Message {
    Message::new(Role::Model, &[Part::tool_request("look", Some(reference), &json("{}"))])
}

fn response(reference: &str) -> Message {
    Message::new(Role::Tool, &[Part::tool_response("look", Some(reference), &json("7"))])
}

on_every_store! {
    async fn a_turn_compacts_what_came_before_it(home: Home) {
        let agent = doing(&home, |turn| async move {
            if turn.text() == "compact" {
                let priced = |messages: Vec<Message>| async move {
                    Ok(Summary::from(count(messages).await?).usage(Usage::tokens(30, 3)))
                };
                let done = turn.compact(Compaction::new().keep_turns(1), priced).await?.unwrap();
                assert_eq!((of(&done.replaced), done.usage), (vec!["a".into(), "re a".into()], Usage::tokens(30, 3)));
                assert_eq!(of(&turn.model_messages()), ["sum of 2", "b", "re b", "compact"]);
                assert_eq!(turn.messages().len(), 5);
            }
            answer(&turn).await
        });
        turn(&agent, "a").await;
        turn(&agent, "b").await;
        let output = turn(&agent, "compact").await;
        assert_eq!(output.usage, Usage::tokens(30, 3));
        assert_eq!(shown(&home).await, ["sum of 2", "b", "re b", "compact", "re compact"]);
        assert_eq!(head(&home).await.usage(), Usage::tokens(30, 3));
        let history = agent.compactions(&sid("s")).await.unwrap();
        assert_eq!((of(&history[0].replaced), of(&history[0].summary)), (vec!["a".into(), "re a".into()], vec!["sum of 2".into()]));
        assert_eq!(Some(history[0].point), output.point, "it is part of the turn's end");
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None);
    }

    async fn a_failed_turn_takes_its_compaction_with_it(home: Home) {
        let agent = doing(&home, |turn| async move {
            if turn.text() == "fail" {
                turn.compact(Compaction::new(), count).await?.unwrap();
                return Err(Failure::new("INTERNAL", "no"));
            }
            answer(&turn).await
        });
        turn(&agent, "a").await;
        agent.run_text("fail", s()).await.unwrap();
        assert_eq!(shown(&home).await, ["a", "re a"]);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
    }

    async fn a_summariser_that_fails_in_a_turn_changes_nothing(home: Home) {
        let agent = doing(&home, |turn| async move {
            let panics = |_| -> std::future::Ready<Handled<Message>> { panic!("oh no") };
            if turn.index() > 0 {
                refused(turn.compact(Compaction::new(), panics).await, ErrorKind::Internal, "oh no");
                let empty = |_| async { Ok(Vec::new()) };
                refused(turn.compact(Compaction::new(), empty).await, ErrorKind::Invalid, "empty");
                assert_eq!(turn.view(), None);
            } else {
                assert_eq!(turn.compact(Compaction::new(), panics).await?, None, "this turn's messages stay");
            }
            answer(&turn).await
        });
        turn(&agent, "a").await;
        turn(&agent, "b").await;
        assert_eq!(shown(&home).await, ["a", "re a", "b", "re b"]);
    }

    async fn a_long_turn_compacts_its_own_tool_calls(home: Home) {
        let agent = doing(&home, |turn| async move {
            for call in ["1", "2", "3"] {
                turn.add_messages([request(call), response(call)])?;
            }
            turn.add_message(request("4"))?;
            let done = turn.compact(Compaction::new().keep_messages(2), count).await?.unwrap();
            assert_eq!(done.replaced.len(), 5, "the third call is kept whole, the fourth is being answered");
            turn.compact(Compaction::new().keep_messages(0), count).await?.unwrap();
            assert_eq!(turn.model_messages()[1..], [request("4")], "a call that runs is kept");
            turn.add_message(response("4"))?;
            turn.add_message(Message::model("done"))?;
            Ok(())
        });
        turn(&agent, "go").await;
        let state = head(&home).await;
        assert_eq!(state.model_messages().len(), 4);
        let history = agent.compactions(&sid("s")).await.unwrap();
        let replaced: Vec<_> = history.iter().map(|record| record.replaced.len()).collect();
        assert_eq!(replaced, [5, 3], "both of one record are told apart");
        assert_eq!(of(&history[1].replaced)[0], "sum of 5");
    }

    async fn what_is_added_meanwhile_is_kept_and_what_is_changed_meanwhile_conflicts(home: Home) {
        let agent = doing(&home, |turn| async move {
            if turn.index() == 0 {
                return answer(&turn).await;
            }
            let (adds, changes) = (turn.session().clone(), turn.session().clone());
            let changing = |messages: Vec<Message>| async move {
                changes.set_messages([Message::user("other")])?;
                count(messages).await
            };
            let said = turn.messages().to_vec();
            refused(turn.compact(Compaction::new(), changing).await, ErrorKind::Conflict, "compact again");
            turn.set_messages(said)?;
            let adding = |messages: Vec<Message>| async move {
                adds.add_message(Message::model("added"))?;
                count(messages).await
            };
            turn.compact(Compaction::new(), adding).await?.unwrap();
            assert_eq!(of(&turn.model_messages()), ["sum of 2", "b", "added"]);
            Ok(())
        });
        turn(&agent, "a").await;
        turn(&agent, "b").await;
        assert_eq!(shown(&home).await, ["sum of 2", "b", "added"]);
    }

    async fn a_view_is_set_and_cleared_with_the_turn(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "set" => {
                    refused(turn.set_view(View::new(9, vec![])), ErrorKind::Invalid, "not said yet");
                    turn.set_view(View::new(2, vec![Message::user("sum")]))?;
                    turn.tool_iteration_end().await?;
                }
                "clear" => turn.clear_view()?,
                _ => {}
            }
            answer(&turn).await
        });
        turn(&agent, "a").await;
        turn(&agent, "set").await;
        assert_eq!(shown(&home).await, ["sum", "set", "re set"]);
        turn(&agent, "b").await;
        assert_eq!(head(&home).await.view().unwrap().replaces, 2, "it stays until it is changed");
        turn(&agent, "clear").await;
        assert_eq!(shown(&home).await.len(), 8);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [], "a view by hand is no compaction");
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None);
    }

    async fn replacing_the_messages_a_view_stands_for_clears_it(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "redo" => {
                    let priced = |_| async { Ok(Summary::new([Message::user("sum")]).usage(Usage::tokens(5, 5))) };
                    turn.compact(Compaction::new(), priced).await?.unwrap();
                    turn.set_messages([Message::user("new"), Message::model("start"), Message::user("x")])?;
                    assert_eq!(turn.view(), None);
                    return Ok(());
                }
                "more" => {
                    let mut said = turn.messages().to_vec();
                    said.pop();
                    turn.set_messages(said)?;
                }
                "compact" => drop(turn.compact(Compaction::new(), count).await?),
                _ => {}
            }
            answer(&turn).await
        });
        turn(&agent, "a").await;
        turn(&agent, "redo").await;
        assert_eq!(shown(&home).await, ["new", "start", "x"]);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [], "it was undone before anybody saw it");
        assert_eq!(head(&home).await.usage(), Usage::tokens(5, 5), "and paid for all the same");
        turn(&agent, "compact").await;
        turn(&agent, "more").await;
        assert_eq!(shown(&home).await, ["sum of 3", "compact", "re compact", "re more"], "the rest may change");
    }

    async fn the_digest_that_a_policy_is_told_has_the_view_in_it(home: Home) {
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = told.clone();
        let policy = SnapshotPolicy::when(move |context| {
            note.lock().unwrap().push(context.digest);
            std::future::ready(true)
        });
        let agent = flow(|turn| async move {
            if turn.index() > 0 {
                turn.compact(Compaction::new(), count).await?;
            }
            answer(&turn).await
        });
        let agent = agent.shared_store(home.store()).snapshots(policy).build().unwrap();
        for text in ["a", "b", "c"] {
            turn(&agent, text).await;
            let expected = head(&home).await.digest();
            let told = std::mem::take(&mut *told.lock().unwrap());
            assert!(!told.is_empty() && told.iter().all(|digest| *digest == expected), "after {text}");
        }
    }

    async fn between_turns_a_compaction_is_an_edit(home: Home) {
        let agent = Agent::flow_loop("echo", |session: Session<Tally>| async move {
            while let Some(turn) = session.next_turn().await? {
                answer(&turn).await?;
                turn.end().await?;
                session.compact(Compaction::new().keep_turns(1), count).await?;
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b"] {
            connection.send_text(text).await.unwrap();
        }
        connection.output().await.unwrap().ok().unwrap();
        assert_eq!(shown(&home).await, ["sum of 2", "b", "re b"]);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap().len(), 1);
        let events = home.store().events(everturn::store::EventQuery::of(key("s"))).await.unwrap().items;
        assert_eq!(events.last().map(|event| (event.kind, event.turn_index)), Some((EventKind::Compaction, None)));
    }

    async fn a_window_shows_the_end_and_changes_nothing(home: Home) {
        let agent = doing(&home, |turn| async move {
            answer(&turn).await?;
            if turn.text() == "c" {
                let seen = of(&turn.window(Window::last_turns(2)));
                assert_eq!(seen, ["b", "re b", "c", "re c"]);
                turn.compact(Compaction::new().keep_turns(1).pin(|m| m.text() == "a"), count).await?.unwrap();
                assert_eq!(of(&turn.window(Window::last_turns(1))), ["sum of 1", "a", "c", "re c"]);
                assert_eq!(of(&turn.window(Window::last_turns(9))), of(&turn.model_messages()));
            }
            Ok(())
        });
        for text in ["a", "b", "c"] {
            turn(&agent, text).await;
        }
        assert_eq!(shown(&home).await, ["sum of 1", "a", "b", "re b", "c", "re c"]);
    }
}

#[tokio::test]
async fn a_state_that_the_caller_keeps_has_no_view_but_windows() {
    let agent = flow(|turn| async move {
        answer(&turn).await?;
        refused(turn.compact(Compaction::new(), count).await, ErrorKind::WrongMode, "Window");
        refused(turn.set_view(View::new(0, vec![])), ErrorKind::WrongMode, "Window");
        refused(turn.clear_view(), ErrorKind::WrongMode, "store");
        assert_eq!(of(&turn.window(Window::last_messages(1))), [format!("re {}", turn.text())]);
        Ok(())
    });
    let output = agent.build().unwrap().run_text("a", everturn::Init::new()).await.unwrap();
    assert_eq!(output.error, None);
}

#[tokio::test]
async fn a_turn_that_has_ended_is_not_compacted() {
    let home = Home::memory();
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    let keep = kept.clone();
    let agent = doing(&home, move |turn| {
        let keep = keep.clone();
        async move {
            answer(&turn).await?;
            *keep.lock().unwrap() = Some(turn.session().clone());
            Ok(())
        }
    });
    turn(&agent, "a").await;
    let session = kept.lock().unwrap().take().unwrap();
    assert_eq!(kind(session.compact(Compaction::new(), count).await), ErrorKind::Fenced);
    assert_eq!(kind(session.clear_view()), ErrorKind::Fenced);
    assert_eq!(home.store().head_state(&key("s")).await.unwrap().view(), None);
}
