//! What a backend provides so that the suite can run against it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::store::Store;
use crate::{ManualClock, Result};

/// How long a turn's writer counts as alive without a sign of life: build your stores with this lease. Cases let it run
/// out by moving the clock.
pub const LEASE: Duration = Duration::from_secs(60);

/// How long the stream of a turn that has ended stays: what stores do unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(600);

/// What a backend provides. Each case gets a fresh one, with data of its own.
///
/// All stores of one harness use its [`clock`](Self::clock), a lease of [`LEASE`], a grace period of [`GRACE`] for
/// streams and default limits.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The first handle. Asked for once, when there is no data yet.
    async fn open(&self) -> Result<Arc<dyn Store>>;

    /// Another handle on the same data, a new one each time, sharing nothing in memory with the others. A store that
    /// lives in one process's memory answers with the handle it has.
    async fn second(&self) -> Result<Arc<dyn Store>>;

    /// A handle on what is left when the process that holds all other handles is killed right now. None of them is used
    /// afterwards. Nothing, if the store does not outlive its process or the harness cannot find out.
    async fn reopen_after_kill(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// A handle on what is left when the machine loses power right now: what was not flushed may be gone. None of the
    /// other handles is used afterwards. Nothing, if the harness cannot find out.
    async fn reopen_after_power_cut(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// The clock of all handles.
    fn clock(&self) -> ManualClock;

    /// What the backend can do that not all can.
    fn capabilities(&self) -> Capabilities;
}

/// What a backend can do that not all can. Cases that need more than it has are skipped, and say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`Harness::second`] gives handles that share nothing in memory.
    pub second_handle: bool,
    /// A writer whose process was killed is known to be dead at once, before its lease runs out.
    pub dead_at_once: bool,
}

impl Capabilities {
    /// Nothing beyond what every store can do.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with handles that share nothing in memory.
    #[must_use]
    pub fn second_handle(mut self) -> Self {
        self.second_handle = true;
        self
    }

    /// The same, knowing at once that a killed writer is dead.
    #[must_use]
    pub fn dead_at_once(mut self) -> Self {
        self.dead_at_once = true;
        self
    }
}
