//! What every rule needs: time, liveness, and a session's record as it is written.

use std::sync::Arc;

use super::body::{Body, EndBody, EndBodyStatus, encode};
use super::line::{Lines, climb, find_point};
use super::prepare::Prepared;
use super::tables::{
    ArtifactRow, Beat, BranchRow, Flow, Head, Only, Place, PutArtifact, Read, RecordMeta, Scan, SessionRow,
    SnapshotRow, TurnRow, Write,
};
use super::walk::scan_whole_meta;
use crate::digest::Digest;
use crate::session::{Branch, ForkOrigin, SessionKey, SessionRecord, SessionStatus};
use crate::snapshot::{SnapshotEvent, SnapshotStatus};
use crate::state::{Scope, StateDelta, Tip, split_key};
use crate::turn::{NewSnapshot, Outcome, RecordKind};
use crate::{BranchName, Error, Point, Result, SnapshotId, Timestamp};

/// The circumstances a rule runs under.
pub(crate) struct Env<'a> {
    pub(crate) now: Timestamp,
    /// Microseconds since the machine started.
    pub(crate) uptime: u64,
    pub(crate) boot: &'a Arc<str>,
    pub(crate) owner: &'a Arc<str>,
    /// How long a writer may be silent before it is taken for dead, in microseconds.
    pub(crate) lease: u64,
    /// How long the stream of a turn that has ended stays, in microseconds.
    pub(crate) stream_grace: u64,
    /// Whether an owner still holds its lock.
    pub(crate) holds_lock: &'a dyn Fn(&str) -> bool,
}

impl Env<'_> {
    pub(crate) fn beat(&self) -> Beat {
        Beat { owner: self.owner.clone(), boot: self.boot.clone(), uptime: self.uptime, at: self.now }
    }

    /// Whether whoever gave this sign of life may still be working. The wall clock has no say in it.
    pub(crate) fn alive(&self, beat: &Beat) -> bool {
        beat.boot == *self.boot
            && self.uptime.saturating_sub(beat.uptime) <= self.lease
            && (beat.owner == *self.owner || (self.holds_lock)(&beat.owner))
    }
}

/// A rule at work: it may read and write, and it knows its circumstances.
pub(crate) struct Ctx<'a> {
    pub(crate) tx: &'a mut dyn Write,
    pub(crate) env: &'a Env<'a>,
}

/// What came of a rule that needs to know the state it follows.
pub(crate) enum Step<T> {
    Done(T),
    /// Prepare the record again, for this point.
    Rebase(Place),
}

/// A record about to be appended.
pub(crate) struct NewRecord<'a> {
    pub(crate) segment: u64,
    pub(crate) kind: RecordKind,
    pub(crate) turn: Option<(u64, u64)>,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) width: u64,
    pub(crate) tip: &'a Tip,
    pub(crate) body: &'a [u8],
}

pub(crate) fn no_session(key: &SessionKey) -> Error {
    Error::not_found(format!("there is no session {key}: check app, user and id, or create it"))
}

pub(crate) fn no_branch(name: &BranchName) -> Error {
    Error::not_found(format!("the session has no branch {name:?}: create it, or leave the branch out for `main`"))
}

pub(crate) fn live_session(read: &dyn Read, key: &SessionKey) -> Result<SessionRow> {
    read.find_session(key)?.ok_or_else(|| no_session(key))
}

pub(crate) fn head_of(read: &dyn Read, session: &SessionRow, branch: &BranchName) -> Result<Option<Head>> {
    if branch.is_main() {
        return Ok(Some(session.main.clone()));
    }
    Ok(read.branch(session.num, branch)?.map(|row| row.head))
}

/// Far beyond any sequence number a session reaches.
pub(crate) const NO_LIMIT: u64 = i64::MAX as u64;

impl TurnRow {
    /// The record the turn's next one follows: its own last, or the one it started from.
    pub(crate) fn tip_place(&self) -> Place {
        match self.segment {
            Some(segment) if self.tip != self.start.seq => Place { num: self.num, segment, seq: self.tip },
            _ => self.start,
        }
    }
}

impl Head {
    pub(crate) fn place(&self) -> Place {
        Place { num: self.num, segment: self.segment, seq: self.seq }
    }
}

/// All branches, `main` first.
pub(crate) fn all_branches(read: &dyn Read, session: &SessionRow) -> Result<Vec<BranchRow>> {
    let mut rows = vec![BranchRow { name: BranchName::main(), head: session.main.clone() }];
    rows.extend(read.branches(session.num)?);
    Ok(rows)
}

/// A session as it is shown.
pub(crate) fn show(read: &dyn Read, env: &Env<'_>, row: &SessionRow) -> Result<SessionRecord> {
    let branches = all_branches(read, row)?
        .into_iter()
        .map(|branch| Branch { name: branch.name, head: Point::new(branch.head.seq) })
        .collect();
    Ok(SessionRecord {
        app: row.key.app.clone(),
        user: row.key.user.clone(),
        id: row.key.id.clone(),
        agent: row.agent.clone(),
        title: row.title.clone(),
        metadata: row.metadata.clone(),
        labels: row.labels.clone(),
        created_at: row.created_at,
        updated_at: row.updated_at,
        head: Point::new(row.main.seq),
        branches,
        turns: row.main.turns,
        usage: row.usage,
        inherited_usage: row.inherited,
        status: status(read, env, row)?,
        forked_from: row.forked.as_ref().map(|(id, seq)| ForkOrigin { session: id.clone(), point: Point::new(*seq) }),
    })
}

pub(crate) fn status(read: &dyn Read, env: &Env<'_>, row: &SessionRow) -> Result<SessionStatus> {
    Ok(if read.turns(Some(row.num))?.iter().any(|turn| env.alive(&turn.beat)) {
        SessionStatus::Running
    } else if row.interrupted {
        SessionStatus::Interrupted
    } else {
        SessionStatus::Idle
    })
}

/// The nearest snapshot at or before a place, along its line. The place may lie in what the session that asks has inherited.
pub(crate) fn nearest_snapshot(
    read: &dyn Read,
    asking: &SessionRow,
    place: Place,
    accept: &mut dyn FnMut(&SnapshotRow, &RecordMeta) -> bool,
) -> Result<Option<SnapshotRow>> {
    let mut found = None;
    climb(read, place, &mut |interval| {
        let scan = Scan {
            num: interval.num,
            from: interval.from,
            to: interval.to,
            // Looked at below: a record that says otherwise than what finds it is to be noticed.
            segment: None,
            only: Only::Snapshots,
            newest_first: true,
        };
        read.scan_meta(scan, &mut |meta: RecordMeta| {
            if meta.segment != interval.segment {
                return Ok(Flow::More);
            }
            let row = match meta.num == asking.num {
                true => named_snapshot(read, &meta)?,
                false => meta.snapshot.map(|id| read.snapshot(id)).transpose()?.flatten(),
            };
            found = row.filter(|row| row.num == meta.num && row.seq == meta.seq && accept(row, &meta));
            if found.is_some() && is_voided(read, &meta, interval.to)? {
                found = None;
            }
            // What a fork inherited may belong to a session that is gone, and its snapshots with it.
            let foreign = found.is_some() && meta.num != asking.num;
            if foreign && read.session(meta.num)?.is_none_or(|session| session.deleted) {
                found = None;
            }
            Ok(if found.is_some() { Flow::Stop } else { Flow::More })
        })?;
        Ok(found.is_none())
    })?;
    Ok(found)
}

/// The snapshot that a record of a live session names, which may meanwhile stand at another one.
pub(crate) fn named_snapshot(read: &dyn Read, meta: &RecordMeta) -> Result<Option<SnapshotRow>> {
    let Some(id) = meta.snapshot else { return Ok(None) };
    let missing = || {
        let RecordMeta { seq, num, .. } = meta;
        Error::corrupt(format!("snapshot {id} of record {seq} of session number {num} is missing"))
    };
    read.snapshot(id)?.ok_or_else(missing).map(Some)
}

/// Whether a record is hidden from a later point of its segment: its attempt at a turn was voided by then.
pub(crate) fn is_voided(read: &dyn Read, meta: &RecordMeta, by: u64) -> Result<bool> {
    if !matches!(meta.kind, RecordKind::Begin | RecordKind::Step) {
        return Ok(false);
    }
    let mut voided = false;
    let scan = Scan {
        num: meta.num,
        from: meta.seq + 1,
        to: by,
        segment: Some(meta.segment),
        only: Only::All,
        newest_first: false,
    };
    scan_whole_meta(read, scan, &mut |later: RecordMeta| {
        voided = later.voids(meta);
        let ended = later.kind == RecordKind::End && later.turn == meta.turn;
        Ok(if voided || ended { Flow::Stop } else { Flow::More })
    })?;
    Ok(voided)
}

impl Ctx<'_> {
    /// Appends a record to a session; the row is the caller's to write back.
    pub(crate) fn append(&mut self, session: &mut SessionRow, record: NewRecord<'_>) -> Result<RecordMeta> {
        let seq = session.next_seq;
        let meta = RecordMeta {
            num: session.num,
            seq,
            segment: record.segment,
            kind: record.kind,
            turn: record.turn.map(|(turn, _)| turn),
            attempt: record.turn.map_or(0, |(_, attempt)| attempt),
            at: self.env.now,
            event: record.event,
            snapshot: record.snapshot,
            width: record.width,
            tip: record.tip.clone(),
        };
        session.updated_pos = self.tx.append(&meta, record.body)?;
        session.next_seq += record.width;
        session.updated_at = self.env.now;
        if session.created_pos == 0 {
            session.created_pos = session.updated_pos;
        }
        Ok(meta)
    }

    /// Appends an admin record, which lives in no segment.
    pub(crate) fn append_admin(&mut self, session: &mut SessionRow, prepared: &Prepared) -> Result<()> {
        let record = NewRecord {
            segment: 0,
            kind: RecordKind::Admin,
            turn: None,
            event: None,
            snapshot: None,
            width: 1,
            tip: &Tip::EMPTY,
            body: &prepared.bytes,
        };
        self.append(session, record).map(drop)
    }

    pub(crate) fn put_head(&mut self, session: &mut SessionRow, branch: &BranchName, head: Head) -> Result<()> {
        if branch.is_main() {
            session.main = head;
            return Ok(());
        }
        self.tx.put_branch(session.num, &BranchRow { name: branch.clone(), head })
    }

    pub(crate) fn meta(&self, place: Place) -> Result<RecordMeta> {
        self.tx
            .meta(place.num, place.seq)?
            .ok_or_else(|| Error::corrupt(format!("record {} of session number {} is missing", place.seq, place.num)))
    }

    /// The running turn that holds a branch, if its writer is alive; a dead one loses the branch.
    pub(crate) fn lease_holder(&mut self, session: &mut SessionRow, head: &mut Head) -> Result<Option<TurnRow>> {
        let Some(begin) = head.lease else { return Ok(None) };
        let Some(turn) = self.tx.turn(session.num, begin)? else {
            head.lease = None;
            return Ok(None);
        };
        Ok(self.env.alive(&turn.beat).then_some(turn))
    }

    /// Takes a branch from a dead turn: its records so far are void, its fence is raised, and if it is ever taken over
    /// it goes on beside the branch.
    pub(crate) fn lose(&mut self, session: &mut SessionRow, head: &mut Head) -> Result<()> {
        let Some(begin) = head.lease.take() else { return Ok(()) };
        let Some(mut turn) = self.tx.turn(session.num, begin)? else { return Ok(()) };
        self.void_attempt(session, &mut turn)?;
        turn.leased = false;
        turn.segment = None;
        turn.seen = Some(turn.start.seq);
        self.tx.put_turn(&turn)
    }

    /// Voids what the current attempt at a turn wrote and raises the fence.
    pub(crate) fn void_attempt(&mut self, session: &mut SessionRow, turn: &mut TurnRow) -> Result<()> {
        if let Some(segment) = turn.segment {
            let body = Body {
                end: Some(EndBody { status: EndBodyStatus::Lost, outcome: Outcome::default() }),
                ..Body::default()
            };
            let tip = self.meta(turn.tip_place())?.tip;
            let record = NewRecord {
                segment,
                kind: RecordKind::Void,
                turn: Some((turn.begin, turn.attempt)),
                event: None,
                snapshot: None,
                width: 1,
                tip: &tip,
                body: &encode(&body.text()?)?,
            };
            self.append(session, record)?;
        }
        self.drop_stream(turn)?;
        turn.attempt += 1;
        turn.scopes = StateDelta::new();
        turn.artifacts.clear();
        Ok(())
    }

    /// Where a new record after a head goes: on in the segment it may continue, or into a new one.
    pub(crate) fn segment_after(&mut self, session: &SessionRow, head: &mut Head) -> Result<u64> {
        if let Some(segment) = head.next {
            return Ok(segment);
        }
        let segment = self.tx.new_segment(session.num, Some(head.place()))?;
        head.next = Some(segment);
        Ok(segment)
    }

    pub(crate) fn write_scopes(&mut self, key: &SessionKey, delta: &StateDelta) -> Result<()> {
        let all = delta.set.iter().map(|(k, v)| (k, Some(v))).chain(delta.remove.iter().map(|k| (k, None)));
        for (prefixed, value) in all {
            let (scope, name) = split_key(prefixed);
            let user = (scope == Scope::User).then_some(&key.user);
            self.tx.set_scope(scope, &key.app, user, name, value)?;
        }
        Ok(())
    }

    pub(crate) fn write_blobs(&mut self, session: &SessionRow, prepared: &Prepared) -> Result<()> {
        prepared.puts.iter().try_for_each(|put| self.tx.put_blob(session.tree, put.digest, &put.bytes))
    }

    /// Gives artifacts their versions.
    pub(crate) fn write_versions(&mut self, session: &SessionRow, puts: &[PutArtifact]) -> Result<()> {
        for put in puts {
            let version = next_version(self.tx, session, &put.name)?;
            let row = ArtifactRow { name: put.name.clone(), version, digest: put.digest, seq: put.seq };
            self.tx.put_artifact(session.num, &row)?;
        }
        Ok(())
    }

    /// A snapshot id must be free, or be the one that this turn has reserved.
    pub(crate) fn check_snapshot_id(&self, id: SnapshotId, turn: Option<(u64, u64)>) -> Result<()> {
        match self.tx.snapshot(id)? {
            Some(row) if !(row.status == SnapshotStatus::Pending && turn == row.turn.map(|turn| (row.num, turn))) => {
                Err(Error::already_exists(format!("there is a snapshot {id} already: use a fresh id")))
            }
            _ => Ok(()),
        }
    }

    /// The branch a point belongs to when nobody named one: the one whose head it is, else the only one whose line
    /// holds it, else `main`.
    pub(crate) fn branch_of(&self, session: &SessionRow, place: Place) -> Result<BranchName> {
        let others = self.tx.branches(session.num)?;
        if others.is_empty() || session.main.place() == place {
            return Ok(BranchName::main());
        }
        if let Some(row) = others.iter().find(|row| row.head.place() == place) {
            return Ok(row.name.clone());
        }
        let mut holding = Vec::new();
        let meta = self.meta(place)?;
        for row in all_branches(self.tx, session)? {
            if Lines::of(self.tx, std::slice::from_ref(&row))?.hold(self.tx, &meta)? {
                holding.push(row.name);
            }
        }
        match <[BranchName; 1]>::try_from(holding) {
            Ok([only]) => Ok(only),
            Err(_) => Ok(BranchName::main()),
        }
    }

    /// A point a turn may start from, or a fork begin at.
    pub(crate) fn resumable_point(&self, session: &SessionRow, point: Point) -> Result<RecordMeta> {
        let meta = find_point(self.tx, session, point)?.ok_or_else(|| {
            Error::not_found(format!("the session has no point {point}: read its events or snapshots"))
        })?;
        match meta.kind {
            RecordKind::End | RecordKind::Edit | RecordKind::Step => Ok(meta),
            RecordKind::Begin | RecordKind::Void | RecordKind::Admin => Err(Error::not_resumable(format!(
                "point {point} is not the end of anything: start at a completed turn or a mid-turn step"
            ))),
        }
    }
}

/// The version the next artifact of a name gets: counted in the session, going on from where a fork began.
fn next_version(read: &dyn Read, session: &SessionRow, name: &str) -> Result<u64> {
    if let Some(last) = read.artifacts(session.num, Some(name))?.last() {
        return Ok(last.version + 1);
    }
    let (mut num, mut forked) = (session.num, session.forked.clone());
    while let Some((_, seq)) = forked {
        let Some(origin) = fork_origin(read, num, seq)? else { break };
        let rows = read.artifacts(origin, Some(name))?;
        if let Some(last) = rows.iter().rev().find(|row| row.seq <= seq) {
            return Ok(last.version + 1);
        }
        num = origin;
        forked = read.session(origin)?.and_then(|row| row.forked);
    }
    Ok(0)
}

/// The number of the session a fork was made from.
pub(crate) fn fork_origin(read: &dyn Read, num: u64, seq: u64) -> Result<Option<u64>> {
    let parents = read.segments(num)?.into_iter().filter_map(|segment| segment.parent);
    Ok(parents.filter(|parent| parent.num != num && parent.seq == seq).map(|parent| parent.num).next())
}

/// A row for a snapshot of a record.
pub(crate) fn snapshot_row(
    meta: &RecordMeta,
    new: &NewSnapshot,
    parent: Option<SnapshotId>,
    digest: Digest,
) -> SnapshotRow {
    SnapshotRow {
        id: new.id,
        num: meta.num,
        seq: meta.seq,
        parent,
        digest,
        index: meta.tip.index.saturating_sub(u64::from(meta.event.is_some())),
        turn_index: meta.turn_index(),
        event: meta.event,
        status: SnapshotStatus::Completed,
        finish: None,
        error: None,
        created_at: meta.at,
        updated_at: meta.at,
        label: new.label.clone(),
        turn: None,
    }
}
