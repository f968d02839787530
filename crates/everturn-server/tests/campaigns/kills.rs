//! Servers are killed while many clients are at work, again and again, on one store.
//!
//! Clients take turns over `/v1`, with and without a key, as a plain answer, as a stream and in the background, and over
//! `/genkit`; some have a session of their own, some share one. A client whose connection breaks does not know what became
//! of its turn. With a key it sends the same again, to whichever server is up; without one it goes on with the next. At the
//! end every turn that was acknowledged is on its session's line exactly once, no turn is there twice, and all that ran in
//! the background has completed. A turn that died while others went on with their session ends beside its line; that is
//! acknowledged as `onHead: false`, and then it is exactly there. The file is sound, and every session's export is taken by
//! another server.
//!
//! There are one, two and three servers on the file; one is killed at random while it works, or already while it starts and
//! recovers. `EVERTURN_SEED` picks the moments, `EVERTURN_KILLS` how many there are in each campaign.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    Client, PATIENCE, Peers, Refusals, Rng, Tally, Way, check_accounts, clients, exports_come_in, none_is_left_open,
    seeded, setting, settle, sound,
};

/// Who takes part, and in which session.
const CLIENTS: [(Way, &str); 14] = [
    (Way::Keyed, "own-keyed"),
    (Way::Keyed, "own-keyed-too"),
    (Way::KeyedStream, "own-stream"),
    (Way::Plain, "own-plain"),
    (Way::Plain, "own-plain-too"),
    (Way::Genkit, "own-genkit"),
    (Way::Detached, "own-detached"),
    (Way::Detached, "own-detached-too"),
    (Way::Keyed, "shared"),
    (Way::KeyedStream, "shared"),
    (Way::Plain, "shared"),
    (Way::Genkit, "shared"),
    (Way::Keyed, "shared"),
    (Way::Detached, "shared"),
];

/// Kills servers under load, then compares what was acknowledged with what is there.
fn campaign(count: usize, mut rng: Rng, attack: impl FnOnce(&mut Peers, &mut Rng) -> u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut peers = Peers::started(dir.path(), dir.path(), count);
    let mut clients = clients(&mut rng, &CLIENTS);
    let mut kills = 0;
    peers.under_load(&mut clients, Refusals::None, |peers| kills = attack(peers, &mut rng));
    let replayed = {
        let servers: Vec<_> = (0..count).map(|server| peers.address(server)).collect();
        settle(&servers, &mut clients, PATIENCE)
    };
    let given_up = check(&peers, &clients);
    peers.unharmed();
    drop(peers);
    sound(dir.path());
    let tally = Tally::of(&clients);
    println!(
        "{count} servers, {kills} kills: {tally}; 0 lost, 0 doubled; {replayed} keys sent again; {given_up} given up after three kills"
    );
    assert!(given_up * 4 <= tally.detached, "kills follow each other too closely for anything to recover");
    assert!(tally.acknowledged > 20 && tally.retried > 0 && tally.detached > 0, "too little was under way to be lost");
}

/// Gives how many turns in the background were given up.
fn check(peers: &Peers, clients: &[Client]) -> usize {
    let server = peers.address(0);
    let given_up = check_accounts(server, clients);
    none_is_left_open(server, clients);
    exports_come_in(server, clients);
    given_up
}

/// Lets servers work for a moment, then kills one and starts it again.
fn kill_at_random(peers: &mut Peers, rng: &mut Rng, count: usize) -> u64 {
    let kills = setting("EVERTURN_KILLS", 5);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(20 + rng.below(300)));
        let victim = rng.index(count);
        peers.kill(victim);
        peers.start(victim);
    }
    thread::sleep(Duration::from_millis(50));
    kills
}

#[test]
fn no_acknowledged_turn_is_lost_or_doubled_when_the_server_is_killed_under_load() {
    campaign(1, seeded(21), |peers, rng| kill_at_random(peers, rng, 1));
}

#[test]
fn nor_when_one_of_two_servers_on_the_file_is_killed() {
    campaign(2, seeded(22), |peers, rng| kill_at_random(peers, rng, 2));
}

#[test]
fn nor_when_one_of_three_servers_on_the_file_is_killed() {
    campaign(3, seeded(23), |peers, rng| kill_at_random(peers, rng, 3));
}

#[test]
fn nor_when_the_server_is_killed_again_while_it_starts_and_recovers() {
    campaign(1, seeded(24), |peers, rng| {
        let rounds = setting("EVERTURN_KILLS", 5);
        let mut kills = 0;
        for _ in 0..rounds {
            let started = Instant::now();
            peers.kill(0);
            peers.start(0);
            // From before it has opened the file until a little after it listens.
            let start = started.elapsed() + Duration::from_millis(40);
            for _ in 0..1 + rng.below(2) {
                peers.kill(0);
                peers.launch(0);
                let end = Instant::now() + start.mul_f64(rng.below(1000) as f64 / 1000.0);
                while Instant::now() < end {
                    peers.notice(0);
                    thread::sleep(Duration::from_millis(1));
                }
                kills += 1;
            }
            peers.kill(0);
            peers.start(0);
            kills += 2;
            thread::sleep(Duration::from_millis(100 + rng.below(100)));
        }
        kills
    });
}
