//! Tools that ask people, and the turns that answer.

use everturn::model::{Reply, ToolMode};
use everturn::store::StoreExt as _;
use everturn::tool::{Tool, ToolError};
use everturn::{
    Agent, FinishReason, Init, Input, Interrupt, Json, Output, Prompt, Resume, SessionStatus, SnapshotStatus,
};

use crate::support::*;
use crate::tools::*;

#[track_caller]
pub(crate) fn asked(output: &Output) -> Vec<Interrupt> {
    assert_eq!((output.finish_reason, &output.error), (Some(FinishReason::Interrupted), &None));
    Interrupt::all_in(output.message.as_ref().unwrap())
}

pub(crate) fn answer(resume: Resume) -> Input {
    Input::resume(&resume).unwrap()
}

/// Interrupts unless it was restarted; then says what was said.
fn pay() -> Tool {
    Tool::untyped("pay", "Pays.", json("{}"), |_, context| async move {
        match context.resumed() {
            Some(said) => Ok(said.clone()),
            None => Err(ToolError::interrupt("really?")),
        }
    })
}

on_every_store! {
    async fn a_question_survives_a_restart_and_is_answered(home: Home) {
        let model = script([Reply::calls([("confirm", Some("r1"), r#"{"question":"ok?"}"#)]), Reply::text("thanks")]);
        let agent = helper(&model, [confirm()]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        let question = &asked(&output)[0];
        assert_eq!((question.name.as_str(), question.reference.as_deref(), &question.payload), ("confirm", Some("r1"), &json("\"ok?\"")));
        assert_eq!(question.input_as::<Question>().unwrap().question, "ok?");
        let row = agent.snapshot(output.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((row.status, row.finish_reason), (SnapshotStatus::Completed, Some(FinishReason::Interrupted)));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
        let later = helper(&model, [confirm()]).shared_store(home.elsewhere()).build().unwrap();
        let done = later.run(answer(Resume::new().respond(question, &true).unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!((done.text().as_str(), roles(&done)), ("thanks", vec!["user", "model", "tool", "model"]));
        assert_eq!(answers(&done), ["true"]);
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Idle);
    }

    async fn a_restart_runs_the_tool_again_with_what_was_said(home: Home) {
        let model = script([Reply::calls([("pay", Some("r"), "{}")]), Reply::text("paid")]);
        let agent = helper(&model, [pay()]).shared_store(home.store()).build().unwrap();
        let question = asked(&agent.run_text("go", Init::session(sid("s"))).await.unwrap()).remove(0);
        let done = agent.run(answer(Resume::new().restart(&question, "yes").unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!((answers(&done), done.text().as_str()), (vec!["\"yes\"".to_owned()], "paid"));
    }

    async fn partial_answers_keep_the_rest_pending_and_what_ran_is_not_run_again(home: Home) {
        let ran = Count::default();
        let calls = [("add", Some("a"), r#"{"a":1,"b":1}"#), ("confirm", Some("b"), r#"{"question":"b?"}"#), ("confirm", Some("c"), r#"{"question":"c?"}"#)];
        let model = script([Reply::calls(calls), Reply::text("all done")]);
        let agent = helper(&model, [add(&ran), confirm()]).shared_store(home.store()).build().unwrap();
        let first = asked(&agent.run_text("go", Init::session(sid("s"))).await.unwrap());
        assert_eq!(first.len(), 2);
        let half = agent.run(answer(Resume::new().respond(&first[1], &false).unwrap()), Init::session(sid("s"))).await.unwrap();
        let second = asked(&half);
        assert_eq!((second.len(), second[0].reference.as_deref()), (1, Some("b")));
        let done = agent.run(answer(Resume::new().respond(&second[0], &true).unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!((answers(&done), ran.get()), (vec!["2".to_owned(), "true".to_owned(), "false".to_owned()], 1));
        assert_eq!(model.requests().len(), 2, "the model is asked when all is known");
        let text = done.state.messages().get(1).unwrap().to_string();
        assert!(!text.contains("pending") && text.matches("resolvedInterrupt").count() == 2, "{text}");
    }

    async fn in_order_the_calls_behind_a_question_wait_for_its_answer(home: Home) {
        let ran = Count::default();
        let calls = [("add", Some("a"), r#"{"a":1,"b":1}"#), ("confirm", Some("b"), r#"{"question":"b?"}"#), ("add", Some("c"), r#"{"a":2,"b":2}"#)];
        let model = script([Reply::calls(calls), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([add(&ran), confirm()]).tool_mode(ToolMode::Sequential);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let question = asked(&agent.run_text("go", Init::session(sid("s"))).await.unwrap()).remove(0);
        assert_eq!(ran.get(), 1);
        let done = agent.run(answer(Resume::new().respond(&question, &true).unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!((answers(&done), ran.get()), (vec!["2".to_owned(), "true".to_owned(), "4".to_owned()], 2));
    }

    async fn a_tool_that_needs_approval_never_runs_without_it(home: Home) {
        let ran = Count::default();
        let model = script([Reply::calls([("add", Some("r"), r#"{"a":1,"b":2}"#)]), Reply::text("ok"), Reply::calls([("add", Some("r"), r#"{"a":1,"b":2}"#)]), Reply::text("never mind")]);
        let agent = helper(&model, [add(&ran).requires_approval()]).shared_store(home.store()).build().unwrap();
        let question = asked(&agent.run_text("go", Init::session(sid("s"))).await.unwrap()).remove(0);
        assert!(question.needs_approval());
        for forged in [Resume::new().respond(&question, &3).unwrap(), Resume::new().restart(&question, &true).unwrap()] {
            let failed = agent.run(answer(forged), Init::session(sid("s"))).await.unwrap();
            assert!(failed.error.unwrap().message.contains("waits for approval"));
        }
        assert_eq!(ran.get(), 0);
        let done = agent.run(answer(Resume::new().approve(&question).unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!((ran.get(), answers(&done)), (1, vec!["3".to_owned()]));
        let question = asked(&agent.run_text("again", Init::session(sid("s"))).await.unwrap()).remove(0);
        let done = agent.run(answer(Resume::new().deny(&question, "too much").unwrap()), Init::session(sid("s"))).await.unwrap();
        assert_eq!(ran.get(), 1);
        assert!(answers(&done)[1].contains("did not allow this call: too much"), "{:?}", answers(&done));
    }

    async fn answers_that_do_not_fit_are_refused_and_the_question_stays(home: Home) {
        let model = script([Reply::text("hello"), Reply::calls([("pay", Some("r"), r#"{"amount":5}"#)]), Reply::text("paid"), ]);
        let agent = helper(&model, [pay().output_schema(json(r#"{"type":"string"}"#))]).shared_store(home.store()).build().unwrap();
        let init = || Init::session(sid("s"));
        agent.run_text("hi", init()).await.unwrap();
        let early = agent.run(Input::resume(&Resume::new()).unwrap(), init()).await.unwrap();
        assert!(early.error.unwrap().message.contains("waits for no answer"));
        let question = asked(&agent.run_text("go", init()).await.unwrap()).remove(0);
        let raw = |text: &str| { let mut input = Input::messages([]); input.resume = Some(json(text)); input };
        let ok = r#"{"toolResponse":{"name":"pay","ref":"r","output":"x"}}"#;
        let mut both = answer(Resume::new().respond(&question, "x").unwrap());
        both.messages.push(everturn::Message::user("x"));
        let cases = [
            (raw(r#"{"restart":[{"toolRequest":{"name":"pay","ref":"r","input":{"amount":5000}},"metadata":{"resumed":true}}]}"#), "INVALID_ARGUMENT", "modified inputs"),
            (raw(r#"{"respond":[{"toolResponse":{"name":"pay","ref":"zz","output":1}}]}"#), "INVALID_ARGUMENT", "not found in session history"),
            (raw(r#"{"respond":[{"toolResponse":{"name":"pay","ref":"r","output":1}}]}"#), "INVALID_ARGUMENT", "does not fit what tool"),
            (raw(&format!(r#"{{"respond":[{ok},{ok}]}}"#)), "INVALID_ARGUMENT", "already answered"),
            (raw(&format!(r#"{{"respond":[{ok},{{"toolResponse":{{"name":"no","output":1}}}}]}}"#)), "INVALID_ARGUMENT", "not found"),
            (raw(r#"{"respond":[{"text":"x"}]}"#), "INVALID_ARGUMENT", "no toolResponse"),
            (raw("{}"), "FAILED_PRECONDITION", "waits for an answer to tool 'pay' (ref: r)"),
            (raw("[1]"), "INVALID_ARGUMENT", "`resume` is an object"),
            (Input::text("hurry up"), "FAILED_PRECONDITION", "waits for an answer"),
            (both, "INVALID_ARGUMENT", "turns of their own"),
        ];
        let before = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        for (input, status, words) in cases {
            let failed = agent.run(input, init()).await.unwrap();
            let error = failed.error.unwrap();
            assert_eq!(error.status, status, "{}", error.message);
            assert!(error.message.contains(words), "{} does not say {words}", error.message);
            assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().digest(), before.digest());
        }
        let done = agent.run(answer(Resume::new().respond(&question, "x").unwrap()), init()).await.unwrap();
        assert_eq!(done.text(), "paid");
        let again = agent.run(answer(Resume::new().respond(&question, "x").unwrap()), init()).await.unwrap();
        assert!(again.error.unwrap().message.contains("already answered"));
    }
}

#[tokio::test]
async fn without_a_store_the_caller_keeps_the_question() {
    let model = script([Reply::calls([("confirm", Some("r"), r#"{"question":"ok?"}"#)]), Reply::text("thanks")]);
    let agent: Agent<Json> = helper(&model, [confirm()]).build().unwrap();
    let output = agent.run_text("go", Init::new()).await.unwrap();
    let question = asked(&output).remove(0);
    let state = output.state.to_session_state();
    let done = agent.run(answer(Resume::new().respond(&question, &true).unwrap()), Init::state(state)).await.unwrap();
    assert_eq!((done.text().as_str(), roles(&done)), ("thanks", vec!["user", "model", "tool", "model"]));
}
