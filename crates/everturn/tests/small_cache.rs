//! More conversations than the cache has room for: whoever only writes does not have them added up again and again.

use everturn::store::{
    At, BeginTurn, CreateSession, Durability, EndTurn, SqliteOptions, Start, Store as _, StoreExt as _,
};
use everturn::{Artifact, Changes, Event, Input, InvocationId, Json, Message, Part, SessionKey};

const SESSIONS: usize = 16;
const ROUNDS: usize = 40;

/// Longer than what is written whole each time, so that each turn needs the one before it.
fn custom(round: usize) -> Json {
    Json::parse(format!("{{\"round\":{round},\"rest\":\"{}\"}}", "long ".repeat(100))).unwrap()
}

#[tokio::test]
async fn turns_are_written_without_reading_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(dir.path().join("s.db")).durability(Durability::ProcessSafe);
    let store = options.cache_bytes(256 << 10).open().unwrap();
    let keys: Vec<_> = (0..SESSIONS).map(|i| SessionKey::of("a", "u", &format!("s{i}")).unwrap()).collect();
    for key in &keys {
        store.create(CreateSession::at(key.clone())).await.unwrap();
    }
    let text = "words ".repeat(200);
    let mut misses = Vec::new();
    for round in 0..ROUNDS {
        for key in &keys {
            let begin =
                BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i").unwrap(), Input::text(&text));
            let fence = store.begin(begin).await.unwrap().begun().unwrap().fence;
            let artifact = Artifact::new("notes", vec![Part::text(format!("round {round}"))]);
            let said = Changes::new().event(Event::model("helper", Message::model(&text)));
            let changes = said.custom(custom(round)).artifact(artifact);
            assert!(store.end(EndTurn::completed(fence, changes)).await.unwrap().on_head);
        }
        misses.push(store.stats().cache_misses);
    }
    // All of it weighs six times what the cache may hold. Each session may be put out a few times, and then stays at hand.
    let late = misses[ROUNDS - 1] - misses[ROUNDS / 2];
    assert!(late <= SESSIONS as u64 * 2, "{late} of {} turns added their line up", (ROUNDS / 2 - 1) * SESSIONS);

    // What is at hand without messages is never taken for the whole.
    for key in &keys {
        let state = store.head_state(key).await.unwrap();
        assert_eq!((state.messages().len(), state.turns()), (2 * ROUNDS, ROUNDS as u64));
        assert_eq!(state.custom(), Some(&custom(ROUNDS - 1)));
        assert_eq!(state.artifacts().len(), 1);
        let begin = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i").unwrap(), Input::text("cut"));
        let begun = store.begin(begin).await.unwrap().begun().unwrap();
        let cut = Changes::new().splice(3, vec![Message::user("the rest")]);
        let end = store.end(EndTurn::completed(begun.fence, cut)).await.unwrap();
        let state = store.state(At::Point(key.clone(), end.point)).await.unwrap().unwrap();
        assert_eq!((state.messages().len(), state.digest()), (4, end.digest));
    }
    let verified = store.verify(everturn::store::VerifyScope::All).await.unwrap();
    assert!(verified.damage.is_none(), "{:?}", verified.damage);
}
