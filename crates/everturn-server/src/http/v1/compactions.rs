//! Compactions: what the model is shown instead of what was said.

use axum::Json as JsonBody;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use everturn::{BranchName, Compaction, CompactionRecord, Message, OnBranch, Summary};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Own;
use super::extract::{Asked, In, Sent, etag, if_match};
use super::problem::Problem;
use super::sessions::SessionPath;

/// A compaction to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewCompaction {
    /// The summary; by the agent's own summariser when left out.
    summary: Option<String>,
    /// The last so many turns stay as they are; as the agent's policy says when left out, else none does.
    keep_turns: Option<usize>,
    /// The branch; `main` when left out.
    #[schema(value_type = Option<String>)]
    branch: Option<BranchName>,
}

/// Replaces what the model is shown of a session by a summary. What was said stays whole, and a rewind undoes it.
///
/// The answer is the compaction, or nothing (204) when there is nothing new to sum up.
#[utoipa::path(
    post, path = "/agents/{agent}/sessions/{session}/compactions", tag = "sessions",
    params(SessionPath, ("If-Match" = Option<String>, Header, description = "Where the branch's head must stand, as an ETag")),
    request_body = NewCompaction,
    responses(
        (status = CREATED, body = ref("#/components/schemas/Compaction")), (status = NO_CONTENT),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem), (status = PRECONDITION_FAILED, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn create(
    own: Own,
    In(path): In<SessionPath>,
    headers: HeaderMap,
    Sent(new): Sent<NewCompaction>,
) -> Result<Response, Problem> {
    let expect = if_match(&headers)?;
    let on = OnBranch { session: path.session, branch: new.branch.unwrap_or_default() };
    let options = new.keep_turns.map(|count| Compaction::new().keep_turns(count));
    let summary = new.summary.map(|text| Summary::new([Message::user(text)]));
    let made = own.agent.compact(on.clone(), expect, options, summary).await;
    let made = made.map_err(|error| if expect.is_some() { Problem::conditional(error) } else { error.into() })?;
    Ok(match made {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(made) => {
            let head = etag(made.point);
            (StatusCode::CREATED, head, JsonBody(shown(&own, on, made).await?)).into_response()
        }
    })
}

/// A compaction as it may be shown: what it replaced has passed no transform.
async fn shown(own: &Own, on: OnBranch, made: CompactionRecord) -> Result<CompactionRecord, Problem> {
    if own.sees_raw() {
        return Ok(made);
    }
    let listed = own.agent.compactions(on).await?.into_iter().find(|listed| listed.point == made.point);
    listed.ok_or_else(|| Problem::not_found("the branch was moved off the compaction meanwhile"))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CompactionsQuery {
    /// Those on the way to where this branch stands; `main` when left out.
    #[param(value_type = Option<String>)]
    branch: Option<BranchName>,
}

#[derive(Serialize)]
pub(super) struct Compactions {
    items: Vec<CompactionRecord>,
}

/// Lists the compactions on the way to where a branch stands, as they may be shown, the oldest first.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/compactions", tag = "sessions",
    params(SessionPath, CompactionsQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/CompactionList")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn list(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<CompactionsQuery>,
) -> Result<JsonBody<Compactions>, Problem> {
    let on = OnBranch { session: path.session, branch: query.branch.unwrap_or_default() };
    Ok(JsonBody(Compactions { items: own.agent.compactions(on).await? }))
}
