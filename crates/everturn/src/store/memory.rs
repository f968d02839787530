//! Sessions in this process's memory: for tests and for what need not outlive it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::Watch;
use super::engine::{
    ArtifactRow, Backend, BranchRow, Config, Ctx, Effort, Engine, Env, Flow, Interval, KeyRow, ListBy, ListScan, Only,
    Owner, PackAt, PackMeta, PackRow, Place, Read, RecordMeta, RecordRow, Scan, SegmentRow, SessionRow, SnapshotRow,
    StreamRow, Sync, TurnRow, Visit, VisitPacked, Write, engine_store,
};
use super::request::*;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::event::Event;
use crate::json::Json;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::Snapshot;
use crate::state::{PointState, Scope, ScopedState, StateDelta};
use crate::turn::{Aborted, Begin, Begun, Fence, Receipt, Record, RunningTurn, TurnRecord};
use crate::{AppName, BranchName, Result, SnapshotId, Timestamp, TurnId, TurnKey, UserId};

/// A store in memory. Everything it holds goes with it; apart from that it keeps every promise the others keep.
///
/// Clones are handles on the same sessions.
///
/// ```
/// use everturn::store::MemoryStore;
///
/// let store = MemoryStore::new();
/// let same = store.clone();
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore(Engine<Memory>);

/// How a [`MemoryStore`] is set up.
#[derive(Clone, Debug, Default)]
pub struct MemoryOptions(Config);

impl MemoryOptions {
    /// The defaults: the real clock, a lease of a minute, limits of 16 MiB a record and 1 MiB of custom state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where time and fresh ids come from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.0.clock = clock;
        self
    }

    /// How long a writer may be silent before it is taken for dead.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.lease = lease;
        self
    }

    /// How often waiters look again without being told.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.0.poll = poll;
        self
    }

    /// What is refused as too large.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.0.limits = limits;
        self
    }

    /// How long the stream of a turn that has ended stays readable: ten minutes unless set.
    #[must_use]
    pub fn stream_grace(mut self, grace: Duration) -> Self {
        self.0.stream_grace = grace;
        self
    }

    /// How many bytes of decoded state are kept at hand.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.0.cache_bytes = bytes;
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let memory = Memory {
            owner: "memory".into(),
            boot: self.0.clock.boot_id().into(),
            tables: RwLock::default(),
            clock: self.0.clock.clone(),
            lease: u64::try_from(self.0.lease.as_micros()).unwrap_or(u64::MAX),
            stream_grace: u64::try_from(self.0.stream_grace.as_micros()).unwrap_or(u64::MAX),
        };
        MemoryStore(Engine::new(memory, self.0))
    }
}

impl MemoryStore {
    /// An empty store with the default options.
    #[must_use]
    pub fn new() -> Self {
        MemoryOptions::new().build()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

engine_store!(MemoryStore);

#[derive(Debug)]
struct Memory {
    tables: RwLock<Tables>,
    clock: Arc<dyn Clock>,
    /// All writers are this process, and it is alive.
    owner: Arc<str>,
    boot: Arc<str>,
    lease: u64,
    stream_grace: u64,
}

impl Memory {
    fn env(&self) -> Env<'_> {
        Env {
            now: self.clock.now(),
            uptime: u64::try_from(self.clock.uptime().as_micros()).unwrap_or(u64::MAX),
            boot: &self.boot,
            owner: &self.owner,
            lease: self.lease,
            stream_grace: self.stream_grace,
            holds_lock: &|_| true,
        }
    }
}

impl Backend for Memory {
    async fn write<T, F>(&self, _: Sync, _: Effort, mut rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        rule(&mut Ctx { tx: &mut *tables, env: &self.env() })
    }

    async fn read<T, F>(&self, mut reader: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static,
    {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        reader(&*tables, &self.env())
    }

    async fn settled(&self) -> Result<()> {
        Ok(())
    }

    async fn scrub(&self) -> Result<()> {
        Ok(())
    }

    async fn reopen(&self) -> Result<()> {
        Ok(())
    }
}

type ScopeKey = (Scope, AppName, Option<UserId>);

#[derive(Debug, Default)]
struct Tables {
    nums: u64,
    positions: u64,
    segment_ids: u64,
    sessions: BTreeMap<u64, SessionRow>,
    by_key: HashMap<SessionKey, u64>,
    records: BTreeMap<(u64, u64), (u64, RecordRow)>,
    /// Sequence numbers of records that name a snapshot.
    named: BTreeSet<(u64, u64)>,
    segments: BTreeMap<u64, SegmentRow>,
    segments_of: BTreeSet<(u64, u64)>,
    branches: BTreeMap<(u64, BranchName), BranchRow>,
    turns: BTreeMap<(u64, u64), TurnRow>,
    keys: HashMap<(u64, TurnKey), KeyRow>,
    snapshots: HashMap<SnapshotId, SnapshotRow>,
    scopes: BTreeMap<ScopeKey, BTreeMap<String, Json>>,
    artifacts: BTreeMap<(u64, String, u64), ArtifactRow>,
    blobs: BTreeMap<(u64, Digest), Vec<u8>>,
    packs: BTreeMap<(u64, u64, u64), PackRow>,
    streams: BTreeMap<(u64, u64), StreamRow>,
    /// Streams with packs, by the time their turns ended.
    ended: BTreeSet<(Timestamp, u64, u64)>,
    /// Live sessions by the position of their last record, and by number.
    updated: BTreeMap<u64, u64>,
    created: BTreeMap<u64, u64>,
}

impl Tables {
    fn scan_rows(&self, scan: Scan, visit: &mut dyn FnMut(&RecordRow) -> Result<Flow>) -> Result<()> {
        let range = (scan.num, scan.from)..=(scan.num, scan.to.max(scan.from));
        if scan.to < scan.from {
            return Ok(());
        }
        let keys: Box<dyn Iterator<Item = &(u64, u64)>> = match (scan.only, scan.newest_first) {
            (Only::Snapshots, false) => Box::new(self.named.range(range)),
            (Only::Snapshots, true) => Box::new(self.named.range(range).rev()),
            (Only::All, false) => Box::new(self.records.range(range).map(|(key, _)| key)),
            (Only::All, true) => Box::new(self.records.range(range).rev().map(|(key, _)| key)),
        };
        for key in keys {
            let Some((_, row)) = self.records.get(key) else { continue };
            if scan.segment.is_none_or(|segment| segment == row.meta.segment) && visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }
}

fn owned(owner: Owner<'_>, row: &SessionRow) -> bool {
    owner.app.is_none_or(|app| *app == row.key.app) && owner.user.is_none_or(|user| *user == row.key.user)
}

impl Read for Tables {
    fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>> {
        Ok(self.by_key.get(key).and_then(|num| self.sessions.get(num)).cloned())
    }

    fn session(&self, num: u64) -> Result<Option<SessionRow>> {
        Ok(self.sessions.get(&num).cloned())
    }

    fn deleted_sessions(&self) -> Result<Vec<SessionRow>> {
        Ok(self.sessions.values().filter(|row| row.deleted).cloned().collect())
    }

    fn tree_sessions(&self, tree: u64) -> Result<Vec<SessionRow>> {
        Ok(self.sessions.values().filter(|row| row.tree == tree).cloned().collect())
    }

    fn record(&self, num: u64, seq: u64) -> Result<Option<RecordRow>> {
        Ok(self.records.get(&(num, seq)).map(|(_, row)| row.clone()))
    }

    fn meta(&self, num: u64, seq: u64) -> Result<Option<RecordMeta>> {
        Ok(self.records.get(&(num, seq)).map(|(_, row)| row.meta.clone()))
    }

    fn scan(&self, scan: Scan, visit: Visit<'_, RecordRow>) -> Result<()> {
        self.scan_rows(scan, &mut |row| visit(row.clone()))
    }

    fn scan_meta(&self, scan: Scan, visit: Visit<'_, RecordMeta>) -> Result<()> {
        self.scan_rows(scan, &mut |row| visit(row.meta.clone()))
    }

    fn scan_line(&self, line: &[Interval], visit: VisitPacked<'_>) -> Result<()> {
        for stretch in line {
            self.scan_rows(Scan::of(stretch), &mut |row| {
                visit(row.meta.clone(), &row.body)?;
                Ok(Flow::More)
            })?;
        }
        Ok(())
    }

    fn segment(&self, id: u64) -> Result<Option<SegmentRow>> {
        Ok(self.segments.get(&id).copied())
    }

    fn ancestry(&self, id: u64, visit: Visit<'_, SegmentRow>) -> Result<()> {
        let mut next = self.segments.get(&id);
        while let Some(row) = next {
            if visit(*row)? == Flow::Stop {
                break;
            }
            next = row.parent.and_then(|parent| self.segments.get(&parent.segment));
        }
        Ok(())
    }

    fn segments(&self, num: u64) -> Result<Vec<SegmentRow>> {
        let ids = self.segments_of.range((num, 0)..=(num, u64::MAX));
        Ok(ids.filter_map(|(_, id)| self.segments.get(id)).copied().collect())
    }

    fn branch(&self, num: u64, name: &BranchName) -> Result<Option<BranchRow>> {
        Ok(self.branches.get(&(num, name.clone())).cloned())
    }

    fn branches(&self, num: u64) -> Result<Vec<BranchRow>> {
        Ok(self.branches.iter().filter(|((of, _), _)| *of == num).map(|(_, row)| row.clone()).collect())
    }

    fn turn(&self, num: u64, begin: u64) -> Result<Option<TurnRow>> {
        Ok(self.turns.get(&(num, begin)).cloned())
    }

    fn turns(&self, num: Option<u64>) -> Result<Vec<TurnRow>> {
        let range = match num {
            Some(num) => (Bound::Included((num, 0)), Bound::Included((num, u64::MAX))),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        Ok(self.turns.range(range).map(|(_, row)| row.clone()).collect())
    }

    fn key(&self, num: u64, key: &TurnKey) -> Result<Option<KeyRow>> {
        Ok(self.keys.get(&(num, key.clone())).cloned())
    }

    fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>> {
        Ok(self.snapshots.get(&id).cloned())
    }

    fn scope(&self, scope: Scope, app: &AppName, user: Option<&UserId>) -> Result<Vec<(String, Json)>> {
        let keys = self.scopes.get(&(scope, app.clone(), user.cloned()));
        Ok(keys.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn artifacts(&self, num: u64, name: Option<&str>) -> Result<Vec<ArtifactRow>> {
        let all = self.artifacts.range((num, String::new(), 0)..(num + 1, String::new(), 0));
        let rows = all.filter(|((_, of, _), _)| name.is_none_or(|name| name == of));
        Ok(rows.map(|(_, row)| row.clone()).collect())
    }

    fn blob(&self, tree: u64, digest: Digest) -> Result<Option<Vec<u8>>> {
        Ok(self.blobs.get(&(tree, digest)).cloned())
    }

    fn has_blobs(&self, tree: u64) -> Result<bool> {
        Ok(self.blobs.keys().any(|(of, _)| *of == tree))
    }

    fn pack(&self, num: u64, turn: u64, at: PackAt) -> Result<Option<PackMeta>> {
        let mut packs = self.packs.range((num, turn, 0)..=(num, turn, u64::MAX));
        let found = match at {
            PackAt::Oldest => packs.next(),
            PackAt::Newest => packs.next_back(),
        };
        Ok(found.map(|(_, row)| row.meta))
    }

    fn packs(&self, num: u64, turn: u64, chunk: u64, visit: Visit<'_, PackRow>) -> Result<()> {
        let before = self.packs.range((num, turn, 0)..=(num, turn, chunk)).next_back();
        let first = before.map_or(chunk, |(_, row)| row.meta.first);
        for row in self.packs.range((num, turn, first)..=(num, turn, u64::MAX)).map(|(_, row)| row) {
            if visit(row.clone())? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn stream(&self, num: u64, turn: u64) -> Result<Option<StreamRow>> {
        Ok(self.streams.get(&(num, turn)).copied())
    }

    fn stream_ended_by(&self, time: Timestamp) -> Result<Option<StreamRow>> {
        let first = self.ended.first().filter(|(ended_at, _, _)| *ended_at <= time);
        Ok(first.and_then(|(_, num, turn)| self.streams.get(&(*num, *turn))).copied())
    }

    fn position(&self) -> Result<u64> {
        Ok(self.positions)
    }

    fn position_at(&self, num: u64, at: u64) -> Result<Option<u64>> {
        let rows = self.records.range((num, 0)..=(num, u64::MAX)).rev();
        Ok(rows.map(|(_, (pos, _))| *pos).find(|pos| *pos <= at))
    }

    fn list(&self, list: ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<()> {
        let index = if list.by == ListBy::Created { &self.created } else { &self.updated };
        let nums: Box<dyn Iterator<Item = &u64>> = match (list.newest_first, list.after) {
            (true, None) => Box::new(index.values().rev()),
            (true, Some(after)) => Box::new(index.range(..after).rev().map(|(_, num)| num)),
            (false, None) => Box::new(index.values()),
            (false, Some(after)) => Box::new(index.range(after + 1..).map(|(_, num)| num)),
        };
        for num in nums {
            let Some(row) = self.sessions.get(num).filter(|row| owned(list.owner, row)) else { continue };
            if visit(row.clone())? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn touched_since(&self, owner: Owner<'_>, pos: u64, visit: Visit<'_, SessionRow>) -> Result<()> {
        for num in self.updated.range(pos + 1..).map(|(_, num)| num) {
            let Some(row) = self.sessions.get(num).filter(|row| owned(owner, row)) else { continue };
            if visit(row.clone())? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }
}

impl Write for Tables {
    fn new_num(&mut self) -> Result<u64> {
        self.nums += 1;
        Ok(self.nums)
    }

    fn put_session(&mut self, row: &SessionRow) -> Result<()> {
        if let Some(old) = self.sessions.insert(row.num, row.clone()) {
            self.updated.remove(&old.updated_pos);
        }
        if row.deleted {
            self.by_key.remove(&row.key);
            self.created.remove(&row.num);
        } else {
            self.by_key.insert(row.key.clone(), row.num);
            self.created.insert(row.num, row.num);
            self.updated.insert(row.updated_pos, row.num);
        }
        Ok(())
    }

    fn append(&mut self, meta: &RecordMeta, body: &[u8]) -> Result<u64> {
        self.positions += 1;
        let key = (meta.num, meta.seq);
        self.records.insert(key, (self.positions, RecordRow { meta: meta.clone(), body: body.to_vec() }));
        if meta.snapshot.is_some() {
            self.named.insert(key);
        }
        Ok(self.positions)
    }

    fn new_segment(&mut self, num: u64, parent: Option<Place>) -> Result<u64> {
        self.segment_ids += 1;
        let id = self.segment_ids;
        self.segments.insert(id, SegmentRow { id, num, parent });
        self.segments_of.insert((num, id));
        Ok(id)
    }

    fn put_branch(&mut self, num: u64, row: &BranchRow) -> Result<()> {
        self.branches.insert((num, row.name.clone()), row.clone());
        Ok(())
    }

    fn delete_branch(&mut self, num: u64, name: &BranchName) -> Result<()> {
        self.branches.remove(&(num, name.clone()));
        Ok(())
    }

    fn put_turn(&mut self, row: &TurnRow) -> Result<()> {
        self.turns.insert((row.num, row.begin), row.clone());
        Ok(())
    }

    fn delete_turn(&mut self, num: u64, begin: u64) -> Result<()> {
        self.turns.remove(&(num, begin));
        Ok(())
    }

    fn put_key(&mut self, num: u64, key: &TurnKey, row: &KeyRow) -> Result<()> {
        self.keys.insert((num, key.clone()), row.clone());
        Ok(())
    }

    fn put_snapshot(&mut self, row: &SnapshotRow) -> Result<()> {
        self.snapshots.insert(row.id, row.clone());
        Ok(())
    }

    fn remove_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        self.snapshots.remove(&id);
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
        let keys = self.scopes.entry((scope, app.clone(), user.cloned())).or_default();
        match value {
            Some(value) => keys.insert(key.to_owned(), value.clone()),
            None => keys.remove(key),
        };
        Ok(())
    }

    fn put_artifact(&mut self, num: u64, row: &ArtifactRow) -> Result<()> {
        self.artifacts.insert((num, row.name.clone(), row.version), row.clone());
        Ok(())
    }

    fn put_blob(&mut self, tree: u64, digest: Digest, body: &[u8]) -> Result<()> {
        self.blobs.entry((tree, digest)).or_insert_with(|| body.to_vec());
        Ok(())
    }

    fn put_pack(&mut self, row: &PackRow) -> Result<()> {
        self.packs.insert((row.meta.num, row.meta.turn, row.meta.first), row.clone());
        Ok(())
    }

    fn remove_pack(&mut self, meta: &PackMeta) -> Result<()> {
        self.packs.remove(&(meta.num, meta.turn, meta.first));
        Ok(())
    }

    fn remove_packs(&mut self, num: u64, turn: u64) -> Result<()> {
        self.packs.extract_if((num, turn, 0)..=(num, turn, u64::MAX), |_, _| true).for_each(drop);
        Ok(())
    }

    fn put_stream(&mut self, row: &StreamRow) -> Result<()> {
        let old = self.streams.insert((row.num, row.turn), *row);
        if let Some(ended_at) = old.and_then(|old| old.ended_at) {
            self.ended.remove(&(ended_at, row.num, row.turn));
        }
        if let Some(ended_at) = row.ended_at {
            self.ended.insert((ended_at, row.num, row.turn));
        }
        Ok(())
    }

    fn remove_records(&mut self, num: u64, from: u64, to: u64, segment: u64, limit: usize) -> Result<usize> {
        let rows = self.records.range((num, from)..=(num, to));
        let gone: Vec<_> =
            rows.filter(|(_, (_, row))| row.meta.segment == segment).map(|(key, _)| *key).take(limit).collect();
        for key in &gone {
            self.records.remove(key);
            self.named.remove(key);
        }
        Ok(gone.len())
    }

    fn remove_session_parts(&mut self, num: u64) -> Result<()> {
        self.branches.retain(|(of, _), _| *of != num);
        self.turns.retain(|(of, _), _| *of != num);
        self.keys.retain(|(of, _), _| *of != num);
        self.snapshots.retain(|_, row| row.num != num);
        self.packs.retain(|(of, _, _), _| *of != num);
        self.streams.retain(|(of, _), _| *of != num);
        self.ended.retain(|(_, of, _)| *of != num);
        Ok(())
    }

    fn keep_blobs(&mut self, tree: u64, keep: &BTreeSet<Digest>) -> Result<()> {
        self.blobs.retain(|(of, digest), _| *of != tree || keep.contains(digest));
        Ok(())
    }

    fn remove_session(&mut self, num: u64) -> Result<()> {
        self.sessions.remove(&num);
        self.artifacts.retain(|(of, _, _), _| *of != num);
        for (_, id) in self.segments_of.extract_if((num, 0)..=(num, u64::MAX), |_| true) {
            self.segments.remove(&id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod damage;
