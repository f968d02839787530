//! A small store with some of everything.

use std::path::Path;

use everturn::store::{
    At, BeginTurn, BranchChange, Busy, Commit, CreateSession, EndTurn, ForkSession, SqliteStore, Start, StepTurn,
    Store, UpdateSession,
};
use everturn::{
    Artifact, Begun, BranchName, Changes, EndStatus, Event, Input, Json, Message, NewSnapshot, Outcome, Part,
    SessionId, SnapshotId, StateDelta, ToolEntry, ToolPhase, TurnError, TurnKey, Usage,
};

use crate::support::{invocation, json, key};

fn fresh() -> NewSnapshot {
    NewSnapshot::new(SnapshotId::from_uuid(uuid::Uuid::now_v7()))
}

fn state(entries: &[(&str, &str)]) -> StateDelta {
    let mut delta = StateDelta::new();
    delta.set.extend(entries.iter().map(|(key, value)| ((*key).to_owned(), json(value))));
    delta
}

/// Large enough to be changed by patches.
fn custom(n: usize) -> Json {
    let items: Vec<String> = (0..20).map(|i| format!("\"item {i} of the list\"")).collect();
    json(format!("{{\"count\":{n},\"items\":[{}]}}", items.join(",")))
}

async fn begin(store: &dyn Store, start: Start, text: &str) -> Begun {
    let input = Input::text(text).with_state(state(&[("asked", &format!("\"{text}\""))]));
    let begin = BeginTurn::new(start, invocation("i"), input).busy(Busy::Refuse);
    store.begin(begin).await.unwrap().begun().unwrap()
}

fn answer(text: &str) -> Changes {
    let event = Event::model("agent", Message::model(format!("{text}: the sea was calm and the cat slept")));
    Changes::new().event(event.with_usage(Usage::tokens(10, 20)))
}

async fn turn(store: &dyn Store, start: Start, text: &str, changes: Changes) -> everturn::Receipt {
    let begun = begin(store, start, text).await;
    let end = EndTurn::completed(begun.fence, changes).snapshot(fresh().labelled(format!("after {text}")));
    store.end(end).await.unwrap()
}

/// Writes it to `path` and closes it. `killed` is how it was before, with its last writes in the journal.
pub(crate) async fn write(path: &Path, killed: &Path) {
    let store = SqliteStore::open(path).unwrap();
    for (user, id, turns) in [("ann", "one", 6), ("ann", "two", 3), ("bob", "three", 4)] {
        let session = key(user, id);
        let create = CreateSession::at(session.clone()).title(format!("title of {id}")).label("kept");
        store.create(create.metadata(json(r#"{"from":"test"}"#))).await.unwrap();
        let start = || Start::Session(session.clone());
        let mut first = None;
        for n in 0..turns {
            let mut changes = answer(&format!("{id} {n}")).custom(custom(n));
            if n % 2 == 0 {
                changes = changes.artifact(Artifact::new("report", vec![Part::text(format!("{id} version {n}"))]));
            }
            let receipt = turn(&store, start(), &format!("{id} asks {n}"), changes).await;
            first = first.or(receipt.snapshot_id);
        }
        let lost = begin(&store, start(), "this fails").await;
        let call = ToolEntry::new("c1", "search", ToolPhase::Started, Some(json("{\"q\":1}")));
        let said = Event::new("agent").with_messages([Message::model("not to be seen")]);
        store.step(StepTurn::new(lost.fence, Changes::new().tool(call).event(said))).await.unwrap();
        let outcome = Outcome::failed(TurnError::new("UNAVAILABLE", "the model was away"));
        store.end(EndTurn::voided(lost.fence, EndStatus::Failed, outcome).snapshot(fresh())).await.unwrap();
        // Beside the head, from an early snapshot.
        let from = Start::Snapshot { id: first.unwrap(), session: None };
        let side = turn(&store, from, "another way", answer("another answer")).await;
        let name = BranchName::new("side").unwrap();
        store.branch(&session, BranchChange::Create { name, at: side.point }).await.unwrap();
        let scopes = state(&[("app:greeting", "\"hello\""), ("user:name", "\"somebody\"")]);
        let begun = begin(&store, start(), "remember").await;
        store.end(EndTurn::completed(begun.fence, answer("remembered")).scopes(scopes)).await.unwrap();
        store.update(&session, UpdateSession::title(format!("new title of {id}"))).await.unwrap();
    }
    let one = key("ann", "one");
    let splice = Changes::new().splice(2, vec![Message::user("cut short")]);
    store.commit(Commit::new(one.clone(), splice).snapshot(fresh())).await.unwrap();
    let fork = ForkSession::at(At::head(one.clone())).id(SessionId::new("fork").unwrap());
    let fork = store.fork(fork).await.unwrap().key();
    turn(&store, Start::Session(fork.clone()), "in the fork", answer("forked")).await;
    let again = ForkSession::at(At::head(fork)).id(SessionId::new("fork-of-fork").unwrap());
    store.fork(again).await.unwrap();
    let keyed =
        BeginTurn::new(Start::Session(key("bob", "three")), invocation("running"), Input::text("still running"));
    let keyed = keyed.key(TurnKey::new("once").unwrap()).snapshot(fresh().id);
    let begun = store.begin(keyed).await.unwrap().begun().unwrap();
    store.step(StepTurn::new(begun.fence, answer("half"))).await.unwrap();
    SqliteStore::backup(path, killed).unwrap();
    drop(store);
}
