//! The queue between an agent and whoever reads what it says.
//!
//! Bounded in items and bytes: a sender waits for room, and a reader that takes nothing for a while is treated as gone.
//! Changes of custom state never wait here; they are told with the next chunk that has room.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Chunk;

/// How much may wait for a reader, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamLimits {
    /// Chunks that may wait: 256 unless set.
    pub chunks: usize,
    /// Bytes that may wait, though one chunk always may: 4 MiB unless set.
    pub bytes: usize,
    /// How long a sender waits for a reader that takes nothing before it is treated as gone: 30 s unless set.
    pub reader_gone: Duration,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { chunks: 256, bytes: 4 << 20, reader_gone: Duration::from_secs(30) }
    }
}

/// Both ends of a queue.
pub(crate) fn channel(limits: StreamLimits) -> (Sender, Receiver) {
    let shared = Arc::new(Shared {
        limits,
        state: Mutex::new(State { chunks: VecDeque::new(), bytes: 0, reader: true, skips: false, senders: true }),
        filled: Notify::new(),
        drained: Notify::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

struct Shared {
    limits: StreamLimits,
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
}

struct State {
    chunks: VecDeque<(Chunk, usize)>,
    bytes: usize,
    reader: bool,
    /// Whether the reader waits for the end only.
    skips: bool,
    senders: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the chunk into the queue, or gives it back when there is no room. A reader that is gone, or waits for the end
    /// only, takes everything.
    fn offer(&self, chunk: Chunk, weight: usize) -> Option<Chunk> {
        let mut state = self.lock();
        if !state.reader || state.skips {
            return None;
        }
        let room = state.chunks.len() < self.limits.chunks
            && (state.bytes + weight <= self.limits.bytes || state.chunks.is_empty());
        if !room {
            return Some(chunk);
        }
        state.bytes += weight;
        state.chunks.push_back((chunk, weight));
        let first = state.chunks.len() == 1;
        drop(state);
        if first {
            self.filled.notify_one();
        }
        None
    }
}

/// Whether somebody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Reads,
    Gone,
}

/// Whether there was room for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    None,
}

/// The agent's end. Closed by hand, not by dropping: handles to a session may outlive its invocation.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Shared>);

impl Sender {
    /// Waits for room. A reader that takes nothing for too long is gone from then on.
    pub(crate) async fn send(&self, chunk: Chunk) -> Reader {
        let weight = chunk.weight();
        let Some(mut chunk) = self.0.offer(chunk, weight) else { return self.reader() };
        loop {
            let drained = self.0.drained.notified();
            tokio::pin!(drained);
            // Told from before the attempt on, so that a reader in between is not missed.
            drained.as_mut().enable();
            match self.0.offer(chunk, weight) {
                Some(back) => chunk = back,
                None => return self.reader(),
            }
            if self.await_reader(drained).await == Reader::Gone {
                return Reader::Gone;
            }
        }
    }

    /// Waits until the reader takes something, told from now on. One that takes nothing for too long is gone.
    pub(crate) fn taken(&self) -> impl Future<Output = Reader> {
        let mut drained = Box::pin(self.0.drained.notified());
        drained.as_mut().enable();
        self.await_reader(drained)
    }

    async fn await_reader(&self, drained: impl Future<Output = ()>) -> Reader {
        if tokio::time::timeout(self.0.limits.reader_gone, drained).await.is_err() {
            self.give_up();
            return Reader::Gone;
        }
        Reader::Reads
    }

    /// Puts a chunk into the queue if there is room for it.
    pub(crate) fn try_send(&self, chunk: Chunk) -> Room {
        let weight = chunk.weight();
        match self.0.offer(chunk, weight) {
            None => Room::Enough,
            Some(_) => Room::None,
        }
    }

    pub(crate) fn reader(&self) -> Reader {
        if self.0.lock().reader { Reader::Reads } else { Reader::Gone }
    }

    fn give_up(&self) {
        let mut state = self.0.lock();
        state.reader = false;
        state.chunks.clear();
        state.bytes = 0;
    }

    /// Nothing more will be sent.
    pub(crate) fn close(&self) {
        self.0.lock().senders = false;
        self.0.filled.notify_one();
    }
}

/// The reader's end.
pub(crate) struct Receiver(Arc<Shared>);

impl Receiver {
    /// The next chunk, or nothing once the stream is closed and read to its end.
    pub(crate) async fn recv(&mut self) -> Option<Chunk> {
        loop {
            let filled = self.0.filled.notified();
            if let Some(next) = self.try_recv() {
                return next;
            }
            filled.await;
        }
    }

    /// Drops what is there and what will come: nobody is woken for it any more.
    pub(crate) fn skip(&self) {
        let mut state = self.0.lock();
        (state.skips, state.bytes) = (true, 0);
        state.chunks.clear();
        drop(state);
        self.0.drained.notify_waiters();
    }

    /// A chunk, the end, or `None` when there is nothing yet.
    #[allow(clippy::option_option, reason = "not yet, ended, and a chunk are three things")]
    fn try_recv(&self) -> Option<Option<Chunk>> {
        let mut state = self.0.lock();
        let Some((chunk, weight)) = state.chunks.pop_front() else {
            return if state.senders { None } else { Some(None) };
        };
        state.bytes -= weight;
        drop(state);
        self.0.drained.notify_waiters();
        Some(Some(chunk))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reader = false;
        state.chunks.clear();
        drop(state);
        self.0.drained.notify_waiters();
    }
}
