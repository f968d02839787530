//! A long conversation, shown to the model as a summary and its last turn; what was said stays whole.

use everturn::store::{MemoryStore, StoreExt};
use everturn::{Agent, Compaction, Init, Json, Message, Result, SessionId, SessionKey, Summary, Turn, Usage};

fn teller() -> Result<Agent<Json>> {
    let flow = |turn: Turn<Json>| async move {
        // Your model is asked with this; here we only look at it.
        println!("{}", texts(&turn.model_messages()));
        turn.add_message(Message::model("ok"))?;
        Ok(())
    };
    Agent::flow("teller", flow).store(MemoryStore::new()).build()
}

fn texts(messages: &[Message]) -> String {
    messages.iter().map(Message::text).collect::<Vec<_>>().join(" | ")
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = teller()?;
    let session = SessionId::new("tale")?;
    let rule = Message::user("Speak plainly.").with_metadata("pinned", &Json::parse("true")?);
    let mut output = agent.run(everturn::Input::messages([rule]), Init::session(session.clone())).await?;
    for text in ["one", "two", "three"] {
        output = agent.run_text(text, Init::session(session.clone())).await?;
    }
    let before = output.point.expect("it is kept");

    // Runs while nothing is held. If it failed, or somebody went on meanwhile, the session would be as it was.
    let summarise = |messages: Vec<Message>| async move {
        let text = format!("(They counted, in {} messages.)", messages.len());
        Ok(Summary::new([Message::user(text)]).usage(Usage::tokens(120, 9)))
    };
    agent.compact(&session, Compaction::new().keep_turns(1), summarise).await?.expect("enough was said");
    let last = agent.run_text("four", Init::session(session.clone())).await?;
    assert_eq!(last.state.messages().len(), 10, "what was said stays whole");

    for record in agent.compactions(&session).await? {
        println!("at {}: {} for {}", record.point, texts(&record.summary), texts(&record.replaced));
    }
    // Going back to a point before it undoes it.
    let (store, key) = (agent.store().expect("it has one"), SessionKey::of("teller", "user", "tale")?);
    store.rewind(&key, before).await?;
    assert_eq!(agent.compactions(&session).await?, []);
    agent.run_text("five", Init::session(session)).await?;
    Ok(())
}
