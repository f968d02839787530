//! Turns that answer what was asked, as Dive's users know them.

use std::sync::Arc;

use everturn::model::{Reply, ToolMode};
use everturn::store::{StoreExt as _, VerifyScope};
use everturn::tool::{OnToolError, Tool, ToolError};
use everturn::{Agent, FinishReason, Input, Json, Message, Prompt, Resume, Role, SessionStatus};
use tokio::sync::Barrier;

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

/// An input with answers as they came over a wire.
fn raw(resume: &str) -> Input {
    let mut input = Input::messages([]);
    input.resume = Some(json(resume));
    input
}

/// The statuses of a turn that failed, and its words.
#[track_caller]
fn fails(output: everturn::Output, status: &str, words: &str) {
    let error = output.error.expect("the turn fails");
    assert_eq!(error.status, status, "{}", error.message);
    assert!(error.message.contains(words), "{} does not say {words:?}", error.message);
}

on_every_store! {
    async fn one_process_asks_a_second_answers_a_third_sees_the_end(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("done")]);
        let first = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&first.run_text("go", here()).await.unwrap());
        let second = helper(&model, [ask(&Count::default())]).shared_store(home.elsewhere()).build().unwrap();
        let done = second.run(answered(&questions, &["a"]), here()).await.unwrap();
        assert_eq!((done.finish_reason, done.text().as_str(), model.requests().len()), (Some(FinishReason::Stop), "done", 2));
        let told = model.requests()[1].messages.last().unwrap().clone();
        assert_eq!((told.role(), told.parts()[0].as_tool_response().unwrap().reference.as_deref()), (Role::Tool, Some("a")));
        let third = home.elsewhere();
        assert_eq!(third.existing(&of_helper("s")).await.unwrap().status, SessionStatus::Idle);
        let state = third.head_state(&of_helper("s")).await.unwrap();
        assert_eq!(state.messages().last().unwrap().text(), "done");
        assert_eq!(state.messages().to_vec(), kept(&done));
    }

    async fn a_conversation_waits_goes_on_waits_again_and_remembers_all(home: Home) {
        let model = script([calls(&[("ask", "a")]), calls(&[("ask", "b")]), Reply::text("done"), Reply::text("bye")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let one = asked(&agent.run_text("go", here()).await.unwrap());
        let two = asked(&agent.run(answered(&one, &["a"]), here()).await.unwrap());
        assert_eq!(references(&two), ["b"]);
        let done = agent.run(answered(&two, &["b"]), here()).await.unwrap();
        assert_eq!((done.text().as_str(), model.requests().len()), ("done", 3));
        let next = agent.run_text("thanks", here()).await.unwrap();
        assert_eq!(roles(&next), ["user", "model", "tool", "model", "tool", "model", "user", "model"]);
        assert_eq!(model.requests()[3].messages[1..], next.state.messages().to_vec()[..7], "the model sees it all");
    }

    async fn three_questions_answered_one_by_one_are_told_once_each(home: Home) {
        let model = script([calls(&[("ask", "a"), ("ask", "b"), ("ask", "c")]), Reply::text("done")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let (mut told, mut output) = streamed(&agent, Input::text("go"), here()).await;
        for (reference, left) in [("b", vec!["a", "c"]), ("c", vec!["a"])] {
            let (chunks, next) = streamed(&agent, answered(&asked(&output), &[reference]), here()).await;
            assert_eq!((references(&asked(&next)), next.state.messages().len()), (left, 2), "no message is repeated");
            assert_eq!((model.requests().len(), next.usage.is_empty()), (1, true), "nobody is asked before all is known");
            told.extend(chunks);
            output = next;
        }
        let (chunks, done) = streamed(&agent, answered(&asked(&output), &["a"]), here()).await;
        told.extend(chunks);
        assert_eq!(streamed_answers(&told), ["b", "c", "a"], "each once, in the turn that gave it");
        assert_eq!((roles(&done), answers(&done)), (vec!["user", "model", "tool", "model"], vec![r#""a!""#.into(), r#""b!""#.into(), r#""c!""#.into()]));
        assert_eq!((model.requests().len(), home.elsewhere().existing(&of_helper("s")).await.unwrap().turns), (2, 4));
        let users = events(&home, "s").await.iter().flat_map(|event| event.messages.clone()).filter(|message| message.role() == Role::User).count();
        assert_eq!(users, 1, "an answer is no message of the user's");
    }

    async fn one_wrong_answer_refuses_them_all_and_nothing_happens(home: Home) {
        let heard = Heard::default();
        let model = script([calls(&[("ready", "r"), ("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([ready(&Count::default()), ask(&Count::default())]).hook(Listener::new(&heard));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let half = asked(&agent.run(answered(&questions, &["a"]), here()).await.unwrap());
        let before = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        heard.take();
        let b = r#"{"toolResponse":{"name":"ask","ref":"b","output":1}}"#;
        for (other, words) in [("ask\",\"ref\":\"zz", "not found in session history"), ("ask\",\"ref\":\"a", "already answered"), ("ready\",\"ref\":\"r", "already answered")] {
            let wrong = format!(r#"{{"toolResponse":{{"name":"{other}","output":1}}}}"#);
            for both in [format!("{b},{wrong}"), format!("{wrong},{b}")] {
                fails(agent.run(raw(&format!(r#"{{"respond":[{both}]}}"#)), here()).await.unwrap(), "INVALID_ARGUMENT", words);
            }
        }
        let heard: Vec<_> = heard.take().into_iter().filter(|what| what != "before_generation").collect();
        assert_eq!((heard, model.requests().len()), (Vec::<String>::new(), 1));
        let after = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(after.digest(), before.digest());
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
        assert_eq!(agent.run(answered(&half, &["b"]), here()).await.unwrap().text(), "done");
    }

    async fn answers_nobody_waits_for_are_refused_before_the_model_is_asked(home: Home) {
        let model = script([Reply::text("hello")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let good = agent.run_text("hi", here()).await.unwrap();
        let stray = raw(r#"{"respond":[{"toolResponse":{"name":"ask","ref":"a","output":1}}]}"#);
        fails(agent.run(stray.clone(), here()).await.unwrap(), "FAILED_PRECONDITION", "waits for no answer: send a message");
        fails(agent.run(stray, everturn::Init::session(sid("new"))).await.unwrap(), "FAILED_PRECONDITION", "waits for no answer");
        assert_eq!(model.requests().len(), 1);
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().head, good.point.unwrap());
    }

    async fn a_session_that_waits_takes_answers_only(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("done")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let before = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        let data = { let mut input = Input::messages([]); input.data = Some(json("1")); input };
        for input in [Input::text("hurry"), data, Input::messages([]), raw("{}"), raw(r#"{"respond":[],"restart":[]}"#)] {
            fails(agent.run(input, here()).await.unwrap(), "FAILED_PRECONDITION", "waits for an answer to tool 'ask' (ref: a): send it as `resume`");
        }
        assert_eq!((model.requests().len(), home.elsewhere().head_state(&of_helper("s")).await.unwrap().digest()), (1, before.digest()));
        assert_eq!(agent.run(answered(&questions, &["a"]), here()).await.unwrap().text(), "done");
    }

    async fn what_had_not_started_runs_the_way_of_the_agent_that_goes_on(home: Home) {
        let meet = Arc::new(Barrier::new(2));
        let tool = Tool::untyped("meet", "Waits for another.", json("{}"), move |_, _| {
            let meet = meet.clone();
            async move { Ok(Json::from_value(&meet.wait().await.is_leader())?) }
        }).timeout(std::time::Duration::from_secs(5)).on_error(OnToolError::FailTurn);
        let model = script([calls(&[("ask", "a"), ("meet", "b"), ("meet", "c"), ("ask", "d")]), Reply::text("done")]);
        let agent = |mode| {
            let prompt = Prompt::new(model.clone()).tools([ask(&Count::default()), tool.clone()]).tool_mode(mode);
            Agent::prompt("helper", prompt).shared_store(home.elsewhere()).build().unwrap()
        };
        let in_order = asked(&agent(ToolMode::Sequential).run_text("go", here()).await.unwrap());
        assert_eq!(references(&in_order), ["a"]);
        // One after the other they would wait for each other for ever.
        let at_once = asked(&agent(ToolMode::Parallel).run(answered(&in_order, &["a"]), here()).await.unwrap());
        assert_eq!(references(&at_once), ["d"]);
        let done = agent(ToolMode::Sequential).run(answered(&at_once, &["d"]), here()).await.unwrap();
        assert_eq!((done.text().as_str(), answers(&done).len()), ("done", 4));
    }

    async fn in_sequence_an_answer_to_a_later_question_is_not_lost(home: Home) {
        let asks = Count::default();
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let agent = |mode| {
            let prompt = Prompt::new(model.clone()).tool(ask(&asks)).tool_mode(mode);
            Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap()
        };
        let both = asked(&agent(ToolMode::Parallel).run_text("go", here()).await.unwrap());
        let restart = answer(Resume::new().restart(&both[1], "now").unwrap());
        let half = agent(ToolMode::Sequential).run(restart, here()).await.unwrap();
        assert_eq!((references(&asked(&half)), asks.get()), (vec!["a"], 3), "b was restarted, and answered");
        let done = agent(ToolMode::Sequential).run(answered(&both, &["a"]), here()).await.unwrap();
        assert_eq!(answers(&done), [r#""a!""#, r#""now""#]);
    }

    async fn what_was_answered_and_what_had_not_started_come_once_each_and_in_order(home: Home) {
        let (ran, asks) = (Count::default(), Count::default());
        let model = script([calls(&[("ask", "a"), ("ready", "b"), ("ask", "c"), ("ready", "d")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([ready(&ran), ask(&asks)]).tool_mode(ToolMode::Sequential);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let first = asked(&agent.run_text("go", here()).await.unwrap());
        let (chunks, output) = streamed(&agent, answered(&first, &["a"]), here()).await;
        assert_eq!((streamed_answers(&chunks), references(&asked(&output))), (vec!["a".to_owned(), "b".to_owned()], vec!["c"]));
        assert_eq!((ran.get(), asks.get()), (1, 2), "a was not called again, and d waits for c");
        let (chunks, done) = streamed(&agent, answered(&asked(&output), &["c"]), here()).await;
        assert_eq!(streamed_answers(&chunks), ["c", "d"]);
        assert_eq!(answers(&done), [r#""a!""#, r#""b""#, r#""c!""#, r#""d""#]);
        assert_eq!((ran.get(), asks.get()), (2, 2));
    }

    async fn an_output_tells_what_its_own_turn_cost(home: Home) {
        let usage = everturn::Usage::tokens;
        let model = script([calls(&[("ask", "a")]).usage(usage(10, 5)), Reply::text("done").usage(usage(20, 7))]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let first = agent.run_text("go", here()).await.unwrap();
        let done = agent.run(answered(&asked(&first), &["a"]), here()).await.unwrap();
        assert_eq!((first.usage, done.usage), (usage(10, 5), usage(20, 7)));
    }

    async fn another_model_and_other_instructions_may_take_over(home: Home) {
        let old = script([calls(&[("ask", "a")])]);
        let new = script([Reply::text("done")]);
        let agent = helper(&old, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let prompt = Prompt::new(new.clone()).system("Be kind.").tool(ask(&Count::default()));
        let agent = Agent::prompt("helper", prompt).shared_store(home.elsewhere()).build().unwrap();
        assert_eq!(agent.run(answered(&questions, &["a"]), here()).await.unwrap().text(), "done");
        assert_eq!((old.requests().len(), new.requests()[0].messages[0].text().as_str()), (1, "Be kind."));
    }

    async fn a_panic_in_what_had_not_started_is_told_to_the_model(home: Home) {
        let panics = Tool::untyped("panics", "Panics.", json("{}"), |_, _| async { panic!("at the disco") });
        let model = script([calls(&[("ask", "a"), ("panics", "b")]), Reply::text("oh")]);
        let prompt = Prompt::new(model.clone()).tools([ask(&Count::default()), panics]).tool_mode(ToolMode::Sequential);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let done = agent.run(answered(&questions, &["a"]), here()).await.unwrap();
        assert_eq!((done.text().as_str(), &done.error, roles(&done)), ("oh", &None, vec!["user", "model", "tool", "model"]));
        assert!(answers(&done)[1].contains("at the disco"), "{:?}", answers(&done));
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().to_vec(), kept(&done));
    }

    async fn a_question_at_the_last_allowed_request_can_be_gone_on_from(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tool(ask(&Count::default())).max_iterations(1);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        assert_eq!(agent.run(answered(&questions, &["a"]), here()).await.unwrap().text(), "done");
    }

    async fn every_question_can_be_answered_with_an_error(home: Home) {
        let heard = Heard::default();
        let strict = ask(&Count::default()).output_schema(json(r#"{"type":"string"}"#));
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("sorry")]);
        let prompt = Prompt::new(model.clone()).tool(strict).hook(Listener::new(&heard));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        heard.take();
        let refuse = questions.iter().fold(Resume::new(), |resume, question| resume.fail(question, "nobody is here").unwrap());
        let done = agent.run(answer(refuse), here()).await.unwrap();
        assert_eq!((done.text().as_str(), answers(&done)), ("sorry", vec![r#"{"error":"nobody is here"}"#.to_owned(); 2]));
        assert_eq!(heard.take(), ["before_generation", "tool_failed a", "tool_failed b", "on_stop sorry", "after_generation"]);
        let tool = done.state.messages().get(2).unwrap().to_string();
        assert_eq!(tool.matches(r#""metadata":{"error":true}"#).count(), 2, "{tool}");
    }

    async fn a_tool_that_asks_and_works_later_goes_end_to_end(home: Home) {
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        struct Choice { options: Vec<String> }
        let choose = Tool::new("choose", "Lets a person choose.", |choice: Choice, context| async move {
            match context.resumed() {
                Some(picked) => Ok(picked.to::<String>()?),
                None => Err(ToolError::interrupt(&choice.options)),
            }
        });
        let model = script([Reply::calls([("choose", Some("c"), r#"{"options":["tea","milk"]}"#)]), Reply::text("Here is your tea.")]);
        let agent = helper(&model, [choose]).shared_store(home.store()).build().unwrap();
        let question = asked(&agent.run_text("I am thirsty", here()).await.unwrap()).remove(0);
        let options: Vec<String> = question.payload.to().unwrap();
        let done = agent.run(answer(Resume::new().restart(&question, &options[0]).unwrap()), here()).await.unwrap();
        assert_eq!((answers(&done), done.text().as_str()), (vec![r#""tea""#.to_owned()], "Here is your tea."));
    }

    async fn what_a_tool_says_itself_does_not_come_between_calls_and_answers(home: Home) {
        let says = Tool::untyped("says", "Says something.", json("{}"), |_, context| async move {
            context.session::<Json>().unwrap().add_message(Message::model("by the way"))?;
            Ok(json("true"))
        });
        let model = script([calls(&[("says", "a"), ("ask", "b")]), calls(&[("says", "c")]), Reply::text("done")]);
        let agent = helper(&model, [says, ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", here()).await.unwrap();
        assert_eq!((references(&asked(&output)), said(&output)[1].as_str()), (vec!["b"], "by the way"));
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().to_vec(), kept(&output));
        let done = agent.run(answered(&asked(&output), &["b"]), here()).await.unwrap();
        assert_eq!(roles(&done), ["user", "model", "model", "tool", "model", "model", "tool", "model"]);
        assert_eq!(said(&done), ["go", "by the way", "", "", "by the way", "", "", "done"]);
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().to_vec(), kept(&done));
        assert!(home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap().damage.is_none());
    }

    async fn what_a_finished_sibling_asked_of_the_runtime_waits_with_it(home: Home) {
        let show = Tool::untyped("show", "Shows.", json("{}"), |_, context| async move {
            context.skip_summarization();
            Ok(json("\"shown\""))
        });
        let model = script([calls(&[("show", "a"), ("ask", "b")])]);
        let agent = helper(&model, [show, ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let asked_for = async || events(&home, "s").await.iter().filter(|event| event.actions.skip_summarization).count();
        assert_eq!(asked_for().await, 0, "not before all have answered");
        let done = agent.run(answered(&questions, &["b"]), here()).await.unwrap();
        assert_eq!((done.error, model.requests().len(), asked_for().await), (None, 1, 1));
    }
}
