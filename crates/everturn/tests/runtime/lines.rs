//! What a live session knows of its line: counts, costs, events, forks, branches, and itself.

use everturn::store::{StoreExt, UnderLease};
use everturn::{Agent, ErrorKind, Event, EventKind, Init, Input, Message, Role, StateDelta, Usage};

use crate::sessions::{doing, s, turn};
use crate::support::*;

static LATEST: tokio::sync::Mutex<Option<Agent<Tally>>> = tokio::sync::Mutex::const_new(None);

/// The agent that runs: each test is a process of its own, or the last to start counts.
async fn own() -> Agent<Tally> {
    LATEST.lock().await.clone().unwrap()
}

on_every_store! {
    async fn usage_adds_up_along_the_line(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.add_usage(Usage::tokens(3, 1))?;
            let answer = Event::model("echo", Message::model("ok")).with_usage(Usage::tokens(10, 2));
            turn.add_event(answer)?;
            turn.tool_iteration_end().await?;
            turn.add_usage(Usage::tokens(1, 0))?;
            let turns = turn.turn_count() + 1;
            assert_eq!(turn.total_usage(), Usage::tokens(14 * turns, 3 * turns));
            if turn.text() == "fail" {
                return Err(everturn::Failure::new("INTERNAL", "no"));
            }
            Ok(())
        });
        assert_eq!(turn(&agent, "one").await.usage, Usage::tokens(14, 3));
        let failed = agent.run_text("fail", s()).await.unwrap();
        assert_eq!(failed.usage, Usage::tokens(14, 3), "a failed turn cost something too");
        assert_eq!(turn(&agent, "two").await.usage, Usage::tokens(14, 3));
        let state = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((state.usage(), state.turns()), (Usage::tokens(28, 6), 2));
        let record = home.store().existing(&key("s")).await.unwrap();
        assert_eq!(record.usage, Usage::tokens(42, 9), "the session counts what failed as well");
    }

    async fn events_are_those_of_the_line_and_of_this_turn(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.add_message(Message::model("first"))?;
            turn.tool_iteration_end().await?;
            let mut call = Event::new("echo").with_messages([Message::of_text(Role::Tool, "second")]);
            call.kind = EventKind::ToolResult;
            turn.add_event(call)?;
            let mut piece = Event::model("echo", Message::model("piece"));
            piece.partial = true;
            turn.add_event(piece)?;
            let stateful = Event::new("echo").with_state(StateDelta::new().set("x", json("1")));
            assert_eq!(kind(turn.add_event(stateful)), ErrorKind::Invalid);
            let heard: Vec<_> = turn.events().await?.iter().map(|e| e.messages[0].text()).collect();
            let expected = ["in", "first", "second", "in", "first", "second"];
            assert_eq!(heard, expected[..3 * (turn.index() as usize + 1)]);
            assert_eq!(turn.messages().len(), heard.len(), "pieces of a stream are not kept");
            Ok(())
        });
        turn(&agent, "in").await;
        turn(&agent, "in").await;
        let events = home.elsewhere().events(everturn::store::EventQuery::of(key("s"))).await.unwrap().items;
        let authors: Vec<_> = events.iter().map(|event| event.author.as_str()).collect();
        assert_eq!(authors, ["user", "echo", "echo", "user", "echo", "echo"]);
        assert_eq!((events[2].kind, events[3].turn_index), (EventKind::ToolResult, Some(1)));
    }

    async fn turns_are_counted_along_the_line(home: Home) {
        let agent = doing(&home, |turn| async move {
            let text = format!("{} {} {}", turn.index(), turn.turn_index(), turn.turn_count());
            turn.add_message(Message::model(text))?;
            Ok(())
        });
        let first = turn(&agent, "a").await;
        assert_eq!(first.text(), "0 0 0");
        assert_eq!(turn(&agent, "b").await.text(), "1 1 1");
        let other = agent.run_text("c", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(other.text(), "1 1 1", "counted along the line, not over the session");
    }

    async fn a_title_is_given_at_once_and_outlives_a_failure(home: Home) {
        let agent = doing(&home, |turn| async move {
            let before = turn.title().await?;
            turn.set_title(turn.text()).await?;
            assert_eq!(turn.title().await?.as_deref(), Some(turn.text().as_str()));
            assert!(turn.last_update_time().await?.is_some());
            assert_eq!((turn.id().as_str(), turn.user().as_str()), ("s", "user"));
            match before {
                None => Ok(()),
                Some(_) => Err(everturn::Failure::new("INTERNAL", "no")),
            }
        });
        turn(&agent, "one").await;
        agent.run_text("two", s()).await.unwrap();
        assert_eq!(home.elsewhere().existing(&key("s")).await.unwrap().title.as_deref(), Some("two"));
    }

    async fn a_session_forks_and_branches_where_it_was_good(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.add_message(Message::model("ok"))?;
            if turn.text() == "split" {
                let fork = turn.fork(Some(sid("copy"))).await?;
                assert_eq!(fork.id, sid("copy"));
                assert!(!turn.fork(None).await?.id.as_str().is_empty());
                turn.branch(branch("draft")).await?;
                assert_eq!(kind(turn.branch(branch("draft")).await), ErrorKind::AlreadyExists);
            }
            Ok(())
        });
        turn(&agent, "one").await;
        turn(&agent, "split").await;
        let copy = agent.run_text("two", Init::session(sid("copy"))).await.unwrap();
        assert_eq!(said(&copy), ["one", "ok", "two", "ok"], "without the turn that ran");
        let draft = agent.run_text("three", s().branch(branch("draft"))).await.unwrap();
        assert_eq!(said(&draft), ["one", "ok", "three", "ok"]);
    }

    async fn a_rewind_under_a_turn_is_busy_unless_forced(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.add_message(Message::model("ok"))?;
            let back = turn.record().await?.unwrap().head;
            if turn.text() == "back" {
                let first = everturn::Point::new(turn.input().data.as_ref().unwrap().to()?);
                assert_eq!(kind(turn.rewind(first, UnderLease::Refuse).await), ErrorKind::Busy);
                assert_eq!(turn.record().await?.unwrap().head, back);
                turn.rewind(first, UnderLease::Force).await?;
            }
            Ok(())
        });
        let first = turn(&agent, "one").await;
        turn(&agent, "two").await;
        let mut input = Input::text("back");
        input.data = Some(json(&first.point.unwrap().seq().to_string()));
        let beside = agent.run(input, s()).await.unwrap().ok().unwrap();
        assert!(!beside.on_head, "the turn went on and ended beside the head");
        assert_eq!(said(&beside).len(), 6);
        assert_eq!(home.store().existing(&key("s")).await.unwrap().head, first.point.unwrap());
    }

    async fn calling_into_its_own_session_is_an_error_not_a_deadlock(home: Home) {
        let agent = doing(&home, |turn| async move {
            if turn.text() != "outer" {
                return turn.add_message(Message::model("inner")).map_err(Into::into);
            }
            let me = own().await;
            refused(me.run_text("inner", s()).await, ErrorKind::Busy, "held by the turn this is called from");
            let mine = turn.snapshot_id();
            assert!(mine.is_some());
            let elsewhere = me.run_text("inner", Init::session(sid("elsewhere"))).await?;
            assert_eq!(said(&elsewhere), ["inner", "inner"]);
            let carried = turn.spawn(async { own().await.run_text("inner", s()).await }).await?;
            assert_eq!(kind(carried), ErrorKind::Busy);
            let beside = me.run_text("inner", s().busy(everturn::store::Busy::Branch)).await?;
            assert!(!beside.on_head);
            Ok(())
        });
        LATEST.lock().await.replace(agent.clone());
        let output = turn(&agent, "outer").await;
        assert_eq!(said(&output), ["outer"], "the outer turn completes");
    }
}
