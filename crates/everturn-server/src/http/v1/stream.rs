//! Streams of turns: as they are run, and followed again from where a reader was.

use axum::http::{HeaderMap, HeaderName};
use axum::response::Response;
use everturn::{Connection, Following, Output, Position, SessionId, SnapshotId, Ticket, TurnId};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::caller::Own;
use super::extract::{In, header};
use super::frames::{Frames, respond};
use super::output::{Answer, WithState};
use super::problem::Problem;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What finds a turn again.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Begun {
    session_id: SessionId,
    invocation_id: everturn::InvocationId,
    turn: TurnId,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<SnapshotId>,
}

/// A turn that runs and whose stream is kept: what is sent is what is kept, so that its positions are.
pub(super) fn live(
    mut connection: Connection,
    ticket: Ticket,
    mut following: Following,
    with_state: WithState,
) -> Response {
    respond(move |frames| async move {
        let Ticket { turn, session, snapshot_id, .. } = ticket;
        let invocation_id = connection.invocation_id().clone();
        frames.send("begun", None, &Begun { session_id: session, invocation_id, turn, snapshot_id }).await?;
        let mut reading = true;
        loop {
            tokio::select! {
                biased;
                next = following.next() => match next {
                    Ok(Some(followed)) => frames.send("chunk", followed.position, &followed.chunk).await?,
                    Ok(None) => break,
                    // The kept chunks cannot be read. The turn's own output, below, still says how it ended.
                    Err(_) => break,
                },
                // The same chunks; read so that the turn does not wait for room.
                chunk = connection.receive(), if reading => reading = chunk.is_some(),
            }
        }
        let output = connection.output().await?;
        frames.send("output", None, &Answer::new(output, with_state)).await
    })
}

/// A turn that runs and whose stream is not kept: it cannot be followed again, and ends when its reader goes.
pub(super) fn unkept(mut connection: Connection, with_state: WithState) -> Response {
    respond(move |frames| async move {
        while let Some(chunk) = connection.receive().await {
            frames.send("chunk", None, &chunk).await?;
        }
        let output = connection.output().await?;
        frames.send("output", None, &Answer::new(output, with_state)).await
    })
}

/// A turn that has nothing more to say: it went to the background, or had ended before under the same key.
pub(super) fn ended(output: Output, with_state: WithState) -> Result<Response, Problem> {
    let answer = Answer::new(output, with_state);
    Ok(respond(move |frames| async move { frames.send("output", None, &answer).await }))
}

/// A snapshot.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct SnapshotPath {
    /// The agent's name.
    #[serde(rename = "agent")]
    #[allow(dead_code, reason = "read through `Own`; here it is described")]
    pub(super) agent: String,
    /// The snapshot's id.
    #[param(value_type = String, format = "uuid")]
    pub(super) snapshot: SnapshotId,
}

/// A turn.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TurnPath {
    /// The agent's name.
    #[allow(dead_code, reason = "read through `Own`; here it is described")]
    agent: String,
    /// The turn, as `begun` names it.
    #[param(value_type = String, pattern = r"^[0-9]+\.[0-9]+$")]
    turn: TurnId,
}

/// Follows the turn behind a snapshot, from its beginning or after `Last-Event-ID`.
///
/// Events are `chunk`; the last one has a `turnEnd`. Kept is what turns say in the background and on streams, for a while
/// after their end.
#[utoipa::path(
    get, path = "/agents/{agent}/snapshots/{snapshot}/stream", tag = "turns",
    params(SnapshotPath, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses(
        (status = OK, body = String, content_type = "text/event-stream"),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn of_snapshot(own: Own, In(path): In<SnapshotPath>, headers: HeaderMap) -> Result<Response, Problem> {
    let following = own.agent.follow(path.snapshot, last_seen(&headers)?).await?;
    Ok(respond(move |frames| follow(following, frames)))
}

/// Follows a turn, from its beginning or after `Last-Event-ID`.
#[utoipa::path(
    get, path = "/agents/{agent}/turns/{turn}/stream", tag = "turns",
    params(TurnPath, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses(
        (status = OK, body = String, content_type = "text/event-stream"),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn of_turn(own: Own, In(path): In<TurnPath>, headers: HeaderMap) -> Result<Response, Problem> {
    let following = own.agent.follow_turn(path.turn, last_seen(&headers)?).await?;
    Ok(respond(move |frames| follow(following, frames)))
}

async fn follow(mut following: Following, frames: Frames) -> Result<(), Problem> {
    while let Some(followed) = following.next().await? {
        frames.send("chunk", followed.position, &followed.chunk).await?;
    }
    Ok(())
}

pub(super) fn last_seen(headers: &HeaderMap) -> Result<Option<Position>, Problem> {
    let Some(text) = header(headers, &LAST_EVENT_ID)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    text.parse().map(Some).map_err(|error| Problem::invalid(format!("`Last-Event-ID`: {error}")))
}
