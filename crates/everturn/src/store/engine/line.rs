//! Lines: the way from the root of the tree to a point.

use super::tables::{Place, Read, RecordMeta, SegmentRow, SessionRow};
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

fn segment(read: &dyn Read, id: u64) -> Result<SegmentRow> {
    read.segment(id)?.ok_or_else(|| Error::corrupt(format!("segment {id} of the tree is missing")))
}

/// Goes from a place towards the root, one segment at a time.
pub(crate) fn climb(
    read: &dyn Read,
    place: Place,
    visit: &mut dyn FnMut(Interval) -> Result<bool>,
) -> Result<()> {
    let mut next = Some(place);
    while let Some(place) = next {
        let row = segment(read, place.segment)?;
        let from = row.parent.map_or(1, |parent| parent.seq + 1);
        if !visit(Interval { num: row.num, segment: row.id, from, to: place.seq })? {
            break;
        }
        next = row.parent;
    }
    Ok(())
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

/// Whether the line to `tip` goes through `place`.
pub(crate) fn holds(read: &dyn Read, tip: Place, place: Place) -> Result<bool> {
    let mut found = false;
    climb(read, tip, &mut |interval| {
        found = interval.segment == place.segment && place.seq <= interval.to;
        Ok(!found)
    })?;
    Ok(found)
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
