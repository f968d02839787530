//! Several callers of one session.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use everturn::model::{Reply, ScriptedModel};
use everturn::store::{Busy, StoreExt as _};
use everturn::tool::{Tool, ToolError};
use everturn::{Agent, ErrorKind, Init, Json, Role};
use tokio::sync::Notify;

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

/// Says `re:` and what it was told.
fn parrot() -> ScriptedModel {
    ScriptedModel::answering(|request| {
        let said = request.messages.iter().rev().find(|message| message.role() == Role::User)?;
        Some(Reply::text(format!("re: {}", said.text())))
    })
}

on_every_store! {
    async fn two_callers_of_one_session_make_two_turns_one_after_the_other(home: Home) {
        let agent = helper(&parrot(), []).shared_store(home.store()).build().unwrap();
        let other = helper(&parrot(), []).shared_store(home.elsewhere()).build().unwrap();
        let (one, two) = tokio::join!(agent.run_text("one", here()), other.run_text("two", here()));
        assert!(one.unwrap().error.is_none() && two.unwrap().error.is_none());
        let stored = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        let said = texts(stored.messages());
        assert!(said == ["one", "re: one", "two", "re: two"] || said == ["two", "re: two", "one", "re: one"], "{said:?}");
    }

    async fn waiting_ends_at_its_deadline_and_the_session_is_free_after_the_turn(home: Home) {
        let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let hold = {
            let (reached, go) = (reached.clone(), go.clone());
            Tool::untyped("hold", "Holds.", json("{}"), move |_, _| {
                let (reached, go) = (reached.clone(), go.clone());
                async move {
                    reached.notify_one();
                    go.notified().await;
                    Ok(json("true"))
                }
            })
        };
        let model = ScriptedModel::answering(|request| match request.messages.last()?.text().as_str() {
            "hold" => Some(Reply::call("hold", "{}")),
            _ => Some(Reply::text("ok")),
        });
        let agent = helper(&model, [hold]).shared_store(home.store()).build().unwrap();
        let holding = tokio::spawn({ let agent = agent.clone(); async move { agent.run_text("hold", here()).await } });
        reached.notified().await;
        for busy in [Busy::Wait(Duration::from_millis(5)), Busy::Refuse] {
            assert_eq!(kind(agent.run_text("hi", here().busy(busy)).await), ErrorKind::Busy);
        }
        assert_eq!(agent.run_text("hi", Init::session(sid("other"))).await.unwrap().text(), "ok");
        go.notify_one();
        holding.await.unwrap().unwrap();
        let next = agent.run_text("hi", here().busy(Busy::Refuse)).await.unwrap();
        assert_eq!(roles(&next), ["user", "model", "tool", "model", "user", "model"]);
    }

    async fn a_tool_that_calls_back_into_its_session_is_refused_and_the_turn_completes(home: Home) {
        let agent: Arc<OnceLock<Agent<Json>>> = Arc::default();
        let inner = agent.clone();
        let call_back = Tool::untyped("call_back", "Calls back.", json("{}"), move |_, _| {
            let agent = inner.get().unwrap().clone();
            async move {
                let refused = agent.run_text("inside", here()).await;
                assert_eq!(kind(refused), ErrorKind::Busy);
                agent.run_text("inside", Init::session(sid("another"))).await?;
                Err(ToolError::new("the session is held by my own turn"))
            }
        });
        let model = ScriptedModel::answering(|request| match request.messages.last()?.text().as_str() {
            "outside" => Some(Reply::call("call_back", "{}")),
            _ => Some(Reply::text("ok")),
        });
        let made = helper(&model, [call_back]).shared_store(home.store()).busy(Busy::Wait(Duration::from_secs(3600))).build().unwrap();
        let agent = agent.get_or_init(|| made);
        let done = agent.run_text("outside", here()).await.unwrap();
        assert_eq!((done.text().as_str(), done.error), ("ok", None));
        let state = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!(state.messages().len(), 4);
        assert!(state.messages().get(2).unwrap().to_string().contains("held by my own turn"));
    }
}
