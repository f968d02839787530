//! Rows that are gone or changed behind the engine's back: whatever keeps them, it is noticed where they are added up.

use super::*;
use crate::store::{BeginTurn, EndTurn, Store as _};
use crate::{Changes, ErrorKind, Event, InvocationId, Json, Message};

/// Five turns: an edit at 1, begins at 2, 4 and so on, ends at 3, 5 and so on.
async fn filled() -> (MemoryStore, SessionKey) {
    let store = MemoryOptions::new().cache_bytes(0).build();
    let key = SessionKey::of("app", "user", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    for n in 0..5 {
        let input = crate::Input::text(format!("question {n}"));
        let begin = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i").unwrap(), input);
        let begun = store.begin(begin).await.unwrap().begun().unwrap();
        let custom = Json::parse(format!("{{\"n\":{n}}}")).unwrap();
        let changes = Changes::new().event(Event::model("agent", Message::model(format!("answer {n}")))).custom(custom);
        store.end(EndTurn::completed(begun.fence, changes)).await.unwrap();
    }
    (store, key)
}

type Harm = fn(&mut Tables);

/// Each is what some broken disk could do, or a backend that loses a row.
const HARMS: [(&str, Harm); 7] = [
    ("an end is gone", |tables| drop(tables.records.remove(&(1, 5)))),
    ("a begin is gone", |tables| drop(tables.records.remove(&(1, 6)))),
    ("two turns are in each other's place", |tables| {
        let bodies = [5, 7].map(|seq| tables.records[&(1, seq)].1.body.clone());
        for (seq, body) in [7, 5].into_iter().zip(bodies) {
            tables.records.get_mut(&(1, seq)).unwrap().1.body = body;
        }
    }),
    ("a record says what another session's says", |tables| {
        let body =
            super::super::engine::encode(r#"{"events":[{"author":"x","messages":[{"role":"user","content":[]}]}]}"#)
                .unwrap();
        tables.records.get_mut(&(1, 4)).unwrap().1.body = body;
    }),
    ("an end is a void", |tables| tables.records.get_mut(&(1, 5)).unwrap().1.meta.kind = crate::turn::RecordKind::Void),
    ("a record is in another segment", |tables| tables.records.get_mut(&(1, 5)).unwrap().1.meta.segment = 9),
    ("a custom state is another", |tables| {
        let body = super::super::engine::encode(
            r#"{"events":[{"author":"agent","messages":[{"role":"model","content":[{"text":"answer 4"}]}]}],"custom":{"set":{"n":5}},"end":{"status":"completed"}}"#,
        )
        .unwrap();
        tables.records.get_mut(&(1, 11)).unwrap().1.body = body;
    }),
];

#[tokio::test]
async fn what_does_not_add_up_is_an_error_and_found() {
    for (what, harm) in HARMS {
        let (store, key) = filled().await;
        assert_eq!(store.state(At::head(key.clone())).await.unwrap().unwrap().messages().len(), 10);
        assert_eq!(store.verify(VerifyScope::All).await.unwrap().damaged, 0);
        harm(&mut store.0.backend().tables.write().unwrap());
        // Nothing that was added up before is at hand any more.
        store.reopen().await.unwrap();
        let error = store.state(At::head(key.clone())).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        let found = store.verify(VerifyScope::Session(key)).await.unwrap();
        assert!(found.damaged > 0 && found.damages.len() as u64 == found.damaged, "{what}: {found:?}");
    }
}
