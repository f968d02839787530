//! Reading every row, to find those that are not as they were written.

use rusqlite::Row;

use super::super::codec::{self, Uint, int};
use super::super::failure;
use super::super::sum::check_sum;
use super::Rows;
use crate::store::engine::{Damaged, Flow};
use crate::{Error, Result};

/// Statements that read a whole table: what a row is, and which columns have a session's number and a record's.
const TABLES: [(&str, &str, Option<usize>, Option<usize>); 12] = [
    ("every_session", "a session", Some(0), None),
    ("every_segment", "a segment", Some(1), None),
    ("every_branch", "a branch", Some(7), Some(1)),
    ("all_turns", "a running turn", Some(0), Some(1)),
    ("every_key", "a key", Some(2), Some(0)),
    ("every_snapshot", "a snapshot", Some(1), Some(2)),
    ("every_scope", "a key of a scope", None, None),
    ("every_artifact", "a version of an artifact", Some(4), Some(3)),
    ("every_blob", "the content of an artifact", None, None),
    ("every_pack", "a part of a stream", Some(0), Some(1)),
    ("every_stream", "a stream", Some(0), Some(1)),
    (RECORDS, "a record", Some(0), Some(1)),
];
const RECORDS: &str = "every_record";

impl Rows<'_> {
    pub(super) fn check_tables(&self, damaged: Damaged<'_>) -> Result<()> {
        for (name, what, num, seq) in TABLES {
            let mut at = |row: &Row<'_>, error: Error| {
                let number = |column: Option<usize>| column.map(|column| row.get(column).map(|Uint(number)| number));
                let num = number(num).and_then(std::result::Result::ok);
                let seq = number(seq).and_then(std::result::Result::ok);
                damaged(num.map(|num| (num, seq.unwrap_or(0))), format!("{what}: {error}"));
            };
            // Where SQLite cannot read on, what is behind is not known.
            if let Err(error) = self.check_table(name, &mut at) {
                damaged(None, format!("{what}, or more than one: {error}"));
            }
        }
        let number = |row: &Row<'_>, at: usize| row.get::<_, i64>(at).unwrap_or(-1).cast_unsigned();
        let text = |row: &Row<'_>, at: usize| row.get::<_, String>(at).unwrap_or_default();
        let mut found = Vec::new();
        // A session that was made since the tables were filled has rows in some of them already.
        let orphans = self.sql.each("orphans", [], &mut |row| {
            let num = number(row, 1);
            if self.recent.session(num).is_none() {
                let what = format!("{} ({} in all) belongs to no session: number {num}", text(row, 0), number(row, 3));
                found.push((None, what));
            }
            Ok(Flow::More)
        });
        let unplaced = self.sql.each("unplaced", [int(self.recent.filled_up_to())], &mut |row| {
            found.push((Some((number(row, 0), number(row, 1))), "nothing finds the record".to_owned()));
            Ok(Flow::More)
        });
        let integrity = self.sql.each("integrity", [], &mut |row| {
            let line = text(row, 0);
            if line != "ok" {
                found.push((None, format!("the file: {line}")));
            }
            Ok(Flow::More)
        });
        for error in [orphans, unplaced, integrity].into_iter().filter_map(Result::err) {
            found.push((None, format!("the file: {error}")));
        }
        found.into_iter().for_each(|(at, what)| damaged(at, what));
        Ok(())
    }

    fn check_table(&self, name: &str, damaged: &mut dyn FnMut(&Row<'_>, Error)) -> Result<()> {
        let mut statement = self.sql.statement(name)?;
        let mut rows = statement.query([]).map_err(|e| failure(e, "read"))?;
        while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
            let checked = match name {
                RECORDS => codec::record(row).map(drop),
                _ => check_sum(row, name),
            };
            checked.unwrap_or_else(|error| damaged(row, error));
        }
        Ok(())
    }
}
