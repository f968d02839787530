//! Whether two processes that take turns on one session catch up with each other instead of adding it up anew.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::flat::{FILL_LOG, SHORT_BEFORE, SHORT_TIMED};
use super::{Bench, open_without_fsync, progress};
use crate::child::Child;
use crate::report::{Bar, Figure};
use crate::stats::Interleaved;
use crate::workload::{Talk, create, prefill};

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "flat_ratio_foreign",
    what: "turn at 10,000 over turn 10, two processes alternating, fsync left out",
    bar: Bar::AtMost(1.2),
}];

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let turns = bench.pick(10_000, 3_000);
    let (long, short) = (bench.path("foreign-long")?, bench.path("foreign-short")?);
    let sessions = bench.pick(20, 10);
    bench.run(async {
        let mut talk = Talk::seeded(3);
        let store = open_without_fsync(&long)?;
        let key = create(&store, "long").await?;
        prefill(&store, &key, &mut talk, turns).await?;
        create(&store, "fill").await?;
        let store = open_without_fsync(&short)?;
        create(&store, "fill").await?;
        for session in 0..sessions {
            create(&store, &format!("short-{session}")).await?;
        }
        Ok(())
    })?;
    progress(format!("a session of {turns} turns is there"));
    let mut pair = Pair::start(&long, &short)?;
    for _ in 0..FILL_LOG / 2 {
        pair.turn("short", "fill")?;
        pair.turn("long", "fill")?;
    }
    for _ in 0..SHORT_BEFORE {
        pair.turn("long", "long")?;
    }
    let mut times = Interleaved::start();
    for session in 0..sessions {
        if times.suffices() {
            break;
        }
        let short = format!("short-{session}");
        for _ in 0..SHORT_BEFORE {
            pair.turn("short", &short)?;
        }
        for _ in 0..SHORT_TIMED {
            pair.turn("short", &short)?.into_iter().for_each(|took| times.baseline(took));
            pair.turn("long", "long")?.into_iter().for_each(|took| times.subject(took));
        }
    }
    progress(times.medians());
    Ok(vec![times.ratio()])
}

/// Two processes with the same two stores open.
struct Pair([Child; 2]);

impl Pair {
    fn start(long: &Path, short: &Path) -> Result<Self> {
        let start = |seed: &str| {
            let (long, short) = (long.to_string_lossy(), short.to_string_lossy());
            Child::start(&["turns", "--seed", seed, &long, &short])
        };
        Ok(Self([start("31")?, start("32")?]))
    }

    /// A turn by each of them, one after the other.
    fn turn(&mut self, store: &str, session: &str) -> Result<[Duration; 2]> {
        let mut one = |i: usize| -> Result<Duration> {
            let line = self.0[i].ask(&format!("{store} {session}"))?;
            Ok(Duration::from_nanos(line.parse().with_context(|| format!("a child answered {line:?}"))?))
        };
        Ok([one(0)?, one(1)?])
    }
}
