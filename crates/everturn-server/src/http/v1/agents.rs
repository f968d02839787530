//! The agents that are hosted.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use everturn::{AgentInfo, Registry};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Own;
use super::problem::Problem;
use crate::auth::Identity;

/// An agent.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "read through `Own`; here it is described")]
pub(super) struct AgentPath {
    /// The agent's name.
    agent: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Agents {
    /// All agents that can be reached, by name.
    #[schema(value_type = Vec<Object>)]
    agents: Vec<AgentInfo>,
}

/// Lists the agents.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = OK, body = Agents)))]
pub(super) async fn list(State(agents): State<Arc<Registry>>, caller: Identity) -> Json<Agents> {
    let reached = |agent: &AgentInfo| caller.reaches(&agent.app);
    Json(Agents { agents: agents.list().into_iter().filter(reached).collect() })
}

/// Tells what is known about an agent.
#[utoipa::path(
    get, path = "/agents/{agent}", tag = "agents", params(AgentPath),
    responses((status = OK, body = ref("#/components/schemas/Agent")), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn get(own: Own) -> Json<AgentInfo> {
    Json(own.agent.info())
}
