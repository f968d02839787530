//! Recomputing what is stored from what it says.

use super::body::{Body, FoldBody, decode};
use super::fold::{Fold, fold, load_artifact};
use super::line::line;
use super::rules::NO_LIMIT;
use super::tables::{Flow, ListBy, ListScan, Only, Owner, Read, RecordMeta, RecordRow, Scan, SegmentRow, SessionRow};
use super::walk::damaged;
use crate::digest::Digest;
use crate::json::Json;
use crate::state::PointState;
use crate::store::{Damage, Verified, VerifyScope};
use crate::turn::RecordKind;
use crate::{Error, ErrorKind, Point, Result};

pub(crate) fn verify(read: &dyn Read, scope: &VerifyScope) -> Result<Verified> {
    let mut report = Verified::default();
    let sessions = match scope {
        VerifyScope::Session(key) => vec![super::rules::live_session(read, key)?],
        VerifyScope::All => {
            let mut all = Vec::new();
            let owner = Owner { app: None, user: None };
            let scan = ListScan { owner, by: ListBy::Created, newest_first: false, after: None };
            read.list(scan, &mut |row| {
                all.push(row);
                Ok(Flow::More)
            })?;
            all
        }
    };
    for session in sessions {
        report.sessions += 1;
        match verify_session(read, &session, &mut report) {
            Ok(None) => {}
            Ok(Some(damage)) => {
                report.damage = Some(damage);
                break;
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                report.damage =
                    Some(Damage { session: session.key.clone(), point: Point::new(0), what: error.to_string() });
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

fn verify_session(read: &dyn Read, session: &SessionRow, report: &mut Verified) -> Result<Option<Damage>> {
    let damage = |seq: u64, what: String| Damage { session: session.key.clone(), point: Point::new(seq), what };
    if let Some(gap) = first_gap(read, session)? {
        return Ok(Some(damage(gap, "the record is missing from the log".to_owned())));
    }
    let mut segments = read.segments(session.num)?;
    segments.sort_by_key(|segment| segment.id);
    for segment in segments {
        if let Some((seq, what)) = verify_segment(read, session, segment, report)? {
            return Ok(Some(damage(seq, what)));
        }
    }
    for head in super::rules::all_branches(read, session)? {
        if read.meta(head.head.num, head.head.seq)?.is_none_or(|meta| meta.segment != head.head.segment) {
            return Ok(Some(damage(head.head.seq, format!("the head of {:?} points nowhere", head.name))));
        }
    }
    Ok(None)
}

/// The first sequence number the log skips.
fn first_gap(read: &dyn Read, session: &SessionRow) -> Result<Option<u64>> {
    let mut expected = session.forked.as_ref().map_or(Some(1), |_| None);
    let mut gap = None;
    let scan = Scan { num: session.num, from: 0, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
    read.scan_meta(scan, &mut |meta: RecordMeta| {
        if expected.is_some_and(|seq| seq != meta.seq) {
            gap = expected;
            return Ok(Flow::Stop);
        }
        expected = Some(meta.seq + meta.width);
        Ok(Flow::More)
    })?;
    if gap.is_none() && expected.is_some_and(|seq| seq != session.next_seq) {
        gap = expected;
    }
    Ok(gap)
}

/// Adds a segment up record by record and compares each with what it says it leaves behind.
fn verify_segment(
    read: &dyn Read,
    session: &SessionRow,
    segment: SegmentRow,
    report: &mut Verified,
) -> Result<Option<(u64, String)>> {
    let empty = PointState::empty(session.key.id.clone());
    let start = match segment.parent {
        None => empty,
        Some(parent) => fold(read, session.tree, empty, &line(read, parent)?)?,
    };
    // The state before the turn that is being read, to go back to when it turns out void.
    let mut settled = start.clone();
    let mut state = start;
    let mut found = None;
    let scan = Scan {
        num: segment.num,
        from: segment.parent.map_or(1, |parent| parent.seq + 1),
        to: NO_LIMIT,
        segment: Some(segment.id),
        only: Only::All,
        newest_first: false,
    };
    read.scan(scan, &mut |row: RecordRow| {
        report.records += 1;
        let seq = row.meta.seq;
        let next = match check_record(read, session, &state, &row) {
            Ok(next) => next,
            Err(error) if error.kind() == ErrorKind::Corrupt || error.kind() == ErrorKind::Invalid => {
                found = Some((seq, error.to_string()));
                return Ok(Flow::Stop);
            }
            Err(error) => return Err(error),
        };
        if let Some(id) = row.meta.snapshot
            && let Some(snapshot) = read.snapshot(id)?
            && (snapshot.num, snapshot.seq) == (row.meta.num, row.meta.seq)
        {
            report.snapshots += 1;
            if snapshot.digest != next.digest() {
                found = Some((seq, format!("snapshot {id} does not have the digest of the state it names")));
                return Ok(Flow::Stop);
            }
        }
        state = match row.meta.kind {
            RecordKind::Void => settled.clone(),
            _ => next,
        };
        if matches!(row.meta.kind, RecordKind::End | RecordKind::Edit) {
            settled = state.clone();
        }
        Ok(Flow::More)
    })?;
    Ok(found)
}

fn check_record(read: &dyn Read, session: &SessionRow, before: &PointState, row: &RecordRow) -> Result<PointState> {
    let meta = &row.meta;
    let text = decode(&row.body).map_err(|e| damaged(meta, e))?;
    Body::parse(&text)?;
    let mut fold = Fold::from(before.clone());
    fold.apply(meta, &text)?;
    let state = fold.finish(|digest| {
        let artifact = load_artifact(read, session.tree, digest)?;
        if Digest::of_json(&Json::written(&artifact)?)? != digest {
            return Err(Error::corrupt(format!("the content {digest} of an artifact does not have that digest")));
        }
        Ok(artifact.into())
    })?;
    let wrong = |what: &str| Err(Error::corrupt(format!("{what} of record {} does not match its content", meta.seq)));
    let digests = &meta.tip.digests;
    if chain_after(before, &text)? != digests.chain || state.messages.len() as u64 != meta.tip.messages {
        return wrong("the message chain");
    }
    let custom = state.custom.as_ref().map_or(Ok(Digest::ABSENT), Digest::of_json)?;
    if custom != digests.custom {
        return wrong("the custom state's digest");
    }
    if state.artifacts_digest() != digests.artifacts {
        return wrong("the artifacts' digest");
    }
    let view = match &state.view {
        Some(view) => Digest::of_json(&Json::written(&**view)?)?,
        None => Digest::ABSENT,
    };
    if view != digests.view {
        return wrong("the view's digest");
    }
    Ok(state)
}

/// The chain value after a record, recomputed from its messages.
pub(crate) fn chain_after(before: &PointState, text: &str) -> Result<Digest> {
    let body = FoldBody::parse(text)?;
    let mut chain = before.tip.digests.chain;
    let mut spliced = Vec::new();
    if let Some(splice) = body.splice {
        chain = before.messages.chain_at(usize::try_from(splice.keep).unwrap_or(usize::MAX))?;
        spliced = splice.messages;
    }
    for message in spliced.into_iter().chain(body.messages) {
        chain = chain.chain(Digest::of_json_text(message)?);
    }
    Ok(chain)
}
