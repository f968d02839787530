//! `docs/format.md` against the code: a stranger who implements digests from it must get ours.

use everturn::store::{At, Commit, CreateSession, MemoryStore, Store};
use everturn::{Artifact, Changes, Digest, Event, Json, Message, SessionKey, View};

const DOC: &str = include_str!("../../../docs/format.md");

fn inputs() -> Vec<&'static str> {
    let block = DOC.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next());
    block.expect("the inputs are in a json block").lines().collect()
}

fn vector(name: &str) -> Digest {
    let row = DOC.lines().find(|line| line.starts_with(&format!("| {name} | `")));
    let cell = row.and_then(|row| row.split('`').nth(1)).unwrap_or_else(|| panic!("no vector for {name}"));
    cell.parse().expect("a vector is a digest")
}

fn digest(text: &str) -> Digest {
    Digest::of_json(&Json::parse(text).unwrap()).unwrap()
}

#[test]
fn the_vectors_of_single_values_hold() {
    let [first, second, custom, artifact, view] = inputs().try_into().expect("five inputs");
    assert_eq!(digest(first), vector("message 1"));
    assert_eq!(digest(second), vector("message 2"));
    assert_eq!(Digest::ABSENT.chain(digest(first)), vector("chain 1"));
    assert_eq!(Digest::ABSENT.chain(digest(first)).chain(digest(second)), vector("chain 2"));
    assert_eq!(digest(custom), vector("custom"));
    assert_eq!(digest(artifact), vector("artifact"));
    assert_eq!(Digest::ABSENT.chain(digest(artifact)), vector("artifacts"));
    assert_eq!(digest(view), vector("view"));
}

#[tokio::test]
async fn the_vectors_of_states_hold_for_what_a_store_says() {
    let [first, second, custom, artifact, view] = inputs().try_into().expect("five inputs");
    let store = MemoryStore::new();
    let key = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let head = || At::head(key.clone());
    assert_eq!(store.state(head()).await.unwrap().unwrap().digest(), vector("empty state"));

    let say = |text: &str| Changes::new().event(Event::new("x").with_messages([Message::parse(text).unwrap()]));
    let receipt = store.commit(Commit::new(key.clone(), say(first))).await.unwrap();
    assert_eq!(receipt.digest, vector("state of message 1"));

    let rest = say(second)
        .custom(Json::parse(custom).unwrap())
        .artifact(Json::parse(artifact).unwrap().to::<Artifact>().unwrap())
        .view(Json::parse(view).unwrap().to::<View>().unwrap());
    let receipt = store.commit(Commit::new(key.clone(), rest)).await.unwrap();
    assert_eq!(receipt.digest, vector("state of all"));
    assert_eq!(store.state(head()).await.unwrap().unwrap().digest(), vector("state of all"));
}

#[test]
fn every_table_of_the_schema_is_documented() {
    let schema = [include_str!("../src/store/sqlite/schema.sql"), include_str!("../src/store/sqlite/schema_2.sql")];
    for table in schema.concat().split("CREATE TABLE ").skip(1).filter_map(|rest| rest.split(' ').next()) {
        assert!(DOC.contains(&format!("| `{table}` |")), "docs/format.md says nothing about the table {table}");
    }
}
