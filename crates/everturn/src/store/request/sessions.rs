//! What is asked about sessions: creating, changing, listing them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::MAX_PAGE;
use super::MAX_PAGE_BYTES;
use crate::json::Json;
use crate::session::{SessionKey, SessionStatus};
use crate::state::StateDelta;
use crate::turn::Changes;
use crate::{AgentName, AppName, Error, Result, SessionId, SnapshotId, UserId};

/// A session to create.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CreateSession {
    /// The app it belongs to.
    pub app: AppName,
    /// The user it belongs to.
    pub user: UserId,
    /// Its id; generated when left out.
    pub id: Option<SessionId>,
    /// The agent that makes it.
    pub agent: Option<AgentName>,
    /// Its title.
    pub title: Option<String>,
    /// Its labels.
    pub labels: BTreeSet<String>,
    /// Whatever goes with it; an object.
    pub metadata: Option<Json>,
    /// Initial state by prefixed key: split by scope, `temp:` dropped.
    pub state: StateDelta,
    /// Anything else it starts with.
    pub changes: Changes,
    /// The id of a snapshot of the session as created, so that even an empty session has a resumable one.
    pub seed: Option<SnapshotId>,
}

impl CreateSession {
    /// A session for a user of an app, under a generated id.
    #[must_use]
    pub fn new(app: AppName, user: UserId) -> Self {
        Self {
            app,
            user,
            id: None,
            agent: None,
            title: None,
            labels: BTreeSet::new(),
            metadata: None,
            state: StateDelta::new(),
            changes: Changes::new(),
            seed: None,
        }
    }

    /// A session under a key.
    #[must_use]
    pub fn at(key: SessionKey) -> Self {
        Self { id: Some(key.id), ..Self::new(key.app, key.user) }
    }

    /// The same with a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The same with a label.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.labels.insert(label.into());
        self
    }

    /// The same with metadata.
    #[must_use]
    pub fn metadata(mut self, metadata: Json) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// The same with a key of initial state.
    #[must_use]
    pub fn state(mut self, key: impl Into<String>, value: Json) -> Self {
        self.state = self.state.set(key, value);
        self
    }

    /// The same with a seed snapshot.
    #[must_use]
    pub fn seed(mut self, id: SnapshotId) -> Self {
        self.seed = Some(id);
        self
    }
}

/// A change of what is known about a session. `None` leaves a thing as it is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct UpdateSession {
    /// A title, or its removal.
    pub title: Option<Option<String>>,
    /// Labels to add.
    pub add_labels: BTreeSet<String>,
    /// Labels to take away.
    pub remove_labels: BTreeSet<String>,
    /// Members of the metadata to set.
    pub set_metadata: BTreeMap<String, Json>,
    /// Members of the metadata to remove.
    pub remove_metadata: BTreeSet<String>,
}

impl UpdateSession {
    /// A new title.
    #[must_use]
    pub fn title(title: impl Into<String>) -> Self {
        Self { title: Some(Some(title.into())), ..Self::default() }
    }

    /// A label more.
    #[must_use]
    pub fn label(label: impl Into<String>) -> Self {
        Self { add_labels: [label.into()].into(), ..Self::default() }
    }

    /// A member of the metadata.
    #[must_use]
    pub fn metadata(name: impl Into<String>, value: Json) -> Self {
        Self { set_metadata: [(name.into(), value)].into(), ..Self::default() }
    }

    /// The same, taking the title away.
    #[must_use]
    pub fn without_title(mut self) -> Self {
        self.title = Some(None);
        self
    }

    /// The same, taking a label away.
    #[must_use]
    pub fn without_label(mut self, label: impl Into<String>) -> Self {
        self.remove_labels.insert(label.into());
        self
    }

    /// The same, taking a member of the metadata away.
    #[must_use]
    pub fn without_metadata(mut self, name: impl Into<String>) -> Self {
        self.remove_metadata.insert(name.into());
        self
    }
}

/// Which order a listing has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionOrder {
    /// The one written to last comes first.
    #[default]
    UpdatedNewest,
    /// The one written to last comes last.
    UpdatedOldest,
    /// The youngest comes first.
    CreatedNewest,
    /// The oldest comes first.
    CreatedOldest,
}

/// Which sessions to list. The listing is as of its first page: sessions that are written to while you page keep their
/// place, those created later do not appear, deleted ones drop out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListSessions {
    /// Those of one app.
    pub app: Option<AppName>,
    /// Those of one user.
    pub user: Option<UserId>,
    /// Those with a label.
    pub label: Option<String>,
    /// Those whose metadata has these top-level scalars.
    pub metadata: BTreeMap<String, Json>,
    /// Those in a status.
    pub status: Option<SessionStatus>,
    /// The order.
    pub order: SessionOrder,
    /// How many a page has, at most [`MAX_PAGE`].
    pub limit: usize,
    /// How many bytes a page has as JSON, at most [`MAX_PAGE_BYTES`]; one item is always given.
    pub bytes: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
}

impl Default for ListSessions {
    fn default() -> Self {
        Self {
            app: None,
            user: None,
            label: None,
            metadata: BTreeMap::new(),
            status: None,
            order: SessionOrder::default(),
            limit: 100,
            bytes: MAX_PAGE_BYTES,
            cursor: None,
        }
    }
}

impl ListSessions {
    /// All sessions of a user.
    #[must_use]
    pub fn of(app: AppName, user: UserId) -> Self {
        Self { app: Some(app), user: Some(user), ..Self::default() }
    }

    /// The same, so many at a time.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// So many bytes at a time.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// The same in an order.
    #[must_use]
    pub fn order(mut self, order: SessionOrder) -> Self {
        self.order = order;
        self
    }

    /// The same from where a page ended.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }
}

/// A place in a listing, to be handed back as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(String);

impl Cursor {
    /// Takes a cursor that came over a wire. Whether it is one is found out when it is used.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(kind: char, numbers: &[u64]) -> Self {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        Self(format!("{kind}{}", numbers.join(".")))
    }

    pub(crate) fn numbers<const N: usize>(&self, kind: char) -> Result<[u64; N]> {
        let read = || {
            let rest = self.0.strip_prefix(kind)?;
            let numbers = rest.split('.').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>()?;
            numbers.try_into().ok()
        };
        read().ok_or_else(|| Error::invalid("that is no cursor of this listing: start again without one"))
    }
}

/// Some items, and where to go on. There may be fewer than were asked for: it was the last page only if there is nowhere
/// to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where to go on; nothing when this was all.
    pub next: Option<Cursor>,
}

/// What purging a session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records whose bytes are gone.
    pub removed: u64,
    /// Records that stay because a fork's line reaches them.
    pub kept_for_forks: u64,
}
