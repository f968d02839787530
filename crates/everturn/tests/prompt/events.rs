//! What events say: whose they are, what they changed, what they cost, and what they ask for.

use everturn::model::{Model, ModelRequest, ModelStream, Reply, ScriptedModel};
use everturn::store::StoreExt as _;
use everturn::tool::Tool;
use everturn::{
    Agent, ErrorKind, Event, EventKind, FinishReason, Hook, HookContext, HookResult, Init, Input, Interrupt, Json,
    Message, Part, Preparation, Prompt, Resume, Role, StateDelta, ToolCall, ToolVerdict, Usage,
};

use crate::support::*;
use crate::tools::*;

/// A scripted model under a name of its own.
#[derive(Debug)]
struct Named(&'static str, ScriptedModel);

impl Model for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        self.1.stream(request)
    }
}

/// Starts something that goes on after the turn.
fn export() -> Tool {
    Tool::untyped("export", "Exports.", json("{}"), |_, _| async { Ok(json(r#"{"ticket":7}"#)) }).long_running()
}

/// Sets a key.
fn set(name: &'static str, key: &'static str) -> Tool {
    Tool::untyped(name, "Sets.", json("{}"), move |input: Json, context| async move {
        context.session::<Json>().unwrap().state().await?.set(key, &input)?;
        Ok(json("true"))
    })
}

/// Sets a key wherever it is called.
struct Sets;

#[async_trait::async_trait]
impl Hook for Sets {
    async fn session_start(&self, context: &HookContext<Json>) -> HookResult {
        Ok(context.session().state().await?.set("started", &true)?)
    }

    async fn before_generation(&self, context: &HookContext<Json>, _: &mut Preparation) -> HookResult {
        Ok(context.session().state().await?.set("user:asked", &true)?)
    }

    async fn before_tool(&self, context: &HookContext<Json>, _: &mut ToolCall) -> HookResult<ToolVerdict> {
        context.session().state().await?.set("called", &true)?;
        Ok(ToolVerdict::Run)
    }

    async fn after_generation(&self, context: &HookContext<Json>, _: &everturn::model::Generated) -> HookResult {
        let state = context.session().state().await?;
        state.set("temp:passing", &true)?;
        Ok(state.set("ended", &true)?)
    }
}

fn changed(events: &[Event]) -> Vec<(EventKind, Vec<&str>)> {
    let keys = |event: &Event| event.state_delta.len();
    let made = events.iter().filter(|event| keys(event) > 0);
    made.map(|event| (event.kind, event.state_delta.keys().map(String::as_str).collect())).collect()
}

#[test]
fn an_event_is_final_unless_somebody_is_yet_to_answer_it() {
    let part = |part: Part| Event::new("a").with_messages([Message::new(Role::Model, &[part])]);
    let request = part(Part::tool_request("t", Some("r"), &json("{}")));
    let response = part(Part::tool_response("t", Some("r"), &json("1")));
    assert!(part(Part::text("done")).is_final_response());
    assert!(!request.is_final_response() && !response.is_final_response());
    let mut partial = part(Part::text("do"));
    partial.partial = true;
    assert!(!partial.is_final_response());
    let (mut shown, mut running) = (response, request);
    shown.actions.skip_summarization = true;
    running.long_running_tool_ids = vec!["r".to_owned()];
    assert!(shown.is_final_response() && running.is_final_response());
}

on_every_store! {
    async fn a_long_running_call_is_named_where_it_is_asked_for_and_where_it_answers(home: Home) {
        let calls = [("export", Some("r1"), "{}"), ("add", Some("r2"), r#"{"a":1,"b":1}"#)];
        let model = script([Reply::calls(calls), Reply::text("started")]);
        let agent = helper(&model, [export(), add(&Count::default())]).shared_store(home.store()).build().unwrap();
        assert_eq!(agent.run_text("go", Init::session(sid("s"))).await.unwrap().text(), "started");
        let events = events(&home, "s").await;
        let named: Vec<_> = events.iter().map(|event| (event.kind, event.long_running_tool_ids.join(","), event.is_final_response())).collect();
        assert_eq!(named[1..], [
            (EventKind::ToolCall, "r1".to_owned(), true),
            (EventKind::ToolResult, "r1".to_owned(), true),
            (EventKind::Message, String::new(), true),
        ]);
    }

    async fn a_later_turn_brings_what_a_long_running_call_came_to(home: Home) {
        let model = script([Reply::calls([("export", Some("r1"), "{}")]), Reply::text("started"), Reply::text("it is there"), Reply::text("sure")]);
        let agent = || helper(&model, [export()]).shared_store(home.elsewhere()).build().unwrap();
        agent().run_text("go", Init::session(sid("s"))).await.unwrap();
        let resume = Resume::new().result("export", "r1", &json(r#"{"rows":3}"#)).unwrap();
        let output = agent().run(Input::resume(&resume).unwrap(), Init::session(sid("s"))).await.unwrap();
        assert_eq!((output.text().as_str(), output.error.as_ref()), ("it is there", None));
        assert_eq!(answers(&output), [r#"{"ticket":7}"#, r#"{"rows":3}"#]);
        // A provider would refuse a second answer to one call, so it is told in words.
        let asked = model.requests().pop().unwrap();
        let last = asked.messages.last().unwrap();
        assert_eq!((last.role(), last.text().as_str()), (Role::User, "For context: the tool export answered helper: {\"rows\":3}"));
        let events = events(&home, "s").await;
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::ToolResult).count(), 2);
        assert_eq!(agent().run_text("really?", Init::session(sid("s"))).await.unwrap().text(), "sure");
    }

    async fn only_long_running_calls_are_answered_twice(home: Home) {
        let model = script([Reply::calls([("add", Some("r1"), r#"{"a":1,"b":1}"#)]), Reply::text("2")]);
        let agent = helper(&model, [add(&Count::default()), export()]).shared_store(home.store()).build().unwrap();
        agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        let answer = |name: &str, reference: Option<&str>| {
            let mut resume = Resume::new();
            resume.respond = vec![Part::tool_response(name, reference, &json("5"))];
            Input::resume(&resume).unwrap()
        };
        for (input, words) in [(answer("add", Some("r1")), "already answered"), (answer("export", Some("r1")), "waits for no answer"), (answer("export", None), "waits for no answer")] {
            let failed = agent.run(input, Init::session(sid("s"))).await.unwrap();
            assert!(failed.error.as_ref().unwrap().message.contains(words), "{failed:?}");
        }
    }

    async fn a_gate_is_a_requested_confirmation_until_it_is_answered(home: Home) {
        let calls = [("add", Some("r1"), r#"{"a":1,"b":2}"#), ("confirm", Some("r2"), r#"{"question":"?"}"#)];
        let model = script([Reply::calls(calls), Reply::text("3")]);
        let agent = helper(&model, [add(&Count::default()).requires_approval(), confirm()]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        let asked = Interrupt::all_in(output.message.as_ref().unwrap());
        let requested = |events: &[Event]| -> Vec<_> {
            let asking = events.iter().filter(|event| !event.actions.requested_tool_confirmations.is_empty());
            asking.map(|event| (event.author.clone(), event.kind, event.actions.requested_tool_confirmations.clone())).collect()
        };
        let gate = vec![("helper".to_owned(), EventKind::ToolCall, [("r1".to_owned(), json(r#"{"confirmed":false}"#))].into())];
        assert_eq!(requested(&events(&home, "s").await), gate, "a question that is no gate is none");
        let half = Input::resume(&Resume::new().respond(&asked[1], &true).unwrap()).unwrap();
        agent.run(half, Init::session(sid("s"))).await.unwrap();
        let done = Input::resume(&Resume::new().approve(&asked[0]).unwrap()).unwrap();
        assert_eq!(agent.run(done, Init::session(sid("s"))).await.unwrap().text(), "3");
        assert_eq!(requested(&events(&home, "s").await), gate, "it is requested once");
    }

    async fn a_tool_asks_for_confirmation_of_this_very_call(home: Home) {
        let ran = Count::default();
        let paying = ran.clone();
        let pay = Tool::untyped("pay", "Pays.", json("{}"), move |input: Json, context| {
            let ran = paying.clone();
            async move {
                if !context.confirmed() {
                    return Err(context.request_confirmation("Is the sum right?", Some(input)));
                }
                ran.up();
                Ok(json("\"paid\""))
            }
        });
        let call = || Reply::calls([("pay", Some("r"), r#"{"euros":5}"#)]);
        let model = script([call(), Reply::text("done"), call(), Reply::text("not done")]);
        let agent = || helper(&model, [pay.clone()]).shared_store(home.elsewhere()).build().unwrap();
        let init = || Init::session(sid("s"));
        let asked = |output: everturn::Output| Interrupt::all_in(output.message.as_ref().unwrap()).remove(0);
        let question = asked(agent().run_text("go", init()).await.unwrap());
        assert!(question.needs_approval());
        let event = events(&home, "s").await.into_iter().find(|event| !event.actions.is_empty()).unwrap();
        let told = json(r#"{"confirmed":false,"hint":"Is the sum right?","payload":{"euros":5}}"#);
        assert_eq!(event.actions.requested_tool_confirmations["r"], told);
        let forged = agent().run(Input::resume(&Resume::new().respond(&question, "paid").unwrap()).unwrap(), init()).await.unwrap();
        assert!(forged.error.unwrap().message.contains("waits for approval"));
        let done = agent().run(Input::resume(&Resume::new().approve(&question).unwrap()).unwrap(), init()).await.unwrap();
        assert_eq!((done.text().as_str(), ran.get()), ("done", 1));
        let question = asked(agent().run_text("again", init()).await.unwrap());
        let denied = agent().run(Input::resume(&Resume::new().deny(&question, "too much").unwrap()).unwrap(), init()).await.unwrap();
        assert_eq!((denied.text().as_str(), ran.get()), ("not done", 1));
        assert!(answers(&denied)[1].contains("too much"));
    }

    async fn what_hooks_change_goes_with_the_next_event_of_their_agent(home: Home) {
        let model = script([Reply::calls([("add", Some("r"), r#"{"a":1,"b":1}"#)]), Reply::text("2")]);
        let prompt = Prompt::new(model).tool(add(&Count::default())).hook(Sets);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.error, None);
        let events = events(&home, "s").await;
        use EventKind::{State, ToolCall, ToolResult};
        assert_eq!(changed(&events), [(State, vec!["started"]), (ToolCall, vec!["user:asked"]), (ToolResult, vec!["called"]), (State, vec!["ended"])]);
        assert!(events.iter().skip(1).all(|event| event.author == "helper" && event.path == "helper"));
        let state = home.elsewhere().scoped_state(&of_helper("s")).await.unwrap();
        let keys: Vec<_> = state.keys().map(String::as_str).collect();
        assert_eq!(keys, ["called", "ended", "started", "user:asked"]);
    }

    async fn what_one_agent_sets_the_next_sees_and_its_event_says_so(home: Home) {
        let root = script([
            Reply::calls([("set_name", Some("1"), "\"Ann\""), ("set_mood", Some("2"), "\"glad\"")]),
            Reply::call("transfer_to_agent", r#"{"agent":"greeter"}"#),
        ]);
        let greeter = script([Reply::call("set_seen", "true"), Reply::text("hi"), Reply::text("hi again")]);
        let instructed = Prompt::new(greeter.clone()).system("Greet {{name}}, {{temp:mood?}}.").tool(set("set_seen", "user:seen"));
        let prompt = Prompt::new(root).tools([set("set_name", "name"), set("set_mood", "temp:mood")]).sub_agent("greeter", "", instructed);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(greeter.requests()[0].messages[0].text(), "Greet Ann, glad.");
        agent.run_text("again", Init::session(sid("s"))).await.unwrap();
        assert_eq!(greeter.requests()[2].messages[0].text(), "Greet Ann, .", "temporary keys are gone with their invocation");
        let events = events(&home, "s").await;
        let made: Vec<_> = events.iter().filter(|event| !event.state_delta.is_empty()).map(|event| (event.author.as_str(), event.path.as_str(), event.state_delta.keys().next().unwrap().as_str())).collect();
        assert_eq!(made, [("helper", "helper", "name"), ("greeter", "helper.greeter", "user:seen")]);
    }

    async fn a_change_inside_an_agents_call_is_that_agents(home: Home) {
        let root = script([Reply::call("worker", r#"{"request":"x"}"#), Reply::text("ok")]);
        let worker = Prompt::new(script([Reply::call("set_note", "1"), Reply::text("y")])).tool(set("set_note", "note")).hook(Sets);
        let agent = Agent::prompt("helper", Prompt::new(root).agent_tool("worker", "", worker)).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.state.custom_json(), Some(&json(r#"{"called":true,"note":1,"ended":true}"#)));
        let events = events(&home, "s").await;
        let by: Vec<_> = events.iter().filter(|event| !event.state_delta.is_empty()).map(|event| event.path.as_str()).collect();
        assert_eq!(by, ["helper.worker"; 4], "none of it is on the caller's event");
    }

    async fn costs_are_told_by_model_for_the_invocation_and_the_session(home: Home) {
        let mut thought = Usage::tokens(100, 50);
        (thought.cached_content_tokens, thought.thoughts_tokens) = (60, 30);
        let small = script([Reply::call("transfer_to_agent", r#"{"agent":"deep"}"#).usage(Usage::tokens(10, 1))]);
        let big = script([Reply::text("42").usage(thought), Reply::text("4").usage(Usage::tokens(7, 1)).then_fail(ErrorKind::Unavailable, "lost")]);
        let prompt = Prompt::new(Named("small", small)).sub_agent("deep", "", Prompt::new(Named("big", big)));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let first = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(first.usage_by_model, [("big".to_owned(), thought), ("small".to_owned(), Usage::tokens(10, 1))].into());
        let failed = agent.run_text("more", Init::session(sid("s"))).await.unwrap();
        assert_eq!((failed.finish_reason, failed.usage_by_model["big"]), (Some(FinishReason::Failed), Usage::tokens(7, 1)));
        let mut all = thought;
        all.add(&Usage::tokens(7, 1));
        let spent = home.elsewhere().usage_by_model(&of_helper("s")).await.unwrap();
        assert_eq!(spent, [("big".to_owned(), all), ("small".to_owned(), Usage::tokens(10, 1))].into());
        all.add(&Usage::tokens(10, 1));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().usage, all, "the session's sum is the models' sum");
    }

    async fn a_piece_of_a_stream_is_no_event(home: Home) {
        let add_pieces = Tool::untyped("pieces", "", json("{}"), |_, context| async move {
            let mut piece = Event::model("helper", Message::model("half"));
            piece.partial = true;
            context.session::<Json>().unwrap().add_event(piece)?;
            Ok(json("1"))
        });
        let model = script([Reply::call("pieces", "{}"), Reply::text("whole").in_pieces(3)]);
        let agent = helper(&model, [add_pieces]).shared_store(home.store()).build().unwrap();
        let output = agent.run(Input::text("go").with_state(StateDelta::new()), Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&output), ["go", "", "", "whole"]);
        assert!(events(&home, "s").await.iter().all(|event| !event.partial));
    }
}
