//! A session on its way out: everything it is made of, in an order in which it can be put together again.
//!
//! The log only grows, so what was there when the export began can be read bit by bit. A fork's line began in other
//! sessions; what it needs of them goes along.

use std::collections::HashSet;

use super::body::{ArtifactBody, Body, decode};
use super::events::versions as versions_of;
use super::fold::load_artifact;
use super::line::{Interval, line};
use super::page::weight;
use super::rules::{NO_LIMIT, all_branches, fork_origin, live_session, named_snapshot};
use super::tables::{Flow, Only, Place, Read, RecordMeta, RecordRow, Scan, SegmentRow, SessionRow};
use super::walk::{damaged, scan_whole};
use crate::json::Json;
use crate::session::{ForkOrigin, SessionKey};
use crate::snapshot::{FinishReason, SnapshotStatus};
use crate::store::{
    Cursor, Entry, ExportPage, HeadEntry, OpenEntry, OriginEntry, PlaceEntry, RecordEntry, SegmentEntry, SessionEntry,
    SnapshotEntry, VersionEntry,
};
use crate::turn::RecordKind;
use crate::{Error, Point, Result};

/// What a page of an export may hold: it is in memory at once.
const PAGE_RECORDS: usize = 256;
const PAGE_BYTES: usize = 1 << 20;

/// A session with those its line began in.
struct Lineage {
    session: SessionRow,
    /// The one it was forked off first.
    origins: Vec<SessionRow>,
    /// What its line has in them, from the root.
    inherited: Vec<Interval>,
    /// The session's own segments.
    segments: HashSet<u64>,
}

impl Lineage {
    fn of(read: &dyn Read, session: SessionRow) -> Result<Self> {
        let (mut origins, mut inherited) = (Vec::new(), Vec::new());
        let (mut num, mut forked) = (session.num, session.forked.clone());
        while let Some((_, seq)) = forked {
            let gone = || Error::corrupt("a fork's line begins nowhere");
            let origin = fork_origin(read, num, seq)?.ok_or_else(gone)?;
            let row = read.session(origin)?.ok_or_else(gone)?;
            (num, forked) = (origin, row.forked.clone());
            origins.push(row);
        }
        if let Some((_, seq)) = &session.forked {
            let roots = read.segments(session.num)?.into_iter().filter_map(|segment| segment.parent);
            let root =
                roots.filter(|parent| parent.num != session.num && parent.seq == *seq).min_by_key(|at| at.segment);
            inherited = line(read, root.ok_or_else(|| Error::corrupt("a fork's line begins nowhere"))?)?;
        }
        let segments = read.segments(session.num)?.into_iter().map(|segment| segment.id).collect();
        Ok(Self { session, origins, inherited, segments })
    }

    /// 0 for the session itself, 1 for its first origin, and so on.
    fn of_num(&self, num: u64) -> Result<u64> {
        if num == self.session.num {
            return Ok(0);
        }
        let at = self.origins.iter().position(|origin| origin.num == num);
        at.map(|at| at as u64 + 1).ok_or_else(|| Error::corrupt("a line leads through a session it does not begin in"))
    }

    fn place(&self, place: Place) -> Result<PlaceEntry> {
        Ok(PlaceEntry { of: self.of_num(place.num)?, segment: place.segment, seq: place.seq })
    }
}

pub(crate) fn export(read: &dyn Read, key: &SessionKey, cursor: Option<&Cursor>) -> Result<ExportPage> {
    let session = live_session(read, key)?;
    let Some(cursor) = cursor else { return begin(read, session) };
    let [num, until, stretch, after] = cursor.numbers('x')?;
    if session.num != num {
        return Err(Error::deleted("the session was deleted while it was exported: there is another one now"));
    }
    records(read, &Lineage::of(read, session)?, until, stretch, after)
}

/// What is known about the session, and the shape of its tree.
fn begin(read: &dyn Read, session: SessionRow) -> Result<ExportPage> {
    let lineage = Lineage::of(read, session)?;
    let session = &lineage.session;
    let mut entries = vec![Entry::Session(Box::new(session_entry(read, &lineage)?))];
    let mut segments: Vec<SegmentRow> = read.segments(session.num)?;
    for stretch in &lineage.inherited {
        segments.extend(read.segment(stretch.segment)?);
    }
    segments.sort_by_key(|segment| segment.id);
    for segment in segments {
        let parent = segment.parent.map(|parent| lineage.place(parent)).transpose()?;
        entries.push(Entry::Segment(SegmentEntry { of: lineage.of_num(segment.num)?, id: segment.id, parent }));
    }
    let next = Some(Cursor::of('x', &[session.num, session.next_seq, 0, 0]));
    Ok(ExportPage { entries, next })
}

fn origin_of(row: &SessionRow) -> Option<ForkOrigin> {
    row.forked.as_ref().map(|(id, seq)| ForkOrigin { session: id.clone(), point: Point::new(*seq) })
}

fn session_entry(read: &dyn Read, lineage: &Lineage) -> Result<SessionEntry> {
    let row = &lineage.session;
    let branches = all_branches(read, row)?
        .into_iter()
        .map(|branch| Ok(HeadEntry { at: lineage.place(branch.head.place())?, name: branch.name }));
    let running = read.turns(Some(row.num))?;
    let leases = all_branches(read, row)?.into_iter().filter_map(|branch| branch.head.lease);
    if let Some(lease) = leases.into_iter().find(|lease| running.iter().all(|turn| turn.begin != *lease)) {
        return Err(Error::corrupt(format!("turn {lease} of session number {} is missing", row.num)));
    }
    let open = running.into_iter().map(|turn| {
        let (begin, attempt, segment) = (turn.begin, turn.attempt, turn.segment);
        Ok(OpenEntry { begin, attempt, start: lineage.place(turn.start)?, segment })
    });
    let origins = lineage.origins.iter().map(|origin| OriginEntry {
        id: origin.key.id.clone(),
        created_at: origin.created_at,
        forked_from: origin_of(origin),
    });
    Ok(SessionEntry {
        app: row.key.app.clone(),
        user: row.key.user.clone(),
        id: row.key.id.clone(),
        agent: row.agent.clone(),
        title: row.title.clone(),
        labels: row.labels.clone(),
        metadata: row.metadata.clone(),
        created_at: row.created_at,
        updated_at: row.updated_at,
        usage: row.usage,
        inherited_usage: row.inherited,
        interrupted: row.interrupted,
        branches: branches.collect::<Result<_>>()?,
        origins: origins.collect(),
        forked_from: origin_of(row),
        open: open.collect::<Result<_>>()?,
    })
}

/// Some records, what was inherited first; with the last of them the versions of artifacts.
fn records(read: &dyn Read, lineage: &Lineage, until: u64, mut stretch: u64, mut after: u64) -> Result<ExportPage> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    loop {
        let inherited = usize::try_from(stretch).ok().and_then(|at| lineage.inherited.get(at));
        let whole = match inherited {
            Some(interval) => Scan::of(interval),
            None => {
                let (num, to) = (lineage.session.num, until.saturating_sub(1));
                Scan { num, from: 0, to, segment: None, only: Only::All, newest_first: false }
            }
        };
        let scan = Scan { from: whole.from.max(after.saturating_add(1)), ..whole };
        let mut full = false;
        if scan.from <= scan.to {
            let whole = scan_whole(read, scan, &mut |row: RecordRow| {
                after = row.meta.seq;
                let entry = record_entry(read, lineage, &row)?;
                bytes += entry.body.as_str().len() + row.body.len() + weight(&entry.contents)?;
                entries.push(Entry::Record(Box::new(entry)));
                full = entries.len() >= PAGE_RECORDS || bytes >= PAGE_BYTES;
                Ok(if full { Flow::Stop } else { Flow::More })
            })?;
            if !full {
                whole.reaches(scan.to)?;
            }
        }
        if full {
            let next = Some(Cursor::of('x', &[lineage.session.num, until, stretch, after]));
            return Ok(ExportPage { entries, next });
        }
        if inherited.is_none() {
            versions(read, lineage, until, &mut entries)?;
            return Ok(ExportPage { entries, next: None });
        }
        (stretch, after) = (stretch + 1, 0);
    }
}

fn record_entry(read: &dyn Read, lineage: &Lineage, row: &RecordRow) -> Result<RecordEntry> {
    let RecordRow { meta, body } = row;
    let text = decode(body).map_err(|e| damaged(meta, e))?;
    let own = meta.num == lineage.session.num;
    let puts = match meta.kind {
        RecordKind::Admin => Vec::new(),
        _ => {
            if own && !lineage.segments.contains(&meta.segment) {
                return Err(damaged(meta, Error::corrupt("its segment is missing")));
            }
            let body = Body::parse(&text)?;
            versions_of(read, meta, &body)?;
            body.artifacts
        }
    };
    let contents = puts.iter().filter_map(|change| match change {
        ArtifactBody::Put(put) => Some(load_artifact(read, lineage.session.tree, put.digest)),
        _ => None,
    });
    Ok(RecordEntry {
        of: lineage.of_num(meta.num)?,
        seq: meta.seq,
        segment: meta.segment,
        kind: meta.kind,
        turn: meta.turn,
        attempt: meta.turn.map(|_| meta.attempt),
        at: meta.at,
        event: meta.event,
        schema: meta.tip.schema,
        digest: (meta.kind != RecordKind::Admin).then(|| meta.tip.digests.state()),
        // The snapshots of the sessions its line began in are theirs.
        snapshot: if own { snapshot_entry(read, meta)?.map(Box::new) } else { None },
        contents: contents.collect::<Result<_>>()?,
        body: Json::trusted(text),
    })
}

fn snapshot_entry(read: &dyn Read, meta: &RecordMeta) -> Result<Option<SnapshotEntry>> {
    let row = named_snapshot(read, meta)?;
    let Some(mut row) = row.filter(|row| (row.num, row.seq) == (meta.num, meta.seq)) else { return Ok(None) };
    if row.status == SnapshotStatus::Pending {
        // Whoever brings it in cannot go on with its turn.
        (row.status, row.finish) = (SnapshotStatus::Aborted, Some(FinishReason::Aborted));
    }
    Ok(Some(SnapshotEntry {
        id: row.id,
        parent: row.parent,
        index: row.index,
        turn_index: row.turn_index,
        event: row.event,
        status: row.status,
        finish_reason: row.finish,
        error: row.error,
        created_at: row.created_at,
        updated_at: row.updated_at,
        label: row.label,
    }))
}

/// The versions of artifacts. Those of origins up to where the line left them, so that counting goes on from there.
fn versions(read: &dyn Read, lineage: &Lineage, until: u64, entries: &mut Vec<Entry>) -> Result<()> {
    let mut forked = lineage.session.forked.clone();
    let mut sources = vec![(&lineage.session, until.min(NO_LIMIT))];
    for origin in &lineage.origins {
        let Some((_, seq)) = forked else { break };
        sources.push((origin, seq + 1));
        forked = origin.forked.clone();
    }
    for (of, (session, until)) in sources.into_iter().enumerate() {
        for row in read.artifacts(session.num, None)?.into_iter().filter(|row| row.seq < until) {
            let version =
                VersionEntry { of: of as u64, name: row.name, version: row.version, digest: row.digest, seq: row.seq };
            entries.push(Entry::Version(version));
        }
    }
    Ok(())
}
