//! Rows as SQLite holds them.

use std::collections::BTreeSet;

use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, ValueRef};

use super::super::engine::{
    BranchRow, Head, PackMeta, PackRow, Place, RecordMeta, RecordRow, SegmentRow, SessionRow, SnapshotRow, StreamRow,
    put_varint, take_varint,
};
use super::failure;
use super::sum::{Sum, sum_of_columns};
use crate::digest::{Digest, StateDigests};
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus};
use crate::state::Tip;
use crate::turn::RecordKind;
use crate::{AgentName, AppName, BranchName, Error, Result, SessionId, SnapshotId, Timestamp, Usage, UserId};

pub(super) fn damaged(what: &str) -> Error {
    Error::corrupt(format!("{what} in the store's file is damaged: restore it from a backup"))
}

/// Reads a column, as a rule's error.
pub(super) fn column<T: FromSql>(row: &Row<'_>, name: &str) -> Result<T> {
    row.get(name).map_err(|error| failure(error, "read"))
}

/// SQLite's integers are signed; none of ours is negative.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) struct Uint(pub(super) u64);

impl FromSql for Uint {
    fn column_result(value: ValueRef<'_>) -> Result<Self, FromSqlError> {
        let value = value.as_i64()?;
        u64::try_from(value).map(Self).map_err(|_| FromSqlError::OutOfRange(value))
    }
}

fn uint(row: &Row<'_>, name: &str) -> Result<u64> {
    column::<Uint>(row, name).map(|value| value.0)
}

fn optional_uint(row: &Row<'_>, name: &str) -> Result<Option<u64>> {
    Ok(column::<Option<Uint>>(row, name)?.map(|value| value.0))
}

fn time(row: &Row<'_>, name: &str) -> Result<Timestamp> {
    column(row, name).map(Timestamp::from_micros)
}

fn optional_text<T>(row: &Row<'_>, name: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    let text: Option<String> = column(row, name)?;
    text.map(|text| parse(&text).map_err(|e| damaged(name).with_source(e))).transpose()
}

pub(super) fn digest(row: &Row<'_>, name: &str) -> Result<Digest> {
    let bytes: Vec<u8> = column(row, name)?;
    Digest::read(&bytes).ok_or_else(|| damaged(name))
}

fn snapshot_id(row: &Row<'_>, name: &str) -> Result<Option<SnapshotId>> {
    let bytes: Option<Vec<u8>> = column(row, name)?;
    let uuid = |bytes: Vec<u8>| uuid::Uuid::from_slice(&bytes).map(SnapshotId::from_uuid).map_err(|_| damaged(name));
    bytes.map(uuid).transpose()
}

pub(super) fn usage_bytes(usage: &Usage) -> Vec<u8> {
    let mut out = Vec::new();
    if !usage.is_empty() {
        usage.counts().into_iter().for_each(|count| put_varint(&mut out, count));
    }
    out
}

fn read_usage(mut bytes: &[u8]) -> Option<Usage> {
    let mut usage = Usage::default();
    if !bytes.is_empty() {
        for slot in usage.counts_mut() {
            *slot = take_varint(&mut bytes)?;
        }
    }
    Some(usage)
}

/// Reads columns one after the other: by name, each would be searched for among all the others.
struct Columns<'r, 's> {
    row: &'r Row<'s>,
    next: usize,
}

impl Columns<'_, '_> {
    fn get<T: FromSql>(&mut self) -> Result<T> {
        let value = self.row.get(self.next).map_err(|e| failure(e, "read"));
        self.next += 1;
        value
    }

    fn uint(&mut self) -> Result<u64> {
        self.get::<Uint>().map(|value| value.0)
    }

    fn optional_uint(&mut self) -> Result<Option<u64>> {
        Ok(self.get::<Option<Uint>>()?.map(|value| value.0))
    }

    fn time(&mut self) -> Result<Timestamp> {
        self.get().map(Timestamp::from_micros)
    }

    fn text<T>(&mut self, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let value = self.row.get_ref(self.next).map_err(|e| failure(e, "read"))?;
        self.next += 1;
        parse(value.as_str().map_err(|_| damaged("a session"))?).map_err(|e| damaged("a session").with_source(e))
    }

    fn optional_text<T>(&mut self, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
        let value = self.row.get_ref(self.next).map_err(|e| failure(e, "read"))?;
        if value == ValueRef::Null {
            self.next += 1;
            return Ok(None);
        }
        self.text(parse).map(Some)
    }

    fn usage(&mut self) -> Result<Usage> {
        let value = self.row.get_ref(self.next).map_err(|e| failure(e, "read"))?;
        self.next += 1;
        value.as_blob().ok().and_then(read_usage).ok_or_else(|| damaged("a session's usage"))
    }

    fn head(&mut self) -> Result<Head> {
        Ok(Head {
            seq: self.uint()?,
            num: self.uint()?,
            segment: self.uint()?,
            next: self.optional_uint()?,
            lease: self.optional_uint()?,
            turns: self.uint()?,
        })
    }
}

/// A session, its columns in the order of the table.
pub(super) fn session(row: &Row<'_>) -> Result<SessionRow> {
    let mut columns = Columns { row, next: 0 };
    let (num, tree) = (columns.uint()?, columns.uint()?);
    let key = SessionKey::new(
        columns.text(|t| AppName::new(t))?,
        columns.text(|t| UserId::new(t))?,
        columns.text(|t| SessionId::new(t))?,
    );
    let agent = columns.optional_text(|t| AgentName::new(t))?;
    let title = columns.get()?;
    let labels = columns.text(|t| match t {
        "[]" => Ok(BTreeSet::new()),
        _ => serde_json::from_str(t).map_err(|_| damaged("labels")),
    })?;
    let metadata = columns.text(|t| Ok(Json::trusted(t)))?;
    let (created_at, updated_at) = (columns.time()?, columns.time()?);
    let next_seq = columns.uint()?;
    let main = columns.head()?;
    let (usage, inherited) = (columns.usage()?, columns.usage()?);
    let interrupted = columns.get()?;
    let forked_id = columns.optional_text(|t| SessionId::new(t))?;
    let forked = forked_id.zip(columns.optional_uint()?);
    let deleted = columns.get()?;
    Ok(SessionRow {
        num,
        tree,
        key,
        agent,
        title,
        labels,
        metadata,
        created_at,
        updated_at,
        next_seq,
        main,
        usage,
        inherited,
        interrupted,
        forked,
        deleted,
        created_pos: columns.uint()?,
        updated_pos: columns.uint()?,
    })
}

pub(super) fn branch(row: &Row<'_>) -> Result<BranchRow> {
    let mut columns = Columns { row, next: 0 };
    Ok(BranchRow { name: columns.text(|t| BranchName::new(t))?, head: columns.head()? })
}

/// A segment, its columns in the order of its statements.
pub(super) fn segment(row: &Row<'_>) -> Result<SegmentRow> {
    let mut columns = Columns { row, next: 0 };
    let (id, num) = (columns.uint()?, columns.uint()?);
    let parent = match columns.optional_uint()? {
        Some(num) => Some(Place { num, segment: columns.uint()?, seq: columns.uint()? }),
        None => None,
    };
    Ok(SegmentRow { id, num, parent })
}

pub(super) fn pack_meta(row: &Row<'_>) -> Result<PackMeta> {
    if !sum_of_columns(row, 6)? {
        return Err(damaged("a stream"));
    }
    let mut columns = Columns { row, next: 0 };
    Ok(PackMeta {
        num: columns.uint()?,
        turn: columns.uint()?,
        first: columns.uint()?,
        count: columns.uint()?,
        start: columns.uint()?,
        size: columns.uint()?,
    })
}

pub(super) fn pack(row: &Row<'_>) -> Result<PackRow> {
    Ok(PackRow { meta: pack_meta(row)?, body: column(row, "body")? })
}

pub(super) fn stream(row: &Row<'_>) -> Result<StreamRow> {
    let mut columns = Columns { row, next: 0 };
    let (num, turn, chunks) = (columns.uint()?, columns.uint()?, columns.uint()?);
    let ended_at = columns.get::<Option<i64>>()?.map(Timestamp::from_micros);
    Ok(StreamRow { num, turn, chunks, ended_at })
}

/// A stored enum is its place in a list that only ever grows.
macro_rules! stored_enum {
    ($($name:ident: $type:ident [$($variant:ident),* $(,)?];)*) => {$(
        impl Stored for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),*];
            fn number(self) -> i64 {
                Self::ALL.iter().position(|variant| *variant == self).map_or(-1, |at| at as i64)
            }
        }
    )*};
}

pub(super) trait Stored: Copy + PartialEq + 'static {
    const ALL: &'static [Self];
    fn number(self) -> i64;
    fn from_number(number: i64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at)).copied()
    }
}

stored_enum! {
    kind: RecordKind [Begin, Step, End, Void, Edit, Admin];
    event: SnapshotEvent [TurnEnd, ToolIterationEnd, InvocationEnd];
    status: SnapshotStatus [Pending, Completed, Failed, Aborted];
    finish: FinishReason [Stop, Length, Blocked, Interrupted, Failed, Aborted, Detached, Other, Unknown];
}

fn stored<T: Stored>(row: &Row<'_>, name: &str) -> Result<T> {
    T::from_number(column(row, name)?).ok_or_else(|| damaged(name))
}

fn optional_stored<T: Stored>(row: &Row<'_>, name: &str) -> Result<Option<T>> {
    let number: Option<i64> = column(row, name)?;
    number.map(|number| T::from_number(number).ok_or_else(|| damaged(name))).transpose()
}

/// Columns by place, not by name: this is read once for each record of a line.
pub(super) fn meta(row: &Row<'_>) -> Result<RecordMeta> {
    check_meta(row)?;
    let get = |i: usize| row.get::<_, Uint>(i).map(|value| value.0).map_err(|e| failure(e, "read"));
    let kind: i64 = row.get(3).map_err(|e| failure(e, "read"))?;
    let turn: Option<Uint> = row.get(4).map_err(|e| failure(e, "read"))?;
    let event: Option<i64> = row.get(6).map_err(|e| failure(e, "read"))?;
    let snapshot = match row.get_ref(9).map_err(|e| failure(e, "read"))? {
        ValueRef::Null => None,
        value => {
            let bytes = value.as_blob().map_err(|_| damaged("a record"))?;
            Some(SnapshotId::from_uuid(uuid::Uuid::from_slice(bytes).map_err(|_| damaged("a record"))?))
        }
    };
    let tip = row.get_ref(10).map_err(|e| failure(e, "read"))?.as_blob().map_err(|_| damaged("a record"))?;
    let (num, seq) = (get(0)?, get(1)?);
    Ok(RecordMeta {
        num,
        seq,
        segment: get(2)?,
        kind: RecordKind::from_number(kind).ok_or_else(|| damaged("a record"))?,
        turn: turn.map(|turn| turn.0),
        attempt: get(5)?,
        event: event.map(|event| SnapshotEvent::from_number(event).ok_or_else(|| damaged("a record"))).transpose()?,
        width: get(7)?,
        at: Timestamp::from_micros(row.get(8).map_err(|e| failure(e, "read"))?),
        snapshot,
        tip: read_tip(tip).ok_or_else(|| damaged(&format!("record {seq} of session number {num}")))?,
    })
}

/// Where a record's sums are among its columns, and its body.
const BODY_SUM: usize = 11;
const RECORD_SUM: usize = 12;
const BODY: usize = 13;

fn named_record(row: &Row<'_>) -> String {
    let number = |at| row.get::<_, i64>(at).unwrap_or(-1);
    format!("record {} of session number {}", number(1), number(0))
}

/// A place may have no record, or one that says otherwise.
fn check_meta(row: &Row<'_>) -> Result<()> {
    if row.get_ref(RECORD_SUM).map_err(|e| failure(e, "read"))? == ValueRef::Null {
        return Err(damaged(&format!("{}, or what finds it,", named_record(row))));
    }
    match sum_of_columns(row, RECORD_SUM)? {
        true => Ok(()),
        false => Err(damaged(&named_record(row))),
    }
}

/// A record's body, lent until the next row is asked for.
pub(super) fn packed<'r>(row: &'r Row<'_>) -> Result<&'r [u8]> {
    let damaged = || damaged(&named_record(row));
    let value = row.get_ref(BODY).map_err(|e| failure(e, "read"))?;
    let sum: i64 = row.get(BODY_SUM).map_err(|e| failure(e, "read"))?;
    if sum != Sum::of([value]) {
        return Err(damaged());
    }
    value.as_blob().map_err(|_| damaged())
}

/// The body alone, with its sum behind it.
pub(super) fn body(row: &Row<'_>) -> Result<Vec<u8>> {
    let value = row.get_ref(0).map_err(|e| failure(e, "read"))?;
    let sum: i64 = row.get(1).map_err(|e| failure(e, "read"))?;
    let body = value.as_blob().ok().filter(|_| sum == Sum::of([value]));
    body.map(<[u8]>::to_vec).ok_or_else(|| damaged("a record"))
}

pub(super) fn record(row: &Row<'_>) -> Result<RecordRow> {
    Ok(RecordRow { meta: meta(row)?, body: packed(row)?.to_vec() })
}

/// The greatest id, where there is any.
pub(super) fn newest_snapshot(row: &Row<'_>) -> Result<Option<SnapshotId>> {
    snapshot_id(row, "id")
}

pub(super) fn snapshot(row: &Row<'_>) -> Result<SnapshotRow> {
    Ok(SnapshotRow {
        id: snapshot_id(row, "id")?.ok_or_else(|| damaged("a snapshot"))?,
        num: uint(row, "num")?,
        seq: uint(row, "seq")?,
        parent: snapshot_id(row, "parent")?,
        digest: digest(row, "digest")?,
        index: uint(row, "idx")?,
        turn_index: uint(row, "turn_index")?,
        event: optional_stored(row, "event")?,
        status: stored(row, "status")?,
        finish: optional_stored(row, "finish")?,
        error: optional_text(row, "error", |t| serde_json::from_str(t).map_err(|_| damaged("error")))?,
        created_at: time(row, "created_at")?,
        updated_at: time(row, "updated_at")?,
        label: column(row, "label")?,
        turn: optional_uint(row, "turn")?,
    })
}

const HAS_CUSTOM: u64 = 1;
const HAS_ARTIFACTS: u64 = 2;
const HAS_VIEW: u64 = 4;
const HAS_USAGE: u64 = 8;
const HAS_PATCHES: u64 = 16;
const HAS_SCHEMA: u64 = 32;

/// A tip: what it has as flags, its counts, the message chain, and what the flags promise.
pub(super) fn tip_bytes(tip: &Tip) -> Vec<u8> {
    let digests = &tip.digests;
    let flag = |has: bool, flag: u64| if has { flag } else { 0 };
    let flags = flag(digests.custom != Digest::ABSENT, HAS_CUSTOM)
        | flag(digests.artifacts != Digest::ABSENT, HAS_ARTIFACTS)
        | flag(digests.view != Digest::ABSENT, HAS_VIEW)
        | flag(!tip.usage.is_empty(), HAS_USAGE)
        | flag(tip.patches > 0, HAS_PATCHES)
        | flag(tip.schema > 0, HAS_SCHEMA);
    let mut out = Vec::with_capacity(80);
    for value in [flags, tip.messages, tip.turns, tip.index] {
        put_varint(&mut out, value);
    }
    if tip.messages > 0 {
        out.extend_from_slice(digests.chain.as_bytes());
    }
    for part in [&digests.custom, &digests.artifacts, &digests.view] {
        if *part != Digest::ABSENT {
            out.extend_from_slice(part.as_bytes());
        }
    }
    if flags & HAS_USAGE != 0 {
        tip.usage.counts().into_iter().for_each(|count| put_varint(&mut out, count));
    }
    if flags & HAS_PATCHES != 0 {
        put_varint(&mut out, tip.patches);
        put_varint(&mut out, tip.patch_bytes);
    }
    if flags & HAS_SCHEMA != 0 {
        put_varint(&mut out, tip.schema);
    }
    out
}

pub(super) fn read_tip(mut bytes: &[u8]) -> Option<Tip> {
    let bytes = &mut bytes;
    let mut tip = Tip::EMPTY;
    let flags = take_varint(bytes)?;
    tip.messages = take_varint(bytes)?;
    tip.turns = take_varint(bytes)?;
    tip.index = take_varint(bytes)?;
    let mut digest = |wanted: bool| {
        if !wanted {
            return Some(Digest::ABSENT);
        }
        let (digest, rest) = bytes.split_at_checked(32)?;
        *bytes = rest;
        Digest::read(digest)
    };
    tip.digests = StateDigests {
        chain: digest(tip.messages > 0)?,
        custom: digest(flags & HAS_CUSTOM != 0)?,
        artifacts: digest(flags & HAS_ARTIFACTS != 0)?,
        view: digest(flags & HAS_VIEW != 0)?,
    };
    if flags & HAS_USAGE != 0 {
        for slot in tip.usage.counts_mut() {
            *slot = take_varint(bytes)?;
        }
    }
    if flags & HAS_PATCHES != 0 {
        tip.patches = take_varint(bytes)?;
        tip.patch_bytes = take_varint(bytes)?;
    }
    if flags & HAS_SCHEMA != 0 {
        tip.schema = take_varint(bytes)?;
    }
    bytes.is_empty().then_some(tip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tips_round_trip() {
        let mut full = Tip::EMPTY;
        full.messages = 300;
        full.turns = 150;
        full.index = 151;
        full.digests = StateDigests {
            chain: Digest::from_bytes([1; 32]),
            custom: Digest::from_bytes([2; 32]),
            artifacts: Digest::from_bytes([3; 32]),
            view: Digest::from_bytes([4; 32]),
        };
        full.usage = Usage::tokens(1000, 20);
        (full.patches, full.patch_bytes, full.schema) = (3, 999, 2);
        let mut plain = Tip::EMPTY;
        plain.messages = 2;
        plain.digests.chain = Digest::from_bytes([9; 32]);
        for tip in [Tip::EMPTY, plain, full] {
            assert_eq!(read_tip(&tip_bytes(&tip)), Some(tip.clone()));
            let bytes = tip_bytes(&tip);
            assert_eq!(read_tip(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn stored_enums_keep_their_numbers() {
        assert_eq!(RecordKind::Admin.number(), 5);
        assert_eq!(SnapshotStatus::from_number(1), Some(SnapshotStatus::Completed));
        assert_eq!(FinishReason::from_number(99), None);
    }
}
