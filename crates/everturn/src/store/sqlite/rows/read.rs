//! Reading: the journal first, then the tables.

use std::collections::BTreeMap;

use rusqlite::{Row, params};

use super::super::codec::{self, Uint, column, damaged, int};
use super::super::failure;
use super::super::pack::unpack;
use super::super::sum::check_sum;
use super::Rows;
use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::state::Scope;
use crate::store::engine::{
    ArtifactRow, BranchRow, Damaged, Flow, Interval, KeyRow, ListScan, Only, Owner, PackAt, PackMeta, PackRow, Read,
    RecordMeta, RecordRow, Scan, SegmentRow, SessionRow, SnapshotRow, StreamRow, TurnRow, Visit, VisitPacked,
};
use crate::{AppName, BranchName, Result, SnapshotId, Timestamp, TurnKey, UserId};

#[derive(Clone, Copy)]
enum ScanKind {
    Bodies,
    Metas,
    Named,
}

pub(super) fn scope_number(scope: Scope) -> i64 {
    match scope {
        Scope::App => 0,
        Scope::User => 1,
        Scope::Session => 2,
        Scope::Temp => 3,
    }
}

fn turn_row(row: &Row<'_>) -> Result<TurnRow> {
    let bytes = row.get_ref("row").ok().and_then(|value| value.as_blob().ok());
    let turn: TurnRow = bytes.and_then(unpack).ok_or_else(|| damaged("a running turn"))?;
    Ok(TurnRow { streams: column(row, "streams")?, ..turn })
}

impl Rows<'_> {
    /// Visits the records of a scan that are filled into the tables.
    fn scan_tables(&self, kind: ScanKind, scan: Scan, visit: &mut dyn FnMut(&Row<'_>) -> Result<Flow>) -> Result<Flow> {
        if self.recent.holds_all_from(scan.num, scan.from) {
            return Ok(Flow::More);
        }
        let name = match (kind, scan.segment.is_some(), scan.newest_first) {
            (ScanKind::Bodies, false, false) => "scan_all",
            (ScanKind::Bodies, false, true) => "scan_all_newest",
            (ScanKind::Bodies, true, false) => "scan_segment",
            (ScanKind::Bodies, true, true) => "scan_segment_newest",
            (ScanKind::Metas, false, false) => "metas_all",
            (ScanKind::Metas, false, true) => "metas_all_newest",
            (ScanKind::Metas, true, false) => "metas_segment",
            (ScanKind::Metas, true, true) => "metas_segment_newest",
            (ScanKind::Named, false, false) => "named_all",
            (ScanKind::Named, false, true) => "named_all_newest",
            (ScanKind::Named, true, false) => "named_segment",
            (ScanKind::Named, true, true) => "named_segment_newest",
        };
        let (num, from, to) = (int(scan.num), int(scan.from), int(scan.to));
        match scan.segment {
            Some(segment) => self.sql.each(name, params![num, from, to, int(segment)], visit),
            None => self.sql.each(name, params![num, from, to], visit),
        }
    }

    /// Visits the records of a scan that are not filled into the tables yet.
    fn scan_recent(&self, scan: Scan, visit: &mut dyn FnMut(u64, &RecordMeta) -> Result<Flow>) -> Result<Flow> {
        Self::scan_map(&self.recent.records, scan, visit)
    }

    /// Visits those of a scan, the newest first, that are in the tables and at hand as well. Says what is left of it.
    fn scan_kept(&self, scan: Scan, visit: &mut dyn FnMut(u64, &RecordMeta) -> Result<Flow>) -> Result<Option<Scan>> {
        let kept = self.recent.kept_records();
        let Some(((_, first), _)) = kept.range((scan.num, 0)..=(scan.num, u64::MAX)).next() else {
            return Ok(Some(scan));
        };
        if Self::scan_map(kept, scan, visit)? == Flow::Stop || scan.from >= *first {
            return Ok(None);
        }
        Ok(Some(Scan { to: scan.to.min(first - 1), ..scan }))
    }

    fn scan_map(
        records: &BTreeMap<(u64, u64), (u64, RecordMeta)>,
        scan: Scan,
        visit: &mut dyn FnMut(u64, &RecordMeta) -> Result<Flow>,
    ) -> Result<Flow> {
        if scan.from > scan.to {
            return Ok(Flow::More);
        }
        let wanted = |meta: &RecordMeta| {
            scan.segment.is_none_or(|segment| segment == meta.segment)
                && (scan.only == Only::All || meta.snapshot.is_some())
        };
        let mut range = records.range((scan.num, scan.from)..=(scan.num, scan.to));
        while let Some((_, (pos, meta))) = if scan.newest_first { range.next_back() } else { range.next() } {
            if wanted(meta) && visit(*pos, meta)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::More)
    }

    fn with_body(&self, pos: u64, meta: &RecordMeta) -> Result<RecordRow> {
        if let Some(body) = self.recent.unstored_body(pos) {
            return Ok(RecordRow { meta: meta.clone(), body: body.to_vec() });
        }
        let body = self.sql.one("body", [int(pos)], codec::body)?;
        let body = body.ok_or_else(|| damaged(&format!("record {} of session number {}", meta.seq, meta.num)))?;
        Ok(RecordRow { meta: meta.clone(), body })
    }
}

impl Read for Rows<'_> {
    fn check_rows(&self, damaged: Damaged<'_>) -> Result<()> {
        self.check_tables(damaged)
    }

    fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>> {
        if let Some(row) = self.recent.session_by_key(key) {
            return Ok(Some(row.clone()));
        }
        if let Some(row) = self.recent.kept_session_by_key(key) {
            return Ok(Some(row.clone()));
        }
        let key = [key.app.as_str(), key.user.as_str(), key.id.as_str()];
        let row = self.sql.one("find_session", key, codec::session)?;
        // One that was written to would have been found above: this one has been deleted since.
        Ok(row.filter(|row| self.recent.session(row.num).is_none()))
    }

    fn session(&self, num: u64) -> Result<Option<SessionRow>> {
        match self.recent.session(num).or_else(|| self.recent.kept_session(num)) {
            Some(row) => Ok(Some(row.clone())),
            None => self.sql.one("session", [int(num)], codec::session),
        }
    }

    fn deleted_sessions(&self) -> Result<Vec<SessionRow>> {
        let mut rows = self.sql.all("deleted_sessions", [], codec::session)?;
        rows.retain(|row| self.recent.session(row.num).is_none());
        rows.extend(self.recent.sessions().filter(|row| row.deleted).cloned());
        rows.sort_by_key(|row| row.num);
        Ok(rows)
    }

    fn tree_sessions(&self, tree: u64) -> Result<Vec<SessionRow>> {
        let mut rows = self.sql.all("tree_sessions", [int(tree)], codec::session)?;
        rows.retain(|row| self.recent.session(row.num).is_none());
        rows.extend(self.recent.sessions().filter(|row| row.tree == tree).cloned());
        rows.sort_by_key(|row| row.num);
        Ok(rows)
    }

    fn record(&self, num: u64, seq: u64) -> Result<Option<RecordRow>> {
        match self.recent.records.get(&(num, seq)) {
            Some((pos, meta)) => self.with_body(*pos, meta).map(Some),
            None => self.sql.one("record", [int(num), int(seq)], codec::record),
        }
    }

    fn meta(&self, num: u64, seq: u64) -> Result<Option<RecordMeta>> {
        match self.recent.records.get(&(num, seq)).or_else(|| self.recent.kept_records().get(&(num, seq))) {
            Some((_, meta)) => Ok(Some(meta.clone())),
            None => self.sql.one("meta", [int(num), int(seq)], codec::meta),
        }
    }

    fn scan(&self, scan: Scan, visit: Visit<'_, RecordRow>) -> Result<()> {
        // What is recent follows all that is not.
        if scan.newest_first {
            let flow = self.scan_recent(scan, &mut |pos, meta| visit(self.with_body(pos, meta)?))?;
            if flow == Flow::More {
                self.scan_tables(ScanKind::Bodies, scan, &mut |row| visit(codec::record(row)?))?;
            }
            return Ok(());
        }
        if self.scan_tables(ScanKind::Bodies, scan, &mut |row| visit(codec::record(row)?))? == Flow::More {
            self.scan_recent(scan, &mut |pos, meta| visit(self.with_body(pos, meta)?))?;
        }
        Ok(())
    }

    fn scan_meta(&self, scan: Scan, visit: Visit<'_, RecordMeta>) -> Result<()> {
        let kind = match scan.only {
            Only::All => ScanKind::Metas,
            Only::Snapshots => ScanKind::Named,
        };
        if scan.newest_first {
            if self.scan_recent(scan, &mut |_, meta| visit(meta.clone()))? == Flow::More
                && let Some(rest) = self.scan_kept(scan, &mut |_, meta| visit(meta.clone()))?
            {
                self.scan_tables(kind, rest, &mut |row| visit(codec::meta(row)?))?;
            }
            return Ok(());
        }
        if self.scan_tables(kind, scan, &mut |row| visit(codec::meta(row)?))? == Flow::More {
            self.scan_recent(scan, &mut |_, meta| visit(meta.clone()))?;
        }
        Ok(())
    }

    /// One statement, run for each stretch: a line may have hundreds.
    fn scan_line(&self, line: &[Interval], visit: VisitPacked<'_>) -> Result<()> {
        let mut statement = self.sql.statement("scan_segment")?;
        for stretch in line {
            let &Interval { num, segment, from, to } = stretch;
            if !self.recent.holds_all_from(num, from) {
                let range = [int(num), int(from), int(to), int(segment)];
                let mut rows = statement.query(range).map_err(|e| failure(e, "read"))?;
                while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
                    visit(codec::meta(row)?, codec::packed(row)?)?;
                }
            }
            let scan = Scan { num, from, to, segment: Some(segment), only: Only::All, newest_first: false };
            self.scan_recent(scan, &mut |pos, meta| {
                match self.recent.unstored_body(pos) {
                    Some(body) => visit(meta.clone(), body)?,
                    None => visit(meta.clone(), &self.with_body(pos, meta)?.body)?,
                }
                Ok(Flow::More)
            })?;
        }
        Ok(())
    }

    fn segment(&self, id: u64) -> Result<Option<SegmentRow>> {
        self.recent.segment(id, &self.sql)
    }

    fn ancestry(&self, id: u64, visit: Visit<'_, SegmentRow>) -> Result<()> {
        // Most often the first is all that is wanted, and the same as the last time.
        let Some(first) = self.recent.segment(id, &self.sql)? else { return Ok(()) };
        let mut next = first.parent;
        if visit(first)? == Flow::Stop || next.is_none() {
            return Ok(());
        }
        let mut statement = self.sql.statement("segment")?;
        while let Some(place) = next {
            let row = match self.recent.segments.get(&place.segment) {
                Some(row) => *row,
                None => {
                    let mut rows = statement.query([int(place.segment)]).map_err(|e| failure(e, "read"))?;
                    let Some(row) = rows.next().map_err(|e| failure(e, "read"))? else { break };
                    check_sum(row, "segment")?;
                    codec::segment(row)?
                }
            };
            next = row.parent;
            if visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn segments(&self, num: u64) -> Result<Vec<SegmentRow>> {
        let mut rows = self.sql.all("segments", [int(num)], codec::segment)?;
        rows.extend(self.recent.segments.values().filter(|row| row.num == num));
        Ok(rows)
    }

    fn branch(&self, num: u64, name: &BranchName) -> Result<Option<BranchRow>> {
        self.sql.one("branch", params![int(num), name.as_str()], codec::branch)
    }

    fn branches(&self, num: u64) -> Result<Vec<BranchRow>> {
        self.sql.all("branches", [int(num)], codec::branch)
    }

    fn turn(&self, num: u64, begin: u64) -> Result<Option<TurnRow>> {
        if let Some(row) = self.recent.kept_turn(num, begin) {
            return Ok(Some(row.clone()));
        }
        match self.recent.turns.get(&(num, begin)) {
            Some(row) => Ok(row.as_deref().cloned()),
            None => self.sql.one("turn", [int(num), int(begin)], turn_row),
        }
    }

    fn turns(&self, num: Option<u64>) -> Result<Vec<TurnRow>> {
        let mut rows = match num {
            Some(num) => self.sql.all("turns", [int(num)], turn_row)?,
            None => self.sql.all("all_turns", [], turn_row)?,
        };
        rows.retain(|row| !self.recent.turns.contains_key(&(row.num, row.begin)));
        let (first, last) = num.map_or((0, u64::MAX), |num| (num, num));
        rows.extend(
            self.recent.turns.range((first, 0)..=(last, u64::MAX)).filter_map(|(_, row)| row.as_deref().cloned()),
        );
        rows.sort_by_key(|row| (row.num, row.begin));
        Ok(rows)
    }

    fn key(&self, num: u64, key: &TurnKey) -> Result<Option<KeyRow>> {
        self.sql.one("key", params![int(num), key.as_str()], |row| {
            Ok(KeyRow { turn: column::<Uint>(row, "turn")?.0, payload: codec::digest(row, "payload")? })
        })
    }

    fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>> {
        if let Some(row) = self.recent.kept_snapshot(id) {
            return Ok(Some(row.clone()));
        }
        match self.recent.snapshots.get(&id) {
            Some(row) => Ok(row.as_deref().cloned()),
            None if !self.recent.may_be_filled(id, &self.sql)? => Ok(None),
            None => self.hot.find_snapshot.one(&self.sql, [id.uuid().as_bytes().as_slice()], codec::snapshot),
        }
    }

    fn scope(&self, scope: Scope, app: &AppName, user: Option<&UserId>) -> Result<Vec<(String, Json)>> {
        let user = user.map_or("", UserId::as_str);
        self.sql.all("scope", params![scope_number(scope), app.as_str(), user], |row| {
            Ok((column(row, "key")?, Json::trusted(column::<String>(row, "value")?)))
        })
    }

    fn artifacts(&self, num: u64, name: Option<&str>) -> Result<Vec<ArtifactRow>> {
        let read = |row: &Row<'_>| {
            Ok(ArtifactRow {
                name: column(row, "name")?,
                version: column::<Uint>(row, "version")?.0,
                digest: codec::digest(row, "digest")?,
                seq: column::<Uint>(row, "seq")?.0,
            })
        };
        match name {
            Some(name) => self.sql.all("artifacts_named", params![int(num), name], read),
            None => self.sql.all("artifacts", [int(num)], read),
        }
    }

    fn blob(&self, tree: u64, digest: Digest) -> Result<Option<Vec<u8>>> {
        self.sql.one("blob", params![int(tree), digest.as_bytes().as_slice()], |row| column(row, "body"))
    }

    fn has_blobs(&self, tree: u64) -> Result<bool> {
        Ok(self.sql.number("has_blobs", [int(tree)])? == Some(1))
    }

    fn pack(&self, num: u64, turn: u64, at: PackAt) -> Result<Option<PackMeta>> {
        let name = match at {
            PackAt::Oldest => "oldest_pack",
            PackAt::Newest => "newest_pack",
        };
        self.sql.one(name, [int(num), int(turn)], codec::pack_meta)
    }

    fn packs(&self, num: u64, turn: u64, chunk: u64, visit: Visit<'_, PackRow>) -> Result<()> {
        let visit = &mut |row: &Row<'_>| visit(codec::pack(row)?);
        self.sql.each("packs", [int(num), int(turn), int(chunk)], visit).map(drop)
    }

    fn stream(&self, num: u64, turn: u64) -> Result<Option<StreamRow>> {
        self.sql.one("stream", [int(num), int(turn)], codec::stream)
    }

    fn stream_ended_by(&self, time: Timestamp) -> Result<Option<StreamRow>> {
        self.sql.one("stream_ended_by", [time.as_micros()], codec::stream)
    }

    fn position(&self) -> Result<u64> {
        Ok(self.recent.position())
    }

    fn position_at(&self, num: u64, at: u64) -> Result<Option<u64>> {
        let mut found = None;
        if at > self.recent.filled_up_to() {
            let own = self.recent.records.range((num, 0)..=(num, u64::MAX)).rev();
            found = own.map(|(_, (pos, _))| *pos).find(|pos| *pos <= at);
        }
        match found {
            Some(pos) => Ok(Some(pos)),
            None => self.sql.number("pos_at", [int(num), int(at)]),
        }
    }

    fn list(&self, list: ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<()> {
        self.list_sessions(&list, visit)
    }

    fn touched_since(&self, owner: Owner<'_>, pos: u64, visit: Visit<'_, SessionRow>) -> Result<()> {
        self.list_touched(owner, pos, visit)
    }
}
