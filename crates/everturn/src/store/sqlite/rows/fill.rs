//! Filling the tables with what the journal says.

use rusqlite::params;

use super::super::codec::{self, Stored as _, int};
use super::super::journal::KEPT;
use super::super::pack::pack;
use super::super::sql::{Held, Sql};
use super::{Records, Rows};
use crate::Result;
use crate::json::Json;
use crate::store::engine::{SegmentRow, SessionRow, SnapshotRow};

/// What a place says whose record names a snapshot: with one bit of it flipped, it does not say that there is none.
const NAMED: i64 = 0x5555;

impl Rows<'_> {
    /// Fills the tables; the journal begins anew.
    pub(super) fn fill(&mut self) -> Result<()> {
        match self.recent.is_empty() && self.changes.is_empty() {
            true => Ok(()),
            false => self.fill_all(),
        }
    }

    pub(super) fn fill_all(&mut self) -> Result<()> {
        self.store_records()?;
        let (sql, recent) = (self.sql, &*self.recent);
        // In the order of their keys, so that neighbours share a page.
        let put = Held::new("put_session");
        for row in recent.sessions() {
            put_session(&sql, &put, row)?;
        }
        for row in recent.segments.values() {
            put_segment(&sql, row)?;
        }
        let (put_place, put_named) = (Held::new("put_place"), Held::new("put_snapshot"));
        for ((num, seq), (pos, meta)) in &recent.records {
            let named = if meta.snapshot.is_some() { NAMED } else { 0 };
            put_place.run(&sql, params![int(*num), int(*seq), int(meta.segment), named, int(*pos)])?;
        }
        for ((num, begin), row) in &recent.turns {
            match row {
                Some(row) => drop(sql.run("put_turn", params![int(*num), int(*begin), pack(&**row), row.streams])?),
                // One that began since the tables were filled is not in there.
                None if recent.records.contains_key(&(*num, *begin)) => {}
                None => drop(sql.run("delete_turn", [int(*num), int(*begin)])?),
            }
        }
        let mut snapshots: Vec<_> = recent.snapshots.iter().collect();
        snapshots.sort_by_key(|(id, _)| **id);
        for (id, row) in snapshots {
            match row {
                Some(row) => put_snapshot(&sql, &put_named, row)?,
                None => drop(sql.run("remove_snapshot", [id.uuid().as_bytes().as_slice()])?),
            }
        }
        if recent.is_journal_too_long() {
            sql.run("remove_slots", [int(KEPT)])?;
        }
        self.recent.filled();
        let put = &self.hot.put_slot;
        self.recent.begin_lap(&mut |at, content| put.run(&sql, params![int(at), content]).map(drop))?;
        // What this transaction writes after this is an entry like any other.
        self.changes.clear();
        self.journaled = self.recent.position();
        self.records = Records::Journal { count: 0, bytes: 0 };
        Ok(())
    }
}

fn put_session<'c>(sql: &Sql<'c>, statement: &Held<'c>, row: &SessionRow) -> Result<()> {
    let labels = if row.labels.is_empty() { "[]".to_owned() } else { Json::from_value(&row.labels)?.to_string() };
    let head = &row.main;
    statement.run(
        sql,
        params![
            int(row.num),
            int(row.tree),
            row.key.app.as_str(),
            row.key.user.as_str(),
            row.key.id.as_str(),
            row.agent.as_ref().map(|agent| agent.as_str()),
            row.title,
            labels,
            row.metadata.as_str(),
            row.created_at.as_micros(),
            row.updated_at.as_micros(),
            int(row.next_seq),
            int(head.seq),
            int(head.num),
            int(head.segment),
            head.next.map(int),
            head.lease.map(int),
            int(head.turns),
            codec::usage_bytes(&row.usage),
            codec::usage_bytes(&row.inherited),
            row.interrupted,
            row.forked.as_ref().map(|(id, _)| id.as_str()),
            row.forked.as_ref().map(|(_, seq)| int(*seq)),
            row.deleted,
            int(row.created_pos),
            int(row.updated_pos),
        ],
    )?;
    Ok(())
}

fn put_segment(sql: &Sql<'_>, row: &SegmentRow) -> Result<()> {
    let parent = row.parent.map(|place| (int(place.num), int(place.segment), int(place.seq)));
    let (num, segment, seq) = (parent.map(|p| p.0), parent.map(|p| p.1), parent.map(|p| p.2));
    sql.run("put_segment", params![int(row.id), int(row.num), num, segment, seq])?;
    Ok(())
}

fn put_snapshot<'c>(sql: &Sql<'c>, statement: &Held<'c>, row: &SnapshotRow) -> Result<()> {
    let error = row.error.as_ref().map(Json::written).transpose()?;
    statement.run(
        sql,
        params![
            row.id.uuid().as_bytes().as_slice(),
            int(row.num),
            int(row.seq),
            row.parent.map(|id| *id.uuid().as_bytes()),
            row.digest.as_bytes().as_slice(),
            int(row.index),
            int(row.turn_index),
            row.event.map(|event| event.number()),
            row.status.number(),
            row.finish.map(|finish| finish.number()),
            error.as_ref().map(Json::as_str),
            row.created_at.as_micros(),
            row.updated_at.as_micros(),
            row.label,
            row.turn.map(int),
        ],
    )?;
    Ok(())
}
