//! The state behind one registered VFS, and what each operation does to it.
//!
//! Operations are passed in as closures returning a SQLite result code, which keeps this file free of pointers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use crate::trace::{Op, Trace};

/// What all connections through one VFS share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    powersafe_overwrite: AtomicBool,
    /// Whether operations have to look at `state`; otherwise they leave the lock alone.
    armed: AtomicBool,
    /// Operations that were let through without the lock and are still under way.
    in_flight: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) faults: Faults,
    open: BTreeMap<Arc<Path>, OpenFile>,
    /// Files that were made beside the covered ones to keep room; they count while they are there.
    allocated: BTreeSet<Arc<Path>>,
    recording: Option<Recording>,
}

/// A covered file that is open through this VFS.
#[derive(Debug, Default)]
struct OpenFile {
    handles: usize,
    /// Where the base image was read from. POSIX drops all locks that a process holds on a file as soon as it closes
    /// any descriptor of that file, SQLite's locks included, so this one stays open as long as SQLite's do.
    reader: Option<File>,
}

impl OpenFile {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(File::open(path)?),
        };
        let mut bytes = Vec::new();
        reader.rewind()?;
        reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[derive(Debug, Default)]
struct Recording {
    trace: Trace,
    /// The files whose history the trace knows, be it from a base image or from their creation.
    known: BTreeSet<Arc<Path>>,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    syncs_left: Option<u64>,
    writes_left: Option<u64>,
    /// Reads that are still to fail.
    pub(crate) failing_reads: u64,
    pub(crate) disk_limit: Option<u64>,
}

impl Faults {
    pub(crate) fn fail_sync_at(&mut self, n: u64) {
        self.syncs_left = Some(n.saturating_sub(1));
    }

    pub(crate) fn fail_write_at(&mut self, n: u64) {
        self.writes_left = Some(n.saturating_sub(1));
    }

    fn any(&self) -> bool {
        self.syncs_left.is_some() || self.writes_left.is_some() || self.failing_reads > 0 || self.disk_limit.is_some()
    }
}

/// Counts one operation down; true once it has to fail.
fn runs_out(left: &mut Option<u64>) -> bool {
    match left {
        None => false,
        Some(0) => true,
        Some(n) => {
            *n -= 1;
            false
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    syncs: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self) {
        for counter in [&self.syncs, &self.writes, &self.bytes] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// How an operation may go ahead.
enum Gate<'a> {
    /// Nobody is looking: just do it, while holding this.
    Pass(InFlight<'a>),
    /// Consult and update the state, which stays locked meanwhile: the order in the trace is the real order.
    Armed(MutexGuard<'a, State>),
}

struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Callbacks from C must not panic, and no update of the state is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces an operation before asking whether it needs the lock; `configure` sets `armed` before asking whether
    /// operations are under way. So one of the two always sees the other.
    fn enter(&self) -> Gate<'_> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight(&self.in_flight);
        if !self.armed.load(Ordering::SeqCst) {
            return Gate::Pass(in_flight);
        }
        drop(in_flight);
        Gate::Armed(self.lock())
    }

    /// Changes the state while no operation is under way.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        self.armed.store(true, Ordering::SeqCst);
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        change(&mut state);
        let armed = state.recording.is_some() || state.faults.any();
        self.armed.store(armed, Ordering::SeqCst);
    }

    pub(crate) fn set_powersafe_overwrite(&self, promised: bool) {
        self.powersafe_overwrite.store(promised, Ordering::Relaxed);
    }

    pub(crate) fn powersafe_overwrite(&self) -> bool {
        self.powersafe_overwrite.load(Ordering::Relaxed)
    }

    pub(crate) fn start_recording(&self) {
        self.configure(|state| {
            let mut recording = Recording::default();
            for (path, open) in &mut state.open {
                match open.read(path) {
                    Ok(bytes) => recording.adopt(path, bytes),
                    // Deleted under the feet of its connection: there is nothing left that a power cut could spare.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => panic!("cannot read {}: {e}", path.display()),
                }
            }
            state.recording = Some(recording);
        });
    }

    pub(crate) fn trace(&self) -> Trace {
        let state = self.lock();
        state.recording.as_ref().map(|recording| recording.trace.clone()).unwrap_or_default()
    }

    pub(crate) fn mark(&self, label: String) {
        self.lock().record(|| Op::Mark(label));
    }

    pub(crate) fn open(&self, path: &Arc<Path>, io: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.lock();
        let existed = path.exists();
        // Read before it is opened, as there is no lock on it to lose then.
        if let Some(recording) = &mut state.recording
            && existed
            && !recording.known.contains(path)
        {
            match fs::read(path) {
                Ok(bytes) => recording.adopt(path, bytes),
                Err(_) => return ffi::SQLITE_CANTOPEN,
            }
        }
        let rc = io();
        if rc == ffi::SQLITE_OK {
            state.open.entry(Arc::clone(path)).or_default().handles += 1;
            if !existed {
                state.record(|| Op::Create { file: Arc::clone(path) });
            }
        }
        rc
    }

    /// To be called after the file was closed.
    pub(crate) fn closed(&self, path: &Arc<Path>) {
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(path) {
            open.handles -= 1;
            if open.handles == 0 {
                state.open.remove(path);
            }
        }
    }

    /// What SQLite is told of a disk that cannot read.
    pub(crate) fn read(&self, io: impl FnOnce() -> c_int) -> c_int {
        match self.enter() {
            Gate::Pass(_in_flight) => io(),
            Gate::Armed(mut state) if state.faults.failing_reads > 0 => {
                state.faults.failing_reads -= 1;
                ffi::SQLITE_IOERR_CORRUPTFS
            }
            Gate::Armed(_state) => io(),
        }
    }

    pub(crate) fn write(&self, path: &Arc<Path>, offset: u64, data: &[u8], io: impl FnOnce() -> c_int) -> c_int {
        let rc = match self.enter() {
            Gate::Pass(_in_flight) => io(),
            Gate::Armed(mut state) => {
                if runs_out(&mut state.faults.writes_left) {
                    return ffi::SQLITE_IOERR_WRITE;
                }
                if state.is_full(path, offset + data.len() as u64) {
                    return ffi::SQLITE_FULL;
                }
                let rc = io();
                if rc == ffi::SQLITE_OK {
                    state.record(|| Op::Write { file: Arc::clone(path), offset, data: data.into() });
                }
                rc
            }
        };
        if rc == ffi::SQLITE_OK {
            self.counters.writes.fetch_add(1, Ordering::Relaxed);
            self.counters.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        rc
    }

    /// Covers both truncation and preallocation. How large the file becomes is up to the underlying VFS (it may round
    /// up, or ignore a hint), so what is recorded is the size found afterwards.
    pub(crate) fn resize(
        &self,
        path: &Arc<Path>,
        wanted: u64,
        size: impl Fn() -> Option<u64>,
        io: impl FnOnce() -> c_int,
    ) -> c_int {
        match self.enter() {
            Gate::Pass(_in_flight) => io(),
            Gate::Armed(mut state) => {
                if state.is_full(path, wanted) {
                    return ffi::SQLITE_FULL;
                }
                let before = size();
                let rc = io();
                if let Some(size) = size()
                    && before != Some(size)
                {
                    state.record(|| Op::Truncate { file: Arc::clone(path), size });
                }
                rc
            }
        }
    }

    pub(crate) fn sync(&self, path: &Arc<Path>, dir_synced: bool, io: impl FnOnce() -> c_int) -> c_int {
        let rc = match self.enter() {
            Gate::Pass(_in_flight) => io(),
            Gate::Armed(mut state) => {
                if runs_out(&mut state.faults.syncs_left) {
                    return ffi::SQLITE_IOERR_FSYNC;
                }
                let rc = io();
                if rc == ffi::SQLITE_OK {
                    state.record(|| Op::Sync { file: Arc::clone(path), dir_synced });
                }
                rc
            }
        };
        if rc == ffi::SQLITE_OK {
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        }
        rc
    }

    pub(crate) fn forget(&self, path: &Arc<Path>) {
        self.lock().record(|| Op::Forget { file: Arc::clone(path) });
    }

    /// Makes a file of so many bytes, if there is room for it.
    pub(crate) fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let (mut state, path) = (self.lock(), Arc::from(path));
        if state.is_full(&path, bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        File::create(&path)?.set_len(bytes)?;
        state.allocated.insert(path);
        Ok(())
    }

    /// What counts towards the limit of the disk.
    pub(crate) fn used(&self) -> u64 {
        self.lock().used()
    }

    pub(crate) fn delete(&self, path: &Arc<Path>, dir_synced: bool, io: impl FnOnce() -> c_int) -> c_int {
        match self.enter() {
            Gate::Pass(_in_flight) => io(),
            Gate::Armed(mut state) => {
                // A file may be deleted without ever being opened here. SQLite takes no locks on files it deletes, so
                // opening and closing it does no harm.
                if let Some(recording) = &mut state.recording
                    && !recording.known.contains(path)
                    && let Ok(bytes) = fs::read(path)
                {
                    recording.adopt(path, bytes);
                }
                let rc = io();
                if rc == ffi::SQLITE_OK {
                    state.record(|| Op::Delete { file: Arc::clone(path), dir_synced });
                }
                rc
            }
        }
    }
}

impl State {
    fn record(&mut self, op: impl FnOnce() -> Op) {
        if let Some(recording) = &mut self.recording {
            let op = op();
            if let Op::Create { file } = &op {
                recording.known.insert(Arc::clone(file));
            }
            recording.trace.ops.push(op);
        }
    }

    /// Whether growing the file to `end` bytes would exceed the limit.
    fn is_full(&self, path: &Arc<Path>, end: u64) -> bool {
        let Some(limit) = self.faults.disk_limit else {
            return false;
        };
        let growth = end.saturating_sub(size(path));
        growth > 0 && self.used() + growth > limit
    }

    /// Sizes are asked for rather than kept, so that nothing has to be kept while there is no limit.
    fn used(&self) -> u64 {
        self.open.keys().chain(&self.allocated).map(|path| size(path)).sum()
    }
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

impl Recording {
    fn adopt(&mut self, path: &Arc<Path>, bytes: Vec<u8>) {
        self.known.insert(Arc::clone(path));
        self.trace.base.insert(Arc::clone(path), bytes.into());
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
