//! What is done to a file.

use std::fmt;
use std::path::Path;

use crate::support::Rng;

const PAGE: usize = 4096;

pub(crate) enum Blow {
    /// Bytes to be exchanged for others, by their places.
    Bytes(Vec<(usize, u8)>),
    /// A page to be filled with these bytes.
    Page(usize, &'static str, Vec<u8>),
    /// Two pages to be exchanged.
    Swap(usize, usize),
    /// A statement, and the number that chooses a row.
    Statement(&'static str, i64),
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "bytes {bytes:?}"),
            Self::Page(page, how, _) => write!(f, "page {page} {how}"),
            Self::Swap(one, other) => write!(f, "pages {one} and {other} swapped"),
            Self::Statement(sql, n) => write!(f, "{sql} with {n}"),
        }
    }
}

impl Blow {
    pub(crate) fn flips(rng: &mut Rng, bytes: &[u8]) -> Self {
        let count = 1 + rng.below(16);
        let mut flip = || {
            let at = rng.below(bytes.len());
            let bits = if rng.percent(50) { 1 << rng.below(8) } else { 1 + rng.below(255) as u8 };
            (at, bytes[at] ^ bits)
        };
        Self::Bytes((0..count).map(|_| flip()).collect())
    }

    pub(crate) fn page(rng: &mut Rng, bytes: &[u8]) -> Self {
        let pages = bytes.len() / PAGE;
        // Without the first, nothing would be opened.
        let page = 1 + rng.below(pages - 1);
        match rng.below(3) {
            0 => Self::Page(page, "zeroed", vec![0; PAGE]),
            1 => Self::Page(page, "filled with noise", (0..PAGE).map(|_| rng.next() as u8).collect()),
            _ => Self::Swap(page, 1 + rng.below(pages - 1)),
        }
    }

    pub(crate) fn statement(rng: &mut Rng) -> Self {
        Self::Statement(STATEMENTS[rng.below(STATEMENTS.len())], (rng.next() >> 40).cast_signed())
    }

    /// The damaged file.
    pub(crate) fn bytes(&self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        match self {
            Self::Bytes(flips) => flips.iter().for_each(|(at, byte)| bytes[*at] = *byte),
            Self::Page(page, _, content) => bytes[page * PAGE..][..PAGE].copy_from_slice(content),
            Self::Swap(one, other) => (0..PAGE).for_each(|at| bytes.swap(one * PAGE + at, other * PAGE + at)),
            Self::Statement(..) => {}
        }
        bytes
    }

    /// Runs the statement, if it is one. Says whether anything was done.
    pub(crate) fn run(&self, path: &Path) -> bool {
        let Self::Statement(sql, n) = self else { return true };
        let conn = rusqlite::Connection::open(path).unwrap();
        // An index that says otherwise than its table is damage as well.
        let changed = conn.execute(sql, [n]).unwrap_or_else(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::ConstraintViolation) => 0,
            _ => panic!("{sql}: {error}"),
        });
        changed > 0
    }
}

/// `?1` chooses the row.
const STATEMENTS: &[&str] = &[
    "DELETE FROM place WHERE (num, seq) IN (SELECT num, seq FROM place LIMIT 1 OFFSET ?1 % (SELECT count(*) FROM place))",
    "DELETE FROM record WHERE pos IN (SELECT pos FROM record LIMIT 1 OFFSET ?1 % (SELECT count(*) FROM record))",
    "DELETE FROM record WHERE kind = 3 AND ?1 >= 0",
    "UPDATE record SET kind = 3 WHERE pos IN (SELECT pos FROM record LIMIT 1 OFFSET ?1 % (SELECT count(*) FROM record))",
    "UPDATE record SET kind = 2 WHERE kind = 3 AND ?1 >= 0",
    "UPDATE record SET kind = 1 WHERE kind = 2 AND pos % 7 = ?1 % 7",
    "UPDATE record SET turn = turn + 1 WHERE turn IS NOT NULL AND pos % 11 = ?1 % 11",
    "UPDATE record SET attempt = attempt + 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET at = at + 1000000 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET width = width + 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET num = num + 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET seq = seq + 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET segment = segment + 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET event = 1 WHERE pos % 11 = ?1 % 11",
    "UPDATE record SET snapshot = NULL WHERE snapshot IS NOT NULL AND pos % 5 = ?1 % 5",
    "UPDATE record SET body = (SELECT body FROM record AS r WHERE r.pos <> record.pos LIMIT 1 OFFSET ?1 % 40) \
     WHERE pos = 5 + ?1 % 30",
    "UPDATE record SET tip = (SELECT tip FROM record AS r WHERE r.pos <> record.pos LIMIT 1 OFFSET ?1 % 40) \
     WHERE pos = 5 + ?1 % 30",
    "UPDATE record SET pos = pos + 1000 WHERE pos = 5 + ?1 % 30",
    "UPDATE place SET pos = (SELECT pos FROM place AS p ORDER BY pos LIMIT 1 OFFSET ?1 % 40) WHERE pos = 5 + ?1 % 31",
    "UPDATE place SET segment = segment + 1 + ?1 % 3 WHERE pos = 1 + ?1 % 40",
    "UPDATE place SET segment = 78 WHERE pos = 1 + ?1 % 40",
    "UPDATE place SET named = 1 - named WHERE pos = 1 + ?1 % 40",
    "UPDATE place SET seq = seq + 1000 WHERE pos = 1 + ?1 % 40",
    "UPDATE place SET num = num + 1000 WHERE pos = 1 + ?1 % 40",
    "UPDATE session SET head_seq = (SELECT seq FROM place WHERE place.num = session.num LIMIT 1 OFFSET ?1 % 5) WHERE num <= 3",
    "UPDATE session SET head_seq = 5 WHERE num = 1 + ?1 % 3",
    "UPDATE session SET head_segment = head_segment + 1 WHERE num = 1 + ?1 % 3",
    "UPDATE session SET next_seq = next_seq - 1 WHERE num = 1 + ?1 % 4",
    "UPDATE session SET title = 'other' WHERE num = 1 + ?1 % 4",
    "UPDATE session SET id = id || 'x' WHERE num = 1 + ?1 % 4",
    "UPDATE session SET user = 'eve' WHERE num = 1 + ?1 % 4",
    "UPDATE session SET head_turns = head_turns + 1 WHERE num = 1 + ?1 % 4",
    "UPDATE session SET usage = x'0101010101' WHERE num = 1 + ?1 % 4",
    "UPDATE session SET metadata = '{\"x\":1}' WHERE num = 1 + ?1 % 4",
    "UPDATE session SET deleted = 1 WHERE num = 1 + ?1 % 4",
    "UPDATE session SET tree = tree + 1 WHERE num = 1 + ?1 % 4",
    "UPDATE session SET updated_at = updated_at + 5 WHERE num = 1 + ?1 % 4",
    "UPDATE session SET forked_seq = forked_seq - 1 WHERE forked_seq IS NOT NULL AND ?1 >= 0",
    "DELETE FROM session WHERE num = 1 + ?1 % 4",
    "UPDATE segment SET parent_seq = parent_seq - 1 WHERE id = 1 + ?1 % 9 AND parent_seq > 1",
    "UPDATE segment SET parent_num = NULL WHERE id = 1 + ?1 % 9 AND parent_num IS NOT NULL",
    "UPDATE segment SET parent_segment = 1 WHERE id = 1 + ?1 % 9 AND parent_segment > 1",
    "UPDATE segment SET num = num + 1 WHERE id = 1 + ?1 % 9",
    "DELETE FROM segment WHERE id = 1 + ?1 % 9",
    "UPDATE branch SET head_seq = (SELECT seq FROM place WHERE place.num = branch.num LIMIT 1 OFFSET ?1 % 9)",
    "UPDATE branch SET name = name || 'x' WHERE ?1 >= 0",
    "UPDATE branch SET head_segment = head_segment + 1 WHERE ?1 >= 0",
    "DELETE FROM branch WHERE ?1 >= 0",
    "UPDATE snapshot SET digest = zeroblob(32) WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET seq = seq - 2 WHERE seq % 7 = ?1 % 7 AND seq > 3",
    "UPDATE snapshot SET num = num + 1 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET parent = NULL WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET idx = idx + 1 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET turn_index = turn_index + 1 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET event = 1 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET status = 2 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET finish = 3 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET created_at = created_at + 1, updated_at = updated_at + 1 WHERE seq % 7 = ?1 % 7",
    "UPDATE snapshot SET label = 'other' WHERE seq % 7 = ?1 % 7",
    "DELETE FROM snapshot WHERE seq % 7 = ?1 % 7",
    "UPDATE scope SET value = '\"other\"' WHERE ?1 >= 0",
    "UPDATE scope SET key = key || 'x' WHERE ?1 >= 0",
    "UPDATE artifact SET version = version + 5 WHERE ?1 % 2 = seq % 2",
    "UPDATE artifact SET seq = seq + 1 WHERE ?1 % 2 = seq % 2",
    "UPDATE artifact SET digest = (SELECT digest FROM blob LIMIT 1 OFFSET ?1 % 3)",
    "UPDATE artifact SET name = 'other' WHERE version = ?1 % 2",
    "DELETE FROM artifact WHERE version = ?1 % 2",
    "UPDATE blob SET body = (SELECT b.body FROM blob AS b WHERE b.digest <> blob.digest LIMIT 1 OFFSET ?1 % 2)",
    "DELETE FROM blob WHERE ?1 >= 0",
    "UPDATE turn SET begin = begin - 1 WHERE ?1 >= 0",
    "DELETE FROM turn WHERE ?1 >= 0",
    "UPDATE turn_key SET turn = turn - 2 WHERE ?1 >= 0",
    "UPDATE slot SET content = substr(content, 1, 20 + ?1 % 900) || x'55' || substr(content, 22 + ?1 % 900) WHERE at = 0",
    "DELETE FROM slot WHERE at = 0 AND ?1 >= 0",
];
