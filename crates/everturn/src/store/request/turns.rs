//! What is asked of turns: where they start, what they write, how they end.

use std::time::Duration;

use super::sessions::CreateSession;
use crate::session::SessionKey;
use crate::snapshot::SnapshotEvent;
use crate::state::StateDelta;
use crate::turn::{Changes, EndStatus, Fence, Input, NewSnapshot, Outcome};
use crate::{AgentName, BranchName, InvocationId, Point, SnapshotId, TurnId, TurnKey};

/// Where a turn starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// At the head of an existing session's branch.
    Session(SessionKey),
    /// At the head of a session's branch; the session is created if there is none. Without an id a fresh one is made,
    /// or, when the turn has a key, one that derives from app, user and key: so a retried first request makes one
    /// session. Refused as a `Conflict` where an agent is named and the session is another one's.
    OpenOrCreate(Box<CreateSession>),
    /// At a completed snapshot, which must belong to the session if one is named.
    Snapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The session it must belong to.
        session: Option<SessionKey>,
    },
    /// At any point of a session.
    Point {
        /// The session.
        session: SessionKey,
        /// The point.
        point: Point,
    },
}

/// What to do when somebody else holds the branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Wait so long, in order within this process, then give up as `Busy`.
    Wait(Duration),
    /// Answer `Busy` at once; nothing is consumed.
    Refuse,
    /// Go on beside it, on a side line from the same head.
    Branch,
}

impl Default for Busy {
    fn default() -> Self {
        Self::Wait(Duration::from_secs(30))
    }
}

/// A turn to begin.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BeginTurn {
    /// Where it starts.
    pub start: Start,
    /// Its branch; `main`, or the one the point belongs to, when left out.
    pub branch: Option<BranchName>,
    /// Where the branch's head must stand, else `Conflict` before any work.
    pub expect: Option<Point>,
    /// Makes it idempotent.
    pub key: Option<TurnKey>,
    /// The agent that runs it.
    pub agent: Option<AgentName>,
    /// Its invocation.
    pub invocation: InvocationId,
    /// What it is given.
    pub input: Input,
    /// What to do when the branch is busy.
    pub busy: Busy,
    /// The snapshot id it reserves: for its end, and for the row that a failure or an abort leaves.
    pub snapshot: Option<SnapshotId>,
}

impl BeginTurn {
    /// A turn with an input.
    #[must_use]
    pub fn new(start: Start, invocation: InvocationId, input: Input) -> Self {
        Self {
            start,
            branch: None,
            expect: None,
            key: None,
            agent: None,
            invocation,
            input,
            busy: Busy::default(),
            snapshot: None,
        }
    }

    /// The same on a branch.
    #[must_use]
    pub fn branch(mut self, branch: BranchName) -> Self {
        self.branch = Some(branch);
        self
    }

    /// The same, only if the head stands there.
    #[must_use]
    pub fn expect(mut self, head: Point) -> Self {
        self.expect = Some(head);
        self
    }

    /// The same with a key.
    #[must_use]
    pub fn key(mut self, key: TurnKey) -> Self {
        self.key = Some(key);
        self
    }

    /// The same by an agent.
    #[must_use]
    pub fn agent(mut self, agent: AgentName) -> Self {
        self.agent = Some(agent);
        self
    }

    /// The same with a way to deal with a busy branch.
    #[must_use]
    pub fn busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// The same with a reserved snapshot id.
    #[must_use]
    pub fn snapshot(mut self, id: SnapshotId) -> Self {
        self.snapshot = Some(id);
        self
    }
}

/// Something a turn writes on its way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepTurn {
    /// The turn's fence.
    pub fence: Fence,
    /// What it changes.
    pub changes: Changes,
    /// The opportunity for a snapshot that it is: it counts, taken or not.
    pub event: Option<SnapshotEvent>,
    /// A snapshot of this point.
    pub snapshot: Option<NewSnapshot>,
    /// The turn goes on in the background: its reserved snapshot becomes a pending row.
    pub detach: Detach,
}

/// Whether a step sends its turn to the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detach {
    /// No.
    #[default]
    Stay,
    /// Yes: from now on the reserved snapshot id reads as `pending`.
    Background,
}

impl StepTurn {
    /// A step that changes something.
    #[must_use]
    pub fn new(fence: Fence, changes: Changes) -> Self {
        Self { fence, changes, event: None, snapshot: None, detach: Detach::Stay }
    }

    /// The same as an opportunity for a snapshot.
    #[must_use]
    pub fn event(mut self, event: SnapshotEvent) -> Self {
        self.event = Some(event);
        self
    }

    /// The same with a snapshot.
    #[must_use]
    pub fn snapshot(mut self, snapshot: NewSnapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// The same, sending the turn to the background.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.detach = Detach::Background;
        self
    }
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EndTurn {
    /// The turn's fence.
    pub fence: Fence,
    /// How it ended.
    pub status: EndStatus,
    /// The last of what it changes.
    pub changes: Changes,
    /// State to change beside the events' own deltas, by prefixed key.
    pub scopes: StateDelta,
    /// A snapshot of its end.
    pub snapshot: Option<NewSnapshot>,
    /// What it leaves its caller with.
    pub outcome: Outcome,
}

impl EndTurn {
    /// A completed turn.
    #[must_use]
    pub fn completed(fence: Fence, changes: Changes) -> Self {
        Self {
            fence,
            status: EndStatus::Completed,
            changes,
            scopes: StateDelta::new(),
            snapshot: None,
            outcome: Outcome::finished(crate::FinishReason::Stop),
        }
    }

    /// A turn that failed or was aborted.
    #[must_use]
    pub fn voided(fence: Fence, status: EndStatus, outcome: Outcome) -> Self {
        Self { status, outcome, ..Self::completed(fence, Changes::new()) }
    }

    /// The same with a snapshot.
    #[must_use]
    pub fn snapshot(mut self, snapshot: NewSnapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// The same with scoped state.
    #[must_use]
    pub fn scopes(mut self, scopes: StateDelta) -> Self {
        self.scopes = scopes;
        self
    }

    /// The same with an outcome.
    #[must_use]
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }
}

/// What an edit does when the head has moved, or is about to: when a turn runs on the branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfMoved {
    /// It is refused: as `Conflict` when the head has moved, as `Busy` while a turn runs.
    #[default]
    Refuse,
    /// It is kept on its old point, off the head.
    SideLine,
}

/// An edit outside a turn: a compaction, an appended event, a change after the last turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Commit {
    /// The session.
    pub session: SessionKey,
    /// The branch; `main` when left out.
    pub branch: Option<BranchName>,
    /// Where its head must stand.
    pub expect: Option<Point>,
    /// What to do when it does not.
    pub if_moved: IfMoved,
    /// The invocation it belongs to.
    pub invocation: Option<InvocationId>,
    /// What it changes.
    pub changes: Changes,
    /// The opportunity for a snapshot that it is.
    pub event: Option<SnapshotEvent>,
    /// A snapshot of its point.
    pub snapshot: Option<NewSnapshot>,
}

impl Commit {
    /// An edit at a session's head.
    #[must_use]
    pub fn new(session: SessionKey, changes: Changes) -> Self {
        Self {
            session,
            branch: None,
            expect: None,
            if_moved: IfMoved::Refuse,
            invocation: None,
            changes,
            event: None,
            snapshot: None,
        }
    }

    /// The same on a branch.
    #[must_use]
    pub fn branch(mut self, branch: BranchName) -> Self {
        self.branch = Some(branch);
        self
    }

    /// The same, only if the head stands there.
    #[must_use]
    pub fn expect(mut self, head: Point) -> Self {
        self.expect = Some(head);
        self
    }

    /// The same, kept off the head when that has moved, or when a turn runs on the branch.
    #[must_use]
    pub fn or_side_line(mut self) -> Self {
        self.if_moved = IfMoved::SideLine;
        self
    }

    /// The same as an opportunity for a snapshot.
    #[must_use]
    pub fn event(mut self, event: SnapshotEvent) -> Self {
        self.event = Some(event);
        self
    }

    /// The same with a snapshot.
    #[must_use]
    pub fn snapshot(mut self, snapshot: NewSnapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }
}

/// What names a turn from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnRef {
    /// Its id.
    Turn(TurnId),
    /// The snapshot it has reserved.
    Snapshot(SnapshotId),
    /// Its invocation, within a session.
    Invocation(SessionKey, InvocationId),
}
