//! The records that make up a line's state.

use std::ops::Range;

use super::body::decode_into;
use super::line::Interval;
use super::tables::{Read, RecordMeta};
use crate::turn::RecordKind;
use crate::{Error, ErrorKind, Result};

/// Packed bytes that are handed over together: enough for handing over to cost nothing, few enough for the reader of a
/// long line and whoever unpacks it to be busy at the same time.
const BATCH: usize = 32 << 10;

/// Some records with their bodies, packed until somebody has the time to unpack them.
#[derive(Default)]
pub(super) struct Batch {
    /// Each with where its body is: among the texts once they are there.
    records: Vec<(RecordMeta, Range<usize>)>,
    bodies: Vec<u8>,
    texts: Option<String>,
    /// How many of the records are known to be shown; the others may yet turn out void.
    settled: usize,
}

/// Walks the records that make up a line's state, in order, leaving out what is void at its end. Full batches are handed
/// over on the way, the last one is the answer.
///
/// A turn's records are held back until its end or its void is seen: a void hides them from every later point, but not
/// from the point of the void itself, nor from a point inside the turn.
pub(super) fn walk(
    read: &dyn Read,
    line: &[Interval],
    hand_over: &mut dyn FnMut(Batch) -> Result<()>,
) -> Result<Batch> {
    walk_while(read, line, &mut |_| Ok(()), hand_over)
}

/// The same, after `check` was shown each packed body that is to be walked over.
pub(super) fn walk_while(
    read: &dyn Read,
    line: &[Interval],
    check: &mut dyn FnMut(&[u8]) -> Result<()>,
    hand_over: &mut dyn FnMut(Batch) -> Result<()>,
) -> Result<Batch> {
    let end = line.last().map(|stretch| (stretch.segment, stretch.to));
    let mut batch = Batch::default();
    let mut segment = None;
    read.scan_line(line, &mut |meta, body| {
        check(body)?;
        if segment.replace(meta.segment) != Some(meta.segment) {
            batch.settle();
        }
        match meta.kind {
            RecordKind::Begin | RecordKind::Step => batch.push(meta, body),
            RecordKind::Void if end != Some((meta.segment, meta.seq)) => batch.drop_voided(&meta),
            _ => {
                batch.push(meta, body);
                batch.settle();
            }
        }
        if !batch.is_full() {
            return Ok(());
        }
        let next = batch.successor();
        hand_over(std::mem::replace(&mut batch, next))
    })?;
    Ok(batch)
}

impl Batch {
    fn push(&mut self, meta: RecordMeta, body: &[u8]) {
        let start = self.bodies.len();
        self.bodies.extend_from_slice(body);
        self.records.push((meta, start..self.bodies.len()));
    }

    /// An empty one with room for as much: of one size, each takes the memory that the one before the last gave back.
    fn successor(&self) -> Self {
        Self {
            records: Vec::with_capacity(self.records.capacity()),
            bodies: Vec::with_capacity(self.bodies.capacity()),
            ..Self::default()
        }
    }

    fn settle(&mut self) {
        self.settled = self.records.len();
    }

    fn drop_voided(&mut self, void: &RecordMeta) {
        let mut at = 0;
        self.records.retain(|(held, _)| {
            at += 1;
            at <= self.settled || !void.voids(held)
        });
    }

    fn is_full(&self) -> bool {
        self.bodies.len() >= BATCH && self.settled == self.records.len()
    }

    pub(super) fn last(&self) -> Option<&RecordMeta> {
        self.records.last().map(|(meta, _)| meta)
    }

    /// Unpacks all bodies, which can be done in any order and by anybody.
    pub(super) fn unpack(&mut self) -> Result<()> {
        // Text packs to about half.
        let (mut texts, mut text) = (String::with_capacity(2 * self.bodies.len()), Vec::new());
        for (meta, at) in &mut self.records {
            let body = decode_into(&self.bodies[at.clone()], &mut text).map_err(|e| damaged(meta, e))?;
            *at = texts.len()..texts.len() + body.len();
            texts.push_str(body);
        }
        self.texts = Some(texts);
        Ok(())
    }

    /// Shows the records with their texts, one after the other.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&RecordMeta, &str) -> Result<()>) -> Result<()> {
        let mut text = Vec::new();
        for (meta, at) in &self.records {
            let shown = match &self.texts {
                Some(texts) => visit(meta, &texts[at.clone()]),
                None => decode_into(&self.bodies[at.clone()], &mut text).and_then(|text| visit(meta, text)),
            };
            shown.map_err(|e| damaged(meta, e))?;
        }
        Ok(())
    }
}

/// Says which record it is that is damaged.
pub(super) fn damaged(meta: &RecordMeta, error: Error) -> Error {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    Error::corrupt(format!("record {} of session number {} is damaged", meta.seq, meta.num)).with_source(error)
}
