//! Edits: changes outside turns.

use super::prepare::Prepared;
use super::rules::{Ctx, NewRecord, Step, head_of, live_session, nearest_snapshot, no_branch, snapshot_row};
use super::tables::Head;
use super::turns::{Written, named_puts};
use crate::snapshot::SnapshotStatus;
use crate::store::{Commit, IfMoved};
use crate::turn::{Receipt, RecordKind};
use crate::{Error, Point, Result, TurnId};

pub(crate) fn commit(
    ctx: &mut Ctx<'_>,
    request: &Commit,
    prepared: Option<&Prepared>,
) -> Result<Step<Written<Receipt>>> {
    let mut session = live_session(ctx.tx, &request.session)?;
    let num = session.num;
    let branch = request.branch.clone().unwrap_or_default();
    let mut head = head_of(ctx.tx, &session, &branch)?.ok_or_else(|| no_branch(&branch))?;
    let moved = request.expect.filter(|expect| expect.seq() != head.seq);
    let holder = match moved {
        Some(_) => None,
        None => ctx.lease_holder(&mut session, &mut head)?,
    };
    let base = match (moved, request.if_moved, &holder) {
        (Some(expect), IfMoved::Refuse, _) => {
            return Err(Error::conflict(format!(
                "the head of {branch:?} is at {}, not at {expect}: read again and decide",
                head.seq
            )));
        }
        (Some(expect), IfMoved::SideLine, _) => ctx.resumable_point(&session, expect)?,
        (None, IfMoved::Refuse, Some(holder)) => {
            return Err(Error::busy(format!(
                "turn {} holds the branch {branch:?}: wait until it has ended",
                TurnId { session: num, begin: holder.begin }
            )));
        }
        (None, _, _) => ctx.meta(head.place())?,
    };
    let Some(prepared) = prepared.filter(|p| p.base.is_none_or(|seq| seq == base.seq)) else {
        return Ok(Step::Rebase(base.place()));
    };
    if let Some(new) = &request.snapshot {
        ctx.check_snapshot_id(new.id, None)?;
    }
    let on_head = moved.is_none() && holder.is_none();
    let segment = if on_head {
        ctx.lose(&mut session, &mut head)?;
        ctx.segment_after(&session, &mut head)?
    } else {
        ctx.tx.new_segment(num, Some(base.place()))?
    };
    let parent = match &request.snapshot {
        Some(_) => {
            nearest_snapshot(ctx.tx, &session, base.place(), &mut |row, _| row.status == SnapshotStatus::Completed)?
        }
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
    let meta = ctx.append(&mut session, record)?;
    let seq = meta.seq;
    let digest = tip.digests.state();
    if let Some(new) = &request.snapshot {
        ctx.tx.put_snapshot(&snapshot_row(&meta, new, parent.map(|row| row.id), digest))?;
    }
    ctx.write_blobs(&session, prepared)?;
    ctx.write_versions(&session, &named_puts(prepared, seq))?;
    ctx.write_scopes(&session.key.clone(), &prepared.scopes)?;
    session.usage.add(&prepared.usage);
    if on_head {
        let head = Head { seq, num, segment, next: Some(segment), lease: None, turns: tip.turns };
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
    Ok(Step::Done(Written { answer: receipt, record: Some((base.place(), meta)), blank: None, session: num }))
}
