//! What each record must hold, whatever state it follows.

use std::sync::Arc;

use super::super::body::{ArtifactBody, Body, EndBodyStatus};
use super::check::{MAX_COUNT, check};
use crate::Result;
use crate::artifact::Artifact;
use crate::digest::Digest;
use crate::json::Json;
use crate::snapshot::SnapshotStatus;
use crate::store::RecordEntry;
use crate::turn::RecordKind;

/// Whether a turn has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    No,
    /// For good.
    Yes,
    /// It was lost, and may be run again.
    Lost,
}

/// How a record ends its turn; a void that was written because a writer was gone does not.
pub(super) fn how_ended(entry: &RecordEntry) -> Result<Ended> {
    if !matches!(entry.kind, RecordKind::End | RecordKind::Void) {
        return Ok(Ended::No);
    }
    let body: Body = entry.body.to()?;
    Ok(match body.end {
        Some(end) if end.status == EndBodyStatus::Failed && end.outcome.lost => Ended::Lost,
        Some(end) if end.status != EndBodyStatus::Lost => Ended::Yes,
        _ => Ended::No,
    })
}

/// Whether a record has what its kind has.
pub(super) fn shape(entry: &RecordEntry, body: &Body) -> Result<()> {
    let in_turn = entry.turn.is_some() && entry.attempt.is_some_and(|attempt| attempt > 0) && entry.segment != 0;
    let outside = entry.turn.is_none() && entry.attempt.is_none();
    let end = body.end.as_ref().map(|end| end.status);
    let fits = match entry.kind {
        RecordKind::Begin => in_turn && body.begin.is_some() && end.is_none(),
        RecordKind::Step => in_turn && body.begin.is_none() && end.is_none(),
        RecordKind::End => in_turn && end == Some(EndBodyStatus::Completed),
        RecordKind::Void => in_turn && end.is_some_and(|end| end != EndBodyStatus::Completed),
        RecordKind::Edit => outside && entry.segment != 0 && body.begin.is_none() && end.is_none(),
        RecordKind::Admin => outside && entry.segment == 0 && body.admin.is_some() && entry.snapshot.is_none(),
    };
    check(fits && (body.admin.is_none() || entry.kind == RecordKind::Admin), || {
        "it does not hold what its kind holds".to_owned()
    })?;
    let counts = [entry.schema, entry.attempt.unwrap_or(0)];
    let of_snapshot = entry.snapshot.iter().flat_map(|snapshot| [snapshot.index, snapshot.turn_index]);
    check(counts.into_iter().chain(of_snapshot).all(|count| count < MAX_COUNT), || "it counts too far".to_owned())?;
    check(entry.snapshot.is_none() || entry.of == 0, || "it names a snapshot of another session".to_owned())?;
    if let Some(snapshot) = &entry.snapshot {
        let may_be = match snapshot.status {
            SnapshotStatus::Completed => !matches!(entry.kind, RecordKind::Void | RecordKind::Begin),
            SnapshotStatus::Failed | SnapshotStatus::Aborted => {
                !matches!(entry.kind, RecordKind::End | RecordKind::Edit)
            }
            SnapshotStatus::Pending | SnapshotStatus::Expired => false,
        };
        check(may_be, || "its snapshot cannot have that status".to_owned())?;
    }
    let spliced = body.splice.iter().flat_map(|splice| &splice.messages);
    for message in spliced.chain(body.events.iter().flat_map(|event| &event.messages)) {
        let noted = message.clone().without_snapshot_id()? != *message;
        check(!noted, || "a message has a note that is never kept".to_owned())?;
    }
    Ok(())
}

/// The artifacts a record puts, by digest: all of them, and no others.
pub(super) fn contents(entry: &RecordEntry, body: &Body) -> Result<Vec<(Digest, Arc<Artifact>)>> {
    let mut found = Vec::new();
    for artifact in &entry.contents {
        artifact.check()?;
        found.push((Digest::of_json(&Json::written(artifact)?)?, Arc::new(artifact.clone())));
    }
    let puts = body.artifacts.iter().filter_map(|change| match change {
        ArtifactBody::Put(put) => Some((put.digest, put.name.clone())),
        _ => None,
    });
    let given = found.iter().map(|(digest, artifact)| (*digest, artifact.name.clone()));
    check(puts.eq(given), || "the artifacts it puts are not with it".to_owned())?;
    Ok(found)
}
