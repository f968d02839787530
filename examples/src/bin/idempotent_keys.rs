//! A key makes a turn happen once, however often it is asked for: the repeated request gets the stored answer.

use everturn::store::{BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
use everturn::{
    AppName, Begin, Changes, ErrorKind, Event, FinishReason, Input, InvocationId, Message, Outcome, Result, TurnKey,
    UserId,
};

/// The very first request: it names no session, so the session's id derives from its key.
fn request(text: &str) -> Result<BeginTurn> {
    let session = CreateSession::new(AppName::new("shop")?, UserId::new("ann")?);
    let start = Start::OpenOrCreate(Box::new(session));
    Ok(BeginTurn::new(start, InvocationId::new("i1")?, Input::text(text)).key(TurnKey::new("request-7")?))
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let begun = store.begin(request("One tea, please.")?).await?.begun()?;

    // The client lost patience and asks again while the turn runs.
    assert_eq!(store.begin(request("One tea, please.")?).await?, Begin::Running(begun.turn));

    let message = Message::model("Ordered: one tea.");
    let mut outcome = Outcome::finished(FinishReason::Stop);
    outcome.message = Some(message.clone());
    let changes = Changes::new().event(Event::model("waiter", message));
    store.end(EndTurn::completed(begun.fence, changes).outcome(outcome)).await?;

    // And again after it ended: the same answer, and nothing runs.
    let Begin::Ended(ended) = store.begin(request("One tea, please.")?).await? else { panic!("it ran again") };
    assert_eq!(ended.turn, begun.turn);
    assert_eq!(ended.outcome.message.map(|message| message.text()).as_deref(), Some("Ordered: one tea."));
    assert_eq!(store.head_state(&ended.session).await?.messages().len(), 2);

    // The same key for something else is a mistake, and is told.
    let error = store.begin(request("Two teas, please.")?).await.expect_err("the key is taken");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    println!("one turn in session {}; then: {error}", ended.session.id);
    Ok(())
}
