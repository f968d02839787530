//! Tools of a prompt agent: the session they change, the points they make, the ledger they leave.

use everturn::model::{Reply, ScriptedModel};
use everturn::store::{ListSnapshots, RecordQuery, StoreExt as _, VerifyScope};
use everturn::tool::Tool;
use everturn::{Artifact, EventKind, Init, Json, Part, SnapshotEvent, ToolPhase};

use crate::support::*;
use crate::tools::*;

/// Writes what it is told under a key of the state.
fn remember() -> Tool {
    Tool::untyped("remember", "Keeps something.", json("{}"), |input: Json, context| async move {
        let session = context.session::<Json>().expect("a tool runs in its session");
        let state = session.state().await?;
        state.set("note", &input)?;
        state.set("user:note", &input)?;
        state.set("temp:note", &input)?;
        context.responder().unwrap().status("remembered").await?;
        session.add_artifact(Artifact::new("note", vec![Part::data(&input)])).await?;
        Ok(json("\"kept\""))
    })
}

on_every_store! {
    async fn each_round_of_tools_is_a_point_and_the_ledger_knows_each_call(home: Home) {
        let calls = [("add", Some("1"), r#"{"a":1,"b":2}"#), ("add", Some("2"), r#"{"a":"x"}"#)];
        let model = script([Reply::calls(calls), Reply::text("done")]);
        let ran = Count::default();
        let agent = helper(&model, [add(&ran)]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!((roles(&output), ran.get()), (vec!["user", "model", "tool", "model"], 1));
        let snapshots = home.elsewhere().snapshots(ListSnapshots::of(of_helper("s"))).await.unwrap().items;
        let events: Vec<_> = snapshots.iter().filter_map(|snapshot| snapshot.event).collect();
        assert_eq!(events, [SnapshotEvent::ToolIterationEnd, SnapshotEvent::TurnEnd]);
        let records = home.elsewhere().records(RecordQuery::of(of_helper("s"))).await.unwrap().items;
        let turn = records.iter().find_map(|record| record.turn).unwrap();
        let ledger = home.elsewhere().turn(turn).await.unwrap().unwrap().tools;
        let phases: Vec<_> = ledger.iter().map(|(_, entry)| (entry.name.as_str(), entry.phase)).collect();
        use ToolPhase::{Failed, Finished, Started};
        assert_eq!(phases.len(), 4);
        assert_eq!(phases[..2], [("add", Started), ("add", Started)]);
        assert!(phases[2..].contains(&("add", Finished)) && phases[2..].contains(&("add", Failed)), "{phases:?}");
    }

    async fn what_a_tool_changes_is_attributed_to_its_call_and_seen_afterwards(home: Home) {
        let model = ScriptedModel::answering(|request| match request.messages.len() {
            2 => Some(Reply::call("remember", r#"{"n":1}"#)),
            _ => Some(Reply::text("ok")),
        });
        let agent = helper(&model, [remember()]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.state.custom_json(), Some(&json(r#"{"note":{"n":1}}"#)));
        let events = events(&home, "s").await;
        let made: Vec<_> = events.iter().filter(|event| !event.state_delta.is_empty()).collect();
        assert_eq!(made.len(), 1);
        let keys: Vec<_> = made[0].state_delta.keys().map(String::as_str).collect();
        assert_eq!((keys, made[0].kind, made[0].author.as_str()), (vec!["note", "user:note"], EventKind::ToolResult, "helper"));
        let scopes = home.elsewhere().scopes(&of_helper("s").app, Some(&user("user"))).await.unwrap();
        assert_eq!(scopes.get("user:note"), Some(&json(r#"{"n":1}"#)));
        assert_eq!(output.artifacts.len(), 1);
    }

    async fn a_failing_turn_leaves_nothing_of_what_its_tools_changed(home: Home) {
        let model = script([Reply::call("remember", r#"{"n":1}"#)]);
        let agent = helper(&model, [remember()]).shared_store(home.store()).build().unwrap();
        let failed = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert!(failed.error.is_some());
        assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().custom(), None);
        assert!(home.elsewhere().scopes(&of_helper("s").app, Some(&user("user"))).await.unwrap().is_empty());
    }

    async fn tools_side_by_side_that_write_the_same_key_leave_what_was_written_last(home: Home) {
        let order = std::sync::Arc::new(tokio::sync::Notify::new());
        let write = Tool::untyped("write", "Writes.", json("{}"), move |input: Json, context| {
            let order = order.clone();
            async move {
                let session = context.session::<Json>().unwrap();
                if input == json("1") {
                    order.notified().await;
                }
                session.state().await?.set("n", &input)?;
                session.state().await?.set("app:n", &input)?;
                order.notify_one();
                Ok(json("true"))
            }
        });
        let model = script([Reply::calls([("write", Some("a"), "1"), ("write", Some("b"), "2")]), Reply::text("ok")]);
        let agent = helper(&model, [write]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!(output.state.custom_json(), Some(&json(r#"{"n":1}"#)));
        let state = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(state.custom(), Some(&json(r#"{"n":1}"#)), "the store agrees with the session");
        assert_eq!(home.elsewhere().scopes(&of_helper("s").app, None).await.unwrap().get("app:n"), Some(&json("1")));
        assert!(home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap().damage.is_none());
    }

    async fn a_tools_answer_can_be_the_last_word(home: Home) {
        let show = Tool::untyped("show", "Shows.", json("{}"), |_, context| async move {
            context.skip_summarization();
            Ok(json("\"here it is\""))
        });
        let model = script([Reply::call("show", "{}")]);
        let agent = helper(&model, [show]).shared_store(home.store()).build().unwrap();
        let output = agent.run_text("go", Init::session(sid("s"))).await.unwrap();
        assert_eq!((roles(&output), output.error), (vec!["user", "model", "tool"], None));
        let events = events(&home, "s").await;
        assert!(events.last().unwrap().actions.skip_summarization && events.last().unwrap().is_final_response());
    }
}
