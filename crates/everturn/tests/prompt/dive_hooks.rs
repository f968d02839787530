//! What hooks hear, what they may change, and what becomes of their errors.

use async_trait::async_trait;
use everturn::model::{Reply, ScriptedModel, ToolMode};
use everturn::store::StoreExt as _;
use everturn::tool::{Tool, ToolError};
use everturn::{
    Agent, ErrorKind, Failure, FinishReason, Hook, HookContext, HookError, HookResult, Interrupt, Json, Message,
    Output, Preparation, Prompt, Resume, SessionStatus, StopVerdict, ToolAnswer, ToolCall, Usage,
};

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

/// An agent that both answers and asks, with hooks.
fn listened(home: &Home, model: &ScriptedModel, hooks: impl IntoIterator<Item = Listener>) -> Agent<Json> {
    let prompt = Prompt::new(model.clone()).tools([ready(&Count::default()), ask(&Count::default())]);
    let prompt = hooks.into_iter().fold(prompt, Prompt::hook);
    Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap()
}

async fn status(home: &Home) -> SessionStatus {
    home.elsewhere().existing(&of_helper("s")).await.unwrap().status
}

/// Changes answers.
struct Changing(fn(&ToolCall, &mut ToolAnswer));

#[async_trait]
impl Hook for Changing {
    async fn after_tool(&self, _: &HookContext<Json>, call: &ToolCall, answer: &mut ToolAnswer) -> HookResult {
        (self.0)(call, answer);
        Ok(())
    }

    async fn tool_failed(&self, _: &HookContext<Json>, call: &ToolCall, answer: &mut ToolAnswer) -> HookResult {
        (self.0)(call, answer);
        Ok(())
    }
}

on_every_store! {
    async fn the_start_of_a_session_is_told_once_and_not_when_a_turn_answers(home: Home) {
        let heard = Heard::default();
        let model = script([calls(&[("ask", "a")]), Reply::text("done"), Reply::text("hello")]);
        let agent = listened(&home, &model, [Listener::new(&heard)]);
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        agent.run(answered(&questions, &["a"]), here()).await.unwrap();
        agent.run_text("hi", here()).await.unwrap();
        assert_eq!(heard.take().iter().filter(|what| *what == "session_start").count(), 1);
    }

    async fn hooks_hear_of_a_question_in_order_and_what_it_is(home: Home) {
        struct Asking(Heard);
        #[async_trait]
        impl Hook for Asking {
            async fn on_interrupt(&self, context: &HookContext<Json>, asked: &[Interrupt]) -> HookResult {
                assert_eq!(Interrupt::all_in(&context.session().messages().to_vec()[1]), asked, "the session shows it too");
                self.0.note(format!("{} {}", asked[0].name, asked[0].payload));
                Ok(())
            }
        }
        let heard = Heard::default();
        let model = script([calls(&[("ready", "a"), ("ask", "b")])]);
        let prompt = Prompt::new(model).tools([ready(&Count::default()), ask(&Count::default())]).hook(Listener::new(&heard)).hook(Asking(heard.clone()));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        asked(&agent.run_text("go", here()).await.unwrap());
        assert_eq!(heard.take(), [
            "session_start", "before_generation", "before_tool a", "before_tool b", "after_tool a", "on_interrupt b", "ask \"b?\"", "after_generation b",
        ]);
    }

    async fn hooks_hear_of_answers_in_the_order_of_the_calls(home: Home) {
        let (heard, order) = (Heard::default(), tokio::sync::watch::Sender::new("c"));
        let backwards = Tool::untyped("backwards", "The last is first.", json("{}"), move |_, context| {
            let order = order.clone();
            async move {
                let mine = context.reference().unwrap();
                order.subscribe().wait_for(|next| *next == mine).await?;
                order.send_replace(if mine == "c" { "b" } else { "a" });
                Ok(json("true"))
            }
        });
        let model = script([calls(&[("backwards", "a"), ("backwards", "b"), ("backwards", "c")]), Reply::text("done")]);
        let prompt = Prompt::new(model).tool(backwards).hook(Listener::new(&heard));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        agent.run_text("go", here()).await.unwrap();
        let after: Vec<_> = heard.take().into_iter().filter(|what| what.starts_with("after_tool")).collect();
        assert_eq!(after, ["after_tool a", "after_tool b", "after_tool c"]);
    }

    async fn what_a_hook_makes_of_an_answer_reaches_the_model_and_what_it_takes_away_comes_back(home: Home) {
        let model = script([calls(&[("ready", "a"), ("ready", "b"), ("gone", "c")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tool(ready(&Count::default())).hook(Changing(|call, answer| {
            match (call.name.as_str(), call.reference.as_deref()) {
                ("ready", Some("a")) => answer.output = None,
                ("ready", Some("b")) => answer.output = Some(json(r#""changed""#)),
                _ => (answer.output, answer.is_error) = (Some(json(r#""all is well""#)), false),
            }
        }));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let done = agent.run_text("go", here()).await.unwrap();
        assert_eq!(answers(&done), [r#""a""#, r#""changed""#, r#""all is well""#]);
        let told = model.requests()[1].messages.last().unwrap().clone();
        assert_eq!(Some(&told), done.state.messages().get(2), "what is stored is what the model was told");
        assert!(!told.as_str().contains("\"error\""), "{told}");
    }

    async fn additional_context_stays_behind_all_answers_of_its_round(home: Home) {
        let model = script([calls(&[("ready", "a"), ("ask", "b"), ("ready", "c")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([ready(&Count::default()), ask(&Count::default())]).hook(Changing(|call, answer| {
            answer.additional_context = Some(format!("about {}", call.reference.as_deref().unwrap()));
        }));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let done = agent.run(answered(&questions, &["b"]), here()).await.unwrap();
        let tool = done.state.messages().get(2).unwrap();
        let shown: Vec<_> = tool.parts().iter().map(|part| part.as_tool_response().map_or_else(|| part.as_text().unwrap_or_default(), |answer| answer.reference.unwrap())).collect();
        assert_eq!(shown, ["a", "b", "c", "about a", "about b", "about c"]);
        assert!(!done.state.messages().get(1).unwrap().as_str().contains("about"), "and nothing is left on the requests");
    }

    async fn a_hook_that_aborts_an_answer_is_named_and_the_question_stays(home: Home) {
        let heard = Heard::default();
        let model = script([calls(&[("ask", "a")]), Reply::text("done")]);
        let questions = asked(&listened(&home, &model, []).run_text("go", here()).await.unwrap());
        let before = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        for which in ["before_generation", "after_tool", "on_stop", "after_generation"] {
            let model = script([Reply::text("done")]);
            let strict = listened(&home, &model, [Listener::new(&heard).doing(Wrong::Aborts(which))]);
            let error = strict.run(answered(&questions, &["a"]), here()).await.unwrap().error.unwrap();
            assert_eq!(error.status, "PERMISSION_DENIED");
            assert!(error.message.contains(&format!("hook {which}")) && error.message.contains("not today"), "{}", error.message);
            assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().digest(), before.digest());
        }
        assert_eq!(status(&home).await, SessionStatus::Interrupted);
        assert_eq!(listened(&home, &model, []).run(answered(&questions, &["a"]), here()).await.unwrap().text(), "done");
    }

    async fn a_hook_that_aborts_a_question_leaves_a_session_that_does_not_wait(home: Home) {
        for which in ["on_interrupt", "after_generation"] {
            let model = script([calls(&[("ask", "a")]), Reply::text("hello")]);
            let strict = listened(&home, &model, [Listener::default().doing(Wrong::Aborts(which))]);
            let failed = strict.run_text("go", here()).await.unwrap();
            assert_eq!((failed.finish_reason, failed.error.unwrap().status.as_str()), (Some(FinishReason::Failed), "PERMISSION_DENIED"));
            assert_eq!(status(&home).await, SessionStatus::Idle);
            assert!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().is_empty());
        }
    }

    async fn what_was_said_before_a_hook_wanted_more_is_kept_when_a_question_follows(home: Home) {
        struct More;
        #[async_trait]
        impl Hook for More {
            async fn on_stop(&self, _: &HookContext<Json>, message: &Message) -> HookResult<StopVerdict> {
                Ok(if message.text() == "draft" { StopVerdict::GoOn("now ask".into()) } else { StopVerdict::Done })
            }
        }
        let model = script([Reply::text("draft").usage(Usage::tokens(1, 1)), calls(&[("ask", "a")]).usage(Usage::tokens(2, 2)), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tool(ask(&Count::default())).hook(More);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", here()).await.unwrap();
        assert_eq!((references(&asked(&output)), said(&output)), (vec!["a"], ["go", "draft", "now ask", ""].map(String::from).to_vec()));
        assert_eq!(output.usage, Usage::tokens(3, 3));
        let done = agent.run(answered(&asked(&output), &["a"]), here()).await.unwrap();
        assert_eq!(said(&done), ["go", "draft", "now ask", "", "", "done"]);
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().to_vec(), kept(&done));
    }

    async fn a_question_is_told_when_it_is_asked_and_not_again_while_it_waits(home: Home) {
        let heard = Heard::default();
        let model = script([calls(&[("ask", "a"), ("ask", "b"), ("ask", "c")]), Reply::text("done")]);
        let told = |heard: &Heard| heard.take().into_iter().filter(|what| what.starts_with("on_interrupt")).collect::<Vec<_>>();
        let agent = |mode| {
            let prompt = Prompt::new(model.clone()).tool(ask(&Count::default())).tool_mode(mode).hook(Listener::new(&heard));
            Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap()
        };
        let first = asked(&agent(ToolMode::Sequential).run_text("go", here()).await.unwrap());
        assert_eq!(told(&heard), ["on_interrupt a"]);
        let two = asked(&agent(ToolMode::Parallel).run(answered(&first, &["a"]), here()).await.unwrap());
        assert_eq!((told(&heard), references(&two)), (vec!["on_interrupt b c".to_owned()], vec!["b", "c"]), "those that had not started ask now");
        let half = agent(ToolMode::Parallel).run(answered(&two, &["b"]), here()).await.unwrap();
        assert_eq!((told(&heard), references(&asked(&half))), (vec![], vec!["c"]));
    }

    async fn a_tool_that_is_restarted_and_asks_again_is_told_again(home: Home) {
        let heard = Heard::default();
        let stubborn = Tool::untyped("stubborn", "Asks.", json("{}"), |_, context| async move {
            Err(ToolError::interrupt(&context.resumed().is_some()))
        });
        let model = script([calls(&[("stubborn", "a"), ("ask", "b")])]);
        let prompt = Prompt::new(model.clone()).tools([ask(&Count::default()), stubborn]).hook(Listener::new(&heard));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let first = asked(&agent.run_text("go", here()).await.unwrap());
        heard.take();
        let again = agent.run(answer(Resume::new().restart(&first[0], "so?").unwrap()), here()).await.unwrap();
        assert!(heard.take().contains(&"on_interrupt a".to_owned()));
        assert_eq!(asked(&again)[0].payload, json("true"), "what it asks now");
    }

    async fn an_abort_ends_the_chain_of_hooks_and_a_plain_error_does_not(home: Home) {
        let heard = Heard::default();
        let model = || script([calls(&[("ready", "a")]), Reply::text("done")]);
        let pair = |wrong| [Listener::new(&heard).named("one").doing(wrong), Listener::new(&heard).named("two")];
        let count = |what: &str| heard.take().iter().filter(|heard| heard.contains(what)).count();
        for which in ["session_start", "before_generation", "before_tool", "after_tool", "on_stop", "after_generation"] {
            let init = || everturn::Init::session(sid(which));
            let failed = listened(&home, &model(), pair(Wrong::Aborts(which))).run_text("go", init()).await.unwrap();
            assert_eq!((failed.error.unwrap().status.as_str(), count(which)), ("PERMISSION_DENIED", 1), "{which}");
            let done = listened(&home, &model(), pair(Wrong::Fails(which))).run_text("go", init()).await.unwrap();
            assert_eq!((done.text().as_str(), done.error, count(which)), ("done", None, 2), "{which}");
        }
    }

    async fn what_a_hook_leaves_is_there_for_later_hooks_of_the_turn(home: Home) {
        struct Leaves;
        #[async_trait]
        impl Hook for Leaves {
            async fn session_start(&self, context: &HookContext<Json>) -> HookResult {
                Ok(context.set_value("from", "the start")?)
            }
        }
        struct Finds(Heard);
        #[async_trait]
        impl Hook for Finds {
            async fn before_generation(&self, context: &HookContext<Json>, _: &mut Preparation) -> HookResult {
                self.0.note(format!("{:?}", context.value::<String>("from")?));
                Ok(())
            }
            async fn on_stop(&self, context: &HookContext<Json>, _: &Message) -> HookResult<StopVerdict> {
                self.0.note(format!("{:?}", context.value::<String>("from")?));
                Ok(StopVerdict::Done)
            }
        }
        let heard = Heard::default();
        let model = script([Reply::text("one"), Reply::text("two")]);
        let prompt = Prompt::new(model).hook(Finds(heard.clone())).hook(Leaves);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        agent.run_text("go", here()).await.unwrap();
        assert_eq!(heard.take(), [r#"Some("the start")"#; 2]);
        agent.run_text("go", here()).await.unwrap();
        assert_eq!(heard.take(), ["None"; 2], "another turn starts without");
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().custom(), None, "and nothing is stored");
    }

    async fn when_the_model_fails_what_was_spent_is_told_and_nothing_is_saved(home: Home) {
        let heard = Heard::default();
        let model = script([calls(&[("ready", "a")]).usage(Usage::tokens(10, 1)), Reply::text("hal").usage(Usage::tokens(5, 2)).then_fail(ErrorKind::Unavailable, "gone")]);
        let agent = listened(&home, &model, [Listener::new(&heard)]);
        let (chunks, failed) = streamed(&agent, everturn::Input::text("go"), here()).await;
        assert_eq!((failed.usage, failed.error.as_ref().unwrap().status.as_str()), (Usage::tokens(15, 3), "UNAVAILABLE"));
        assert_eq!((streamed_answers(&chunks), spoken(&chunks)), (vec!["a".to_owned()], "hal".to_owned()), "what was said until then was told");
        assert!(failed.state.messages().is_empty() && home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().is_empty());
        assert_eq!(heard.take(), ["session_start", "before_generation", "before_tool a", "after_tool a"], "nothing stopped, nothing is to be saved");
    }

    async fn reminders_are_for_the_model_only(home: Home) {
        struct Reminds;
        #[async_trait]
        impl Hook for Reminds {
            async fn before_generation(&self, _: &HookContext<Json>, prepared: &mut Preparation) -> HookResult {
                prepared.reminders.push(Message::user("be brief"));
                Ok(())
            }
        }
        let model = script([calls(&[("ready", "a"), ("ask", "b")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([ready(&Count::default()), ask(&Count::default())]).hook(Reminds);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let done = agent.run(answered(&questions, &["b"]), here()).await.unwrap();
        for request in model.requests() {
            let reminded = request.messages.iter().filter(|message| message.text() == "be brief").count();
            assert_eq!((reminded, request.messages.last().unwrap().text().as_str()), (1, "be brief"), "once, behind all else");
        }
        assert!(done.state.messages().iter().all(|message| message.text() != "be brief"));
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(stored.messages().to_vec(), kept(&done));
    }

    async fn what_a_hook_shows_the_model_does_not_get_in_the_way_of_an_answer(home: Home) {
        struct Rewrites;
        #[async_trait]
        impl Hook for Rewrites {
            async fn before_generation(&self, _: &HookContext<Json>, prepared: &mut Preparation) -> HookResult {
                prepared.messages.iter_mut().for_each(|message| *message = Message::user("hidden"));
                prepared.messages.push(Message::user("it is noon"));
                Ok(())
            }
        }
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tool(ask(&Count::default())).hook(Rewrites);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let mut output: Output = agent.run_text("go", here()).await.unwrap();
        for reference in ["b", "a"] {
            output = agent.run(answered(&asked(&output), &[reference]), here()).await.unwrap();
        }
        assert_eq!((output.text().as_str(), said(&output)[0].as_str(), answers(&output).len()), ("done", "go", 2));
        let shown: Vec<_> = model.requests()[1].messages.iter().map(|message| message.role().name()).collect();
        assert_eq!(shown, ["user", "user", "model", "tool"], "the calls and their answers stay side by side");
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(stored.messages().to_vec(), kept(&output));
    }
}

#[test]
fn any_error_of_a_hook_is_one_that_does_not_end_the_turn() {
    let failed: HookError = std::io::Error::other("disk").into();
    assert!(matches!(failed, HookError::Failed(_)));
    assert!(matches!(HookError::Abort(Failure::new("X", "y")), HookError::Abort(_)));
}
