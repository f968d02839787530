//! What is quick however large a session is: a page of snapshots, a branch, a fork.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use everturn::store::{At, BranchChange, ForkSession, ListSnapshots, SqliteStore, Store as _, UnderLease};
use everturn::{BranchName, Point, SessionId, SessionKey};

use super::wal::Wal;
use super::{Bench, files, open_without_fsync, progress};
use crate::report::{Bar, Figure};
use crate::stats::{median, millis};
use crate::workload::{Reading, Talk, create, prefill, turn};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "list50_ms",
        what: "50 snapshots of a session of 10,000 messages, from the slower end (ms)",
        bar: Bar::Below(2.0),
    },
    Figure { name: "branch_ms", what: "a branch there, durable: one fsync is in it (ms)", bar: Bar::Below(2.0) },
    Figure { name: "fork_ms", what: "a fork there, durable: one fsync is in it (ms)", bar: Bar::Below(2.0) },
    Figure {
        name: "fork_bytes",
        what: "bytes a fork puts into the log: a whole page for each B-tree it touches",
        bar: Bar::AtMost(16_384.0),
    },
    Figure { name: "fork_stored_bytes", what: "bytes a fork adds to the file, mean of many", bar: Bar::None },
    Figure { name: "branch_work_ms", what: "a branch without the fsync (ms)", bar: Bar::None },
    Figure { name: "fork_work_ms", what: "a fork without the fsync (ms)", bar: Bar::None },
];

const TURNS: usize = 5_000;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("large")?;
    let store = open_without_fsync(&path)?;
    let mut talk = Talk::seeded(12);
    let (key, middle) = bench.run(async {
        let key = create(&store, "s").await?;
        prefill(&store, &key, &mut talk, TURNS / 2).await?;
        let middle = turn(&store, &key, talk.plain()?, Reading::Nothing).await?.point;
        prefill(&store, &key, &mut talk, TURNS / 2 - 1).await?;
        Ok((key, middle))
    })?;
    progress(format!("a session of {} messages is there", 2 * TURNS));
    let work = bench.run(branch_and_fork(bench, &store, &key, middle, "work"))?;
    files::close(store, &path)?;

    let store = SqliteStore::open(&path)?;
    let list = bench.run(list(bench, &store, &key))?;
    let durable = bench.run(branch_and_fork(bench, &store, &key, middle, "durable"))?;
    let written = bench.run(fork_bytes(&store, &path, &key, middle))?;
    files::close(store, &path)?;
    let stored = stored_bytes(bench, &path, &key, middle)?;
    Ok(vec![list, durable.0, durable.1, written, stored, work.0, work.1])
}

async fn list(bench: &Bench, store: &SqliteStore, key: &SessionKey) -> Result<f64> {
    let (mut oldest, mut newest) = (Vec::new(), Vec::new());
    for _ in 0..bench.pick(101, 51) {
        for (query, samples) in [
            (ListSnapshots::of(key.clone()).limit(50), &mut oldest),
            (ListSnapshots::of(key.clone()).limit(50).newest_first(), &mut newest),
        ] {
            let start = Instant::now();
            let page = store.snapshots(query).await?;
            samples.push(millis(start.elapsed()));
            ensure!(page.items.len() == 50 && page.next.is_some(), "a page has {} snapshots", page.items.len());
        }
    }
    Ok(median(&oldest).max(median(&newest)))
}

/// The medians of both. Branches are deleted again: it is the first one that is asked for, not the hundredth.
async fn branch_and_fork(
    bench: &Bench,
    store: &SqliteStore,
    key: &SessionKey,
    at: Point,
    name: &str,
) -> Result<(f64, f64)> {
    let (mut branches, mut forks) = (Vec::new(), Vec::new());
    for i in 0..bench.pick(101, 51) {
        let branch = BranchName::new(format!("{name}-{i}"))?;
        let start = Instant::now();
        store.branch(key, BranchChange::Create { name: branch.clone(), at }).await?;
        branches.push(millis(start.elapsed()));
        store.branch(key, BranchChange::Delete { name: branch, expect: None, under_lease: UnderLease::Refuse }).await?;
        let fork = fork(key, at, &format!("{name}-{i}"))?;
        let start = Instant::now();
        store.fork(fork).await?;
        forks.push(millis(start.elapsed()));
    }
    Ok((median(&branches), median(&forks)))
}

fn fork(key: &SessionKey, at: Point, id: &str) -> Result<ForkSession> {
    Ok(ForkSession::at(At::Point(key.clone(), at)).id(SessionId::new(id)?))
}

async fn fork_bytes(store: &SqliteStore, path: &Path, key: &SessionKey, at: Point) -> Result<f64> {
    let mut samples = Vec::new();
    for i in 0..11 {
        files::truncate_log(path)?;
        store.fork(fork(key, at, &format!("bytes-{i}"))?).await?;
        samples.push(Wal::of(path).bytes()? as f64);
    }
    Ok(median(&samples))
}

fn stored_bytes(bench: &Bench, path: &Path, key: &SessionKey, at: Point) -> Result<f64> {
    let forks = bench.pick(1_000, 300);
    let before = files::bytes(path)?;
    let store = open_without_fsync(path)?;
    bench.run(async {
        for i in 0..forks {
            store.fork(fork(key, at, &format!("stored-{i}"))?).await?;
        }
        Ok(())
    })?;
    files::close(store, path)?;
    Ok((files::bytes(path)? - before) as f64 / f64::from(forks))
}
