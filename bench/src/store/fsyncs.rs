//! How often a turn waits for the disk, counted in a VFS below SQLite.

use anyhow::Result;
use everturn::store::SqliteOptions;
use everturn_testvfs::FaultVfs;

use super::group::{Crowd, SESSIONS};
use super::{Bench, progress};
use crate::report::{Bar, Figure};
use crate::workload::{Talk, create, turns};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "fsyncs_per_turn",
        what: "syncs of any file for each instant turn, checkpoints counted in (0.05 allowed for them)",
        bar: Bar::AtMost(1.05),
    },
    Figure { name: "fsyncs_per_turn_64", what: "the same, 64 sessions at once", bar: Bar::AtMost(0.1) },
];

const EACH: usize = 16;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let vfs = FaultVfs::register("bench");
    vfs.powersafe_overwrite(true);
    let counted = vfs.clone();
    let options = SqliteOptions::new(bench.path("fsyncs")?);
    let store = options.vfs_with_sync(vfs.name(), move |log| counted.sync_file(log)).open()?;
    let alone = bench.pick(1_000, 300);
    bench.run(async {
        let (key, mut talk) = (create(&store, "one").await?, Talk::seeded(9));
        vfs.reset_counters();
        turns(&store, &key, &mut talk, alone).await?;
        let one = vfs.sync_count() as f64 / alone as f64;
        let mut crowd = Crowd::gather(&store).await?;
        crowd.speak(&store, 1).await?;
        vfs.reset_counters();
        crowd.speak(&store, EACH).await?;
        let all = vfs.sync_count();
        progress(format!("{all} syncs for {} turns by {SESSIONS} sessions", SESSIONS * EACH));
        Ok(vec![one, all as f64 / (SESSIONS * EACH) as f64])
    })
}
