//! Two turns at once on one branch: wait, be refused, or go on beside it. Nobody's work is lost or merged in silence.

use std::time::Duration;

use everturn::store::{BeginTurn, Busy, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
use everturn::{Changes, ErrorKind, Event, Fence, Input, InvocationId, Message, Receipt, Result, SessionKey};

fn turn(key: &SessionKey, text: &str, busy: Busy) -> Result<BeginTurn> {
    Ok(BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::text(text)).busy(busy))
}

async fn answer(store: &MemoryStore, fence: Fence, text: &str) -> Result<Receipt> {
    store.end(EndTurn::completed(fence, Changes::new().event(Event::model("m", Message::model(text))))).await
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("app", "ann", "s")?;
    store.create(CreateSession::at(key.clone())).await?;
    let first = store.begin(turn(&key, "first", Busy::Refuse)?).await?.begun()?;

    // Refused at once; nothing is consumed, the request may come again.
    let error = store.begin(turn(&key, "second", Busy::Refuse)?).await.expect_err("the branch is held");
    assert_eq!(error.kind(), ErrorKind::Busy);

    // Beside it, from the same point. It completes and is kept, but does not push the other off the head.
    let beside = store.begin(turn(&key, "beside", Busy::Branch)?).await?.begun()?;
    assert!(!beside.leased && beside.from == first.from);
    let kept = answer(&store, beside.fence, "I am on a side line.").await?;
    assert!(!kept.on_head);

    // Waiting: it starts where the first one ended.
    let waiting = tokio::spawn({
        let (store, turn) = (store.clone(), turn(&key, "waiting", Busy::Wait(Duration::from_secs(30)))?);
        async move { store.begin(turn).await }
    });
    let done = answer(&store, first.fence, "I was here first.").await?;
    assert!(done.on_head);
    let waited = waiting.await.expect("it did not panic")?.begun()?;
    assert_eq!(waited.from, done.point);
    answer(&store, waited.fence, "Thank you for waiting.").await?;

    let said: Vec<_> = store.head_state(&key).await?.messages().iter().map(Message::text).collect();
    assert_eq!(said, ["first", "I was here first.", "waiting", "Thank you for waiting."]);

    // The side line can be resumed from its point whenever somebody wants it.
    let resume = Start::Point { session: key.clone(), point: kept.point };
    let resumed = store.begin(BeginTurn::new(resume, InvocationId::new("i")?, Input::text("more"))).await?.begun()?;
    assert!(answer(&store, resumed.fence, "Gladly.").await?.on_head);
    println!("main now goes by way of the side line: {:?}", store.head_state(&key).await?.messages());
    Ok(())
}
