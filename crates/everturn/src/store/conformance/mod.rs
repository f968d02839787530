//! The suite that every store passes.
//!
//! A store is what [`Store`] promises, and each promise is a [`Case`] here: a name, one sentence, and a function that
//! finds out. Whoever writes a store implements [`Harness`] for it and gets one test per case:
//!
//! ```
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use everturn::store::conformance::{Capabilities, Harness, LEASE, conformance_tests};
//! use everturn::store::{MemoryOptions, Store};
//! use everturn::{ManualClock, Result};
//!
//! struct Memory {
//!     clock: ManualClock,
//!     store: Arc<dyn Store>,
//! }
//!
//! impl Memory {
//!     fn new() -> Self {
//!         let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
//!         let store = MemoryOptions::new().clock(Arc::new(clock.clone())).lease(LEASE).build();
//!         Self { clock, store: Arc::new(store) }
//!     }
//! }
//!
//! #[async_trait]
//! impl Harness for Memory {
//!     async fn open(&self) -> Result<Arc<dyn Store>> {
//!         Ok(self.store.clone())
//!     }
//!     async fn second(&self) -> Result<Arc<dyn Store>> {
//!         Ok(self.store.clone())
//!     }
//!     fn clock(&self) -> ManualClock {
//!         self.clock.clone()
//!     }
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::new()
//!     }
//! }
//!
//! conformance_tests!(Memory::new());
//! # fn main() {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # let case = everturn::store::conformance::case("sessions::a_taken_id_is_refused").unwrap();
//! # let verdict = runtime.block_on(case.run(Arc::new(Memory::new())));
//! # assert!(verdict.is_pass(), "{verdict:?}");
//! # }
//! ```
//!
//! The macro needs `tokio` among your dev-dependencies, with the features `macros` and `rt-multi-thread`. Without it,
//! [`cases`] is the list and [`run_all`] runs it and reports.
//!
//! [`writers`] is for two processes at once, which no harness can start.
//!
//! What is kept is always read back through [`Harness::second`], never through the handle that wrote it: a cache that
//! answers for a disk that was never written to is the first thing a suite like this must not believe.

mod admin;
mod artifacts;
mod bench;
mod branches;
mod busy;
mod custom;
mod deletion;
mod detached;
mod digests;
mod durability;
mod edits;
mod events;
mod fences;
mod forks;
mod harness;
mod keys;
mod limits;
mod list;
mod listing;
mod lost;
mod pages;
mod races;
mod records;
mod scopes;
mod sessions;
mod side_lines;
mod snapshots;
mod states;
mod stream_ends;
mod streams;
mod transfer;
mod trees;
mod turns;
mod verdict;
mod voids;
mod walk;
mod watching;
pub mod writers;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bench::Bench;
use verdict::{Check, Stop};

#[doc(inline)]
pub use crate::conformance_tests;
pub use harness::{Capabilities, GRACE, Harness, LEASE};
pub use verdict::{Failure, Verdict};

#[cfg(doc)]
use super::Store;

/// A case that takes this long hangs: a store that deadlocks must fail, not stop the suite.
const DEADLINE: Duration = Duration::from_secs(120);

type Run = fn(Bench) -> Pin<Box<dyn Future<Output = Check> + Send>>;

/// One promise of a store, and how to find out whether it is kept.
pub struct Case {
    /// Its name, with its group: `keys::another_payload_is_a_conflict`.
    pub name: &'static str,
    /// What is promised, in one sentence.
    pub guarantee: &'static str,
    run: Run,
}

impl Case {
    /// Runs it. The harness must be a fresh one: cases share nothing.
    pub async fn run(&self, harness: Arc<dyn Harness>) -> Verdict {
        let run = self.run;
        let work = tokio::spawn(async move { run(Bench::open(harness).await?).await });
        match tokio::time::timeout(DEADLINE, work).await {
            Ok(Ok(Ok(()))) => Verdict::Passed,
            Ok(Ok(Err(Stop::Skipped(why)))) => Verdict::Skipped(why),
            Ok(Ok(Err(Stop::Failed(failure)))) => Verdict::Failed(failure),
            Ok(Err(panic)) => Verdict::Failed(Failure::new(format!("it panicked: {panic}"))),
            Err(_) => Verdict::Failed(Failure::new(format!("it still runs after {DEADLINE:?}"))),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.guarantee)
    }
}

/// All cases, group by group.
#[must_use]
pub fn cases() -> &'static [Case] {
    list::CASES
}

/// The case of that name.
#[must_use]
pub fn case(name: &str) -> Option<&'static Case> {
    cases().iter().find(|case| case.name == name)
}

/// Runs one case and panics unless the store keeps the promise or the harness cannot find out. For tests.
pub async fn check(name: &str, harness: Arc<dyn Harness>) {
    let case = case(name).unwrap_or_else(|| panic!("there is no case {name:?}"));
    match case.run(harness).await {
        Verdict::Passed => {}
        Verdict::Skipped(why) => println!("skipped: {why}"),
        Verdict::Failed(failure) => panic!("{}\n{failure}", case.guarantee),
    }
}

/// What every case said.
#[derive(Debug)]
pub struct Report {
    /// The cases in their order, each with its verdict.
    pub verdicts: Vec<(&'static Case, Verdict)>,
}

impl Report {
    /// Whether no case failed.
    #[must_use]
    pub fn is_pass(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&'static Case, &Failure)> {
        self.verdicts.iter().filter_map(|(case, verdict)| match verdict {
            Verdict::Failed(failure) => Some((*case, failure)),
            _ => None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, verdict) in &self.verdicts {
            writeln!(f, "{:<8} {}: {}", verdict.word(), case.name, case.guarantee)?;
            if let Verdict::Failed(failure) = verdict {
                writeln!(f, "         {failure}")?;
            }
        }
        let failed = self.failures().count();
        write!(f, "{} cases, {failed} failed", self.verdicts.len())
    }
}

/// Runs every case, one after the other, each with a harness of its own.
pub async fn run_all<H: Harness + 'static>(factory: impl Fn() -> H) -> Report {
    let mut verdicts = Vec::new();
    for case in cases() {
        verdicts.push((case, case.run(Arc::new(factory())).await));
    }
    Report { verdicts }
}
