//! Unpacking a long line beside reading it.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

use super::fold::Fold;
use super::line::Interval;
use super::tables::Read;
use super::walk::{Batch, walk};
use crate::{Error, Result};

/// Batches that wait, beside the one that is filled and the one that is unpacked: new memory costs more than waiting.
const WAITING: usize = 1;

/// Adds the records of a line to a state. A short line is read and then unpacked; what was read of a long one is unpacked
/// and added by a second thread while this one reads on, because that takes about as long as reading.
pub(super) fn add_line(read: &dyn Read, line: &[Interval], fold: Fold) -> Result<Fold> {
    let fold = Mutex::new(fold);
    thread::scope(|scope| {
        let mut helper = Helper { scope, fold: &fold, thread: None };
        let walked = walk(read, line, &mut |batch| helper.give(batch)).and_then(|last| helper.give_last(last));
        // A helper that failed is why nothing more could be given to it.
        helper.finish().and(walked)
    })?;
    Ok(fold.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn add(batch: &Batch, fold: &Mutex<Fold>) -> Result<()> {
    let mut fold = fold.lock().unwrap_or_else(PoisonError::into_inner);
    batch.visit(&mut |meta, text| fold.apply(meta, text))
}

struct Helper<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    fold: &'env Mutex<Fold>,
    thread: Option<(SyncSender<Batch>, ScopedJoinHandle<'scope, Result<()>>)>,
}

impl Helper<'_, '_> {
    /// Has a batch added that others will follow.
    fn give(&mut self, batch: Batch) -> Result<()> {
        if self.thread.is_none() {
            self.start();
        }
        self.give_last(batch)
    }

    /// Has a batch added: by the helper if there is one, else here and now. A helper that is behind gets it unpacked.
    fn give_last(&mut self, batch: Batch) -> Result<()> {
        let Some((batches, _)) = &self.thread else { return add(&batch, self.fold) };
        let stopped = || Error::internal("a helper has stopped");
        match batches.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(mut batch)) => {
                batch.unpack()?;
                batches.send(batch).map_err(|_| stopped())
            }
            Err(TrySendError::Disconnected(_)) => Err(stopped()),
        }
    }

    /// Where no thread can be had, the work is done without one.
    fn start(&mut self) {
        let (batches, given) = sync_channel::<Batch>(WAITING);
        let fold = self.fold;
        let work = move || given.iter().try_for_each(|batch| add(&batch, fold));
        let started = thread::Builder::new().name("everturn-unpack".to_owned()).spawn_scoped(self.scope, work);
        self.thread = started.ok().map(|thread| (batches, thread));
    }

    fn finish(self) -> Result<()> {
        let Some((batches, thread)) = self.thread else { return Ok(()) };
        drop(batches);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
