//! Following a session: be told what was written, read on from where you were, and notice that it is gone.

use everturn::store::{
    BeginTurn, CreateSession, EndTurn, MemoryStore, RecordQuery, Start, Store, WatchEvent, WatchTarget,
};
use everturn::{Changes, Event, Input, InvocationId, Message, RecordKind, Result, SessionKey};

async fn say(store: &MemoryStore, key: &SessionKey, text: &str) -> Result<()> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::text(text));
    let begun = store.begin(turn).await?.begun()?;
    let answer = Event::model("echo", Message::model(text));
    store.end(EndTurn::completed(begun.fence, Changes::new().event(answer))).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("app", "ann", "s")?;
    let mut seen = store.create(CreateSession::at(key.clone())).await?.head.seq();
    let mut watch = store.watch(WatchTarget::Session(key.clone())).await?;

    // Somebody else talks.
    let writer = tokio::spawn({
        let (store, key) = (store.clone(), key.clone());
        async move {
            for text in ["one", "two", "three"] {
                say(&store, &key, text).await?;
            }
            Ok::<_, everturn::Error>(())
        }
    });

    // Several changes may be told as one, so read on from what was seen last instead of counting what one is told.
    let mut completed = 0;
    while completed < 3 {
        assert!(matches!(watch.next().await?, WatchEvent::Written(_)));
        for record in store.records(RecordQuery::of(key.clone()).after(seen)).await?.items {
            println!("record {} is a {:?}", record.seq, record.kind);
            completed += usize::from(record.kind == RecordKind::End);
            seen = record.seq;
        }
    }
    writer.await.expect("it did not panic")?;
    store.delete(&key).await?;
    while watch.next().await? != WatchEvent::Deleted {}
    println!("and now it is gone");
    Ok(())
}
