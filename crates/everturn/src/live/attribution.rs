//! Whose code changed the state: a change made while a tool runs is noted with that call's event.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::state::{Scope, StateDelta, split_key};

tokio::task_local! {
    static CHANGED: Arc<Mutex<StateDelta>>;
}

/// Runs a future whose changes of state are noted.
pub(crate) fn noting<F: Future>(changed: Arc<Mutex<StateDelta>>, future: F) -> impl Future<Output = F::Output> {
    CHANGED.scope(changed, future)
}

/// Notes a change, if somebody wants to know. `temp:` keys are in no event.
pub(crate) fn note(delta: &StateDelta) {
    let _ = CHANGED.try_with(|changed| {
        let kept = |key: &&String| split_key(key).0 != Scope::Temp;
        let kept = StateDelta {
            set: delta
                .set
                .iter()
                .filter(|(key, _)| kept(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            remove: delta.remove.iter().filter(kept).cloned().collect(),
        };
        changed.lock().unwrap_or_else(PoisonError::into_inner).then(&kept);
    });
}

/// Whether somebody wants to know.
pub(crate) fn wanted() -> bool {
    CHANGED.try_with(|_| ()).is_ok()
}
