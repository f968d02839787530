//! How many B-trees a plain turn touches: those whose pages it puts into the log.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use everturn::store::SqliteStore;
use rusqlite::{Connection, OptionalExtension as _};

use super::wal::Wal;
use super::{Bench, files, progress};
use crate::report::{Bar, Figure};
use crate::stats::median;
use crate::workload::{Reading, Talk, create, turn, turns};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "btrees_per_commit",
        what: "B-trees whose pages a plain turn, begin and end, writes (median of 21)",
        bar: Bar::AtMost(5.0),
    },
    Figure { name: "pages_per_turn", what: "pages it writes to the log", bar: Bar::None },
];

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("btrees")?;
    let store = SqliteStore::open(&path)?;
    let mut talk = Talk::seeded(10);
    bench.run(async {
        let key = create(&store, "s").await?;
        turns(&store, &key, &mut talk, 50).await?;
        let (mut counts, mut pages, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for _ in 0..21 {
            files::truncate_log(&path)?;
            turn(&store, &key, talk.plain()?, Reading::Nothing).await?;
            let written = Wal::of(&path).pages()?;
            let trees = trees(&path, &written)?;
            counts.push(trees.len() as f64);
            pages.push(written.len() as f64);
            seen.extend(trees);
        }
        progress(format!("seen in any turn: {}", seen.into_iter().collect::<Vec<_>>().join(", ")));
        Ok(vec![median(&counts), median(&pages)])
    })
}

/// The tables and indexes that pages belong to. Page 1 also holds the file's size, so it is written when a file grows.
fn trees(path: &Path, pages: &[u32]) -> Result<BTreeSet<String>> {
    let conn = Connection::open(path)?;
    let mut find = conn.prepare("SELECT name FROM dbstat WHERE pageno = ?1")?;
    let mut trees = BTreeSet::new();
    for page in pages.iter().filter(|page| **page != 1) {
        trees.extend(find.query_row([page], |row| row.get::<_, String>(0)).optional()?);
    }
    Ok(trees)
}
