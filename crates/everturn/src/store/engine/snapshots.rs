//! Reading snapshots: what they name, and what is found out about them only when they are read.

use super::line::Lines;
use super::line::find_point;
use super::page::Room;
use super::rules::{Env, NO_LIMIT, all_branches, live_session, named_snapshot, nearest_snapshot};
use super::tables::{Flow, Only, Read, RecordMeta, Scan, SessionRow, SnapshotRow};
use crate::snapshot::{Snapshot, SnapshotStatus};
use crate::store::{Cursor, ListSnapshots, Orphans, Page, SnapshotOrder, SnapshotRef};
use crate::{Error, Point, Result};

pub(crate) fn snapshot(read: &dyn Read, env: &Env<'_>, which: &SnapshotRef) -> Result<Option<Snapshot>> {
    let row = match which {
        SnapshotRef::Id(id) => read.snapshot(*id)?.filter(|row| !row.is_reserved()),
        SnapshotRef::Digest(key, digest) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            let mut found = None;
            for branch in all_branches(read, &session)? {
                found = nearest_snapshot(read, &session, branch.head.place(), &mut |row, _| {
                    row.digest == *digest && row.num == session.num && row.status == SnapshotStatus::Completed
                })?;
                if found.is_some() {
                    break;
                }
            }
            found
        }
        SnapshotRef::Latest(key) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            match newest_pending(read, &session)? {
                Some(row) => Some(row),
                None => nearest_snapshot(read, &session, session.main.place(), &mut |row, _| {
                    row.num == session.num && row.status == SnapshotStatus::Completed
                })?,
            }
        }
        SnapshotRef::LatestResumable(key) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            nearest_snapshot(read, &session, session.main.place(), &mut |row, _| {
                row.num == session.num && row.status == SnapshotStatus::Completed
            })?
        }
        SnapshotRef::Nearest(key, point) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            let Some(meta) = find_point(read, &session, *point)? else { return Ok(None) };
            nearest_snapshot(read, &session, meta.place(), &mut |row, _| row.status == SnapshotStatus::Completed)?
        }
    };
    let Some(row) = row else { return Ok(None) };
    let Some(session) = read.session(row.num)?.filter(|session| !session.deleted) else { return Ok(None) };
    let lines = Lines::of(read, &all_branches(read, &session)?)?;
    show_snapshot(read, env, &session, &lines, row).map(Some)
}

fn newest_pending(read: &dyn Read, session: &SessionRow) -> Result<Option<SnapshotRow>> {
    let mut newest: Option<SnapshotRow> = None;
    for turn in read.turns(Some(session.num))? {
        let Some(id) = turn.snapshot else { continue };
        if let Some(row) = read.snapshot(id)?
            && row.status == SnapshotStatus::Pending
            && !row.is_reserved()
            && newest.as_ref().is_none_or(|newest| newest.seq < row.seq)
        {
            newest = Some(row);
        }
    }
    Ok(newest)
}

/// A snapshot as it is shown. Whether it is orphaned or expired is found out now: neither is ever written.
pub(crate) fn show_snapshot(
    read: &dyn Read,
    env: &Env<'_>,
    session: &SessionRow,
    lines: &Lines,
    row: SnapshotRow,
) -> Result<Snapshot> {
    let turn = match (row.status, row.turn) {
        (SnapshotStatus::Pending, Some(turn)) => read.turn(row.num, turn)?,
        _ => None,
    };
    let status = match row.status {
        SnapshotStatus::Pending if turn.as_ref().is_none_or(|turn| !env.alive(&turn.beat)) => SnapshotStatus::Expired,
        status => status,
    };
    let orphaned = match row.status {
        // A running turn is not yet on any line; it is not off them either.
        SnapshotStatus::Pending => false,
        _ => match read.meta(row.num, row.seq)? {
            Some(meta) => !lines.hold(read, &meta)?,
            None => {
                let (seq, num) = (row.seq, row.num);
                return Err(Error::corrupt(format!("record {seq} of session number {num}, a snapshot's, is missing")));
            }
        },
    };
    Ok(Snapshot {
        snapshot_id: row.id,
        session_id: session.key.id.clone(),
        session: Some(session.key.clone()),
        point: Point::new(row.seq),
        parent_id: row.parent,
        digest: row.digest,
        index: row.index,
        turn_index: row.turn_index,
        event: row.event,
        status,
        finish_reason: row.finish,
        error: row.error,
        created_at: row.created_at,
        updated_at: row.updated_at,
        heartbeat_at: turn.map(|turn| turn.beat.at),
        orphaned,
        label: row.label,
        state: None,
    })
}

pub(crate) fn snapshots(read: &dyn Read, env: &Env<'_>, query: &ListSnapshots) -> Result<Page<Snapshot>> {
    let mut room = Room::new(query.limit, query.bytes)?;
    let session = live_session(read, &query.session)?;
    let newest_first = query.order == SnapshotOrder::Newest;
    let (mut from, mut to) = (0, NO_LIMIT);
    if let Some(cursor) = &query.cursor {
        let [seq] = cursor.numbers('s')?;
        if newest_first { to = seq.saturating_sub(1) } else { from = seq.saturating_add(1) }
    }
    let lines = Lines::of(read, &all_branches(read, &session)?)?;
    let mut items: Vec<Snapshot> = Vec::new();
    let mut more = false;
    let scan = Scan { num: session.num, from, to, segment: None, only: Only::Snapshots, newest_first };
    read.scan_meta(scan, &mut |meta: RecordMeta| {
        let Some(row) = named_snapshot(read, &meta)? else { return Ok(Flow::More) };
        if row.num != meta.num || row.seq != meta.seq {
            return Ok(Flow::More);
        }
        let shown = show_snapshot(read, env, &session, &lines, row)?;
        if shown.orphaned && query.orphans == Orphans::Exclude {
            return Ok(Flow::More);
        }
        if !room.take(&shown)? {
            more = true;
            return Ok(Flow::Stop);
        }
        items.push(shown);
        Ok(Flow::More)
    })?;
    let next = items.last().filter(|_| more).map(|last| Cursor::of('s', &[last.point.seq()]));
    Ok(Page { items, next })
}
