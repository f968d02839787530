//! What of an agent runs in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::TurnId;
use crate::run::Run;

/// The turns of an agent that run in this process, and how many invocations go on in the background.
pub(crate) struct Local {
    turns: Mutex<HashMap<TurnId, Weak<Run>>>,
    background: watch::Sender<usize>,
}

impl Default for Local {
    fn default() -> Self {
        Self { turns: Mutex::default(), background: watch::Sender::new(0) }
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

    /// An invocation goes on in the background for as long as what is returned lives.
    pub(crate) fn enter(&self) -> Guard {
        self.background.send_modify(|count| *count += 1);
        Guard(self.background.clone())
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
