//! What many sessions at once gain from sharing a wait for the disk.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use everturn::SessionKey;
use everturn::store::SqliteStore;
use tokio::task::JoinSet;

use super::bare_writer::{BareWriter, Batch, TurnBytes};
use super::{Bench, progress};
use crate::report::{Bar, Figure};
use crate::stats::median;
use crate::workload::{Reading, Talk, create, turn, turns as take_turns};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "group_ratio",
        what: "durable turns/s of 64 sessions at once over one session's",
        bar: Bar::AtLeast(10.0),
    },
    Figure {
        name: "group_bare_ratio",
        what: "the same over a bare writer that batches, same bytes, 64 at once",
        bar: Bar::AtLeast(0.5),
    },
    Figure { name: "group_ratio_of_bare", what: "the bare writer's own: 64 at once over one", bar: Bar::None },
    Figure {
        name: "in_a_row_ratio",
        what: "one session's turns/s over the bare writer's, 200 of each in a row",
        bar: Bar::None,
    },
    Figure { name: "turns_per_s", what: "one session (turns/s)", bar: Bar::None },
    Figure { name: "turns_per_s_64", what: "64 sessions at once (turns/s)", bar: Bar::None },
    Figure { name: "bare_per_s_64", what: "the bare writer, 64 at once (turns/s)", bar: Bar::None },
];

pub(super) const SESSIONS: usize = 64;
/// Enough that the logs have been filled once.
const WARM_UP: usize = 24;
/// Turns in a round: by all sessions together so many that either writer moves its log into the file in each, or those who
/// happened to do so would be compared with those who did not.
const ONE_ROUND: usize = 200;
const EACH_ROUND: usize = 32;

/// 64 sessions that know what to say.
pub(super) struct Crowd {
    sessions: Vec<(SessionKey, Talk)>,
}

impl Crowd {
    pub(super) async fn gather(store: &SqliteStore) -> Result<Self> {
        let mut sessions = Vec::new();
        for i in 0..SESSIONS {
            sessions.push((create(store, &format!("crowd-{i}")).await?, Talk::seeded(100 + i as u64)));
        }
        Ok(Self { sessions })
    }

    /// Turns by all of them at once; how many there were in a second.
    pub(super) async fn speak(&mut self, store: &SqliteStore, turns: usize) -> Result<f64> {
        let mut ready = Vec::new();
        for (key, talk) in &mut self.sessions {
            ready.push((key.clone(), (0..turns).map(|_| talk.plain()).collect::<Result<Vec<_>>>()?));
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (key, contents) in ready {
            let store = store.clone();
            tasks.spawn(async move {
                for content in contents {
                    turn(&store, &key, content, Reading::Nothing).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok((SESSIONS * turns) as f64 / start.elapsed().as_secs_f64())
    }
}

/// Turns by one session; how many there were in a second.
pub(super) async fn speak_alone(store: &SqliteStore, key: &SessionKey, talk: &mut Talk, turns: usize) -> Result<f64> {
    let contents = (0..turns).map(|_| talk.plain()).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    for content in contents {
        turn(store, key, content, Reading::Nothing).await?;
    }
    Ok(turns as f64 / start.elapsed().as_secs_f64())
}

async fn speak_bare(bare: &Arc<BareWriter>, bytes: TurnBytes, turns: usize) -> Result<f64> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..SESSIONS {
        let bare = bare.clone();
        tasks.spawn(async move {
            for _ in 0..turns {
                bare.turn(bytes).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((SESSIONS * turns) as f64 / start.elapsed().as_secs_f64())
}

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("group-ours")?;
    let store = SqliteStore::open(&path)?;
    bench.run(async {
        let mut crowd = Crowd::gather(&store).await?;
        crowd.speak(&store, WARM_UP).await?;
        let bytes = TurnBytes::of_store(&path)?;
        let bare = Arc::new(BareWriter::start(&bench.path("group-bare")?, Batch::All, bytes)?);
        speak_bare(&bare, bytes, WARM_UP).await?;
        let (key, mut talk) = (create(&store, "one").await?, Talk::seeded(8));
        take_turns(&store, &key, &mut talk, WARM_UP).await?;
        let mut rounds = Vec::new();
        for _ in 0..bench.pick(12, 8) {
            let alone = speak_alone(&store, &key, &mut talk, ONE_ROUND).await?;
            let together = crowd.speak(&store, EACH_ROUND).await?;
            let start = Instant::now();
            for _ in 0..ONE_ROUND {
                bare.turn(bytes).await?;
            }
            let bare_alone = ONE_ROUND as f64 / start.elapsed().as_secs_f64();
            let bare_together = speak_bare(&bare, bytes, EACH_ROUND).await?;
            rounds.push([
                together / alone,
                together / bare_together,
                bare_together / bare_alone,
                alone / bare_alone,
                alone,
                together,
                bare_together,
            ]);
        }
        let middle = |figure: usize| median(&rounds.iter().map(|round| round[figure]).collect::<Vec<_>>());
        progress(format!("{:.0} turns/s alone, {:.0} turns/s together", middle(4), middle(5)));
        Ok((0..FIGURES.len()).map(middle).collect())
    })
}
