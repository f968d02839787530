//! Lines: the way from the root of the tree to a point.

use std::collections::{BTreeSet, HashMap};

use super::rules::is_voided;
use super::tables::{BranchRow, Flow, Place, Read, RecordMeta, SessionRow};
use crate::turn::RecordKind;
use crate::{Error, Point, Result};

/// A stretch of a line within one segment: the records from `from` to `to`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) num: u64,
    pub(crate) segment: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Goes from a place towards the root, one segment at a time.
pub(crate) fn climb(read: &dyn Read, place: Place, visit: &mut dyn FnMut(Interval) -> Result<bool>) -> Result<()> {
    let mut next = Some(place);
    read.ancestry(place.segment, &mut |row| {
        let Some(place) = next.take() else { return Ok(Flow::Stop) };
        let from = row.parent.map_or(1, |parent| parent.seq + 1);
        if from > place.seq {
            // Going on could lead in a circle.
            return Err(Error::corrupt(format!("segment {} of the tree begins behind its own end", row.id)));
        }
        if !visit(Interval { num: row.num, segment: row.id, from, to: place.seq })? {
            return Ok(Flow::Stop);
        }
        next = row.parent;
        Ok(Flow::More)
    })?;
    match next {
        Some(place) => Err(Error::corrupt(format!("segment {} of the tree is missing", place.segment))),
        None => Ok(()),
    }
}

/// The line to a place, from the root.
pub(crate) fn line(read: &dyn Read, place: Place) -> Result<Vec<Interval>> {
    let mut intervals = Vec::new();
    climb(read, place, &mut |interval| {
        intervals.push(interval);
        Ok(true)
    })?;
    intervals.reverse();
    Ok(intervals)
}

/// The lines of some heads, to be asked what is on any of them.
pub(crate) struct Lines(HashMap<u64, BTreeSet<u64>>);

impl Lines {
    pub(crate) fn of(read: &dyn Read, heads: &[BranchRow]) -> Result<Self> {
        let mut ends: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        for head in heads {
            // A stretch that was seen before leads to a root that was seen before.
            climb(read, head.head.place(), &mut |interval| {
                Ok(ends.entry(interval.segment).or_default().insert(interval.to))
            })?;
        }
        Ok(Self(ends))
    }

    /// Whether any of the lines goes through a record and shows it.
    pub(crate) fn hold(&self, read: &dyn Read, meta: &RecordMeta) -> Result<bool> {
        let Some(ends) = self.0.get(&meta.segment) else { return Ok(false) };
        if !matches!(meta.kind, RecordKind::Begin | RecordKind::Step) {
            return Ok(meta.kind != RecordKind::Void && ends.last().is_some_and(|end| meta.seq <= *end));
        }
        for end in ends.range(meta.seq..) {
            if !is_voided(read, meta, *end)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Finds a point of a session: one of its own records, or one it inherited when it was forked.
pub(crate) fn find_point(read: &dyn Read, session: &SessionRow, point: Point) -> Result<Option<RecordMeta>> {
    if let Some(meta) = read.meta(session.num, point.seq())? {
        return Ok((meta.kind != RecordKind::Admin).then_some(meta));
    }
    let Some((_, fork_seq)) = &session.forked else { return Ok(None) };
    if point.seq() > *fork_seq {
        return Ok(None);
    }
    let mut roots = read.segments(session.num)?;
    roots.retain(|segment| segment.parent.is_some_and(|parent| parent.num != session.num && parent.seq == *fork_seq));
    let Some(origin) = roots.first().and_then(|root| root.parent) else { return Ok(None) };
    let mut found = None;
    climb(read, origin, &mut |interval| {
        if point.seq() < interval.from {
            return Ok(true);
        }
        found = read.meta(interval.num, point.seq())?.filter(|meta| meta.segment == interval.segment);
        Ok(false)
    })?;
    Ok(found)
}
