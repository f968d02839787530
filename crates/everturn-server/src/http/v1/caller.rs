//! Who asks, and what is theirs.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use everturn::{AgentClient, Registry, Sessions};
use serde::Deserialize;

use super::problem::Problem;
use crate::auth::{Identity, Right};

impl<S: Send + Sync> FromRequestParts<S> for Identity {
    type Rejection = Infallible;

    /// Put there by whatever checks credentials; where nothing does, everybody may do everything, as on a machine of one's
    /// own.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(Self::local))
    }
}

/// The agent in the path, for the caller: whatever is reached through it is the caller's own.
pub(super) struct Own {
    pub(super) agent: Arc<dyn AgentClient>,
    caller: Identity,
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

    /// Whether what has passed no transform may be shown. Where an agent shapes what leaves it, that is for admins.
    pub(super) fn sees_raw(&self) -> bool {
        !self.agent.info().transformed || self.caller.may(Right::Admin)
    }

    /// Refuses what concerns more than the caller.
    pub(super) fn may_change_for_all(&self) -> Result<(), Problem> {
        match self.caller.may(Right::Admin) {
            true => Ok(()),
            false => Err(Problem::forbidden("this concerns all users: ask somebody with the admin right")),
        }
    }

    /// Refuses what would show something raw to whoever may not see it.
    pub(super) fn may_see_raw(&self) -> Result<(), Problem> {
        let info = self.agent.info();
        if !self.sees_raw() {
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
        let Ok(caller) = Identity::from_request_parts(parts, agents).await;
        let path = Path::<Named>::from_request_parts(parts, agents).await;
        let Path(Named { agent: name }) = path.map_err(|bad| Problem::invalid(bad.body_text()))?;
        let found = agents.get(&name).filter(|agent| caller.reaches(&agent.info().app));
        let agent = found.ok_or_else(|| Problem::not_found(format!("there is no agent '{name}' here")))?;
        // Asked only about what they may know of.
        if !parts.method.is_safe() && !caller.may(Right::Write) {
            return Err(Problem::forbidden("this caller may read, and change nothing"));
        }
        Ok(Self { agent: agent.for_user(caller.user.clone()), caller })
    }
}
