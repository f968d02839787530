//! The write path of turns: what they write on their way, how they end, and who may still write.

use super::body::{Body, encode};
use super::line::Lines;
use super::prepare::Prepared;
use super::rules::{Ctx, NO_LIMIT, NewRecord, Step, all_branches, head_of, nearest_snapshot, snapshot_row};
use super::tables::{Flow, Head, Only, Place, PutArtifact, Read, RecordMeta, RecordRow, Scan, SessionRow, TurnRow};
use super::walk::scan_whole;
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus};
use crate::state::Tip;
use crate::store::{Detach, EndTurn, StepTurn, TurnRef};
use crate::turn::{Aborted, EndStatus, EndedTurn, Fence, NewSnapshot, Outcome, Receipt, RecordKind, TurnStatus};
use crate::{Error, Point, Result, SessionId, SnapshotId, TurnId};

/// What the writer found out about a turn, beside what the caller asked.
pub(crate) struct Written<T> {
    pub(crate) answer: T,
    /// The record that was written and what it followed, for the cache.
    pub(crate) record: Option<(Place, RecordMeta)>,
    /// What it followed, where there is nothing in that state: the session's own start, most often.
    pub(crate) blank: Option<(SessionId, Tip)>,
    pub(crate) session: u64,
}

impl<T> Written<T> {
    pub(crate) fn nothing(session: u64, answer: T) -> Self {
        Self { answer, record: None, blank: None, session }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Written<U> {
        let Self { answer, record, blank, session } = self;
        Written { answer: change(answer), record, blank, session }
    }
}

/// How a turn that is no longer running ended.
pub(crate) fn ended(read: &dyn Read, session: &SessionRow, begin: u64) -> Result<Option<EndedTurn>> {
    let Some((meta, status, outcome)) = last_record(read, session.num, begin)? else { return Ok(None) };
    Ok(Some(EndedTurn {
        turn: TurnId { session: session.num, begin },
        session: session.key.clone(),
        status,
        outcome,
        point: Point::new(meta.seq),
        snapshot_id: meta.snapshot,
        digest: meta.tip.digests.state(),
        on_line: Lines::of(read, &all_branches(read, session)?)?.hold(read, &meta)?,
    }))
}

/// The record that ended a turn, and what it says: the last one, where a lost turn was run again.
pub(crate) fn last_record(read: &dyn Read, num: u64, begin: u64) -> Result<Option<(RecordMeta, EndStatus, Outcome)>> {
    let mut found = None;
    let scan = Scan { num, from: begin, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
    scan_whole(read, scan, &mut |row: RecordRow| {
        if row.meta.turn != Some(begin) || !matches!(row.meta.kind, RecordKind::End | RecordKind::Void) {
            return Ok(Flow::More);
        }
        let body = Body::decode(&row.body)?;
        let Some((status, end)) = body.end.and_then(|end| Some((end.status.status()?, end))) else {
            return Ok(Flow::More);
        };
        let flow = if end.outcome.lost { Flow::More } else { Flow::Stop };
        found = Some((row.meta, status, end.outcome));
        Ok(flow)
    })?;
    Ok(found)
}

/// The turn a fence is for, if the fence still holds.
pub(crate) fn fenced_turn(ctx: &Ctx<'_>, fence: &Fence) -> Result<(SessionRow, TurnRow)> {
    let taken = || Error::fenced(format!("turn {} was taken over: stop, the other attempt owns it", fence.turn));
    let (session, turn) = turn_of(ctx, fence)?;
    // One whose branch was taken has nowhere to write to.
    if turn.segment.is_some() { Ok((session, turn)) } else { Err(taken()) }
}

/// The turn that is said to be lost: by its own writer, or by whoever has found it dead.
fn lost_turn(ctx: &Ctx<'_>, request: &EndTurn) -> Result<(SessionRow, TurnRow)> {
    if request.status != EndStatus::Failed {
        return Err(Error::invalid("a turn that is lost has failed: end it as such"));
    }
    let (session, turn) = turn_of(ctx, &request.fence)?;
    if turn.beat.owner != *ctx.env.owner && ctx.env.alive(&turn.beat) {
        return Err(Error::busy(format!(
            "turn {} is alive: abort it, or wait until its lease runs out",
            request.fence.turn
        )));
    }
    Ok((session, turn))
}

/// The turn a fence is for, if no later attempt has been made.
fn turn_of(ctx: &Ctx<'_>, fence: &Fence) -> Result<(SessionRow, TurnRow)> {
    let TurnId { session: num, begin } = fence.turn;
    let gone = || Error::deleted("the session was deleted: stop, nothing more can be written to it");
    let session = ctx.tx.session(num)?.filter(|session| !session.deleted).ok_or_else(gone)?;
    if let Some(turn) = ctx.tx.turn(num, begin)? {
        if turn.attempt == fence.attempt {
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
    let meta = ctx.append(session, new)?;
    ctx.write_blobs(session, prepared)?;
    session.usage.add(&prepared.usage);
    let puts = named_puts(prepared, meta.seq);
    Ok(Appended { meta, puts })
}

struct TurnEntry {
    kind: RecordKind,
    event: Option<SnapshotEvent>,
    snapshot: Option<SnapshotId>,
    tip: Tip,
}

pub(crate) fn named_puts(prepared: &Prepared, seq: u64) -> Vec<PutArtifact> {
    let named = prepared.puts.iter().filter_map(|put| Some((put.name.clone()?, put.digest)));
    named.map(|(name, digest)| PutArtifact { name, digest, seq }).collect()
}

pub(crate) fn step(
    ctx: &mut Ctx<'_>,
    request: &StepTurn,
    prepared: Option<&Prepared>,
) -> Result<Step<Written<Receipt>>> {
    let (mut session, mut turn) = fenced_turn(ctx, &request.fence)?;
    let base = turn.tip_place();
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == turn.tip)) else {
        return Ok(Step::Rebase(base));
    };
    if request.detach == Detach::Background && turn.snapshot.is_none() {
        return Err(Error::invalid(
            "a turn needs a reserved snapshot id to go on in the background: begin it with one",
        ));
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
    let parent = nearest_snapshot(ctx.tx, &session, base, &mut |row, _| row.status == SnapshotStatus::Completed)?;
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
    Ok(Step::Done(Written { answer: receipt, record: Some((base, appended.meta)), blank: None, session: session.num }))
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
    ctx.append(session, record)
}

pub(crate) fn end(ctx: &mut Ctx<'_>, request: &EndTurn, prepared: Option<&Prepared>) -> Result<Step<Written<Receipt>>> {
    let (session, mut turn) = match request.outcome.lost {
        true => lost_turn(ctx, request)?,
        false => fenced_turn(ctx, &request.fence)?,
    };
    let base = turn.tip_place();
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == turn.tip)) else {
        return Ok(Step::Rebase(base));
    };
    if let Some(new) = &request.snapshot {
        ctx.check_snapshot_id(new.id, Some((turn.num, turn.begin)))?;
    }
    ctx.give_segment(&mut turn)?;
    let finish =
        Finish { status: request.status, outcome: &request.outcome, snapshot: request.snapshot.clone(), prepared };
    finish_turn(ctx, session, turn, finish).map(Step::Done)
}

struct Finish<'a> {
    status: EndStatus,
    outcome: &'a Outcome,
    snapshot: Option<NewSnapshot>,
    prepared: &'a Prepared,
}

/// Ends a turn: its record, its snapshot, its scopes and its head, together.
fn finish_turn(
    ctx: &mut Ctx<'_>,
    mut session: SessionRow,
    turn: TurnRow,
    finish: Finish<'_>,
) -> Result<Written<Receipt>> {
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
        Some(new) => nearest_snapshot(ctx.tx, &session, parent_from, &mut |row, _| {
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
            head =
                Head { seq: meta.seq, num: meta.num, segment, next: Some(segment), lease: None, turns: meta.tip.turns };
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
    ctx.end_stream(&turn)?;
    ctx.tx.put_session(&session)?;
    let receipt = Receipt {
        point: Point::new(meta.seq),
        snapshot_id: snapshot.map(|new| new.id),
        digest,
        on_head,
        at: ctx.env.now,
    };
    Ok(Written { answer: receipt, record: Some((base, meta)), blank: None, session: session.num })
}

/// Finds the turn somebody means; a session that is gone has none.
pub(crate) fn find_turn(ctx: &Ctx<'_>, which: &TurnRef) -> Result<(SessionRow, u64)> {
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
    ctx.give_segment(&mut turn)?;
    let outcome = Outcome::finished(FinishReason::Aborted);
    let snapshot = turn.snapshot.map(NewSnapshot::new);
    let finish = Finish { status: EndStatus::Aborted, outcome: &outcome, snapshot, prepared };
    let written = finish_turn(ctx, session, turn, finish)?;
    Ok(Written::nothing(written.session, Aborted { turn: id, before }))
}

pub(crate) fn renew(ctx: &mut Ctx<'_>, fence: &Fence) -> Result<()> {
    let (_, mut turn) = fenced_turn(ctx, fence)?;
    turn.beat = ctx.env.beat();
    ctx.tx.put_turn(&turn)
}

impl Ctx<'_> {
    /// A turn whose branch was taken while it was dead ends on a stretch of its own.
    fn give_segment(&mut self, turn: &mut TurnRow) -> Result<()> {
        if turn.segment.is_none() {
            turn.segment = Some(self.tx.new_segment(turn.num, Some(turn.start))?);
            turn.tip = turn.start.seq;
        }
        Ok(())
    }

    /// Gives back a reserved snapshot id that the turn did not use.
    pub(crate) fn release_snapshot(&mut self, turn: &TurnRow) -> Result<()> {
        let Some(id) = turn.snapshot else { return Ok(()) };
        if self.tx.snapshot(id)?.is_some_and(|row| row.is_reserved() && row.turn == Some(turn.begin)) {
            self.tx.remove_snapshot(id)?;
        }
        Ok(())
    }
}
