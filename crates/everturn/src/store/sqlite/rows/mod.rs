//! The rules' view of a SQLite file: its tables, and over them what the journal says.

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

/// A connection inside a transaction.
pub(super) struct Rows<'c> {
    sql: Sql<'c>,
    hot: Hot<'c>,
    recent: &'c mut Recent,
    /// What this transaction has changed and not written to the journal yet.
    changes: Vec<u8>,
    /// The last position that is in the journal.
    journaled: u64,
}

/// Statements that every turn needs, looked up once for all turns of a transaction.
struct Hot<'c> {
    append: Held<'c>,
    find_snapshot: Held<'c>,
}

impl<'c> Rows<'c> {
    /// Catches up with what others wrote. The transaction must have begun.
    pub(super) fn open(conn: &'c Connection, recent: &'c mut Recent) -> Result<Self> {
        let sql = Sql(conn);
        recent.catch_up(&sql)?;
        let journaled = recent.position();
        let hot = Hot { append: Held::new("append"), find_snapshot: Held::new("snapshot") };
        Ok(Self { sql, hot, recent, changes: Vec::with_capacity(512), journaled })
    }

    /// Writes what was changed to the journal, and fills the tables when more records than these wait in it.
    pub(super) fn close(mut self, fill_at: Option<u64>) -> Result<()> {
        let wrote = !self.changes.is_empty() || self.recent.position() > self.journaled;
        if wrote {
            let entry = self.recent.next_entry();
            if !fill_at.is_some_and(|most| self.recent.is_due(most)) {
                return self.put_entry(entry);
            }
            self.fill()?;
        }
        Ok(())
    }

    /// Fills the tables with all that is in the journal, so that they are all there is.
    pub(super) fn settle(mut self) -> Result<()> {
        self.fill()
    }

    fn change(&mut self, change: Change) -> Result<()> {
        change.put(&mut self.changes);
        self.recent.apply(change)
    }

    fn put_entry(&mut self, entry: u64) -> Result<()> {
        let (position, num) = (int(self.recent.position()), int(self.recent.last_num));
        self.sql.run("put_entry", params![int(entry), position, num, self.changes])?;
        self.changes.clear();
        self.journaled = self.recent.position();
        Ok(())
    }
}
