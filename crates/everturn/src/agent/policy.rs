//! When snapshots are taken.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::SharedState;
use crate::run::panic_text;
use crate::snapshot::SnapshotEvent;
use crate::store::{At, Store};
use crate::{Digest, Error, Point, Result, SnapshotId};

type Decide = dyn Fn(SnapshotContext) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// When an agent takes snapshots. It is asked at every opportunity: the end of a turn, of a tool iteration, of an
/// invocation.
///
/// ```
/// use everturn::{SnapshotEvent, SnapshotPolicy};
///
/// // Every third opportunity.
/// let third = SnapshotPolicy::when(|cx| async move { cx.index % 3 == 0 });
/// // Only when something changed, at the end of a turn.
/// let changed = SnapshotPolicy::on_change([SnapshotEvent::TurnEnd]);
/// ```
#[derive(Clone, Default)]
pub struct SnapshotPolicy(Kind);

#[derive(Clone, Default)]
enum Kind {
    #[default]
    Always,
    Never,
    On(HashSet<SnapshotEvent>),
    OnChange(HashSet<SnapshotEvent>),
    When(Arc<Decide>),
}

impl SnapshotPolicy {
    /// At every opportunity. This is what an agent with a store does unless told otherwise.
    #[must_use]
    pub fn always() -> Self {
        Self(Kind::Always)
    }

    /// Never; not for failed turns either.
    #[must_use]
    pub fn never() -> Self {
        Self(Kind::Never)
    }

    /// At some events. None means never.
    #[must_use]
    pub fn on(events: impl IntoIterator<Item = SnapshotEvent>) -> Self {
        Self(Kind::On(events.into_iter().collect()))
    }

    /// At some events, if the state is another one than at the last snapshot. The first is always taken.
    #[must_use]
    pub fn on_change(events: impl IntoIterator<Item = SnapshotEvent>) -> Self {
        Self(Kind::OnChange(events.into_iter().collect()))
    }

    /// As a function says.
    #[must_use]
    pub fn when<F, Fut>(decide: F) -> Self
    where
        F: Fn(SnapshotContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self(Kind::When(Arc::new(move |context| Box::pin(decide(context)))))
    }

    pub(crate) fn is_never(&self) -> bool {
        matches!(self.0, Kind::Never)
    }

    pub(crate) async fn decide(&self, context: SnapshotContext) -> Result<bool> {
        match &self.0 {
            Kind::Always => Ok(true),
            Kind::Never => Ok(false),
            Kind::On(events) => Ok(events.contains(&context.event)),
            Kind::OnChange(events) => {
                let changed = context.prev.as_ref().is_none_or(|prev| prev.digest != context.digest);
                Ok(changed && events.contains(&context.event))
            }
            // A function that panics must not take the invocation with it.
            Kind::When(decide) => AssertUnwindSafe(async { decide(context).await })
                .catch_unwind()
                .await
                .map_err(|panic| Error::internal(format!("the snapshot policy panicked: {}", panic_text(&*panic)))),
        }
    }

    /// Whether the snapshot before and the digest matter to it.
    pub(crate) fn compares(&self) -> bool {
        matches!(self.0, Kind::OnChange(_) | Kind::When(_))
    }
}

impl fmt::Debug for SnapshotPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Always => f.write_str("always"),
            Kind::Never => f.write_str("never"),
            Kind::On(events) => write!(f, "on {events:?}"),
            Kind::OnChange(events) => write!(f, "on change at {events:?}"),
            Kind::When(_) => f.write_str("when a function says so"),
        }
    }
}

/// What a policy decides by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotContext {
    /// The opportunity.
    pub event: SnapshotEvent,
    /// The state that would be named.
    pub state: SharedState,
    /// Which opportunity along the line it is, counted from 0, also after a reload.
    pub index: u64,
    /// Which turn along the line it is, counted from 0.
    pub turn_index: u64,
    /// The digest of the state.
    pub digest: Digest,
    pub(crate) prev: Option<LastSnapshot>,
    pub(crate) store: Arc<dyn Store>,
}

/// The nearest snapshot before a place, as far as it is needed to compare with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastSnapshot {
    pub(crate) id: SnapshotId,
    pub(crate) digest: Digest,
    pub(crate) point: Point,
}

impl SnapshotContext {
    /// The last snapshot before this one on the line.
    #[must_use]
    pub fn prev_id(&self) -> Option<SnapshotId> {
        self.prev.map(|prev| prev.id)
    }

    /// The digest of the state at that snapshot.
    #[must_use]
    pub fn prev_digest(&self) -> Option<Digest> {
        self.prev.map(|prev| prev.digest)
    }

    /// The state at that snapshot, read when it is asked for.
    pub async fn prev_state(&self) -> Result<Option<SharedState>> {
        let Some(prev) = &self.prev else { return Ok(None) };
        let state = self.store.state(At::Snapshot(prev.id)).await?;
        Ok(state.as_ref().map(SharedState::from))
    }
}
