//! Whether a conversation whose every answer was asked for twice stays as quick as a straight one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use everturn::SnapshotId;
use everturn::store::{CreateSession, SqliteStore, Start, Store};

use super::flat::fill_logs;
use super::{Bench, open_without_fsync, progress};
use crate::report::{Bar, Figure};
use crate::stats::Interleaved;
use crate::workload::{Reading, Talk, fresh_snapshot_id, key, turn_from};

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "flat_ratio_branches",
    what: "turn and its regeneration at depth 1,000 over depth 10, fsync left out",
    bar: Bar::AtMost(1.2),
}];

const SHORT: usize = 10;

/// A line that grows by a turn and its regeneration at a time.
pub(super) struct Line<'a> {
    store: &'a SqliteStore,
    pub(super) tip: SnapshotId,
}

impl<'a> Line<'a> {
    pub(super) async fn start(store: &'a SqliteStore, session: &str) -> Result<Self> {
        let tip = fresh_snapshot_id();
        store.create(CreateSession::at(key(session)?).seed(tip)).await?;
        Ok(Self { store, tip })
    }

    pub(super) async fn grow(&mut self, talk: &mut Talk) -> Result<Duration> {
        let (first, again) = (talk.plain()?, talk.plain()?);
        let start = || Start::Snapshot { id: self.tip, session: None };
        let clock = Instant::now();
        turn_from(self.store, start(), first, Reading::State).await?;
        let receipt = turn_from(self.store, start(), again, Reading::State).await?;
        let took = clock.elapsed();
        ensure!(receipt.on_head, "a regenerated turn did not move the head");
        self.tip = receipt.snapshot_id.context("a turn left no snapshot")?;
        Ok(took)
    }
}

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    bench.run(async {
        let depth = bench.pick(1_000, 500);
        let mut talk = Talk::seeded(6);
        let (long, short) = (bench.path("branches-long")?, bench.path("branches-short")?);
        let (long, short) = (open_without_fsync(&long)?, open_without_fsync(&short)?);
        let mut deep = Line::start(&long, "deep").await?;
        for _ in 0..depth {
            deep.grow(&mut talk).await?;
        }
        progress(format!("a line of {depth} regenerated turns is there"));
        fill_logs([&long, &short], &mut talk, "log").await?;
        let mut times = Interleaved::start();
        for session in 0..bench.pick(20, 10) {
            if times.suffices() {
                break;
            }
            let mut line = Line::start(&short, &format!("short-{session}")).await?;
            for _ in 0..SHORT / 2 {
                line.grow(&mut talk).await?;
            }
            for _ in 0..SHORT {
                times.baseline(line.grow(&mut talk).await?);
                times.subject(deep.grow(&mut talk).await?);
            }
        }
        progress(times.medians());
        Ok(vec![times.ratio()])
    })
}
