//! Keeping what a turn says, for readers that come later or come back.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Run;
use crate::json::Json;
use crate::store::{KeepChunks, Store};
use crate::stream::{Chunk, Ring};
use crate::turn::Fence;

/// A row is written when so many chunks wait, or the first has waited so long.
const PACK: u64 = 64;
const PATIENCE: Duration = Duration::from_millis(50);

/// How long a turn's end waits for its stream.
const LAST: Duration = Duration::from_secs(5);

/// How long the store is left alone after it could not keep a pack.
const AGAIN: Duration = Duration::from_millis(250);

/// The stream of a turn that is kept.
pub(crate) struct Kept {
    pub(crate) fence: Fence,
    pub(crate) ring: Arc<Ring>,
}

impl Run {
    /// From now on what the turn says is kept.
    pub(super) fn keep_stream(&self, store: &Arc<dyn Store>, fence: Fence) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|kept| kept.fence == fence) {
            return;
        }
        let ring = Arc::new(Ring::new(PACK));
        *kept = Some(Arc::new(Kept { fence, ring: ring.clone() }));
        self.def.local.streams(fence.turn(), fence.attempt(), &ring);
        tokio::spawn(keep(store.clone(), fence, ring));
    }

    pub(super) fn kept(&self) -> Option<Arc<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a chunk, if the turn's stream is kept.
    pub(super) fn keep_chunk(&self, chunk: &Chunk) {
        if let Some(kept) = self.kept() {
            match Json::written(chunk) {
                Ok(json) => kept.ring.push(json),
                Err(error) => tracing::warn!(%error, "a chunk could not be kept"),
            }
        }
    }

    /// Waits while the store is too far behind to keep more.
    pub(super) async fn keeping_room(&self) {
        if let Some(kept) = self.kept() {
            kept.ring.room().await;
        }
    }

    /// Nobody reads any more what can be followed: the turn goes on for a while, in case somebody comes back.
    pub(crate) fn linger(self: Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.cancel.cancel();
            return;
        };
        let grace = self.def.limits.reader_gone;
        runtime.spawn(async move {
            loop {
                tokio::select! {
                    () = self.cancel.cancelled() => return,
                    () = tokio::time::sleep(grace) => {}
                }
                if self.is_background() || self.finished.borrow().is_some() {
                    return;
                }
                if self.kept().is_none_or(|kept| kept.ring.readers() == 0) {
                    self.cancel.cancel();
                    return;
                }
            }
        });
    }

    /// What was said until now is in the store; the end of the turn follows it.
    pub(super) async fn keep_all(&self) {
        if let Some(kept) = self.kept() {
            // A store that cannot keep the stream must not keep the turn from ending.
            if tokio::time::timeout(LAST, kept.ring.all_kept()).await.is_err() {
                tracing::warn!(turn = %kept.fence.turn(), "the end of a stream could not be kept");
            }
        }
    }

    /// The turn has ended: nothing more of it is kept.
    pub(super) fn end_stream(&self) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(kept) = kept {
            kept.ring.give_up();
            kept.ring.close();
            self.def.local.stream_ended(kept.fence.turn());
        }
    }
}

/// Writes what a ring has, pack by pack, until it is closed or the turn is no longer ours.
async fn keep(store: Arc<dyn Store>, fence: Fence, ring: Arc<Ring>) {
    loop {
        let Some(first) = ring.unkept() else {
            if ring.is_closed() {
                return;
            }
            ring.work.notified().await;
            continue;
        };
        let (number, pack) = if (first.1.len() as u64) < PACK && !ring.is_closed() {
            let _ = tokio::time::timeout(PATIENCE, ring.full.notified()).await;
            match ring.unkept() {
                Some(grown) => grown,
                None => continue,
            }
        } else {
            first
        };
        let next = number + pack.len() as u64;
        match store.keep_chunks(KeepChunks::new(fence, number, pack)).await {
            Ok(()) => ring.kept(next),
            Err(error) if error.is_stores() && !ring.is_closed() => {
                tracing::warn!(%error, "a stream could not be kept; it is tried again");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => {
                // Whoever has the turn now keeps its own.
                tracing::debug!(%error, "a stream is no longer kept");
                ring.give_up();
                return;
            }
        }
    }
}
