//! The write path of turns: begin, step, end, and what can happen in between.

use super::body::{Body, encode};
use super::prepare::Prepared;
use super::rules::{
    Ctx, NO_LIMIT, NewRecord, Step, head_of, live_session, nearest_snapshot, no_branch, snapshot_row,
};
use super::sessions::{NewSession, create};
use super::tables::{
    Flow, Head, KeyRow, Only, Place, PutArtifact, Read, RecordMeta, RecordRow, Scan, SessionRow, SnapshotRow, TurnRow,
};
use crate::digest::Digest;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus};
use crate::state::{Scope, StateDelta, Tip, split_key};
use crate::store::{BeginTurn, Busy, Commit, Detach, EndTurn, IfMoved, Start, StepTurn, TurnRef};
use crate::turn::{
    Aborted, Begin, Begun, EndStatus, EndedTurn, Fence, NewSnapshot, Outcome, Receipt, RecordKind, TurnStatus,
};
use crate::{BranchName, Error, Point, Result, SnapshotId, TurnId};

/// A turn about to begin, made ready.
pub(crate) struct NewTurn {
    pub(crate) turn: BeginTurn,
    pub(crate) payload: Digest,
    pub(crate) create: Option<NewSession>,
    pub(crate) prepared: Option<Prepared>,
}

/// What the writer found out about a turn, beside what the caller asked.
pub(crate) struct Written<T> {
    pub(crate) answer: T,
    /// The record that was written and what it followed, for the cache.
    pub(crate) record: Option<(Place, RecordMeta)>,
    pub(crate) session: u64,
}

impl<T> Written<T> {
    fn nothing(session: u64, answer: T) -> Self {
        Self { answer, record: None, session }
    }
}

pub(crate) fn begin(ctx: &mut Ctx<'_>, new: &NewTurn) -> Result<Step<Written<Begin>>> {
    let request = &new.turn;
    let found = find_start(ctx, request)?;
    let known = found.as_ref().zip(request.key.as_ref()).map(|((session, _), key)| ctx.tx.key(session.num, key));
    let known = known.transpose()?.flatten();
    if let (None, Some(id)) = (&known, request.snapshot) {
        ctx.check_snapshot_id(id, None)?;
    }
    let (mut session, at) = match found {
        Some(found) => found,
        None => match &new.create {
            Some(_) if request.expect.is_some() => {
                return Err(Error::conflict("a head was expected, but there is no session: read again and decide"));
            }
            Some(_) if request.branch.as_ref().is_some_and(|branch| !branch.is_main()) => {
                return Err(no_branch(request.branch.as_ref().unwrap_or(&BranchName::main())));
            }
            Some(create_new) if request.snapshot.is_some() && request.snapshot == create_new.session.seed => {
                return Err(Error::invalid("the seed and the turn need snapshot ids of their own"));
            }
            Some(create_new) => (create(ctx, create_new)?, None),
            None => return Err(Error::not_found("there is no such session: create it first")),
        },
    };
    let num = session.num;
    if let Some(row) = known {
        return repeated(ctx, &mut session, &row, new);
    }
    let branch = match (&request.branch, &at) {
        (Some(branch), _) => branch.clone(),
        (None, Some(meta)) => ctx.branch_of(&session, meta.place())?,
        (None, None) => BranchName::main(),
    };
    let mut head = head_of(ctx.tx, &session, &branch)?.ok_or_else(|| no_branch(&branch))?;
    if let Some(expect) = request.expect
        && expect.seq() != head.seq
    {
        return Err(Error::conflict(format!(
            "the head of {branch:?} is at {}, not at {expect}: read again and decide",
            head.seq
        )));
    }
    let holder = ctx.lease_holder(&mut session, &mut head)?;
    let place = at.as_ref().map_or(head.place(), RecordMeta::place);
    let leased = place == head.place() && holder.is_none();
    if let (None, Some(holder), Busy::Refuse | Busy::Wait(_)) = (&at, &holder, request.busy) {
        return Err(Error::busy(format!(
            "turn {} holds the branch {branch:?}: wait for it, or begin on a side line",
            TurnId { session: num, begin: holder.begin }
        )));
    }
    let Some(prepared) = &new.prepared else { return Ok(Step::Rebase(place)) };
    if prepared.base.is_some_and(|base| base != place.seq) {
        return Ok(Step::Rebase(place));
    }
    let base = match at {
        Some(meta) => meta,
        None => ctx.meta(place)?,
    };

    let segment = if leased {
        ctx.lose(&mut session, &mut head)?;
        let segment = ctx.segment_after(&session, &head)?;
        head.lease = Some(session.next_seq);
        segment
    } else {
        ctx.tx.new_segment(num, Some(place))?
    };
    let seen = (!leased).then_some(head.seq);
    let tip = prepared.tip_after(&base.tip);
    let begin = session.next_seq;
    let record = NewRecord {
        segment,
        kind: RecordKind::Begin,
        turn: Some((begin, 1)),
        event: None,
        snapshot: None,
        width: prepared.width,
        tip: &tip,
        body: &prepared.bytes,
    };
    ctx.append(&mut session, record)?;
    let turn = TurnRow {
        num,
        begin,
        attempt: 1,
        branch: branch.clone(),
        agent: request.agent.clone(),
        invocation: request.invocation.clone(),
        key: request.key.clone(),
        start: place,
        segment: Some(segment),
        tip: begin,
        leased,
        seen,
        snapshot: request.snapshot,
        scopes: prepared.scopes.clone(),
        artifacts: Vec::new(),
        began_at: ctx.env.now,
        beat: ctx.env.beat(),
    };
    ctx.tx.put_turn(&turn)?;
    if let Some(id) = request.snapshot {
        ctx.tx.put_snapshot(&SnapshotRow::reserved(id, num, begin, ctx.env.now))?;
    }
    if let Some(key) = &request.key {
        ctx.tx.put_key(num, key, &KeyRow { turn: begin, payload: new.payload })?;
    }
    session.usage.add(&prepared.usage);
    if leased {
        ctx.put_head(&mut session, &branch, head)?;
    }
    ctx.tx.put_session(&session)?;
    let meta = ctx.meta(Place { num, segment, seq: begin })?;
    let begun = begun(&session, &turn, &tip);
    Ok(Step::Done(Written { answer: Begin::Begun(begun), record: Some((place, meta)), session: num }))
}

fn begun(session: &SessionRow, turn: &TurnRow, tip: &Tip) -> Begun {
    let id = TurnId { session: turn.num, begin: turn.begin };
    Begun {
        turn: id,
        fence: Fence { turn: id, attempt: turn.attempt },
        session: session.key.clone(),
        branch: turn.branch.clone(),
        from: Point::new(turn.start.seq),
        point: Point::new(turn.tip),
        turn_index: tip.turns,
        index: tip.index,
        snapshot_id: turn.snapshot,
        leased: turn.leased,
    }
}

/// Finds the session and, when the start names one, the point.
fn find_start(ctx: &Ctx<'_>, request: &BeginTurn) -> Result<Option<(SessionRow, Option<RecordMeta>)>> {
    match &request.start {
        Start::Session(key) => Ok(Some((live_session(ctx.tx, key)?, None))),
        Start::OpenOrCreate(create) => {
            let id = create.id.clone().ok_or_else(|| Error::internal("a session to open has no id"))?;
            let key = SessionKey::new(create.app.clone(), create.user.clone(), id);
            Ok(ctx.tx.find_session(&key)?.map(|row| (row, None)))
        }
        Start::Point { session, point } => {
            let session = live_session(ctx.tx, session)?;
            let meta = ctx.resumable_point(&session, *point)?;
            Ok(Some((session, Some(meta))))
        }
        Start::Snapshot { id, session } => {
            let unknown = || Error::not_found(format!("there is no snapshot {id}: list the session's snapshots"));
            let row = ctx.tx.snapshot(*id)?.filter(|row| !row.is_reserved()).ok_or_else(unknown)?;
            let owner = ctx.tx.session(row.num)?.filter(|owner| !owner.deleted).ok_or_else(unknown)?;
            if let Some(wanted) = session
                && *wanted != owner.key
            {
                if (&wanted.app, &wanted.user) != (&owner.key.app, &owner.key.user) {
                    return Err(unknown());
                }
                return Err(Error::invalid(format!(
                    "snapshot {id} does not belong to session {} (it belongs to {}): leave one of them out",
                    wanted.id, owner.key.id
                )));
            }
            if row.status != SnapshotStatus::Completed {
                return Err(Error::not_resumable(format!(
                    "snapshot {id} is not resumable: only completed ones are, start at its parent or at the head"
                )));
            }
            let meta = ctx.resumable_point(&owner, Point::new(row.seq))?;
            Ok(Some((owner, Some(meta))))
        }
    }
}

/// A key that was used before.
fn repeated(ctx: &mut Ctx<'_>, session: &mut SessionRow, row: &KeyRow, new: &NewTurn) -> Result<Step<Written<Begin>>> {
    if row.payload != new.payload {
        return Err(Error::conflict("that key was used for another input: use a fresh key for a new turn"));
    }
    let id = TurnId { session: session.num, begin: row.turn };
    let answer = match ctx.tx.turn(session.num, row.turn)? {
        Some(turn) if ctx.env.alive(&turn.beat) => Begin::Running(id),
        Some(turn) => {
            let (begun, place, meta) = take_over_row(ctx, session.clone(), turn)?;
            let written = Written { answer: Begin::Begun(begun), record: Some((place, meta)), session: session.num };
            return Ok(Step::Done(written));
        }
        None => match ended(ctx.tx, session, row.turn)? {
            Some(ended) => Begin::Ended(Box::new(ended)),
            None => return Err(Error::corrupt(format!("turn {id} has neither ended nor is it running"))),
        },
    };
    Ok(Step::Done(Written::nothing(session.num, answer)))
}

/// How a turn that is no longer running ended.
pub(crate) fn ended(read: &dyn Read, session: &SessionRow, begin: u64) -> Result<Option<EndedTurn>> {
    let mut found = None;
    let scan =
        Scan { num: session.num, from: begin, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
    read.scan(scan, &mut |row: RecordRow| {
        if row.meta.turn != Some(begin) || !matches!(row.meta.kind, RecordKind::End | RecordKind::Void) {
            return Ok(Flow::More);
        }
        let body = Body::decode(&row.body)?;
        let Some((status, end)) = body.end.and_then(|end| Some((end.status.status()?, end))) else {
            return Ok(Flow::More);
        };
        found = Some(EndedTurn {
            turn: TurnId { session: session.num, begin },
            session: session.key.clone(),
            status,
            outcome: end.outcome,
            point: Point::new(row.meta.seq),
            snapshot_id: row.meta.snapshot,
            digest: row.meta.tip.digests.state(),
        });
        Ok(Flow::Stop)
    })?;
    Ok(found)
}

/// The turn a fence is for, if the fence still holds.
fn fenced_turn(ctx: &Ctx<'_>, fence: &Fence) -> Result<(SessionRow, TurnRow)> {
    let TurnId { session: num, begin } = fence.turn;
    let gone = || Error::deleted("the session was deleted: stop, nothing more can be written to it");
    let session = ctx.tx.session(num)?.filter(|session| !session.deleted).ok_or_else(gone)?;
    if let Some(turn) = ctx.tx.turn(num, begin)? {
        if turn.attempt == fence.attempt && turn.segment.is_some() {
            return Ok((session, turn));
        }
        return Err(Error::fenced(format!("turn {} was taken over: stop, the other attempt owns it", fence.turn)));
    }
    match ended(ctx.tx, &session, begin)?.map(|ended| ended.status) {
        Some(EndStatus::Aborted) => {
            Err(Error::aborted(format!("turn {} was aborted: stop, its end is final", fence.turn)))
        }
        _ => Err(Error::fenced(format!("turn {} has ended already: begin a new one", fence.turn))),
    }
}

/// What a step or an end wrote.
struct Appended {
    meta: RecordMeta,
    puts: Vec<PutArtifact>,
}

fn append_to_turn(
    ctx: &mut Ctx<'_>,
    session: &mut SessionRow,
    turn: &TurnRow,
    prepared: &Prepared,
    record: TurnEntry,
) -> Result<Appended> {
    let segment = turn.segment.ok_or_else(|| Error::internal("a turn without a segment writes"))?;
    let new = NewRecord {
        segment,
        kind: record.kind,
        turn: Some((turn.begin, turn.attempt)),
        event: record.event,
        snapshot: record.snapshot,
        width: prepared.width,
        tip: &record.tip,
        body: &prepared.bytes,
    };
    let seq = ctx.append(session, new)?;
    ctx.write_blobs(session, prepared)?;
    session.usage.add(&prepared.usage);
    let meta = ctx.meta(Place { num: session.num, segment, seq })?;
    Ok(Appended { meta, puts: named_puts(prepared, seq) })
}

struct TurnEntry {
    kind: RecordKind,
    event: Option<SnapshotEvent>,
    snapshot: Option<SnapshotId>,
    tip: Tip,
}

fn named_puts(prepared: &Prepared, seq: u64) -> Vec<PutArtifact> {
    let named = prepared.puts.iter().filter_map(|put| Some((put.name.clone()?, put.digest)));
    named.map(|(name, digest)| PutArtifact { name, digest, seq }).collect()
}

pub(crate) fn step(ctx: &mut Ctx<'_>, request: &StepTurn, prepared: Option<&Prepared>) -> Result<Step<Written<Receipt>>> {
    let (mut session, mut turn) = fenced_turn(ctx, &request.fence)?;
    let base = turn.tip_place();
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == turn.tip)) else {
        return Ok(Step::Rebase(base));
    };
    if request.detach == Detach::Background && turn.snapshot.is_none() {
        return Err(Error::invalid("a turn needs a reserved snapshot id to go on in the background: begin it with one"));
    }
    if let Some(new) = &request.snapshot {
        ctx.check_snapshot_id(new.id, Some((turn.num, turn.begin)))?;
        if turn.snapshot == Some(new.id) {
            return Err(Error::invalid("a step's snapshot needs an id of its own, not the one reserved for the end"));
        }
    }
    let base_meta = ctx.meta(base)?;
    let tip = prepared.edit_tip(&base_meta.tip, request.event.is_some());
    let pending = (request.detach == Detach::Background).then_some(turn.snapshot).flatten();
    let named = request.snapshot.as_ref().map(|new| new.id);
    let parent = nearest_snapshot(ctx.tx, base, &mut |row, _| row.status == SnapshotStatus::Completed)?;
    let parent = parent.map(|row| row.id);
    let entry = TurnEntry { kind: RecordKind::Step, event: request.event, snapshot: named.or(pending), tip };
    let appended = append_to_turn(ctx, &mut session, &turn, prepared, entry)?;
    let digest = appended.meta.tip.digests.state();
    let mut last = appended.meta.clone();
    if let Some(new) = &request.snapshot {
        ctx.tx.put_snapshot(&snapshot_row(&appended.meta, new, parent, digest))?;
    }
    if let Some(id) = pending {
        if named.is_some() {
            // A record names one snapshot; the pending one gets a record of its own.
            last = append_empty_step(ctx, &mut session, &turn, id, &appended.meta.tip)?;
        }
        if ctx.tx.snapshot(id)?.is_none_or(|row| row.is_reserved()) {
            let mut row = snapshot_row(&last, &NewSnapshot::new(id), named.or(parent), digest);
            row.status = SnapshotStatus::Pending;
            row.event = None;
            row.index = last.tip.index;
            row.turn = Some(turn.begin);
            ctx.tx.put_snapshot(&row)?;
        }
    }
    turn.tip = last.seq;
    turn.scopes.then(&prepared.scopes);
    turn.artifacts.extend(appended.puts);
    turn.beat = ctx.env.beat();
    ctx.tx.put_turn(&turn)?;
    ctx.tx.put_session(&session)?;
    let receipt = Receipt {
        point: Point::new(appended.meta.seq),
        snapshot_id: named.or(pending),
        digest,
        on_head: false,
        at: ctx.env.now,
    };
    Ok(Step::Done(Written { answer: receipt, record: Some((base, appended.meta)), session: session.num }))
}

fn append_empty_step(
    ctx: &mut Ctx<'_>,
    session: &mut SessionRow,
    turn: &TurnRow,
    snapshot: SnapshotId,
    tip: &Tip,
) -> Result<RecordMeta> {
    let segment = turn.segment.ok_or_else(|| Error::internal("a turn without a segment writes"))?;
    let record = NewRecord {
        segment,
        kind: RecordKind::Step,
        turn: Some((turn.begin, turn.attempt)),
        event: None,
        snapshot: Some(snapshot),
        width: 1,
        tip,
        body: &encode(&Body::default().text()?)?,
    };
    let seq = ctx.append(session, record)?;
    ctx.meta(Place { num: session.num, segment, seq })
}

pub(crate) fn end(ctx: &mut Ctx<'_>, request: &EndTurn, prepared: Option<&Prepared>) -> Result<Step<Written<Receipt>>> {
    let (session, turn) = fenced_turn(ctx, &request.fence)?;
    let base = turn.tip_place();
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == turn.tip)) else {
        return Ok(Step::Rebase(base));
    };
    if let Some(new) = &request.snapshot {
        ctx.check_snapshot_id(new.id, Some((turn.num, turn.begin)))?;
    }
    let finish = Finish {
        status: request.status,
        outcome: &request.outcome,
        snapshot: request.snapshot.clone(),
        prepared,
    };
    finish_turn(ctx, session, turn, finish).map(Step::Done)
}

struct Finish<'a> {
    status: EndStatus,
    outcome: &'a Outcome,
    snapshot: Option<NewSnapshot>,
    prepared: &'a Prepared,
}

/// Ends a turn: its record, its snapshot, its scopes and its head, together.
fn finish_turn(ctx: &mut Ctx<'_>, mut session: SessionRow, turn: TurnRow, finish: Finish<'_>) -> Result<Written<Receipt>> {
    let segment = turn.segment.ok_or_else(|| Error::internal("a turn without a segment ends"))?;
    let base = turn.tip_place();
    let completed = finish.status == EndStatus::Completed;
    let base_meta = ctx.meta(base)?;
    let mut tip = finish.prepared.edit_tip(&base_meta.tip, completed);
    tip.turns += u64::from(completed);

    let pending = match turn.snapshot {
        Some(id) => ctx.tx.snapshot(id)?.filter(|row| row.status == SnapshotStatus::Pending && !row.is_reserved()),
        None => None,
    };
    let pending_new = pending.as_ref().map(|row| NewSnapshot { id: row.id, label: row.label.clone() });
    let snapshot = finish.snapshot.or(pending_new);
    let parent_from = if completed { base } else { turn.start };
    let parent = match &snapshot {
        Some(new) => nearest_snapshot(ctx.tx, parent_from, &mut |row, _| {
            row.id != new.id && row.status == SnapshotStatus::Completed
        })?,
        None => None,
    };

    let entry = TurnEntry {
        kind: if completed { RecordKind::End } else { RecordKind::Void },
        event: completed.then_some(SnapshotEvent::TurnEnd),
        snapshot: snapshot.as_ref().map(|new| new.id),
        tip,
    };
    let Appended { meta, puts } = append_to_turn(ctx, &mut session, &turn, finish.prepared, entry)?;
    let digest = meta.tip.digests.state();
    if let Some(new) = &snapshot {
        let mut row = snapshot_row(&meta, new, parent.map(|row| row.id), digest);
        row.event = Some(SnapshotEvent::TurnEnd);
        row.status = match finish.status {
            EndStatus::Completed => SnapshotStatus::Completed,
            EndStatus::Failed => SnapshotStatus::Failed,
            EndStatus::Aborted => SnapshotStatus::Aborted,
        };
        row.finish = finish.outcome.finish_reason;
        row.error = finish.outcome.error.clone();
        if let Some(pending) = pending.as_ref().filter(|pending| pending.id == new.id) {
            row.created_at = pending.created_at;
            row.label = row.label.or_else(|| pending.label.clone());
        }
        ctx.tx.put_snapshot(&row)?;
        if let Some(mut stale) = pending.filter(|pending| pending.id != new.id) {
            (stale.status, stale.turn) = (row.status, None);
            (stale.finish, stale.error, stale.updated_at) = (row.finish, row.error.clone(), row.updated_at);
            ctx.tx.put_snapshot(&stale)?;
        }
    }

    let mut on_head = false;
    if let Some(mut head) = head_of(ctx.tx, &session, &turn.branch)? {
        let mine = turn.leased && head.lease == Some(turn.begin);
        let free = mine || ctx.lease_holder(&mut session, &mut head)?.is_none();
        let may_move = mine || (!turn.leased && free && turn.seen == Some(head.seq));
        if completed && may_move {
            if !mine {
                ctx.lose(&mut session, &mut head)?;
            }
            head = Head { seq: meta.seq, num: meta.num, segment, tail: true, lease: None, turns: meta.tip.turns };
            on_head = true;
            if turn.branch.is_main() {
                session.interrupted = finish.outcome.finish_reason == Some(FinishReason::Interrupted);
            }
            ctx.put_head(&mut session, &turn.branch, head)?;
        } else if mine {
            head.lease = None;
            ctx.put_head(&mut session, &turn.branch, head)?;
        }
    }
    if completed {
        let mut scopes = turn.scopes.clone();
        scopes.then(&finish.prepared.scopes);
        ctx.write_scopes(&session.key.clone(), &scopes)?;
        ctx.write_versions(&session, &turn.artifacts)?;
        ctx.write_versions(&session, &puts)?;
    }
    ctx.release_snapshot(&turn)?;
    ctx.tx.delete_turn(turn.num, turn.begin)?;
    ctx.tx.put_session(&session)?;
    let receipt = Receipt {
        point: Point::new(meta.seq),
        snapshot_id: snapshot.map(|new| new.id),
        digest,
        on_head,
        at: ctx.env.now,
    };
    Ok(Written { answer: receipt, record: Some((base, meta)), session: session.num })
}

pub(crate) fn commit(ctx: &mut Ctx<'_>, request: &Commit, prepared: Option<&Prepared>) -> Result<Step<Written<Receipt>>> {
    let mut session = live_session(ctx.tx, &request.session)?;
    let num = session.num;
    let branch = request.branch.clone().unwrap_or_default();
    let mut head = head_of(ctx.tx, &session, &branch)?.ok_or_else(|| no_branch(&branch))?;
    let moved = request.expect.filter(|expect| expect.seq() != head.seq);
    let base = match (moved, request.if_moved) {
        (Some(expect), IfMoved::Refuse) => {
            return Err(Error::conflict(format!(
                "the head of {branch:?} is at {}, not at {expect}: read again and decide",
                head.seq
            )));
        }
        (Some(expect), IfMoved::SideLine) => ctx.resumable_point(&session, expect)?,
        (None, _) => {
            if let Some(holder) = ctx.lease_holder(&mut session, &mut head)? {
                return Err(Error::busy(format!(
                    "turn {} holds the branch {branch:?}: wait until it has ended",
                    TurnId { session: num, begin: holder.begin }
                )));
            }
            ctx.meta(head.place())?
        }
    };
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == base.seq)) else {
        return Ok(Step::Rebase(base.place()));
    };
    if let Some(new) = &request.snapshot {
        ctx.check_snapshot_id(new.id, None)?;
    }
    let on_head = moved.is_none();
    let segment = if on_head {
        ctx.lose(&mut session, &mut head)?;
        ctx.segment_after(&session, &head)?
    } else {
        ctx.tx.new_segment(num, Some(base.place()))?
    };
    let parent = match &request.snapshot {
        Some(_) => nearest_snapshot(ctx.tx, base.place(), &mut |row, _| row.status == SnapshotStatus::Completed)?,
        None => None,
    };
    let tip = prepared.edit_tip(&base.tip, request.event.is_some());
    let record = NewRecord {
        segment,
        kind: RecordKind::Edit,
        turn: None,
        event: request.event,
        snapshot: request.snapshot.as_ref().map(|new| new.id),
        width: prepared.width,
        tip: &tip,
        body: &prepared.bytes,
    };
    let seq = ctx.append(&mut session, record)?;
    let meta = ctx.meta(Place { num, segment, seq })?;
    let digest = tip.digests.state();
    if let Some(new) = &request.snapshot {
        ctx.tx.put_snapshot(&snapshot_row(&meta, new, parent.map(|row| row.id), digest))?;
    }
    ctx.write_blobs(&session, prepared)?;
    ctx.write_versions(&session, &named_puts(prepared, seq))?;
    ctx.write_scopes(&session.key.clone(), &prepared.scopes)?;
    session.usage.add(&prepared.usage);
    if on_head {
        let head = Head { seq, num, segment, tail: true, lease: None, turns: tip.turns };
        ctx.put_head(&mut session, &branch, head)?;
    }
    ctx.tx.put_session(&session)?;
    let receipt = Receipt {
        point: Point::new(seq),
        snapshot_id: request.snapshot.as_ref().map(|new| new.id),
        digest,
        on_head,
        at: ctx.env.now,
    };
    Ok(Step::Done(Written { answer: receipt, record: Some((base.place(), meta)), session: num }))
}

/// Finds the turn somebody means; a session that is gone has none.
fn find_turn(ctx: &Ctx<'_>, which: &TurnRef) -> Result<(SessionRow, u64)> {
    let unknown = || Error::not_found("there is no such turn: list the running ones, or check the id");
    let live = |num: u64| ctx.tx.session(num)?.filter(|session| !session.deleted).ok_or_else(unknown);
    match which {
        TurnRef::Turn(id) => {
            let session = live(id.session)?;
            let meta = ctx.tx.meta(session.num, id.begin)?.ok_or_else(unknown)?;
            if meta.kind != RecordKind::Begin || meta.turn != Some(id.begin) {
                return Err(unknown());
            }
            Ok((session, id.begin))
        }
        TurnRef::Snapshot(id) => {
            let row = ctx.tx.snapshot(*id)?.ok_or_else(unknown)?;
            if let Some(turn) = row.turn {
                return Ok((live(row.num)?, turn));
            }
            let meta = ctx.tx.meta(row.num, row.seq)?.ok_or_else(unknown)?;
            Ok((live(row.num)?, meta.turn.ok_or_else(unknown)?))
        }
        TurnRef::Invocation(key, invocation) => {
            let session = ctx.tx.find_session(key)?.ok_or_else(unknown)?;
            let turns = ctx.tx.turns(Some(session.num))?;
            let turn = turns.iter().rev().find(|turn| turn.invocation == *invocation).ok_or_else(unknown)?;
            let begin = turn.begin;
            Ok((session, begin))
        }
    }
}

pub(crate) fn abort(ctx: &mut Ctx<'_>, which: &TurnRef, prepared: &Prepared) -> Result<Written<Aborted>> {
    let (session, begin) = find_turn(ctx, which)?;
    let num = session.num;
    let id = TurnId { session: num, begin };
    let Some(mut turn) = ctx.tx.turn(num, begin)? else {
        let ended = ended(ctx.tx, &session, begin)?
            .ok_or_else(|| Error::corrupt(format!("turn {id} has neither ended nor is it running")))?;
        return Ok(Written::nothing(num, Aborted { turn: id, before: ended.status.into() }));
    };
    let before = if ctx.env.alive(&turn.beat) { TurnStatus::Running } else { TurnStatus::Dead };
    if turn.segment.is_none() {
        // Its branch was taken while it was dead; it ends on a stretch of its own.
        turn.segment = Some(ctx.tx.new_segment(num, Some(turn.start))?);
        turn.tip = turn.start.seq;
    }
    let outcome = Outcome::finished(FinishReason::Aborted);
    let snapshot = turn.snapshot.map(NewSnapshot::new);
    let finish = Finish { status: EndStatus::Aborted, outcome: &outcome, snapshot, prepared };
    let written = finish_turn(ctx, session, turn, finish)?;
    Ok(Written { answer: Aborted { turn: id, before }, record: None, session: written.session })
}

pub(crate) fn renew(ctx: &mut Ctx<'_>, fence: &Fence) -> Result<()> {
    let (_, mut turn) = fenced_turn(ctx, fence)?;
    turn.beat = ctx.env.beat();
    ctx.tx.put_turn(&turn)
}

pub(crate) fn take_over(ctx: &mut Ctx<'_>, id: TurnId) -> Result<Written<Begun>> {
    let (session, begin) = find_turn(ctx, &TurnRef::Turn(id))?;
    let Some(turn) = ctx.tx.turn(session.num, begin)? else {
        return Err(Error::conflict(format!("turn {id} has ended already: there is nothing to take over")));
    };
    if ctx.env.alive(&turn.beat) {
        return Err(Error::busy(format!("turn {id} is alive: abort it, or wait until its lease runs out")));
    }
    let num = session.num;
    let (begun, place, meta) = take_over_row(ctx, session, turn)?;
    Ok(Written { answer: begun, record: Some((place, meta)), session: num })
}

/// Starts the next attempt at a dead turn: the same start, the same input, a higher fence.
fn take_over_row(ctx: &mut Ctx<'_>, mut session: SessionRow, mut turn: TurnRow) -> Result<(Begun, Place, RecordMeta)> {
    let begin = ctx
        .tx
        .record(turn.num, turn.begin)?
        .ok_or_else(|| Error::corrupt(format!("the begin of turn {} is missing", turn.begin)))?;
    let body = Body::decode(&begin.body)?;
    ctx.void_attempt_if_open(&mut session, &mut turn)?;
    let mut head = head_of(ctx.tx, &session, &turn.branch)?;
    let holds_lease = head.as_ref().is_some_and(|head| head.lease == Some(turn.begin));
    let at_start = head.as_mut().filter(|head| head.place() == turn.start);
    let free = match at_start {
        Some(head) => ctx.lease_holder(&mut session, head)?.is_none(),
        None => false,
    };
    let segment = match (&mut head, turn.segment) {
        (Some(_), Some(segment)) if holds_lease => segment,
        (Some(head), _) if free => {
            ctx.lose(&mut session, head)?;
            head.lease = Some(turn.begin);
            turn.leased = true;
            ctx.segment_after(&session, head)?
        }
        _ => {
            turn.leased = false;
            ctx.tx.new_segment(session.num, Some(turn.start))?
        }
    };
    turn.segment = Some(segment);
    for event in &body.events {
        let pick = |key: &String| matches!(split_key(key).0, Scope::App | Scope::User);
        turn.scopes.then(&StateDelta {
            set: event.state_delta.iter().filter(|(k, _)| pick(k)).map(|(k, v)| (k.clone(), v.clone())).collect(),
            remove: event.state_removed.iter().filter(|k| pick(k)).cloned().collect(),
        });
    }
    let record = NewRecord {
        segment,
        kind: RecordKind::Begin,
        turn: Some((turn.begin, turn.attempt)),
        event: None,
        snapshot: None,
        width: begin.meta.width,
        tip: &begin.meta.tip,
        body: &begin.body,
    };
    let seq = ctx.append(&mut session, record)?;
    turn.tip = seq;
    turn.beat = ctx.env.beat();
    ctx.tx.put_turn(&turn)?;
    if let Some(head) = head.filter(|_| turn.leased) {
        let branch = turn.branch.clone();
        ctx.put_head(&mut session, &branch, head)?;
    }
    ctx.tx.put_session(&session)?;
    let meta = ctx.meta(Place { num: session.num, segment, seq })?;
    Ok((begun(&session, &turn, &meta.tip), turn.start, meta))
}

impl Ctx<'_> {
    /// Gives back a reserved snapshot id that the turn did not use.
    pub(crate) fn release_snapshot(&mut self, turn: &TurnRow) -> Result<()> {
        let Some(id) = turn.snapshot else { return Ok(()) };
        if self.tx.snapshot(id)?.is_some_and(|row| row.is_reserved() && row.turn == Some(turn.begin)) {
            self.tx.remove_snapshot(id)?;
        }
        Ok(())
    }

    /// Voids the last attempt; one that already lost its branch has been voided then.
    fn void_attempt_if_open(&mut self, session: &mut SessionRow, turn: &mut TurnRow) -> Result<()> {
        if turn.segment.is_some() { self.void_attempt(session, turn) } else { Ok(()) }
    }
}
