//! A fork is a new session whose past is another one's. Nothing is copied, and neither notices the other afterwards.

use everturn::store::{At, BeginTurn, CreateSession, EndTurn, ForkSession, MemoryStore, Start, Store, StoreExt};
use everturn::{Changes, Event, Input, InvocationId, Message, Receipt, Result, SessionId, SessionKey};

async fn say(store: &MemoryStore, key: &SessionKey, text: &str) -> Result<Receipt> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::text(text));
    let begun = store.begin(turn).await?.begun()?;
    let answer = Event::model("echo", Message::model(format!("{text}!")));
    store.end(EndTurn::completed(begun.fence, Changes::new().event(answer))).await
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let novel = SessionKey::of("writer", "ann", "novel")?;
    store.create(CreateSession::at(novel.clone()).title("A novel").label("draft")).await?;
    let opening = say(&store, &novel, "It was a dark night").await?;
    say(&store, &novel, "She left").await?;

    // From the middle of the session, under an id of its own. The title comes along, labels do not.
    let from = At::Point(novel.clone(), opening.point);
    let fork = store.fork(ForkSession::at(from).id(SessionId::new("happy-end")?)).await?;
    assert_eq!(fork.title.as_deref(), Some("A novel"));
    assert!(fork.labels.is_empty());
    let origin = fork.forked_from.clone().expect("a fork knows where it comes from");
    assert_eq!((origin.session, origin.point), (novel.id.clone(), opening.point));

    // It begins with the same state, to the digest, and goes its own way.
    let happy = fork.key();
    assert_eq!(store.head_state(&happy).await?.digest(), opening.digest);
    say(&store, &happy, "She stayed").await?;
    let last = |state: everturn::PointState| state.messages().last().map(Message::text).unwrap_or_default();
    assert_eq!(last(store.head_state(&happy).await?), "She stayed!");
    assert_eq!(last(store.head_state(&novel).await?), "She left!");

    // It keeps what it needs when the other one is deleted.
    assert!(store.delete(&novel).await?);
    let kept = store.head_state(&happy).await?;
    assert_eq!(kept.messages().len(), 4);
    println!("{happy} has {} messages, 2 of them by way of the deleted {}", kept.messages().len(), novel.id);
    Ok(())
}
