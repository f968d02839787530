//! Branches and forks: named heads, moved and made.

use axum::Json as JsonBody;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use everturn::store::{BranchChange, UnderLease};
use everturn::{Branch, BranchName, SessionId, SessionRecord};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Own;
use super::extract::{Asked, In, Place, Sent, etag, if_match, object, unconditional};
use super::problem::Problem;
use super::sessions::{SessionPath, created};

/// A branch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct BranchPath {
    /// The agent's name.
    #[allow(dead_code, reason = "read through `Own`; here it is described")]
    agent: String,
    /// The session's id.
    #[param(value_type = String)]
    session: SessionId,
    /// The branch's name.
    #[param(value_type = String)]
    branch: BranchName,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Branches {
    /// All branches of the session.
    #[schema(value_type = Vec<Object>)]
    branches: Vec<Branch>,
}

/// A branch as it is answered, with its head as the ETag.
fn branch(session: SessionRecord, name: &BranchName) -> Result<Response, Problem> {
    let found = session.branches.into_iter().find(|branch| branch.name == *name);
    let branch = found.ok_or_else(|| Problem::not_found(format!("there is no branch '{name}' any more")))?;
    Ok((etag(branch.head), JsonBody(branch)).into_response())
}

/// Lists a session's branches.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/branches", tag = "branches", params(SessionPath),
    responses((status = OK, body = Branches), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn list(own: Own, In(path): In<SessionPath>) -> Result<JsonBody<Branches>, Problem> {
    Ok(JsonBody(Branches { branches: own.sessions()?.existing(&path.session).await?.branches }))
}

/// A branch to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBranch {
    /// Its name.
    #[schema(value_type = String)]
    name: BranchName,
    /// Where it stands; where `main` stands when left out.
    #[serde(default, deserialize_with = "object")]
    at: Place,
}

/// Makes a branch.
#[utoipa::path(
    post, path = "/agents/{agent}/sessions/{session}/branches", tag = "branches", params(SessionPath),
    request_body = NewBranch,
    responses(
        (status = CREATED, body = ref("#/components/schemas/Branch")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem),
    )
)]
pub(super) async fn create(
    own: Own,
    In(path): In<SessionPath>,
    headers: HeaderMap,
    Sent(new): Sent<NewBranch>,
) -> Result<Response, Problem> {
    unconditional(&headers)?;
    let sessions = own.sessions()?;
    let at = sessions.point(&path.session, new.at.spot()?).await?;
    let session = sessions.branch(&path.session, BranchChange::Create { name: new.name.clone(), at }).await?;
    Ok((StatusCode::CREATED, branch(session, &new.name)?).into_response())
}

/// Where a branch shall stand.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveBranch {
    /// The place.
    #[serde(deserialize_with = "object")]
    to: Place,
    /// Move it although a turn runs on it: that turn will end beside the head.
    #[serde(default)]
    force: bool,
}

/// Moves a branch's head: back is a rewind, forth again a redo. Nothing is deleted.
#[utoipa::path(
    put, path = "/agents/{agent}/sessions/{session}/branches/{branch}", tag = "branches",
    params(BranchPath, ("If-Match" = Option<String>, Header, description = "Where it must stand now, as an ETag")),
    request_body = MoveBranch,
    responses(
        (status = OK, body = ref("#/components/schemas/Branch")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem), (status = PRECONDITION_FAILED, body = Problem),
    )
)]
pub(super) async fn put(
    own: Own,
    In(path): In<BranchPath>,
    headers: HeaderMap,
    Sent(change): Sent<MoveBranch>,
) -> Result<Response, Problem> {
    let (sessions, expect) = (own.sessions()?, if_match(&headers)?);
    let to = sessions.point(&path.session, change.to.spot()?).await?;
    let change = BranchChange::Move { name: path.branch.clone(), to, expect, under_lease: lease(change.force) };
    let session = sessions.branch(&path.session, change).await.map_err(Problem::conditional)?;
    branch(session, &path.branch)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// Delete it although a turn runs on it.
    #[serde(default)]
    force: bool,
}

/// Deletes a branch. What was only on its line is kept, and can be resumed by its snapshots.
#[utoipa::path(
    delete, path = "/agents/{agent}/sessions/{session}/branches/{branch}", tag = "branches",
    params(
        BranchPath, DeleteQuery,
        ("If-Match" = Option<String>, Header, description = "Where it must stand now, as an ETag"),
    ),
    responses(
        (status = NO_CONTENT), (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem), (status = PRECONDITION_FAILED, body = Problem),
    )
)]
pub(super) async fn delete(
    own: Own,
    In(path): In<BranchPath>,
    Asked(query): Asked<DeleteQuery>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let expect = if_match(&headers)?;
    let change = BranchChange::Delete { name: path.branch, expect, under_lease: lease(query.force) };
    own.sessions()?.branch(&path.session, change).await.map_err(Problem::conditional)?;
    Ok(StatusCode::NO_CONTENT)
}

fn lease(force: bool) -> UnderLease {
    if force { UnderLease::Force } else { UnderLease::Refuse }
}

/// A fork to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFork {
    /// The new session's id; generated when left out.
    #[schema(value_type = Option<String>)]
    id: Option<SessionId>,
    /// Where it begins; where `main` stands when left out.
    #[serde(default, deserialize_with = "object")]
    at: Place,
}

/// Forks a session: a new one whose line begins at a place of this one. Nothing is copied.
#[utoipa::path(
    post, path = "/agents/{agent}/sessions/{session}/fork", tag = "branches", params(SessionPath),
    request_body = NewFork,
    responses(
        (status = CREATED, body = ref("#/components/schemas/Session")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem),
    )
)]
pub(super) async fn fork(
    own: Own,
    In(path): In<SessionPath>,
    headers: HeaderMap,
    Sent(new): Sent<NewFork>,
) -> Result<Response, Problem> {
    unconditional(&headers)?;
    let made = own.sessions()?.fork(&path.session, new.at.spot()?, new.id).await?;
    Ok(created(&own, made))
}
