//! What a conversation weighs on disk.

use anyhow::Result;
use everturn::store::SqliteStore;

use super::{Bench, files, progress};
use crate::report::{Bar, Figure};
use crate::workload::{Reading, Talk, create, turn};

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "bytes_ratio_sqlite",
    what: "all files over the text, 500 turns of 2 x 1 KB, a snapshot each",
    bar: Bar::AtMost(1.0),
}];

const TURNS: usize = 500;

pub(super) fn run(bench: &Bench) -> Result<Vec<f64>> {
    let path = bench.path("bytes")?;
    let store = SqliteStore::open(&path)?;
    let mut talk = Talk::seeded(1);
    let text = bench.run(async {
        let key = create(&store, "s").await?;
        let mut text = 0;
        for _ in 0..TURNS {
            let content = talk.plain()?;
            text += content.text_bytes();
            turn(&store, &key, content, Reading::Nothing).await?;
        }
        Ok(text)
    })?;
    files::close(store, &path)?;
    let bytes = files::bytes(&path)?;
    progress(format!("{bytes} bytes for {text} of text: {}", files::breakdown(&path)?));
    Ok(vec![bytes as f64 / text as f64])
}
