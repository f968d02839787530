//! When snapshots are taken is a policy: at some events, when something changed, or as your function says.

use everturn::SnapshotEvent::{InvocationEnd, TurnEnd};
use everturn::store::MemoryStore;
use everturn::{Agent, Init, Json, Message, Output, Result, SnapshotPolicy, Turn};

async fn say(policy: SnapshotPolicy, texts: &[&str]) -> Result<Output> {
    let agent = Agent::flow("chat", |turn: Turn<Json>| async move {
        if turn.text() != "nothing" {
            turn.add_message(Message::model("I see."))?;
        }
        Ok(())
    })
    .store(MemoryStore::new())
    .snapshots(policy)
    .build()?;
    let mut connection = agent.connect(Init::new()).await?;
    for text in texts {
        connection.send_text(text).await?;
    }
    let output = connection.output().await?;
    let all = agent.snapshots(&output.session_id, |query| query).await?;
    assert_eq!(all.items.len(), output.snapshot_ids.len());
    Ok(output)
}

#[tokio::main]
async fn main() -> Result<()> {
    let texts = ["one", "two", "three", "four", "five"];
    let count = |output: &Output| output.snapshot_ids.len();

    let turns = say(SnapshotPolicy::on([TurnEnd]), &texts).await?;
    println!("at each turn's end: {}", count(&turns));
    assert_eq!(count(&turns), 5);

    let once = say(SnapshotPolicy::on([InvocationEnd]), &texts).await?;
    println!("at the invocation's end: {}", count(&once));
    assert_eq!(count(&once), 1);

    // Every third opportunity; the count goes on when the session is opened again.
    let third = say(SnapshotPolicy::when(|cx| async move { cx.event == TurnEnd && cx.index % 3 == 0 }), &texts).await?;
    println!("every third: {}", count(&third));
    assert_eq!(count(&third), 2);

    // Only when the conversation has grown by four messages since the last one.
    let grown = SnapshotPolicy::when(|cx| async move {
        let before = cx.prev_state().await.ok().flatten().map_or(0, |state| state.messages().len());
        cx.event == TurnEnd && cx.state.messages().len() >= before + 4
    });
    let grown = say(grown, &texts).await?;
    println!("every four messages: {}", count(&grown));
    assert_eq!(count(&grown), 2);
    Ok(())
}
