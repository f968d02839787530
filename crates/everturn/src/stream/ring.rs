//! What a turn in this process has said lately: a ring that its writer fills, the store's keeper empties, and any number of
//! readers follow.
//!
//! Chunks are numbered from 0. Readers see what the store has: one that goes on elsewhere finds its place there. Those that
//! keep up read it here, those further behind than the ring reaches in the store. What the store does not have yet is
//! never dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::lately::{Held, Lately};
use crate::json::Json;

pub(crate) struct Ring {
    lately: Mutex<Lately>,
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

impl Ring {
    /// An empty one. The keeper is told when so many chunks wait for it.
    pub(crate) fn new(pack: u64) -> Self {
        Self {
            lately: Mutex::default(),
            news: watch::Sender::new(News::default()),
            work: Notify::new(),
            full: Notify::new(),
            room: Notify::new(),
            pack,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk.
    pub(crate) fn push(&self, chunk: Json) {
        let unkept = self.lock().push(chunk);
        if unkept == 1 {
            self.work.notify_one();
        }
        if unkept == self.pack {
            self.full.notify_one();
        }
    }

    /// Waits until something about what is kept holds.
    async fn until(&self, holds: impl Fn(&Lately) -> bool, meanwhile: impl Fn()) {
        loop {
            // Told from before the look on, so that a change in between is not missed.
            let room = self.room.notified();
            if holds(&self.lock()) {
                return;
            }
            meanwhile();
            room.await;
        }
    }

    /// Waits while the store is too far behind.
    pub(crate) async fn room(&self) {
        self.until(Lately::has_room, || {}).await;
    }

    /// Waits until the store has all that is here now, or never will.
    pub(crate) async fn all_kept(&self) {
        let next = self.lock().next();
        self.until(|lately| lately.is_kept(next), || self.full.notify_one()).await;
    }

    /// What comes next for the store: the number of the first, and at most a row's worth.
    pub(crate) fn unkept(&self) -> Option<(u64, Vec<Json>)> {
        self.lock().unkept()
    }

    /// The store has all before this number.
    pub(crate) fn kept(&self, next: u64) {
        self.lock().keep(next);
        self.news.send_modify(|news| news.chunks = next);
        self.room.notify_waiters();
    }

    /// The store takes no more: the turn is no longer ours.
    pub(crate) fn give_up(&self) {
        self.lock().give_up();
        self.room.notify_waiters();
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
        self.lock().from(number, most)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::lately::AHEAD_CHUNKS;
    use super::*;

    #[tokio::test]
    async fn a_writer_far_ahead_of_the_store_waits_for_it() {
        let ring = Arc::new(Ring::new(64));
        (0..AHEAD_CHUNKS).for_each(|n| ring.push(Json::parse(n.to_string()).unwrap()));
        let waiting = tokio::spawn({
            let ring = ring.clone();
            async move { ring.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        ring.kept(1);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn who_waits_for_all_to_be_kept_waits_for_the_last() {
        let ring = Arc::new(Ring::new(64));
        (0..3).for_each(|n| ring.push(Json::parse(n.to_string()).unwrap()));
        let waiting = tokio::spawn({
            let ring = ring.clone();
            async move { ring.all_kept().await }
        });
        ring.kept(2);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        ring.kept(3);
        waiting.await.unwrap();
    }
}
