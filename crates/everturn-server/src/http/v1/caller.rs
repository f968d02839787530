//! Who asks. Whatever checks credentials puts a [`Caller`] into the request's extensions; without one, everybody is the
//! user `user` and may do everything, as on a machine of one's own.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use everturn::{AgentClient, Registry, Sessions, UserId};
use serde::Deserialize;

use super::problem::Problem;

/// Who asks, and what they may do.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) user: UserId,
    /// May see what has passed no transform.
    pub(crate) admin: bool,
    /// May change things.
    pub(crate) write: bool,
}

impl Caller {
    fn of(parts: &Parts) -> Self {
        let anybody = || Self { user: UserId::default_user(), admin: true, write: true };
        parts.extensions.get::<Self>().cloned().unwrap_or_else(anybody)
    }
}

/// The agent in the path, for the caller: whatever is reached through it is the caller's own.
pub(super) struct Own {
    pub(super) agent: Arc<dyn AgentClient>,
    caller: Caller,
}

impl Own {
    /// The caller's sessions.
    pub(super) fn sessions(&self) -> Result<Sessions, Problem> {
        Ok(self.agent.sessions()?)
    }

    /// The same for reading what has passed no transform.
    pub(super) fn raw_sessions(&self) -> Result<Sessions, Problem> {
        self.may_see_raw()?;
        self.sessions()
    }

    /// Where an agent shapes what leaves it, what is raw is for admins.
    pub(super) fn may_see_raw(&self) -> Result<(), Problem> {
        let info = self.agent.info();
        if info.transformed && !self.caller.admin {
            return Err(Problem::forbidden(format!(
                "agent '{}' shapes what leaves it, and this would show it raw: ask somebody with the admin right",
                info.name
            )));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Named {
    agent: String,
}

impl FromRequestParts<Arc<Registry>> for Own {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, agents: &Arc<Registry>) -> Result<Self, Problem> {
        let caller = Caller::of(parts);
        if !parts.method.is_safe() && !caller.write {
            return Err(Problem::forbidden("this caller may read, and change nothing"));
        }
        let path = Path::<Named>::from_request_parts(parts, agents).await;
        let Path(Named { agent: name }) = path.map_err(|bad| Problem::invalid(bad.body_text()))?;
        let found = agents.get(&name);
        let agent = found.ok_or_else(|| Problem::not_found(format!("there is no agent '{name}' here")))?;
        Ok(Self { agent: agent.for_user(caller.user.clone()), caller })
    }
}
