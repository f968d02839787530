//! What is in a session: its state, its events, its records.

use axum::Json as JsonBody;
use everturn::store::Voided;
use everturn::{BranchName, Event, Point, Record, SessionState, SnapshotId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::caller::Own;
use super::extract::{Asked, In, Place, cursor, limit};
use super::problem::Problem;
use super::sessions::{Items, SessionPath};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StateQuery {
    /// Where this branch stands.
    #[param(value_type = Option<String>)]
    branch: Option<BranchName>,
    /// After the record with this number.
    #[param(value_type = Option<u64>)]
    point: Option<Point>,
    /// At this snapshot.
    #[param(value_type = Option<String>, format = "uuid")]
    snapshot: Option<SnapshotId>,
}

/// Reads the state at a place, as it may be shown; at `main`'s head unless the query says.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/state", tag = "sessions", params(SessionPath, StateQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/State")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn state(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<StateQuery>,
) -> Result<JsonBody<SessionState>, Problem> {
    let spot = Place { branch: query.branch, point: query.point, snapshot: query.snapshot }.spot()?;
    Ok(JsonBody(own.sessions()?.state(&path.session, spot).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// How many, from 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// Only events after this sequence number.
    after: Option<u64>,
    /// Only the last so many.
    tail: Option<usize>,
    /// Whether events of turns that did not complete are shown.
    #[serde(default)]
    voided: bool,
    /// Those on the way to where this branch stands.
    #[param(value_type = Option<String>)]
    branch: Option<BranchName>,
    /// Those on the way to this point.
    #[param(value_type = Option<u64>)]
    point: Option<Point>,
    /// Those on the way to this snapshot.
    #[param(value_type = Option<String>, format = "uuid")]
    snapshot: Option<SnapshotId>,
}

/// Reads the events on the way to a place, raw; to `main`'s head unless the query says.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/events", tag = "sessions", params(SessionPath, EventsQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/EventPage")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn events(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<EventsQuery>,
) -> Result<JsonBody<Items<Event>>, Problem> {
    let sessions = own.raw_sessions()?;
    let spot = Place { branch: query.branch, point: query.point, snapshot: query.snapshot }.spot()?;
    let limit = limit(query.limit)?;
    let page = sessions.events(&path.session, spot, |mut events| {
        (events.after, events.tail) = (query.after, query.tail);
        events.voided = if query.voided { Voided::Show } else { Voided::Hide };
        (events.limit, events.cursor) = (limit, cursor(query.cursor));
        events
    });
    let page = page.await?;
    Ok(JsonBody(page.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordsQuery {
    /// How many, from 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// Only records after this sequence number.
    after: Option<u64>,
}

/// Reads a session's log, raw: every record, voided ones too.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/records", tag = "sessions", params(SessionPath, RecordsQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/RecordPage")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn records(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<RecordsQuery>,
) -> Result<JsonBody<Items<Record>>, Problem> {
    let sessions = own.raw_sessions()?;
    let limit = limit(query.limit)?;
    let page = sessions.records(&path.session, |mut records| {
        records.after = query.after.unwrap_or(0);
        (records.limit, records.cursor) = (limit, cursor(query.cursor));
        records
    });
    let page = page.await?;
    Ok(JsonBody(page.into()))
}
