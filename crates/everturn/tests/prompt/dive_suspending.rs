//! Turns that end with a question, as Dive's users know them.

use everturn::model::{Reply, ToolMode};
use everturn::store::{ListSessions, StoreExt as _};
use everturn::{Agent, AppName, FinishReason, Init, Interrupt, Prompt, Resume, Role, SessionStatus};

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

on_every_store! {
    async fn a_question_ends_the_turn_and_is_kept_with_the_call_that_asks(home: Home) {
        let model = script([calls(&[("ask", "a")])]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", here()).await.unwrap();
        let questions = asked(&output);
        assert_eq!((references(&questions), &questions[0].payload), (vec!["a"], &json("\"a?\"")));
        assert_eq!((model.requests().len(), roles(&output)), (1, vec!["user", "model"]));
        let store = home.elsewhere();
        assert_eq!(store.existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
        let stored = store.head_state(&of_helper("s")).await.unwrap();
        assert_eq!(stored.messages().to_vec(), kept(&output));
        assert_eq!(Interrupt::all_in(stored.messages().last().unwrap()), questions);
    }

    async fn sessions_that_wait_are_told_from_those_that_do_not(home: Home) {
        let model = script([calls(&[("ask", "a")]), Reply::text("hello")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        asked(&agent.run_text("go", Init::session(sid("waits"))).await.unwrap());
        agent.run_text("hi", Init::session(sid("does not"))).await.unwrap();
        let list = async |status| {
            let mut query = ListSessions::of(AppName::new("helper").unwrap(), user("user"));
            query.status = status;
            let items = home.elsewhere().list(query).await.unwrap().items;
            items.into_iter().map(|found| (found.id.to_string(), found.status)).collect::<Vec<_>>()
        };
        let (waits, idle) = (("waits".to_owned(), SessionStatus::Interrupted), ("does not".to_owned(), SessionStatus::Idle));
        assert_eq!(list(None).await, [idle.clone(), waits.clone()]);
        assert_eq!(list(Some(SessionStatus::Interrupted)).await, [waits]);
        assert_eq!(list(Some(SessionStatus::Idle)).await, [idle]);
    }

    async fn what_is_asked_survives_storage_and_answers_in_part(home: Home) {
        let pay = everturn::tool::Tool::new("pay", "Pays.", |_: Sum, _| async move {
            Err::<bool, _>(everturn::tool::ToolError::interrupt(&json(r#"{"reason":"auth","limits":[1,2.50]}"#)))
        });
        let model = script([Reply::calls([("ask", Some("a"), "{}"), ("pay", Some("p"), r#"{"a":3,"b":4}"#)])]);
        let agent = helper(&model, [ask(&Count::default()), pay]).shared_store(home.store()).build().unwrap();
        let first = asked(&agent.run_text("go", here()).await.unwrap());
        let half = agent.run(answered(&first, &["a"]), here()).await.unwrap();
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        let left = Interrupt::all_in(stored.messages().last().unwrap());
        assert_eq!((&left, left.len()), (&asked(&half), 1));
        assert_eq!(left[0].payload.as_str(), r#"{"reason":"auth","limits":[1,2.50]}"#, "to the letter");
        assert_eq!(left[0].input_as::<Sum>().unwrap().b, 4);
        assert!(left[0].input_as::<Question>().is_err());
    }

    async fn of_parallel_calls_those_that_answered_are_kept_and_only_the_others_wait(home: Home) {
        let (ran, asks) = (Count::default(), Count::default());
        let model = script([calls(&[("ready", "a"), ("ask", "b"), ("ready", "c"), ("ask", "d")]), Reply::text("done")]);
        let agent = helper(&model, [ready(&ran), ask(&asks)]).shared_store(home.store()).build().unwrap();
        let (chunks, output) = streamed(&agent, everturn::Input::text("go"), here()).await;
        assert_eq!((references(&asked(&output)), streamed_answers(&chunks)), (vec!["b", "d"], vec!["a".to_owned(), "c".to_owned()]));
        let pending = |output: &everturn::Output| {
            let parts = output.message.as_ref().unwrap().parts();
            parts.iter().filter_map(|part| part.metadata("pendingOutput")).map(|output| output.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(pending(&output), [r#""a""#, r#""c""#]);
        let half = agent.run(answered(&asked(&output), &["d"]), here()).await.unwrap();
        assert_eq!(pending(&half), [r#""a""#, r#""c""#, r#""d!""#], "what was answered stays answered");
        let done = agent.run(answered(&asked(&half), &["b"]), here()).await.unwrap();
        assert_eq!(answers(&done), [r#""a""#, r#""b!""#, r#""c""#, r#""d!""#]);
        assert_eq!((ran.get(), asks.get()), (2, 2), "nothing ran twice");
    }

    async fn in_sequence_what_is_behind_a_question_has_not_started(home: Home) {
        let (ran, asks, heard) = (Count::default(), Count::default(), Heard::default());
        let model = script([calls(&[("ready", "a"), ("ask", "b"), ("ready", "c"), ("gone", "d"), ("ask", "e")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tools([ready(&ran), ask(&asks).requires_approval()]).tool_mode(ToolMode::Sequential).hook(Listener::new(&heard));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let first = asked(&agent.run_text("go", here()).await.unwrap());
        assert_eq!((references(&first), ran.get()), (vec!["b"], 1));
        let tools = |heard: &Heard| heard.take().into_iter().filter(|what| what.contains("tool")).collect::<Vec<_>>();
        assert_eq!(tools(&heard), ["before_tool a", "after_tool a"]);
        let denied = agent.run(answer(Resume::new().deny(&first[0], "no").unwrap()), here()).await.unwrap();
        assert_eq!((references(&asked(&denied)), ran.get()), (vec!["e"], 2));
        assert_eq!(tools(&heard), ["before_tool c", "tool_failed b", "after_tool c", "tool_failed d"]);
    }

    async fn the_last_that_is_streamed_before_the_end_is_what_is_asked(home: Home) {
        let model = script([calls(&[("ready", "a"), ("ask", "b")])]);
        let agent = helper(&model, [ready(&Count::default()), ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let (chunks, output) = streamed(&agent, everturn::Input::text("go"), here()).await;
        let [.., last, end] = &chunks[..] else { panic!("{chunks:?}") };
        assert_eq!(end.turn_end.unwrap().finish_reason, FinishReason::Interrupted);
        let last = last.model_chunk.as_ref().unwrap();
        assert_eq!((last.role, last.content.len()), (Role::Tool, 1));
        assert_eq!(last.content[0].metadata("interrupt"), Some(json("\"b?\"")));
        assert_eq!(last.content[0].as_tool_request().unwrap().reference, asked(&output)[0].reference);
    }

    async fn without_a_question_a_turn_simply_completes(home: Home) {
        let model = script([calls(&[("ready", "a")]), Reply::text("done")]);
        let agent = helper(&model, [ready(&Count::default()), ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", here()).await.unwrap();
        assert_eq!((output.finish_reason, output.text().as_str()), (Some(FinishReason::Stop), "done"));
        assert!(output.state.messages().iter().all(|message| Interrupt::all_in(message).is_empty()));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Idle);
    }
}
