//! Reading: places, records, turns, scopes, artifacts.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::body::{Body, decode};
use super::fold::load_artifact;
use super::line::{climb, find_point};
use super::page::Room;
use super::rules::{Env, NO_LIMIT, head_of, is_voided, live_session};
use super::tables::{ArtifactRow, Flow, Only, Read, RecordMeta, RecordRow, Scan, SessionRow, TurnRow};
use super::turns::ended;
use super::walk::{damaged, scan_whole, scan_whole_meta};
use crate::artifact::ArtifactVersion;
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::SnapshotStatus;
use crate::state::{Scope, ScopedState};
use crate::store::{ArtifactQuery, At, Cursor, Page, RecordQuery, StoredArtifact, Versions};
use crate::turn::{Input, Record, RecordKind, RunningTurn, TurnRecord, TurnStatus};
use crate::{AppName, Error, Point, Result, TurnId, UserId};

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

pub(crate) fn records(read: &dyn Read, query: &RecordQuery) -> Result<Page<Record>> {
    let mut room = Room::new(query.limit, query.bytes)?;
    let session = live_session(read, &query.session)?;
    let after = match &query.cursor {
        Some(cursor) => cursor.numbers::<1>('r')?[0].max(query.after),
        None => query.after,
    };
    let scan = Scan {
        num: session.num,
        from: after.saturating_add(1),
        to: NO_LIMIT,
        segment: None,
        only: Only::All,
        newest_first: false,
    };
    let (mut items, mut more) = (Vec::<Record>::new(), false);
    let whole = scan_whole(read, scan, &mut |row: RecordRow| {
        // What does not go on the page need not be unpacked, unless its size decides.
        let shown = if room.is_full() { None } else { Some(record(read, row)?) };
        match shown {
            Some(shown) if room.take(&shown)? => items.push(shown),
            _ => more = true,
        }
        Ok(if more { Flow::Stop } else { Flow::More })
    })?;
    if !more && scan.from < session.next_seq {
        whole.reaches(session.next_seq - 1)?;
    }
    let next = items.last().filter(|_| more).map(|last| Cursor::of('r', &[last.seq]));
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

pub(crate) fn running(read: &dyn Read, env: &Env<'_>, key: Option<&SessionKey>) -> Result<Vec<RunningTurn>> {
    let num = match key {
        None => None,
        Some(key) => Some(live_session(read, key)?.num),
    };
    let mut shown = Vec::new();
    for turn in read.turns(num)? {
        let Some(session) = read.session(turn.num)?.filter(|session| !session.deleted) else { continue };
        let reserved = turn.snapshot.map(|id| read.snapshot(id)).transpose()?.flatten();
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
            detached: reserved.is_some_and(|row| row.status == SnapshotStatus::Pending && !row.is_reserved()),
            snapshot_id: turn.snapshot,
            began_at: turn.began_at,
            heartbeat_at: turn.beat.at,
        });
    }
    Ok(shown)
}

pub(crate) fn turn_status(env: &Env<'_>, turn: &TurnRow) -> TurnStatus {
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
    let from = match &row {
        Some(row) => Point::new(row.start.seq),
        None => {
            let RecordMeta { seq, num, .. } = begin.meta;
            let lost = || Error::corrupt(format!("record {seq} of session number {num} follows nothing"));
            Point::new(preceding(read, &begin.meta)?.ok_or_else(lost)?.seq)
        }
    };
    let ended = match &row {
        Some(_) => None,
        None => ended(read, &session, id.begin)?,
    };
    let last = ended.as_ref().map_or(NO_LIMIT, |ended| ended.point.seq());
    let mut tools = Vec::new();
    let mut attempt = 1;
    let scan = Scan { num: id.session, from: id.begin, to: last, segment: None, only: Only::All, newest_first: false };
    scan_whole(read, scan, &mut |record: RecordRow| {
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
        from,
        input,
        tools,
        ended,
    }))
}

/// The record that a begin or an edit follows on its line; nothing for a session's first record.
pub(crate) fn preceding(read: &dyn Read, begin: &RecordMeta) -> Result<Option<RecordMeta>> {
    let mut from = None;
    climb(read, begin.place(), &mut |interval| {
        let scan = Scan {
            num: interval.num,
            from: interval.from,
            to: interval.to,
            segment: Some(interval.segment),
            only: Only::All,
            newest_first: true,
        };
        scan_whole_meta(read, scan, &mut |meta: RecordMeta| {
            let earlier = meta.seq < begin.seq || meta.segment != begin.segment;
            if earlier && meta.kind != RecordKind::Void && !is_voided(read, &meta, interval.to)? {
                from = Some(meta);
            }
            Ok(if from.is_some() { Flow::Stop } else { Flow::More })
        })?;
        Ok(from.is_none())
    })?;
    Ok(from)
}

pub(crate) fn artifacts(read: &dyn Read, query: &ArtifactQuery) -> Result<Vec<StoredArtifact>> {
    let session = live_session(read, &query.session)?;
    // A fork sees what was put on its own line, and goes on counting from where it was made.
    let mut sources = vec![(session.num, NO_LIMIT)];
    let (mut num, mut forked) = (session.num, session.forked.clone());
    while let Some((_, seq)) = forked {
        let Some(origin) = super::rules::fork_origin(read, num, seq)? else { break };
        sources.push((origin, seq));
        num = origin;
        forked = read.session(origin)?.and_then(|row| row.forked);
    }
    let mut found: BTreeMap<(String, u64), ArtifactRow> = BTreeMap::new();
    for (num, until) in sources {
        for row in read.artifacts(num, query.name.as_deref())? {
            let wanted = row.seq <= until && query.version.is_none_or(|version| version == row.version);
            if !wanted || found.contains_key(&(row.name.clone(), row.version)) {
                continue;
            }
            let inherited = num != session.num;
            if inherited && find_point(read, &session, Point::new(row.seq))?.is_none_or(|meta| meta.num != num) {
                continue;
            }
            found.insert((row.name.clone(), row.version), row);
        }
    }
    if query.versions == Versions::Newest {
        let newest: BTreeMap<String, u64> = found.keys().cloned().collect();
        found.retain(|(name, version), _| newest.get(name) == Some(version));
    }
    let behind = query.after.clone().map_or(Bound::Unbounded, Bound::Excluded);
    let mut room = query.limit.filter(|limit| *limit > 0).map(|limit| Room::new(limit, query.bytes)).transpose()?;
    let mut page = Vec::new();
    for (_, row) in found.range((behind, Bound::Unbounded)).take(query.limit.unwrap_or(usize::MAX)) {
        let artifact = load_artifact(read, session.tree, row.digest)?;
        if let Some(room) = &mut room
            && !room.take(&artifact)?
        {
            break;
        }
        let ArtifactRow { name, version, digest, seq } = row.clone();
        page.push(StoredArtifact {
            version: ArtifactVersion { name, version, point: Point::new(seq), digest },
            artifact,
        });
    }
    Ok(page)
}
