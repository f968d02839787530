//! State that sessions share: the `app:` and `user:` scopes.

use axum::Json as JsonBody;
use everturn::ScopedState;

use super::agents::AgentPath;
use super::caller::Own;
use super::problem::Problem;

/// Reads the keys that the caller's sessions with an agent share, with their prefixes, raw.
#[utoipa::path(
    get, path = "/agents/{agent}/scopes", tag = "sessions", params(AgentPath),
    responses(
        (status = OK, body = ref("#/components/schemas/Scopes")),
        (status = FORBIDDEN, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn get(own: Own) -> Result<JsonBody<ScopedState>, Problem> {
    Ok(JsonBody(own.raw_sessions()?.scopes().await?))
}
