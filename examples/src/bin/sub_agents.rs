//! A team: the front desk hands over to sales, which asks a calculator that is an agent too. Each sees its own part.

use std::sync::Arc;

use everturn::model::{Reply, ScriptedModel};
use everturn::store::{EventQuery, MemoryStore, Store as _, StoreExt as _};
use everturn::{Agent, Init, Prompt, Result, SessionKey, Usage};

fn model(replies: impl IntoIterator<Item = Reply>) -> ScriptedModel {
    ScriptedModel::new(replies.into_iter().map(|reply| reply.usage(Usage::tokens(10, 2))))
}

#[tokio::main]
async fn main() -> Result<()> {
    let calculator = Prompt::new(model([Reply::text("36")])).system("You calculate.");
    let sales = Prompt::new(model([
        Reply::call("calculator", r#"{"request":"3 * 12"}"#),
        Reply::text("Three pots are 36 euros."),
        Reply::text("Blue ones cost the same."),
    ]))
    .system("You know the prices: a pot is 12 euros.")
    .agent_tool("calculator", "Calculates.", calculator);
    let front = Prompt::new(model([Reply::call("transfer_to_agent", r#"{"agent":"sales"}"#)]))
        .system("You find out who can help.")
        .sub_agent("sales", "Knows all prices.", sales);

    let store = Arc::new(MemoryStore::new());
    let agent = Agent::prompt("shop", front).shared_store(store.clone()).build()?;
    let first = agent.run_text("What do three pots cost?", Init::new()).await?;
    assert_eq!(first.text(), "Three pots are 36 euros.");
    let second = agent.run_text("And blue ones?", Init::session(first.session_id.clone())).await?;
    assert_eq!(second.text(), "Blue ones cost the same.", "who spoke last goes on");

    let key = SessionKey::of("shop", "user", first.session_id.as_str())?;
    for event in store.events(EventQuery::of(key.clone())).await?.items {
        let text: String = event.messages.iter().map(|message| message.text()).collect();
        println!("{:<24} {:?} {text}", if event.path.is_empty() { &event.author } else { &event.path }, event.kind);
    }
    let spent = store.usage_by_model(&key).await?;
    assert_eq!(spent["scripted"], Usage::tokens(50, 10), "five answers, each counted once");
    println!("{spent:?}");
    Ok(())
}
