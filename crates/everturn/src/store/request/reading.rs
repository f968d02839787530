//! What is read: states, events, records, snapshots.

#[cfg(doc)]
use super::MAX_PAGE;
use super::MAX_PAGE_BYTES;
use super::sessions::Cursor;
use crate::digest::Digest;
use crate::session::SessionKey;
use crate::{BranchName, Point, SnapshotId, Timestamp};

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
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one item is always given.
    pub bytes: usize,
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
        Self {
            at,
            after: None,
            until: None,
            tail: None,
            since: None,
            voided: Voided::Hide,
            limit: 100,
            bytes: MAX_PAGE_BYTES,
            cursor: None,
        }
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

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
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
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one item is always given.
    pub bytes: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

impl RecordQuery {
    /// The log from its start.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self { session, after: 0, limit: 100, bytes: MAX_PAGE_BYTES, cursor: None }
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

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
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
    /// The nearest completed one at or before a point, along its line; of a fork also one it inherited.
    Nearest(SessionKey, Point),
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
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one item is always given.
    pub bytes: usize,
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
        Self {
            session,
            orphans: Orphans::Include,
            order: SnapshotOrder::Oldest,
            limit: 100,
            bytes: MAX_PAGE_BYTES,
            cursor: None,
        }
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

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// From where a page ended.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}
