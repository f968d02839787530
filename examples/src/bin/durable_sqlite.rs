//! A store in a file: close it, open it again, and go on where you were. A turn that was cut off does not count.

use everturn::store::{BeginTurn, CreateSession, EndTurn, SqliteStore, Start, Store, StoreExt, VerifyScope};
use everturn::{Changes, Event, Input, InvocationId, Message, SessionKey, TurnStatus};

async fn say(store: &SqliteStore, key: &SessionKey, text: &str, answer: &str) -> everturn::Result<()> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i1")?, Input::text(text));
    let begun = store.begin(turn).await?.begun()?;
    let changes = Changes::new().event(Event::model("helper", Message::model(answer)));
    store.end(EndTurn::completed(begun.fence, changes)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> everturn::Result<()> {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let path = dir.path().join("sessions.db");
    let key = SessionKey::of("notes", "ann", "monday")?;

    let store = SqliteStore::open(&path)?;
    store.create(CreateSession::at(key.clone())).await?;
    say(&store, &key, "Remember the milk.", "I will.").await?;
    let before = store.head_state(&key).await?.digest();

    // This turn begins and is never ended: whoever ran it went away.
    let lost = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i2")?, Input::text("And the bread?"));
    let lost = store.begin(lost).await?.begun()?;
    drop(store);

    let store = SqliteStore::open(&path)?;
    let state = store.head_state(&key).await?;
    assert_eq!(state.digest(), before, "the head stands at the last completed turn");
    let turn = store.turn(lost.turn).await?.expect("what was begun is kept");
    assert_eq!(turn.status, TurnStatus::Dead);
    assert_eq!(turn.input.messages[0].text(), "And the bread?");

    // The dead keep nobody waiting.
    say(&store, &key, "And the butter?", "Noted.").await?;
    assert_eq!(store.head_state(&key).await?.messages().len(), 4);
    let verified = store.verify(VerifyScope::All).await?;
    assert!(verified.damage.is_none());
    println!("{} records of {} session verified", verified.records, verified.sessions);
    Ok(())
}
