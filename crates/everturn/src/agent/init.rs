//! Where an invocation starts.

use serde::Serialize;

use crate::json::Json;
use crate::state::SessionState;
use crate::store::Busy;
use crate::{BranchName, InvocationId, Point, Result, SessionId, SnapshotId, TurnId, TurnKey};

/// Where an invocation starts, and under which conditions.
///
/// | given | without a store | with a store |
/// |---|---|---|
/// | nothing | fresh, stateless | a fresh session under a generated id |
/// | a session | wrong mode | its head; a fresh session under that id if there is none |
/// | a snapshot | wrong mode | that point, if completed |
/// | both | wrong mode | the snapshot, which must belong to the session |
/// | a state | that state | wrong mode |
///
/// ```
/// use everturn::{Init, SessionId};
///
/// let init = Init::session(SessionId::new("order-42")?);
/// assert_eq!(init.session.unwrap().as_str(), "order-42");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Init {
    /// The session to go on with, or to make under that id.
    pub session: Option<SessionId>,
    /// The snapshot to start at.
    pub snapshot: Option<SnapshotId>,
    /// A point of the session to start at, for those who have no snapshot of it.
    pub point: Option<Point>,
    /// The state to start with, for an agent without a store.
    pub state: Option<SessionState>,
    /// What proves that the state was handed out by us, where states are signed.
    pub signature: Option<String>,
    /// The custom state a fresh session begins with.
    pub initial: Option<Json>,
    /// The branch to go on with.
    pub branch: Option<BranchName>,
    /// Where the branch's head must stand, else the first turn is refused before any work.
    pub expect: Option<Point>,
    /// Makes the first turn idempotent.
    pub key: Option<TurnKey>,
    /// The invocation's id; generated when left out.
    pub invocation: Option<InvocationId>,
    /// A turn that died, to be tried again.
    pub(crate) retry: Option<TurnId>,
    /// What its turns say is kept for a while, so that it can be followed again after the connection is lost.
    pub keep_stream: bool,
    /// Nobody waits for it.
    pub(crate) background: bool,
    /// What to do when somebody else holds the branch; the agent's way when left out.
    pub busy: Option<Busy>,
}

impl Init {
    /// A fresh session, or none where there is no store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, keeping what its turns say for a while: [`Agent::follow`](super::Agent::follow) goes on where a reader was.
    /// A connection that is lost then does not abort its turn at once, but after 30 s in which nobody follows it.
    #[must_use]
    pub fn keep_stream(mut self) -> Self {
        self.keep_stream = true;
        self
    }

    /// A session's head.
    #[must_use]
    pub fn session(id: SessionId) -> Self {
        Self { session: Some(id), ..Self::default() }
    }

    /// A snapshot.
    #[must_use]
    pub fn snapshot(id: SnapshotId) -> Self {
        Self { snapshot: Some(id), ..Self::default() }
    }

    /// A state that the caller keeps.
    #[must_use]
    pub fn state(state: SessionState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// The same, which must belong to a session.
    #[must_use]
    pub fn of_session(mut self, id: SessionId) -> Self {
        self.session = Some(id);
        self
    }

    /// The same at a point of its session.
    #[must_use]
    pub fn at(mut self, point: Point) -> Self {
        self.point = Some(point);
        self
    }

    /// The same on a branch.
    #[must_use]
    pub fn branch(mut self, branch: BranchName) -> Self {
        self.branch = Some(branch);
        self
    }

    /// The same with the custom state a fresh session begins with.
    pub fn initial<T: Serialize + ?Sized>(mut self, custom: &T) -> Result<Self> {
        self.initial = Some(Json::from_value(custom)?);
        Ok(self)
    }

    /// The same, only if the head stands there.
    #[must_use]
    pub fn expect(mut self, head: Point) -> Self {
        self.expect = Some(head);
        self
    }

    /// The same with a key that makes its first turn idempotent.
    #[must_use]
    pub fn key(mut self, key: TurnKey) -> Self {
        self.key = Some(key);
        self
    }

    /// The same under an invocation's id.
    #[must_use]
    pub fn invocation(mut self, id: InvocationId) -> Self {
        self.invocation = Some(id);
        self
    }

    /// The same with a way to deal with a busy branch.
    #[must_use]
    pub fn busy(mut self, busy: Busy) -> Self {
        self.busy = Some(busy);
        self
    }

    /// The same with what proves that the state was handed out by us.
    #[must_use]
    pub fn signature(mut self, signature: impl Into<String>) -> Self {
        self.signature = Some(signature.into());
        self
    }
}
