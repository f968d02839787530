//! Turns that are stopped from outside: by their clients, by the clock, by somebody with the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use everturn::store::{StoreExt, TurnRef};
use everturn::{Agent, ErrorKind, Failure, FinishReason, Init, Json, Message, Patience, SnapshotStatus, Turn};
use tokio::sync::{Notify, mpsc};

use crate::support::*;

/// An agent whose turns wait until they are cancelled, and tells of the snapshot each would make.
fn waiting(home: &Home, patience: Patience) -> (Agent<Json>, mpsc::UnboundedReceiver<everturn::SnapshotId>) {
    let (tell, started) = mpsc::unbounded_channel();
    let agent = Agent::flow("echo", move |turn: Turn<Json>| {
        let tell = tell.clone();
        async move {
            turn.add_message(Message::model("half"))?;
            tell.send(turn.snapshot_id().unwrap())?;
            turn.cancelled().await;
            Ok(())
        }
    });
    (agent.shared_store(home.store()).patience(patience).build().unwrap(), started)
}

/// A snapshot once its turn has ended.
async fn settled(agent: &Agent<Json>, id: everturn::SnapshotId) -> everturn::Snapshot {
    loop {
        if let Some(snapshot) = agent.snapshot(id).await.unwrap() {
            return snapshot;
        }
        tokio::task::yield_now().await;
    }
}

fn patience(change: impl FnOnce(&mut Patience)) -> Patience {
    let mut patience = Patience::default();
    change(&mut patience);
    patience
}

on_every_store! {
    async fn dropping_a_connection_aborts_its_turn(home: Home) {
        let (agent, mut started) = waiting(&home, Patience::default());
        let connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = started.recv().await.unwrap();
        drop(connection);
        let aborted = settled(&agent, id).await;
        assert_eq!((aborted.status, aborted.finish_reason), (SnapshotStatus::Aborted, Some(FinishReason::Aborted)));
        assert_eq!(kind(agent.run_text("x", Init::snapshot(id)).await), ErrorKind::NotResumable);
        assert_eq!(home.store().running(None).await.unwrap(), [], "the session is free");
        let head = home.store().head_state(&key("s")).await.unwrap();
        assert!(head.messages().is_empty(), "nothing resumable is left of it");
    }

    async fn an_aborted_turn_is_told_as_aborted(home: Home) {
        let (agent, mut started) = waiting(&home, Patience::default());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.send_text("two").await.unwrap();
        let id = started.recv().await.unwrap();
        connection.abort();
        let chunks = connection.receive_turn().await;
        let end = chunks.last().unwrap().turn_end.unwrap();
        assert_eq!((end.finish_reason, end.snapshot_id), (FinishReason::Aborted, Some(id)));
        let output = connection.output().await.unwrap();
        assert_eq!((output.finish_reason, output.error), (Some(FinishReason::Aborted), None));
        assert_eq!((output.message, output.unprocessed.len()), (None, 1));
    }

    async fn a_client_that_left_while_it_waited_starts_nothing(home: Home) {
        let ran = Arc::new(AtomicU32::new(0));
        let (go, count) = (Arc::new(Notify::new()), ran.clone());
        let held = go.clone();
        let agent = Agent::flow("echo", move |_: Turn<Json>| {
            let (held, count) = (held.clone(), count.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                held.notified().await;
                Ok(())
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut first = agent.connect(Init::session(sid("s"))).await.unwrap();
        first.send_text("one").await.unwrap();
        while home.store().running(None).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let second = agent.connect(Init::session(sid("s"))).await.unwrap();
        second.send_text("two").await.unwrap();
        tokio::task::yield_now().await;
        drop(second);
        go.notify_one();
        first.output().await.unwrap();
        go.notify_one();
        let third = agent.run_text("three", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&third), ["one", "three"]);
        assert_eq!(ran.load(Ordering::SeqCst), 2, "the one who left was never served");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_takes_too_long_fails() {
    let home = Home::memory();
    let (agent, _started) = waiting(&home, patience(|p| p.turn = Some(Duration::from_secs(60))));
    let began = tokio::time::Instant::now();
    let failed = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(failed.error.unwrap().status, "DEADLINE_EXCEEDED");
    let row = agent.snapshot(failed.snapshot_ids[0]).await.unwrap().unwrap();
    assert_eq!(row.status, SnapshotStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_cancellation_is_abandoned() {
    let home = Home::memory();
    let late = Arc::new(std::sync::Mutex::new(None));
    let note = late.clone();
    let agent = Agent::flow("echo", move |turn: Turn<Json>| {
        let note = note.clone();
        async move {
            let (session, responder) = (turn.session().clone(), turn.responder());
            // A task of its own, so that ending the handler does not end it.
            let stubborn = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(60)).await;
                let refusals = (
                    session.add_message(Message::model("late")).map_err(|error| error.kind()),
                    session.set_custom(&Json::null()).map_err(|error| error.kind()),
                    responder.text("late").await.map_err(|error| error.kind()),
                );
                *note.lock().unwrap() = Some(refusals);
            });
            stubborn.await?;
            Ok(())
        }
    });
    let agent = agent.shared_store(home.store()).build().unwrap();
    let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
    connection.send_text("one").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = tokio::time::Instant::now();
    connection.abort();
    let output = connection.output().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!(output.finish_reason, Some(FinishReason::Aborted));
    assert_eq!(home.store().running(None).await.unwrap(), [], "the session is free");
    tokio::time::sleep(Duration::from_secs(120)).await;
    let refusals = late.lock().unwrap().take().expect("it went on");
    assert_eq!(refusals, (Err(ErrorKind::Aborted), Err(ErrorKind::Aborted), Err(ErrorKind::Aborted)));
    assert!(home.store().head_state(&key("s")).await.unwrap().messages().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_reading_is_gone_after_half_a_minute() {
    let home = Home::memory();
    let aborted = Arc::new(AtomicBool::new(false));
    let note = aborted.clone();
    let agent = Agent::flow("echo", move |turn: Turn<Json>| {
        let note = note.clone();
        async move {
            loop {
                if let Err(error) = turn.responder().text("blah").await {
                    note.store(error.kind() == ErrorKind::Aborted && turn.is_cancelled(), Ordering::SeqCst);
                    return Err::<(), Failure>(error.into());
                }
            }
        }
    });
    let agent = agent.shared_store(home.store()).build().unwrap();
    let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
    connection.send_text("go").await.unwrap();
    connection.close();
    let began = tokio::time::Instant::now();
    connection.done().await;
    assert_eq!(began.elapsed().as_secs(), 30);
    assert!(aborted.load(Ordering::SeqCst), "the handler is told");
    let rows = agent.snapshots(&sid("s"), |all| all).await.unwrap().items;
    assert_eq!(rows[0].status, SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_turn_aborted_in_the_store_notices_at_its_next_sign_of_life() {
    let home = Home::memory();
    let (agent, mut started) = waiting(&home, Patience::default());
    let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
    connection.send_text("one").await.unwrap();
    let id = started.recv().await.unwrap();
    home.store().abort(TurnRef::Snapshot(id)).await.unwrap();
    let began = tokio::time::Instant::now();
    let output = connection.output().await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((output.finish_reason, output.error), (Some(FinishReason::Aborted), None));
    assert_eq!(agent.snapshot(id).await.unwrap().unwrap().status, SnapshotStatus::Aborted);
}
