//! What agents' turns cost: bytes for each kind of text, and turns a second beside a bare writer of the same bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use everturn::store::SqliteStore;
use tokio::task::JoinSet;

use super::bare_writer::{BareWriter, Batch, TurnBytes};
use super::{Bench, files, progress};
use crate::agents::conversation;
use crate::child::Child;
use crate::report::{Bar, Figure};
use crate::stats::median;
use crate::texts::Kind;

pub(super) const BYTES: &[Figure] = &[
    Figure {
        name: "agent_bytes_prose",
        what: "all files over the text, 500 agent's turns of English prose",
        bar: Bar::AtMost(0.92),
    },
    Figure { name: "agent_bytes_code", what: "the same, source code", bar: Bar::None },
    Figure { name: "agent_bytes_json", what: "the same, answers of tools", bar: Bar::None },
    Figure { name: "agent_bytes_german", what: "the same, German", bar: Bar::None },
    Figure { name: "agent_bytes_chinese", what: "the same, Chinese", bar: Bar::None },
    Figure { name: "agent_bytes_words", what: "the same, random words", bar: Bar::AtMost(1.0) },
];

/// How many sessions take turns at once.
const AT_ONCE: [usize; 4] = [1, 4, 16, 64];

pub(super) const RATES: &[Figure] = &[
    Figure {
        name: "agent_bare_ratio_1",
        what: "agents' durable turns/s over a bare batching writer's of the same bytes, 1 session",
        bar: Bar::AtLeast(0.4),
    },
    Figure { name: "agent_bare_ratio_4", what: "the same, 4 sessions at once", bar: Bar::None },
    Figure { name: "agent_bare_ratio_16", what: "the same, 16", bar: Bar::None },
    Figure { name: "agent_bare_ratio_64", what: "the same, 64", bar: Bar::AtLeast(0.2) },
    Figure { name: "agent_turns_per_s_1", what: "agents' turns/s, 1 session", bar: Bar::None },
    Figure { name: "agent_turns_per_s_4", what: "the same, 4 sessions at once", bar: Bar::None },
    Figure { name: "agent_turns_per_s_16", what: "the same, 16", bar: Bar::None },
    Figure { name: "agent_turns_per_s_64", what: "the same, 64", bar: Bar::None },
    Figure { name: "agent_beside_1", what: "the same over another build's, 1 session", bar: Bar::None },
    Figure { name: "agent_beside_4", what: "4 sessions at once", bar: Bar::None },
    Figure { name: "agent_beside_16", what: "16", bar: Bar::AtLeast(1.0) },
    Figure { name: "agent_beside_64", what: "64", bar: Bar::AtLeast(1.0) },
];

const TURNS: usize = 500;

pub(super) fn bytes(bench: &Bench) -> Result<Vec<f64>> {
    let mut ratios = Vec::new();
    for kind in Kind::ALL {
        let path = bench.path(&format!("agent-bytes-{kind:?}"))?;
        let store = SqliteStore::open(&path)?;
        let text = bench.run(conversation(store.clone(), kind, TURNS))?;
        files::close(store, &path)?;
        let bytes = files::bytes(&path)?;
        progress(format!("{kind:?}: {bytes} bytes for {text} of text"));
        ratios.push(bytes as f64 / text as f64);
    }
    Ok(ratios)
}

/// Agents in a process of their own, by some build of the benchmark.
struct Process(Child);

impl Process {
    fn start(program: &Path, store: &Path) -> Result<Self> {
        Ok(Self(Child::start_of(program, &["agents", &store.to_string_lossy()])?))
    }

    fn turns_per_second(&mut self, sessions: usize, time: Duration) -> Result<f64> {
        let line = self.0.ask(&format!("{sessions} {}", time.as_millis()))?;
        line.parse().with_context(|| format!("a child answered {line:?}"))
    }
}

pub(super) fn rates(bench: &Bench) -> Result<Vec<f64>> {
    let (round, warm_up) = (Duration::from_millis(bench.pick(1_500, 500)), Duration::from_secs(2));
    let path = bench.path("agents")?;
    let mut ours = Process::start(&std::env::current_exe()?, &path)?;
    let mut other = match &bench.beside {
        Some(program) => Some(Process::start(program, &bench.path("agents-beside")?)?),
        None => None,
    };
    for process in [Some(&mut ours), other.as_mut()].into_iter().flatten() {
        process.turns_per_second(16, warm_up)?;
    }
    let bytes = TurnBytes::of_store(&path)?;
    progress(format!("a turn stores {bytes:?}"));
    let bare = Arc::new(BareWriter::start(&bench.path("agents-bare")?, Batch::All, bytes)?);
    bench.run(bare_turns_per_second(&bare, bytes, 16, warm_up))?;
    let mut rounds = Vec::new();
    for _ in 0..bench.pick(5, 3) {
        let (mut over_bare, mut rates, mut over_other) = (Vec::new(), Vec::new(), Vec::new());
        for sessions in AT_ONCE {
            let rate = ours.turns_per_second(sessions, round)?;
            let bare_rate = bench.run(bare_turns_per_second(&bare, bytes, sessions, round))?;
            over_bare.push(rate / bare_rate);
            rates.push(rate);
            if let Some(other) = &mut other {
                let other_rate = other.turns_per_second(sessions, round)?;
                progress(format!("{sessions} at once: {rate:.0} turns/s, the other build {other_rate:.0}"));
                over_other.push(rate / other_rate);
            }
        }
        rounds.push([over_bare, rates, over_other].concat());
    }
    let middle = |figure: usize| median(&rounds.iter().map(|round| round[figure]).collect::<Vec<_>>());
    Ok((0..rounds[0].len()).map(middle).collect())
}

async fn bare_turns_per_second(
    bare: &Arc<BareWriter>,
    bytes: TurnBytes,
    sessions: usize,
    time: Duration,
) -> Result<f64> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..sessions {
        let bare = bare.clone();
        tasks.spawn(async move {
            let mut turns = 0;
            while start.elapsed() < time {
                bare.turn(bytes).await?;
                turns += 1;
            }
            anyhow::Ok(turns)
        });
    }
    let mut turns = 0;
    while let Some(done) = tasks.join_next().await {
        turns += done??;
    }
    Ok(f64::from(turns) / start.elapsed().as_secs_f64())
}
