//! Rows as bytes: what a running turn and the journal are stored as.
//!
//! A row is its fields in order, nothing between them. `docs/format.md` says what each kind of field looks like.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::engine::{
    Beat, Head, Place, PutArtifact, RecordMeta, SegmentRow, SessionRow, SnapshotRow, TurnRow, put_varint, take_varint,
};
use super::codec::{self, Stored};
use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, SnapshotEvent, SnapshotStatus, TurnError};
use crate::state::{StateDelta, Tip};
use crate::turn::RecordKind;
use crate::{AgentName, AppName, BranchName, InvocationId, SessionId, SnapshotId, Timestamp, TurnKey, Usage, UserId};

/// Something that can be written as bytes and read back from the front of some.
pub(super) trait Pack: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the value off the front; nothing if the bytes are damaged.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

/// A row that fills all of the bytes.
pub(super) fn unpack<T: Pack>(mut bytes: &[u8]) -> Option<T> {
    let value = T::take(&mut bytes)?;
    bytes.is_empty().then_some(value)
}

pub(super) fn pack<T: Pack>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    value.put(&mut out);
    out
}

/// A struct is its fields, in the order they are listed here. One after a semicolon is kept beside the row.
macro_rules! packed {
    ($($type:ident { $($field:ident),* $(,)? $(; $beside:ident)? })*) => {$(
        impl $crate::store::sqlite::pack::Pack for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self {
                    $($field: $crate::store::sqlite::pack::Pack::take(bytes)?,)*
                    $($beside: Default::default(),)?
                })
            }
        }
    )*};
}
pub(super) use packed;

packed! {
    RecordMeta { num, seq, segment, kind, turn, attempt, at, event, snapshot, width, tip }
    SessionKey { app, user, id }
    Place { num, segment, seq }
    Head { seq, num, segment, next, lease, turns }
    SessionRow {
        num, tree, key, agent, title, labels, metadata, created_at, updated_at, next_seq, main, usage, inherited,
        interrupted, forked, deleted, created_pos, updated_pos,
    }
    SegmentRow { id, num, parent }
    Beat { owner, boot, uptime, at }
    PutArtifact { name, digest, seq }
    TurnRow {
        num, begin, attempt, branch, agent, invocation, key, start, segment, tip, leased, seen, snapshot, scopes,
        artifacts, began_at, beat; streams
    }
    SnapshotRow {
        id, num, seq, parent, digest, index, turn_index, event, status, finish, error, created_at, updated_at, label,
        turn,
    }
}

fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes whose number stands before them.
pub(super) fn take_bytes_of<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_varint(bytes)?).ok()?;
    take_bytes(bytes, length)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_bytes(text.as_bytes(), out);
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take_bytes_of(bytes)?).ok()
}

impl Pack for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, *self);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        take_varint(bytes)
    }
}

impl Pack for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match take_bytes(bytes, 1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Pack for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        take_text(bytes).map(str::to_owned)
    }
}

impl Pack for Arc<str> {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        take_text(bytes).map(Self::from)
    }
}

impl<T: Pack> Pack for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        if bool::take(bytes)? { T::take(bytes).map(Some) } else { Some(None) }
    }
}

impl<T: Pack, U: Pack> Pack for (T, U) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some((T::take(bytes)?, U::take(bytes)?))
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        (0..take_varint(bytes)?).map(|_| T::take(bytes)).collect()
    }
}

impl Pack for BTreeSet<String> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Vec::<String>::take(bytes).map(|values| values.into_iter().collect())
    }
}

impl Pack for Tip {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&codec::tip_bytes(self), out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        codec::read_tip(take_bytes_of(bytes)?)
    }
}

impl Pack for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.as_micros().cast_unsigned());
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        take_varint(bytes).map(|micros| Self::from_micros(micros.cast_signed()))
    }
}

impl Pack for Digest {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Self::read(take_bytes(bytes, 32)?)
    }
}

impl Pack for SnapshotId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.uuid().as_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        uuid::Uuid::from_slice(take_bytes(bytes, 16)?).ok().map(Self::from_uuid)
    }
}

impl Pack for Usage {
    fn put(&self, out: &mut Vec<u8>) {
        (!self.is_empty()).put(out);
        if !self.is_empty() {
            self.counts().into_iter().for_each(|count| put_varint(out, count));
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut usage = Self::default();
        if bool::take(bytes)? {
            for slot in usage.counts_mut() {
                *slot = take_varint(bytes)?;
            }
        }
        Some(usage)
    }
}

impl Pack for Json {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.as_str(), out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        take_text(bytes).map(Json::trusted)
    }
}

macro_rules! packed_ids {
    ($($type:ident)*) => {$(
        impl Pack for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_text(self.as_str(), out);
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Self::new(take_text(bytes)?).ok()
            }
        }
    )*};
}

packed_ids! { AppName UserId SessionId AgentName BranchName InvocationId TurnKey }

macro_rules! packed_enums {
    ($($type:ident)*) => {$(
        impl Pack for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(u8::try_from(self.number()).unwrap_or(u8::MAX));
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Self::from_number(take_bytes(bytes, 1)?[0].into())
            }
        }
    )*};
}

packed_enums! { RecordKind SnapshotEvent SnapshotStatus FinishReason }

/// What is rarely there is its JSON; an empty text says nothing.
macro_rules! packed_json {
    ($($type:ident)*) => {$(
        impl Pack for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_text(&serde_json::to_string(self).unwrap_or_default(), out);
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                serde_json::from_str(take_text(bytes)?).ok()
            }
        }
    )*};
}

packed_json! { TurnError }

impl Pack for StateDelta {
    fn put(&self, out: &mut Vec<u8>) {
        let text = if self.is_empty() { String::new() } else { serde_json::to_string(self).unwrap_or_default() };
        put_text(&text, out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match take_text(bytes)? {
            "" => Some(Self::new()),
            text => serde_json::from_str(text).ok(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn round_trips<T: Pack + PartialEq + std::fmt::Debug>(value: &T) {
        let bytes = pack(value);
        assert_eq!(unpack::<T>(&bytes).as_ref(), Some(value));
        for end in 0..bytes.len() {
            assert_eq!(unpack::<T>(&bytes[..end]), None, "cut short at {end} it was taken for whole");
        }
    }

    fn turn() -> TurnRow {
        let beat = Beat { owner: "o".into(), boot: "b".into(), uptime: 300, at: Timestamp::from_micros(7) };
        let mut scopes = StateDelta::new();
        scopes.remove.insert("app:x".to_owned());
        TurnRow {
            num: 1,
            begin: 200,
            attempt: 2,
            branch: BranchName::main(),
            agent: Some(AgentName::new("a").unwrap()),
            invocation: InvocationId::new("i").unwrap(),
            key: Some(TurnKey::new("k").unwrap()),
            start: Place { num: 1, segment: 2, seq: 3 },
            segment: Some(4),
            tip: 5,
            leased: true,
            seen: Some(6),
            snapshot: Some(SnapshotId::from_uuid(uuid::Uuid::from_u128(9))),
            scopes,
            artifacts: vec![PutArtifact { name: "n".to_owned(), digest: Digest::from_bytes([3; 32]), seq: 8 }],
            streams: false,
            began_at: Timestamp::from_micros(-1),
            beat,
        }
    }

    pub(in super::super) fn session() -> SessionRow {
        SessionRow {
            num: 1,
            tree: 1,
            key: SessionKey::of("app", "user", "id").unwrap(),
            agent: None,
            title: Some("t".to_owned()),
            labels: ["x".to_owned(), "y".to_owned()].into(),
            metadata: Json::parse(r#"{"a": 1.10}"#).unwrap(),
            created_at: Timestamp::from_micros(1 << 50),
            updated_at: Timestamp::from_micros(1 << 51),
            next_seq: 3,
            main: Head { seq: 2, num: 1, segment: 1, next: Some(1), lease: None, turns: 1 },
            usage: Usage::tokens(1, 2),
            inherited: Usage::default(),
            interrupted: true,
            forked: Some((SessionId::new("from").unwrap(), 7)),
            deleted: false,
            created_pos: 1,
            updated_pos: 2,
        }
    }

    #[test]
    fn rows_round_trip_and_a_cut_is_noticed() {
        round_trips(&turn());
        round_trips(&session());
        round_trips(&SegmentRow { id: 1, num: 2, parent: Some(Place { num: 1, segment: 2, seq: 3 }) });
        let mut snapshot =
            SnapshotRow::reserved(SnapshotId::from_uuid(uuid::Uuid::from_u128(9)), 1, 2, turn().began_at);
        (snapshot.event, snapshot.finish) = (Some(SnapshotEvent::TurnEnd), Some(FinishReason::Failed));
        snapshot.error = Some(TurnError::new("INTERNAL", "no"));
        round_trips(&snapshot);
    }
}
