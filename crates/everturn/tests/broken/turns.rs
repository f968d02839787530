//! Broken turns: begins, steps, ends, fences and keys.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use everturn::store::*;
use everturn::{
    Aborted, Begin, BranchName, Clock, CustomChange, Digest, EndStatus, ErrorKind, Fence, Json, ManualClock, Point,
    Receipt, Result, SessionKey, SessionRecord, Timestamp, TurnId, TurnKey, TurnRecord, TurnStatus, ViewChange,
};

use super::{Breakage, Inner, forged};

/// What a head should be is not looked at.
#[derive(Debug)]
pub(crate) struct IgnoresExpect;

#[async_trait]
impl Breakage for IgnoresExpect {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        turn.expect = None;
        inner.begin(turn).await
    }

    async fn commit(&self, inner: &Inner, mut commit: Commit) -> Result<Receipt> {
        commit.expect = None;
        inner.commit(commit).await
    }

    async fn branch(&self, inner: &Inner, session: &SessionKey, change: BranchChange) -> Result<SessionRecord> {
        let careless = match change {
            BranchChange::Move { name, to, under_lease, .. } => {
                BranchChange::Move { name, to, expect: None, under_lease }
            }
            other => other,
        };
        inner.branch(session, careless).await
    }
}

/// Whose a session is is not looked at.
#[derive(Debug)]
pub(crate) struct IgnoresAgents;

#[async_trait]
impl Breakage for IgnoresAgents {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        if let Start::OpenOrCreate(create) = &mut turn.start {
            create.agent = None;
        }
        inner.begin(turn).await
    }
}

/// Keys are not looked at.
#[derive(Debug)]
pub(crate) struct IgnoresKeys;

#[async_trait]
impl Breakage for IgnoresKeys {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        turn.key = None;
        inner.begin(turn).await
    }
}

/// A known key answers `Running`, whatever comes with it.
#[derive(Debug, Default)]
pub(crate) struct IgnoresPayloads(Mutex<HashMap<TurnKey, TurnId>>);

#[async_trait]
impl Breakage for IgnoresPayloads {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        let key = turn.key.clone();
        match inner.begin(turn).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let known = key.and_then(|key| self.0.lock().unwrap().get(&key).copied());
                known.map(Begin::Running).ok_or(error)
            }
            Ok(Begin::Begun(begun)) => {
                self.0.lock().unwrap().extend(key.map(|key| (key, begun.turn)));
                Ok(Begin::Begun(begun))
            }
            other => other,
        }
    }
}

/// A branch is never busy.
#[derive(Debug)]
pub(crate) struct NeverBusy;

#[async_trait]
impl Breakage for NeverBusy {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        turn.busy = Busy::Branch;
        inner.begin(turn).await
    }
}

/// Nobody waits.
#[derive(Debug)]
pub(crate) struct NeverWaits;

#[async_trait]
impl Breakage for NeverWaits {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        if let Busy::Wait(_) = turn.busy {
            turn.busy = Busy::Refuse;
        }
        inner.begin(turn).await
    }
}

/// Waiting has no end.
#[derive(Debug)]
pub(crate) struct WaitsBeyondTheDeadline;

#[async_trait]
impl Breakage for WaitsBeyondTheDeadline {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        if let Busy::Wait(_) = turn.busy {
            // Instead of hanging, it gives in: what matters is that it does not answer `Busy`.
            turn.busy = Busy::Branch;
        }
        inner.begin(turn).await
    }
}

/// A fenced writer is told that all is well.
#[derive(Debug)]
pub(crate) struct IgnoresFences;

#[async_trait]
impl Breakage for IgnoresFences {
    async fn step(&self, inner: &Inner, step: StepTurn) -> Result<Receipt> {
        well_if(inner.step(step).await, ErrorKind::Fenced, forged(1))
    }

    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        well_if(inner.end(end).await, ErrorKind::Fenced, forged(1))
    }

    async fn renew(&self, inner: &Inner, fence: &Fence) -> Result<()> {
        well_if(inner.renew(fence).await, ErrorKind::Fenced, ())
    }
}

fn well_if<T>(result: Result<T>, kind: ErrorKind, instead: T) -> Result<T> {
    match result {
        Err(error) if error.kind() == kind => Ok(instead),
        other => other,
    }
}

/// A fenced writer is refused, but not before something of it was written.
#[derive(Debug)]
pub(crate) struct FencedWritersWrite;

#[async_trait]
impl Breakage for FencedWritersWrite {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let known = inner.turn(end.fence.turn()).await?;
        match (inner.end(end).await, known) {
            (Err(error), Some(turn)) if error.kind() == ErrorKind::Fenced => {
                inner.update(&turn.session, UpdateSession::label("a late writer was here")).await?;
                Err(error)
            }
            (done, _) => done,
        }
    }
}

/// An end is acknowledged, and never written.
#[derive(Debug)]
pub(crate) struct AcknowledgesAndForgets;

#[async_trait]
impl Breakage for AcknowledgesAndForgets {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        inner.renew(&end.fence).await?;
        Ok(forged(end.fence.turn().begin().seq() + 1))
    }
}

/// A failed turn is kept like any other.
#[derive(Debug)]
pub(crate) struct DropsVoids;

#[async_trait]
impl Breakage for DropsVoids {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        end.status = EndStatus::Completed;
        inner.end(end).await
    }
}

/// What failed is not kept at all.
#[derive(Debug)]
pub(crate) struct ForgetsWhatFailed;

#[async_trait]
impl Breakage for ForgetsWhatFailed {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        if end.status != EndStatus::Completed {
            end.changes = everturn::Changes::new();
        }
        inner.end(end).await
    }
}

/// Two answers name the same point.
#[derive(Debug, Default)]
pub(crate) struct ReusesNumbers(AtomicU64);

#[async_trait]
impl Breakage for ReusesNumbers {
    async fn step(&self, inner: &Inner, step: StepTurn) -> Result<Receipt> {
        let receipt = inner.step(step).await?;
        self.0.store(receipt.point.seq(), Ordering::Relaxed);
        Ok(receipt)
    }

    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let mut receipt = inner.end(end).await?;
        let last = self.0.load(Ordering::Relaxed);
        if last > 0 {
            receipt.point = Point::new(last);
        }
        Ok(receipt)
    }
}

/// Every begun turn counts, completed or not.
#[derive(Debug, Default)]
pub(crate) struct CountsVoidTurns(AtomicU64);

#[async_trait]
impl Breakage for CountsVoidTurns {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        let mut begin = inner.begin(turn).await?;
        if let Begin::Begun(begun) = &mut begin {
            begun.turn_index = self.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(begin)
    }
}

/// The digest on a receipt depends on where it was written.
#[derive(Debug)]
pub(crate) struct DigestOfThePath;

#[async_trait]
impl Breakage for DigestOfThePath {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let mut receipt = inner.end(end).await?;
        receipt.digest = Digest::of_json(&Json::from_value(&receipt.point)?)?;
        Ok(receipt)
    }
}

/// Numbers are made as short as they can be.
#[derive(Debug)]
pub(crate) struct RespellsNumbers;

#[async_trait]
impl Breakage for RespellsNumbers {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        if let Some(CustomChange::Set(custom)) = &mut end.changes.custom {
            *custom = Json::parse(custom.as_str().replace("1.10", "1.1"))?;
        }
        inner.end(end).await
    }
}

/// A delta is merged into the value that is there.
#[derive(Debug)]
pub(crate) struct MergesValues;

#[async_trait]
impl Breakage for MergesValues {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        type Members = std::collections::BTreeMap<String, Json>;
        let session = inner.turn(end.fence.turn()).await?.map(|turn| turn.session);
        let state = match session {
            Some(session) => Some(inner.head_state(&session).await?),
            None => None,
        };
        let before: Members = state.and_then(|state| state.custom()?.to().ok()).unwrap_or_default();
        for (key, value) in end.changes.events.iter_mut().flat_map(|event| &mut event.state_delta) {
            let old = before.get(key).and_then(|old| old.to::<Members>().ok());
            if let (Some(mut old), Ok(new)) = (old, value.to::<Members>()) {
                old.extend(new);
                *value = Json::from_value(&old)?;
            }
        }
        inner.end(end).await
    }
}

/// Pieces of a stream are kept.
#[derive(Debug)]
pub(crate) struct KeepsPartialEvents;

#[async_trait]
impl Breakage for KeepsPartialEvents {
    async fn step(&self, inner: &Inner, mut step: StepTurn) -> Result<Receipt> {
        step.changes.events.iter_mut().for_each(|event| event.partial = false);
        inner.step(step).await
    }
}

/// A compaction replaces what was said.
#[derive(Debug)]
pub(crate) struct CompactionRewritesHistory;

#[async_trait]
impl Breakage for CompactionRewritesHistory {
    async fn commit(&self, inner: &Inner, mut commit: Commit) -> Result<Receipt> {
        if let Some(ViewChange::Set(view)) = commit.changes.view.take() {
            commit.changes = commit.changes.splice(0, view.summary);
        }
        inner.commit(commit).await
    }
}

/// An edit squeezes in beside a running turn.
#[derive(Debug)]
pub(crate) struct EditsUnderLease;

#[async_trait]
impl Breakage for EditsUnderLease {
    async fn commit(&self, inner: &Inner, commit: Commit) -> Result<Receipt> {
        match inner.commit(commit.clone()).await {
            Err(error) if error.kind() == ErrorKind::Busy => {
                inner.commit(commit.expect(Point::new(0)).or_side_line()).await.or(Ok(forged(1)))
            }
            done => done,
        }
    }
}

/// An edit always waits for the turn that runs.
#[derive(Debug)]
pub(crate) struct EditsNeverGoBeside;

#[async_trait]
impl Breakage for EditsNeverGoBeside {
    async fn commit(&self, inner: &Inner, mut commit: Commit) -> Result<Receipt> {
        if !inner.running(Some(&commit.session)).await?.is_empty() {
            commit.if_moved = IfMoved::Refuse;
        }
        inner.commit(commit).await
    }
}

/// An abort only says so.
#[derive(Debug)]
pub(crate) struct AbortsNothing;

#[async_trait]
impl Breakage for AbortsNothing {
    async fn abort(&self, inner: &Inner, turn: TurnRef) -> Result<Aborted> {
        let TurnRef::Turn(id) = turn else { return inner.abort(turn).await };
        // An answer of the right shape, from a turn made for it.
        let found = inner.turn(id).await?.ok_or_else(|| everturn::Error::new(ErrorKind::NotFound, "no turn"))?;
        let scratch = CreateSession::new(found.session.app, found.session.user);
        let start = Start::OpenOrCreate(Box::new(scratch));
        let begun = inner.begin(BeginTurn::new(start, found.invocation, found.input)).await?.begun()?;
        let mut answer = inner.abort(TurnRef::Turn(begun.turn)).await?;
        (answer.turn, answer.before) = (id, TurnStatus::Running);
        Ok(answer)
    }
}

/// Aborting a turn that has ended takes it back.
#[derive(Debug)]
pub(crate) struct AbortUndoes;

#[async_trait]
impl Breakage for AbortUndoes {
    async fn abort(&self, inner: &Inner, turn: TurnRef) -> Result<Aborted> {
        let aborted = inner.abort(turn).await?;
        if aborted.before == TurnStatus::Completed
            && let Some(found) = inner.turn(aborted.turn).await?
        {
            inner.rewind(&found.session, Point::new(1)).await?;
        }
        Ok(aborted)
    }
}

/// A dead attempt's tool calls are forgotten, to be made again.
#[derive(Debug)]
pub(crate) struct ForgetsTheLedger;

#[async_trait]
impl Breakage for ForgetsTheLedger {
    async fn turn(&self, inner: &Inner, turn: TurnId) -> Result<Option<TurnRecord>> {
        let mut found = inner.turn(turn).await?;
        if let Some(found) = &mut found {
            found.tools.retain(|(attempt, _)| *attempt == found.attempt);
        }
        Ok(found)
    }
}

/// The clock on the wall decides who is dead.
#[derive(Debug)]
pub(crate) struct WallClockKills(pub(crate) ManualClock, pub(crate) Mutex<Option<(TurnId, Timestamp)>>);

#[async_trait]
impl Breakage for WallClockKills {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        let last = *self.1.lock().unwrap();
        if let Some((dead, at)) = last
            && self.0.now() > at.plus(Duration::from_secs(60))
        {
            inner.abort(TurnRef::Turn(dead)).await?;
        }
        let begin = inner.begin(turn).await?;
        if let Begin::Begun(begun) = &begin {
            *self.1.lock().unwrap() = Some((begun.turn, self.0.now()));
        }
        Ok(begin)
    }
}

/// A sign of life is not noted.
#[derive(Debug)]
pub(crate) struct IgnoresSignsOfLife;

#[async_trait]
impl Breakage for IgnoresSignsOfLife {
    async fn renew(&self, _: &Inner, _: &Fence) -> Result<()> {
        Ok(())
    }
}

/// A turn goes to the background without a trace.
#[derive(Debug)]
pub(crate) struct DetachesWithoutARow;

#[async_trait]
impl Breakage for DetachesWithoutARow {
    async fn step(&self, inner: &Inner, mut step: StepTurn) -> Result<Receipt> {
        step.detach = Detach::Stay;
        inner.step(step).await
    }
}

/// Once in a while an answer loses its last word.
#[derive(Debug, Default)]
pub(crate) struct LosesAWordNowAndThen(AtomicU64);

#[async_trait]
impl Breakage for LosesAWordNowAndThen {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        if self.0.fetch_add(1, Ordering::Relaxed) % 50 == 49 {
            end.changes.events.pop();
        }
        inner.end(end).await
    }
}

/// A second end is as good as the first.
#[derive(Debug, Default)]
pub(crate) struct EndsTwice(Mutex<HashMap<TurnId, Receipt>>);

#[async_trait]
impl Breakage for EndsTwice {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let turn = end.fence.turn();
        let known = self.0.lock().unwrap().get(&turn).cloned();
        match (inner.end(end).await, known) {
            (Err(error), Some(known)) if error.kind() == ErrorKind::Fenced => Ok(known),
            (Ok(receipt), _) => {
                self.0.lock().unwrap().insert(turn, receipt.clone());
                Ok(receipt)
            }
            (refused, None | Some(_)) => refused,
        }
    }
}

/// Every turn is on `main`.
#[derive(Debug)]
pub(crate) struct OnlyMain;

#[async_trait]
impl Breakage for OnlyMain {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        turn.branch = turn.branch.map(|_| BranchName::main());
        inner.begin(turn).await
    }
}
