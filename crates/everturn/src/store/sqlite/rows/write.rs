//! Writing: records and what changes with every turn into the journal, what is rare into its table.

use std::collections::BTreeSet;

use rusqlite::params;

use super::super::change::Change;
use super::super::codec::{self, Stored as _, Uint, column, int};
use super::read::scope_number;
use super::{FEW_BYTES, Records, Rows};
use crate::digest::Digest;
use crate::json::Json;
use crate::state::Scope;
use crate::store::engine::{
    ArtifactRow, BranchRow, KeyRow, PackMeta, PackRow, Place, RecordMeta, SegmentRow, SessionRow, SnapshotRow,
    StreamRow, TurnRow, Write,
};
use crate::{AppName, BranchName, Result, SnapshotId, Timestamp, TurnKey, UserId};

impl Rows<'_> {
    /// Puts a record into its table.
    pub(super) fn insert(&self, pos: u64, meta: &RecordMeta, body: &[u8]) -> Result<()> {
        self.hot.append.run(
            &self.sql,
            params![
                int(pos),
                int(meta.num),
                int(meta.seq),
                int(meta.segment),
                meta.kind.number(),
                meta.turn.map(int),
                int(meta.attempt),
                meta.event.map(|event| event.number()),
                int(meta.width),
                meta.at.as_micros(),
                meta.snapshot.map(|id| *id.uuid().as_bytes()),
                codec::tip_bytes(&meta.tip),
                body,
            ],
        )?;
        Ok(())
    }

    /// Nothing may be removed that the journal would bring back, that would be left in it, or that would still be at hand.
    fn fill_before_removing(&mut self) -> Result<()> {
        self.clear_slots()?;
        self.fill()?;
        self.recent.forget_kept();
        Ok(())
    }
}

impl Write for Rows<'_> {
    fn new_num(&mut self) -> Result<u64> {
        self.recent.last_num += 1;
        Ok(self.recent.last_num)
    }

    fn put_session(&mut self, row: &SessionRow) -> Result<()> {
        let change = Change::of_session(row, self.recent.session(row.num));
        self.change(change)
    }

    fn append(&mut self, meta: &RecordMeta, body: &[u8]) -> Result<u64> {
        let pos = self.recent.position() + 1;
        match &mut self.records {
            Records::Journal { count, bytes } if *bytes + body.len() <= FEW_BYTES => {
                (*count, *bytes) = (*count + 1, *bytes + body.len());
                self.recent.append_unstored(meta.clone(), body);
            }
            Records::Journal { .. } => {
                self.store_records()?;
                return self.append(meta, body);
            }
            Records::Table => {
                self.insert(pos, meta, body)?;
                self.recent.append(meta.clone());
            }
        }
        Ok(pos)
    }

    fn new_segment(&mut self, num: u64, parent: Option<Place>) -> Result<u64> {
        let last = match self.recent.segments.last_key_value() {
            Some((last, _)) => *last,
            None => self.sql.number("last_segment", [])?.unwrap_or(0),
        };
        let row = SegmentRow { id: last + 1, num, parent };
        self.change(Change::Segment(row))?;
        Ok(row.id)
    }

    fn put_branch(&mut self, num: u64, row: &BranchRow) -> Result<()> {
        let head = &row.head;
        self.sql.run(
            "put_branch",
            params![
                int(num),
                row.name.as_str(),
                int(head.seq),
                int(head.num),
                int(head.segment),
                head.next.map(int),
                head.lease.map(int),
                int(head.turns)
            ],
        )?;
        Ok(())
    }

    fn delete_branch(&mut self, num: u64, name: &BranchName) -> Result<()> {
        self.sql.run("delete_branch", params![int(num), name.as_str()])?;
        Ok(())
    }

    fn put_turn(&mut self, row: &TurnRow) -> Result<()> {
        self.change(Change::Turn(Box::new(row.clone())))
    }

    fn delete_turn(&mut self, num: u64, begin: u64) -> Result<()> {
        self.change(Change::TurnGone(num, begin))
    }

    fn put_key(&mut self, num: u64, key: &TurnKey, row: &KeyRow) -> Result<()> {
        self.sql.run("put_key", params![int(num), key.as_str(), int(row.turn), row.payload.as_bytes().as_slice()])?;
        Ok(())
    }

    fn put_snapshot(&mut self, row: &SnapshotRow) -> Result<()> {
        self.change(Change::Snapshot(Box::new(row.clone())))
    }

    fn remove_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        self.change(Change::SnapshotGone(id))
    }

    fn set_scope(
        &mut self,
        scope: Scope,
        app: &AppName,
        user: Option<&UserId>,
        key: &str,
        value: Option<&Json>,
    ) -> Result<()> {
        let (scope, user) = (scope_number(scope), user.map_or("", UserId::as_str));
        match value {
            Some(value) => self.sql.run("set_scope", params![scope, app.as_str(), user, key, value.as_str()])?,
            None => self.sql.run("remove_scope", params![scope, app.as_str(), user, key])?,
        };
        Ok(())
    }

    fn put_artifact(&mut self, num: u64, row: &ArtifactRow) -> Result<()> {
        let digest = row.digest.as_bytes().as_slice();
        self.sql.run("put_artifact", params![int(num), row.name, int(row.version), digest, int(row.seq)])?;
        Ok(())
    }

    fn put_blob(&mut self, tree: u64, digest: Digest, body: &[u8]) -> Result<()> {
        self.sql.run("put_blob", params![int(tree), digest.as_bytes().as_slice(), body])?;
        Ok(())
    }

    fn put_pack(&mut self, row: &PackRow) -> Result<()> {
        let PackMeta { num, turn, first, count, start, size } = row.meta;
        self.sql
            .run("put_pack", params![int(num), int(turn), int(first), int(count), int(start), int(size), row.body])?;
        Ok(())
    }

    fn remove_pack(&mut self, meta: &PackMeta) -> Result<()> {
        self.sql.run("remove_pack", [int(meta.num), int(meta.turn), int(meta.first)])?;
        Ok(())
    }

    fn remove_packs(&mut self, num: u64, turn: u64) -> Result<()> {
        self.sql.run("remove_packs_of_turn", [int(num), int(turn)])?;
        Ok(())
    }

    fn put_stream(&mut self, row: &StreamRow) -> Result<()> {
        let ended_at = row.ended_at.map(Timestamp::as_micros);
        self.sql.run("put_stream", params![int(row.num), int(row.turn), int(row.chunks), ended_at])?;
        Ok(())
    }

    fn remove_records(&mut self, num: u64, from: u64, to: u64, segment: u64, limit: usize) -> Result<usize> {
        self.fill_before_removing()?;
        let gone = self.sql.all(
            "removable_records",
            params![int(num), int(from), int(to), int(segment), int(limit as u64)],
            |row| {
                let number = |name: &str| column::<Uint>(row, name).map(|value| value.0);
                Ok((number("seq")?, number("pos")?, column::<Option<Vec<u8>>>(row, "snapshot")?))
            },
        )?;
        for (seq, pos, snapshot) in &gone {
            self.sql.run("remove_place", [int(num), int(*seq)])?;
            self.sql.run("remove_record", [int(*pos)])?;
            if let Some(snapshot) = snapshot {
                self.sql.run("remove_snapshot", [snapshot])?;
            }
        }
        Ok(gone.len())
    }

    fn remove_session_parts(&mut self, num: u64) -> Result<()> {
        self.fill_before_removing()?;
        for name in ["remove_branches", "remove_turns", "remove_keys", "remove_packs", "remove_streams"] {
            self.sql.run(name, [int(num)])?;
        }
        Ok(())
    }

    fn keep_blobs(&mut self, tree: u64, keep: &BTreeSet<Digest>) -> Result<()> {
        for digest in self.sql.all("blob_digests", [int(tree)], |row| codec::digest(row, "digest"))? {
            if !keep.contains(&digest) {
                self.sql.run("remove_blob", params![int(tree), digest.as_bytes().as_slice()])?;
            }
        }
        Ok(())
    }

    fn remove_session(&mut self, num: u64) -> Result<()> {
        self.fill_before_removing()?;
        for name in ["remove_artifacts", "remove_segments", "remove_session"] {
            self.sql.run(name, [int(num)])?;
        }
        Ok(())
    }
}
