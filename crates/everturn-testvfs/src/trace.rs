//! The record of what was done to files, in the order in which it was done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::crash::{self, Disk, Loss};

/// One recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// A file that did not exist was created, empty.
    Create {
        /// The path of the file.
        file: Arc<Path>,
    },
    /// Bytes were written, possibly past the end of the file.
    Write {
        /// The path of the file.
        file: Arc<Path>,
        /// Where the first byte went.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// The size of the file was changed; growth reads as zeroes.
    Truncate {
        /// The path of the file.
        file: Arc<Path>,
        /// The size afterwards.
        size: u64,
    },
    /// All that was done to the file before became durable.
    Sync {
        /// The path of the file.
        file: Arc<Path>,
        /// Whether its directory was synced, too, which makes creations and deletions in it durable. SQLite does so
        /// when it first syncs a journal or a write-ahead log after opening it.
        dir_synced: bool,
    },
    /// What was written to the file and not synced is not going to be: a later sync does not make it durable. How long the
    /// file is may be known to the disk all the same.
    Forget {
        /// The path of the file.
        file: Arc<Path>,
    },
    /// The file was unlinked.
    Delete {
        /// The path of the file.
        file: Arc<Path>,
        /// Whether its directory was synced afterwards, which makes the deletion durable.
        dir_synced: bool,
    },
    /// A label put here by the test.
    Mark(String),
}

/// A recording: what the files held at first, and everything done to them since.
///
/// A moment in it is told by the number of operations that were done before: `0` is the very beginning,
/// [`len()`](Self::len) the end, and `i` lies between operations `i - 1` and `i`.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub(crate) base: BTreeMap<Arc<Path>, Arc<[u8]>>,
    pub(crate) ops: Vec<Op>,
}

impl Trace {
    /// The operations, oldest first.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The number of operations, marks included.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The moments just before and just after each sync, ascending, each once.
    ///
    /// Just before a sync most is at stake, just after it least, so these are the moments worth trying first.
    pub fn sync_points(&self) -> impl Iterator<Item = usize> + '_ {
        (0..=self.len()).filter(|&cut| {
            let before = self.ops.get(cut);
            let after = cut.checked_sub(1).and_then(|i| self.ops.get(i));
            [before, after].into_iter().flatten().any(|op| matches!(op, Op::Sync { .. }))
        })
    }

    /// The labels of all marks set before the moment `cut`, oldest first.
    ///
    /// # Panics
    ///
    /// If `cut` is greater than [`len()`](Self::len).
    pub fn marks_before(&self, cut: usize) -> Vec<&str> {
        let marks = self.ops[..cut].iter().filter_map(|op| match op {
            Op::Mark(label) => Some(label.as_str()),
            _ => None,
        });
        marks.collect()
    }

    /// What the disk may hold if power is lost at the moment `cut`, that is, after the first `cut` operations.
    ///
    /// The same arguments give the same result.
    ///
    /// # Panics
    ///
    /// If `cut` is greater than [`len()`](Self::len).
    pub fn crash_at(&self, cut: usize, loss: Loss) -> Disk {
        crash::simulate(self, cut, loss)
    }
}
