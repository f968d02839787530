//! What a turn in this process has said lately: a ring that its writer fills, the store's keeper empties, and any number of
//! readers follow.
//!
//! Chunks are numbered from 0. Readers see what the store has: one that goes on elsewhere finds its place there. Those that
//! keep up read it here, those further behind than the ring reaches in the store. What the store does not have yet is
//! never dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::json::Json;

/// How much a ring holds beyond what the store does not have yet.
const CHUNKS: usize = 1024;
const BYTES: usize = 1 << 20;

/// How much may wait for the store before the writer waits.
const AHEAD_CHUNKS: u64 = 4096;
const AHEAD_BYTES: usize = 8 << 20;

/// What one row of the store gets at most.
const PACK_BYTES: usize = 256 << 10;

pub(crate) struct Ring {
    state: Mutex<State>,
    /// How many chunks the store has, and whether more will come.
    news: watch::Sender<News>,
    /// Told when there is something to keep, and when a pack of it.
    pub(crate) work: Notify,
    pub(crate) full: Notify,
    /// Told when something was kept, or never will be.
    room: Notify,
    pack: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) chunks: u64,
    pub(crate) closed: bool,
}

#[derive(Default)]
struct State {
    /// The number of the oldest that is held.
    first: u64,
    held: VecDeque<Json>,
    bytes: usize,
    /// How many the store has.
    kept: u64,
    unkept_bytes: usize,
    /// The store takes no more.
    given_up: bool,
}

impl State {
    fn next(&self) -> u64 {
        self.first + self.held.len() as u64
    }

    fn trim(&mut self) {
        while (self.held.len() > CHUNKS || self.bytes > BYTES) && (self.first < self.kept || self.given_up) {
            let Some(oldest) = self.held.pop_front() else { return };
            self.bytes -= oldest.as_str().len();
            self.first += 1;
        }
    }
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// These, the first with this number.
    Chunks(u64, Vec<Json>),
    /// It is further behind than the ring reaches.
    Behind,
    /// Nothing new.
    UpToDate,
}

impl Ring {
    /// An empty one. The keeper is told when so many chunks wait for it.
    pub(crate) fn new(pack: u64) -> Self {
        Self {
            state: Mutex::default(),
            news: watch::Sender::new(News::default()),
            work: Notify::new(),
            full: Notify::new(),
            room: Notify::new(),
            pack,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk.
    pub(crate) fn push(&self, chunk: Json) {
        let unkept = {
            let mut state = self.lock();
            let size = chunk.as_str().len();
            state.bytes += size;
            state.unkept_bytes += size;
            state.held.push_back(chunk);
            state.trim();
            state.next() - state.kept
        };
        if unkept == 1 {
            self.work.notify_one();
        }
        if unkept == self.pack {
            self.full.notify_one();
        }
    }

    /// Waits while the store is too far behind.
    pub(crate) async fn room(&self) {
        loop {
            let room = self.room.notified();
            {
                let state = self.lock();
                let ahead = state.next() - state.kept;
                if state.given_up || (ahead < AHEAD_CHUNKS && state.unkept_bytes < AHEAD_BYTES) {
                    return;
                }
            }
            room.await;
        }
    }

    /// What comes next for the store: the number of the first, and at most a row's worth.
    pub(crate) fn unkept(&self) -> Option<(u64, Vec<Json>)> {
        let state = self.lock();
        let from = usize::try_from(state.kept.checked_sub(state.first)?).ok()?;
        let mut bytes = 0;
        let pack: Vec<_> = state
            .held
            .range(from..)
            .take_while(|chunk| {
                let fits = bytes == 0 || bytes + chunk.as_str().len() <= PACK_BYTES;
                bytes += chunk.as_str().len();
                fits
            })
            .cloned()
            .collect();
        (!pack.is_empty()).then_some((state.kept, pack))
    }

    /// The store has all before this number.
    pub(crate) fn kept(&self, next: u64) {
        {
            let mut state = self.lock();
            let from = usize::try_from(state.kept.saturating_sub(state.first)).unwrap_or(usize::MAX);
            let to = usize::try_from(next.saturating_sub(state.first)).unwrap_or(usize::MAX).min(state.held.len());
            let bytes: usize = state.held.range(from.min(to)..to).map(|chunk| chunk.as_str().len()).sum();
            state.unkept_bytes = state.unkept_bytes.saturating_sub(bytes);
            state.kept = next;
            state.trim();
        }
        self.news.send_modify(|news| news.chunks = next);
        self.room.notify_waiters();
    }

    /// The store takes no more: the turn is no longer ours.
    pub(crate) fn give_up(&self) {
        self.lock().given_up = true;
        self.room.notify_waiters();
    }

    /// Waits until the store has all that is here now, or never will.
    pub(crate) async fn all_kept(&self) {
        let upto = self.lock().next();
        loop {
            let room = self.room.notified();
            {
                let state = self.lock();
                if state.given_up || state.kept >= upto {
                    return;
                }
            }
            self.full.notify_one();
            room.await;
        }
    }

    /// Nothing more will be added.
    pub(crate) fn close(&self) {
        self.news.send_modify(|news| news.closed = true);
        self.work.notify_one();
        self.full.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.news.borrow().closed
    }

    /// Tells when there is something new.
    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// How many follow it right now.
    pub(crate) fn readers(&self) -> usize {
        self.news.receiver_count()
    }

    /// What there is from a number on, at most so many.
    pub(crate) fn from(&self, number: u64, most: usize) -> Held {
        let state = self.lock();
        if number >= state.kept {
            return Held::UpToDate;
        }
        let index = |number: u64| number.checked_sub(state.first).and_then(|index| usize::try_from(index).ok());
        match (index(number), index(state.kept)) {
            (Some(from), Some(to)) => Held::Chunks(number, state.held.range(from..to).take(most).cloned().collect()),
            _ => Held::Behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u64) -> Json {
        Json::parse(n.to_string()).unwrap()
    }

    #[test]
    fn readers_find_what_is_held_and_are_told_when_they_are_behind() {
        let ring = Ring::new(64);
        (0..3000).for_each(|n| ring.push(chunk(n)));
        assert_eq!(ring.from(0, 2), Held::UpToDate, "what is not kept is not shown");
        assert_eq!(ring.unkept().unwrap().0, 0, "and never dropped");
        ring.kept(2500);
        assert_eq!(ring.from(0, 2), Held::Behind);
        assert_eq!(ring.from(2498, 10), Held::Chunks(2498, vec![chunk(2498), chunk(2499)]));
        assert_eq!(ring.from(2500, 10), Held::UpToDate);
        let (first, pack) = ring.unkept().unwrap();
        assert_eq!((first, pack.len()), (2500, 500));
        ring.kept(3000);
        assert_eq!(ring.unkept(), None);
    }

    #[test]
    fn a_pack_is_bounded_but_never_empty_for_that() {
        let ring = Ring::new(64);
        let long = Json::parse(format!("\"{}\"", "x".repeat(PACK_BYTES))).unwrap();
        ring.push(long.clone());
        ring.push(long);
        assert_eq!(ring.unkept().unwrap().1.len(), 1);
    }

    #[tokio::test]
    async fn a_writer_far_ahead_of_the_store_waits_for_it() {
        let ring = std::sync::Arc::new(Ring::new(64));
        (0..AHEAD_CHUNKS).for_each(|n| ring.push(chunk(n)));
        let waiting = tokio::spawn({
            let ring = ring.clone();
            async move { ring.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        ring.kept(1);
        waiting.await.unwrap();
    }
}
