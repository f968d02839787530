//! What may go wrong while clients are at work, done to the built binary on purpose, again and again, with the promises
//! counted afterwards: servers that are killed, turns that are aborted, disks that fail and fill up, clocks that jump,
//! readers that break off, backups under load and files that were tampered with.
//!
//! Every campaign prints its counts and its seed. `scripts/test` runs each for a few seconds, `scripts/test soak` at
//! length; `scripts/test --help` lists the numbers that make one longer.

mod aborts;
mod backups;
mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod exports;
mod failing_disks;
mod full_disks;
mod kills;
mod one_session;
mod streams;
mod support;
