//! What is asked of heads, and of the store as a whole.

use super::MAX_PAGE_BYTES;
use super::reading::At;
use crate::artifact::{Artifact, ArtifactVersion};
use crate::session::SessionKey;
use crate::{BranchName, Point, SessionId, SnapshotId};

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
        /// Where it must stand now; anywhere else is `Conflict`. Wherever it stands when left out.
        expect: Option<Point>,
        /// What to do while a turn runs on it.
        under_lease: UnderLease,
    },
    /// Deletes a branch; what was only on its line is orphaned, not lost. `main` cannot be deleted.
    Delete {
        /// The branch.
        name: BranchName,
        /// Where it must stand now; anywhere else is `Conflict`. Wherever it stands when left out.
        expect: Option<Point>,
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
    /// Which versions of each.
    pub versions: Versions,
    /// Only those behind a name and a version, in the order they are read.
    pub after: Option<(String, u64)>,
    /// How many; all of them when left out. Fewer are given where they have [`bytes`](Self::bytes): it was the last page
    /// only if nothing is behind it.
    pub limit: Option<usize>,
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one version is always given. Without a limit it does
    /// not count.
    pub bytes: usize,
}

/// Which versions of an artifact to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// All of them.
    #[default]
    All,
    /// The newest.
    Newest,
}

impl ArtifactQuery {
    /// All versions of all of a session's artifacts.
    #[must_use]
    pub fn of(session: SessionKey) -> Self {
        Self {
            session,
            name: None,
            version: None,
            versions: Versions::All,
            after: None,
            limit: None,
            bytes: MAX_PAGE_BYTES,
        }
    }

    /// All versions of one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The newest version of each.
    #[must_use]
    pub fn newest(mut self) -> Self {
        self.versions = Versions::Newest;
        self
    }

    /// So many, behind a name and a version.
    #[must_use]
    pub fn page(mut self, after: Option<(String, u64)>, limit: usize) -> Self {
        (self.after, self.limit) = (after, Some(limit));
        self
    }

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
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
    /// Every session, and what is beside them.
    All,
    /// One session.
    Session(SessionKey),
    /// What is beside the sessions: rows that belong to none, rows that are not as they were written, and the file itself.
    /// Every row is read, but none is compared with what others add up to.
    Rows,
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
    /// The first damage, if there is any.
    pub damage: Option<Damage>,
    /// The first damages, [`MAX_DAMAGES`] at most.
    pub damages: Vec<Damage>,
    /// How many damages there are.
    pub damaged: u64,
}

/// The most damages that are told one by one.
pub const MAX_DAMAGES: usize = 100;

impl Verified {
    /// Takes in what else was verified.
    pub fn add(&mut self, other: Self) {
        self.sessions += other.sessions;
        self.records += other.records;
        self.snapshots += other.snapshots;
        self.damaged += other.damaged;
        self.damage = self.damage.take().or(other.damage);
        let room = MAX_DAMAGES.saturating_sub(self.damages.len());
        self.damages.extend(other.damages.into_iter().take(room));
    }

    /// One damage that is not one record's.
    #[must_use]
    pub fn of_damage(session: Option<SessionKey>, what: String) -> Self {
        let mut found = Self::default();
        found.found(Damage { session, point: Point::new(0), what });
        found
    }

    pub(crate) fn found(&mut self, damage: Damage) {
        self.add(Self { damage: Some(damage.clone()), damages: vec![damage], damaged: 1, ..Self::default() });
    }
}

/// Something that is damaged: a record, where it is known which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its session; nothing for what belongs to none.
    pub session: Option<SessionKey>,
    /// The record; 0 for what is not one record.
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
    /// The most text a turn's stream keeps: 16 MiB unless set. Nothing is refused over it; the oldest chunks go, but
    /// never the ones that were kept last.
    pub stream: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 16 << 20, custom: 1 << 20, stream: 16 << 20 }
    }
}
