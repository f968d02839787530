//! What the store costs beside writing: one session against a bare writer that makes the same transactions.

use std::time::Instant;

use anyhow::Result;
use everturn::store::SqliteStore;

use super::bare_writer::{BareWriter, Batch, TurnBytes};
use super::{Bench, progress};
use crate::report::{Bar, Figure};
use crate::stats::{micros, typical};
use crate::workload::{Reading, Talk, create, turn, turns};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "bare_ratio",
        what: "durable turns/s of one session over a bare writer's, same transactions and bytes",
        bar: Bar::AtLeast(0.8),
    },
    Figure { name: "bare_turn_us", what: "the bare writer's turn (us)", bar: Bar::None },
    Figure { name: "turn_us", what: "the store's turn, begin and end (us)", bar: Bar::None },
];

/// Enough that both have filled their logs once: writing over a log is quicker than making it longer.
const WARM_UP: usize = 500;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("bare-ours")?;
    let store = SqliteStore::open(&path)?;
    let mut talk = Talk::seeded(7);
    bench.run(async {
        let key = create(&store, "s").await?;
        turns(&store, &key, &mut talk, WARM_UP).await?;
        let bytes = TurnBytes::of_store(&path)?;
        progress(format!("a turn stores {bytes:?}"));
        let bare = BareWriter::start(&bench.path("bare-bare")?, Batch::One, bytes)?;
        for _ in 0..WARM_UP {
            bare.turn(bytes).await?;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..bench.pick(1_500, 500) {
            let content = talk.plain()?;
            let start = Instant::now();
            turn(&store, &key, content, Reading::Nothing).await?;
            ours.push(micros(start.elapsed()));
            let start = Instant::now();
            bare.turn(bytes).await?;
            theirs.push(micros(start.elapsed()));
        }
        let (ours, theirs) = (typical(&ours), typical(&theirs));
        Ok(vec![theirs / ours, theirs, ours])
    })
}
