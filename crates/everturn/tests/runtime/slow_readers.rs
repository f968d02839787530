//! What becomes of a stream whose reader is slow.

use std::sync::Arc;
use std::time::Duration;

use everturn::{Agent, Handled, Init, Json, Message, Turn};
use tokio::sync::Notify;

use crate::streams::limits;
use crate::support::*;

on_every_store! {
    async fn what_found_no_room_is_told_with_the_next_chunk(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            turn.responder().text("fills the queue").await?;
            for n in 0..50 {
                turn.state().await?.set("n", &n)?;
            }
            turn.responder().text("more").await?;
            turn.state().await?.set("last", &true)?;
            Ok(())
        });
        let agent = agent.shared_store(home.store()).stream_limits(limits(|l| l.chunks = 1)).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("go").await.unwrap();
        let mut heard = Vec::new();
        while let Some(chunk) = connection.receive().await {
            if chunk.text() == "more" {
                assert_eq!(chunk.custom, Some(json(r#"{"n":49}"#)), "what came before it was told before it");
            }
            let end = chunk.turn_end.is_some();
            heard.push(chunk);
            if end {
                break;
            }
        }
        let output = connection.output().await.unwrap();
        assert_eq!(connection.custom_json(), output.state.custom_json());
        assert!(patches(&heard).len() < 50, "several changes are told as one");
    }

    async fn parallel_changes_never_overtake_each_other(home: Home) {
        let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
            let mut tasks = Vec::new();
            for task in 0..8 {
                let session = turn.session().clone();
                tasks.push(turn.spawn(async move {
                    for n in 0..30 {
                        session.state().await?.set(&format!("k{task}"), &n)?;
                        session.responder().text(".").await?;
                    }
                    Handled::Ok(())
                }));
            }
            for task in tasks {
                task.await??;
            }
            Ok(())
        });
        let agent = agent.shared_store(home.store()).stream_limits(limits(|l| l.chunks = 2)).build().unwrap();
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("go").await.unwrap();
        let chunks = connection.receive_turn().await;
        assert_eq!(spoken(&chunks).len(), 240);
        let output = connection.output().await.unwrap().ok().unwrap();
        assert_eq!(connection.custom_json(), output.state.custom_json());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_never_blocks_a_commit() {
    let home = Home::memory();
    let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
        for n in 0..100 {
            turn.state().await?.set("n", &n)?;
        }
        turn.add_message(Message::model("kept"))?;
        Ok(())
    });
    let agent = agent.shared_store(home.store()).stream_limits(limits(|l| l.chunks = 1)).build().unwrap();
    let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
    connection.send_text("go").await.unwrap();
    let began = tokio::time::Instant::now();
    while home.store().session(&key("s")).await.unwrap().is_none_or(|record| record.turns == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(1), "nobody has read yet, and the turn is kept");
    let chunks = connection.receive_turn().await;
    assert!(chunks.last().unwrap().turn_end.is_some());
    assert_eq!(connection.custom_json(), Some(&json(r#"{"n":99}"#)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_slow_but_reads_is_waited_for() {
    let home = Home::memory();
    let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
        for _ in 0..10 {
            turn.responder().text("x").await?;
        }
        Ok(())
    });
    let agent = agent.shared_store(home.store()).stream_limits(limits(|l| l.chunks = 1)).build().unwrap();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    connection.send_text("go").await.unwrap();
    let mut text = String::new();
    while let Some(chunk) = connection.receive().await {
        text += &chunk.text();
        if chunk.turn_end.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(25)).await;
    }
    assert_eq!(text.len(), 10);
    assert_eq!(connection.output().await.unwrap().error, None);
}

#[tokio::test]
async fn one_chunk_larger_than_the_queue_still_passes() {
    let home = Home::memory();
    let agent = echo().shared_store(home.store()).stream_limits(limits(|l| l.bytes = 16)).build().unwrap();
    let output = agent.run_text("x".repeat(10_000), Init::new()).await.unwrap();
    assert_eq!(output.error, None);
}

#[tokio::test]
async fn a_waiting_sender_that_is_given_up_loses_no_change() {
    // A handler may race sending against something else and drop the loser; a patch must not be lost with it.
    let home = Home::memory();
    let go = Arc::new(Notify::new());
    let gone = go.clone();
    let agent = Agent::flow("echo", move |turn: Turn<Json>| {
        let gone = gone.clone();
        async move {
            turn.responder().text("fills the queue").await?;
            turn.state().await?.set("n", &1)?;
            let responder = turn.responder();
            tokio::select! {
                biased;
                sent = responder.text("lost") => sent?,
                () = std::future::ready(()) => {}
            }
            gone.notify_one();
            turn.responder().text("more").await?;
            Ok(())
        }
    });
    let agent = agent.shared_store(home.store()).stream_limits(limits(|l| l.chunks = 1)).build().unwrap();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    connection.send_text("go").await.unwrap();
    go.notified().await;
    let chunks = connection.receive_turn().await;
    assert_eq!(spoken(&chunks), "fills the queuemore");
    assert_eq!(connection.custom_json(), Some(&json(r#"{"n":1}"#)));
}
