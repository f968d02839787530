//! The rules' view of a SQLite file: its tables, and over them what the journal says.

mod check;
mod fill;
mod listing;
mod read;
mod write;

use rusqlite::{Connection, params};

use super::change::Change;
use super::codec::int;
use super::pack::Pack as _;
use super::recent::Recent;
use super::sql::{Held, Sql};
use crate::Result;
use crate::store::engine::Flow;

/// A connection inside a transaction.
pub(super) struct Rows<'c> {
    sql: Sql<'c>,
    hot: Hot<'c>,
    recent: &'c mut Recent,
    records: Records,
    /// What this transaction has changed and not written to the journal yet.
    changes: Vec<u8>,
    /// The last position that is in the journal.
    journaled: u64,
}

/// Where a transaction's records go.
#[derive(Clone, Copy, Debug)]
enum Records {
    /// Into the journal: so many of them, with so many bytes.
    Journal { count: usize, bytes: usize },
    /// Into their table.
    Table,
}

/// What becomes of the journal's slots when the tables are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// The next lap is written over them.
    Keep,
    /// They are free for anything, but for the first.
    GiveBack,
}

/// A transaction that writes more bytes than this puts its records into their table at once: in the journal they would be
/// written a second time.
const FEW_BYTES: usize = 8 << 10;
/// More jobs than this mostly write more bytes than that.
const FEW_JOBS: usize = 16;

/// Statements that every turn needs, looked up once for all turns of a transaction.
struct Hot<'c> {
    append: Held<'c>,
    put_slot: Held<'c>,
    find_snapshot: Held<'c>,
}

/// Begins the journal of a new file, or of one that has kept it otherwise: what that says goes into the tables.
pub(super) fn begin_journal(conn: &Connection) -> Result<()> {
    let sql = Sql(conn);
    let mut recent = Recent::default();
    if sql.number("has_old_journal", [])? == Some(1) {
        recent = Recent::of_old_journal(&sql)?;
        sql.run("drop_old_journal", [])?;
    }
    Rows::new(sql, &mut recent).fill_all()
}

impl<'c> Rows<'c> {
    /// Catches up with what others wrote. The transaction must have begun.
    pub(super) fn open(conn: &'c Connection, recent: &'c mut Recent) -> Result<Self> {
        let sql = Sql(conn);
        recent.catch_up(&sql)?;
        Ok(Self::new(sql, recent))
    }

    fn new(sql: Sql<'c>, recent: &'c mut Recent) -> Self {
        let journaled = recent.position();
        let hot =
            Hot { append: Held::new("append"), put_slot: Held::new("put_slot"), find_snapshot: Held::new("snapshot") };
        let records = Records::Journal { count: 0, bytes: 0 };
        Self { sql, hot, recent, records, changes: Vec::with_capacity(512), journaled }
    }

    /// For so many jobs, of which most write a record: where these will not stay in the journal, none is put there first.
    pub(super) fn expect(&mut self, jobs: usize) {
        if jobs > FEW_JOBS {
            self.records = Records::Journal { count: 0, bytes: FEW_BYTES };
        }
    }

    /// Writes what was changed to the journal, and fills the tables when more records than these wait in it.
    pub(super) fn close(mut self, fill_at: Option<u64>) -> Result<()> {
        let wrote = !self.changes.is_empty() || self.recent.position() > self.journaled;
        match wrote {
            false => Ok(()),
            true if fill_at.is_some_and(|most| self.recent.is_due(most)) => self.fill(),
            true => self.put_entry(),
        }
    }

    /// Fills the tables with all that is in the journal, so that they are all there is.
    pub(super) fn fill_tables(mut self, slots: Slots) -> Result<()> {
        if slots == Slots::GiveBack {
            // First, so that records come to where the journal was.
            self.clear_slots()?;
        }
        self.fill()?;
        if slots == Slots::GiveBack {
            self.sql.each("give_back", [], &mut |_| Ok(Flow::More))?;
        }
        Ok(())
    }

    /// Puts the records that are in the journal only into their table; those that follow go there too.
    fn store_records(&mut self) -> Result<()> {
        self.records = Records::Table;
        for record in self.recent.unstored() {
            let (pos, meta, body) = record?;
            self.insert(pos, meta, body)?;
        }
        self.recent.are_stored();
        Ok(())
    }

    /// Leaves nothing of the journal in the file that the next entry would not write over.
    fn clear_slots(&self) -> Result<()> {
        self.sql.run("remove_slots", [1]).map(drop)
    }

    fn change(&mut self, change: Change) -> Result<()> {
        change.put(&mut self.changes);
        self.recent.apply(change)
    }

    fn put_entry(&mut self) -> Result<()> {
        let carried = match self.records {
            Records::Journal { count, .. } => count,
            Records::Table => 0,
        };
        let (sql, put) = (&self.sql, &self.hot.put_slot);
        self.recent
            .write_entry(&self.changes, carried, &mut |at, content| put.run(sql, params![int(at), content]).map(drop))
    }
}
