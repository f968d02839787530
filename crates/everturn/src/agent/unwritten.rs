//! Turns of this process that are over, and whose end the store could not write.
//!
//! Such a turn would hold its branch until its lease ran out. It is ended as soon as the store writes again: by a task that
//! tries now and then, or by the next turn that begins here, whichever comes first. One that somebody was told about has
//! failed, and is ended as lost; one in the background ends as it was meant.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::TurnId;
use crate::store::{EndTurn, Store};

/// How long the store is left alone after it could not write.
const AGAIN: Duration = Duration::from_millis(250);

/// What is known of the end that was to be written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// It was not.
    NotKept,
    /// It may have been, and then the store refuses another one; or it may still be.
    Unknown,
}

/// The ends that are still to be written.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Mutex<Vec<(EndTurn, Certainty)>>);

impl Unwritten {
    fn lock(&self) -> MutexGuard<'_, Vec<(EndTurn, Certainty)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an end written as soon as the store can. When the store is let go of before, its turns are dead anyway.
    pub(crate) fn add(self: &Arc<Self>, store: &Arc<dyn Store>, end: EndTurn, certainty: Certainty) {
        let first = {
            let mut ends = self.lock();
            ends.push((end, certainty));
            ends.len() == 1
        };
        if !first {
            return;
        }
        let (ends, store) = (Arc::downgrade(self), Arc::downgrade(store));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(AGAIN).await;
                let (Some(ends), Some(store)) = (ends.upgrade(), store.upgrade()) else { return };
                ends.write(&*store).await;
                if ends.lock().is_empty() {
                    return;
                }
            }
        });
    }

    /// Writes what the store takes.
    pub(crate) async fn write(&self, store: &dyn Store) {
        let ends = self.lock().clone();
        for (end, _) in ends {
            let fence = end.fence;
            match store.end(end).await {
                Err(error) if error.is_stores() => return,
                Ok(_) => {}
                // Mostly it was ended or taken over meanwhile.
                Err(error) => tracing::debug!(%error, turn = %fence.turn(), "a turn was not ended by its process"),
            }
            self.lock().retain(|(end, _)| end.fence != fence);
        }
    }

    /// The end of a turn that is known here to have failed, and not in the store.
    pub(crate) fn of(&self, turn: TurnId) -> Option<EndTurn> {
        let ends = self.lock();
        let known = ends.iter().find(|(end, certainty)| end.fence.turn() == turn && *certainty == Certainty::NotKept);
        known.map(|(end, _)| end.clone())
    }
}
