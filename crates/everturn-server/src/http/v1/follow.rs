//! Following a session: what is written to it, as it is written.

use axum::http::HeaderMap;
use axum::response::Response;
use everturn::{Change, Feed, Position, Record, RecordKind, SnapshotId, Timestamp, TurnId};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::caller::Own;
use super::extract::{Asked, In};
use super::frames::{Frames, respond};
use super::problem::Problem;
use super::sessions::SessionPath;
use super::stopping::Stopping;
use super::stream::last_seen;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FollowQuery {
    /// Where to begin, as a tree's `position` says; from now on when left out. `Last-Event-ID` goes before it.
    after: Option<String>,
}

/// A record without what it holds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    seq: u64,
    kind: RecordKind,
    at: Timestamp,
    segment: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u64>,
    voided: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<SnapshotId>,
}

impl From<&Record> for Outline {
    fn from(record: &Record) -> Self {
        Self {
            seq: record.seq,
            kind: record.kind,
            at: record.at,
            segment: record.segment,
            turn: record.turn,
            attempt: record.attempt,
            voided: record.voided,
            snapshot_id: record.snapshot_id,
        }
    }
}

/// Follows a session, after `Last-Event-ID` or `after`, or from now on, whichever process writes to it.
///
/// Events are `session` (what is known about it: first, and whenever that changes), `record` (what was written, with its
/// position as the id) and `deleted`, which is the last. When the server stops the stream ends and can be followed again.
/// Of an agent that shapes what leaves it, records have their `body` for admins only.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/follow", tag = "sessions",
    params(
        SessionPath, FollowQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen"),
    ),
    responses(
        (status = OK, body = String, content_type = "text/event-stream"),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn follow(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<FollowQuery>,
    stopping: Stopping,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = query.after.map(|text| text.parse::<Position>());
    let asked = asked.transpose().map_err(|error| Problem::invalid(format!("`after`: {error}")))?;
    let after = last_seen(&headers)?.or(asked);
    let feed = own.sessions()?.feed(&path.session, after).await?;
    let bodies = if own.sees_raw() { Bodies::Shown } else { Bodies::Hidden };
    Ok(respond(move |frames| async move {
        tokio::select! {
            done = tell(feed, frames, bodies) => done,
            () = stopping.asked() => Ok(()),
        }
    }))
}

#[derive(Clone, Copy)]
enum Bodies {
    Shown,
    Hidden,
}

async fn tell(mut feed: Feed, frames: Frames, bodies: Bodies) -> Result<(), Problem> {
    #[derive(Serialize)]
    struct Gone {}
    while let Some(change) = feed.next().await? {
        match change {
            Change::Session(session) => frames.send("session", None, &session).await?,
            Change::Record(position, record) => match bodies {
                Bodies::Shown => frames.send("record", Some(position), &record).await?,
                Bodies::Hidden => frames.send("record", Some(position), &Outline::from(&*record)).await?,
            },
            Change::Deleted => frames.send("deleted", None, &Gone {}).await?,
            _ => {}
        }
    }
    Ok(())
}
