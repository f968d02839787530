//! What a backend keeps, row by row, and the two traits through which the rules read and write it.
//!
//! The rules never see a file or a lock. A backend runs them inside one transaction at a time, sees to it that what
//! they wrote becomes visible together, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::line::Interval;
use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus, TurnError};
use crate::state::{Scope, StateDelta, Tip};
use crate::turn::RecordKind;
use crate::{
    AgentName, AppName, BranchName, InvocationId, Result, SessionId, SnapshotId, Timestamp, TurnKey, Usage, UserId,
};

/// A session. The lease of `main` is in here, so that a plain turn touches one row less.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionRow {
    /// Never reused: tells a late writer of a deleted session from the session created later under the same id.
    pub(crate) num: u64,
    /// Shared by a session and its forks; prefixes blobs.
    pub(crate) tree: u64,
    pub(crate) key: SessionKey,
    pub(crate) agent: Option<AgentName>,
    pub(crate) title: Option<String>,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) metadata: Json,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) next_seq: u64,
    pub(crate) main: Head,
    pub(crate) usage: Usage,
    pub(crate) inherited: Usage,
    /// Whether the turn at `main`'s head waits for a person.
    pub(crate) interrupted: bool,
    pub(crate) forked: Option<(SessionId, u64)>,
    pub(crate) deleted: bool,
    /// Positions of its first and last record in the store: the order of listings.
    pub(crate) created_pos: u64,
    pub(crate) updated_pos: u64,
}

/// Where a branch stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    /// The session whose record it is: another one right after a rewind into what a fork inherited.
    pub(crate) num: u64,
    pub(crate) segment: u64,
    /// The segment a turn from here goes on in: one that holds nothing after the head but what is void. Nothing when
    /// there is none that is known to be so; opening a new one is never wrong.
    pub(crate) next: Option<u64>,
    /// The begin of the turn that holds the branch.
    pub(crate) lease: Option<u64>,
    pub(crate) turns: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BranchRow {
    pub(crate) name: BranchName,
    pub(crate) head: Head,
}

/// A record without its body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordMeta {
    pub(crate) num: u64,
    pub(crate) seq: u64,
    /// 0 for admin records.
    pub(crate) segment: u64,
    pub(crate) kind: RecordKind,
    pub(crate) turn: Option<u64>,
    pub(crate) attempt: u64,
    pub(crate) at: Timestamp,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) snapshot: Option<SnapshotId>,
    /// How many sequence numbers it takes: one for each event, at least one.
    pub(crate) width: u64,
    pub(crate) tip: Tip,
}

impl RecordMeta {
    pub(crate) fn place(&self) -> Place {
        Place { num: self.num, segment: self.segment, seq: self.seq }
    }

    /// Whether this record, a void, hides another one.
    pub(crate) fn voids(&self, other: &Self) -> bool {
        self.kind == RecordKind::Void && self.turn == other.turn && self.attempt == other.attempt
    }

    /// The index of the turn it belongs to.
    pub(crate) fn turn_index(&self) -> u64 {
        match self.kind {
            RecordKind::End => self.tip.turns.saturating_sub(1),
            _ => self.tip.turns,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordRow {
    pub(crate) meta: RecordMeta,
    /// Encoded by `body`.
    pub(crate) body: Vec<u8>,
}

/// A stretch of the tree that belongs to one session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SegmentRow {
    pub(crate) id: u64,
    pub(crate) num: u64,
    pub(crate) parent: Option<Place>,
}

/// A record anywhere in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) num: u64,
    pub(crate) segment: u64,
    pub(crate) seq: u64,
}

/// A turn that has begun and not ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnRow {
    pub(crate) num: u64,
    pub(crate) begin: u64,
    pub(crate) attempt: u64,
    pub(crate) branch: BranchName,
    pub(crate) agent: Option<AgentName>,
    pub(crate) invocation: InvocationId,
    pub(crate) key: Option<TurnKey>,
    /// The point it started from.
    pub(crate) start: Place,
    /// Where it writes; nothing after somebody else took its branch while it was dead.
    pub(crate) segment: Option<u64>,
    /// Its last record.
    pub(crate) tip: u64,
    pub(crate) leased: bool,
    /// For a side line, the head it may move: the one it saw when it began.
    pub(crate) seen: Option<u64>,
    pub(crate) snapshot: Option<SnapshotId>,
    /// What its steps have said about `app:` and `user:`; written when it completes.
    pub(crate) scopes: StateDelta,
    /// Named artifacts its steps have put; they get their versions when it completes.
    pub(crate) artifacts: Vec<PutArtifact>,
    /// Whether this attempt has kept chunks, so that the end of a turn without any need not look for them.
    pub(crate) streams: bool,
    pub(crate) began_at: Timestamp,
    pub(crate) beat: Beat,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PutArtifact {
    pub(crate) name: String,
    pub(crate) digest: Digest,
    pub(crate) seq: u64,
}

/// The last sign of life of whoever runs a turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beat {
    pub(crate) owner: Arc<str>,
    pub(crate) boot: Arc<str>,
    /// Microseconds since the machine started.
    pub(crate) uptime: u64,
    pub(crate) at: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRow {
    pub(crate) turn: u64,
    pub(crate) payload: Digest,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SnapshotRow {
    pub(crate) id: SnapshotId,
    pub(crate) num: u64,
    pub(crate) seq: u64,
    pub(crate) parent: Option<SnapshotId>,
    pub(crate) digest: Digest,
    pub(crate) index: u64,
    pub(crate) turn_index: u64,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) status: SnapshotStatus,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) error: Option<TurnError>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) label: Option<String>,
    /// The turn a reserved or pending row belongs to.
    pub(crate) turn: Option<u64>,
}

impl SnapshotRow {
    /// Whether it only keeps its id from being used by others: it names no point yet.
    pub(crate) fn is_reserved(&self) -> bool {
        self.seq == 0
    }

    /// A row that reserves an id for a running turn.
    pub(crate) fn reserved(id: SnapshotId, num: u64, turn: u64, at: Timestamp) -> Self {
        Self {
            id,
            num,
            seq: 0,
            parent: None,
            digest: Digest::ABSENT,
            index: 0,
            turn_index: 0,
            event: None,
            status: SnapshotStatus::Pending,
            finish: None,
            error: None,
            created_at: at,
            updated_at: at,
            label: None,
            turn: Some(turn),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ArtifactRow {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) digest: Digest,
    pub(crate) seq: u64,
}

/// Chunks of a turn's stream that were kept together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PackRow {
    pub(crate) meta: PackMeta,
    /// An array of the chunks, packed like a body.
    pub(crate) body: Vec<u8>,
}

/// A pack without its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackMeta {
    pub(crate) num: u64,
    /// The begin of its turn. All packs of a turn are of its current attempt: those of another go when it is void.
    pub(crate) turn: u64,
    /// The number of its first chunk, and how many there are.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// How much text the attempt's packs before it had, those that were dropped too.
    pub(crate) start: u64,
    pub(crate) size: u64,
}

impl PackMeta {
    /// The number of the chunk after its last.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.count
    }
}

/// The stream of a turn that has ended. One that runs is known by its packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRow {
    pub(crate) num: u64,
    pub(crate) turn: u64,
    /// How many chunks its last attempt had.
    pub(crate) chunks: u64,
    /// When the turn ended; nothing once its packs are gone.
    pub(crate) ended_at: Option<Timestamp>,
}

/// Which pack of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackAt {
    Oldest,
    Newest,
}

/// A stretch of a session's records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    pub(crate) num: u64,
    /// First and last sequence number.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) segment: Option<u64>,
    pub(crate) only: Only,
    pub(crate) newest_first: bool,
}

impl Scan {
    /// All records of a stretch of a line.
    pub(crate) fn of(stretch: &Interval) -> Self {
        let Interval { num, segment, from, to } = *stretch;
        Self { num, from, to, segment: Some(segment), only: Only::All, newest_first: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    All,
    /// Records that name a snapshot.
    Snapshots,
}

/// Which sessions a listing may show, before its other filters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) app: Option<&'a AppName>,
    pub(crate) user: Option<&'a UserId>,
}

pub(crate) type Visit<'a, T> = &'a mut dyn FnMut(T) -> Result<Flow>;
/// Is shown records with their bodies as they are kept, lent for the moment.
pub(crate) type VisitPacked<'a> = &'a mut dyn FnMut(RecordMeta, &[u8]) -> Result<()>;

/// Whether a scan goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    More,
    Stop,
}

/// Is told of damage: the session's number and the record's, where they are known, and what is wrong.
pub(crate) type Damaged<'a> = &'a mut dyn FnMut(Option<(u64, u64)>, String);

/// Reading what is kept. A row is given as it was written; one that is not is `Corrupt`.
pub(crate) trait Read {
    /// Reads every row, and tells of each that is not as it was written or belongs to no session.
    fn check_rows(&self, _: Damaged<'_>) -> Result<()> {
        Ok(())
    }

    /// The live session under a key.
    fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>>;
    /// The session with a number, deleted or not.
    fn session(&self, num: u64) -> Result<Option<SessionRow>>;
    /// Deleted sessions that are not reclaimed yet.
    fn deleted_sessions(&self) -> Result<Vec<SessionRow>>;
    /// All sessions of a tree, deleted ones too.
    fn tree_sessions(&self, tree: u64) -> Result<Vec<SessionRow>>;
    fn record(&self, num: u64, seq: u64) -> Result<Option<RecordRow>>;
    fn meta(&self, num: u64, seq: u64) -> Result<Option<RecordMeta>>;
    fn scan(&self, scan: Scan, visit: Visit<'_, RecordRow>) -> Result<()>;
    fn scan_meta(&self, scan: Scan, visit: Visit<'_, RecordMeta>) -> Result<()>;
    /// The records of a line, stretch by stretch.
    fn scan_line(&self, line: &[Interval], visit: VisitPacked<'_>) -> Result<()>;
    fn segment(&self, id: u64) -> Result<Option<SegmentRow>>;
    /// A segment, its parent, and so on to the root, or to one that is missing.
    fn ancestry(&self, id: u64, visit: Visit<'_, SegmentRow>) -> Result<()>;
    fn segments(&self, num: u64) -> Result<Vec<SegmentRow>>;
    fn branch(&self, num: u64, name: &BranchName) -> Result<Option<BranchRow>>;
    /// All branches but `main`, by name.
    fn branches(&self, num: u64) -> Result<Vec<BranchRow>>;
    fn turn(&self, num: u64, begin: u64) -> Result<Option<TurnRow>>;
    /// Running turns of one session, or of all.
    fn turns(&self, num: Option<u64>) -> Result<Vec<TurnRow>>;
    fn key(&self, num: u64, key: &TurnKey) -> Result<Option<KeyRow>>;
    fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>>;
    /// The keys of a scope, without prefix.
    fn scope(&self, scope: Scope, app: &AppName, user: Option<&UserId>) -> Result<Vec<(String, Json)>>;
    /// Versions of a session's own artifacts, by name and version.
    fn artifacts(&self, num: u64, name: Option<&str>) -> Result<Vec<ArtifactRow>>;
    fn blob(&self, tree: u64, digest: Digest) -> Result<Option<Vec<u8>>>;
    /// Whether a tree keeps any blob.
    fn has_blobs(&self, tree: u64) -> Result<bool>;
    /// One end of a turn's packs.
    fn pack(&self, num: u64, turn: u64, at: PackAt) -> Result<Option<PackMeta>>;
    /// A turn's packs, from the one that holds a chunk on.
    fn packs(&self, num: u64, turn: u64, chunk: u64, visit: Visit<'_, PackRow>) -> Result<()>;
    fn stream(&self, num: u64, turn: u64) -> Result<Option<StreamRow>>;
    /// The stream with packs whose turn ended first, if that was at a time or before.
    fn stream_ended_by(&self, time: Timestamp) -> Result<Option<StreamRow>>;
    /// The position of the last record in the store.
    fn position(&self) -> Result<u64>;
    /// The position of a session's last record at or before a position.
    fn position_at(&self, num: u64, at: u64) -> Result<Option<u64>>;
    /// Live sessions by position, starting after one: as `SessionOrder` has it.
    fn list(&self, list: ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<()>;
    /// Live sessions that were written to after a position.
    fn touched_since(&self, owner: Owner<'_>, pos: u64, visit: Visit<'_, SessionRow>) -> Result<()>;
}

/// A walk over live sessions in one order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListScan<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) by: ListBy,
    pub(crate) newest_first: bool,
    /// Start behind this key, exclusively.
    pub(crate) after: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListBy {
    Created,
    Updated,
}

/// Writing. A rule checks everything before its first write, so that a refusal leaves nothing behind.
pub(crate) trait Write: Read {
    /// Gives a fresh session number.
    fn new_num(&mut self) -> Result<u64>;
    fn put_session(&mut self, row: &SessionRow) -> Result<()>;
    /// Appends a record and gives its position.
    fn append(&mut self, meta: &RecordMeta, body: &[u8]) -> Result<u64>;
    fn new_segment(&mut self, num: u64, parent: Option<Place>) -> Result<u64>;
    fn put_branch(&mut self, num: u64, row: &BranchRow) -> Result<()>;
    fn delete_branch(&mut self, num: u64, name: &BranchName) -> Result<()>;
    fn put_turn(&mut self, row: &TurnRow) -> Result<()>;
    fn delete_turn(&mut self, num: u64, begin: u64) -> Result<()>;
    fn put_key(&mut self, num: u64, key: &TurnKey, row: &KeyRow) -> Result<()>;
    fn put_snapshot(&mut self, row: &SnapshotRow) -> Result<()>;
    fn remove_snapshot(&mut self, id: SnapshotId) -> Result<()>;
    fn set_scope(
        &mut self,
        scope: Scope,
        app: &AppName,
        user: Option<&UserId>,
        key: &str,
        value: Option<&Json>,
    ) -> Result<()>;
    fn put_artifact(&mut self, num: u64, row: &ArtifactRow) -> Result<()>;
    /// Keeps a blob unless the tree has it.
    fn put_blob(&mut self, tree: u64, digest: Digest, body: &[u8]) -> Result<()>;
    fn put_pack(&mut self, row: &PackRow) -> Result<()>;
    fn remove_pack(&mut self, meta: &PackMeta) -> Result<()>;
    fn remove_packs(&mut self, num: u64, turn: u64) -> Result<()>;
    fn put_stream(&mut self, row: &StreamRow) -> Result<()>;
    /// Removes at most `limit` of a deleted session's records up to a sequence number; says how many.
    fn remove_records(&mut self, num: u64, from: u64, to: u64, segment: u64, limit: usize) -> Result<usize>;
    /// Removes everything of a deleted session but its records and the row itself.
    fn remove_session_parts(&mut self, num: u64) -> Result<()>;
    /// Removes blobs of a tree that no listed digest names.
    fn keep_blobs(&mut self, tree: u64, keep: &BTreeSet<Digest>) -> Result<()>;
    /// Removes the row of a deleted session of which nothing is left.
    fn remove_session(&mut self, num: u64) -> Result<()>;
}
