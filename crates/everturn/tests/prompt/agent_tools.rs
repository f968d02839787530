//! Agents as tools of other agents.

use std::sync::Arc;
use std::time::Duration;

use everturn::model::{ModelRequest, Reply, ScriptedModel};
use everturn::store::{ListSnapshots, StoreExt as _, VerifyScope};
use everturn::tool::Tool;
use everturn::{
    Agent, ErrorKind, EventKind, FinishReason, Init, Input, Interrupt, Json, Message, Prompt, Resume, SnapshotEvent,
    TurnKey, Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;

use crate::support::*;
use crate::tools::*;

fn prompt(model: &ScriptedModel) -> Prompt {
    Prompt::new(model.clone())
}

fn ask(tool: &str, request: &str) -> Reply {
    Reply::call(tool, &format!(r#"{{"request":"{request}"}}"#))
}

fn on(home: &Home, prompt: Prompt) -> Agent<Json> {
    Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap()
}

fn texts_of(request: &ModelRequest) -> Vec<String> {
    request.messages.iter().map(Message::text).collect()
}

on_every_store! {
    async fn the_calls_answer_is_what_the_agent_says_last(home: Home) {
        let root = script([Reply::text("Hm."), ask("counter", "1 + 2"), Reply::text("It is three.")]);
        let child = script([Reply::call("add", r#"{"a":1,"b":2}"#), Reply::text("3, I think")]);
        let counter = prompt(&child).system("You count.").tool(add(&Count::default()));
        let agent = on(&home, prompt(&root).agent_tool("counter", "Counts.", counter));
        agent.run_text("hello", Init::session(sid("s"))).await.unwrap();
        let output = agent.run_text("1 + 2?", Init::session(sid("s"))).await.unwrap();
        assert_eq!((output.text().as_str(), output.error.as_ref()), ("It is three.", None));
        assert_eq!(answers(&output), ["3", "\"3, I think\""]);
        assert_eq!(texts_of(&child.requests()[0]), ["You count.", "1 + 2"], "it sees its request and nothing else");
        assert_eq!(texts_of(&root.requests()[2]), ["hello", "Hm.", "1 + 2?", "", ""], "the caller sees the answer and nothing of the work");
        let said: Vec<_> = events(&home, "s").await.into_iter().skip(2).map(|event| (event.author, event.path, event.kind)).collect();
        let event = |author: &str, path: &str, kind| (author.to_owned(), path.to_owned(), kind);
        use EventKind::{Message, ToolCall, ToolResult};
        assert_eq!(said, [
            event("user", "", Message),
            event("helper", "helper", ToolCall),
            event("helper", "helper.counter", Message),
            event("counter", "helper.counter", ToolCall),
            event("counter", "helper.counter", ToolResult),
            event("counter", "helper.counter", Message),
            event("helper", "helper", ToolResult),
            event("helper", "helper", Message),
        ]);
    }

    async fn each_cost_is_counted_once_where_it_was_spent(home: Home) {
        let root = script([ask("counter", "x").usage(Usage::tokens(10, 1)), Reply::text("ok").usage(Usage::tokens(20, 2))]);
        let child = script([Reply::text("y").usage(Usage::tokens(100, 5))]);
        let agent = on(&home, prompt(&root).agent_tool("counter", "", prompt(&child)));
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.usage, Usage::tokens(130, 8));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().usage, Usage::tokens(130, 8));
        let spent: Vec<_> = events(&home, "s").await.into_iter().filter_map(|event| Some((event.path, event.usage?))).collect();
        let at = |path: &str, usage| (path.to_owned(), usage);
        assert_eq!(spent, [at("helper", Usage::tokens(10, 1)), at("helper.counter", Usage::tokens(100, 5)), at("helper", Usage::tokens(20, 2))]);
    }

    async fn calls_side_by_side_see_nothing_of_each_other(home: Home) {
        // Each agent's tool waits for the other's: what they say is interleaved.
        let both = Arc::new(Barrier::new(3));
        let meet = {
            let both = both.clone();
            Tool::untyped("meet", "Meets.", json("{}"), move |_, _| {
                let both = both.clone();
                async move {
                    both.wait().await;
                    Ok(json("\"met\""))
                }
            })
        };
        let answering = |mine: &'static str| {
            ScriptedModel::answering(move |request| match request.messages.len() {
                1 => Some(Reply::call("meet", "{}")),
                _ => Some(Reply::text(format!("{mine} did {}", request.messages[0].text()))),
            })
        };
        let (a, b) = (answering("a"), answering("b"));
        let calls = [("a", Some("1"), r#"{"request":"x"}"#), ("b", Some("2"), r#"{"request":"y"}"#), ("a", Some("3"), r#"{"request":"z"}"#)];
        let root = script([Reply::calls(calls), Reply::text("done"), ask("a", "again"), Reply::text("done too")]);
        let team = || prompt(&root).agent_tool("a", "", prompt(&a).tool(meet.clone())).agent_tool("b", "", prompt(&b).tool(meet.clone()));
        let output = on(&home, team()).run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!((output.error.as_ref(), answers(&output)[3..].to_vec()), (None, vec!["\"a did x\"".to_owned(), "\"b did y\"".to_owned(), "\"a did z\"".to_owned()]));
        for request in a.requests().iter().chain(&b.requests()) {
            assert!(matches!(request.messages.len(), 1 | 3), "{:?}", texts_of(request));
        }
        assert!(home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap().damage.is_none());
        // A later call begins afresh, in another process too.
        let other = Arc::new(Barrier::new(1));
        let alone = Tool::untyped("meet", "Meets.", json("{}"), move |_, _| {
            let other = other.clone();
            async move {
                other.wait().await;
                Ok(json("\"met\""))
            }
        });
        let later = Prompt::new(root.clone()).agent_tool("a", "", prompt(&a).tool(alone)).agent_tool("b", "", prompt(&b));
        let later = Agent::prompt("helper", later).shared_store(home.elsewhere()).build().unwrap();
        assert_eq!(later.run_text("more", Init::session(sid("s"))).await.unwrap().text(), "done too");
        assert_eq!(texts_of(&a.requests()[a.requests().len() - 2]), ["again"]);
        assert_eq!(root.requests()[3].messages.len(), 7, "go, calls, answers, done, more, call, answer");
    }

    async fn a_structured_output_is_the_answer(home: Home) {
        #[derive(Serialize, Deserialize, JsonSchema)]
        struct City { name: String }
        let root = script([ask("geo", "capital"), Reply::text("Oslo.")]);
        let child = script([Reply::text(r#"{"name":"Oslo"}"#)]);
        let agent = on(&home, prompt(&root).agent_tool("geo", "", prompt(&child).output::<City>()));
        assert_eq!(answers(&agent.run_text("go", Init::session(sid("s"))).await.unwrap()), [r#"{"name":"Oslo"}"#]);
        assert!(root.requests()[0].tools[0].output_schema.is_some());
    }

    async fn agents_as_tools_may_have_agents_of_their_own(home: Home) {
        let root = script([ask("chief", "plan"), Reply::text("done")]);
        let chief = script([Reply::call("transfer_to_agent", r#"{"agent":"deputy"}"#)]);
        let deputy = script([ask("clerk", "file it"), Reply::text("filed")]);
        let clerk = script([Reply::text("in the drawer")]);
        let office = prompt(&chief).sub_agent("deputy", "", prompt(&deputy).agent_tool("clerk", "", prompt(&clerk)));
        let output = on(&home, prompt(&root).agent_tool("chief", "", office)).run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!((output.text().as_str(), output.error.as_ref()), ("done", None));
        assert_eq!(answers(&output).last().unwrap(), "\"filed\"");
        assert_eq!(texts_of(&clerk.requests()[0]), ["file it"]);
        assert_eq!(texts_of(&deputy.requests()[0]), ["plan", "For context: chief handed the conversation over to deputy"]);
        let paths: Vec<_> = events(&home, "s").await.into_iter().filter(|event| event.author == "clerk").map(|event| event.path).collect();
        assert_eq!(paths, ["helper.chief.deputy.clerk"]);
        let next = events(&home, "s").await.pop().unwrap();
        assert_eq!(next.author, "helper", "who spoke inside a call does not have the word after it");
    }

    async fn a_tools_last_word_inside_a_call_is_the_calls_answer(home: Home) {
        let show = Tool::untyped("show", "", json("{}"), |_, context| async move {
            context.skip_summarization();
            Ok(json("[1]"))
        });
        let (root, child) = (script([ask("viewer", "x"), Reply::text("ok")]), script([Reply::call("show", "{}")]));
        let output = on(&home, prompt(&root).agent_tool("viewer", "", prompt(&child).tool(show))).run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(answers(&output), ["[1]", "[1]"]);
        assert_eq!(output.text(), "ok");
    }

    async fn nobody_is_asked_inside_a_call_and_the_model_is_told(home: Home) {
        let ran = Count::default();
        let root = script([ask("asker", "x"), Reply::text("ok")]);
        let calls = [("confirm", Some("1"), r#"{"question":"?"}"#), ("add", Some("2"), r#"{"a":1,"b":1}"#)];
        let child = script([Reply::calls(calls), Reply::text("could not")]);
        let asker = prompt(&child).tool(confirm()).tool(add(&ran).requires_approval());
        let output = on(&home, prompt(&root).agent_tool("asker", "", asker)).run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!((output.finish_reason, output.text().as_str(), ran.get()), (Some(FinishReason::Stop), "ok", 0));
        let told = answers(&output);
        assert!(told[..2].iter().all(|told| told.contains("nobody can be asked")), "{told:?}");
    }

    async fn a_question_beside_an_agents_call_is_the_last_message_and_is_answered(home: Home) {
        let calls = [("confirm", Some("q"), r#"{"question":"ok?"}"#), ("counter", Some("c"), r#"{"request":"x"}"#)];
        let root = script([Reply::calls(calls), Reply::text("done")]);
        let child = script([Reply::text("y")]);
        let team = || prompt(&root).tool(confirm()).agent_tool("counter", "", prompt(&child));
        let output = on(&home, team()).run_text("go", Init::session(sid("s"))).await.unwrap();
        let question = Interrupt::all_in(output.message.as_ref().unwrap()).remove(0);
        let refused = on(&home, team()).run_text("hurry", Init::session(sid("s"))).await.unwrap();
        assert!(refused.error.unwrap().message.contains("waits for an answer"));
        let later = Agent::prompt("helper", team()).shared_store(home.elsewhere()).build().unwrap();
        let answer = Input::resume(&Resume::new().respond(&question, &true).unwrap()).unwrap();
        let done = later.run(answer, Init::session(sid("s"))).await.unwrap();
        assert_eq!((done.text().as_str(), answers(&done)), ("done", vec!["true".to_owned(), "\"y\"".to_owned()]));
        assert_eq!(child.requests().len(), 1, "what had answered is not asked again");
        assert!(home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap().damage.is_none());
    }

    async fn what_is_said_inside_a_call_is_not_streamed_and_makes_no_points(home: Home) {
        let root = script([ask("counter", "x"), Reply::text("It is three.")]);
        let child = script([Reply::call("add", r#"{"a":1,"b":2}"#), Reply::text("secret thoughts")]);
        let agent = on(&home, prompt(&root).agent_tool("counter", "", prompt(&child).tool(add(&Count::default()))));
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("go").await.unwrap();
        assert_eq!(spoken(&connection.receive_turn().await), "It is three.");
        connection.output().await.unwrap();
        let snapshots = home.elsewhere().snapshots(ListSnapshots::of(of_helper("s"))).await.unwrap().items;
        let inside = snapshots.iter().filter(|snapshot| snapshot.event == Some(SnapshotEvent::ToolIterationEnd)).count();
        assert_eq!(inside, 1, "between a call and its answer there is nothing to go on from");
    }

    async fn an_agents_failure_inside_a_call_fails_the_turn_and_leaves_nothing(home: Home) {
        let root = script([ask("counter", "x")]);
        let child = script([Reply::text("").usage(Usage::tokens(3, 0)).then_fail(ErrorKind::Unavailable, "connection lost")]);
        let failed = on(&home, prompt(&root).agent_tool("counter", "", prompt(&child))).run_text("go", Init::session(sid("s"))).await.unwrap();
        let error = failed.error.unwrap();
        assert!(error.status == "UNAVAILABLE" && error.message.contains("connection lost"), "{error:?}");
        assert!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().is_empty());
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().usage, Usage::tokens(3, 0), "what it cost is counted");
    }
}

#[tokio::test]
async fn without_a_store_a_question_beside_an_agents_call_is_the_last_message_too() {
    let calls = [("confirm", Some("q"), r#"{"question":"ok?"}"#), ("counter", Some("c"), r#"{"request":"x"}"#)];
    let root = script([Reply::calls(calls), Reply::text("done")]);
    let team = prompt(&root).tool(confirm()).agent_tool("counter", "", prompt(&script([Reply::text("y")])));
    let agent = Agent::prompt("helper", team).build().unwrap();
    let output = agent.run_text("go", Init::new()).await.unwrap();
    let question = Interrupt::all_in(output.message.as_ref().unwrap()).remove(0);
    let answer = Input::resume(&Resume::new().respond(&question, &true).unwrap()).unwrap();
    let done = agent.run(answer, Init::state(output.state.to_session_state())).await.unwrap();
    assert_eq!(done.text(), "done");
}

/// The process dies while an agent works inside a call; whoever takes the turn over goes on inside that call.
#[tokio::test]
async fn an_agents_call_goes_on_where_a_dead_process_left_it() {
    let home = Home::sqlite();
    let (ran, asked) = (Count::default(), Count::default());
    let model = |replies: Vec<Reply>| script(replies);
    let hang = || {
        let asked = asked.clone();
        Tool::untyped("hang", "", json("{}"), move |_, _| {
            let first = asked.up() == 1;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
                Ok(json("\"woke\""))
            }
        })
        .idempotent()
    };
    let init = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
    let team = |root: &ScriptedModel, child: &ScriptedModel| {
        prompt(root).agent_tool("worker", "", prompt(child).tool(add(&ran)).tool(hang()))
    };
    let (root, child) = (
        model(vec![ask("worker", "x")]),
        model(vec![Reply::call("add", r#"{"a":1,"b":2}"#), Reply::call("hang", "{}")]),
    );
    let dying = Agent::prompt("helper", team(&root, &child)).shared_store(home.elsewhere()).build().unwrap();
    let begun = asked.clone();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let running = tokio::spawn(async move { dying.run_text("go", init()).await });
            while begun.get() == 0 {
                tokio::task::yield_now().await;
            }
            running.abort();
        });
        runtime.shutdown_timeout(Duration::ZERO);
    });
    process.join().unwrap();

    let (root, child) = (model(vec![Reply::text("done")]), model(vec![Reply::text("all of it")]));
    let later = Agent::prompt("helper", team(&root, &child)).shared_store(home.elsewhere()).build().unwrap();
    let done = later.run_text("go", init()).await.unwrap();
    assert_eq!((done.text().as_str(), done.error.as_ref(), ran.get(), asked.get()), ("done", None, 1, 2));
    assert_eq!(answers(&done), ["3", "\"woke\"", "\"all of it\""]);
    assert_eq!(texts_of(&child.requests()[0]), ["x", "", "", "", ""], "the request, two calls, two answers");
}
