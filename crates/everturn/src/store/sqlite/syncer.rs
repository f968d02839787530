//! The thread that waits for the disk.
//!
//! Writes that were committed come here to be acknowledged once they are on disk. One sync covers all that came before it
//! began, so that many turns share a wait, and the writer goes on meanwhile. What is committed can be read before it is on
//! disk; whoever reads is therefore answered when what they may have seen is there ([`Tide`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use tokio::sync::watch;

use super::Circumstances;
use super::crowd::Crowd;
use super::inbox::Inbox;
use super::job::Job;
use super::log::Log;
use super::stats::Counters;

use crate::{Error, Result};

/// How far what was committed has got on its way to the disk. Commits that must get there are numbered.
#[derive(Debug)]
pub(super) struct Tide {
    /// The last number given: before the commit, so that nobody sees what has none yet.
    committed: AtomicU64,
    /// The last number up to which all is on disk, or will never be acknowledged.
    synced: watch::Sender<u64>,
}

impl Default for Tide {
    fn default() -> Self {
        Self { committed: AtomicU64::new(0), synced: watch::Sender::new(0) }
    }
}

impl Tide {
    /// Waits until all that can be read now is on disk.
    pub(super) async fn settled(&self) {
        let wanted = self.committed.load(Ordering::Acquire);
        if *self.synced.borrow() < wanted {
            // It cannot fail: the sender is here.
            let _ = self.synced.subscribe().wait_for(|synced| *synced >= wanted).await;
        }
    }

    /// Whether all that can be read now is on disk.
    pub(super) fn is_settled(&self) -> bool {
        *self.synced.borrow() >= self.committed.load(Ordering::Acquire)
    }

    /// The number of a commit that is about to be made.
    pub(super) fn next(&self) -> u64 {
        self.committed.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn reached(&self, number: u64) {
        self.synced.send_if_modified(|synced| number > std::mem::replace(synced, number.max(*synced)));
    }
}

enum Waiting {
    Job(Box<dyn Job>),
    /// What was committed so far has this number.
    Commit(u64),
    /// Somebody wants to know when all before it are answered.
    Flush(Sender<()>),
}

/// Acknowledges what was committed once it is on disk.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inbox: Inbox<Waiting>,
    /// Jobs that were handed over and are not answered yet.
    waiting: AtomicUsize,
    tide: Arc<Tide>,
    log: Log,
    circumstances: Arc<Circumstances>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Syncer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Syncer").field("log", &self.shared.log).finish_non_exhaustive()
    }
}

impl Syncer {
    pub(super) fn start(
        log: Log,
        tide: Arc<Tide>,
        circumstances: Arc<Circumstances>,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let (inbox, waiting) = (Inbox::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { inbox, waiting, tide, log, circumstances, counters });
        let work = shared.clone();
        let thread = thread::Builder::new()
            .name("everturn-sync".to_owned())
            .spawn(move || {
                let ends = Ends(work);
                ends.0.serve();
            })
            .map_err(|e| Error::unavailable("the thread that syncs cannot be started").with_source(e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Jobs that wait for the disk.
    pub(super) fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    /// The number of a commit that is about to be made.
    pub(super) fn next(&self) -> u64 {
        self.shared.tide.next()
    }

    /// Acknowledges the jobs of a commit once what they wrote is on disk, in the background.
    pub(super) fn hand_over(&self, number: u64, jobs: Vec<Box<dyn Job>>) {
        self.shared.waiting.fetch_add(jobs.len(), Ordering::AcqRel);
        let mut waiting: Vec<_> = jobs.into_iter().map(Waiting::Job).chain([Waiting::Commit(number)]).collect();
        self.shared.inbox.push_all(&mut waiting);
    }

    /// Something durable is about to be committed: the thread wakes up meanwhile.
    pub(super) fn rouse(&self) {
        self.shared.inbox.rouse();
    }

    /// Waits until all that was handed over is answered.
    pub(super) fn flush(&self) {
        let (done, finished) = channel();
        if self.shared.inbox.push(Waiting::Flush(done)).is_ok() {
            let _ = finished.recv();
        }
    }
}

/// Lets nobody wait for a thread that is gone, be it by a panic.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.circumstances.close(&Error::internal("the thread that syncs has stopped"));
            self.0.tide.reached(u64::MAX);
        }
        self.0.inbox.abandon();
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let (mut taken, mut crowd) = (Vec::new(), Crowd::default());
        loop {
            self.inbox.take(&mut taken, usize::MAX, crowd.patience());
            if taken.is_empty() {
                return;
            }
            crowd.note(self.waiting.load(Ordering::Acquire));
            let (mut jobs, mut number, mut flushed) = (Vec::with_capacity(taken.len()), 0, Vec::new());
            for waiting in taken.drain(..) {
                match waiting {
                    Waiting::Job(job) => jobs.push(job),
                    Waiting::Commit(last) => number = last,
                    Waiting::Flush(done) => flushed.push(done),
                }
            }
            if number > 0 {
                let count = jobs.len();
                self.sync(number, jobs);
                self.waiting.fetch_sub(count, Ordering::AcqRel);
            }
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    /// A sync that failed may seem to succeed the next time, though what it was for is lost: after one, nothing is
    /// acknowledged until the store has been opened anew.
    fn sync(&self, number: u64, jobs: Vec<Box<dyn Job>>) {
        let synced = self.circumstances.check_open().and_then(|()| self.log.sync());
        if let Err(error) = &synced {
            self.circumstances.note(error);
        }
        // Those who wait to read are told by the store being closed.
        self.tide.reached(number);
        match synced {
            Ok(()) => {
                self.counters.synced();
                jobs.into_iter().for_each(|job| job.answer(Ok(())));
            }
            Err(error) => {
                // They are committed, and nobody knows whether the disk has them.
                let error = error.in_doubt();
                let (kind, text) = (error.kind(), error.to_string());
                jobs.into_iter().for_each(|job| job.answer(Err(Error::new(kind, &text))));
            }
        }
    }
}
