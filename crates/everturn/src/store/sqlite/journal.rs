//! The journal: what was written last, one entry for each transaction.
//!
//! It is kept in rows that fill a page each, its slots, and these are written over in place. A commit of one turn so puts one
//! page into SQLite's log, where a table that grows and is emptied puts three: its last page, one of the index above it, and
//! the list of free pages. The entries since the tables were last filled are a lap. They follow each other from the first
//! slot on; one that fits into a slot lies in a single one, even if that leaves the end of the one before empty. What an
//! earlier lap left in the slots behind them is told apart by its number.

use super::codec::{self, Uint, damaged};
use super::failure;
use super::pack::{put_bytes, take_bytes_of};
use super::sql::Sql;
use crate::Result;
use crate::store::engine::{put_varint, take_varint};

/// Bytes of a slot: with what SQLite adds to a row, what fits into a page without going on in another.
pub(super) const SLOT: usize = 4056;
/// Of those, the lap's number, how many bytes of it follow, and a checksum of both and them.
const HEAD: usize = 14;
const SUM: std::ops::Range<usize> = 10..HEAD;
/// Slots that are kept for the next lap. One that needed more gives them back.
pub(super) const KEPT: u64 = 64;

/// Where the journal ends, and the slot it ends in.
#[derive(Debug, Default)]
pub(super) struct Journal {
    lap: u64,
    slot: u64,
    used: usize,
    content: Vec<u8>,
}

/// Writes a slot.
pub(super) type PutSlot<'p> = &'p mut dyn FnMut(u64, &[u8]) -> Result<()>;

impl Journal {
    /// The number of the lap that was read: that of the entry before its first.
    pub(super) fn lap(&self) -> u64 {
        self.lap
    }

    /// Whether a lap has taken as many slots as it should.
    pub(super) fn is_long(&self) -> bool {
        self.slot + 1 >= KEPT
    }

    /// Whether a lap has taken more slots than are kept.
    pub(super) fn is_too_long(&self) -> bool {
        self.slot >= KEPT
    }

    /// Reads a lap from its start.
    pub(super) fn read(&mut self, sql: &Sql<'_>) -> Result<Vec<u8>> {
        *self = Self::default();
        let lap = sql.one("slot", [0], |row| Ok(lap_of(row_content(row, 0)?)))?;
        self.lap = lap.ok_or_else(|| damaged("the journal"))?;
        self.read_slots(sql)
    }

    /// Reads what follows what was read. Nothing comes if another lap has begun since.
    pub(super) fn read_on(&mut self, sql: &Sql<'_>) -> Result<Option<Vec<u8>>> {
        match sql.one("slot", [0], |row| Ok(lap_of(row_content(row, 0)?)))? {
            Some(lap) if lap == self.lap => self.read_slots(sql).map(Some),
            _ => Ok(None),
        }
    }

    fn read_slots(&mut self, sql: &Sql<'_>) -> Result<Vec<u8>> {
        let mut fresh = Vec::new();
        let mut statement = sql.statement("slots")?;
        let mut rows = statement.query([codec::int(self.slot)]).map_err(|e| failure(e, "read"))?;
        let mut expected = self.slot;
        while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
            let at = row.get::<_, Uint>(0).map_err(|e| failure(e, "read"))?.0;
            let content = row_content(row, 1)?;
            if lap_of(content) != self.lap {
                break;
            }
            if at != expected {
                return Err(damaged("the journal"));
            }
            let known = if at == self.slot { self.used } else { 0 };
            let used = used_of(content);
            fresh.extend_from_slice(content[HEAD..].get(known..used).ok_or_else(|| damaged("the journal"))?);
            (self.slot, self.used) = (at, used);
            self.content.clear();
            self.content.extend_from_slice(content);
            expected += 1;
        }
        Ok(fresh)
    }

    /// Begins a lap with some bytes. What the slots of the one before hold is read by nobody any more.
    pub(super) fn begin(&mut self, lap: u64, bytes: &[u8], put: PutSlot<'_>) -> Result<()> {
        (self.lap, self.slot) = (lap, 0);
        self.enter_slot();
        self.append(bytes, put)
    }

    /// Writes bytes behind all others.
    pub(super) fn append(&mut self, mut bytes: &[u8], put: PutSlot<'_>) -> Result<()> {
        let room = SLOT - HEAD - self.used;
        let mut full = room < bytes.len() && bytes.len() <= SLOT - HEAD;
        while !bytes.is_empty() {
            if full || self.used == SLOT - HEAD {
                self.slot += 1;
                self.enter_slot();
                full = false;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(SLOT - HEAD - self.used));
            self.content[HEAD + self.used..][..now.len()].copy_from_slice(now);
            self.used += now.len();
            self.content[8..SUM.start].copy_from_slice(&(self.used as u16).to_le_bytes());
            let sum = sum_of(&self.content).unwrap_or(0);
            self.content[SUM].copy_from_slice(&sum.to_le_bytes());
            put(self.slot, &self.content)?;
            bytes = rest;
        }
        Ok(())
    }

    fn enter_slot(&mut self) {
        self.used = 0;
        self.content.clear();
        self.content.resize(SLOT, 0);
        self.content[..8].copy_from_slice(&self.lap.to_le_bytes());
    }
}

/// A slot's content as it was written, also one that an earlier lap left.
fn row_content<'r>(row: &'r rusqlite::Row<'_>, column: usize) -> Result<&'r [u8]> {
    let content = row.get_ref(column).ok().and_then(|value| value.as_blob().ok());
    let sound =
        |content: &&[u8]| content.len() == SLOT && sum_of(content).is_some_and(|sum| content[SUM] == sum.to_le_bytes());
    content.filter(sound).ok_or_else(|| damaged("the journal"))
}

fn used_of(content: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([content[8], content[9]]))
}

fn sum_of(content: &[u8]) -> Option<u32> {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&content[..SUM.start]);
    sum.update(content[HEAD..].get(..used_of(content))?);
    Some(sum.finalize())
}

fn lap_of(content: &[u8]) -> u64 {
    let mut lap = [0; 8];
    lap.copy_from_slice(&content[..8]);
    u64::from_le_bytes(lap)
}

/// What the first bytes of a lap say: the tables are filled up to a position, and this was the last session number then.
#[derive(Debug, PartialEq)]
pub(super) struct Start {
    pub(super) position: u64,
    pub(super) num: u64,
}

impl Start {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.position);
        put_varint(out, self.num);
    }

    pub(super) fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { position: take_varint(bytes)?, num: take_varint(bytes)? })
    }
}

/// What one transaction wrote.
#[derive(Debug, PartialEq)]
pub(super) struct Entry<'e> {
    /// The store's last position and the last session number given, after it.
    pub(super) position: u64,
    pub(super) num: u64,
    /// What it changed in rows that are not in their tables yet.
    pub(super) changes: &'e [u8],
    /// The records it wrote, if they are not in their table: then all before them that were not are as well.
    pub(super) records: &'e [u8],
}

impl<'e> Entry<'e> {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.position);
        put_varint(out, self.num);
        put_bytes(self.changes, out);
        put_bytes(self.records, out);
    }

    pub(super) fn take(bytes: &mut &'e [u8]) -> Option<Self> {
        Some(Self {
            position: take_varint(bytes)?,
            num: take_varint(bytes)?,
            changes: take_bytes_of(bytes)?,
            records: take_bytes_of(bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rusqlite::{Connection, params};

    use super::*;

    #[test]
    fn a_lap_is_read_as_it_was_written_and_from_where_one_left_off() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema_4.sql")).unwrap();
        let sql = Sql(&conn);
        let mut put = |at: u64, content: &[u8]| sql.run("put_slot", params![codec::int(at), content]).map(drop);
        let (mut writer, mut reader) = (Journal::default(), Journal::default());
        for (lap, sizes) in [(7, [1, 0, 9000, 3, 4046]), (8, [5, 4041, 1, 8092, 2]), (9, [20_000, 1, 1, 1, 1])] {
            writer.begin(lap, &[0xee], &mut put).unwrap();
            assert_eq!(reader.read_on(&sql).unwrap(), None, "lap {lap} was not noticed");
            assert_eq!((reader.read(&sql).unwrap(), reader.lap()), (vec![0xee], lap));
            let mut all = vec![0xee];
            for (i, size) in sizes.into_iter().enumerate() {
                let bytes = vec![i as u8 + 1; size];
                writer.append(&bytes, &mut put).unwrap();
                assert_eq!(reader.read_on(&sql).unwrap(), Some(bytes.clone()), "entry {i} of lap {lap}");
                all.extend(bytes);
                assert_eq!(Journal::default().read(&sql).unwrap(), all);
            }
        }
    }

    #[test]
    fn an_entry_that_fits_into_a_slot_is_in_one() {
        let room = SLOT - HEAD;
        for size in [1, 1_300, room / 2 + 1, room] {
            let mut journal = Journal::default();
            journal.begin(1, &[0], &mut |_, _| Ok(())).unwrap();
            for entry in 0..10 {
                let mut slots = Vec::new();
                let mut put = |at: u64, _: &[u8]| {
                    slots.push(at);
                    Ok(())
                };
                journal.append(&vec![7; size], &mut put).unwrap();
                assert_eq!(slots.len(), 1, "entry {entry} of {size} bytes is in slots {slots:?}");
            }
        }
    }

    /// A row that is written over with one of the same length stays where it is.
    #[test]
    fn an_entry_changes_one_page() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema_4.sql")).unwrap();
        let sql = Sql(&conn);
        for at in 0..KEPT {
            sql.run("put_slot", params![codec::int(at), vec![1_u8; SLOT]]).unwrap();
        }
        let pages = || {
            let mut statement =
                conn.prepare("SELECT pageno, payload, mx_payload FROM dbstat WHERE name = 'slot'").unwrap();
            let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, (row.get::<_, i64>(1)?, row.get(2)?))));
            rows.unwrap().collect::<rusqlite::Result<BTreeMap<i64, (i64, i64)>>>().unwrap()
        };
        let before = pages();
        let leaves = before.values().filter(|(payload, largest)| *payload > 0 && payload == largest);
        assert_eq!(leaves.count() as u64, KEPT, "a slot shares its page, or takes more than one: {before:?}");
        sql.run("put_slot", params![codec::int(5), vec![2_u8; SLOT]]).unwrap();
        assert_eq!(pages(), before);
    }

    #[test]
    fn entries_round_trip_and_a_cut_is_noticed() {
        let entry = Entry { position: 300, num: 2, changes: b"changes", records: b"" };
        let mut bytes = Vec::new();
        entry.put(&mut bytes);
        assert_eq!(Entry::take(&mut &bytes[..]), Some(entry));
        for end in 0..bytes.len() {
            assert_eq!(Entry::take(&mut &bytes[..end]), None);
        }
    }
}
