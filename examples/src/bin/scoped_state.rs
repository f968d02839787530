//! Keys of state by whom they belong to: an app, a user, a session, or only the running invocation.

use everturn::store::{BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
use everturn::{Changes, EndStatus, Input, InvocationId, Json, Outcome, Result, SessionKey, StateDelta, TurnError};

fn json(text: &str) -> Json {
    Json::parse(text).expect("the example writes JSON")
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let first = SessionKey::of("shop", "ann", "first")?;
    let second = SessionKey::of("shop", "ann", "second")?;
    let bobs = SessionKey::of("shop", "bob", "first")?;
    for key in [&first, &second, &bobs] {
        store.create(CreateSession::at(key.clone())).await?;
    }

    let delta = StateDelta::new()
        .set("app:currency", json("\"EUR\""))
        .set("user:tone", json("\"dry\""))
        .set("temp:token", json("\"secret\""))
        .set("cart", json("[\"tea\"]"));
    let input = Input::text("Tea, please.");
    let turn = BeginTurn::new(Start::Session(first.clone()), InvocationId::new("i1")?, input);
    let begun = store.begin(turn).await?.begun()?;
    store.end(EndTurn::completed(begun.fence, Changes::new()).scopes(delta)).await?;

    let keys = async |key| Ok::<_, everturn::Error>(Vec::from_iter(store.scoped_state(key).await?.into_keys()));
    assert_eq!(keys(&first).await?, ["app:currency", "cart", "user:tone"]);
    assert_eq!(keys(&second).await?, ["app:currency", "user:tone"]);
    assert_eq!(keys(&bobs).await?, ["app:currency"]);

    // Keys without a prefix are the top level of the session's custom state.
    let state = store.head_state(&first).await?;
    assert_eq!(state.custom(), Some(&json(r#"{"cart":["tea"]}"#)));

    // What a turn that fails wanted to set is never seen.
    let turn = BeginTurn::new(Start::Session(bobs.clone()), InvocationId::new("i2")?, Input::text("In dollars!"));
    let begun = store.begin(turn).await?.begun()?;
    let outcome = Outcome::failed(TurnError::new("UNAVAILABLE", "no rates today"));
    let failed = EndTurn::voided(begun.fence, EndStatus::Failed, outcome);
    store.end(failed.scopes(StateDelta::new().set("app:currency", json("\"USD\"")))).await?;
    assert_eq!(store.scopes(&bobs.app, None).await?["app:currency"], json("\"EUR\""));
    println!("{:?}", store.scoped_state(&first).await?);
    Ok(())
}
