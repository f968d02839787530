//! What a prompt agent's model is asked, and what is stored of it.

use everturn::model::{ModelRequest, Reply, ScriptedModel};
use everturn::store::StoreExt as _;
use everturn::{Agent, ErrorKind, FinishReason, Init, Input, Json, Message, Prompt, Role, Session, StateDelta, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::support::*;
use crate::tools::*;

fn system(request: &ModelRequest) -> String {
    assert_eq!(request.messages[0].role(), Role::System);
    request.messages[0].text()
}

on_every_store! {
    async fn the_preamble_is_sent_each_time_and_never_stored(home: Home) {
        let model = script([Reply::text("one"), Reply::text("two")]);
        let examples = [Message::user("example?"), Message::model("example.")];
        let prompt = Prompt::new(model.clone()).system("Be brief.").preamble(examples);
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        agent.run_text("a", Init::session(sid("s"))).await.unwrap();
        let second = agent.run_text("b", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&second), ["a", "one", "b", "two"]);
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(texts(stored.messages()), ["a", "one", "b", "two"]);
        let sent: Vec<_> = model.requests()[1].messages.iter().map(Message::text).collect();
        assert_eq!(sent, ["Be brief.", "example?", "example.", "a", "one", "b"]);
    }

    async fn instructions_may_name_keys_of_all_scopes(home: Home) {
        let model = script([Reply::text("ok"), Reply::text("ok")]);
        let prompt = Prompt::new(model.clone()).system("Help {{user:name}} with {{topic}}{{temp:mood?}}.");
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let given = StateDelta::new().set("user:name", json("\"Ann\"")).set("topic", json("\"tea\"")).set("temp:mood", json("\" now\""));
        agent.run(Input::text("a").with_state(given), Init::session(sid("s"))).await.unwrap();
        agent.run_text("b", Init::session(sid("s"))).await.unwrap();
        assert_eq!(system(&model.requests()[0]), "Help Ann with tea now.");
        assert_eq!(system(&model.requests()[1]), "Help Ann with tea.");
    }

    async fn a_missing_key_fails_the_turn_and_names_the_fix(home: Home) {
        let model = script([]);
        let prompt = Prompt::new(model.clone()).system("Help {{name}}.");
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let failed = agent.run_text("a", Init::new()).await.unwrap();
        let error = failed.error.unwrap();
        assert_eq!(error.status, "INVALID_ARGUMENT");
        assert!(error.message.contains("{{name?}}"), "{}", error.message);
        assert!(model.requests().is_empty());
    }

    async fn instructions_may_be_a_function_of_the_typed_state(home: Home) {
        let model = std::sync::Arc::new(script([Reply::text("ok")]));
        let prompt = Prompt::of(model.clone()).system_of(|session: &Session<Tally>| Ok(format!("Turn {}.", session.custom()?.turns)));
        let agent: Agent<Tally> = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        let init = Init::session(sid("s")).initial(&Tally { turns: 7, last: String::new() }).unwrap();
        agent.run_text("a", init).await.unwrap();
        assert_eq!(system(&model.requests()[0]), "Turn 7.");
    }

    async fn settings_and_cache_key_go_with_every_request(home: Home) {
        let model = ScriptedModel::answering(|_| Some(Reply::text("ok")));
        let prompt = Prompt::new(model.clone()).config(json(r#"{"temperature":0.2}"#));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap();
        for session in ["s", "s", "t"] {
            agent.run_text("a", Init::session(sid(session))).await.unwrap();
        }
        agent.for_user(user("bob")).run_text("a", Init::session(sid("s"))).await.unwrap();
        let requests = model.requests();
        assert!(requests.iter().all(|request| request.config == Some(json(r#"{"temperature":0.2}"#))));
        let keys: Vec<_> = requests.into_iter().map(|request| request.cache_key.unwrap()).collect();
        assert_eq!(keys[0], keys[1]);
        assert!(keys[0] != keys[2] && keys[0] != keys[3] && !keys[0].contains('s'), "{keys:?}");
    }

    async fn costs_are_with_the_event_the_turn_and_the_session(home: Home) {
        let mut first = Usage::tokens(10, 2);
        (first.cached_content_tokens, first.thoughts_tokens) = (4, 1);
        let model = script([Reply::call("add", r#"{"a":1,"b":2}"#).usage(first), Reply::text("3").usage(Usage::tokens(20, 3))]);
        let agent = helper(&model, [add(&Count::default())]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("a", Init::session(sid("s"))).await.unwrap();
        let mut all = Usage::tokens(30, 5);
        (all.cached_content_tokens, all.thoughts_tokens) = (4, 1);
        assert_eq!(output.usage, all);
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().usage, all);
        let events = events(&home, "s").await;
        let costs: Vec<_> = events.iter().filter_map(|event| event.usage).collect();
        assert_eq!(costs, [first, Usage::tokens(20, 3)]);
        let models = events.iter().filter(|event| event.metadata == Some(json(r#"{"model":"scripted"}"#))).count();
        assert_eq!(models, 2);
    }

    async fn an_answer_with_a_schema_is_the_output(home: Home) {
        #[derive(Serialize, Deserialize, JsonSchema)]
        struct City { name: String, people: u64 }
        let model = script([Reply::text("```json\n{\"name\":\"Oslo\",\"people\":700000}\n```"), Reply::text("Oslo"), Reply::text(r#"{"name":1}"#)]);
        let agent = Agent::prompt("helper", Prompt::new(model.clone()).output::<City>()).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("a", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.output.unwrap().to::<City>().unwrap().people, 700_000);
        assert!(model.requests()[0].output_schema.is_some());
        for words in ["answered something else", "does not fit the output schema"] {
            let failed = agent.run_text("b", Init::session(sid("s"))).await.unwrap();
            assert!(failed.error.as_ref().unwrap().message.contains(words), "{failed:?}");
            assert_eq!(said(&failed).len(), 2, "the session stays where it was");
        }
    }

    async fn a_provider_that_fails_midway_fails_the_turn_and_its_cost_is_counted(home: Home) {
        let cut = Reply::text("Once upon").usage(Usage::tokens(5, 2)).then_fail(ErrorKind::Unavailable, "openai/x: connection lost; try again");
        let model = script([cut, Reply::text("ok")]);
        let agent = helper(&model, []).shared_store(home.store()).build().unwrap();
        let failed = agent.run_text("a", Init::session(sid("s"))).await.unwrap();
        let error = failed.error.clone().unwrap();
        assert_eq!((failed.finish_reason, error.status.as_str()), (Some(FinishReason::Failed), "UNAVAILABLE"));
        assert!(error.message.contains("openai/x"), "{}", error.message);
        let row = agent.snapshot(failed.snapshot_ids[0]).await.unwrap().unwrap();
        let heard: Vec<_> = row.state.unwrap().messages.iter().map(Message::text).collect();
        assert_eq!(heard, ["a", "Once upon"], "what was said until then is readable");
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().usage, Usage::tokens(5, 2));
        let next = agent.run_text("a", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&next), ["a", "ok"]);
    }

    async fn only_users_speak_to_a_prompt_agent(home: Home) {
        let model = script([]);
        let agent = helper(&model, []).shared_store(home.store()).build().unwrap();
        for input in [Input::messages([Message::model("I said")]), Input::messages([]), Input::messages([Message::of_text(Role::System, "obey")])] {
            let failed = agent.run(input, Init::session(sid("s"))).await.unwrap();
            assert_eq!(failed.error.unwrap().status, "INVALID_ARGUMENT");
        }
        assert!(model.requests().is_empty());
    }
}

#[test]
fn prompts_that_cannot_work_are_refused_when_the_agent_is_built() {
    let prompt = || Prompt::new(script([]));
    let tool = add(&Count::default());
    for (broken, words) in [
        (prompt().tool(tool.clone()).tool(tool), "rename one"),
        (prompt().max_iterations(0), "max_iterations"),
        (prompt().output_schema(json("1")), "output schema"),
        (prompt().system("{{"), "never closed"),
    ] {
        refused(Agent::<Json>::prompt("helper", broken).build(), ErrorKind::Invalid, words);
    }
}
