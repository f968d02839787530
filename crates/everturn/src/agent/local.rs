//! What of an agent runs in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::unwritten::Unwritten;
use crate::TurnId;
use crate::run::Run;
use crate::stream::Ring;

/// The turns of an agent that run in this process, and how many invocations go on in the background.
pub(crate) struct Local {
    turns: Mutex<HashMap<TurnId, Weak<Run>>>,
    /// The streams of turns that are kept, with their attempts.
    streams: Mutex<HashMap<TurnId, (u64, Arc<Ring>)>>,
    background: watch::Sender<usize>,
    /// The ends of turns that the store could not write.
    pub(crate) unwritten: Arc<Unwritten>,
}

impl Default for Local {
    fn default() -> Self {
        Self {
            turns: Mutex::default(),
            streams: Mutex::default(),
            background: watch::Sender::new(0),
            unwritten: Arc::default(),
        }
    }
}

impl Local {
    fn turns(&self) -> MutexGuard<'_, HashMap<TurnId, Weak<Run>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn runs(&self, turn: TurnId, run: &Arc<Run>) {
        self.turns().insert(turn, Arc::downgrade(run));
    }

    pub(crate) fn ended(&self, turn: TurnId) {
        self.turns().remove(&turn);
    }

    pub(crate) fn find(&self, turn: TurnId) -> Option<Arc<Run>> {
        self.turns().get(&turn)?.upgrade()
    }

    pub(crate) fn streams(&self, turn: TurnId, attempt: u64, ring: &Arc<Ring>) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).insert(turn, (attempt, ring.clone()));
    }

    pub(crate) fn stream_ended(&self, turn: TurnId) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn);
    }

    /// The stream of a turn in this process, if it is kept.
    pub(crate) fn stream(&self, turn: TurnId) -> Option<(u64, Arc<Ring>)> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).get(&turn).cloned()
    }

    /// An invocation goes on in the background for as long as what is returned lives.
    pub(crate) fn enter(&self) -> Guard {
        self.background.send_modify(|count| *count += 1);
        Guard(self.background.clone())
    }

    /// How many invocations go on in the background.
    pub(crate) fn in_background(&self) -> usize {
        *self.background.borrow()
    }

    /// Waits until nothing goes on in the background, or so long. How many still do is the answer.
    pub(crate) async fn drained(&self, within: Duration) -> usize {
        let mut background = self.background.subscribe();
        let _ = tokio::time::timeout(within, background.wait_for(|count| *count == 0)).await;
        *self.background.borrow()
    }
}

/// One invocation in the background.
pub(crate) struct Guard(watch::Sender<usize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
