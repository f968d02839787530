//! The runtime: agents, live sessions, turns, streams. One module a theme; where a store matters, every test runs on
//! each of them.

#[macro_use]
mod support;

mod faulty;

mod busy;
mod chat;
mod client_managed;
mod compaction;
mod compaction_auto;
mod compaction_turns;
mod compaction_views;
mod doc000;
mod doc001;
mod doc002;
mod failures;
mod following;
mod keys;
mod lines;
mod loops;
mod patches;
mod policies;
mod reading;
mod sessions;
mod shown;
mod signatures;
mod slow_readers;
mod spans;
mod starts;
mod stateless;
mod stops;
mod store_faults;
mod streams;
mod told;
mod upcasting;
mod view;
