//! Reading SQLite's write-ahead log: which pages were written.
//!
//! The layout is at <https://sqlite.org/fileformat2.html#walformat>: a header of 32 bytes, then frames of 24 bytes and a
//! page each, the page's number first and the log's salt after it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

const HEADER: usize = 32;
const FRAME: usize = 24;

pub(super) struct Wal {
    path: PathBuf,
}

impl Wal {
    /// The log of a database.
    pub(super) fn of(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self { path: path.into() }
    }

    /// The numbers of the pages written since the log was last cut to nothing, in order, with repetitions.
    pub(super) fn pages(&self) -> Result<Vec<u32>> {
        Ok(self.read()?.pages)
    }

    /// The bytes of those pages, with what the log adds to each.
    pub(super) fn bytes(&self) -> Result<u64> {
        let Frames { pages, each } = self.read()?;
        Ok((pages.len() * each) as u64)
    }

    fn read(&self) -> Result<Frames> {
        let bytes = std::fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        if bytes.is_empty() {
            return Ok(Frames { pages: Vec::new(), each: FRAME });
        }
        ensure!(bytes.len() >= HEADER, "{} is cut short", self.path.display());
        let each = FRAME + number(&bytes, 8) as usize;
        let salt = &bytes[16..24];
        // Frames with another salt are left from before the log was started over.
        let frames = bytes[HEADER..].chunks_exact(each).take_while(|frame| frame[8..16] == *salt);
        Ok(Frames { pages: frames.map(|frame| number(frame, 0)).collect(), each })
    }
}

/// The pages in a log, and the bytes each takes there.
struct Frames {
    pages: Vec<u32>,
    each: usize,
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
