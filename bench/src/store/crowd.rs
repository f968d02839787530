//! Several processes on one file: nobody is told "locked", nothing is lost, nobody waits long.

use anyhow::{Context as _, Result, ensure};
use everturn::store::{SqliteStore, Store as _, StoreExt as _, VerifyScope};

use super::{Bench, progress};
use crate::child::{Child, SHARED_EVERY};
use crate::report::{Bar, Figure};
use crate::workload::{create, key};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "worst_wait_4proc_ms",
        what: "4 processes x 1,000 turns on one file, every tenth on a shared session: longest call (ms)",
        bar: Bar::Below(1000.0),
    },
    Figure { name: "worst_own_4proc_ms", what: "of which the longest on a session of one's own (ms)", bar: Bar::None },
    Figure { name: "turns_per_s_4proc", what: "turns/s of all four", bar: Bar::None },
];

const PROCESSES: usize = 4;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("crowd")?;
    let turns: usize = bench.pick(1_000, 250);
    let store = SqliteStore::open(&path)?;
    bench.run(async {
        create(&store, "shared").await?;
        for process in 0..PROCESSES {
            create(&store, &format!("own-{process}")).await?;
        }
        Ok(())
    })?;
    let start = std::time::Instant::now();
    let mut children = Vec::new();
    for process in 0..PROCESSES {
        children.push(Child::start(&["crowd", &path.to_string_lossy(), &process.to_string(), &turns.to_string()])?);
    }
    let (mut shared, mut own) = (0f64, 0f64);
    for mut child in children {
        let line = child.hear()?;
        let (a, b) = line.split_once(' ').with_context(|| format!("a child answered {line:?}"))?;
        shared = shared.max(a.parse()?);
        own = own.max(b.parse()?);
        child.finish()?;
    }
    let rate = (PROCESSES * turns) as f64 / start.elapsed().as_secs_f64();
    progress(format!("{rate:.0} turns/s; longest call {shared:.0} ms on the shared session, {own:.0} ms on others"));
    bench.run(nothing_lost(&store, turns))?;
    Ok(vec![shared.max(own), own, rate])
}

async fn nothing_lost(store: &SqliteStore, turns: usize) -> Result<()> {
    let shared = turns / SHARED_EVERY;
    let mut expected = vec![("shared".to_owned(), PROCESSES * shared)];
    expected.extend((0..PROCESSES).map(|process| (format!("own-{process}"), turns - shared)));
    for (session, turns) in expected {
        let state = store.head_state(&key(&session)?).await?;
        ensure!(
            state.turns() == turns as u64 && state.messages().len() == 2 * turns,
            "session {session} has {} turns and {} messages, {turns} turns were acknowledged",
            state.turns(),
            state.messages().len()
        );
    }
    let verified = store.verify(VerifyScope::All).await?;
    ensure!(verified.damage.is_none(), "{:?}", verified.damage);
    Ok(())
}
