//! Clocks on the wall that are set back or forth by an hour: they steal no live lease and keep no dead one.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{MemoryOptions, Store};
use everturn::{Clock, ErrorKind, Init, ManualClock, Recovery, SnapshotStatus};

use crate::children::{HEARTBEAT, Jumping, LEASE, Place, Said};
use crate::gate::*;
use crate::support::*;

const HOUR: i64 = 3600;
const RETRY: Recovery = Recovery::Retry { attempts: 3 };

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_changes_nothing_about_a_lease() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let store: Arc<dyn Store> = Arc::new(MemoryOptions::new().clock(Arc::new(clock.clone())).build());
    let (agent, mut gate) = held(store.clone());
    let other = echo().shared_store(store).recovery(RETRY).build().unwrap();
    let id = agent.run(detached("one"), Init::session(sid("s"))).await.unwrap().snapshot_id.unwrap();
    gate.started().await;
    for jump in ["2026-01-01T01:00:00Z", "2025-12-31T23:00:00Z"] {
        clock.set_wall(jump.parse().unwrap());
        assert_eq!(status(&agent, id).await, SnapshotStatus::Pending);
        assert_eq!(other.recover().await.unwrap(), []);
        // Its heartbeat goes on, and says what the wall says.
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(row(&agent, id).await.heartbeat_at, Some(clock.now()));
    }
    // Only time that really passes counts.
    clock.advance(Duration::from_secs(61));
    assert_eq!(status(&agent, id).await, SnapshotStatus::Expired);
    clock.set_wall("2025-12-31T22:00:00Z".parse().unwrap());
    assert_eq!(other.recover().await.unwrap().len(), 1);
    assert_eq!(in_time(other.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
}

/// The jumps are in the process that works.
#[tokio::test]
async fn a_process_whose_clock_jumps_keeps_its_turn_and_loses_it_when_it_dies() {
    for jump in [HOUR, -HOUR] {
        let place = Place::new();
        let mut child = place.child(&[(LEASE, "5000"), (HEARTBEAT, "20")]);
        child.tell("detach s hold");
        let id = child.accepted();
        let agent = place.agent(RETRY);
        let before = agent.snapshot(id).await.unwrap().unwrap().heartbeat_at.unwrap();
        child.tell(&format!("jump {jump}"));
        // It has given a sign of life since, by its new clock.
        until(async || {
            let row = agent.snapshot(id).await.unwrap().unwrap();
            assert_eq!(row.status, SnapshotStatus::Pending);
            let moved = row.heartbeat_at?.as_micros() - before.as_micros();
            (moved.abs() > HOUR * 900_000).then_some(())
        })
        .await;
        assert_eq!(agent.recover().await.unwrap(), [], "it lives");
        assert_eq!(kind(agent.wait(id, Some(Duration::from_millis(50))).await), ErrorKind::Unavailable);
        child.kill();
        assert_eq!(agent.snapshot(id).await.unwrap().unwrap().status, SnapshotStatus::Expired, "at once");
        assert_eq!(agent.recover().await.unwrap().len(), 1);
        assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
    }
}

/// The jumps are in the process that looks.
#[tokio::test]
async fn a_process_whose_clock_jumps_steals_nothing_and_finds_the_dead() {
    for jump in [HOUR, -HOUR] {
        let place = Place::new();
        let mut child = place.child(&[(LEASE, "60000"), (HEARTBEAT, "3600000")]);
        child.tell("detach s hold");
        let id = child.accepted();
        let clock = Jumping::new();
        let agent = place.agent_with(RETRY, clock.clone(), Duration::from_secs(60));
        clock.jump(jump);
        assert_eq!(agent.snapshot(id).await.unwrap().unwrap().status, SnapshotStatus::Pending);
        assert_eq!(agent.recover().await.unwrap(), []);
        child.tell("recover");
        assert!(matches!(child.next(), Said::Recovered(0)), "it lives and answers");
        child.kill();
        assert_eq!(agent.recover().await.unwrap().len(), 1, "at once");
        assert_eq!(in_time(agent.wait(id, None)).await.unwrap().status, SnapshotStatus::Completed);
    }
}
