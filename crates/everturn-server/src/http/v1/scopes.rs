//! State that sessions share: the `app:` and `user:` scopes.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json as JsonBody;
use axum::http::HeaderMap;
use everturn::{Json, Scope, ScopedState, StateDelta};
use serde::Deserialize;
use utoipa::ToSchema;

use super::agents::AgentPath;
use super::caller::Own;
use super::extract::{Sent, unconditional};
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

/// A change of shared state, by prefixed key. All of it is done, or nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScopesChange {
    /// Keys with their new values: `app:` for all users, `user:` for the caller's sessions.
    #[serde(default)]
    #[schema(value_type = Object)]
    set: BTreeMap<String, Json>,
    /// Keys that go away.
    #[serde(default)]
    remove: BTreeSet<String>,
}

/// Changes keys that sessions share. Those of `app:` concern all users, and need the admin right.
#[utoipa::path(
    patch, path = "/agents/{agent}/scopes", tag = "sessions", params(AgentPath), request_body = ScopesChange,
    responses(
        (status = OK, body = ref("#/components/schemas/Scopes")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn change(
    own: Own,
    headers: HeaderMap,
    Sent(change): Sent<ScopesChange>,
) -> Result<JsonBody<ScopedState>, Problem> {
    unconditional(&headers)?;
    // The answer shows them all.
    let sessions = own.raw_sessions()?;
    let ScopesChange { set, remove } = change;
    if set.keys().chain(&remove).any(|key| key.starts_with(Scope::App.prefix())) {
        own.may_change_for_all()?;
    }
    Ok(JsonBody(sessions.set_scopes(StateDelta { set, remove }).await?))
}
