//! Questions that are taken back, and questions in forks.

use everturn::model::Reply;
use everturn::store::{At, Commit, ForkSession, StoreExt as _};
use everturn::{Changes, ErrorKind, Event, Init, Interrupt, Message, SessionStatus};
use tokio::sync::Notify;

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

on_every_store! {
    async fn a_question_that_is_taken_back_leaves_the_turns_before_it(home: Home) {
        let model = script([Reply::text("one"), calls(&[("ask", "a")]), Reply::text("fresh")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let good = agent.run_text("hi", here()).await.unwrap();
        asked(&agent.run_text("go", here()).await.unwrap());
        let record = agent.withdraw(&sid("s")).await.unwrap();
        assert_eq!((Some(record.head), record.turns, record.status), (good.point, 1, SessionStatus::Idle));
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(texts(stored.messages()), ["hi", "one"]);
        let fresh = agent.run_text("again", here()).await.unwrap();
        assert_eq!(said(&fresh), ["hi", "one", "again", "fresh"]);
    }

    async fn a_question_asked_in_part_by_several_turns_is_taken_back_whole(home: Home) {
        let model = script([calls(&[("ask", "a"), ("ask", "b"), ("ask", "c")]), Reply::text("fresh")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let mut left = asked(&agent.run_text("go", here()).await.unwrap());
        for reference in ["a", "b"] {
            left = asked(&agent.run(answered(&left, &[reference]), here()).await.unwrap());
        }
        // What is edited while a question waits goes back with it.
        let note = Changes::new().custom(json(r#"{"edited":true}"#));
        home.store().commit(Commit::new(of_helper("s"), note)).await.unwrap();
        let record = agent.withdraw(&sid("s")).await.unwrap();
        assert_eq!((record.turns, record.status), (0, SessionStatus::Idle));
        let fresh = agent.run_text("again", here()).await.unwrap();
        assert_eq!(said(&fresh), ["again", "fresh"]);
    }

    async fn where_nothing_waits_there_is_nothing_to_take_back(home: Home) {
        let model = script([Reply::text("one"), calls(&[("ask", "a")]), Reply::text("two")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        refused(agent.withdraw(&sid("s")).await, ErrorKind::NotFound, "no session s");
        agent.run_text("hi", here()).await.unwrap();
        refused(agent.withdraw(&sid("s")).await, ErrorKind::WrongMode, "no question to take back");
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        agent.run(answered(&questions, &["a"]), here()).await.unwrap();
        refused(agent.withdraw(&sid("s")).await, ErrorKind::WrongMode, "no question to take back");
        refused(agent.for_user(user("bob")).withdraw(&sid("s")).await, ErrorKind::NotFound, "no session s");
    }

    async fn a_question_is_not_taken_back_from_under_its_answer(home: Home) {
        let (asks, reached, go) = (Count::default(), std::sync::Arc::new(Notify::new()), std::sync::Arc::new(Notify::new()));
        let model = script([calls(&[("ask", "a"), ("slow", "b")]), Reply::text("done")]);
        let slow = {
            let (reached, go) = (reached.clone(), go.clone());
            everturn::tool::Tool::untyped("slow", "Waits.", json("{}"), move |_, context| {
                let (reached, go) = (reached.clone(), go.clone());
                async move {
                    if context.resumed().is_none() {
                        return Err(everturn::tool::ToolError::interrupt("b?"));
                    }
                    reached.notify_one();
                    go.notified().await;
                    Ok(json("true"))
                }
            })
        };
        let agent = helper(&model, [ask(&asks), slow]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let resume = everturn::Resume::new().respond(&questions[0], "a!").unwrap().restart(&questions[1], &true).unwrap();
        let answering = tokio::spawn({ let agent = agent.clone(); async move { agent.run(answer(resume), here()).await } });
        reached.notified().await;
        assert_eq!(kind(agent.withdraw(&sid("s")).await), ErrorKind::Busy);
        go.notify_one();
        assert_eq!(answering.await.unwrap().unwrap().text(), "done");
    }

    async fn a_question_taken_back_can_still_be_answered_at_its_snapshot(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("fresh"), Reply::text("late")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let question = agent.run_text("go", here()).await.unwrap();
        agent.withdraw(&sid("s")).await.unwrap();
        let fresh = agent.run_text("again", here()).await.unwrap();
        let late = agent.run(answered(&asked(&question), &["a"]), Init::snapshot(question.snapshot_id.unwrap())).await.unwrap();
        assert_eq!((late.text().as_str(), roles(&late)), ("late", vec!["user", "model", "tool", "model"]));
        assert!(late.on_head, "whoever answers it brings it back");
        let aside = home.elsewhere().state(At::Snapshot(fresh.snapshot_id.unwrap())).await.unwrap().unwrap();
        assert_eq!(texts(aside.messages()), ["again", "fresh"], "and what was said meanwhile is kept beside it");
    }

    async fn a_fork_of_a_question_is_answered_or_taken_back_by_itself(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("in the fork"), Reply::text("fresh"), Reply::text("in the original")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        for id in ["f", "g"] {
            let fork = home.store().fork(ForkSession::at(At::head(of_helper("s"))).id(sid(id))).await.unwrap();
            assert_eq!(fork.status, SessionStatus::Idle, "it asked nobody itself");
        }
        let open = home.elsewhere().head_state(&of_helper("f")).await.unwrap();
        assert_eq!(Interrupt::all_in(open.messages().last().unwrap()), questions, "yet the question is open there");
        let done = agent.run(answered(&questions, &["a"]), Init::session(sid("f"))).await.unwrap();
        assert_eq!(done.text(), "in the fork");
        let back = agent.withdraw(&sid("g")).await.unwrap();
        assert_eq!(back.turns, 0);
        assert_eq!(said(&agent.run_text("hi", Init::session(sid("g"))).await.unwrap()), ["hi", "fresh"]);
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
        let done = agent.run(answered(&questions, &["a"]), here()).await.unwrap();
        assert_eq!(done.text(), "in the original");
    }

    async fn a_question_of_a_forks_own_is_taken_back_to_the_fork(home: Home) {
        let model = script([Reply::text("one"), calls(&[("ask", "a")])]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        agent.run_text("hi", here()).await.unwrap();
        let fork = home.store().fork(ForkSession::at(At::head(of_helper("s"))).id(sid("f"))).await.unwrap();
        let edit = Changes::new().event(Event::model("helper", Message::model("by hand")));
        home.store().commit(Commit::new(fork.key(), edit)).await.unwrap();
        asked(&agent.run_text("go", Init::session(sid("f"))).await.unwrap());
        agent.withdraw(&sid("f")).await.unwrap();
        let state = home.elsewhere().head_state(&of_helper("f")).await.unwrap();
        assert_eq!(texts(state.messages()), ["hi", "one", "by hand"]);
    }
}
