//! The clock of a server jumps back and forth by days and years while it is at work, beside a server whose clock is right.
//!
//! libfaketime gives one server's process a wall clock that the campaign sets; the time that only goes forward is left
//! alone, as it is when a machine's clock is set. No turn is taken over because its lease seems to have lapsed, none
//! lasts for ever because it seems to be far away, and what is begun in the future goes on in the past: at the end the
//! server is killed in the future and started in the past. Every acknowledged turn is there once.
//!
//! `EVERTURN_JUMPS` is how often the clock is set, `EVERTURN_SEED` picks when and to what. Without libfaketime that is said
//! loudly, and is a failure in CI.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    PATIENCE, Peers, Refusals, Tally, Way, check_accounts, clients, exports_come_in, go_on, not_run, post, seeded,
    setting, settle, sound,
};

const CLIENTS: [(Way, &str); 8] = [
    (Way::Keyed, "own-keyed"),
    (Way::KeyedStream, "own-stream"),
    (Way::Plain, "own-plain"),
    (Way::Genkit, "own-genkit"),
    (Way::Detached, "own-detached"),
    (Way::Detached, "own-detached-too"),
    (Way::Keyed, "shared"),
    (Way::Plain, "shared"),
];

/// The library, where Debian puts it.
fn library() -> Option<PathBuf> {
    let found = |dir: PathBuf| Some(dir.join("faketime/libfaketimeMT.so.1")).filter(|library| library.exists());
    let below = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| found(entry.ok()?.path()));
    below.chain(found("/usr/lib".into())).next()
}

fn set(clock: &Path, days: i64) {
    // In one step: the server may read it at any moment.
    let new = clock.with_extension("new");
    fs::write(&new, format!("{days:+}d\n")).unwrap();
    fs::rename(new, clock).unwrap();
}

#[test]
fn no_turn_is_lost_or_taken_over_when_a_servers_clock_jumps() {
    let Some(library) = library() else {
        return not_run("clocks that jump", "there is no libfaketime: install Debian's libfaketime");
    };
    let mut rng = seeded(101);
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    set(&clock, 0);
    let mut peers = Peers::new(dir.path(), dir.path(), 2);
    let start = |peers: &mut Peers| {
        peers.start_by(0, |command| {
            command.env("LD_PRELOAD", &library).env("FAKETIME_TIMESTAMP_FILE", &clock);
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        });
    };
    start(&mut peers);
    peers.start(1);
    let mut clients = clients(&mut rng, &CLIENTS);
    let jumps = setting("EVERTURN_JUMPS", 12);
    let mut farthest = 0;
    peers.under_load(&mut clients, Refusals::None, |peers| {
        for _ in 0..jumps {
            thread::sleep(Duration::from_millis(20 + rng.below(120)));
            let days = i64::try_from(rng.below(430)).expect("some days") - 30;
            set(&clock, days);
            farthest = farthest.max(days);
        }
        set(&clock, 400);
        thread::sleep(Duration::from_millis(100));
        peers.kill(0);
        set(&clock, -30);
        start(peers);
        thread::sleep(Duration::from_millis(100));
    });
    let [past, present] = [made_at(peers.address(0), "past"), made_at(peers.address(1), "present")];
    assert!(past[..10] < present[..10], "the clock was not set: {past} {present}");
    go_on(peers.address(0), &mut clients, Instant::now(), PATIENCE);
    let servers = [peers.address(0), peers.address(1)];
    settle(&servers, &mut clients, PATIENCE);
    let given_up = check_accounts(servers[1], &clients);
    exports_come_in(servers[1], &clients);
    peers.unharmed();
    drop(peers);
    sound(dir.path());
    let tally = Tally::of(&clients);
    println!("{jumps} jumps of -30 to +{farthest} days: {tally}; 0 lost, 0 doubled, {given_up} given up");
    assert_eq!(given_up, 0);
    assert!(tally.worst < Duration::from_secs(30), "a turn waited as if for a lease: {:?}", tally.worst);
}

/// When a server says that a session of this name was made: in UTC, the year first.
fn made_at(server: &str, session: &str) -> String {
    let made = post(server, "/v1/agents/echo/sessions", &json!({ "id": session })).ok();
    made["createdAt"].as_str().expect("a time").to_owned()
}
