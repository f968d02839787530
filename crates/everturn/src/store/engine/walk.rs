//! The records that make up a line's state.

use std::ops::Range;

use super::body::decode_into;
use super::line::Interval;
use super::rules::NO_LIMIT;
use super::tables::{Flow, Read, RecordMeta, RecordRow, Scan, Visit};
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

/// Scans so that a record that is missing is an error: a session's numbers have no gap. Records of other segments are read to
/// see that, and not shown.
pub(super) fn scan_whole<'a>(read: &'a dyn Read, scan: Scan, visit: Visit<'_, RecordRow>) -> Result<Whole<'a>> {
    let mut whole = Whole { read, scan, last: None };
    read.scan(Scan { segment: None, ..scan }, &mut |row: RecordRow| match whole.see(&row.meta)? {
        true => visit(row),
        false => Ok(Flow::More),
    })?;
    Ok(whole)
}

/// The same without bodies.
pub(super) fn scan_whole_meta<'a>(read: &'a dyn Read, scan: Scan, visit: Visit<'_, RecordMeta>) -> Result<Whole<'a>> {
    let mut whole = Whole { read, scan, last: None };
    read.scan_meta(Scan { segment: None, ..scan }, &mut |meta: RecordMeta| match whole.see(&meta)? {
        true => visit(meta),
        false => Ok(Flow::More),
    })?;
    Ok(whole)
}

/// What a scan has seen.
pub(super) struct Whole<'a> {
    read: &'a dyn Read,
    scan: Scan,
    /// The last record: its number, and how many it takes.
    last: Option<(u64, u64)>,
}

impl Whole<'_> {
    /// Whether a record is one that is to be shown.
    fn see(&mut self, meta: &RecordMeta) -> Result<bool> {
        let end = meta.seq + meta.width;
        match (self.last, self.scan.newest_first) {
            (None, false) if meta.seq > self.scan.from => self.begins_at(meta.seq)?,
            (Some((seq, width)), false) if meta.seq != seq + width => self.missing(seq + width)?,
            (Some((seq, _)), true) if end != seq => self.missing(end)?,
            (None, true) if self.scan.to != NO_LIMIT && end <= self.scan.to => self.missing(end)?,
            _ => {}
        }
        self.last = Some((meta.seq, meta.width));
        Ok(self.scan.segment.is_none_or(|segment| segment == meta.segment))
    }

    /// What comes before the first record must end right before it.
    fn begins_at(&self, first: u64) -> Result<()> {
        let mut end = None;
        let scan = Scan { from: 0, to: first - 1, segment: None, newest_first: true, ..self.scan };
        self.read.scan_meta(scan, &mut |meta: RecordMeta| {
            end = Some(meta.seq + meta.width);
            Ok(Flow::Stop)
        })?;
        match end {
            Some(end) if end != first => self.missing(end),
            // A fork counts on from where it was made.
            None if first != 1 && self.read.session(self.scan.num)?.is_some_and(|row| row.forked.is_none()) => {
                self.missing(1)
            }
            _ => Ok(()),
        }
    }

    /// For a scan that was not stopped: the last record must be the one that has this number.
    pub(super) fn reaches(&self, seq: u64) -> Result<()> {
        match self.last {
            Some((last, width)) if last <= seq && seq < last + width => Ok(()),
            Some((last, width)) => self.missing(last + width),
            None => self.missing(seq),
        }
    }

    /// Of a session that is deleted, only what forks need may be left.
    fn missing(&self, seq: u64) -> Result<()> {
        let num = self.scan.num;
        match self.read.session(num)?.is_some_and(|session| !session.deleted) {
            true => Err(Error::corrupt(format!("record {seq} of session number {num} is missing"))),
            false => Ok(()),
        }
    }
}

/// Says which record it is that is damaged.
pub(super) fn damaged(meta: &RecordMeta, error: Error) -> Error {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    Error::corrupt(format!("record {} of session number {} is damaged", meta.seq, meta.num)).with_source(error)
}
