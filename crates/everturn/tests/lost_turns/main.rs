//! Turns that are over and whose end could not be written, and turns whose process died while somebody waited for them:
//! they are over for everybody, hold nothing, and can be asked for again.

#[macro_use]
#[path = "../runtime/support.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod support;

#[path = "../runtime/faulty.rs"]
#[allow(dead_code, reason = "what the runtime's tests share is more than these need")]
mod faulty;

#[path = "../support/mod.rs"]
mod children;

mod doubts;
mod killed;

use std::time::Duration;

use everturn::store::{BranchChange, Busy, RecordQuery, SnapshotRef, StoreExt as _};
use everturn::{
    ErrorKind, FinishReason, Init, Input, MemoryTranscript, Message, SnapshotStatus, StoredTranscript, Transcript as _,
    TurnKey, Usage,
};
use faulty::{Faults, Write};
use support::*;

/// What is right takes far less, and what was wrong a minute.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("nobody saw to it")
}

/// Waits until something is so.
async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(asking).await
}

fn fail_ends(faults: &Faults, times: usize) {
    (0..times).for_each(|_| faults.fail(Write::End, ErrorKind::Unavailable));
}

on_every_store! {
    async fn the_next_turn_does_not_wait_for_one_that_was_answered(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        let session = || Init::session(sid("s")).busy(Busy::Refuse);
        agent.run_text("one", session()).await.unwrap().ok().unwrap();
        fail_ends(&faults, 2);
        let failed = agent.run_text("two", session()).await.unwrap();
        assert_eq!(failed.error.unwrap().status, "UNAVAILABLE");
        let next = agent.run_text("three", session()).await.expect("its branch is free").ok().unwrap();
        assert_eq!(said(&next), ["one", "echo: one", "three", "echo: three"]);
    }

    async fn its_branch_is_freed_without_another_turn(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        fail_ends(&faults, 3);
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let snapshot = connection.begun().await.unwrap().snapshot_id.unwrap();
        assert!(connection.output().await.unwrap().error.is_some());
        let elsewhere = home.elsewhere();
        until(async || elsewhere.running(None).await.unwrap().is_empty().then_some(())).await;
        let row = elsewhere.snapshot(SnapshotRef::Id(snapshot)).await.unwrap().unwrap();
        assert_eq!((row.status, row.error.unwrap().status.as_str()), (SnapshotStatus::Failed, "UNAVAILABLE"));
    }

    async fn the_same_key_sent_again_runs_what_was_not_kept(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        let keyed = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        for ends in [1, 2] {
            fail_ends(&faults, ends);
            assert!(agent.run_text("one", keyed()).await.unwrap().error.is_some());
        }
        let again = in_time(agent.run_text("one", keyed())).await.unwrap().ok().unwrap();
        assert_eq!(said(&again), ["one", "echo: one"]);
        assert!(again.on_head && again.snapshot_id.is_some());
        let replayed = agent.run_text("one", keyed()).await.unwrap().ok().unwrap();
        assert_eq!((replayed.point, replayed.snapshot_id), (again.point, again.snapshot_id));
        assert_eq!(home.elsewhere().head_state(&key("s")).await.unwrap().turns(), 1);
    }

    async fn what_failed_by_itself_is_answered_the_same_to_its_key(home: Home) {
        let agent = stored(&home);
        let keyed = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        let mut records = Vec::new();
        for _ in 0..2 {
            assert_eq!(agent.run_text("fail down", keyed()).await.unwrap().error.unwrap().message, "down");
            records.push(home.store().records(RecordQuery::of(key("s"))).await.unwrap().items.len());
        }
        assert_eq!(records[0], records[1], "nothing ran");
    }

    async fn who_follows_it_is_told_before_the_store_can_be(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        fail_ends(&faults, 1_000_000);
        let connection = agent.connect(Init::session(sid("s")).keep_stream()).await.unwrap();
        connection.send_text("one").await.unwrap();
        let ticket = connection.begun().await.unwrap();
        let mut following = agent.follow_turn(ticket.turn, None).await.unwrap();
        let mut text = String::new();
        let end = loop {
            let chunk = in_time(following.next()).await.unwrap().expect("an end").chunk;
            text.push_str(&chunk.text());
            if let Some(end) = chunk.turn_end {
                break end;
            }
        };
        assert_eq!((text.as_str(), end.finish_reason), ("echo: one", FinishReason::Failed));
        assert_eq!(end.snapshot_id, ticket.snapshot_id);
        assert_eq!(in_time(following.next()).await.unwrap(), None);
    }

    async fn a_turn_in_the_background_still_ends_as_it_was_meant(home: Home) {
        let faults = Faults::default();
        let agent = echo().shared_store(faults.store(home.store())).build().unwrap();
        fail_ends(&faults, 3);
        let mut input = Input::text("one");
        input.detach = true;
        let id = agent.run(input, Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        let row = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!(row.status, SnapshotStatus::Completed, "{:?}", row.error);
        assert_eq!(said(&agent.run_text("two", Init::session(sid("s"))).await.unwrap()).len(), 4);
    }

    async fn a_repeated_key_tells_whether_its_turn_is_on_a_line(home: Home) {
        let agent = stored(&home);
        let keyed = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        let start = agent.run_text("zero", Init::session(sid("s"))).await.unwrap();
        let first = agent.run_text("one", keyed()).await.unwrap();
        let later = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        let again = agent.run_text("one", keyed()).await.unwrap();
        assert_eq!((again.point, first.on_head, again.on_head), (first.point, true, true), "others went on from it");
        home.store().rewind(&key("s"), start.point.unwrap()).await.unwrap();
        assert!(!agent.run_text("one", keyed()).await.unwrap().on_head, "it is beside what there is now");
        let create = BranchChange::Create { name: branch("other"), at: later.point.unwrap() };
        home.store().branch(&key("s"), create).await.unwrap();
        assert!(agent.run_text("one", keyed()).await.unwrap().on_head, "another branch goes through it");
    }

    async fn a_transcript_that_could_not_be_saved_holds_nothing(home: Home) {
        let faults = Faults::default();
        let kept = StoredTranscript::open(faults.store(home.store()), key("s")).await.unwrap();
        let words = || vec![Message::user("hi"), Message::model("hello")];
        fail_ends(&faults, 2);
        assert_eq!(kind(kept.save_turn(words(), Usage::default()).await), ErrorKind::Unavailable);
        in_time(kept.save_turn(words(), Usage::default())).await.unwrap();
        let passing = MemoryTranscript::new(sid("s"));
        passing.save_turn(words(), Usage::default()).await.unwrap();
        assert_eq!(kept.messages().await.unwrap(), passing.messages().await.unwrap());
    }
}
