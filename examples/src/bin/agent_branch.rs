//! Going back and going another way: both ways stay.

use everturn::store::{MemoryStore, StoreExt};
use everturn::{Agent, Init, Json, Message, Result, SessionKey, Turn};

#[tokio::main]
async fn main() -> Result<()> {
    let agent = Agent::flow("planner", |turn: Turn<Json>| async move {
        turn.add_message(Message::model(format!("A plan for: {}", turn.text())))?;
        Ok(())
    })
    .store(MemoryStore::new())
    .build()?;

    let base = agent.run_text("a trip to Lisbon", Init::new()).await?;
    let sun = agent.run_text("it is sunny", Init::session(base.session_id.clone())).await?;

    // From the first snapshot another way. The head moves there, and the sunny way is kept beside it.
    let rain = agent.run_text("it rains", Init::snapshot(base.snapshot_id.expect("taken"))).await?;
    assert!(rain.on_head);
    let difference = agent.diff(sun.snapshot_id.expect("taken"), rain.snapshot_id.expect("taken")).await?;
    println!("{} messages in common", difference.messages.common);
    println!("instead of {:?}", difference.messages.removed[0].text());
    println!("it is now  {:?}", difference.messages.added[0].text());

    let all = agent.snapshots(&base.session_id, |query| query).await?.items;
    let on_line = agent.snapshots(&base.session_id, |query| query.without_orphans()).await?.items;
    println!("{} snapshots, {} of them on the line", all.len(), on_line.len());
    assert_eq!((all.len(), on_line.len()), (3, 2));

    // A rewind moves the head at once; so does the way forth again.
    let store = agent.store().expect("it has one");
    let key = SessionKey::new(agent.app().clone(), everturn::UserId::default_user(), base.session_id.clone());
    store.rewind(&key, base.point.expect("stored")).await?;
    assert_eq!(store.head_state(&key).await?.messages().len(), 2);
    store.rewind(&key, sun.point.expect("stored")).await?;
    println!("back in the sun: {:?}", store.head_state(&key).await?.messages().last().map(Message::text));
    Ok(())
}
