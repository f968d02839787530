//! What a store counts, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The largest batch each bucket of [`SqliteStats::batch_sizes`] counts; the last one counts all others.
pub(super) const BATCHES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Numbers about a [`SqliteStore`](super::SqliteStore) since it was opened in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteStats {
    /// Transactions that were committed.
    pub commits: u64,
    /// Writes in them: begins, steps, ends, edits and the like.
    pub writes: u64,
    /// Waits for the disk. Many commits may share one.
    pub syncs: u64,
    /// Commits by how many writes they had: pairs of the most writes and how many commits had no more. The last one is
    /// for all commits, whatever their size.
    pub batch_sizes: Vec<(u64, u64)>,
    /// Batches that failed and were rolled back.
    pub rollbacks: u64,
    /// Bytes in SQLite's log after the last commit.
    pub log_bytes: u64,
    /// Sessions whose decoded states are at hand.
    pub cached_sessions: u64,
    /// What these weigh, in bytes.
    pub cached_bytes: u64,
    /// States that were at hand when they were asked for.
    pub cache_hits: u64,
    /// States that were not.
    pub cache_misses: u64,
    /// Turns that run, queues for branches and waits for news that are known here: as many as there are at work, none for
    /// sessions that are idle.
    pub entries: u64,
}

/// The counters behind it.
#[derive(Debug, Default)]
pub(super) struct Counters {
    writes: AtomicU64,
    syncs: AtomicU64,
    rollbacks: AtomicU64,
    batches: [AtomicU64; BATCHES.len() + 1],
}

impl Counters {
    pub(super) fn committed(&self, writes: usize) {
        let writes = writes as u64;
        let bucket = BATCHES.iter().position(|most| writes <= *most).unwrap_or(BATCHES.len());
        self.batches[bucket].fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(writes, Ordering::Relaxed);
    }

    pub(super) fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rolled_back(&self) {
        self.rollbacks.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> SqliteStats {
        let mut commits = 0;
        let sizes = BATCHES.into_iter().chain([u64::MAX]);
        let batch_sizes = sizes.zip(&self.batches).map(|(most, count)| {
            commits += count.load(Ordering::Relaxed);
            (most, commits)
        });
        let batch_sizes = batch_sizes.collect();
        SqliteStats {
            commits,
            batch_sizes,
            writes: self.writes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            rollbacks: self.rollbacks.load(Ordering::Relaxed),
            ..SqliteStats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_counted_by_their_size_and_all_together() {
        let counters = Counters::default();
        for writes in [1, 1, 3, 200] {
            counters.committed(writes);
        }
        counters.synced();
        counters.synced();
        counters.rolled_back();
        let stats = counters.read();
        assert_eq!((stats.commits, stats.writes, stats.syncs, stats.rollbacks), (4, 205, 2, 1));
        let upto = |most| stats.batch_sizes.iter().find(|(bucket, _)| *bucket == most).unwrap().1;
        assert_eq!((upto(1), upto(2), upto(4), upto(128), upto(u64::MAX)), (2, 2, 3, 3, 4));
    }
}
