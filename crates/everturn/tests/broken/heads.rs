//! Broken heads: side lines, branches, rewinds, forks.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use everturn::store::*;
use everturn::{
    Begin, BranchName, Changes, EndStatus, Error, ErrorKind, Event, Message, Point, PointState, Receipt, Result,
    SessionKey, SessionRecord, Snapshot, SnapshotId,
};

use super::{Breakage, Inner};

/// A side line takes the head when it ends, whoever holds it.
#[derive(Debug)]
pub(crate) struct SideLinesPush;

#[async_trait]
impl Breakage for SideLinesPush {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let turn = inner.turn(end.fence.turn()).await?;
        let completed = end.status == EndStatus::Completed;
        let mut receipt = inner.end(end).await?;
        if let (false, true, Some(turn)) = (receipt.on_head, completed, turn) {
            let (name, to) = (BranchName::main(), receipt.point);
            let change = BranchChange::Move { name, to, expect: None, under_lease: UnderLease::Force };
            inner.branch(&turn.session, change).await?;
            receipt.on_head = true;
        }
        Ok(receipt)
    }
}

/// A side line that comes too late is lost.
#[derive(Debug)]
pub(crate) struct LosesLateSideLines;

#[async_trait]
impl Breakage for LosesLateSideLines {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let receipt = inner.end(end).await?;
        if receipt.on_head {
            return Ok(receipt);
        }
        Err(Error::new(ErrorKind::Conflict, "the head has moved"))
    }
}

/// A start by snapshot waits for the branch like any other.
#[derive(Debug)]
pub(crate) struct SnapshotsWait;

#[async_trait]
impl Breakage for SnapshotsWait {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        if let Start::Snapshot { id, .. } = &turn.start
            && let Some(Snapshot { session: Some(key), .. }) = inner.snapshot(SnapshotRef::Id(*id)).await?
            && inner.running(Some(&key)).await?.iter().any(|running| running.leased)
        {
            return Err(Error::new(ErrorKind::Busy, "the branch is busy"));
        }
        inner.begin(turn).await
    }
}

/// The head moves as soon as a turn begins elsewhere.
#[derive(Debug)]
pub(crate) struct HeadsMoveAtTheBegin;

#[async_trait]
impl Breakage for HeadsMoveAtTheBegin {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        let begin = inner.begin(turn).await?;
        if let Begin::Begun(begun) = &begin
            && !begun.leased
        {
            inner.rewind(&begun.session, begun.from).await?;
        }
        Ok(begin)
    }
}

/// A failed snapshot can be resumed: from what came before it.
#[derive(Debug)]
pub(crate) struct ResumesWhatFailed;

#[async_trait]
impl Breakage for ResumesWhatFailed {
    async fn begin(&self, inner: &Inner, mut turn: BeginTurn) -> Result<Begin> {
        if let Start::Snapshot { id, .. } = turn.start
            && let Some(snapshot) = inner.snapshot(SnapshotRef::Id(id)).await?
            && !snapshot.is_resumable()
            && let Some(session) = snapshot.session
        {
            turn.start = Start::Session(session);
        }
        inner.begin(turn).await
    }
}

/// A branch moves under a running turn.
#[derive(Debug)]
pub(crate) struct MovesUnderLease;

#[async_trait]
impl Breakage for MovesUnderLease {
    async fn branch(&self, inner: &Inner, session: &SessionKey, change: BranchChange) -> Result<SessionRecord> {
        let forced = match change {
            BranchChange::Move { name, to, expect, .. } => {
                BranchChange::Move { name, to, expect, under_lease: UnderLease::Force }
            }
            BranchChange::Delete { name, expect, .. } => {
                BranchChange::Delete { name, expect, under_lease: UnderLease::Force }
            }
            create => create,
        };
        inner.branch(session, forced).await
    }
}

/// A rewind deletes what lies ahead.
#[derive(Debug)]
pub(crate) struct RewindDeletes;

#[async_trait]
impl Breakage for RewindDeletes {
    async fn state(&self, inner: &Inner, at: At) -> Result<Option<PointState>> {
        if let At::Point(key, point) = &at
            && inner.session(key).await?.is_some_and(|session| session.head < *point)
        {
            return Ok(None);
        }
        inner.state(at).await
    }
}

/// A rewind takes the title back as well.
#[derive(Debug)]
pub(crate) struct RewindForgetsTitles;

#[async_trait]
impl Breakage for RewindForgetsTitles {
    async fn branch(&self, inner: &Inner, session: &SessionKey, change: BranchChange) -> Result<SessionRecord> {
        inner.branch(session, change).await?;
        let mut untitled = UpdateSession::default();
        untitled.title = Some(None);
        inner.update(session, untitled).await
    }
}

/// Whether a snapshot is orphaned is found out once.
#[derive(Debug, Default)]
pub(crate) struct OrphansAreRemembered(Mutex<HashMap<SnapshotId, bool>>);

#[async_trait]
impl Breakage for OrphansAreRemembered {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        let mut found = inner.snapshot(which).await?;
        if let Some(found) = &mut found {
            found.orphaned = *self.0.lock().unwrap().entry(found.snapshot_id).or_insert(found.orphaned);
        }
        Ok(found)
    }
}

/// A snapshot that was somebody's parent stays one, whether it is still there or not.
#[derive(Debug, Default)]
pub(crate) struct ParentsAreRemembered(Mutex<Option<SnapshotId>>);

#[async_trait]
impl Breakage for ParentsAreRemembered {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        let mut found = inner.snapshot(which).await?;
        if let Some(found) = &mut found {
            let mut parent = self.0.lock().unwrap();
            *parent = found.parent_id.or(*parent);
            found.parent_id = *parent;
        }
        Ok(found)
    }
}

/// What was read of a point once is there for ever.
#[derive(Debug, Default)]
pub(crate) struct PointsAreRemembered(Mutex<HashMap<(SessionKey, Point), PointState>>);

#[async_trait]
impl Breakage for PointsAreRemembered {
    async fn state(&self, inner: &Inner, at: At) -> Result<Option<PointState>> {
        let At::Point(key, point) = &at else { return inner.state(at).await };
        let name = (key.clone(), *point);
        if let Some(known) = self.0.lock().unwrap().get(&name).cloned() {
            return Ok(Some(known));
        }
        let found = inner.state(at).await?;
        if let Some(found) = &found {
            self.0.lock().unwrap().insert(name, found.clone());
        }
        Ok(found)
    }
}

/// Whose turn an event belongs to is known the first time it is read.
#[derive(Debug, Default)]
pub(crate) struct InvocationsAreForgotten(Mutex<bool>);

#[async_trait]
impl Breakage for InvocationsAreForgotten {
    async fn events(&self, inner: &Inner, query: EventQuery) -> Result<Page<Event>> {
        let mut page = inner.events(query).await?;
        if std::mem::replace(&mut *self.0.lock().unwrap(), true) {
            page.items.iter_mut().for_each(|event| event.invocation_id = None);
        }
        Ok(page)
    }
}

/// A fork is a copy of what was said.
#[derive(Debug)]
pub(crate) struct ForkCopiesMessages;

#[async_trait]
impl Breakage for ForkCopiesMessages {
    async fn fork(&self, inner: &Inner, fork: ForkSession) -> Result<SessionRecord> {
        let made = inner.fork(fork.clone()).await?;
        let state = inner.head_state(&made.key()).await?;
        inner.purge(&made.key()).await?;
        let mut copy = CreateSession::at(made.key());
        copy.title = made.title;
        copy.changes = Changes::new().event(Event::new("copy").with_messages(state.messages().to_vec()));
        inner.create(copy).await
    }
}

/// A new session has a first message.
#[derive(Debug)]
pub(crate) struct CreatesWithAGreeting;

#[async_trait]
impl Breakage for CreatesWithAGreeting {
    async fn create(&self, inner: &Inner, mut session: CreateSession) -> Result<SessionRecord> {
        session.changes = session.changes.event(Event::model("greeter", Message::model("Welcome!")));
        inner.create(session).await
    }
}
