//! What was written since the tables were last filled, in memory.
//!
//! A write appends one entry to the journal, with its records in it, and touches nothing else: a page or two. Where it writes
//! many records or long ones, they go into their table at once, and those that were in the journal only go before them. Every
//! connection keeps what the journal says beside what the tables hold, and catches up with what others wrote at the start of
//! each transaction. Once enough has gathered, the writer fills it into the tables and the journal begins anew.
//!
//! Invariant: within a transaction, the tables and this together are what the store holds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use super::super::engine::{RecordMeta, SegmentRow, SessionRow, SnapshotRow, TurnRow};
use super::change::Change;
use super::codec::{self, Uint, damaged};
use super::failure;
use super::journal::{Entry, Journal, PutSlot, Start};
use super::pack::{Pack, put_bytes, take_bytes_of};
use super::sql::Sql;
use crate::session::SessionKey;
use crate::{Error, Result, SnapshotId};

/// Records after which the tables are filled at the soonest, unless even fewer may wait.
const FEW: u64 = 128;
/// As long as each session has been written to less often than this, waiting saves filling its row again.
const PER_SESSION: u64 = 16;
/// A buffer for entries that is larger is given back.
const LARGE: usize = 256 << 10;
/// Segments kept at hand that are in their table.
const LOOKED_UP: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The last entry of the journal that is in here; nothing before the first is read.
    at: Option<u64>,
    /// Where it is in the journal.
    journal: Journal,
    /// What SQLite called the file's content when the journal was last read: it is called otherwise once another connection
    /// has written.
    version: Option<u64>,
    /// The position of the last record, the one up to which tables are filled, and the one up to which records are in theirs.
    position: u64,
    filled: u64,
    stored: u64,
    /// The records after that, which are in the journal only.
    unstored: Vec<Unstored>,
    /// What entries are made in.
    buffer: Vec<u8>,
    /// The last session number given.
    pub(super) last_num: u64,
    sessions: BTreeMap<u64, SessionRow>,
    keys: HashMap<SessionKey, u64>,
    pub(super) segments: BTreeMap<u64, SegmentRow>,
    /// Segments that were looked up in their table, where they never change.
    looked_up: RefCell<HashMap<u64, SegmentRow>>,
    /// Running turns; nothing where one has ended that the table still holds.
    pub(super) turns: BTreeMap<(u64, u64), Option<Box<TurnRow>>>,
    /// Snapshots; nothing where one is gone that the table may hold.
    pub(super) snapshots: HashMap<SnapshotId, Option<Box<SnapshotRow>>>,
    /// The greatest id in the table of snapshots, once somebody looked. It changes with the table, when it is filled.
    newest_filled: Cell<Option<Option<SnapshotId>>>,
    /// Records by session and number, with their positions.
    pub(super) records: BTreeMap<(u64, u64), (u64, RecordMeta)>,
    kept: Kept,
}

/// A record that is in the journal only.
#[derive(Debug)]
struct Unstored {
    num: u64,
    seq: u64,
    body: Box<[u8]>,
}

/// What was filled into the tables the last time, as it is there: whoever wrote lately mostly writes next, and asks for its
/// session, its head, its turn and its last snapshot. Only for rows that are not in the journal, and dropped when any other
/// connection has written or anything is removed from the tables.
#[derive(Debug, Default)]
struct Kept {
    sessions: BTreeMap<u64, SessionRow>,
    keys: HashMap<SessionKey, u64>,
    turns: BTreeMap<(u64, u64), Option<Box<TurnRow>>>,
    snapshots: HashMap<SnapshotId, Option<Box<SnapshotRow>>>,
    records: BTreeMap<(u64, u64), (u64, RecordMeta)>,
}

impl Recent {
    /// Takes in what was written since the last transaction.
    pub(super) fn catch_up(&mut self, sql: &Sql<'_>) -> Result<()> {
        let version = sql.number("data_version", [])?;
        if self.at.is_some() && self.version == version {
            return Ok(());
        }
        self.forget_kept();
        if !matches!(self.read_on(sql), Ok(true)) {
            self.forget();
            if let Err(error) = self.read_lap(sql) {
                // What was read of it is not the whole.
                self.forget();
                return Err(error);
            }
        }
        self.version = version;
        Ok(())
    }

    /// Reads the journal from its start.
    fn read_lap(&mut self, sql: &Sql<'_>) -> Result<()> {
        let bytes = self.journal.read(sql)?;
        let mut bytes = &bytes[..];
        let start = Start::take(&mut bytes).filter(|start| start.position.max(self.journal.lap()) < u64::MAX >> 1);
        let start = start.ok_or_else(|| damaged("the journal"))?;
        (self.position, self.filled, self.stored, self.last_num) =
            (start.position, start.position, start.position, start.num);
        self.at = Some(self.journal.lap());
        self.take_entries(bytes, sql)
    }

    /// Reads on where it was left. Says whether that was possible: not if it began anew since.
    fn read_on(&mut self, sql: &Sql<'_>) -> Result<bool> {
        if self.at.is_none() {
            return Ok(false);
        }
        let Some(bytes) = self.journal.read_on(sql)? else { return Ok(false) };
        self.take_entries(&bytes, sql)?;
        Ok(true)
    }

    fn take_entries(&mut self, mut bytes: &[u8], sql: &Sql<'_>) -> Result<()> {
        let mut unread = None;
        while !bytes.is_empty() {
            let entry = Entry::take(&mut bytes).ok_or_else(|| damaged("the journal"))?;
            self.next_entry();
            self.apply_all(entry.changes)?;
            if entry.records.is_empty() && entry.position > self.position {
                unread.get_or_insert(self.position);
                self.position = entry.position;
                self.are_stored();
            }
            let mut records = entry.records;
            while !records.is_empty() {
                let record = RecordMeta::take(&mut records).zip(take_bytes_of(&mut records));
                let (meta, body) = record.ok_or_else(|| damaged("the journal"))?;
                self.append_unstored(meta, body);
            }
            if self.position != entry.position {
                return Err(damaged("the journal"));
            }
            self.last_num = entry.num;
        }
        match unread {
            Some(known) => self.read_records(sql, known),
            None => Ok(()),
        }
    }

    /// What a file says that has kept its journal as older formats did, one row for each entry.
    pub(super) fn of_old_journal(sql: &Sql<'_>) -> Result<Self> {
        let mut recent = Self::default();
        let mut statement = sql.statement("old_journal")?;
        let mut rows = statement.query([]).map_err(|e| failure(e, "read"))?;
        while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
            let number = |i: usize| row.get::<_, Uint>(i).map(|value| value.0).map_err(|e| failure(e, "read"));
            (recent.position, recent.last_num) = (number(0)?, number(1)?);
            match recent.next_entry() {
                0 => recent.filled = recent.position,
                _ => recent.apply_all(
                    row.get_ref(2).ok().and_then(|v| v.as_blob().ok()).ok_or_else(|| damaged("the journal"))?,
                )?,
            }
        }
        recent.stored = recent.position;
        recent.read_records(sql, recent.filled)?;
        Ok(recent)
    }

    fn apply_all(&mut self, mut changes: &[u8]) -> Result<()> {
        while !changes.is_empty() {
            let change = Change::take(&mut changes).ok_or_else(|| damaged("the journal"))?;
            self.apply(change)?;
        }
        Ok(())
    }

    fn read_records(&mut self, sql: &Sql<'_>, after: u64) -> Result<()> {
        for (pos, meta) in sql.all("records_after", [codec::int(after)], |row| {
            Ok((row.get::<_, Uint>(13).map_err(|e| failure(e, "read"))?.0, codec::meta(row)?))
        })? {
            self.records.insert((meta.num, meta.seq), (pos, meta));
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, change: Change) -> Result<()> {
        match change {
            Change::Session(row) => {
                if row.deleted {
                    self.keys.remove(&row.key);
                } else {
                    self.keys.insert(row.key.clone(), row.num);
                }
                self.sessions.insert(row.num, *row);
            }
            Change::Progress(progress) => {
                let row = self.sessions.get_mut(&progress.num).ok_or_else(|| damaged("the journal"))?;
                progress.apply_to(row);
            }
            Change::Segment(row) => {
                self.segments.insert(row.id, row);
            }
            Change::Turn(row) => {
                self.turns.insert((row.num, row.begin), Some(row));
            }
            Change::TurnGone(num, begin) => {
                self.turns.insert((num, begin), None);
            }
            Change::Snapshot(row) => {
                self.snapshots.insert(row.id, Some(row));
            }
            Change::SnapshotGone(id) => {
                self.snapshots.insert(id, None);
            }
        }
        Ok(())
    }

    /// Takes in a record that was just appended to its table, as all before it are.
    pub(super) fn append(&mut self, meta: RecordMeta) {
        debug_assert!(self.unstored.is_empty(), "records would not follow each other");
        self.position += 1;
        self.stored = self.position;
        self.records.insert((meta.num, meta.seq), (self.position, meta));
    }

    /// Takes in a record that is to be in the journal only.
    pub(super) fn append_unstored(&mut self, meta: RecordMeta, body: &[u8]) {
        self.position += 1;
        self.unstored.push(Unstored { num: meta.num, seq: meta.seq, body: body.into() });
        self.records.insert((meta.num, meta.seq), (self.position, meta));
    }

    /// The body of a record that is in the journal only.
    pub(super) fn unstored_body(&self, pos: u64) -> Option<&[u8]> {
        let index = pos.checked_sub(self.stored + 1)?;
        self.unstored.get(usize::try_from(index).ok()?).map(|record| &*record.body)
    }

    /// The records that are in the journal only, with their positions and bodies, the first of them first.
    pub(super) fn unstored(&self) -> impl Iterator<Item = Result<(u64, &RecordMeta, &[u8])>> {
        self.unstored.iter().map(|record| {
            let found = self.records.get(&(record.num, record.seq));
            let (pos, meta) = found.ok_or_else(|| Error::internal("a record of the journal is missing"))?;
            Ok((*pos, meta, &*record.body))
        })
    }

    /// All records are in their table now.
    pub(super) fn are_stored(&mut self) {
        self.unstored.clear();
        self.stored = self.position;
    }

    /// Writes an entry: what a transaction changed, and as many of the last records, if they are not in their table.
    pub(super) fn write_entry(&mut self, changes: &[u8], records: usize, put: PutSlot<'_>) -> Result<()> {
        self.next_entry();
        let mut carried = std::mem::take(&mut self.buffer);
        let first = self.unstored.len().saturating_sub(records);
        for record in &self.unstored[first..] {
            let found = self.records.get(&(record.num, record.seq));
            let (_, meta) = found.ok_or_else(|| Error::internal("a record of the journal is missing"))?;
            meta.put(&mut carried);
            put_bytes(&record.body, &mut carried);
        }
        let entry = Entry { position: self.position, num: self.last_num, changes, records: &carried };
        let mut bytes = Vec::with_capacity(changes.len() + carried.len() + 32);
        entry.put(&mut bytes);
        carried.clear();
        carried.shrink_to(LARGE);
        self.buffer = carried;
        self.journal.append(&bytes, put)
    }

    /// Begins the journal anew, everything having been filled into the tables.
    pub(super) fn begin_lap(&mut self, put: PutSlot<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        Start { position: self.position, num: self.last_num }.put(&mut bytes);
        let lap = self.next_entry();
        self.journal.begin(lap, &bytes, put)
    }

    /// Whether the journal has taken more slots than it keeps.
    pub(super) fn is_journal_too_long(&self) -> bool {
        self.journal.is_too_long()
    }

    /// Drops everything: it is read again, because a write was taken back.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Drops what has been filled into the tables. The journal is to begin anew.
    pub(super) fn filled(&mut self) {
        let Self {
            at, journal, version, position, last_num, sessions, keys, turns, snapshots, records, buffer, ..
        } = std::mem::take(self);
        let kept = Kept { sessions, keys, turns, snapshots, records };
        let (filled, stored) = (position, position);
        *self = Self { at, journal, version, position, filled, stored, last_num, kept, buffer, ..Self::default() };
    }

    /// Something is about to be removed from the tables.
    pub(super) fn forget_kept(&mut self) {
        self.kept = Kept::default();
    }

    /// A live session that is in its table and not in the journal, if it is at hand.
    pub(super) fn kept_session_by_key(&self, key: &SessionKey) -> Option<&SessionRow> {
        self.kept.keys.get(key).and_then(|num| self.kept_session(*num))
    }

    /// The same by its number, deleted or not.
    pub(super) fn kept_session(&self, num: u64) -> Option<&SessionRow> {
        self.kept.sessions.get(&num).filter(|_| !self.sessions.contains_key(&num))
    }

    /// A running turn that is in its table, if it is at hand and the journal does not say otherwise.
    pub(super) fn kept_turn(&self, num: u64, begin: u64) -> Option<&TurnRow> {
        self.kept.turns.get(&(num, begin)).filter(|_| !self.turns.contains_key(&(num, begin)))?.as_deref()
    }

    /// A snapshot that is in its table, if it is at hand and the journal does not say otherwise.
    pub(super) fn kept_snapshot(&self, id: SnapshotId) -> Option<&SnapshotRow> {
        self.kept.snapshots.get(&id).filter(|_| !self.snapshots.contains_key(&id))?.as_deref()
    }

    /// Records that are in their table and at hand: all of a session's from the first of them on, up to those in the journal.
    pub(super) fn kept_records(&self) -> &BTreeMap<(u64, u64), (u64, RecordMeta)> {
        &self.kept.records
    }

    /// The number of an entry about to be written or read.
    fn next_entry(&mut self) -> u64 {
        let next = self.at.map_or(0, |at| at + 1);
        self.at = Some(next);
        next
    }

    fn entries(&self) -> u64 {
        self.at.map_or(0, |at| at - self.journal.lap())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries() == 0 && self.position == self.filled
    }

    /// Whether it is time to fill the tables, if so many records may wait at most. Entries without a record count too.
    pub(super) fn is_due(&self, most: u64) -> bool {
        let waiting = (self.position - self.filled).max(self.entries());
        waiting >= (PER_SESSION * self.sessions.len() as u64).clamp(FEW.min(most), most) || self.journal.is_long()
    }

    /// The position of the store's last record.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The position up to which the tables know everything.
    pub(super) fn filled_up_to(&self) -> u64 {
        self.filled
    }

    /// A segment, looked up in its table when it is not in here.
    pub(super) fn segment(&self, id: u64, sql: &Sql<'_>) -> Result<Option<SegmentRow>> {
        if let Some(row) = self.segments.get(&id) {
            return Ok(Some(*row));
        }
        let mut looked_up = self.looked_up.borrow_mut();
        if let Some(row) = looked_up.get(&id) {
            return Ok(Some(*row));
        }
        let found = sql.one("segment", [codec::int(id)], codec::segment)?;
        if let Some(row) = found {
            if looked_up.len() >= LOOKED_UP {
                looked_up.clear();
            }
            looked_up.insert(id, row);
        }
        Ok(found)
    }

    /// Whether the table of snapshots may hold an id. Fresh ids are greater than all before them, and need no look.
    pub(super) fn may_be_filled(&self, id: SnapshotId, sql: &Sql<'_>) -> Result<bool> {
        let newest = match self.newest_filled.get() {
            Some(newest) => newest,
            None => {
                let newest = sql.one("newest_snapshot", [], codec::newest_snapshot)?.flatten();
                self.newest_filled.set(Some(newest));
                newest
            }
        };
        Ok(newest.is_some_and(|newest| id <= newest))
    }

    pub(super) fn session(&self, num: u64) -> Option<&SessionRow> {
        self.sessions.get(&num)
    }

    /// Sessions written to, by number, deleted ones too.
    pub(super) fn sessions(&self) -> impl DoubleEndedIterator<Item = &SessionRow> {
        self.sessions.values()
    }

    /// The live session under a key, if it was written to.
    pub(super) fn session_by_key(&self, key: &SessionKey) -> Option<&SessionRow> {
        self.keys.get(key).and_then(|num| self.sessions.get(num))
    }

    /// Whether a session has been created since the tables were filled.
    pub(super) fn is_new(&self, row: &SessionRow) -> bool {
        row.created_pos > self.filled
    }

    /// Whether everything of a session from a number on is in here. A session's numbers grow with positions, so what
    /// follows a record that is in here is in here too.
    pub(super) fn holds_all_from(&self, num: u64, seq: u64) -> bool {
        self.records.range((num, 0)..=(num, seq)).next_back().is_some()
    }
}
