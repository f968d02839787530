//! Turns that are aborted: by their snapshot or their invocation, attached or in the background, from here or elsewhere.

use std::time::Duration;

use everturn::store::{StoreExt, TurnRef};
use everturn::{
    Agent, AppName, Connection, ErrorKind, FinishReason, Init, InvocationId, Message, Patience, SnapshotId,
    SnapshotPolicy, SnapshotStatus,
};

use crate::children::{LONG, Place, Said};
use crate::faulty::{Faults, Write};
use crate::gate::*;
use crate::support::*;

/// Nobody looks by himself: who is told at once is told without that.
fn never_looks() -> Patience {
    patience(|p| (p.abort_poll, p.heartbeat) = (LONG, LONG))
}

/// Looks often, and learns nothing from its heartbeat.
fn looks_often() -> Patience {
    patience(|p| (p.abort_poll, p.heartbeat) = (Duration::from_millis(5), LONG))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Attached,
    WithInput,
    Halfway,
}

const MODES: [Mode; 3] = [Mode::Attached, Mode::WithInput, Mode::Halfway];

#[derive(Clone, Copy, Debug)]
enum By {
    Snapshot,
    Invocation,
}

fn invocation(text: &str) -> InvocationId {
    InvocationId::new(text).unwrap()
}

/// A turn that is held, in a session of its own.
async fn begun(agent: &Agent<Tally>, gate: &mut Gate, mode: Mode, name: &str) -> (Connection, Option<SnapshotId>) {
    let init = Init::session(sid(name)).invocation(invocation(name));
    let mut connection = agent.connect(init).await.unwrap();
    let input = if mode == Mode::WithInput { detached("one") } else { everturn::Input::text("one") };
    connection.send(input).await.unwrap();
    let id = gate.started().await.snapshot;
    if mode == Mode::Halfway {
        in_time(connection.detach()).await.unwrap();
    }
    (connection, id)
}

async fn abort(agent: &Agent<Tally>, by: By, name: &str, id: SnapshotId) -> Option<SnapshotStatus> {
    match by {
        By::Snapshot => agent.abort(id).await.unwrap(),
        By::Invocation => agent.abort_invocation(&sid(name), &invocation(name)).await.unwrap(),
    }
}

/// Aborts in every way; `aborter` is who does it.
async fn aborts_in_every_way(agent: &Agent<Tally>, gate: &mut Gate, aborter: &Agent<Tally>) {
    for mode in MODES {
        for by in [By::Snapshot, By::Invocation] {
            let name = format!("{mode:?} {by:?}");
            let (mut connection, id) = begun(agent, gate, mode, &name).await;
            let id = id.unwrap();
            assert_eq!(abort(aborter, by, &name, id).await, Some(SnapshotStatus::Pending), "{name}");
            let aborted = row(aborter, id).await;
            assert_eq!((aborted.status, aborted.finish_reason), (SnapshotStatus::Aborted, Some(FinishReason::Aborted)));
            assert_eq!(gate.cancelled().await, "one", "{name}");
            let output = in_time(connection.output()).await.unwrap();
            let reason = if mode == Mode::Attached { FinishReason::Aborted } else { FinishReason::Detached };
            assert_eq!((output.finish_reason, output.error), (Some(reason), None), "{name}");
            assert_eq!(agent.drain(SOON).await, 0);
            // Final, whoever asks again and whatever the handler made of it.
            assert_eq!(aborter.abort(id).await.unwrap(), Some(SnapshotStatus::Aborted));
            assert_eq!(aborter.abort_invocation(&sid(&name), &invocation(&name)).await.unwrap(), None);
            assert_eq!(row(aborter, id).await, aborted, "{name}");
            refused(agent.run_text("x", Init::snapshot(id)).await, ErrorKind::NotResumable, "aborted");
            let head = aborter.store().unwrap().head_state(&key(&name)).await.unwrap();
            assert!(head.messages().is_empty(), "{name}: nothing of it counts");
        }
    }
}

on_every_store! {
    async fn in_its_own_process_a_turn_is_told_at_once(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).patience(never_looks()).build().unwrap();
        aborts_in_every_way(&agent, &mut gate, &agent).await;
    }

    async fn elsewhere_a_turn_is_told_when_it_looks(home: Home) {
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(home.store()).patience(looks_often()).build().unwrap();
        let aborter = echo().shared_store(home.elsewhere()).build().unwrap();
        aborts_in_every_way(&agent, &mut gate, &aborter).await;
    }

    async fn a_turn_without_a_snapshot_is_told_as_well(home: Home) {
        for elsewhere in [false, true] {
            let (agent, mut gate) = gated(Hears::Well);
            let agent = agent.shared_store(home.store()).snapshots(SnapshotPolicy::never());
            let agent = agent.patience(if elsewhere { looks_often() } else { never_looks() }).build().unwrap();
            let other = echo().shared_store(home.elsewhere()).build().unwrap();
            let aborter = if elsewhere { &other } else { &agent };
            let name = format!("never {elsewhere}");
            let (mut connection, id) = begun(&agent, &mut gate, Mode::Attached, &name).await;
            assert_eq!(id, None);
            let before = aborter.abort_invocation(&sid(&name), &invocation(&name)).await.unwrap();
            assert_eq!(before, Some(SnapshotStatus::Pending));
            gate.cancelled().await;
            assert_eq!(in_time(connection.output()).await.unwrap().finish_reason, Some(FinishReason::Aborted));
        }
    }

    async fn a_handler_that_hears_nothing_cannot_commit(home: Home) {
        for mode in MODES {
            let (agent, mut gate) = gated(Hears::Nothing);
            let agent = agent.shared_store(home.store()).patience(never_looks()).build().unwrap();
            let aborter = echo().shared_store(home.elsewhere()).build().unwrap();
            let name = format!("{mode:?}");
            let (mut connection, id) = begun(&agent, &mut gate, mode, &name).await;
            let id = id.unwrap();
            // It does not know, goes on, and ends as if nothing had been.
            assert_eq!(aborter.abort(id).await.unwrap(), Some(SnapshotStatus::Pending));
            let aborted = row(&aborter, id).await;
            gate.go();
            let output = in_time(connection.output()).await.unwrap();
            assert_eq!(agent.drain(SOON).await, 0);
            assert_eq!(row(&aborter, id).await, aborted);
            assert!(home.elsewhere().head_state(&key(&name)).await.unwrap().messages().is_empty());
            if mode == Mode::Attached {
                assert_eq!((output.finish_reason, said(&output)), (Some(FinishReason::Aborted), vec![]));
            }
        }
    }

    async fn a_handler_that_hears_nothing_is_abandoned(home: Home) {
        let (agent, mut gate) = gated(Hears::Nothing);
        let patience = patience(|p| p.cancelled = Duration::from_millis(10));
        let agent = agent.shared_store(home.store()).patience(patience).build().unwrap();
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        let session = gate.started().await.session;
        agent.abort(id).await.unwrap();
        let aborted = row(&agent, id).await;
        assert_eq!(agent.drain(SOON).await, 0, "nobody waits for it");
        gate.go();
        assert!(session.add_message(Message::model("late")).is_err());
        assert!(session.update_custom(|tally| tally.turns += 1).is_err());
        assert_eq!(row(&agent, id).await, aborted);
        // The session is free for the next, which sees nothing of it.
        let next = agent.run_text("two", Init::session(sid("s"))).await.unwrap();
        assert_eq!(said(&next), ["two", "echo: two"]);
    }

    async fn an_abort_before_it_has_begun_finds_nothing(home: Home) {
        let faults = Faults::default();
        let (agent, gate) = held(faults.store(home.store()));
        let pause = faults.pause(Write::Begin);
        let init = Init::session(sid("s")).invocation(invocation("i"));
        let turn = tokio::spawn({
            let agent = agent.clone();
            async move { agent.run(detached("one"), init).await }
        });
        in_time(pause.reached()).await;
        assert_eq!(agent.abort_invocation(&sid("s"), &invocation("i")).await.unwrap(), None);
        pause.go();
        let id = in_time(turn).await.unwrap().unwrap().snapshot_id.unwrap();
        gate.go();
        assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
    }

    async fn an_abort_while_it_begins_keeps_its_handler_from_running(home: Home) {
        let faults = Faults::default();
        let (agent, mut gate) = gated(Hears::Well);
        let agent = agent.shared_store(faults.store(home.store())).patience(never_looks()).build().unwrap();
        let pause = faults.pause(Write::Step);
        let init = Init::session(sid("s")).invocation(invocation("i"));
        let turn = tokio::spawn({
            let agent = agent.clone();
            async move { agent.run(detached("one"), init).await }
        });
        in_time(pause.reached()).await;
        let before = agent.abort_invocation(&sid("s"), &invocation("i")).await.unwrap();
        assert_eq!(before, Some(SnapshotStatus::Pending));
        pause.go();
        let output = in_time(turn).await.unwrap().unwrap();
        assert_eq!((output.finish_reason, output.error), (Some(FinishReason::Aborted), None));
        assert!(!gate.has_started());
        assert_eq!(home.store().running(None).await.unwrap(), []);
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn an_abort_while_it_ends_comes_before_or_after_it(home: Home) {
        for mode in MODES {
            let faults = Faults::default();
            let (agent, mut gate) = gated(Hears::Well);
            let agent = agent.shared_store(faults.store(home.store())).patience(never_looks()).build().unwrap();
            let name = format!("{mode:?}");
            let (mut connection, id) = begun(&agent, &mut gate, mode, &name).await;
            let pause = faults.pause(Write::End);
            gate.go();
            in_time(pause.reached()).await;
            assert_eq!(agent.abort(id.unwrap()).await.unwrap(), Some(SnapshotStatus::Pending));
            let aborted = row(&agent, id.unwrap()).await;
            pause.go();
            let output = in_time(connection.output()).await.unwrap();
            assert_eq!(agent.drain(SOON).await, 0);
            assert_eq!(row(&agent, id.unwrap()).await, aborted);
            assert_eq!(aborted.status, SnapshotStatus::Aborted);
            if mode == Mode::Attached {
                assert_eq!(output.finish_reason, Some(FinishReason::Aborted), "it was not told that it went through");
            }
        }
    }

    async fn what_has_ended_stays_as_it_is(home: Home) {
        let (agent, mut gate) = held(home.store());
        for (text, ended) in [("one", SnapshotStatus::Completed), ("fail why", SnapshotStatus::Failed)] {
            let init = Init::session(sid("s")).invocation(invocation("i"));
            let id = agent.run(detached(text), init).await.unwrap().snapshot_id.unwrap();
            gate.started().await;
            gate.go();
            let before = in_time(agent.wait(id, None)).await.unwrap();
            assert_eq!(agent.abort(id).await.unwrap(), Some(ended));
            assert_eq!(agent.abort_invocation(&sid("s"), &invocation("i")).await.unwrap(), None);
            assert_eq!(row(&agent, id).await, before);
        }
    }

    async fn what_is_not_there_cannot_be_aborted(home: Home) {
        let agent = stored(&home);
        let unknown = SnapshotId::from_uuid(uuid::Uuid::now_v7());
        assert_eq!(agent.abort(unknown).await.unwrap(), None);
        assert_eq!(agent.abort_invocation(&sid("nowhere"), &invocation("i")).await.unwrap(), None);
        agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        assert_eq!(agent.abort_invocation(&sid("s"), &invocation("nobody")).await.unwrap(), None);
    }

    async fn nobody_aborts_the_turns_of_others(home: Home) {
        for mode in MODES {
            let (agent, mut gate) = held(home.store());
            let name = format!("{mode:?}");
            let (_connection, id) = begun(&agent, &mut gate, mode, &name).await;
            let id = id.unwrap();
            let stranger = agent.for_user(user("mallory"));
            let colleague = Agent::flow("other", echo_turn).app(AppName::new("echo").unwrap());
            let colleague = colleague.shared_store(home.store()).build().unwrap();
            for other in [&stranger, &colleague] {
                assert_eq!(other.abort(id).await.unwrap(), None);
                assert_eq!(other.abort_invocation(&sid(&name), &invocation(&name)).await.unwrap(), None);
                assert_eq!(kind(other.wait(id, Some(Duration::ZERO)).await), ErrorKind::NotFound);
            }
            gate.go();
            assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
        }
    }

    async fn what_was_queued_behind_an_aborted_turn_is_not_worked_on(home: Home) {
        let (agent, mut gate) = held(home.store());
        let mut connection = agent.connect(Init::session(sid("s"))).await.unwrap();
        connection.send(detached("one")).await.unwrap();
        connection.send_text("two").await.unwrap();
        let id = in_time(connection.output()).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        agent.abort(id).await.unwrap();
        assert_eq!(agent.drain(SOON).await, 0);
        assert!(!gate.has_started());
    }

    async fn a_snapshot_inside_a_turn_is_not_the_turn(home: Home) {
        let (tell, mut named) = tokio::sync::mpsc::unbounded_channel();
        let agent = Agent::flow("echo", move |turn: everturn::Turn<Tally>| {
            let tell = tell.clone();
            async move {
                tell.send(turn.tool_iteration_end().await?.unwrap())?;
                turn.cancelled().await;
                Ok(())
            }
        });
        let agent = agent.shared_store(home.store()).build().unwrap();
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        let inside = in_time(named.recv()).await.unwrap();
        let ended = agent.abort(inside).await.unwrap();
        assert_eq!((ended, status(&agent, id).await), (Some(SnapshotStatus::Completed), SnapshotStatus::Pending));
        agent.abort(id).await.unwrap();
        assert_eq!(agent.drain(SOON).await, 0);
    }

    async fn the_store_is_told_the_same(home: Home) {
        let (agent, mut gate) = held(home.store());
        let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
        gate.started().await;
        home.elsewhere().abort(TurnRef::Snapshot(id)).await.unwrap();
        assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Aborted);
        assert_eq!(gate.cancelled().await, "one");
    }
}

/// From one process a turn in another is aborted. Only its looking tells it: its heartbeat comes once an hour.
#[tokio::test]
async fn a_turn_in_another_process_is_told_within_the_poll_interval() {
    let place = Place::new();
    let mut child = place.child(&[]);
    let agent = place.agent(everturn::Recovery::Leave);
    for how in ["attach", "detach"] {
        child.tell(&format!("{how} {how} listen"));
        let snapshot = match how {
            "attach" => {
                child.tell("output");
                child.started()
            }
            _ => child.accepted(),
        };
        let asked = std::time::Instant::now();
        assert_eq!(agent.abort(snapshot).await.unwrap(), Some(SnapshotStatus::Pending));
        assert!(matches!(child.next(), Said::Cancelled));
        assert!(asked.elapsed() < Duration::from_secs(10), "it looks every 20 ms: {:?}", asked.elapsed());
        if how == "attach" {
            assert!(matches!(child.next(), Said::Output { finish, .. } if finish == Some(FinishReason::Aborted)));
        }
        assert_eq!(agent.snapshot(snapshot).await.unwrap().unwrap().status, SnapshotStatus::Aborted);
    }
}
