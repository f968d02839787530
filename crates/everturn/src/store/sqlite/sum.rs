//! The checksums of rows: SQLite gives what is in a page, whether or not it is what was written.

use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::codec::damaged;
use super::failure;
use crate::Result;

/// The checksum of a row: CRC-32 over its values, each as a byte that says what it is and its bytes.
#[derive(Default)]
pub(super) struct Sum(crc32fast::Hasher);

impl Sum {
    pub(super) fn of<'v>(values: impl IntoIterator<Item = ValueRef<'v>>) -> i64 {
        let mut sum = Self::default();
        values.into_iter().for_each(|value| sum.add(value));
        sum.finish()
    }

    pub(super) fn add(&mut self, value: ValueRef<'_>) {
        let mut head = [0; 9];
        let mut put = |kind: u8, number: u64| {
            head[0] = kind;
            head[1..].copy_from_slice(&number.to_le_bytes());
        };
        let rest: &[u8] = match value {
            ValueRef::Null => &[],
            ValueRef::Integer(number) => {
                put(1, number.cast_unsigned());
                &[]
            }
            ValueRef::Real(number) => {
                put(2, number.to_bits());
                &[]
            }
            ValueRef::Text(text) => {
                put(3, text.len() as u64);
                text
            }
            ValueRef::Blob(bytes) => {
                put(4, bytes.len() as u64);
                bytes
            }
        };
        self.0.update(&head);
        self.0.update(rest);
    }

    pub(super) fn finish(self) -> i64 {
        i64::from(self.0.finalize())
    }
}

/// Whether a column is the sum of all before it.
pub(super) fn sum_of_columns(row: &Row<'_>, at: usize) -> Result<bool> {
    let mut sum = Sum::default();
    for column in 0..at {
        sum.add(row.get_ref(column).map_err(|e| failure(e, "read"))?);
    }
    Ok(row.get_ref(at).map_err(|e| failure(e, "read"))? == ValueRef::Integer(sum.finish()))
}

/// Checks a row whose last column is its sum; others are their readers' to check.
pub(super) fn check_sum(row: &Row<'_>, what: &str) -> Result<()> {
    let columns: &rusqlite::Statement<'_> = row.as_ref();
    let Some(last) = columns.column_count().checked_sub(1) else { return Ok(()) };
    if !columns.column_name(last).is_ok_and(|name| name == "sum") || sum_of_columns(row, last)? {
        return Ok(());
    }
    Err(damaged(&format!("a row ({})", what.replace('_', " "))))
}
