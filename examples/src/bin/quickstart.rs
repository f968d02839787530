//! A session, a turn, and what they add up to. Nothing outlives the process here.

use everturn::store::{BeginTurn, CreateSession, EndTurn, EventQuery, MemoryStore, Start, Store, StoreExt};
use everturn::{Changes, Event, Input, InvocationId, Json, Message, SessionKey, Usage};

#[tokio::main]
async fn main() -> everturn::Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("shop", "ann", "order-42")?;
    store.create(CreateSession::at(key.clone()).title("Where is my order?")).await?;

    // From its begin on, a turn is visible to everybody and holds its branch.
    let input = Input::text("Where is my order?");
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i1")?, input);
    let begun = store.begin(turn).await?.begun()?;
    assert_eq!(store.running(Some(&key)).await?.len(), 1);

    // Its end writes everything or nothing: what was said, the agent's own state, and the head.
    let answer = Event::model("helper", Message::model("It left Lyon today.")).with_usage(Usage::tokens(12, 6));
    let changes = Changes::new().event(answer).custom(Json::parse(r#"{"carrier":"La Poste"}"#)?);
    let receipt = store.end(EndTurn::completed(begun.fence, changes)).await?;
    assert!(receipt.on_head);

    // State is what the session's records add up to.
    let state = store.head_state(&key).await?;
    let said: Vec<_> = state.messages().iter().map(Message::text).collect();
    assert_eq!(said, ["Where is my order?", "It left Lyon today."]);
    assert_eq!(state.custom().map(Json::as_str), Some(r#"{"carrier":"La Poste"}"#));

    let events = store.events(EventQuery::of(key.clone())).await?.items;
    assert_eq!(events.iter().map(|event| event.author.as_str()).collect::<Vec<_>>(), ["user", "helper"]);
    let session = store.existing(&key).await?;
    assert_eq!((session.turns, session.usage.total_tokens), (1, 18));
    println!("{key}: {} messages, head at record {}", said.len(), session.head);
    Ok(())
}
