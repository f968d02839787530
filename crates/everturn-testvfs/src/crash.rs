//! What survives a power cut.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::trace::{Op, Trace};

/// The unit in which disks promise to write: a torn write keeps or loses whole sectors.
const SECTOR: u64 = 512;

/// How much of what was not synced gets lost. What was synced always survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Everything is lost.
    DropUnsynced,
    /// Each write and each change of size is either kept whole or lost, independently of its order. Of the creations
    /// and deletions of a name, the first few are kept.
    KeepRandom {
        /// Picks what is kept.
        seed: u64,
    },
    /// As `KeepRandom`, and some writes are torn: only their beginning, or only some of their sectors, is kept. A lost
    /// write past the end of a file may still have grown it.
    Torn {
        /// Picks what is kept.
        seed: u64,
    },
}

/// The files that a power cut left behind, by the path they were recorded under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    files: BTreeMap<Arc<Path>, Vec<u8>>,
}

impl Disk {
    /// What the file at this recorded path holds, or `None` if there is none.
    ///
    /// Recorded paths are as SQLite makes them: absolute, with symbolic links resolved.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        self.files.get(path.as_ref()).map(Vec::as_slice)
    }

    /// All files, by path.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|(path, bytes)| (&**path, bytes.as_slice()))
    }

    /// Creates the files in `dir` under their own names, leaving out the directories they were recorded in.
    ///
    /// # Errors
    ///
    /// If a file cannot be created; in particular if one of that name is there already, since a database must never
    /// be combined with the log of another one.
    pub fn write_into(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        for (path, bytes) in &self.files {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
            File::create_new(dir.join(name))?.write_all(bytes)?;
        }
        Ok(())
    }
}

/// Replays the trace up to `cut`, then loses power.
pub(crate) fn simulate(trace: &Trace, cut: usize, loss: Loss) -> Disk {
    let mut machine = Machine::boot(trace);
    for op in &trace.ops[..cut] {
        machine.run(op);
    }
    machine.lose_power(&mut Dice::new(loss, cut))
}

/// A change to the content of a file.
enum Change<'a> {
    Write { offset: u64, data: &'a [u8] },
    Resize(u64),
}

/// The content of a file, apart from its name: a deleted file may come back, under the name of its successor.
#[derive(Default)]
struct Inode<'a> {
    durable: Vec<u8>,
    pending: Vec<Change<'a>>,
}

/// What a path stands for: an index into the inodes, or nothing.
#[derive(Default)]
struct Name {
    durable: Option<usize>,
    pending: Vec<Option<usize>>,
}

impl Name {
    fn current(&self) -> Option<usize> {
        self.pending.last().copied().unwrap_or(self.durable)
    }

    fn settle(&mut self) {
        self.durable = self.current();
        self.pending.clear();
    }
}

/// A computer with its disk and the caches in front of it.
struct Machine<'a> {
    inodes: Vec<Inode<'a>>,
    names: BTreeMap<&'a Arc<Path>, Name>,
}

impl<'a> Machine<'a> {
    fn boot(trace: &'a Trace) -> Self {
        let mut machine = Machine { inodes: Vec::new(), names: BTreeMap::new() };
        for (path, bytes) in &trace.base {
            let name = Name { durable: Some(machine.inodes.len()), pending: Vec::new() };
            machine.names.insert(path, name);
            machine.inodes.push(Inode { durable: bytes.to_vec(), pending: Vec::new() });
        }
        machine
    }

    fn run(&mut self, op: &'a Op) {
        match op {
            Op::Create { file } => {
                let inode = Some(self.inodes.len());
                self.inodes.push(Inode::default());
                self.names.entry(file).or_default().pending.push(inode);
            }
            Op::Write { file, offset, data } => self.change(file, Change::Write { offset: *offset, data }),
            Op::Truncate { file, size } => self.change(file, Change::Resize(*size)),
            Op::Sync { file, dir_synced } => {
                if let Some(name) = self.names.get_mut(file) {
                    // Journalling file systems write the directory entry of a new file along with the file.
                    name.settle();
                    if let Some(inode) = name.durable {
                        self.inodes[inode].settle();
                    }
                }
                if *dir_synced {
                    self.sync_dir(file.parent());
                }
            }
            Op::Forget { file } => {
                if let Some(inode) = self.names.get(file).and_then(Name::current) {
                    self.inodes[inode].forget();
                }
            }
            Op::Delete { file, dir_synced } => {
                self.names.entry(file).or_default().pending.push(None);
                if *dir_synced {
                    self.sync_dir(file.parent());
                }
            }
            Op::Mark(_) => {}
        }
    }

    fn sync_dir(&mut self, dir: Option<&Path>) {
        for (path, name) in &mut self.names {
            if path.parent() == dir {
                name.settle();
            }
        }
    }

    fn change(&mut self, file: &Arc<Path>, change: Change<'a>) {
        // A file that is unlinked while open can still be written to, but nothing of that can outlive a power cut.
        if let Some(inode) = self.names.get(file).and_then(Name::current) {
            self.inodes[inode].pending.push(change);
        }
    }

    fn lose_power(mut self, dice: &mut Dice) -> Disk {
        let mut files = BTreeMap::new();
        for (path, name) in self.names {
            // File systems keep directory changes in order, so some first few of them have happened.
            let happened = dice.up_to(name.pending.len());
            let bound = match happened.checked_sub(1) {
                Some(last) => name.pending[last],
                None => name.durable,
            };
            if let Some(inode) = bound {
                let inode = std::mem::take(&mut self.inodes[inode]);
                files.insert(Arc::clone(path), inode.survive(dice));
            }
        }
        Disk { files }
    }
}

impl Inode<'_> {
    fn settle(&mut self) {
        for change in self.pending.drain(..) {
            match change {
                Change::Write { offset, data } => write(&mut self.durable, offset, data),
                Change::Resize(size) => resize(&mut self.durable, size),
            }
        }
    }

    fn forget(&mut self) {
        let mut size = self.durable.len() as u64;
        for change in &mut self.pending {
            match change {
                Change::Write { offset, data } => {
                    size = size.max(*offset + data.len() as u64);
                    *change = Change::Resize(size);
                }
                Change::Resize(to) => size = *to,
            }
        }
    }

    fn survive(self, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable;
        for change in self.pending {
            match change {
                Change::Resize(size) => {
                    if dice.keep() {
                        resize(&mut bytes, size);
                    }
                }
                Change::Write { offset, data } => {
                    let end = offset + data.len() as u64;
                    for kept in dice.kept_parts(offset..end) {
                        let part = (kept.start - offset) as usize..(kept.end - offset) as usize;
                        write(&mut bytes, kept.start, &data[part]);
                    }
                    // The size of a file is metadata and may reach the disk ahead of the data.
                    if end > bytes.len() as u64 && dice.grow_anyway() {
                        resize(&mut bytes, end);
                    }
                }
            }
        }
        bytes
    }
}

fn write(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = offset as usize;
    let end = start + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(data);
}

fn resize(bytes: &mut Vec<u8>, size: u64) {
    bytes.resize(size as usize, 0);
}

/// Decides what is kept.
struct Dice {
    loss: Loss,
    state: u64,
    /// How many of 8 unsynced changes are kept. It differs from cut to cut, so that cuts which lose nearly nothing
    /// and cuts which lose nearly everything both occur, however many changes are pending.
    kept_of_8: u64,
}

impl Dice {
    fn new(loss: Loss, cut: usize) -> Self {
        let seed = match loss {
            Loss::DropUnsynced => 0,
            Loss::KeepRandom { seed } | Loss::Torn { seed } => seed,
        };
        let mut dice = Dice { loss, state: seed, kept_of_8: 0 };
        dice.state = dice.roll() ^ cut as u64;
        dice.kept_of_8 = 1 + dice.below(7);
        dice
    }

    /// SplitMix64: small, and the same on every platform and in every version, so that a seed stays a test case.
    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    fn keep(&mut self) -> bool {
        self.loss != Loss::DropUnsynced && self.below(8) < self.kept_of_8
    }

    fn up_to(&mut self, n: usize) -> usize {
        match self.loss {
            Loss::DropUnsynced => 0,
            _ => self.below(n as u64 + 1) as usize,
        }
    }

    fn grow_anyway(&mut self) -> bool {
        matches!(self.loss, Loss::Torn { .. }) && self.below(4) == 0
    }

    /// The parts of a write to these bytes of a file that are kept.
    fn kept_parts(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() || !self.keep() {
            return Vec::new();
        }
        let how = match self.loss {
            Loss::Torn { .. } => self.below(4),
            _ => 0,
        };
        if how < 2 {
            return vec![range];
        }
        // Sectors are counted from the start of the file: a small write across a boundary can be torn there.
        let sectors = range.start / SECTOR..range.end.div_ceil(SECTOR);
        let clip = |sector: u64| range.start.max(sector * SECTOR)..range.end.min((sector + 1) * SECTOR);
        if how == 2 {
            let count = self.below(sectors.end - sectors.start + 1);
            return sectors.take(count as usize).map(clip).collect();
        }
        sectors.filter(|_| self.below(2) == 0).map(clip).collect()
    }
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod tests;
