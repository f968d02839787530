//! What cases work with: a store, its clock, and short words for common turns.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::harness::{Capabilities, Harness, LEASE};
use super::verdict::{Check, Stop, fail, same};
use crate::store::{
    At, BeginTurn, BranchChange, Busy, Commit, CreateSession, EndTurn, EventQuery, RecordQuery, SnapshotRef, Start,
    StepTurn, Store, StoreExt, UnderLease, UpdateSession,
};
use crate::{
    Begun, BranchName, Changes, Clock, EndStatus, Event, Fence, Input, InvocationId, Json, ManualClock, Message,
    NewSnapshot, Outcome, Point, PointState, Receipt, Record, Result, SessionKey, SessionRecord, Snapshot,
    SnapshotEvent, SnapshotId, StateDelta, TurnError, TurnKey,
};

/// A store under test.
pub(super) struct Bench {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: ManualClock,
    harness: Arc<dyn Harness>,
}

impl Bench {
    pub(super) async fn open(harness: Arc<dyn Harness>) -> Result<Self> {
        Ok(Self { store: harness.open().await?, clock: harness.clock(), harness })
    }

    /// A fresh handle: what it answers was kept, not remembered.
    pub(super) async fn second(&self) -> Result<Arc<dyn Store>> {
        self.harness.second().await
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.harness.capabilities()
    }

    /// What a kill leaves.
    pub(super) async fn after_kill(&self) -> Check<Arc<dyn Store>> {
        let store = self.harness.reopen_after_kill().await?;
        store.ok_or_else(|| Stop::Skipped("the harness cannot kill the store".into()))
    }

    /// What a power cut leaves.
    pub(super) async fn after_power_cut(&self) -> Check<Arc<dyn Store>> {
        let store = self.harness.reopen_after_power_cut().await?;
        store.ok_or_else(|| Stop::Skipped("the harness cannot cut the power".into()))
    }

    /// Lets every lease run out.
    pub(super) fn outlive_leases(&self) {
        self.clock.advance(LEASE + Duration::from_secs(1));
    }

    pub(super) fn snapshot_id(&self) -> SnapshotId {
        SnapshotId::from_uuid(self.clock.uuid())
    }

    /// A new session of `ann` in `shop`.
    pub(super) async fn session(&self, id: &str) -> Result<SessionKey> {
        let key = key(id);
        self.store.create(CreateSession::at(key.clone())).await?;
        Ok(key)
    }

    pub(super) async fn begin(&self, key: &SessionKey, text: &str) -> Result<Begun> {
        self.store.begin(turn(key, text)).await?.begun()
    }

    /// A whole turn: `text`, answered by `re: text`.
    pub(super) async fn say(&self, key: &SessionKey, text: &str) -> Result<Receipt> {
        self.run(turn(key, text), text).await
    }

    /// A whole turn.
    pub(super) async fn run(&self, begin: BeginTurn, text: &str) -> Result<Receipt> {
        let begun = self.store.begin(begin).await?.begun()?;
        self.store.end(end(begun.fence, text)).await
    }

    /// A whole turn whose end has a snapshot.
    pub(super) async fn snap(&self, key: &SessionKey, text: &str) -> Result<(SnapshotId, Receipt)> {
        self.run_snap(turn(key, text), text).await
    }

    /// A whole turn whose end has a snapshot.
    pub(super) async fn run_snap(&self, begin: BeginTurn, text: &str) -> Result<(SnapshotId, Receipt)> {
        let id = self.snapshot_id();
        let begun = self.store.begin(begin).await?.begun()?;
        let receipt = self.store.end(end(begun.fence, text).snapshot(NewSnapshot::new(id))).await?;
        Ok((id, receipt))
    }

    /// A whole turn that changes something.
    pub(super) async fn change(&self, key: &SessionKey, changes: Changes) -> Result<Receipt> {
        let begun = self.store.begin(silent(key)).await?.begun()?;
        self.store.end(EndTurn::completed(begun.fence, changes)).await
    }

    /// A turn that fails after it said something.
    pub(super) async fn fail(&self, key: &SessionKey, text: &str) -> Result<Receipt> {
        let begun = self.begin(key, text).await?;
        self.store.end(failure(begun.fence, text)).await
    }

    /// A turn that fails and leaves a snapshot.
    pub(super) async fn fail_snap(&self, key: &SessionKey, text: &str) -> Result<(SnapshotId, Receipt)> {
        let id = self.snapshot_id();
        let begun = self.begin(key, text).await?;
        let receipt = self.store.end(failure(begun.fence, text).snapshot(NewSnapshot::new(id))).await?;
        Ok((id, receipt))
    }

    /// Moves `main`.
    pub(super) async fn rewind(&self, key: &SessionKey, to: Point) -> Result<SessionRecord> {
        self.store.rewind(key, to).await
    }

    pub(super) async fn branch_off(&self, key: &SessionKey, name: &str, at: Point) -> Result<BranchName> {
        let name = BranchName::new(name)?;
        self.store.branch(key, BranchChange::Create { name: name.clone(), at }).await?;
        Ok(name)
    }

    /// The session, as a fresh handle sees it.
    pub(super) async fn record(&self, key: &SessionKey) -> Result<SessionRecord> {
        self.second().await?.existing(key).await
    }

    pub(super) async fn head(&self, key: &SessionKey) -> Result<Point> {
        Ok(self.record(key).await?.head)
    }

    /// The state at `main`'s head, as a fresh handle sees it.
    pub(super) async fn state(&self, key: &SessionKey) -> Result<PointState> {
        self.second().await?.head_state(key).await
    }

    /// The state at a place, as a fresh handle sees it.
    pub(super) async fn state_at(&self, at: At) -> Check<PointState> {
        match self.second().await?.state(at.clone()).await? {
            Some(state) => Ok(state),
            None => fail(format!("there is no state at {at:?}")),
        }
    }

    /// What was said up to `main`'s head.
    pub(super) async fn texts(&self, key: &SessionKey) -> Result<Vec<String>> {
        Ok(texts(&self.state(key).await?))
    }

    pub(super) async fn texts_at(&self, at: At) -> Check<Vec<String>> {
        Ok(texts(&self.state_at(at).await?))
    }

    /// The custom state at `main`'s head.
    pub(super) async fn custom(&self, key: &SessionKey) -> Result<Option<Json>> {
        Ok(self.state(key).await?.custom().cloned())
    }

    /// The events up to `main`'s head, as a fresh handle sees them.
    pub(super) async fn events(&self, key: &SessionKey) -> Result<Vec<Event>> {
        self.query(EventQuery::of(key.clone())).await
    }

    pub(super) async fn query(&self, query: EventQuery) -> Result<Vec<Event>> {
        Ok(self.second().await?.events(query).await?.items)
    }

    /// A snapshot, as a fresh handle sees it.
    pub(super) async fn snapshot(&self, id: SnapshotId) -> Check<Snapshot> {
        match self.second().await?.snapshot(SnapshotRef::Id(id)).await? {
            Some(snapshot) => Ok(snapshot),
            None => fail(format!("there is no snapshot {id}")),
        }
    }

    /// The session's log, as a fresh handle sees it.
    pub(super) async fn records(&self, key: &SessionKey) -> Result<Vec<Record>> {
        let query = RecordQuery::of(key.clone()).limit(crate::store::MAX_PAGE);
        Ok(self.second().await?.records(query).await?.items)
    }

    /// What must not change while something is refused.
    pub(super) async fn footprint(&self, key: &SessionKey) -> Result<Footprint> {
        let store = self.second().await?;
        let session = store.existing(key).await?;
        Ok(Footprint {
            records: self.records(key).await?.len(),
            head: session.head,
            scopes: store.scopes(&key.app, Some(&key.user)).await?,
            artifacts: store.artifacts(crate::store::ArtifactQuery::of(key.clone())).await?.len(),
        })
    }

    /// Drives a future as far as it gets by itself. Between two looks at it stands a write to the same store, so what
    /// it asked of the store has been answered.
    pub(super) async fn settle<F: Future + Unpin>(&self, future: &mut F) -> Result<Option<F::Output>> {
        let aside = key("settle");
        self.store.open_or_create(CreateSession::at(aside.clone())).await?;
        for _ in 0..8 {
            if let Some(output) = poll_once(future).await {
                return Ok(Some(output));
            }
            self.store.update(&aside, UpdateSession::title("settled")).await?;
            tokio::task::yield_now().await;
        }
        Ok(poll_once(future).await)
    }
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// What a refused write must leave as it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Footprint {
    records: usize,
    head: Point,
    scopes: crate::ScopedState,
    artifacts: usize,
}

pub(super) fn key(id: &str) -> SessionKey {
    key_of("ann", id)
}

pub(super) fn key_of(user: &str, id: &str) -> SessionKey {
    SessionKey::of("shop", user, id).expect("ids of cases are valid")
}

pub(super) fn json(text: &str) -> Json {
    Json::parse(text).expect("JSON of cases is valid")
}

pub(super) fn invocation(text: &str) -> InvocationId {
    InvocationId::new(text).expect("ids of cases are valid")
}

pub(super) fn turn_key(text: &str) -> TurnKey {
    TurnKey::new(text).expect("keys of cases are valid")
}

/// A turn at `main`'s head that says something, and does not wait.
pub(super) fn turn(key: &SessionKey, text: &str) -> BeginTurn {
    starting(Start::Session(key.clone()), text)
}

/// A turn at `main`'s head that is given nothing.
pub(super) fn silent(key: &SessionKey) -> BeginTurn {
    BeginTurn::new(Start::Session(key.clone()), invocation("silent"), Input::default()).busy(Busy::Refuse)
}

/// A turn at a snapshot.
pub(super) fn turn_at(id: SnapshotId, text: &str) -> BeginTurn {
    starting(Start::Snapshot { id, session: None }, text)
}

/// A turn at a point.
pub(super) fn turn_from(key: &SessionKey, point: Point, text: &str) -> BeginTurn {
    starting(Start::Point { session: key.clone(), point }, text)
}

fn starting(start: Start, text: &str) -> BeginTurn {
    let invocation = invocation(&format!("invocation of {text}"));
    BeginTurn::new(start, invocation, Input::text(text)).busy(Busy::Refuse)
}

/// A model's answer.
pub(super) fn answer(text: &str) -> Changes {
    Changes::new().event(Event::model("helper", Message::model(text)))
}

/// A change of state by an event without messages.
pub(super) fn set(delta: StateDelta) -> Changes {
    Changes::new().event(Event::new("helper").with_state(delta))
}

/// Sets one key.
pub(super) fn delta(key: &str, value: &str) -> StateDelta {
    StateDelta::new().set(key, json(value))
}

pub(super) fn step(fence: Fence, text: &str) -> StepTurn {
    StepTurn::new(fence, answer(text))
}

/// A step after a round of tools, with a snapshot.
pub(super) fn iteration(fence: Fence, text: &str, id: SnapshotId) -> StepTurn {
    step(fence, text).event(SnapshotEvent::ToolIterationEnd).snapshot(NewSnapshot::new(id))
}

/// A completed end that answers `re: text`.
pub(super) fn end(fence: Fence, text: &str) -> EndTurn {
    EndTurn::completed(fence, answer(&format!("re: {text}")))
}

/// A failed end that said `re: text` before it failed.
pub(super) fn failure(fence: Fence, text: &str) -> EndTurn {
    let outcome = Outcome::failed(TurnError::new("UNAVAILABLE", "the model is down"));
    let mut end = EndTurn::voided(fence, EndStatus::Failed, outcome);
    end.changes = answer(&format!("re: {text}"));
    end
}

/// An edit outside a turn that says something.
pub(super) fn edit(key: &SessionKey, text: &str) -> Commit {
    Commit::new(key.clone(), answer(text))
}

pub(super) fn move_main(to: Point, under_lease: UnderLease) -> BranchChange {
    BranchChange::Move { name: BranchName::main(), to, expect: None, under_lease }
}

pub(super) fn texts(state: &PointState) -> Vec<String> {
    state.messages().iter().map(Message::text).collect()
}

/// The texts of events.
pub(super) fn said(events: &[Event]) -> Vec<String> {
    events.iter().flat_map(|event| &event.messages).map(Message::text).collect()
}

/// What whole turns leave in the list of messages.
pub(super) fn told(turns: &[&str]) -> Vec<String> {
    turns.iter().flat_map(|text| [(*text).to_owned(), format!("re: {text}")]).collect()
}

/// The fence of an attempt that must be newer than another.
pub(super) fn same_turn(old: &Begun, new: &Begun) -> Check {
    same(new.turn, old.turn, "the turn that was taken over")?;
    same(new.fence.attempt(), old.fence.attempt() + 1, "the attempt after taking over")
}
