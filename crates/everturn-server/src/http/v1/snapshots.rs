//! Snapshots: points with a name.

use std::time::Duration;

use axum::Json as JsonBody;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use everturn::store::{Orphans, SnapshotOrder};
use everturn::{ErrorKind, Snapshot, SnapshotId, SnapshotStatus, StateDiff};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Own;
use super::extract::{Asked, In, Order, Sent, cursor, given, limit, unconditional};
use super::problem::Problem;
use super::sessions::{Items, SessionPath};
use super::stream::SnapshotPath;

/// How long somebody may wait for a turn in one request, and how long they do unless they say.
const LONGEST_WAIT: u64 = 600;
const WAIT: u64 = 30;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotsQuery {
    /// How many, from 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// `asc` or `desc`; `asc` when left out.
    #[param(inline)]
    order: Option<Order>,
    /// Whether those on no branch's line are listed; they are unless this is `false`.
    orphans: Option<bool>,
}

/// Lists a session's snapshots, without their states.
///
/// Each names its `parentId`: together they are the session's tree.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/snapshots", tag = "snapshots",
    params(SessionPath, SnapshotsQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/SnapshotPage")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn list(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<SnapshotsQuery>,
) -> Result<JsonBody<Items<Snapshot>>, Problem> {
    let (sessions, limit) = (own.sessions()?, limit(query.limit)?);
    let page = sessions.snapshots(&path.session, |mut snapshots| {
        snapshots.order = match query.order.unwrap_or(Order::Asc) {
            Order::Asc => SnapshotOrder::Oldest,
            Order::Desc => SnapshotOrder::Newest,
        };
        snapshots.orphans = if query.orphans == Some(false) { Orphans::Exclude } else { Orphans::Include };
        (snapshots.limit, snapshots.cursor) = (limit, cursor(query.cursor));
        snapshots
    });
    let page = page.await?;
    Ok(JsonBody(page.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// Whether the state there is shown; it is unless this is `false`.
    state: Option<bool>,
}

fn unknown(id: SnapshotId) -> Problem {
    Problem::not_found(format!("there is no snapshot {id}: list the session's snapshots to see which there are"))
}

/// Reads a snapshot, with its state as it may be shown.
#[utoipa::path(
    get, path = "/agents/{agent}/snapshots/{snapshot}", tag = "snapshots", params(SnapshotPath, SnapshotQuery),
    responses((status = OK, body = ref("#/components/schemas/Snapshot")), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn get(
    own: Own,
    In(path): In<SnapshotPath>,
    Asked(query): Asked<SnapshotQuery>,
) -> Result<JsonBody<Snapshot>, Problem> {
    let mut found = own.agent.snapshot(path.snapshot).await?.ok_or_else(|| unknown(path.snapshot))?;
    if query.state == Some(false) {
        found.state = None;
    }
    Ok(JsonBody(found))
}

/// A change of a snapshot.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotChange {
    /// A label; `null` takes it away.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<String>, required)]
    label: Option<Option<String>>,
}

/// Labels a snapshot, or takes its label away.
#[utoipa::path(
    patch, path = "/agents/{agent}/snapshots/{snapshot}", tag = "snapshots", params(SnapshotPath),
    request_body = SnapshotChange,
    responses(
        (status = OK, body = ref("#/components/schemas/Snapshot")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn label(
    own: Own,
    In(path): In<SnapshotPath>,
    headers: HeaderMap,
    Sent(change): Sent<SnapshotChange>,
) -> Result<JsonBody<Snapshot>, Problem> {
    unconditional(&headers)?;
    Ok(JsonBody(own.agent.label(path.snapshot, change.label.flatten()).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiffQuery {
    /// The other snapshot.
    #[param(value_type = String, format = "uuid")]
    to: SnapshotId,
}

/// Tells what changed from a snapshot to another.
#[utoipa::path(
    get, path = "/agents/{agent}/snapshots/{snapshot}/diff", tag = "snapshots", params(SnapshotPath, DiffQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/Diff")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn diff(
    own: Own,
    In(path): In<SnapshotPath>,
    Asked(query): Asked<DiffQuery>,
) -> Result<JsonBody<StateDiff>, Problem> {
    own.may_see_raw()?;
    Ok(JsonBody(own.agent.diff(path.snapshot, query.to).await?))
}

/// What an abort found.
#[derive(Serialize, ToSchema)]
pub(super) struct Aborted {
    /// What it was before. One that was `pending` is `aborted` now; one that had ended stays as it was.
    #[schema(value_type = String)]
    before: SnapshotStatus,
}

/// Aborts the turn behind a snapshot, in whichever process it runs.
#[utoipa::path(
    post, path = "/agents/{agent}/snapshots/{snapshot}/abort", tag = "snapshots", params(SnapshotPath),
    responses((status = OK, body = Aborted), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn abort(own: Own, In(path): In<SnapshotPath>) -> Result<JsonBody<Aborted>, Problem> {
    let before = own.agent.abort(path.snapshot).await?.ok_or_else(|| unknown(path.snapshot))?;
    Ok(JsonBody(Aborted { before }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// How long, from 0 to 600; 30 unless given.
    #[param(maximum = 600)]
    seconds: Option<u64>,
}

/// Answers with the snapshot when the turn behind it has ended, or with 202 and what is known when that takes longer.
#[utoipa::path(
    get, path = "/agents/{agent}/snapshots/{snapshot}/wait", tag = "snapshots", params(SnapshotPath, WaitQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/Snapshot")),
        (status = ACCEPTED, body = ref("#/components/schemas/Snapshot")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn wait(
    own: Own,
    In(path): In<SnapshotPath>,
    Asked(query): Asked<WaitQuery>,
) -> Result<Response, Problem> {
    let seconds = query.seconds.unwrap_or(WAIT);
    if seconds > LONGEST_WAIT {
        return Err(Problem::invalid(format!("`seconds` is at most {LONGEST_WAIT}: ask again to wait longer")));
    }
    match own.agent.wait(path.snapshot, Some(Duration::from_secs(seconds))).await {
        Ok(found) => Ok(JsonBody(found).into_response()),
        Err(error) if error.kind() == ErrorKind::Unavailable => match own.agent.snapshot(path.snapshot).await? {
            Some(found) => Ok((StatusCode::ACCEPTED, JsonBody(found)).into_response()),
            // An attached turn has no row until it ends.
            None => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}
