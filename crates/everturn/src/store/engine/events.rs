//! Reading the events of a line.

use std::collections::{BTreeMap, HashMap};

use super::body::{ArtifactBody, Body, decode};
use super::line::{Interval, find_point, line};
use super::page::Room;
use super::read::locate;
use super::rules::NO_LIMIT;
use super::tables::{Flow, Only, Read, RecordMeta, RecordRow, Scan};
use super::turns::last_record;
use super::walk::{damaged, scan_whole, scan_whole_meta};
use crate::event::Event;
use crate::store::{Cursor, EventQuery, Page, Voided};
use crate::turn::RecordKind;
use crate::{Error, EventId, InvocationId, Point, Result};

/// Turns records into events, knowing the turn each belongs to.
struct EventReader<'a> {
    read: &'a dyn Read,
    invocations: HashMap<(u64, u64), InvocationId>,
}

impl EventReader<'_> {
    fn events(&mut self, meta: &RecordMeta, text: &str) -> Result<Vec<Event>> {
        let body = Body::parse(text)?;
        let invocation = match (&body.begin, meta.turn) {
            (Some(begin), Some(turn)) => {
                self.invocations.insert((meta.num, turn), begin.invocation.clone());
                Some(begin.invocation.clone())
            }
            (None, Some(turn)) => self.invocation_of(meta, turn)?,
            _ => body.invocation.clone(),
        };
        let versions = versions(self.read, meta, &body)?;
        let count = body.events.len();
        let events = body.events.into_iter().enumerate().map(|(i, mut event)| {
            event.seq = meta.seq + i as u64;
            event.at = event.at.or(Some(meta.at));
            event.turn_index = meta.turn.map(|_| meta.turn_index());
            if event.invocation_id.is_none() {
                event.invocation_id.clone_from(&invocation);
            }
            if event.id.is_none() {
                event.id = Some(EventId::new(format!("e-{}-{}", meta.num, event.seq))?);
            }
            if i + 1 == count {
                event.artifact_delta.extend(versions.clone());
            }
            Ok(event)
        });
        events.collect()
    }

    fn invocation_of(&mut self, meta: &RecordMeta, turn: u64) -> Result<Option<InvocationId>> {
        let num = meta.num;
        if let Some(known) = self.invocations.get(&(num, turn)) {
            return Ok(Some(known.clone()));
        }
        let begin = match self.read.record(num, turn)? {
            Some(begin) => Some(begin),
            None => self.later_begin(meta, turn)?,
        };
        let body = begin.map(|begin| Body::decode(&begin.body)).transpose()?;
        let found = body.and_then(|body| body.begin).map(|begin| begin.invocation);
        if let Some(found) = &found {
            self.invocations.insert((num, turn), found.clone());
        }
        Ok(found)
    }

    /// The begin of a later attempt at a turn. The first one is gone where nothing but the later one's line was kept, for a
    /// fork that outlived the session.
    fn later_begin(&self, meta: &RecordMeta, turn: u64) -> Result<Option<RecordRow>> {
        let (num, mut found) = (meta.num, None);
        let scan = Scan { num, from: turn, to: meta.seq, segment: None, only: Only::All, newest_first: true };
        self.read.scan_meta(scan, &mut |other: RecordMeta| {
            if other.kind != RecordKind::Begin || other.turn != Some(turn) {
                return Ok(Flow::More);
            }
            found = Some(other.seq);
            Ok(Flow::Stop)
        })?;
        found.map(|seq| self.read.record(num, seq)).transpose().map(Option::flatten)
    }
}

/// The versions that the artifacts a record put were given when its turn completed.
pub(super) fn versions(read: &dyn Read, meta: &RecordMeta, body: &Body) -> Result<BTreeMap<String, u64>> {
    let mut versions = BTreeMap::new();
    for change in &body.artifacts {
        if let ArtifactBody::Put(put) = change
            && let Some(name) = &put.name
        {
            let rows = read.artifacts(meta.num, Some(name))?;
            let mine = rows.into_iter().rfind(|row| row.seq == meta.seq);
            if mine.is_none() && is_versioned(read, meta)? {
                let RecordMeta { seq, num, .. } = meta;
                let text = format!("the version of {name:?} that record {seq} of session number {num} put is missing");
                return Err(Error::corrupt(text));
            }
            versions.extend(mine.map(|row| (row.name, row.version)));
        }
    }
    Ok(versions)
}

/// Whether what a record put must have versions: if it is of a live session, and of an attempt that completed its turn.
fn is_versioned(read: &dyn Read, meta: &RecordMeta) -> Result<bool> {
    let completed = match meta.turn {
        None => true,
        Some(turn) => last_record(read, meta.num, turn)?
            .is_some_and(|(end, ..)| end.kind == RecordKind::End && end.attempt == meta.attempt),
    };
    Ok(completed && read.session(meta.num)?.is_some_and(|session| !session.deleted))
}

pub(crate) fn events(read: &dyn Read, query: &EventQuery) -> Result<Page<Event>> {
    let mut room = Room::new(query.limit, query.bytes)?;
    let Some((session, meta)) = locate(read, &query.at)? else {
        return Err(Error::not_found("there is no such place to read events at: check the session, point or snapshot"));
    };
    // A cursor keeps to the line its first page was read from, wherever the head has gone since.
    let (tip, after) = match &query.cursor {
        None => (meta.place(), None),
        Some(cursor) => {
            let [seq, after] = cursor.numbers('e')?;
            let meta = find_point(read, &session, Point::new(seq))?
                .ok_or_else(|| Error::invalid("that is no cursor of this listing: start again without one"))?;
            (meta.place(), Some(after))
        }
    };
    let mut after = after.max(query.after).unwrap_or(0);
    let until = query.until.unwrap_or(NO_LIMIT);
    let line = line(read, tip)?;
    if let (Some(tail), None) = (query.tail, &query.cursor) {
        let Some(start) = tail_start(read, &line, tail, query.voided)? else {
            return Ok(Page { items: Vec::new(), next: None });
        };
        after = after.max(start - 1);
    }
    let mut reader = EventReader { read, invocations: HashMap::new() };
    let mut items = Vec::new();
    let mut more = false;
    walk_events(read, &line, after, query.voided, &mut |meta, text| {
        for event in reader.events(meta, text)? {
            let wanted = event.seq > after
                && event.seq <= until
                && query.since.is_none_or(|since| event.at.is_some_and(|at| at >= since));
            if wanted && !room.take(&event)? {
                more = true;
                return Ok(Flow::Stop);
            }
            if wanted {
                items.push(event);
            }
        }
        Ok(Flow::More)
    })?;
    let next = items.last().filter(|_| more).map(|last| Cursor::of('e', &[tip.seq, last.seq]));
    Ok(Page { items, next })
}

/// The sequence number of the n-th last event of a line.
fn tail_start(read: &dyn Read, line: &[Interval], tail: usize, voided: Voided) -> Result<Option<u64>> {
    if tail == 0 {
        return Ok(None);
    }
    let mut left = tail as u64;
    let mut start = None;
    for (i, interval) in line.iter().enumerate().rev() {
        let last = i + 1 == line.len();
        let mut hidden: Vec<RecordMeta> = Vec::new();
        let scan = Scan {
            num: interval.num,
            from: interval.from,
            to: interval.to,
            segment: Some(interval.segment),
            only: Only::All,
            newest_first: true,
        };
        scan_whole(read, scan, &mut |row: RecordRow| {
            let meta = row.meta;
            if meta.kind == RecordKind::Void && !(last && meta.seq == interval.to) && voided == Voided::Hide {
                hidden.push(meta);
                return Ok(Flow::More);
            }
            if hidden.iter().any(|void| void.voids(&meta)) {
                return Ok(Flow::More);
            }
            let count = Body::decode(&row.body).map_err(|e| damaged(&meta, e))?.events.len() as u64;
            if count > 0 {
                start = Some(meta.seq + count.saturating_sub(left));
                left = left.saturating_sub(count);
            }
            Ok(if left == 0 { Flow::Stop } else { Flow::More })
        })?;
        if left == 0 {
            break;
        }
    }
    Ok(start)
}

/// Like `fold::walk`, but stops when told to, starts late, and shows voided records where they are wanted.
fn walk_events(
    read: &dyn Read,
    line: &[Interval],
    after: u64,
    voided: Voided,
    visit: &mut dyn FnMut(&RecordMeta, &str) -> Result<Flow>,
) -> Result<()> {
    for (i, interval) in line.iter().enumerate() {
        let last = i + 1 == line.len();
        let from = start_of_record(read, interval, after)?;
        // As they are packed: a turn may have many records that are large only when they are not.
        let mut open: Vec<RecordRow> = Vec::new();
        let mut stopped = false;
        let scan = Scan {
            num: interval.num,
            from,
            to: interval.to,
            segment: Some(interval.segment),
            only: Only::All,
            newest_first: false,
        };
        let whole = scan_whole(read, scan, &mut |row: RecordRow| {
            let meta = &row.meta;
            let holds_back = voided == Voided::Hide && matches!(meta.kind, RecordKind::Begin | RecordKind::Step);
            let hides = voided == Voided::Hide && meta.kind == RecordKind::Void && !(last && meta.seq == interval.to);
            if holds_back {
                open.push(row);
                return Ok(Flow::More);
            }
            if hides {
                open.retain(|held| !meta.voids(&held.meta));
                return Ok(Flow::More);
            }
            open.push(row);
            for held in open.drain(..) {
                if visit_row(&held, visit)? == Flow::Stop {
                    stopped = true;
                    return Ok(Flow::Stop);
                }
            }
            Ok(Flow::More)
        })?;
        if !stopped {
            whole.reaches(interval.to)?;
        }
        for held in open {
            if !stopped && visit_row(&held, visit)? == Flow::Stop {
                stopped = true;
            }
        }
        if stopped {
            break;
        }
    }
    Ok(())
}

fn visit_row(row: &RecordRow, visit: &mut dyn FnMut(&RecordMeta, &str) -> Result<Flow>) -> Result<Flow> {
    let shown = decode(&row.body).and_then(|text| visit(&row.meta, &text));
    shown.map_err(|error| damaged(&row.meta, error))
}

/// Where to start reading so that the event after `after` is seen, though it may be in the middle of a record.
fn start_of_record(read: &dyn Read, interval: &Interval, after: u64) -> Result<u64> {
    if after < interval.from {
        return Ok(interval.from);
    }
    let mut start = interval.from;
    let scan = Scan {
        num: interval.num,
        from: interval.from,
        to: after.min(interval.to),
        segment: Some(interval.segment),
        only: Only::All,
        newest_first: true,
    };
    scan_whole_meta(read, scan, &mut |meta: RecordMeta| {
        start = meta.seq;
        Ok(Flow::Stop)
    })?;
    Ok(start)
}
