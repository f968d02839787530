//! The three-method view of document 004, for people with their own loop: `id`, `messages`, `save_turn`.

use std::sync::Arc;

use everturn::store::{At, Commit, EventQuery, Store, StoreExt, VerifyScope};
use everturn::{
    Changes, ErrorKind, Json, MemoryTranscript, Message, Part, RecordKind, Role, SnapshotStatus, StoredTranscript,
    Transcript, Usage, View,
};

use crate::faulty::{Faults, Write};
use crate::support::*;

async fn open(store: Arc<dyn Store>, id: &str) -> StoredTranscript {
    StoredTranscript::open(store, key(id)).await.unwrap()
}

fn said_by(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

fn question_and_answer(n: u32) -> Vec<Message> {
    vec![Message::user(format!("q{n}")), Message::model(format!("a{n}"))]
}

/// What holds for every transcript.
async fn keeps_turns(session: &dyn Transcript) {
    assert_eq!(session.messages().await.unwrap(), []);
    session.save_turn(question_and_answer(1), Usage::tokens(3, 2)).await.unwrap();
    let read = session.messages().await.unwrap();
    session.save_turn(question_and_answer(2), Usage::tokens(10, 5)).await.unwrap();
    assert_eq!(said_by(&session.messages().await.unwrap()), ["q1", "a1", "q2", "a2"]);
    assert_eq!(read.len(), 2, "what was handed out does not change");
    refused(session.save_turn(vec![], Usage::tokens(1, 1)).await, ErrorKind::Invalid, "nothing was said");
    assert_eq!(session.messages().await.unwrap().len(), 4);
}

on_every_store! {
    async fn turns_are_kept_and_read_back_elsewhere(home: Home) {
        let session = open(home.store(), "s").await;
        keeps_turns(&session).await;
        assert_eq!(session.id(), &sid("s"));
        assert_eq!((session.turn_count().await.unwrap(), session.total_usage().await.unwrap()), (2, Usage::tokens(13, 7)));
        let again = open(home.elsewhere(), "s").await;
        assert_eq!(said_by(&again.messages().await.unwrap()).len(), 4);
        assert_eq!(again.total_usage().await.unwrap(), Usage::tokens(13, 7));
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None);
    }

    async fn a_turn_is_one_turn_with_a_snapshot_of_its_end(home: Home) {
        let session = open(home.store(), "s").await;
        let call = Message::new(Role::Model, &[Part::tool_request("f", None, &json("{}"))]);
        let answer = Message::new(Role::Tool, &[Part::tool_response("f", None, &json("1"))]);
        let turn = vec![Message::user("q"), call, answer, Message::model("a")];
        session.save_turn(turn.clone(), Usage::default()).await.unwrap();
        assert_eq!(session.messages().await.unwrap(), turn);
        let log = home.store().records(everturn::store::RecordQuery::of(key("s"))).await.unwrap().items;
        let kinds: Vec<_> = log.iter().map(|record| record.kind).collect();
        assert_eq!(kinds[kinds.len() - 2..], [RecordKind::Begin, RecordKind::End]);
        let latest = home.store().latest(&key("s")).await.unwrap().unwrap();
        assert_eq!((latest.status, Some(latest.point)), (SnapshotStatus::Completed, log.last().map(|r| everturn::Point::new(r.seq))));
        let events = home.store().events(EventQuery::of(key("s"))).await.unwrap().items;
        let authors: Vec<_> = events.iter().map(|event| event.author.as_str()).collect();
        assert_eq!(authors, ["user", "model", "tool", "model"]);
    }

    async fn a_turn_may_begin_with_the_model_or_have_no_answer(home: Home) {
        let session = open(home.store(), "s").await;
        session.save_turn(vec![Message::model("hello")], Usage::default()).await.unwrap();
        session.save_turn(vec![Message::user("hm")], Usage::default()).await.unwrap();
        assert_eq!(said_by(&session.messages().await.unwrap()), ["hello", "hm"]);
        assert_eq!(session.turn_count().await.unwrap(), 2);
    }

    async fn a_turn_that_cannot_be_written_leaves_nothing_and_holds_nothing(home: Home) {
        let faults = Faults::default();
        let session = open(faults.store(home.store()), "s").await;
        session.save_turn(question_and_answer(1), Usage::default()).await.unwrap();
        for write in [Write::Begin, Write::End] {
            faults.fail(write, ErrorKind::Unavailable);
            assert_eq!(kind(session.save_turn(question_and_answer(2), Usage::default()).await), ErrorKind::Unavailable);
            assert_eq!(session.messages().await.unwrap().len(), 2);
            assert_eq!(home.store().running(None).await.unwrap(), [], "nobody has to wait for it");
        }
        session.save_turn(question_and_answer(3), Usage::default()).await.unwrap();
        assert_eq!(said_by(&session.messages().await.unwrap()), ["q1", "a1", "q3", "a3"]);
    }

    async fn a_caller_that_goes_away_cuts_no_turn_in_half(home: Home) {
        let session = open(home.store(), "s").await;
        let mut saving = Box::pin(session.save_turn(question_and_answer(1), Usage::default()));
        let polled = futures_util::FutureExt::now_or_never(&mut saving);
        drop(saving);
        assert!(polled.is_none(), "a store takes its time");
        session.save_turn(question_and_answer(2), Usage::default()).await.unwrap();
        assert_eq!(said_by(&session.messages().await.unwrap()), ["q1", "a1", "q2", "a2"]);
    }

    async fn turns_saved_at_once_are_all_kept_whole(home: Home) {
        let sessions = [open(home.store(), "s").await, open(home.elsewhere(), "s").await];
        let saving = (0..12_usize).map(|n| {
            let session = sessions[n % 2].clone();
            let n = u32::try_from(n).unwrap();
            tokio::spawn(async move { session.save_turn(question_and_answer(n), Usage::tokens(1, 1)).await.unwrap() })
        });
        for saved in saving.collect::<Vec<_>>() {
            saved.await.unwrap();
        }
        let said = said_by(&sessions[1].messages().await.unwrap());
        assert_eq!(said.len(), 24);
        for pair in said.chunks(2) {
            assert_eq!(pair[0][1..], pair[1][1..], "a question and its own answer: {said:?}");
        }
        assert_eq!(sessions[0].total_usage().await.unwrap(), Usage::tokens(12, 12));
    }

    async fn a_transcript_forks_and_has_a_title(home: Home) {
        let session = open(home.store(), "s").await;
        session.set_title("Tea").await.unwrap();
        session.save_turn(question_and_answer(1), Usage::tokens(1, 1)).await.unwrap();
        let fork = session.fork(sid("f")).await.unwrap();
        fork.save_turn(question_and_answer(2), Usage::tokens(2, 2)).await.unwrap();
        session.save_turn(question_and_answer(3), Usage::default()).await.unwrap();
        assert_eq!(said_by(&fork.messages().await.unwrap()), ["q1", "a1", "q2", "a2"]);
        assert_eq!(said_by(&session.messages().await.unwrap()), ["q1", "a1", "q3", "a3"]);
        assert_eq!(fork.total_usage().await.unwrap(), Usage::tokens(3, 3), "what it inherited counts");
        assert_eq!((fork.title().await.unwrap().as_deref(), fork.id()), (Some("Tea"), &sid("f")));
        assert_eq!(kind(session.fork(sid("f")).await), ErrorKind::AlreadyExists);
    }

    async fn a_model_is_shown_the_summary_of_what_was_compacted(home: Home) {
        let session = open(home.store(), "s").await;
        session.save_turn(question_and_answer(1), Usage::default()).await.unwrap();
        let view = View::new(2, vec![Message::model("They met.")]);
        home.store().commit(Commit::new(key("s"), Changes::new().view(view))).await.unwrap();
        session.save_turn(question_and_answer(2), Usage::default()).await.unwrap();
        assert_eq!(said_by(&session.messages().await.unwrap()), ["They met.", "q2", "a2"]);
        assert_eq!(home.store().head_state(&key("s")).await.unwrap().messages().len(), 4, "what was said stays");
    }

    async fn a_transcript_of_a_deleted_session_says_so(home: Home) {
        let session = open(home.store(), "s").await;
        home.store().delete(&key("s")).await.unwrap();
        assert_eq!(kind(session.messages().await), ErrorKind::NotFound);
        assert_eq!(kind(session.save_turn(question_and_answer(1), Usage::default()).await), ErrorKind::NotFound);
    }

    async fn an_agent_and_a_loop_of_ones_own_share_a_session(home: Home) {
        let session = open(home.store(), "s").await;
        session.save_turn(question_and_answer(1), Usage::default()).await.unwrap();
        let output = stored(&home).run_text("two", everturn::Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&output), ["q1", "a1", "two", "echo: two"]);
        let message = output.message.unwrap();
        assert!(message.as_str().contains("snapshotId"));
        session.save_turn(vec![message], Usage::default()).await.unwrap();
        let state = home.store().state(At::head(key("s"))).await.unwrap().unwrap();
        assert!(!state.messages().last().unwrap().as_str().contains("snapshotId"));
        assert_eq!(state.custom().map(Json::as_str), Some(r#"{"turns":1,"last":"two"}"#));
    }
}

#[tokio::test]
async fn a_transcript_in_memory_does_the_same_without_a_store() {
    let session = MemoryTranscript::new(sid("s"));
    keeps_turns(&session).await;
    assert_eq!((session.id(), session.turn_count(), session.total_usage()), (&sid("s"), 2, Usage::tokens(13, 7)));
    assert_eq!(session.title(), None);
    session.set_title("Tea");
    let fork = session.fork(sid("f"));
    fork.save_turn(question_and_answer(3), Usage::tokens(1, 1)).await.unwrap();
    assert_eq!(
        (fork.title().as_deref(), fork.turn_count(), fork.total_usage()),
        (Some("Tea"), 3, Usage::tokens(14, 8))
    );
    assert_eq!(session.messages().await.unwrap().len(), 4);
}
