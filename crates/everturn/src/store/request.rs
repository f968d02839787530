//! What stores are asked, and what they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::artifact::{Artifact, ArtifactVersion};
use crate::digest::Digest;
use crate::json::Json;
use crate::session::{SessionKey, SessionStatus};
use crate::snapshot::SnapshotEvent;
use crate::state::StateDelta;
use crate::turn::{Changes, EndStatus, Fence, Input, NewSnapshot, Outcome};
use crate::{
    AgentName, AppName, BranchName, Error, InvocationId, Point, Result, SessionId, SnapshotId, Timestamp, TurnId,
    TurnKey, UserId,
};

/// The most items a page can have.
pub const MAX_PAGE: usize = 1000;

/// A session to create.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CreateSession {
    /// The app it belongs to.
    pub app: AppName,
    /// The user it belongs to.
    pub user: UserId,
    /// Its id; generated when left out.
    pub id: Option<SessionId>,
    /// The agent that makes it.
    pub agent: Option<AgentName>,
    /// Its title.
    pub title: Option<String>,
    /// Its labels.
    pub labels: BTreeSet<String>,
    /// Whatever goes with it; an object.
    pub metadata: Option<Json>,
    /// Initial state by prefixed key: split by scope, `temp:` dropped.
    pub state: StateDelta,
    /// Anything else it starts with.
    pub changes: Changes,
    /// The id of a snapshot of the session as created, so that even an empty session has a resumable one.
    pub seed: Option<SnapshotId>,
}

impl CreateSession {
    /// A session for a user of an app, under a generated id.
    #[must_use]
    pub fn new(app: AppName, user: UserId) -> Self {
        Self {
            app,
            user,
            id: None,
            agent: None,
            title: None,
            labels: BTreeSet::new(),
            metadata: None,
            state: StateDelta::new(),
            changes: Changes::new(),
            seed: None,
        }
    }

    /// A session under a key.
    #[must_use]
    pub fn at(key: SessionKey) -> Self {
        Self { id: Some(key.id), ..Self::new(key.app, key.user) }
    }

    /// The same with a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The same with a label.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.labels.insert(label.into());
        self
    }

    /// The same with metadata.
    #[must_use]
    pub fn metadata(mut self, metadata: Json) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// The same with a key of initial state.
    #[must_use]
    pub fn state(mut self, key: impl Into<String>, value: Json) -> Self {
        self.state = self.state.set(key, value);
        self
    }

    /// The same with a seed snapshot.
    #[must_use]
    pub fn seed(mut self, id: SnapshotId) -> Self {
        self.seed = Some(id);
        self
    }
}

/// A change of what is known about a session. `None` leaves a thing as it is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct UpdateSession {
    /// A title, or its removal.
    pub title: Option<Option<String>>,
    /// Labels to add.
    pub add_labels: BTreeSet<String>,
    /// Labels to take away.
    pub remove_labels: BTreeSet<String>,
    /// Members of the metadata to set.
    pub set_metadata: BTreeMap<String, Json>,
    /// Members of the metadata to remove.
    pub remove_metadata: BTreeSet<String>,
}

impl UpdateSession {
    /// A new title.
    #[must_use]
    pub fn title(title: impl Into<String>) -> Self {
        Self { title: Some(Some(title.into())), ..Self::default() }
    }

    /// A label more.
    #[must_use]
    pub fn label(label: impl Into<String>) -> Self {
        Self { add_labels: [label.into()].into(), ..Self::default() }
    }

    /// A member of the metadata.
    #[must_use]
    pub fn metadata(name: impl Into<String>, value: Json) -> Self {
        Self { set_metadata: [(name.into(), value)].into(), ..Self::default() }
    }

    /// The same, taking the title away.
    #[must_use]
    pub fn without_title(mut self) -> Self {
        self.title = Some(None);
        self
    }

    /// The same, taking a label away.
    #[must_use]
    pub fn without_label(mut self, label: impl Into<String>) -> Self {
        self.remove_labels.insert(label.into());
        self
    }

    /// The same, taking a member of the metadata away.
    #[must_use]
    pub fn without_metadata(mut self, name: impl Into<String>) -> Self {
        self.remove_metadata.insert(name.into());
        self
    }
}

/// Which order a listing has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionOrder {
    /// The one written to last comes first.
    #[default]
    UpdatedNewest,
    /// The one written to last comes last.
    UpdatedOldest,
    /// The youngest comes first.
    CreatedNewest,
    /// The oldest comes first.
    CreatedOldest,
}

/// Which sessions to list. The listing is as of its first page: sessions that are written to while you page keep their
/// place, those created later do not appear, deleted ones drop out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListSessions {
    /// Those of one app.
    pub app: Option<AppName>,
    /// Those of one user.
    pub user: Option<UserId>,
    /// Those with a label.
    pub label: Option<String>,
    /// Those whose metadata has these top-level scalars.
    pub metadata: BTreeMap<String, Json>,
    /// Those in a status.
    pub status: Option<SessionStatus>,
    /// The order.
    pub order: SessionOrder,
    /// How many a page has, at most [`MAX_PAGE`].
    pub limit: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

impl Default for ListSessions {
    fn default() -> Self {
        Self {
            app: None,
            user: None,
            label: None,
            metadata: BTreeMap::new(),
            status: None,
            order: SessionOrder::default(),
            limit: 100,
            cursor: None,
        }
    }
}

impl ListSessions {
    /// All sessions of a user.
    #[must_use]
    pub fn of(app: AppName, user: UserId) -> Self {
        Self { app: Some(app), user: Some(user), ..Self::default() }
    }

    /// The same, so many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The same in an order.
    #[must_use]
    pub fn order(mut self, order: SessionOrder) -> Self {
        self.order = order;
        self
    }

    /// The same from where a page ended.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// A place in a listing, to be handed back as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(String);

impl Cursor {
    /// Takes a cursor that came over a wire. Whether it is one is found out when it is used.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(kind: char, numbers: &[u64]) -> Self {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        Self(format!("{kind}{}", numbers.join(".")))
    }

    pub(crate) fn numbers<const N: usize>(&self, kind: char) -> Result<[u64; N]> {
        let read = || {
            let rest = self.0.strip_prefix(kind)?;
            let numbers = rest.split('.').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>()?;
            numbers.try_into().ok()
        };
        read().ok_or_else(|| Error::invalid("that is no cursor of this listing: start again without one"))
    }
}

/// Some items, and where to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where to go on; nothing when this was all.
    pub next: Option<Cursor>,
}

/// What purging a session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records whose bytes are gone.
    pub removed: u64,
    /// Records that stay because a fork's line reaches them.
    pub kept_for_forks: u64,
}

/// Where a turn starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// At the head of an existing session's branch.
    Session(SessionKey),
    /// At the head of a session's branch; the session is created if there is none. Without an id a fresh one is made,
    /// or, when the turn has a key, one that derives from app, user and key: so a retried first request makes one
    /// session.
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

/// What an edit does when the head has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfMoved {
    /// It is refused as `Conflict`.
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

    /// The same, kept off the head when it has moved.
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

/// A place to read state at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The head of a branch.
    Head(SessionKey, BranchName),
    /// A point of a session.
    Point(SessionKey, Point),
    /// A snapshot.
    Snapshot(SnapshotId),
}

impl At {
    /// The head of `main`.
    #[must_use]
    pub fn head(session: SessionKey) -> Self {
        Self::Head(session, BranchName::main())
    }
}

/// Which events to read. With both a tail and a time, the tail is taken first. Neither changes the state read elsewhere.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EventQuery {
    /// The line, by its end.
    pub at: At,
    /// Only events after this sequence number.
    pub after: Option<u64>,
    /// Only events up to this sequence number.
    pub until: Option<u64>,
    /// Only the last so many. `None` is all of them, `Some(0)` none.
    pub tail: Option<usize>,
    /// Only events at or after this time.
    pub since: Option<Timestamp>,
    /// Whether events of voided turns are shown as well.
    pub voided: Voided,
    /// How many a page has, at most [`MAX_PAGE`].
    pub limit: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

/// Whether voided records are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Voided {
    /// They are not.
    #[default]
    Hide,
    /// They are.
    Show,
}

impl EventQuery {
    /// All events of a line.
    #[must_use]
    pub fn at(at: At) -> Self {
        Self { at, after: None, until: None, tail: None, since: None, voided: Voided::Hide, limit: 100, cursor: None }
    }

    /// All events on `main`.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self::at(At::head(session))
    }

    /// The last so many.
    #[must_use]
    pub fn tail(mut self, count: usize) -> Self {
        self.tail = Some(count);
        self
    }

    /// Those at or after a time.
    #[must_use]
    pub fn since(mut self, time: Timestamp) -> Self {
        self.since = Some(time);
        self
    }

    /// Those of voided turns as well.
    #[must_use]
    pub fn with_voided(mut self) -> Self {
        self.voided = Voided::Show;
        self
    }

    /// So many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// From where a page ended.
    #[must_use]
    pub fn from(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// Which records to read: the session's own log, everything in it, in order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordQuery {
    /// The session.
    pub session: SessionKey,
    /// Only records after this sequence number.
    pub after: u64,
    /// How many, at most [`MAX_PAGE`].
    pub limit: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

impl RecordQuery {
    /// The log from its start.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self { session, after: 0, limit: 100, cursor: None }
    }

    /// The log after a sequence number.
    #[must_use]
    pub fn after(mut self, seq: u64) -> Self {
        self.after = seq;
        self
    }

    /// From where a page ended.
    #[must_use]
    pub fn from(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// So many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// What names a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// Its id.
    Id(SnapshotId),
    /// The newest on a branch's line whose state has this digest.
    Digest(SessionKey, Digest),
    /// The session's newest pending one, else the nearest at or before `main`'s head.
    Latest(SessionKey),
    /// The nearest completed one at or before `main`'s head.
    LatestResumable(SessionKey),
}

/// Which snapshots to list, in the order of the log.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListSnapshots {
    /// The session.
    pub session: SessionKey,
    /// Whether those on no branch's line are listed.
    pub orphans: Orphans,
    /// Which end to start from.
    pub order: SnapshotOrder,
    /// How many a page has, at most [`MAX_PAGE`].
    pub limit: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

/// Whether snapshots on no branch's line are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orphans {
    /// They are.
    #[default]
    Include,
    /// They are not.
    Exclude,
}

/// Which end of the log a listing of snapshots starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotOrder {
    /// The oldest first.
    #[default]
    Oldest,
    /// The newest first.
    Newest,
}

impl ListSnapshots {
    /// All snapshots of a session.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self { session, orphans: Orphans::Include, order: SnapshotOrder::Oldest, limit: 100, cursor: None }
    }

    /// Without orphans.
    #[must_use]
    pub fn without_orphans(mut self) -> Self {
        self.orphans = Orphans::Exclude;
        self
    }

    /// The newest first.
    #[must_use]
    pub fn newest_first(mut self) -> Self {
        self.order = SnapshotOrder::Newest;
        self
    }

    /// So many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// From where a page ended.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// A change of a session's branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BranchChange {
    /// Makes a branch that stands at a point.
    Create {
        /// Its name.
        name: BranchName,
        /// Where it stands.
        at: Point,
    },
    /// Moves a branch's head: back is a rewind, forth again a redo. Nothing is deleted.
    Move {
        /// The branch.
        name: BranchName,
        /// Where it shall stand.
        to: Point,
        /// What to do while a turn runs on it.
        under_lease: UnderLease,
    },
    /// Deletes a branch; what was only on its line is orphaned, not lost. `main` cannot be deleted.
    Delete {
        /// The branch.
        name: BranchName,
        /// What to do while a turn runs on it.
        under_lease: UnderLease,
    },
}

/// What to do with a branch on which a turn runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnderLease {
    /// Answer `Busy`.
    #[default]
    Refuse,
    /// Do it; the running turn will end off the head.
    Force,
}

/// A fork to make: a new session whose line begins at a point of another one. Nothing is copied.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ForkSession {
    /// Where it begins.
    pub from: At,
    /// Its id; generated when left out.
    pub id: Option<SessionId>,
    /// The id of the fork's own first snapshot; generated when left out.
    pub snapshot: Option<SnapshotId>,
}

impl ForkSession {
    /// A fork at a place, under a generated id.
    #[must_use]
    pub fn at(from: At) -> Self {
        Self { from, id: None, snapshot: None }
    }

    /// The same under an id.
    #[must_use]
    pub fn id(mut self, id: SessionId) -> Self {
        self.id = Some(id);
        self
    }
}

/// Which artifact versions to read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ArtifactQuery {
    /// The session.
    pub session: SessionKey,
    /// The artifact's name; all names when left out.
    pub name: Option<String>,
    /// One version only.
    pub version: Option<u64>,
}

impl ArtifactQuery {
    /// All versions of all of a session's artifacts.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self { session, name: None, version: None }
    }

    /// All versions of one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// One version.
    #[must_use]
    pub fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }
}

/// A version with its content.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredArtifact {
    /// Which version it is.
    pub version: ArtifactVersion,
    /// What it holds.
    pub artifact: Artifact,
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// Anything written to a session.
    Session(SessionKey),
    /// A change of a snapshot's status.
    Snapshot(SnapshotId),
}

/// What to verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyScope {
    /// Every session.
    All,
    /// One session.
    Session(SessionKey),
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Sessions read.
    pub sessions: u64,
    /// Records whose chains were recomputed.
    pub records: u64,
    /// Snapshots whose digests were recomputed.
    pub snapshots: u64,
    /// The first damaged record, if there is one.
    pub damage: Option<Damage>,
}

/// A damaged record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its session.
    pub session: SessionKey,
    /// The record.
    pub point: Point,
    /// What is wrong with it.
    pub what: String,
}

/// What a store refuses to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most bytes one record may hold: 16 MiB unless set.
    pub body: usize,
    /// The most bytes custom state may have: 1 MiB unless set.
    pub custom: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 16 << 20, custom: 1 << 20 }
    }
}
