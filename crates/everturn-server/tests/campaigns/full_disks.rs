//! The disk is full while servers are at work on it, then there is room again.
//!
//! The store is on a small file system of its own. It is filled to the last byte or nearly so, under one server or two on
//! one file, some of which are killed and started while it is full; reads go on all the time. When there is room the
//! servers go on by themselves, and so does every session, without waiting for a lease to lapse. At the end every
//! acknowledged turn is there once, and the file is sound.
//!
//! `EVERTURN_FULL_DISKS` is how many times it is full, `EVERTURN_SEED` picks when and how much is left. Where no file
//! system can be mounted that is said loudly, and is a failure in CI.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::small_disk::Small;
use crate::support::{
    PATIENCE, Peers, Refusals, Rng, Tally, USABLE_WITHIN, Way, check_accounts, clients, get, go_on, not_run, seeded,
    setting, settle, sound, until, works,
};

const CLIENTS: [(Way, &str); 8] = [
    (Way::Keyed, "own-keyed"),
    (Way::KeyedStream, "own-stream"),
    (Way::Plain, "own-plain"),
    (Way::Genkit, "own-genkit"),
    (Way::Detached, "own-detached"),
    (Way::Keyed, "shared"),
    (Way::Plain, "shared"),
    (Way::Genkit, "shared"),
];

/// Whether a server is killed while the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    No,
    Yes,
}

#[test]
fn no_acknowledged_turn_is_lost_when_the_disk_is_full_under_load_and_work_goes_on_when_there_is_room() {
    let mut rng = seeded(61);
    for cycle in 0..setting("EVERTURN_FULL_DISKS", 2) {
        let (servers, killed) = match cycle % 4 {
            0 => (1, Killed::No),
            1 => (2, Killed::Yes),
            2 => (2, Killed::No),
            _ => (1, Killed::Yes),
        };
        let Some(disk) = Small::mount(["24m", "60m"][rng.index(2)]) else {
            return not_run("disks that are full", "no file system can be mounted");
        };
        fill_up(&disk, servers, killed, &mut rng);
    }
}

/// Fills a disk under load and makes room again.
fn fill_up(disk: &Small, count: usize, killed: Killed, rng: &mut Rng) {
    let logs = tempfile::tempdir().unwrap();
    let mut peers = Peers::started(logs.path(), disk.path(), count);
    let mut clients = clients(rng, &CLIENTS);
    let mut well = Instant::now();
    peers.under_load(&mut clients, Refusals::Expected, |peers| {
        thread::sleep(Duration::from_millis(100 + rng.below(200)));
        let left = usize::try_from(rng.below(3) * rng.below(60_000)).expect("a size");
        let ballast = disk.fill_but(left);
        until("that writes are refused", PATIENCE, || match works(peers.address(0)) {
            Err(why) => Ok(why),
            Ok(()) => Err("there is still room".to_owned()),
        });
        thread::sleep(Duration::from_millis(rng.below(300)));
        if killed == Killed::Yes {
            peers.kill(count - 1);
            peers.start(count - 1);
        }
        for server in 0..count {
            let listed = get(peers.address(server), "/v1/agents/echo/sessions");
            assert!(listed.status == 200, "reads do not go on: {listed:?}");
        }
        fs::remove_file(ballast).unwrap();
        well = Instant::now();
        for server in 0..count {
            until("that the server goes on by itself", PATIENCE, || works(peers.address(server)));
        }
    });
    let server = peers.address(0).to_owned();
    let usable = go_on(&server, &mut clients, well, USABLE_WITHIN);
    peers.unharmed();
    (0..count).for_each(|server| peers.kill(server));
    peers.start(0);
    let server = peers.address(0);
    settle(&[server], &mut clients, PATIENCE);
    let given_up = check_accounts(server, &clients);
    peers.unharmed();
    drop(peers);
    sound(disk.path());
    let tally = Tally::of(&clients);
    println!(
        "{count} servers, killed: {killed:?}: every session usable {usable:?} after there was room; {tally}; \
         0 lost, {given_up} given up"
    );
    assert!(tally.refused > 0, "it was never full");
}
