//! How long it takes to open a point of the past.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use everturn::SnapshotId;
use everturn::store::{At, SqliteStore, Store as _};

use super::branches::Line;
use super::{Bench, files, open_without_fsync, progress};
use crate::child::Child;
use crate::report::{Bar, Figure};
use crate::stats::{median, millis};
use crate::workload::{Reading, Talk, create, turn, turns};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "open_hot_ms",
        what: "state of 1,000 messages at a snapshot behind the head, read again (ms)",
        bar: Bar::Below(1.0),
    },
    Figure {
        name: "open_cold_ms",
        what: "the same in a new process, from before opening the store (ms)",
        bar: Bar::Below(8.0),
    },
    Figure {
        name: "open_cold_branched_ms",
        what: "the same where every turn was regenerated: a line of 500 stretches (ms)",
        bar: Bar::Below(8.0),
    },
    Figure { name: "open_cold_store_ms", what: "of which opening the store (ms)", bar: Bar::None },
];

const TURNS: usize = 500;
const AFTER: usize = 100;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let (straight, branched) = (bench.path("open")?, bench.path("open-branched")?);
    let on_straight = straight_line(bench, &straight)?;
    let on_branched = branched_line(bench, &branched)?;
    let hot = hot(bench, &straight, on_straight)?;
    let (cold, opening) = cold(bench, &straight, on_straight)?;
    let (cold_branched, _) = self::cold(bench, &branched, on_branched)?;
    Ok(vec![hot, cold, cold_branched, opening])
}

fn straight_line(bench: &Bench, path: &Path) -> Result<SnapshotId> {
    let store = open_without_fsync(path)?;
    let mut talk = Talk::seeded(11);
    let id = bench.run(async {
        let key = create(&store, "s").await?;
        turns(&store, &key, &mut talk, TURNS - 1).await?;
        let receipt = turn(&store, &key, talk.plain()?, Reading::Nothing).await?;
        turns(&store, &key, &mut talk, AFTER).await?;
        receipt.snapshot_id.context("a turn left no snapshot")
    })?;
    files::close(store, path)?;
    Ok(id)
}

fn branched_line(bench: &Bench, path: &Path) -> Result<SnapshotId> {
    let store = open_without_fsync(path)?;
    let mut talk = Talk::seeded(13);
    let id = bench.run(async {
        let mut line = Line::start(&store, "s").await?;
        for _ in 0..TURNS {
            line.grow(&mut talk).await?;
        }
        let id = line.tip;
        for _ in 0..AFTER / 10 {
            line.grow(&mut talk).await?;
        }
        Ok(id)
    })?;
    files::close(store, path)?;
    Ok(id)
}

fn hot(bench: &Bench, path: &Path, id: SnapshotId) -> Result<f64> {
    let store = SqliteStore::open(path)?;
    let median = bench.run(async {
        let mut samples = Vec::new();
        for _ in 0..=bench.pick(200, 100) {
            let start = Instant::now();
            let state = store.state(At::Snapshot(id)).await?.context("the snapshot is missing")?;
            samples.push(millis(start.elapsed()));
            ensure!(state.messages().len() == 2 * TURNS, "the state has {} messages", state.messages().len());
        }
        progress(format!("{:.3} ms the first time", samples[0]));
        Ok(median(&samples[1..]))
    })?;
    files::close(store, path)?;
    Ok(median)
}

/// The medians of all of it and of opening the store.
fn cold(bench: &Bench, path: &Path, id: SnapshotId) -> Result<(f64, f64)> {
    let (mut cold, mut opening) = (Vec::new(), Vec::new());
    for _ in 0..bench.pick(31, 15) {
        let mut child = Child::start(&["cold-open", &path.to_string_lossy(), &id.to_string()])?;
        let line = child.hear()?;
        let (all, open) = line.split_once(' ').with_context(|| format!("a child answered {line:?}"))?;
        cold.push(all.parse::<f64>()?);
        opening.push(open.parse::<f64>()?);
        child.finish()?;
    }
    Ok((median(&cold), median(&opening)))
}
