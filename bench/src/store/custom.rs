//! What a large custom state costs when little of it changes.

use std::time::Duration;

use anyhow::Result;
use everturn::store::SqliteStore;
use everturn::{Message, SessionKey};

use super::flat::{SHORT_BEFORE, SHORT_TIMED, fill_logs};
use super::{Bench, files, open_without_fsync, progress};
use crate::report::{Bar, Figure};
use crate::stats::Interleaved;
use crate::workload::{BigState, Content, Reading, Talk, create, prefill, timed_turn, turn};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "flat_ratio_big_custom",
        what: "turn at 10,000 over turn 10, 100 KB of state, one field changed, fsync left out",
        bar: Bar::AtMost(1.2),
    },
    Figure {
        name: "big_custom_bytes_per_turn",
        what: "bytes on disk for each of 1,000 such turns that say next to nothing",
        bar: Bar::AtMost(2048.0),
    },
];

const STATE: usize = 100 << 10;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    Ok(vec![bench.run(flat(bench))?, per_turn(bench)?])
}

async fn flat(bench: &Bench) -> Result<f64> {
    let turns = bench.pick(10_000, 2_000);
    let mut talk = Talk::seeded(4);
    let long = open_without_fsync(&bench.path("custom-long")?)?;
    let short = open_without_fsync(&bench.path("custom-short")?)?;
    let key = create(&long, "long").await?;
    prefill(&long, &key, &mut talk, turns).await?;
    progress(format!("a session of {turns} turns is there"));
    fill_logs([&long, &short], &mut talk, "log").await?;
    let mut state = BigState::of_bytes(STATE, &mut talk);
    for _ in 0..SHORT_BEFORE {
        timed(&long, &key, &mut talk, &mut state).await?;
    }
    let mut times = Interleaved::start();
    for session in 0..bench.pick(20, 10) {
        if times.suffices() {
            break;
        }
        let fresh = create(&short, &format!("short-{session}")).await?;
        let mut fresh_state = BigState::of_bytes(STATE, &mut talk);
        for _ in 0..SHORT_BEFORE {
            timed(&short, &fresh, &mut talk, &mut fresh_state).await?;
        }
        for _ in 0..SHORT_TIMED {
            times.baseline(timed(&short, &fresh, &mut talk, &mut fresh_state).await?);
            times.subject(timed(&long, &key, &mut talk, &mut state).await?);
        }
    }
    progress(times.medians());
    Ok(times.ratio())
}

async fn timed(store: &SqliteStore, key: &SessionKey, talk: &mut Talk, state: &mut BigState) -> Result<Duration> {
    let content = Content { custom: Some(state.changed(talk)?), ..talk.plain()? };
    timed_turn(store, key, content).await
}

/// With messages of a word or two, so that it is the state's bytes that are counted.
fn per_turn(bench: &Bench) -> Result<f64> {
    let path = bench.path("custom-bytes")?;
    let mut talk = Talk::seeded(5);
    let mut state = BigState::of_bytes(STATE, &mut talk);
    let mut go_on = |turns: usize| -> Result<u64> {
        let store = open_without_fsync(&path)?;
        bench.run(async {
            let key = crate::workload::open_or_create(&store, "s").await?;
            for _ in 0..turns {
                let custom = Some(state.changed(&mut talk)?);
                let content =
                    Content { user: Message::user(talk.words(8)), model: Message::model(talk.words(8)), custom };
                turn(&store, &key, content, Reading::Nothing).await?;
            }
            Ok(())
        })?;
        files::close(store, &path)?;
        files::bytes(&path)
    };
    const TURNS: usize = 1_000;
    let before = go_on(10)?;
    let after = go_on(TURNS)?;
    Ok((after - before) as f64 / TURNS as f64)
}
