//! The SQLite store keeps every promise.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use everturn::store::conformance::{Capabilities, Harness, LEASE, Verdict, cases, conformance_tests};
use everturn::store::{Durability, SqliteOptions, Store};
use everturn::{ManualClock, Result};
use everturn_testvfs::{FaultVfs, Loss};
use tempfile::TempDir;

struct Sqlite {
    clock: ManualClock,
    live: TempDir,
    after: TempDir,
    disk: Option<FaultVfs>,
    journal: Option<u64>,
}

impl Sqlite {
    fn new() -> Self {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let directory = || tempfile::tempdir().unwrap();
        Self { clock, live: directory(), after: directory(), disk: None, journal: None }
    }

    /// On a disk that remembers what was flushed.
    fn recorded() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let disk = FaultVfs::register(&format!("conformance-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        disk.start_recording();
        Self { disk: Some(disk), ..Self::new() }
    }

    /// With so many records that may wait in the journal.
    fn with_journal(records: u64) -> Self {
        Self { journal: Some(records), ..Self::new() }
    }

    fn open_in(&self, directory: &Path, disk: Option<&FaultVfs>) -> Result<Arc<dyn Store>> {
        let options =
            SqliteOptions::new(directory.join("sessions.db")).clock(Arc::new(self.clock.clone())).lease(LEASE);
        let options = match self.journal {
            Some(records) => options.journal(records).durability(Durability::ProcessSafe),
            None => options,
        };
        let options = match disk {
            Some(disk) => {
                let recorded = disk.clone();
                options.vfs_with_sync(disk.name(), move |log| recorded.sync_file(log))
            }
            None => options,
        };
        Ok(Arc::new(options.open()?))
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn open(&self) -> Result<Arc<dyn Store>> {
        self.open_in(self.live.path(), self.disk.as_ref())
    }

    async fn second(&self) -> Result<Arc<dyn Store>> {
        self.open_in(self.live.path(), self.disk.as_ref())
    }

    /// A killed process leaves its files as they are, and its locks open. The log is copied before the database: were a
    /// checkpoint to run in between, the other order could miss pages that had left the one and not reached the other.
    async fn reopen_after_kill(&self) -> Result<Option<Arc<dyn Store>>> {
        for name in ["sessions.db-wal", "sessions.db"] {
            let from = self.live.path().join(name);
            if from.exists() {
                std::fs::copy(from, self.after.path().join(name)).unwrap();
            }
        }
        self.open_in(self.after.path(), None).map(Some)
    }

    async fn reopen_after_power_cut(&self) -> Result<Option<Arc<dyn Store>>> {
        let Some(disk) = &self.disk else { return Ok(None) };
        let trace = disk.trace();
        trace.crash_at(trace.len(), Loss::DropUnsynced).write_into(self.after.path()).unwrap();
        self.open_in(self.after.path(), None).map(Some)
    }

    fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new().second_handle().dead_at_once()
    }
}

conformance_tests!(Sqlite::new());

/// Cases that need a power cut are skipped above, where the disk is a real one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts_cost_nothing_that_was_acknowledged() {
    let cases = cases().iter().filter(|case| case.name.ends_with("survives_a_power_cut"));
    for case in cases {
        let verdict = case.run(Arc::new(Sqlite::recorded())).await;
        assert!(matches!(verdict, Verdict::Passed), "{case:?}: {verdict:?}");
    }
}

/// Above, hardly a case writes enough for the tables to be filled while it runs: there all is read from the journal.
async fn all_is_kept_with_a_journal_of(records: u64) {
    for case in cases() {
        let verdict = case.run(Arc::new(Sqlite::with_journal(records))).await;
        assert!(!matches!(verdict, Verdict::Failed(_)), "{case:?}: {verdict:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tables_may_be_filled_with_each_write() {
    all_is_kept_with_a_journal_of(1).await;
}

/// What a handle knows of the journal is out of date then as often as not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tables_may_be_filled_in_the_middle_of_a_turn() {
    all_is_kept_with_a_journal_of(3).await;
}
