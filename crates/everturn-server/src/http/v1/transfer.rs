//! Sessions as files: taken out, and brought in.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use everturn::store::SnapshotIds;
use everturn::{ErrorKind, Exporter, ImportId, Importer, SessionId};
use futures_util::StreamExt as _;
use futures_util::stream::try_unfold;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::agents::AgentPath;
use super::artifacts::disposition;
use super::caller::Own;
use super::extract::{Asked, In, unconditional};
use super::problem::Problem;
use super::sessions::{SessionPath, created};
use crate::http::body::{Refused, expect};
use crate::http::large::{LARGE, away};
use crate::http::limits;

/// One line of JSON after the other.
const LINES: &str = "application/x-ndjson";

/// Exports a session as one file, raw: everything in it, branches and voids too. `docs/export.md` describes the file.
///
/// A file whose last line is missing is not whole.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/export", tag = "sessions", params(SessionPath),
    responses(
        (status = OK, body = String, content_type = "application/x-ndjson"),
        (status = FORBIDDEN, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn export(own: Own, In(path): In<SessionPath>) -> Result<Response, Problem> {
    let mut exporter = own.raw_sessions()?.export(&path.session).await?;
    // Whatever is wrong with the session as a whole is told before anything is answered.
    let first = exporter.next().await?.unwrap_or_default();
    let rest = try_unfold(exporter, |mut exporter: Exporter| async {
        let next = exporter.next().await.inspect_err(|error| tracing::warn!(%error, "an export broke off"))?;
        Ok::<_, everturn::Error>(next.map(|piece| (piece, exporter)))
    });
    let body = futures_util::stream::once(async { Ok(first) }).chain(rest);
    let name = disposition(&format!("{}.ndjson", path.session));
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(LINES)), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// What the snapshots of a session that is brought in are called.
#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Ids {
    /// What they were called; refused if one is taken.
    #[default]
    Keep,
    /// Something fresh.
    Fresh,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// The session's id; the one it had when left out.
    #[param(value_type = Option<String>)]
    id: Option<SessionId>,
    /// Whether it gets a fresh id.
    #[serde(default)]
    fresh: bool,
    /// `keep` or `fresh`: what its snapshots are called. For a copy beside the original they must be fresh.
    #[serde(default)]
    #[param(inline)]
    snapshots: Ids,
}

/// Brings a session in from a file, all or nothing, as the caller's own with this agent.
#[utoipa::path(
    post, path = "/agents/{agent}/import", tag = "sessions", params(AgentPath, ImportQuery),
    request_body(content = String, content_type = "application/x-ndjson", description = "The file"),
    responses(
        (status = CREATED, body = ref("#/components/schemas/Session")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem), (status = CONFLICT, body = Problem),
        (status = PAYLOAD_TOO_LARGE, body = Problem), (status = UNSUPPORTED_MEDIA_TYPE, body = Problem),
    )
)]
pub(super) async fn import(
    own: Own,
    Asked(query): Asked<ImportQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    unconditional(&headers)?;
    let sessions = own.raw_sessions()?;
    let id = match (query.id, query.fresh) {
        (Some(_), true) => return Err(Problem::invalid("give `id` or `fresh`, not both")),
        (Some(id), false) => ImportId::Named(id),
        (None, true) => ImportId::Fresh,
        (None, false) => ImportId::Keep,
    };
    let snapshots = match query.snapshots {
        Ids::Keep => SnapshotIds::Keep,
        Ids::Fresh => SnapshotIds::Fresh,
    };
    let made = sessions.import(file(request).await?, id, snapshots).await?;
    Ok(created(&own, made))
}

/// Reads the file as it comes. The end of a long line is what takes long.
async fn file(request: Request) -> Result<Importer, Problem> {
    let most = expect(&request, LINES)?;
    let mut importer = Importer::new(most);
    let mut body = request.into_body().into_data_stream();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| match limits::is_too_slow(&error) {
            true => Refused::too_slow().into(),
            false => Problem::invalid("the body could not be read to its end"),
        })?;
        importer = push(importer, piece, most).await?;
    }
    Ok(importer)
}

async fn push(mut importer: Importer, piece: Bytes, most: usize) -> Result<Importer, Problem> {
    let bytes = if piece.contains(&b'\n') { LARGE } else { 0 };
    let pushed = away(bytes, move || importer.push(&piece).map(|()| importer)).await?;
    pushed.map_err(|error| match error.kind() {
        ErrorKind::TooLarge => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::TooLarge.name(),
            format!("the file is larger than the limit of {most} bytes: use `everturn import`"),
        ),
        _ => error.into(),
    })
}
