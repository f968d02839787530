//! What sharing a wait for the disk gains where the disk takes longer: each of its syncs is made a millisecond longer.

use std::fs::OpenOptions;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use everturn::store::{SqliteOptions, SqliteStore};

use super::group::{Crowd, SESSIONS, speak_alone};
use super::{Bench, progress};
use crate::report::{Bar, Figure};
use crate::stats::median;
use crate::workload::{Talk, create, turns as take_turns};

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "group_ratio_slow_disk",
    what: "64 sessions at once over one, where each sync takes a millisecond longer",
    bar: Bar::AtLeast(10.0),
}];

const LONGER: Duration = Duration::from_millis(1);
const WARM_UP: usize = 24;
const ONE_ROUND: usize = 50;
const EACH_ROUND: usize = 16;

fn open(path: &Path) -> Result<SqliteStore> {
    let sync = |log: &Path| {
        OpenOptions::new().write(true).open(log)?.sync_data()?;
        thread::sleep(LONGER);
        Ok(())
    };
    Ok(SqliteOptions::new(path).vfs_with_sync("unix", sync).open()?)
}

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let store = open(&bench.path("slow-disk")?)?;
    bench.run(async {
        let mut crowd = Crowd::gather(&store).await?;
        crowd.speak(&store, WARM_UP).await?;
        let (key, mut talk) = (create(&store, "one").await?, Talk::seeded(8));
        take_turns(&store, &key, &mut talk, WARM_UP).await?;
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..bench.pick(8, 4) {
            let alone = speak_alone(&store, &key, &mut talk, ONE_ROUND).await?;
            let together = crowd.speak(&store, EACH_ROUND).await?;
            ratios.push(together / alone);
            rates.push(together);
        }
        progress(format!("{:.0} turns/s by {SESSIONS} sessions", median(&rates)));
        Ok(vec![median(&ratios)])
    })
}
