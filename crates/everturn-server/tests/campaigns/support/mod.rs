//! What the campaigns share: clients that keep account of what they were promised, servers on one file, and the wire
//! between them.

mod account;
mod client;
mod peers;
mod rng;
mod wire;

pub(crate) use account::{
    check_accounts, check_accounts_before, exports_come_in, none_is_left_open, settle, sound, works,
};
pub(crate) use client::{Client, Refusals, Tally, Way, clients, go_on, name_of};
pub(crate) use peers::{Peers, Stage};
pub(crate) use rng::Rng;
pub(crate) use wire::{Event, Reply, ask, events, get, post, start_stream};

use std::io::{self, Write as _};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a loaded machine. What is not so by then is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How soon a session can be written to again when a disk is well. A lease lasts 60 s, which must not be waited for.
pub(crate) const USABLE_WITHIN: Duration = Duration::from_secs(20);

/// A number from the environment, so that a soak can ask for more.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The choices of a campaign, repeated by its seed, which is printed.
pub(crate) fn seeded(default: u64) -> Rng {
    let seed = setting("EVERTURN_SEED", default);
    println!("EVERTURN_SEED={seed}");
    Rng::new(seed)
}

/// Asks until something is so, for as long as is given.
#[track_caller]
pub(crate) fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + limit;
    loop {
        match ask() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < end, "{what}: not after {limit:?}: {last}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What a campaign needs and this machine does not have: said loudly here, a failure in CI.
pub(crate) fn not_run(campaign: &str, why: &str) {
    let ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
    assert!(!ci, "{campaign} cannot be run, and must be in CI: {why}");
    // Not eprintln, which is not shown of a test that passes.
    let _ = writeln!(io::stderr(), "\n== NOT RUN, {campaign}: {why}\n");
}
