//! Going back deletes nothing: a head moves, and what it left can be returned to.

use everturn::store::{At, BeginTurn, BranchChange, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
use everturn::{BranchName, Changes, Event, Input, InvocationId, Message, Receipt, Result, SessionKey};

async fn say(store: &MemoryStore, key: &SessionKey, branch: &BranchName, text: &str) -> Result<Receipt> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::text(text));
    let begun = store.begin(turn.branch(branch.clone())).await?.begun()?;
    let answer = Event::model("echo", Message::model(format!("{text}!")));
    store.end(EndTurn::completed(begun.fence, Changes::new().event(answer))).await
}

async fn last(store: &MemoryStore, key: &SessionKey, branch: &BranchName) -> Result<String> {
    let state = store.state(At::Head(key.clone(), branch.clone())).await?;
    Ok(state.and_then(|state| state.messages().last().map(Message::text)).unwrap_or_default())
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("app", "ann", "s")?;
    let (main, spicy) = (BranchName::main(), BranchName::new("spicy")?);
    store.create(CreateSession::at(key.clone())).await?;

    let soup = say(&store, &key, &main, "soup").await?;
    let salt = say(&store, &key, &main, "salt").await?;

    // Undo, and redo.
    store.rewind(&key, soup.point).await?;
    assert_eq!(last(&store, &key, &main).await?, "soup!");
    store.rewind(&key, salt.point).await?;
    assert_eq!(last(&store, &key, &main).await?, "salt!");

    // A branch is a head of its own.
    store.branch(&key, BranchChange::Create { name: spicy.clone(), at: soup.point }).await?;
    say(&store, &key, &spicy, "chili").await?;
    assert_eq!(last(&store, &key, &spicy).await?, "chili!");
    assert_eq!(last(&store, &key, &main).await?, "salt!");

    // Saying something else after an undo is a new line; the old one stays readable at its points.
    store.rewind(&key, soup.point).await?;
    say(&store, &key, &main, "pepper").await?;
    let old = store.state(At::Point(key.clone(), salt.point)).await?.expect("nothing was deleted");
    assert_eq!(old.messages().last().map(Message::text).as_deref(), Some("salt!"));

    for branch in store.existing(&key).await?.branches {
        println!("{:<6} stands after {:?}", branch.name, last(&store, &key, &branch.name).await?);
    }
    Ok(())
}
