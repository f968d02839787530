//! What adding up an import may cost: time and memory by its own size.
//!
//! A record of a hundred bytes may change a state of a megabyte, which has to be hashed anew, and many stretches may begin
//! with one state and each change it. Both is what honest sessions do, but not over and over: custom state is written whole
//! every so many patches.

use std::collections::HashMap;

use super::super::body::Body;
use super::super::prepare::MAX_PATCHES;
use crate::state::{Held, PointState};
use crate::store::RecordEntry;
use crate::{Error, Result};

/// Bytes of states that may be gone through: so many for all, and so many for each byte of the import.
const GONE_THROUGH: u64 = 2 << 30;
const GONE_THROUGH_PER_BYTE: u64 = 2 * MAX_PATCHES;
/// Bytes of states that may be held at a time, beside as many as the import has itself.
const HELD: u64 = 256 << 20;
/// About what going through an artifact of a state takes, in bytes of custom state.
const PER_ARTIFACT: u64 = 64;

/// The records of a stretch.
pub(super) struct Span {
    /// The last one, by whose it is and its number.
    pub(super) last: (u64, u64),
}

/// Where each stretch ends, as the records come.
pub(super) fn spans(records: &[RecordEntry]) -> HashMap<u64, Span> {
    records.iter().map(|record| (record.segment, Span { last: (record.of, record.seq) })).collect()
}

pub(super) struct Cost {
    left: u64,
    most_held: u64,
    held: Vec<Held>,
    /// Of all that is in the list, whether it is still held or not.
    bytes: u64,
}

impl Cost {
    pub(super) fn of(records: &[RecordEntry]) -> Self {
        let parts = |record: &RecordEntry| -> usize {
            record.contents.iter().flat_map(|artifact| &artifact.parts).map(|part| part.as_str().len()).sum()
        };
        let bytes = records.iter().map(|record| (record.body.as_str().len() + parts(record)) as u64).sum::<u64>();
        Self { left: GONE_THROUGH + GONE_THROUGH_PER_BYTE * bytes, most_held: HELD + bytes, held: Vec::new(), bytes: 0 }
    }

    /// A record is about to be added to a state.
    pub(super) fn add_up(&mut self, before: &PointState, body: &Body) -> Result<()> {
        let custom = body.custom.as_ref().and(before.custom()).map_or(0, |custom| custom.as_str().len() as u64);
        let artifacts = if body.artifacts.is_empty() { 0 } else { before.artifacts.len() as u64 * PER_ARTIFACT };
        self.left = self.left.checked_sub(custom + artifacts).ok_or_else(|| {
            Error::too_large("its records change large states too often for a file of its size, nothing was brought in")
        })?;
        Ok(())
    }

    /// A state was made, and is held as long as something may follow it.
    pub(super) fn hold(&mut self, state: &PointState, body: &Body) -> Result<()> {
        let before = self.held.len();
        if body.custom.is_some() {
            self.held.extend(state.held_custom());
        }
        if !body.artifacts.is_empty() {
            self.held.push(state.held_artifacts());
        }
        if body.splice.is_some() || body.events.iter().any(|event| !event.messages.is_empty()) {
            self.held.push(state.messages().held());
        }
        self.bytes += self.held[before..].iter().map(|held| held.bytes).sum::<u64>();
        if self.bytes <= self.most_held {
            return Ok(());
        }
        self.held.retain(Held::is_held);
        self.bytes = self.held.iter().map(|held| held.bytes).sum();
        // Half of it must be free again, or the next record would go through all of them once more.
        if self.bytes <= self.most_held / 2 {
            return Ok(());
        }
        Err(Error::too_large("too many of its branches have large states side by side, nothing was brought in"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::body::CustomBody;
    use super::*;
    use crate::json::Json;
    use crate::{ErrorKind, SessionId};

    fn state(bytes: usize) -> PointState {
        let mut state = PointState::empty(SessionId::new("s").unwrap());
        state.custom = Some(Json::trusted("x".repeat(bytes)));
        state
    }

    fn patched() -> Body {
        Body { custom: Some(CustomBody::Patch(Json::trusted("[]"))), ..Body::default() }
    }

    #[test]
    fn states_are_held_up_to_a_bound_and_those_that_are_gone_are_not_counted() {
        let (mut cost, each) = (Cost::of(&[]), 1 << 20);
        for _ in 0..4 * HELD as usize / each {
            cost.hold(&state(each), &patched()).unwrap();
        }
        let mut held = Vec::new();
        let refused = (0..2 * HELD as usize / each).find_map(|_| {
            held.push(state(each));
            cost.hold(&held[held.len() - 1], &patched()).err()
        });
        assert_eq!(refused.unwrap().kind(), ErrorKind::TooLarge);
        assert!(held.len() as u64 * each as u64 >= HELD / 2, "{} were taken", held.len());
    }

    /// A state that many records stand at is held once.
    #[test]
    fn what_does_not_change_is_not_counted_again() {
        let (mut cost, large) = (Cost::of(&[]), state(HELD as usize / 4));
        for _ in 0..1_000 {
            cost.hold(&large.clone(), &Body::default()).unwrap();
        }
    }

    #[test]
    fn large_states_are_gone_through_so_often_and_no_more() {
        let (mut cost, large) = (Cost::of(&[]), state(1 << 20));
        let times = GONE_THROUGH / (1 << 20);
        (0..times).for_each(|_| cost.add_up(&large, &patched()).unwrap());
        assert_eq!(cost.add_up(&large, &patched()).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
