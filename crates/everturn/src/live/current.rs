//! The session of the running turn, for code that is not handed one.

use std::any::TypeId;
use std::future::Future;
use std::sync::Arc;

use super::Session;
use crate::agent::CustomState;
use crate::model::generation::hook::keeping;
use crate::run::{Run, TurnLedger};

tokio::task_local! {
    static CURRENT: Arc<Run>;
}

/// Runs a future inside a session.
pub(crate) fn in_scope<F: Future>(run: Arc<Run>, future: F) -> impl Future<Output = F::Output> {
    // Whatever generates inside writes its tool calls down with this turn.
    let ledger = Arc::new(TurnLedger(run.clone()));
    keeping(ledger, CURRENT.scope(run, future))
}

/// The invocation this code runs in, if it does in one.
pub(crate) fn current_run() -> Option<Arc<Run>> {
    CURRENT.try_with(Arc::clone).ok()
}

impl<S: CustomState> Session<S> {
    /// The session of the turn this code runs in: inside a handler, and in what [`Session::spawn`] and
    /// [`Session::scope`] carry it into. Nothing elsewhere, or if its custom state is of another type.
    #[must_use]
    pub fn current() -> Option<Self> {
        let run = current_run()?;
        (run.def.state_type == TypeId::of::<S>()).then(|| Self::of(run))
    }

    /// Starts a task in which [`Session::current`] is this session.
    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(in_scope(self.run().clone(), future))
    }

    /// A future in which [`Session::current`] is this session.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F, S> {
        in_scope(self.run().clone(), future)
    }
}
