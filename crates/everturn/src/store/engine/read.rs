//! Reading: places, events, records, snapshots, turns.

use std::collections::{BTreeMap, HashMap};

use super::body::{ArtifactBody, Body, decode};
use super::fold::{damaged, load_artifact};
use super::line::{Interval, Lines, find_point, line};
use super::rules::{Env, NO_LIMIT, all_branches, head_of, is_voided, live_session, nearest_snapshot};
use super::tables::{Flow, Only, Read, RecordMeta, RecordRow, Scan, SessionRow, SnapshotRow, TurnRow};
use super::turns::ended;
use crate::artifact::ArtifactVersion;
use crate::event::Event;
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::{Snapshot, SnapshotStatus};
use crate::state::{Scope, ScopedState};
use crate::store::{
    ArtifactQuery, At, Cursor, EventQuery, ListSnapshots, MAX_PAGE, Orphans, Page, RecordQuery, SnapshotOrder,
    SnapshotRef, StoredArtifact, Voided,
};
use crate::turn::{Input, Record, RecordKind, RunningTurn, TurnRecord, TurnStatus};
use crate::{AppName, Error, EventId, InvocationId, Point, Result, TurnId, UserId};

pub(crate) fn page_limit(limit: usize) -> Result<usize> {
    match limit {
        0 => Err(Error::invalid("a page of nothing was asked for: ask for 1 to 1000 items")),
        limit => Ok(limit.min(MAX_PAGE)),
    }
}

/// Finds a place: the session it was asked of, and the record there.
pub(crate) fn locate(read: &dyn Read, at: &At) -> Result<Option<(SessionRow, RecordMeta)>> {
    let found = match at {
        At::Head(key, branch) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            let Some(head) = head_of(read, &session, branch)? else { return Ok(None) };
            let meta = read.meta(head.num, head.seq)?.ok_or_else(|| {
                Error::corrupt(format!("record {} of session number {}, a head, is missing", head.seq, head.num))
            })?;
            Some((session, meta))
        }
        At::Point(key, point) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            find_point(read, &session, *point)?.map(|meta| (session, meta))
        }
        At::Snapshot(id) => {
            let Some(row) = read.snapshot(*id)? else { return Ok(None) };
            let Some(session) = read.session(row.num)?.filter(|session| !session.deleted) else { return Ok(None) };
            read.meta(row.num, row.seq)?.map(|meta| (session, meta))
        }
    };
    Ok(found)
}

pub(crate) fn members(custom: &Json) -> Result<Vec<(String, Json)>> {
    Ok(match custom.node()? {
        crate::json::Node::Object(members) => {
            members.into_iter().map(|(key, value)| (key.into(), Json::trusted(value.print()))).collect()
        }
        _ => Vec::new(),
    })
}

pub(crate) fn scopes(read: &dyn Read, app: &AppName, user: Option<&UserId>) -> Result<ScopedState> {
    let mut merged = ScopedState::new();
    let prefixed = |scope: Scope, rows: Vec<(String, Json)>| {
        rows.into_iter().map(move |(key, value)| (format!("{}{key}", scope.prefix()), value))
    };
    merged.extend(prefixed(Scope::App, read.scope(Scope::App, app, None)?));
    if user.is_some() {
        merged.extend(prefixed(Scope::User, read.scope(Scope::User, app, user)?));
    }
    Ok(merged)
}

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
            (None, Some(turn)) => self.invocation_of(meta.num, turn)?,
            _ => body.invocation.clone(),
        };
        let versions = self.versions(meta, &body)?;
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

    fn invocation_of(&mut self, num: u64, turn: u64) -> Result<Option<InvocationId>> {
        if let Some(known) = self.invocations.get(&(num, turn)) {
            return Ok(Some(known.clone()));
        }
        let Some(begin) = self.read.record(num, turn)? else { return Ok(None) };
        let found = Body::decode(&begin.body)?.begin.map(|begin| begin.invocation);
        if let Some(found) = &found {
            self.invocations.insert((num, turn), found.clone());
        }
        Ok(found)
    }

    /// The versions that the artifacts a record put were given when its turn completed.
    fn versions(&self, meta: &RecordMeta, body: &Body) -> Result<BTreeMap<String, u64>> {
        let mut versions = BTreeMap::new();
        for change in &body.artifacts {
            if let ArtifactBody::Put(put) = change
                && let Some(name) = &put.name
            {
                let rows = self.read.artifacts(meta.num, Some(name))?;
                let mine = rows.into_iter().filter(|row| row.seq == meta.seq);
                versions.extend(mine.map(|row| (row.name, row.version)));
            }
        }
        Ok(versions)
    }
}

pub(crate) fn events(read: &dyn Read, query: &EventQuery) -> Result<Page<Event>> {
    let limit = page_limit(query.limit)?;
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
            if wanted && items.len() == limit {
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
        read.scan(scan, &mut |row: RecordRow| {
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
        let mut open: Vec<(RecordMeta, String)> = Vec::new();
        let mut stopped = false;
        let scan = Scan {
            num: interval.num,
            from,
            to: interval.to,
            segment: Some(interval.segment),
            only: Only::All,
            newest_first: false,
        };
        read.scan(scan, &mut |row: RecordRow| {
            let RecordRow { meta, body } = row;
            let text = decode(&body).map_err(|e| damaged(&meta, e))?;
            let holds_back = voided == Voided::Hide && matches!(meta.kind, RecordKind::Begin | RecordKind::Step);
            let hides = voided == Voided::Hide && meta.kind == RecordKind::Void && !(last && meta.seq == interval.to);
            if holds_back {
                open.push((meta, text));
                return Ok(Flow::More);
            }
            if hides {
                open.retain(|(held, _)| !meta.voids(held));
                return Ok(Flow::More);
            }
            open.push((meta, text));
            for (held, text) in open.drain(..) {
                if visit(&held, &text).map_err(|e| damaged(&held, e))? == Flow::Stop {
                    stopped = true;
                    return Ok(Flow::Stop);
                }
            }
            Ok(Flow::More)
        })?;
        for (held, text) in open {
            if !stopped && visit(&held, &text).map_err(|e| damaged(&held, e))? == Flow::Stop {
                stopped = true;
            }
        }
        if stopped {
            break;
        }
    }
    Ok(())
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
    read.scan_meta(scan, &mut |meta: RecordMeta| {
        start = meta.seq;
        Ok(Flow::Stop)
    })?;
    Ok(start)
}

pub(crate) fn records(read: &dyn Read, query: &RecordQuery) -> Result<Page<Record>> {
    let limit = page_limit(query.limit)?;
    let session = live_session(read, &query.session)?;
    let mut rows: Vec<RecordRow> = Vec::new();
    let scan = Scan {
        num: session.num,
        from: query.after.saturating_add(1),
        to: NO_LIMIT,
        segment: None,
        only: Only::All,
        newest_first: false,
    };
    read.scan(scan, &mut |row: RecordRow| {
        rows.push(row);
        Ok(if rows.len() > limit { Flow::Stop } else { Flow::More })
    })?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|row| Cursor::of('r', &[row.meta.seq]));
    let items = rows.into_iter().map(|row| record(read, row)).collect::<Result<_>>()?;
    Ok(Page { items, next })
}

fn record(read: &dyn Read, row: RecordRow) -> Result<Record> {
    let RecordRow { meta, body } = row;
    let text = decode(&body).map_err(|e| damaged(&meta, e))?;
    Ok(Record {
        seq: meta.seq,
        kind: meta.kind,
        at: meta.at,
        segment: meta.segment,
        turn: meta.turn.map(|begin| TurnId { session: meta.num, begin }),
        attempt: meta.turn.map(|_| meta.attempt),
        voided: meta.kind == RecordKind::Void || is_voided(read, &meta, NO_LIMIT)?,
        snapshot_id: meta.snapshot,
        event: meta.event,
        body: Json::trusted(text),
    })
}

pub(crate) fn snapshot(read: &dyn Read, env: &Env<'_>, which: &SnapshotRef) -> Result<Option<Snapshot>> {
    let row = match which {
        SnapshotRef::Id(id) => read.snapshot(*id)?.filter(|row| !row.is_reserved()),
        SnapshotRef::Digest(key, digest) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            let mut found = None;
            for branch in all_branches(read, &session)? {
                found = nearest_snapshot(read, branch.head.place(), &mut |row, _| {
                    row.digest == *digest && row.num == session.num && row.status == SnapshotStatus::Completed
                })?;
                if found.is_some() {
                    break;
                }
            }
            found
        }
        SnapshotRef::Latest(key) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            match newest_pending(read, &session)? {
                Some(row) => Some(row),
                None => nearest_snapshot(read, session.main.place(), &mut |row, _| {
                    row.num == session.num && row.status == SnapshotStatus::Completed
                })?,
            }
        }
        SnapshotRef::LatestResumable(key) => {
            let Some(session) = read.find_session(key)? else { return Ok(None) };
            nearest_snapshot(read, session.main.place(), &mut |row, _| {
                row.num == session.num && row.status == SnapshotStatus::Completed
            })?
        }
    };
    let Some(row) = row else { return Ok(None) };
    let Some(session) = read.session(row.num)?.filter(|session| !session.deleted) else { return Ok(None) };
    let lines = Lines::of(read, &all_branches(read, &session)?)?;
    show_snapshot(read, env, &session, &lines, row).map(Some)
}

fn newest_pending(read: &dyn Read, session: &SessionRow) -> Result<Option<SnapshotRow>> {
    let mut newest: Option<SnapshotRow> = None;
    for turn in read.turns(Some(session.num))? {
        let Some(id) = turn.snapshot else { continue };
        if let Some(row) = read.snapshot(id)?
            && row.status == SnapshotStatus::Pending
            && !row.is_reserved()
            && newest.as_ref().is_none_or(|newest| newest.seq < row.seq)
        {
            newest = Some(row);
        }
    }
    Ok(newest)
}

/// A snapshot as it is shown. Whether it is orphaned or expired is found out now: neither is ever written.
pub(crate) fn show_snapshot(
    read: &dyn Read,
    env: &Env<'_>,
    session: &SessionRow,
    lines: &Lines,
    row: SnapshotRow,
) -> Result<Snapshot> {
    let turn = match (row.status, row.turn) {
        (SnapshotStatus::Pending, Some(turn)) => read.turn(row.num, turn)?,
        _ => None,
    };
    let status = match row.status {
        SnapshotStatus::Pending if turn.as_ref().is_none_or(|turn| !env.alive(&turn.beat)) => SnapshotStatus::Expired,
        status => status,
    };
    let orphaned = match row.status {
        // A running turn is not yet on any line; it is not off them either.
        SnapshotStatus::Pending => false,
        _ => match read.meta(row.num, row.seq)? {
            Some(meta) => !lines.hold(read, &meta)?,
            None => true,
        },
    };
    Ok(Snapshot {
        snapshot_id: row.id,
        session_id: session.key.id.clone(),
        session: Some(session.key.clone()),
        point: Point::new(row.seq),
        parent_id: row.parent,
        digest: row.digest,
        index: row.index,
        turn_index: row.turn_index,
        event: row.event,
        status,
        finish_reason: row.finish,
        error: row.error,
        created_at: row.created_at,
        updated_at: row.updated_at,
        heartbeat_at: turn.map(|turn| turn.beat.at),
        orphaned,
        label: row.label,
        state: None,
    })
}

pub(crate) fn snapshots(read: &dyn Read, env: &Env<'_>, query: &ListSnapshots) -> Result<Page<Snapshot>> {
    let limit = page_limit(query.limit)?;
    let session = live_session(read, &query.session)?;
    let newest_first = query.order == SnapshotOrder::Newest;
    let (mut from, mut to) = (0, NO_LIMIT);
    if let Some(cursor) = &query.cursor {
        let [seq] = cursor.numbers('s')?;
        if newest_first { to = seq.saturating_sub(1) } else { from = seq.saturating_add(1) }
    }
    let lines = Lines::of(read, &all_branches(read, &session)?)?;
    let mut items: Vec<Snapshot> = Vec::new();
    let mut more = false;
    let scan = Scan { num: session.num, from, to, segment: None, only: Only::Snapshots, newest_first };
    read.scan_meta(scan, &mut |meta: RecordMeta| {
        let Some(row) = meta.snapshot.map(|id| read.snapshot(id)).transpose()?.flatten() else {
            return Ok(Flow::More);
        };
        if row.num != meta.num || row.seq != meta.seq {
            return Ok(Flow::More);
        }
        let shown = show_snapshot(read, env, &session, &lines, row)?;
        if shown.orphaned && query.orphans == Orphans::Exclude {
            return Ok(Flow::More);
        }
        if items.len() == limit {
            more = true;
            return Ok(Flow::Stop);
        }
        items.push(shown);
        Ok(Flow::More)
    })?;
    let next = items.last().filter(|_| more).map(|last| Cursor::of('s', &[last.point.seq()]));
    Ok(Page { items, next })
}

pub(crate) fn running(read: &dyn Read, env: &Env<'_>, key: Option<&SessionKey>) -> Result<Vec<RunningTurn>> {
    let num = match key {
        None => None,
        Some(key) => Some(live_session(read, key)?.num),
    };
    let mut shown = Vec::new();
    for turn in read.turns(num)? {
        let Some(session) = read.session(turn.num)?.filter(|session| !session.deleted) else { continue };
        shown.push(RunningTurn {
            turn: TurnId { session: turn.num, begin: turn.begin },
            session: session.key,
            status: turn_status(env, &turn),
            branch: turn.branch,
            agent: turn.agent,
            invocation: turn.invocation,
            key: turn.key,
            attempt: turn.attempt,
            leased: turn.leased,
            snapshot_id: turn.snapshot,
            began_at: turn.began_at,
            heartbeat_at: turn.beat.at,
        });
    }
    Ok(shown)
}

fn turn_status(env: &Env<'_>, turn: &TurnRow) -> TurnStatus {
    if env.alive(&turn.beat) && turn.segment.is_some() { TurnStatus::Running } else { TurnStatus::Dead }
}

pub(crate) fn turn(read: &dyn Read, env: &Env<'_>, id: TurnId) -> Result<Option<TurnRecord>> {
    let Some(session) = read.session(id.session)?.filter(|session| !session.deleted) else { return Ok(None) };
    let Some(begin) = read.record(id.session, id.begin)? else { return Ok(None) };
    if begin.meta.kind != RecordKind::Begin || begin.meta.turn != Some(id.begin) {
        return Ok(None);
    }
    let body = Body::decode(&begin.body)?;
    let Some(begin_body) = body.begin else { return Ok(None) };
    let mut input: Input = begin_body.input;
    for event in body.events {
        input.messages.extend(event.messages);
        input.state_delta.set.extend(event.state_delta);
        input.state_delta.remove.extend(event.state_removed);
    }
    let row = read.turn(id.session, id.begin)?;
    let ended = match &row {
        Some(_) => None,
        None => ended(read, &session, id.begin)?,
    };
    let last = ended.as_ref().map_or(NO_LIMIT, |ended| ended.point.seq());
    let mut tools = Vec::new();
    let mut attempt = 1;
    let scan = Scan {
        num: id.session,
        from: id.begin,
        to: last,
        segment: None,
        only: Only::All,
        newest_first: false,
    };
    read.scan(scan, &mut |record: RecordRow| {
        if record.meta.turn == Some(id.begin) {
            attempt = attempt.max(record.meta.attempt);
            let body = Body::decode(&record.body).map_err(|e| damaged(&record.meta, e))?;
            tools.extend(body.tools.into_iter().map(|entry| (record.meta.attempt, entry)));
        }
        Ok(Flow::More)
    })?;
    let status = match (&row, &ended) {
        (Some(row), _) => turn_status(env, row),
        (None, Some(ended)) => ended.status.into(),
        (None, None) => return Err(Error::corrupt(format!("turn {id} has neither ended nor is it running"))),
    };
    Ok(Some(TurnRecord {
        turn: id,
        session: session.key,
        status,
        attempt: row.map_or(attempt, |row| row.attempt),
        invocation: begin_body.invocation,
        agent: begin_body.agent,
        input,
        tools,
        ended,
    }))
}

pub(crate) fn artifacts(read: &dyn Read, query: &ArtifactQuery) -> Result<Vec<StoredArtifact>> {
    let session = live_session(read, &query.session)?;
    // A fork sees what its line had when it was made, and goes on counting from there.
    let mut sources = vec![(session.num, NO_LIMIT)];
    let (mut num, mut forked) = (session.num, session.forked.clone());
    while let Some((_, seq)) = forked {
        let Some(origin) = super::rules::fork_origin(read, num, seq)? else { break };
        sources.push((origin, seq));
        num = origin;
        forked = read.session(origin)?.and_then(|row| row.forked);
    }
    let mut found: BTreeMap<(String, u64), StoredArtifact> = BTreeMap::new();
    for (num, until) in sources {
        for row in read.artifacts(num, query.name.as_deref())? {
            let wanted = row.seq <= until && query.version.is_none_or(|version| version == row.version);
            if !wanted || found.contains_key(&(row.name.clone(), row.version)) {
                continue;
            }
            let artifact = load_artifact(read, session.tree, row.digest)?;
            let version = ArtifactVersion {
                name: row.name.clone(),
                version: row.version,
                point: Point::new(row.seq),
                digest: row.digest,
            };
            found.insert((row.name, row.version), StoredArtifact { version, artifact });
        }
    }
    Ok(found.into_values().collect())
}
