//! The rules' view of a SQLite file.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};

use super::super::engine::{
    ArtifactRow, BranchRow, Flow, Interval, KeyRow, ListBy, ListScan, Only, Owner, Place, Read, RecordMeta, RecordRow,
    Scan, SegmentRow, SessionRow, SnapshotRow, TurnRow, Visit, VisitPacked, Write,
};
use super::codec::{self, Stored as _, Uint, column, damaged, int};
use super::failure;
use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::state::Scope;
use crate::{AppName, BranchName, Result, SnapshotId, TurnKey, UserId};

/// The statements of `queries.sql` by name.
static QUERIES: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    let mut queries = HashMap::new();
    for part in include_str!("queries.sql").split("\n-- ").skip(1) {
        if let Some((name, sql)) = part.split_once('\n') {
            queries.insert(name.trim(), sql.trim());
        }
    }
    queries
});

/// A connection inside a transaction.
pub(super) struct Rows<'c> {
    conn: &'c Connection,
    /// The position the next record gets, once it was asked for.
    next_pos: Cell<Option<u64>>,
}

impl<'c> Rows<'c> {
    pub(super) fn new(conn: &'c Connection) -> Self {
        Self { conn, next_pos: Cell::new(None) }
    }

    fn statement(&self, name: &str) -> Result<CachedStatement<'c>> {
        let sql = QUERIES.get(name).copied().unwrap_or("");
        debug_assert!(!sql.is_empty(), "no statement is called {name}");
        self.conn.prepare_cached(sql).map_err(|e| failure(e, "read"))
    }

    fn one<T>(&self, name: &str, params: impl Params, read: impl FnOnce(&Row<'_>) -> Result<T>) -> Result<Option<T>> {
        let mut statement = self.statement(name)?;
        let mut rows = statement.query(params).map_err(|e| failure(e, "read"))?;
        rows.next().map_err(|e| failure(e, "read"))?.map(read).transpose()
    }

    fn all<T>(&self, name: &str, params: impl Params, mut read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.each(name, params, &mut |row| {
            found.push(read(row)?);
            Ok(Flow::More)
        })?;
        Ok(found)
    }

    fn each(&self, name: &str, params: impl Params, visit: &mut dyn FnMut(&Row<'_>) -> Result<Flow>) -> Result<()> {
        let mut statement = self.statement(name)?;
        let mut rows = statement.query(params).map_err(|e| failure(e, "read"))?;
        while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
            if visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn run(&self, name: &str, params: impl Params) -> Result<usize> {
        self.statement(name)?.execute(params).map_err(|e| failure(e, "write"))
    }

    fn number(&self, name: &str, params: impl Params) -> Result<Option<u64>> {
        let mut statement = self.statement(name)?;
        let value = statement.query_row(params, |row| row.get::<_, Option<Uint>>(0)).optional();
        Ok(value.map_err(|e| failure(e, "read"))?.flatten().map(|value| value.0))
    }

    fn fact(&self, name: &str) -> Result<u64> {
        self.number("fact", [name])?.ok_or_else(|| damaged("the table of facts"))
    }

    fn scan_rows(&self, kind: ScanKind, scan: Scan, visit: &mut dyn FnMut(&Row<'_>) -> Result<Flow>) -> Result<()> {
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
            Some(segment) => self.each(name, params![num, from, to, int(segment)], visit),
            None => self.each(name, params![num, from, to], visit),
        }
    }

    /// Sessions written to since the listing indexes were last filled, in the order of their last record.
    fn dirty(&self, since: u64) -> Result<Vec<SessionRow>> {
        let nums = self.all("touched", [int(since)], |row| column::<Uint>(row, "num"))?;
        let mut rows = Vec::with_capacity(nums.len());
        for num in nums {
            rows.extend(self.session(num.0)?.filter(|row| !row.deleted));
        }
        rows.sort_by_key(|row| row.updated_pos);
        Ok(rows)
    }

    fn walk_list(&self, list: &ListScan<'_>, visit: &mut dyn FnMut(SessionRow) -> Result<Flow>) -> Result<()> {
        let name = match (list.by, list.owner.user.is_some() && list.owner.app.is_some(), list.newest_first) {
            (ListBy::Created, false, false) => "list_created",
            (ListBy::Created, false, true) => "list_created_newest",
            (ListBy::Created, true, false) => "list_owner_created",
            (ListBy::Created, true, true) => "list_owner_created_newest",
            (ListBy::Updated, false, false) => "list_updated",
            (ListBy::Updated, false, true) => "list_updated_newest",
            (ListBy::Updated, true, false) => "list_owner_updated",
            (ListBy::Updated, true, true) => "list_owner_updated_newest",
        };
        let after = match (list.after, list.newest_first) {
            (Some(after), _) => int(after),
            (None, true) => i64::MAX,
            (None, false) => -1,
        };
        let mut visit = |row: &Row<'_>| {
            let row = codec::session(row)?;
            if owned(list.owner, &row) { visit(row) } else { Ok(Flow::More) }
        };
        match (list.owner.app, list.owner.user) {
            (Some(app), Some(user)) => self.each(name, params![after, app.as_str(), user.as_str()], &mut visit),
            _ => self.each(name, params![after], &mut visit),
        }
    }

    /// The position of the last record this transaction appended.
    pub(super) fn appended(&self) -> Option<u64> {
        self.next_pos.get().map(|next| next - 1)
    }

    /// Fills the listing indexes up to now, if enough was written since. Says how far they are filled.
    pub(super) fn fill_listing(&self, position: u64, lag: u64) -> Result<u64> {
        let watermark = self.fact("watermark")?;
        if position.saturating_sub(watermark) < lag {
            return Ok(watermark);
        }
        for num in self.all("touched", [int(watermark)], |row| column::<Uint>(row, "num"))? {
            self.run("list_session", [int(num.0)])?;
        }
        self.run("set_fact", params!["watermark", int(position)])?;
        Ok(position)
    }

    fn next_position(&self) -> Result<u64> {
        let next = match self.next_pos.get() {
            Some(next) => next,
            None => self.position()? + 1,
        };
        self.next_pos.set(Some(next + 1));
        Ok(next)
    }
}

#[derive(Clone, Copy)]
enum ScanKind {
    Bodies,
    Metas,
    Named,
}

fn owned(owner: Owner<'_>, row: &SessionRow) -> bool {
    owner.app.is_none_or(|app| *app == row.key.app) && owner.user.is_none_or(|user| *user == row.key.user)
}

fn scope_number(scope: Scope) -> i64 {
    match scope {
        Scope::App => 0,
        Scope::User => 1,
        Scope::Session => 2,
        Scope::Temp => 3,
    }
}

impl Read for Rows<'_> {
    fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>> {
        self.one("find_session", [key.app.as_str(), key.user.as_str(), key.id.as_str()], codec::session)
    }

    fn session(&self, num: u64) -> Result<Option<SessionRow>> {
        self.one("session", [int(num)], codec::session)
    }

    fn deleted_sessions(&self) -> Result<Vec<SessionRow>> {
        self.all("deleted_sessions", [], codec::session)
    }

    fn tree_sessions(&self, tree: u64) -> Result<Vec<SessionRow>> {
        self.all("tree_sessions", [int(tree)], codec::session)
    }

    fn record(&self, num: u64, seq: u64) -> Result<Option<RecordRow>> {
        self.one("record", [int(num), int(seq)], codec::record)
    }

    fn meta(&self, num: u64, seq: u64) -> Result<Option<RecordMeta>> {
        self.one("meta", [int(num), int(seq)], codec::meta)
    }

    fn scan(&self, scan: Scan, visit: Visit<'_, RecordRow>) -> Result<()> {
        self.scan_rows(ScanKind::Bodies, scan, &mut |row| visit(codec::record(row)?))
    }

    fn scan_meta(&self, scan: Scan, visit: Visit<'_, RecordMeta>) -> Result<()> {
        let kind = match scan.only {
            Only::All => ScanKind::Metas,
            Only::Snapshots => ScanKind::Named,
        };
        self.scan_rows(kind, scan, &mut |row| visit(codec::meta(row)?))
    }

    /// One statement, run for each stretch: a line may have hundreds.
    fn scan_line(&self, line: &[Interval], visit: VisitPacked<'_>) -> Result<()> {
        let mut statement = self.statement("scan_segment")?;
        for stretch in line {
            let range = [int(stretch.num), int(stretch.from), int(stretch.to), int(stretch.segment)];
            let mut rows = statement.query(range).map_err(|e| failure(e, "read"))?;
            while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
                visit(codec::meta(row)?, codec::packed(row)?)?;
            }
        }
        Ok(())
    }

    fn segment(&self, id: u64) -> Result<Option<SegmentRow>> {
        self.one("segment", [int(id)], codec::segment)
    }

    fn ancestry(&self, id: u64, visit: Visit<'_, SegmentRow>) -> Result<()> {
        let mut statement = self.statement("segment")?;
        let mut next = Some(id);
        while let Some(id) = next {
            let mut rows = statement.query([int(id)]).map_err(|e| failure(e, "read"))?;
            let Some(row) = rows.next().map_err(|e| failure(e, "read"))? else { break };
            let row = codec::segment(row)?;
            next = row.parent.map(|parent| parent.segment);
            if visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn segments(&self, num: u64) -> Result<Vec<SegmentRow>> {
        self.all("segments", [int(num)], codec::segment)
    }

    fn branch(&self, num: u64, name: &BranchName) -> Result<Option<BranchRow>> {
        self.one("branch", params![int(num), name.as_str()], codec::branch)
    }

    fn branches(&self, num: u64) -> Result<Vec<BranchRow>> {
        self.all("branches", [int(num)], codec::branch)
    }

    fn turn(&self, num: u64, begin: u64) -> Result<Option<TurnRow>> {
        self.one("turn", [int(num), int(begin)], turn_row)
    }

    fn turns(&self, num: Option<u64>) -> Result<Vec<TurnRow>> {
        match num {
            Some(num) => self.all("turns", [int(num)], turn_row),
            None => self.all("all_turns", [], turn_row),
        }
    }

    fn key(&self, num: u64, key: &TurnKey) -> Result<Option<KeyRow>> {
        self.one("key", params![int(num), key.as_str()], |row| {
            Ok(KeyRow { turn: column::<Uint>(row, "turn")?.0, payload: codec::digest(row, "payload")? })
        })
    }

    fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>> {
        self.one("snapshot", [id.uuid().as_bytes().as_slice()], codec::snapshot)
    }

    fn scope(&self, scope: Scope, app: &AppName, user: Option<&UserId>) -> Result<Vec<(String, Json)>> {
        let user = user.map_or("", UserId::as_str);
        self.all("scope", params![scope_number(scope), app.as_str(), user], |row| {
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
            Some(name) => self.all("artifacts_named", params![int(num), name], read),
            None => self.all("artifacts", [int(num)], read),
        }
    }

    fn blob(&self, tree: u64, digest: Digest) -> Result<Option<Vec<u8>>> {
        self.one("blob", params![int(tree), digest.as_bytes().as_slice()], |row| column(row, "body"))
    }

    fn has_blobs(&self, tree: u64) -> Result<bool> {
        Ok(self.number("has_blobs", [int(tree)])? == Some(1))
    }

    fn position(&self) -> Result<u64> {
        Ok(self.number("last_pos", [])?.unwrap_or(0))
    }

    fn position_at(&self, num: u64, at: u64) -> Result<Option<u64>> {
        self.number("pos_at", [int(num), int(at)])
    }

    fn list(&self, list: ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<()> {
        if list.by == ListBy::Created {
            return self.walk_list(&list, visit);
        }
        let mut dirty = self.dirty(self.fact("watermark")?)?;
        let nums: BTreeSet<u64> = dirty.iter().map(|row| row.num).collect();
        dirty.retain(|row| owned(list.owner, row));
        let behind = |row: &SessionRow| match (list.after, list.newest_first) {
            (None, _) => true,
            (Some(after), true) => row.updated_pos < after,
            (Some(after), false) => row.updated_pos > after,
        };
        // What is dirty was written to after everything the indexes know.
        if list.newest_first {
            for row in dirty.into_iter().rev().filter(behind) {
                if visit(row)? == Flow::Stop {
                    return Ok(());
                }
            }
            return self.walk_list(&list, &mut |row| if nums.contains(&row.num) { Ok(Flow::More) } else { visit(row) });
        }
        let mut stopped = false;
        self.walk_list(&list, &mut |row| {
            let flow = if nums.contains(&row.num) { Flow::More } else { visit(row)? };
            stopped = flow == Flow::Stop;
            Ok(flow)
        })?;
        for row in dirty.into_iter().filter(behind) {
            if stopped || visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn touched_since(&self, owner: Owner<'_>, pos: u64, visit: Visit<'_, SessionRow>) -> Result<()> {
        let watermark = self.fact("watermark")?;
        let mut seen = BTreeSet::new();
        for row in self.dirty(watermark.max(pos))? {
            seen.insert(row.num);
            if owned(owner, &row) && visit(row)? == Flow::Stop {
                return Ok(());
            }
        }
        if watermark <= pos {
            return Ok(());
        }
        let list = ListScan { owner, by: ListBy::Updated, newest_first: false, after: Some(pos) };
        self.walk_list(&list, &mut |row| if seen.contains(&row.num) { Ok(Flow::More) } else { visit(row) })
    }
}

fn turn_row(row: &Row<'_>) -> Result<TurnRow> {
    let text: String = column(row, "row")?;
    serde_json::from_str(&text).map_err(|e| damaged("a running turn").with_source(e))
}

impl Write for Rows<'_> {
    fn new_num(&mut self) -> Result<u64> {
        let num = self.fact("num")? + 1;
        self.run("set_fact", params!["num", int(num)])?;
        Ok(num)
    }

    fn put_session(&mut self, row: &SessionRow) -> Result<()> {
        let labels = if row.labels.is_empty() { "[]".to_owned() } else { Json::from_value(&row.labels)?.to_string() };
        let head = &row.main;
        let usage = codec::usage_bytes(&row.usage);
        let updated = self.run(
            "update_session",
            params![
                int(row.num),
                row.agent.as_ref().map(|agent| agent.as_str()),
                row.title,
                labels,
                row.metadata.as_str(),
                row.updated_at.as_micros(),
                int(row.next_seq),
                int(head.seq),
                int(head.num),
                int(head.segment),
                head.next.map(int),
                head.lease.map(int),
                int(head.turns),
                usage,
                row.interrupted,
                int(row.updated_pos),
            ],
        )?;
        if updated == 0 {
            self.run(
                "insert_session",
                params![
                    int(row.num),
                    row.agent.as_ref().map(|agent| agent.as_str()),
                    row.title,
                    labels,
                    row.metadata.as_str(),
                    row.updated_at.as_micros(),
                    int(row.next_seq),
                    int(head.seq),
                    int(head.num),
                    int(head.segment),
                    head.next.map(int),
                    head.lease.map(int),
                    int(head.turns),
                    usage,
                    row.interrupted,
                    int(row.updated_pos),
                    int(row.tree),
                    row.key.app.as_str(),
                    row.key.user.as_str(),
                    row.key.id.as_str(),
                    row.created_at.as_micros(),
                    codec::usage_bytes(&row.inherited),
                    row.forked.as_ref().map(|(id, _)| id.as_str()),
                    row.forked.as_ref().map(|(_, seq)| int(*seq)),
                    int(row.created_pos),
                ],
            )?;
        }
        if row.deleted {
            self.run("mark_deleted", [int(row.num)])?;
            self.run("note_deleted", [int(row.num)])?;
        }
        Ok(())
    }

    fn append(&mut self, row: &RecordRow) -> Result<u64> {
        let pos = self.next_position()?;
        let meta = &row.meta;
        self.run(
            "append",
            params![
                int(pos),
                int(meta.num),
                int(meta.seq),
                int(meta.segment),
                meta.snapshot.is_some(),
                meta.kind.number(),
                meta.turn.map(int),
                int(meta.attempt),
                meta.event.map(|event| event.number()),
                int(meta.width),
                meta.at.as_micros(),
                meta.snapshot.map(|id| *id.uuid().as_bytes()),
                codec::tip_bytes(&meta.tip),
                row.body,
            ],
        )?;
        Ok(pos)
    }

    fn new_segment(&mut self, num: u64, parent: Option<Place>) -> Result<u64> {
        let parent = |part: fn(Place) -> u64| parent.map(|place| int(part(place)));
        self.run("new_segment", params![int(num), parent(|p| p.num), parent(|p| p.segment), parent(|p| p.seq)])?;
        u64::try_from(self.conn.last_insert_rowid()).map_err(|_| damaged("the table of segments"))
    }

    fn put_branch(&mut self, num: u64, row: &BranchRow) -> Result<()> {
        let head = &row.head;
        self.run(
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
        self.run("delete_branch", params![int(num), name.as_str()])?;
        Ok(())
    }

    fn put_turn(&mut self, row: &TurnRow) -> Result<()> {
        let text = serde_json::to_string(row).map_err(|e| damaged("a running turn").with_source(e))?;
        self.run("put_turn", params![int(row.num), int(row.begin), text])?;
        Ok(())
    }

    fn delete_turn(&mut self, num: u64, begin: u64) -> Result<()> {
        self.run("delete_turn", [int(num), int(begin)])?;
        Ok(())
    }

    fn put_key(&mut self, num: u64, key: &TurnKey, row: &KeyRow) -> Result<()> {
        self.run("put_key", params![int(num), key.as_str(), int(row.turn), row.payload.as_bytes().as_slice()])?;
        Ok(())
    }

    fn put_snapshot(&mut self, row: &SnapshotRow) -> Result<()> {
        let error = row.error.as_ref().map(Json::from_value).transpose()?;
        self.run(
            "put_snapshot",
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

    fn remove_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        self.run("remove_snapshot", [id.uuid().as_bytes().as_slice()])?;
        Ok(())
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
            Some(value) => self.run("set_scope", params![scope, app.as_str(), user, key, value.as_str()])?,
            None => self.run("remove_scope", params![scope, app.as_str(), user, key])?,
        };
        Ok(())
    }

    fn put_artifact(&mut self, num: u64, row: &ArtifactRow) -> Result<()> {
        let digest = row.digest.as_bytes().as_slice();
        self.run("put_artifact", params![int(num), row.name, int(row.version), digest, int(row.seq)])?;
        Ok(())
    }

    fn put_blob(&mut self, tree: u64, digest: Digest, body: &[u8]) -> Result<()> {
        self.run("put_blob", params![int(tree), digest.as_bytes().as_slice(), body])?;
        Ok(())
    }

    fn remove_records(&mut self, num: u64, from: u64, to: u64, segment: u64, limit: usize) -> Result<usize> {
        let gone = self.all(
            "removable_records",
            params![int(num), int(from), int(to), int(segment), int(limit as u64)],
            |row| Ok((column::<Uint>(row, "pos")?.0, column::<Option<Vec<u8>>>(row, "snapshot")?)),
        )?;
        if gone.is_empty() {
            return Ok(0);
        }
        let position = self.position()?;
        self.run("set_fact", params!["floor", int(position)])?;
        for (pos, snapshot) in &gone {
            self.run("remove_record", [int(*pos)])?;
            if let Some(snapshot) = snapshot {
                self.run("remove_snapshot", [snapshot])?;
            }
        }
        Ok(gone.len())
    }

    fn remove_session_parts(&mut self, num: u64) -> Result<()> {
        for name in ["remove_branches", "remove_turns", "remove_keys"] {
            self.run(name, [int(num)])?;
        }
        Ok(())
    }

    fn keep_blobs(&mut self, tree: u64, keep: &BTreeSet<Digest>) -> Result<()> {
        for digest in self.all("blob_digests", [int(tree)], |row| codec::digest(row, "digest"))? {
            if !keep.contains(&digest) {
                self.run("remove_blob", params![int(tree), digest.as_bytes().as_slice()])?;
            }
        }
        Ok(())
    }

    fn remove_session(&mut self, num: u64) -> Result<()> {
        for name in ["remove_artifacts", "remove_segments", "remove_session", "forget_deleted"] {
            self.run(name, [int(num)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_compiles_and_none_is_listed_twice() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema.sql")).unwrap();
        for (name, sql) in QUERIES.iter() {
            conn.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let named = include_str!("queries.sql").lines().filter(|l| l.starts_with("-- ") && !l.contains('.')).count();
        assert_eq!(named, QUERIES.len());
    }
}
