//! Turns that are sent to the background: with their input, or while they run.

use std::time::Duration;

use everturn::store::{ListSnapshots, StoreExt, VerifyScope};
use everturn::{
    Agent, Error, ErrorKind, FinishReason, Init, Input, Json, Message, OnFailure, Registry, Session, SnapshotEvent,
    SnapshotPolicy, SnapshotStatus, StreamLimits, Turn, TurnKey, TurnStatus, Worker,
};
use tokio::sync::mpsc;

use crate::faulty::{Faults, Write};
use crate::gate::*;
use crate::support::*;

on_every_store! {
    async fn an_input_that_detaches_is_answered_with_a_pending_snapshot(home: Home) {
        let (agent, mut gate) = held(home.store());
        let first = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap();
        assert_eq!((first.finish_reason, &first.error), (Some(FinishReason::Detached), &None));
        assert_eq!((first.message.as_ref(), said(&first)), (None, vec![]), "the state is the last good one");
        let id = first.snapshot_id.unwrap();
        assert_eq!(first.snapshot_ids, [id]);
        // Kept by the store, not by this process.
        let there = home.elsewhere().latest(&key("s")).await.unwrap().unwrap();
        assert_eq!((there.snapshot_id, there.status), (id, SnapshotStatus::Pending));
        assert_eq!((there.parent_id, there.finish_reason, there.event), (None, None, None));
        assert!(there.heartbeat_at.is_some());
        gate.started().await;
        gate.go();
        let done = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((done.status, done.finish_reason), (SnapshotStatus::Completed, Some(FinishReason::Stop)));
        assert_eq!((done.event, done.heartbeat_at), (Some(SnapshotEvent::TurnEnd), None));
        assert_eq!(said_in(&done), ["one", "echo: one"]);
        assert_eq!(home.elsewhere().existing(&key("s")).await.unwrap().head, done.point);
    }

    async fn the_row_keeps_its_parent_and_its_place(home: Home) {
        let (agent, mut gate) = held(home.store());
        gate.go();
        let before = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        gate.started().await;
        let mut second = agent.run(detached("two"), Init::session(sid("s"))).await.unwrap();
        let id = second.snapshot_id.take().unwrap();
        let pending = row(&agent, id).await;
        assert_eq!((pending.parent_id, pending.turn_index, pending.index), (before.snapshot_id, 1, 1));
        assert_eq!(said(&second), ["one", "echo: one"]);
        assert_eq!((second.point, second.on_head), (before.point, true), "it stands where it started");
        gate.go();
        let done = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((done.parent_id, done.turn_index, done.index), (before.snapshot_id, 1, 1));
        assert_eq!((done.created_at, done.orphaned), (pending.created_at, false));
        let rows = home.store().snapshots(ListSnapshots::of(key("s"))).await.unwrap().items;
        assert_eq!(rows.len(), 2, "the row became what it is in place");
    }

    async fn a_turn_is_sent_to_the_background_while_it_runs(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = gate.started().await.snapshot.unwrap();
        assert_eq!(home.elsewhere().snapshot(everturn::store::SnapshotRef::Id(id)).await.unwrap(), None);
        let output = in_time(connection.detach()).await.unwrap();
        assert_eq!((output.finish_reason, output.snapshot_id), (Some(FinishReason::Detached), Some(id)));
        assert_eq!(status(&agent, id).await, SnapshotStatus::Pending);
        assert!(connection.receive().await.is_none(), "nothing more is read here");
        drop(connection);
        gate.go();
        let done = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((done.status, said_in(&done)), (SnapshotStatus::Completed, vec!["one".into(), "echo: one".into()]));
        let custom: Tally = done.state.unwrap().custom.unwrap().to().unwrap();
        assert_eq!(custom, Tally { turns: 1, last: "one".into() });
    }

    async fn what_it_leaves_equals_what_an_attached_turn_leaves(home: Home) {
        let (agent, mut gate) = held(home.store());
        for session in ["attached", "at once", "halfway"] {
            let mut connection = agent.connect(Init::session(sid(session))).await.unwrap();
            for text in ["one", "two"] {
                let input = if session == "at once" && text == "two" { detached(text) } else { Input::text(text) };
                connection.send(input).await.unwrap();
                let id = gate.started().await.snapshot.unwrap();
                if session == "halfway" && text == "two" {
                    connection.detach().await.unwrap();
                }
                gate.go();
                in_time(agent.wait(id, None)).await.unwrap();
            }
        }
        let ends = async |session: &str| {
            let latest = agent.latest(&sid(session)).await.unwrap().unwrap();
            let state = home.elsewhere().head_state(&key(session)).await.unwrap();
            assert_eq!(state.digest(), latest.digest);
            (latest.digest, latest.index, latest.turn_index, texts(state.messages()), state.custom().cloned())
        };
        let attached = ends("attached").await;
        assert_eq!(ends("at once").await, attached);
        assert_eq!(ends("halfway").await, attached);
    }

    async fn between_turns_there_is_nothing_to_detach(home: Home) {
        let (agent, gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "send an input first");
        gate.go();
        connection.send_text("one").await.unwrap();
        assert!(connection.receive_turn().await.last().unwrap().turn_end.is_some());
        refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "send an input first");
        // The connection is none the worse for it.
        gate.go();
        connection.send_text("two").await.unwrap();
        assert_eq!(said(&connection.output().await.unwrap()), ["one", "echo: one", "two", "echo: two"]);
    }

    async fn an_invocation_that_is_over_cannot_be_detached(home: Home) {
        let (agent, mut gate) = held(home.store());
        gate.go();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        // Whoever keeps the session of a turn keeps its invocation in memory, and nobody there answers any more.
        let _kept = gate.started().await.session;
        connection.output().await.unwrap();
        refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "send an input first");
    }

    async fn detaching_twice_gives_the_same_answer(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        gate.started().await;
        let first = in_time(connection.detach()).await.unwrap();
        assert_eq!(in_time(connection.detach()).await.unwrap(), first);
        gate.go();
        in_time(agent.wait(first.snapshot_id.unwrap(), None)).await.unwrap();
        assert_eq!(in_time(connection.detach()).await.unwrap(), first);
        let mut again = agent.connect(Init::session(sid("s"))).await.unwrap();
        again.send(detached("two")).await.unwrap();
        let second = in_time(again.output()).await.unwrap();
        assert_eq!(in_time(again.detach()).await.unwrap(), second);
        gate.go();
    }

    async fn a_handler_that_owns_its_loop_goes_on_in_the_background(home: Home) {
        let (tell, mut started) = mpsc::unbounded_channel();
        let (go, held) = mpsc::unbounded_channel::<()>();
        let held = std::sync::Arc::new(tokio::sync::Mutex::new(held));
        let agent = Agent::flow_loop("echo", move |session: Session<Json>| {
            let (tell, held) = (tell.clone(), held.clone());
            async move {
                while let Some(turn) = session.next_turn().await? {
                    tell.send(turn.snapshot_id().unwrap())?;
                    held.lock().await.recv().await;
                    turn.add_message(Message::model("done"))?;
                }
                Ok(())
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "send an input first");
        connection.send_text("one").await.unwrap();
        connection.send_text("two").await.unwrap();
        let one = started.recv().await.unwrap();
        let output = in_time(connection.detach()).await.unwrap();
        assert_eq!(output.snapshot_id, Some(one));
        drop(connection);
        go.send(()).unwrap();
        let two = in_time(started.recv()).await.unwrap();
        assert_eq!(agent.snapshot(two).await.unwrap().unwrap().status, SnapshotStatus::Pending);
        go.send(()).unwrap();
        let done = in_time(agent.wait(two, None)).await.unwrap();
        assert_eq!((said_in(&done), done.parent_id), (vec!["one".into(), "done".into(), "two".into(), "done".into()], Some(one)));
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn without_snapshots_only_an_input_can_detach(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).snapshots(SnapshotPolicy::never()).build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        gate.started().await;
        refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "when it begins");
        gate.go();
        assert_eq!(said(&connection.output().await.unwrap()).len(), 2, "it went on where it was");
        // A turn in the background always has its row.
        let output = agent.run(detached("two"), Init::session(sid("s"))).await.unwrap();
        gate.go();
        let done = in_time(agent.wait(output.snapshot_id.unwrap(), None)).await.unwrap();
        assert_eq!((done.status, said_in(&done).len()), (SnapshotStatus::Completed, 4));
    }

    async fn an_input_whose_row_cannot_be_written_is_refused(home: Home) {
        let faults = Faults::default();
        let (agent, mut gate) = held(faults.store(home.store()));
        faults.fail(Write::Step, ErrorKind::Unavailable);
        assert_eq!(kind(agent.run(detached("one"), Init::session(sid("s"))).await), ErrorKind::Unavailable);
        assert!(!gate.has_started(), "nothing runs that nobody was told of");
        assert_eq!(home.store().running(None).await.unwrap(), []);
        assert_eq!(agent.drain(Duration::ZERO).await, 0);
        gate.go();
        assert_eq!(said(&agent.run_text("two", Init::session(sid("s"))).await.unwrap()), ["two", "echo: two"]);
    }

    async fn a_detach_that_cannot_be_written_leaves_the_turn_attached(home: Home) {
        let faults = Faults::default();
        let (agent, mut gate) = held(faults.store(home.store()));
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = gate.started().await.snapshot.unwrap();
        faults.fail(Write::Step, ErrorKind::Unavailable);
        assert_eq!(kind(in_time(connection.detach()).await), ErrorKind::Unavailable);
        assert_eq!(agent.snapshot(id).await.unwrap(), None, "it has no row");
        gate.go();
        let chunks = connection.receive_turn().await;
        assert_eq!(spoken(&chunks), "echo: one", "whoever stays reads all of it");
        assert_eq!(connection.output().await.unwrap().finish_reason, Some(FinishReason::Stop));
    }

    async fn a_state_that_cannot_be_shown_refuses_the_detach(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).transform_state(|state, _| match state.messages.len() {
            // What stood there before the turn.
            0 => Err(Error::new(ErrorKind::Invalid, "not to be shown")),
            _ => Ok(state),
        });
        let agent = agent.build().unwrap();
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = gate.started().await.snapshot.unwrap();
        assert_eq!(kind(in_time(connection.detach()).await), ErrorKind::Internal);
        let rows = home.store().snapshots(ListSnapshots::of(key("s"))).await.unwrap().items;
        assert_eq!(rows, [], "nothing was written");
        gate.go();
        assert_eq!(connection.output().await.unwrap().snapshot_id, Some(id), "it is still attached");
        assert_eq!(kind(agent.run(detached("x"), Init::session(sid("t"))).await), ErrorKind::Internal);
        assert!(!gate.has_started());
        assert_eq!(home.store().running(None).await.unwrap(), []);
    }

    async fn what_is_shown_of_a_pending_row_passes_the_transform(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).transform_state(|mut state, _| {
            state.messages = state.messages.iter().map(|_| Message::model("***")).collect();
            Ok(state)
        });
        let agent = agent.build().unwrap();
        let output = agent.run(detached("secret"), Init::session(sid("s"))).await.unwrap();
        gate.started().await;
        let id = output.snapshot_id.unwrap();
        assert_eq!(said_in(&row(&agent, id).await), ["***"]);
        assert_eq!(said_in(&agent.latest(&sid("s")).await.unwrap().unwrap()), ["***"]);
        gate.go();
        assert_eq!(said_in(&in_time(agent.wait(id, None)).await.unwrap()), ["***", "***"]);
    }

    async fn inputs_behind_it_are_worked_on_in_order(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send(detached("one")).await.unwrap();
        for text in ["two", "three"] {
            connection.send_text(text).await.unwrap();
        }
        let output = in_time(connection.output()).await.unwrap();
        drop(connection);
        // Another client comes meanwhile, and waits until the turn that runs has ended.
        let mut last = output.snapshot_id;
        for text in ["one", "two", "three"] {
            let started = gate.started().await;
            assert_eq!(started.text, text);
            last = started.snapshot;
            assert_eq!(status(&agent, last.unwrap()).await, SnapshotStatus::Pending, "each has its row");
            gate.go();
        }
        let done = in_time(agent.wait(last.unwrap(), None)).await.unwrap();
        assert_eq!(said_in(&done), ["one", "echo: one", "two", "echo: two", "three", "echo: three"]);
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn another_turn_of_the_session_waits_for_it(home: Home) {
        let (agent, mut gate) = held(home.store());
        agent.run(detached("one"), Init::session(sid("s"))).await.unwrap();
        gate.started().await;
        let next = tokio::spawn({
            let agent = agent.clone();
            async move { agent.run_text("two", Init::session(sid("s"))).await }
        });
        gate.go();
        gate.go();
        assert_eq!(said(&in_time(next).await.unwrap().unwrap()), ["one", "echo: one", "two", "echo: two"]);
    }

    async fn a_chat_goes_on_behind_its_detached_turn(home: Home) {
        let (agent, gate) = held(home.store());
        let mut chat = agent.chat(Init::new());
        let output = chat.send(detached("one")).await.unwrap();
        assert_eq!(output.finish_reason, Some(FinishReason::Detached));
        assert_eq!(chat.snapshot_id(), output.snapshot_id);
        gate.go();
        gate.go();
        let second = in_time(chat.send_text("two")).await.unwrap();
        assert_eq!(said(&second), ["one", "echo: one", "two", "echo: two"]);
        assert!(second.on_head);
    }

    async fn a_failure_in_the_background_rolls_back(home: Home) {
        let (agent, gate) = held(home.store());
        gate.go();
        let good = agent.run_text("good", Init::session(sid("s"))).await.unwrap();
        for (text, error) in [("fail why", "UNAVAILABLE"), ("panic why", "INTERNAL")] {
            let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
            connection.send(detached(text)).await.unwrap();
            connection.send_text("behind").await.unwrap();
            let id = in_time(connection.output()).await.unwrap().snapshot_id.unwrap();
            drop(connection);
            gate.go();
            let failed = in_time(agent.wait(id, None)).await.unwrap();
            assert_eq!((failed.status, failed.error.as_ref().unwrap().status.as_str()), (SnapshotStatus::Failed, error));
            assert_eq!((failed.parent_id, failed.finish_reason), (good.snapshot_id, Some(FinishReason::Failed)));
            assert_eq!(agent.drain(SOON).await, 0);
            let head = home.elsewhere().head_state(&key("s")).await.unwrap();
            assert_eq!(texts(head.messages()), ["good", "echo: good"], "what follows a failure is not worked on");
            assert_eq!(head.custom().unwrap().to::<Tally>().unwrap().turns, 1);
            refused(agent.run_text("x", Init::snapshot(id)).await, ErrorKind::NotResumable, "failed");
        }
    }

    async fn a_failure_that_counts_completes(home: Home) {
        let (agent, gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).on_failure(OnFailure::Keep).build().unwrap();
        let id = agent.run(detached("fail why"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.go();
        let kept = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((kept.status, kept.finish_reason), (SnapshotStatus::Completed, Some(FinishReason::Failed)));
        assert_eq!(said_in(&kept), ["fail why", "partial"]);
    }

    async fn an_end_that_cannot_be_written_fails_the_row(home: Home) {
        let faults = Faults::default();
        let (agent, gate) = held(faults.store(home.store()));
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        faults.fail(Write::End, ErrorKind::Internal);
        gate.go();
        let failed = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((failed.status, failed.error.unwrap().status.as_str()), (SnapshotStatus::Failed, "INTERNAL"));
    }

    async fn an_end_that_cannot_be_written_now_is_written_as_it_was_meant_when_the_store_writes_again(home: Home) {
        let faults = Faults::default();
        let (agent, gate) = held(faults.store(home.store()));
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        faults.fail(Write::End, ErrorKind::Unavailable);
        gate.go();
        let ended = in_time(agent.wait(id, None)).await.unwrap();
        assert_eq!((ended.status, ended.error), (SnapshotStatus::Completed, None));
    }

    async fn pending_work_cannot_be_resumed(home: Home) {
        let (agent, gate) = held(home.store());
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        refused(agent.run_text("x", Init::snapshot(id)).await, ErrorKind::NotResumable, "pending");
        gate.go();
        in_time(agent.wait(id, None)).await.unwrap();
        gate.go();
        let next = agent.run_text("two", Init::snapshot(id)).await.unwrap();
        assert_eq!(said(&next).len(), 4, "and nothing was damaged");
    }

    async fn a_key_sent_again_finds_the_turn_in_the_background(home: Home) {
        let (agent, gate) = held(home.store());
        let init = || Init::session(sid("s")).key(TurnKey::new("k").unwrap());
        let id = agent.run(detached("one"), init()).await.unwrap().snapshot_id.unwrap();
        let same = agent.run(detached("one"), init()).await.unwrap();
        assert_eq!((same.finish_reason, same.snapshot_id), (Some(FinishReason::Detached), Some(id)), "where to look");
        gate.go();
        in_time(agent.wait(id, None)).await.unwrap();
        let again = agent.run(detached("one"), init()).await.unwrap();
        assert_eq!((again.finish_reason, again.snapshot_id), (Some(FinishReason::Stop), Some(id)));
        assert_eq!(home.store().existing(&key("s")).await.unwrap().turns, 1);
    }

    async fn a_full_stream_does_not_keep_a_turn_from_being_detached(home: Home) {
        // The first fills the stream from its handler, the second ends without having said anything.
        for (said, text) in [(200, "chatty"), (0, "quiet")] {
            let (tell, mut at) = mpsc::unbounded_channel();
            let agent = Agent::flow("echo", move |turn: Turn<Json>| {
                let tell = tell.clone();
                async move {
                    tell.send(turn.snapshot_id().unwrap())?;
                    for _ in 0..said {
                        turn.responder().text("x").await?;
                    }
                    turn.add_message(Message::model("done"))?;
                    Ok(())
                }
            });
            let mut limits = StreamLimits::default();
            limits.chunks = 1;
            let agent = agent.shared_store(home.store()).stream_limits(limits).build().unwrap();
            let mut connection = agent.connect(Init::session(sid(text))).await.unwrap();
            for _ in 0..3 {
                connection.send_text(text).await.unwrap();
            }
            in_time(at.recv()).await.unwrap();
            // Whether a turn runs at that moment is a matter of luck; an answer is not.
            match in_time(connection.detach()).await {
                Ok(output) => assert_eq!(output.finish_reason, Some(FinishReason::Detached)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WrongMode);
                    let output = in_time(connection.output()).await.unwrap();
                    assert_eq!(output.state.messages().len(), 6, "what was read meanwhile was not lost: {output:?}");
                }
            }
            until(async || {
                let turns = home.store().existing(&key(text)).await.unwrap().turns;
                (turns == 3).then_some(())
            })
            .await;
        }
    }

    async fn aborting_the_connection_aborts_what_went_to_the_background(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send_text("one").await.unwrap();
        let id = gate.started().await.snapshot.unwrap();
        in_time(connection.detach()).await.unwrap();
        connection.abort();
        gate.cancelled().await;
        assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Aborted);
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn draining_waits_for_what_goes_on_and_tells_what_is_left(home: Home) {
        let (agent, mut gate) = held(home.store());
        assert_eq!(agent.drain(Duration::ZERO).await, 0);
        for session in ["a", "b"] {
            agent.run(detached("one"), Init::session(sid(session))).await.unwrap();
            gate.started().await;
        }
        let attached = agent.connect(Init::session(sid("c"))).await.unwrap();
        attached.send_text("one").await.unwrap();
        gate.started().await;
        assert_eq!(agent.drain(Duration::from_millis(1)).await, 2, "somebody waits for the attached one");
        let draining = tokio::spawn({
            let agent = agent.clone();
            async move { agent.drain(SOON).await }
        });
        for _ in 0..3 {
            gate.go();
        }
        assert_eq!(in_time(draining).await.unwrap(), 0);
        let running = home.store().running(None).await.unwrap();
        assert!(running.iter().all(|turn| turn.session == key("c")), "drained means ended: {running:?}");
    }

    async fn a_workers_shutdown_drains_within_its_deadline(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut registry = Registry::new();
        registry.register(agent.clone()).unwrap();
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        let worker = Worker::start(registry.clone(), Duration::from_secs(1));
        assert_eq!(in_time(worker.shutdown(Duration::from_millis(5))).await, 1);
        assert_eq!(status(&agent, id).await, SnapshotStatus::Pending, "it is left as it is");
        let worker = Worker::start(registry, Duration::from_secs(1));
        gate.go();
        assert_eq!(in_time(worker.shutdown(Duration::MAX)).await, 0);
        assert_eq!(status(&agent, id).await, SnapshotStatus::Completed);
    }

    async fn a_session_deleted_under_it_stops_it(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store());
        let agent = agent.patience(patience(|p| p.abort_poll = Duration::from_millis(5))).build().unwrap();
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        assert!(home.elsewhere().delete(&key("s")).await.unwrap());
        gate.cancelled().await;
        assert_eq!(kind(in_time(agent.wait(id, None)).await), ErrorKind::NotFound);
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn many_go_on_at_once_and_none_is_mixed_up(home: Home) {
        let agent = stored(&home);
        let mut ids = Vec::new();
        for n in 0..40 {
            let init = Init::session(sid(&format!("s{}", n % 8))).key(TurnKey::new(format!("k{n}")).unwrap());
            ids.push((n, agent.run(detached(&format!("t{n}")), init).await.unwrap().snapshot_id.unwrap()));
        }
        for (n, id) in ids {
            let done = in_time(agent.wait(id, None)).await.unwrap();
            assert_eq!(done.status, SnapshotStatus::Completed);
            assert_eq!(said_in(&done).last().unwrap(), &format!("echo: t{n}"));
        }
        assert_eq!(agent.drain(SOON).await, 0);
        assert!(home.store().running(None).await.unwrap().iter().all(|turn| turn.status != TurnStatus::Dead));
        assert!(home.elsewhere().verify(VerifyScope::All).await.unwrap().damage.is_none());
    }
}

#[tokio::test]
async fn a_state_that_the_client_keeps_cannot_go_to_the_background() {
    let (agent, mut gate) = gated(Hears::Well);
    let agent = agent.build().unwrap();
    refused(agent.run(detached("one"), Init::new()).await, ErrorKind::WrongMode, "client-managed");
    assert!(!gate.has_started());
    let mut connection = agent.connect(Init::new()).await.unwrap();
    connection.send_text("one").await.unwrap();
    gate.started().await;
    refused(in_time(connection.detach()).await, ErrorKind::WrongMode, "client-managed");
    gate.go();
    assert_eq!(said(&connection.output().await.unwrap()), ["one", "echo: one"]);
    let id = everturn::SnapshotId::from_uuid(uuid::Uuid::now_v7());
    assert_eq!(kind(agent.abort(id).await), ErrorKind::WrongMode);
    assert_eq!(kind(agent.wait(id, None).await), ErrorKind::WrongMode);
    assert_eq!(kind(agent.recover().await), ErrorKind::WrongMode);
}
