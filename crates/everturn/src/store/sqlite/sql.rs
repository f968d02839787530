//! Statements by name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;

use rusqlite::functions::FunctionFlags;
use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension, Params, Row};

use super::super::engine::Flow;
use super::codec::{self, Uint};
use super::failure;
use super::sum::{Sum, check_sum};
use crate::Result;

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

/// A connection, asked by name.
#[derive(Clone, Copy)]
pub(super) struct Sql<'c>(pub(super) &'c Connection);

impl<'c> Sql<'c> {
    pub(super) fn statement(&self, name: &str) -> Result<CachedStatement<'c>> {
        let sql = QUERIES.get(name).copied().unwrap_or("");
        debug_assert!(!sql.is_empty(), "no statement is called {name}");
        self.0.prepare_cached(sql).map_err(|e| match e.sqlite_error_code() {
            // All of them are right for the tables as they should be.
            Some(ErrorCode::Unknown) => codec::damaged("what describes the tables").with_source(e),
            _ => failure(e, "read"),
        })
    }

    pub(super) fn one<T>(
        &self,
        name: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.statement(name)?;
        let mut rows = statement.query(params).map_err(|e| failure(e, "read"))?;
        rows.next().map_err(|e| failure(e, "read"))?.map(|row| checked(row, name).and_then(read)).transpose()
    }

    pub(super) fn all<T>(
        &self,
        name: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.each(name, params, &mut |row| {
            found.push(read(row)?);
            Ok(Flow::More)
        })?;
        Ok(found)
    }

    /// Visits rows until one says stop. Says whether one did.
    pub(super) fn each(
        &self,
        name: &str,
        params: impl Params,
        visit: &mut dyn FnMut(&Row<'_>) -> Result<Flow>,
    ) -> Result<Flow> {
        let mut statement = self.statement(name)?;
        let mut rows = statement.query(params).map_err(|e| failure(e, "read"))?;
        while let Some(row) = rows.next().map_err(|e| failure(e, "read"))? {
            check_sum(row, name)?;
            if visit(row)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::More)
    }

    pub(super) fn run(&self, name: &str, params: impl Params) -> Result<usize> {
        self.statement(name)?.execute(params).map_err(|e| failure(e, "write"))
    }

    pub(super) fn number(&self, name: &str, params: impl Params) -> Result<Option<u64>> {
        let mut statement = self.statement(name)?;
        let value = statement.query_row(params, |row| row.get::<_, Option<Uint>>(0)).optional();
        Ok(value.map_err(|e| failure(e, "read"))?.flatten().map(|value| value.0))
    }
}

/// A row that is as it was written.
fn checked<'r, 's>(row: &'r Row<'s>, what: &str) -> Result<&'r Row<'s>> {
    check_sum(row, what).map(|()| row)
}

/// Gives a connection the function that statements make a row's sum with.
pub(super) fn add_functions(conn: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    conn.create_scalar_function("row_sum", -1, flags, |values| {
        Ok(Sum::of((0..values.len()).map(|at| values.get_raw(at))))
    })
}

/// A statement that is looked up when it is first needed, and kept: finding it by its text costs about as much as a
/// small one takes to run.
pub(super) struct Held<'c> {
    name: &'static str,
    statement: RefCell<Option<CachedStatement<'c>>>,
}

impl<'c> Held<'c> {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, statement: RefCell::new(None) }
    }

    fn with<T>(&self, sql: &Sql<'c>, work: impl FnOnce(&mut CachedStatement<'c>) -> Result<T>) -> Result<T> {
        let mut slot = self.statement.borrow_mut();
        match &mut *slot {
            Some(statement) => work(statement),
            none => work(none.insert(sql.statement(self.name)?)),
        }
    }

    pub(super) fn run(&self, sql: &Sql<'c>, params: impl Params) -> Result<usize> {
        self.with(sql, |statement| statement.execute(params).map_err(|e| failure(e, "write")))
    }

    pub(super) fn one<T>(
        &self,
        sql: &Sql<'c>,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.with(sql, |statement| {
            let mut rows = statement.query(params).map_err(|e| failure(e, "read"))?;
            rows.next().map_err(|e| failure(e, "read"))?.map(|row| checked(row, self.name).and_then(read)).transpose()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_compiles_and_none_is_listed_twice() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE journal (at, position, num, changes)").unwrap();
        add_functions(&conn).unwrap();
        let schemas = [
            include_str!("schema.sql"),
            include_str!("schema_2.sql"),
            include_str!("schema_4.sql"),
            include_str!("schema_5.sql"),
        ];
        for schema in schemas {
            conn.execute_batch(schema).unwrap();
        }
        for (name, sql) in QUERIES.iter() {
            conn.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let named = include_str!("queries.sql").lines().filter(|l| l.starts_with("-- ") && !l.contains('.')).count();
        assert_eq!(named, QUERIES.len());
    }
}
