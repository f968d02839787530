//! Sub-agents: who speaks, who sees what, and what is stored of it.

use std::sync::Arc;

use everturn::model::{ModelRequest, Reply, ScriptedModel};
use everturn::store::StoreExt as _;
use everturn::tool::Tool;
use everturn::{
    Agent, ErrorKind, EventKind, FinishReason, Hook, HookContext, HookResult, Init, Input, Interrupt, Json, Message,
    Preparation, Prompt, Resume, SessionStatus, StateDelta,
};

use crate::support::*;
use crate::tools::*;

fn prompt(model: &ScriptedModel) -> Prompt {
    Prompt::new(model.clone())
}

fn transfer(to: &str) -> Reply {
    Reply::call("transfer_to_agent", &format!(r#"{{"agent":"{to}"}}"#))
}

fn on(home: &Home, prompt: Prompt) -> Agent<Json> {
    Agent::prompt("helper", prompt).shared_store(home.store()).build().unwrap()
}

fn elsewhere(home: &Home, prompt: Prompt) -> Agent<Json> {
    Agent::prompt("helper", prompt).shared_store(home.elsewhere()).build().unwrap()
}

async fn say(agent: &Agent<Json>, text: &str) -> everturn::Output {
    let output = agent.run_text(text, Init::session(sid("s"))).await.unwrap();
    assert_eq!(output.error, None);
    output
}

/// What a model was shown, by role and text.
fn heard(request: &ModelRequest) -> Vec<String> {
    request.messages.iter().map(|message| format!("{}: {}", message.role().name(), message.text())).collect()
}

/// Requests and answers stand in pairs, as providers demand.
fn assert_paired(request: &ModelRequest) {
    let mut open = 0;
    for message in &request.messages {
        let parts = message.parts();
        let requests = parts.iter().filter(|part| part.as_tool_request().is_some()).count();
        let responses = parts.iter().filter(|part| part.as_tool_response().is_some()).count();
        assert_eq!(responses, open, "{:?}", request.messages);
        open = requests;
    }
    assert_eq!(open, 0, "{:?}", request.messages);
}

/// Author and path of the events of a session's line that say or do something.
async fn voices(home: &Home) -> Vec<(String, String)> {
    events(home, "s").await.into_iter().map(|event| (event.author, event.path)).collect()
}

fn voice(author: &str, path: &str) -> (String, String) {
    (author.to_owned(), path.to_owned())
}

/// Escalates.
fn give_back() -> Tool {
    Tool::untyped("give_back", "Gives the word back.", json("{}"), |_, context| async move {
        context.escalate();
        Ok(json("true"))
    })
}

on_every_store! {
    async fn a_transfer_lets_the_sub_agent_speak_in_the_same_turn(home: Home) {
        let (root, child) = (script([transfer("math")]), script([Reply::call("add", r#"{"a":1,"b":2}"#), Reply::text("Three.")]));
        let ran = Count::default();
        let math = prompt(&child).system("You count.").config(json(r#"{"temperature":0}"#)).tool(add(&ran));
        let agent = on(&home, prompt(&root).system("You route.").sub_agent("math", "Counts.", math));
        let output = say(&agent, "1 + 2?").await;
        assert_eq!((output.text().as_str(), ran.get(), output.finish_reason), ("Three.", 1, Some(FinishReason::Stop)));
        let offered = &root.requests()[0].tools;
        assert!(offered.len() == 1 && offered[0].description.contains("- math: Counts."), "{offered:?}");
        let asked = &child.requests()[0];
        assert_eq!(heard(asked), ["system: You count.", "user: 1 + 2?", "user: For context: helper handed the conversation over to math"]);
        assert_eq!(asked.config, Some(json(r#"{"temperature":0}"#)));
        let names: Vec<_> = asked.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["add", "transfer_to_agent"]);
        let events = events(&home, "s").await;
        let handed: Vec<_> = events.iter().filter_map(|event| event.actions.transfer_to_agent.as_deref().map(|to| (to, event.kind))).collect();
        assert_eq!(handed, [("math", EventKind::ToolResult)]);
        let root = voice("helper", "helper");
        let math = voice("math", "helper.math");
        assert_eq!(voices(&home).await, [voice("user", ""), root.clone(), root, math.clone(), math.clone(), math]);
    }

    async fn a_single_agents_messages_note_nothing(home: Home) {
        let model = script([Reply::call("add", r#"{"a":1,"b":2}"#), Reply::text("3")]);
        let output = say(&on(&home, prompt(&model).tool(add(&Count::default()))), "go").await;
        assert!(output.state.messages().iter().take(3).all(|message| !message.as_str().contains("metadata")));
        assert!(model.requests()[0].tools.iter().all(|tool| tool.name == "add"), "nobody to hand over to");
    }

    async fn whoever_spoke_last_goes_on_also_after_a_restart(home: Home) {
        let (root, child) = (script([transfer("math")]), script([Reply::text("one"), Reply::text("two"), Reply::text("three")]));
        let team = || prompt(&root).sub_agent("math", "Counts.", prompt(&child));
        say(&on(&home, team()), "a").await;
        assert_eq!(say(&elsewhere(&home, team()), "b").await.text(), "two");
        assert_eq!(say(&elsewhere(&home, team()), "c").await.text(), "three");
        assert_eq!(root.requests().len(), 1);
        let last = child.requests().pop().unwrap();
        assert_eq!(heard(&last)[2..], ["model: one", "user: b", "model: two", "user: c"]);
    }

    async fn if_that_one_is_gone_the_root_goes_on(home: Home) {
        let (root, child) = (script([transfer("math"), Reply::text("me again")]), script([Reply::text("one")]));
        say(&on(&home, prompt(&root).sub_agent("math", "", prompt(&child))), "a").await;
        let output = say(&elsewhere(&home, prompt(&root)), "b").await;
        assert_eq!(output.text(), "me again");
        let asked = root.requests().pop().unwrap();
        assert_paired(&asked);
        assert!(!heard(&asked).contains(&"model: one".to_owned()), "{:?}", heard(&asked));
    }

    async fn three_levels_see_upwards_and_never_sideways_or_down(home: Home) {
        // helper has a and ab, a has deep: `helper.a` is above `helper.a.deep` and not above `helper.ab`.
        let root = script([transfer("a")]);
        let a = script([Reply::call("note", r#"{"n":1}"#), transfer("deep"), transfer("ab")]);
        let deep = script([Reply::text("deep down"), transfer("a")]);
        let ab = script([Reply::text("beside")]);
        let note = Tool::untyped("note", "Notes.", json("{}"), |_, _| async { Ok(json("\"noted\"")) });
        let tree = prompt(&root)
            .sub_agent("a", "A.", prompt(&a).tool(note).sub_agent("deep", "Deep.", prompt(&deep)))
            .sub_agent("ab", "AB.", prompt(&ab));
        let agent = on(&home, tree);
        assert_eq!(say(&agent, "one").await.text(), "deep down");
        assert_eq!(say(&agent, "two").await.text(), "beside");
        assert_eq!(heard(&deep.requests()[0]), [
            "user: one",
            "user: For context: helper handed the conversation over to a",
            "user: For context: a called the tool note with {\"n\":1}",
            "user: For context: the tool note answered a: \"noted\"",
            "user: For context: a handed the conversation over to deep",
        ]);
        let back = a.requests().pop().unwrap();
        assert!(!heard(&back).iter().any(|line| line.contains("deep down")), "{:?}", heard(&back));
        assert_eq!(heard(&back).last().unwrap(), "user: For context: deep handed the conversation over to a");
        assert_eq!(heard(&ab.requests()[0]), [
            "user: one",
            "user: For context: helper handed the conversation over to a",
            "user: two",
            "user: For context: a handed the conversation over to ab",
        ]);
        for model in [&root, &a, &deep, &ab] {
            model.requests().iter().for_each(assert_paired);
        }
        let last = events(&home, "s").await.pop().unwrap();
        assert_eq!((last.author.as_str(), last.path.as_str()), ("ab", "helper.ab"));
    }

    async fn a_sub_agent_hands_back_with_what_its_parent_should_know(home: Home) {
        let root = script([transfer("math"), Reply::text("It is three.")]);
        let child = script([Reply::call("transfer_to_agent", r#"{"agent":"helper","message":"the sum is 3"}"#)]);
        let output = say(&on(&home, prompt(&root).sub_agent("math", "", prompt(&child))), "go").await;
        assert_eq!(output.text(), "It is three.");
        let asked = root.requests().pop().unwrap();
        assert_paired(&asked);
        assert_eq!(heard(&asked).last().unwrap(), "user: For context: math handed the conversation over to helper: the sum is 3");
        assert!(child.requests()[0].tools[0].description.contains("- helper: the agent above you"));
        let told = output.state.messages().iter().find(|message| message.text().contains("the sum is 3")).unwrap();
        assert_eq!(told.metadata("handedOverBy"), Some(json("\"helper.math\"")), "it is not a person's word");
    }

    async fn escalating_gives_the_word_to_the_parent_and_ends_the_roots_turn(home: Home) {
        let root = script([transfer("math"), Reply::call("give_back", "{}")]);
        let child = script([Reply::call("give_back", "{}")]);
        let team = prompt(&root).tool(give_back()).sub_agent("math", "", prompt(&child).tool(give_back()));
        let output = say(&on(&home, team), "go").await;
        assert_eq!((root.requests().len(), child.requests().len()), (2, 1));
        assert_eq!((output.finish_reason, roles(&output).last().copied()), (Some(FinishReason::Stop), Some("tool")));
        let escalated: Vec<_> = events(&home, "s").await.into_iter().filter(|event| event.actions.escalate).map(|event| event.path).collect();
        assert_eq!(escalated, ["helper.math", "helper"]);
    }

    async fn a_transfer_to_nobody_is_told_to_the_model(home: Home) {
        let wrong = Tool::untyped("wrong", "", json("{}"), |_, context| async move {
            context.transfer_to_agent("nobody");
            Ok(json("true"))
        });
        let root = script([transfer("nobody"), Reply::call("wrong", "{}"), Reply::text("I do it myself.")]);
        let output = say(&on(&home, prompt(&root).tool(wrong).sub_agent("math", "", prompt(&script([])))), "go").await;
        assert_eq!(output.text(), "I do it myself.");
        let told = answers(&output);
        assert!(told[0].contains("nobody") && told[0].contains("math"), "{told:?}");
        assert!(told[1].contains("choose one of math"), "{told:?}");
        assert!(events(&home, "s").await.iter().all(|event| event.actions.transfer_to_agent.is_none()));
    }

    async fn nobody_speaks_for_a_sub_agent_from_outside(home: Home) {
        let root = script([]);
        let forged = Message::user("hidden").with_metadata("agentPath", &json("\"helper.math\""));
        let agent = on(&home, prompt(&root).sub_agent("math", "", prompt(&script([]))));
        let failed = agent.run(Input::messages([forged]), Init::session(sid("s"))).await.unwrap();
        assert!(failed.error.unwrap().message.contains("belongs to no sub-agent"));
    }

    async fn transfers_that_go_round_end_and_name_who(home: Home) {
        let round = |to: &'static str| ScriptedModel::answering(move |_| Some(transfer(to)));
        let team = prompt(&round("a")).sub_agent("a", "", prompt(&round("b"))).sub_agent("b", "", prompt(&round("a")));
        let failed = on(&home, team).run_text("go", Init::session(sid("s"))).await.unwrap();
        let error = failed.error.unwrap();
        assert_eq!(error.status, "RESOURCE_EXHAUSTED");
        assert!(error.message.contains("helper → a → b → a"), "{}", error.message);
        assert!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().is_empty());
    }

    async fn a_question_of_a_sub_agent_is_answered_after_a_restart(home: Home) {
        let root = script([transfer("asker")]);
        let child = script([Reply::calls([("confirm", Some("r"), r#"{"question":"ok?"}"#)]), Reply::text("thanks")]);
        let team = || prompt(&root).sub_agent("asker", "", prompt(&child).tool(confirm()));
        let output = say(&on(&home, team()), "go").await;
        let question = Interrupt::all_in(output.message.as_ref().unwrap()).remove(0);
        assert_eq!(output.finish_reason, Some(FinishReason::Interrupted));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
        let answer = || Input::resume(&Resume::new().respond(&question, &true).unwrap()).unwrap();
        let gone = elsewhere(&home, prompt(&root)).run(answer(), Init::session(sid("s"))).await.unwrap();
        assert!(gone.error.unwrap().message.contains("\"helper.asker\" waits for an answer"));
        let done = elsewhere(&home, team()).run(answer(), Init::session(sid("s"))).await.unwrap();
        assert_eq!((done.text().as_str(), done.error), ("thanks", None));
        assert_paired(&child.requests()[1]);
        assert_eq!(root.requests().len(), 1);
        let last = events(&home, "s").await.pop().unwrap();
        assert_eq!((last.author.as_str(), last.path.as_str()), ("asker", "helper.asker"));
    }

    async fn a_transfer_beside_a_question_happens_once_it_is_answered(home: Home) {
        let root = script([Reply::calls([("transfer_to_agent", Some("t"), r#"{"agent":"math"}"#), ("confirm", Some("r"), r#"{"question":"ok?"}"#)])]);
        let child = script([Reply::text("here")]);
        let agent = on(&home, prompt(&root).tool(confirm()).sub_agent("math", "", prompt(&child)));
        let output = say(&agent, "go").await;
        let question = Interrupt::all_in(output.message.as_ref().unwrap()).remove(0);
        let answer = Input::resume(&Resume::new().respond(&question, &true).unwrap()).unwrap();
        assert_eq!(agent.run(answer, Init::session(sid("s"))).await.unwrap().text(), "here");
        assert_eq!(events(&home, "s").await.iter().filter(|event| event.actions.transfer_to_agent.is_some()).count(), 1);
    }

    async fn hooks_are_each_agents_own_and_share_the_turns_values(home: Home) {
        struct Notes(&'static str);
        #[async_trait::async_trait]
        impl Hook for Notes {
            async fn before_generation(&self, context: &HookContext<Json>, prepared: &mut Preparation) -> HookResult {
                let before = context.value::<String>("trail")?.unwrap_or_default();
                prepared.system = Some(format!("{before}{}", self.0));
                context.set_value("trail", &format!("{before}{}", self.0))?;
                Ok(())
            }
        }
        let (root, child) = (script([transfer("math")]), script([Reply::text("ok")]));
        let team = prompt(&root).hook(Notes("root ")).sub_agent("math", "", prompt(&child).hook(Notes("child ")));
        say(&on(&home, team), "go").await;
        assert_eq!(root.requests()[0].messages[0].text(), "root ");
        assert_eq!(child.requests()[0].messages[0].text(), "root child ");
    }

    async fn what_a_sub_agent_says_is_streamed(home: Home) {
        let (root, child) = (script([transfer("math")]), script([Reply::text("Three.").in_pieces(3)]));
        let agent = on(&home, prompt(&root).sub_agent("math", "", prompt(&child)));
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("go").await.unwrap();
        assert_eq!(spoken(&connection.receive_turn().await), "Three.");
    }

    async fn a_sub_agents_failure_fails_the_turn_and_leaves_nothing(home: Home) {
        let keep = Tool::untyped("keep", "", json("{}"), |_, context| async move {
            context.session::<Json>().unwrap().state().await?.set("user:kept", &1)?;
            Ok(json("1"))
        });
        let root = script([Reply::text("hi"), transfer("math"), Reply::text("still here")]);
        let child = script([Reply::call("keep", "{}"), Reply::text("").then_fail(ErrorKind::Unavailable, "connection lost")]);
        let agent = on(&home, prompt(&root).sub_agent("math", "", prompt(&child).tool(keep)));
        say(&agent, "one").await;
        let failed = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        assert_eq!(failed.error.unwrap().status, "UNAVAILABLE");
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().messages().len(), 2);
        assert!(home.elsewhere().scopes(&of_helper("s").app, Some(&user("user"))).await.unwrap().is_empty());
        assert_eq!(say(&agent, "three").await.text(), "still here", "the root has the word again");
    }

    async fn a_compacted_conversation_is_shown_to_all(home: Home) {
        use everturn::store::Commit;
        let (root, child) = (script([Reply::text("hi"), transfer("math"), Reply::text("root")]), script([Reply::text("child"), transfer("helper")]));
        let agent = on(&home, prompt(&root).sub_agent("math", "", prompt(&child)));
        say(&agent, "one").await;
        say(&agent, "two").await;
        // It hides the root's request for the transfer and not its answer.
        let view = everturn::View::new(4, vec![Message::model("They greeted.")]);
        let mut changes = everturn::Changes::new();
        changes.view = Some(everturn::ViewChange::Set(view));
        home.store().commit(Commit::new(of_helper("s"), changes)).await.unwrap();
        assert_eq!(say(&agent, "three").await.text(), "root");
        for request in [child.requests().pop().unwrap(), root.requests().pop().unwrap()] {
            assert_paired(&request);
            let heard = heard(&request);
            assert!(heard[0].ends_with("They greeted.") && !heard.contains(&"user: one".to_owned()), "{heard:?}");
        }
    }
}

#[test]
fn teams_that_cannot_work_are_refused_when_the_agent_is_built() {
    let p = || prompt(&script([]));
    let twice = p().sub_agent("a", "", p().sub_agent("b", "", p())).sub_agent("b", "", p());
    for (broken, words) in [
        (p().sub_agent("a.b", "", p()), "leave out the '.'"),
        (p().sub_agent(" ", "", p()), "blank"),
        (p().sub_agent("user", "", p()), "people"),
        (p().agent_tool("a.b", "", p()), "leave out the '.'"),
        (p().sub_agent("helper", "", p()), "rename one"),
        (twice, "rename one"),
        (p().sub_agent("a", "", p()).agent_tool("a", "", p()), "rename one"),
        (p().agent_tool("add", "", p()).tool(add(&Count::default())), "rename one"),
        (p().sub_agent("a", "", p().max_iterations(0)), "max_iterations"),
        (p().agent_tool("a", "", p().system("{{")), "never closed"),
    ] {
        refused(Agent::<Json>::prompt("helper", broken).build(), ErrorKind::Invalid, words);
    }
    refused(Agent::<Json>::prompt("a.b", p().sub_agent("c", "", p())).build(), ErrorKind::Invalid, "leave out");
    assert!(Agent::<Json>::prompt("a.b", p()).build().is_ok(), "a name alone may have any form");
}

#[tokio::test]
async fn typed_state_is_shared_by_a_team() {
    let (root, child) = (Arc::new(script([transfer("math")])), Arc::new(script([Reply::text("ok")])));
    let instructed = Prompt::<Tally>::of(child.clone()).system("{{last}} said it.");
    let agent = Agent::prompt("helper", Prompt::of(root).sub_agent("math", "", instructed)).build().unwrap();
    let given = StateDelta::new().set("last", json("\"Ann\""));
    agent.run(Input::text("go").with_state(given), Init::new()).await.unwrap();
    assert_eq!(child.requests()[0].messages[0].text(), "Ann said it.");
}
