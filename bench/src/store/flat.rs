//! Whether a turn costs the same however long the session is.
//!
//! The long session and the short ones are in files of their own, so that the short ones have a small file as well, and
//! their turns are timed alternately. Both logs have been filled once before: writing over a log is quicker than making
//! it longer. Without fsync, which would take most of the time and hide what history costs.

use anyhow::Result;
use everturn::SessionKey;
use everturn::store::SqliteStore;

use super::{Bench, open_without_fsync, progress};
use crate::report::{Bar, Figure};
use crate::stats::Interleaved;
use crate::workload::{Talk, create, prefill, timed_turn};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "flat_ratio_sqlite",
        what: "turn at 10,000 over turn 10, one writer, fsync left out",
        bar: Bar::AtMost(1.2),
    },
    Figure { name: "flat_ratio_sqlite_durable", what: "the same with its fsync", bar: Bar::None },
];

/// Turns that fill a log of 16 MiB, and leave a file that is still small.
pub(super) const FILL_LOG: usize = 400;
/// Turns a short session is given before it is timed, and while it is.
pub(super) const SHORT_BEFORE: usize = 5;
pub(super) const SHORT_TIMED: usize = 10;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let turns = bench.pick(10_000, 3_000);
    let (long, short) = (bench.path("flat-long")?, bench.path("flat-short")?);
    let mut talk = Talk::seeded(2);
    let store = open_without_fsync(&long)?;
    let key = bench.run(async {
        let key = create(&store, "long").await?;
        prefill(&store, &key, &mut talk, turns).await?;
        Ok(key)
    })?;
    progress(format!("a session of {turns} turns is there"));
    let small = open_without_fsync(&short)?;
    let lazy = bench.run(alternate(bench, &store, &small, &key, &mut talk, "lazy"))?;
    progress(lazy.medians());
    drop((store, small));
    let (store, small) = (SqliteStore::open(&long)?, SqliteStore::open(&short)?);
    let durable = bench.run(alternate(bench, &store, &small, &key, &mut talk, "durable"))?;
    progress(format!("{} with fsync", durable.medians()));
    Ok(vec![lazy.ratio(), durable.ratio()])
}

async fn alternate(
    bench: &Bench,
    long: &SqliteStore,
    short: &SqliteStore,
    key: &SessionKey,
    talk: &mut Talk,
    name: &str,
) -> Result<Interleaved> {
    let mut times = Interleaved::start();
    fill_logs([long, short], talk, name).await?;
    // A handle that was just opened adds the session up once; that is opening, not a turn.
    for _ in 0..SHORT_BEFORE {
        timed_turn(long, key, talk.plain()?).await?;
    }
    for session in 0..bench.pick(20, 10) {
        if times.suffices() {
            break;
        }
        let fresh = create(short, &format!("{name}-{session}")).await?;
        prefill(short, &fresh, talk, SHORT_BEFORE).await?;
        for _ in 0..SHORT_TIMED {
            times.baseline(timed_turn(short, &fresh, talk.plain()?).await?);
            times.subject(timed_turn(long, key, talk.plain()?).await?);
        }
    }
    Ok(times)
}

/// Makes both stores write over their logs from now on.
pub(super) async fn fill_logs(stores: [&SqliteStore; 2], talk: &mut Talk, name: &str) -> Result<()> {
    for store in stores {
        let key = create(store, &format!("fill-{name}")).await?;
        prefill(store, &key, talk, FILL_LOG).await?;
    }
    Ok(())
}
