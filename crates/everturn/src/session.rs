//! Sessions as they are listed and addressed.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::{AgentName, AppName, BranchName, Point, Result, SessionId, Timestamp, Usage, UserId};

/// What addresses a session: ownership is by app and user, the id is unique for one of each.
///
/// ```
/// use everturn::SessionKey;
///
/// let key = SessionKey::of("shop", "ann", "order-42")?;
/// assert_eq!(key.to_string(), "shop/ann/order-42");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionKey {
    /// The app.
    pub app: AppName,
    /// The user.
    pub user: UserId,
    /// The id.
    pub id: SessionId,
}

impl SessionKey {
    /// A key of checked parts.
    #[must_use]
    pub fn new(app: AppName, user: UserId, id: SessionId) -> Self {
        Self { app, user, id }
    }

    /// A key of texts, checked here.
    pub fn of(app: &str, user: &str, id: &str) -> Result<Self> {
        Ok(Self { app: AppName::new(app)?, user: UserId::new(user)?, id: SessionId::new(id)? })
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.app, self.user, self.id)
    }
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// Nothing runs.
    Idle,
    /// A turn runs.
    Running,
    /// The last turn on `main` waits for a person's answer.
    Interrupted,
}

/// A session as it is listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// What addresses it.
    pub app: AppName,
    /// Its owner.
    pub user: UserId,
    /// Its id.
    pub id: SessionId,
    /// The agent that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Whatever its application keeps with it; an object.
    pub metadata: Json,
    /// Its labels.
    pub labels: BTreeSet<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When something was last written to it.
    pub updated_at: Timestamp,
    /// Where `main` stands.
    pub head: Point,
    /// All its branches and where they stand.
    pub branches: Vec<Branch>,
    /// Turns completed on the way to `main`'s head.
    pub turns: u64,
    /// Everything its own turns spent, failed ones too.
    pub usage: Usage,
    /// What the line spent before the session was forked off.
    pub inherited_usage: Usage,
    /// What it is doing.
    pub status: SessionStatus,
    /// Where it was forked off, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkOrigin>,
}

impl SessionRecord {
    /// What addresses it.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        SessionKey { app: self.app.clone(), user: self.user.clone(), id: self.id.clone() }
    }
}

/// A named head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Its name.
    pub name: BranchName,
    /// The completed point it stands at.
    pub head: Point,
}

/// Where a fork comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    /// The other session's id at the time; it may be gone since.
    pub session: SessionId,
    /// The point the fork was made at.
    pub point: Point,
}
