//! Taking a question back.

use super::{Agent, CustomState};
use crate::interrupt::is_waiting;
use crate::session::{SessionKey, SessionRecord};
use crate::state::PointState;
use crate::store::{At, BranchChange, RecordQuery, Store, StoreExt as _, UnderLease};
use crate::turn::{Record, RecordKind};
use crate::{BranchName, Error, ErrorKind, Point, Result, SessionId, TurnId};

impl<S: CustomState> Agent<S> {
    /// Takes back what a session waits for: `main` goes back to where nothing was asked yet, and a fresh turn may begin.
    /// Nothing is deleted; the snapshot with the question can still be resumed.
    ///
    /// `WrongMode` when nothing waits, `Busy` while a turn runs, `Conflict` when somebody answered meanwhile.
    ///
    /// ```
    /// use everturn::model::{Reply, ScriptedModel};
    /// use everturn::store::MemoryStore;
    /// use everturn::tool::{Tool, ToolError};
    /// use everturn::{Agent, FinishReason, Init, Json, Prompt};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
    /// let pay = Tool::new("pay", "Pays.", |_: Json, _| async { Err::<(), _>(ToolError::interrupt("How much?")) });
    /// let model = ScriptedModel::new([Reply::call("pay", "{}"), Reply::text("Hello.")]);
    /// let agent = Agent::prompt("clerk", Prompt::new(model).tool(pay)).store(MemoryStore::new()).build()?;
    ///
    /// let asked = agent.run_text("Pay it.", Init::new()).await?;
    /// assert_eq!(asked.finish_reason, Some(FinishReason::Interrupted));
    /// agent.withdraw(&asked.session_id).await?;
    /// let fresh = agent.run_text("Hi.", Init::session(asked.session_id)).await?;
    /// assert_eq!(fresh.state.messages().len(), 2);
    /// # Ok(()) }
    /// ```
    pub async fn withdraw(&self, session: &SessionId) -> Result<SessionRecord> {
        let (store, key) = (self.own_store()?, self.key(session));
        if !self.owns(store, &key).await? {
            return Err(Error::not_found(format!("agent '{}' has no session {session}", self.def.name)));
        }
        let head = store.existing(&key).await?.head;
        let mut to = head;
        while waits(&state(store, &key, to).await?) {
            to = before_turn_at(store, &key, to).await?;
        }
        if to == head {
            return Err(Error::new(
                ErrorKind::WrongMode,
                format!("session {session} waits for no answer: there is no question to take back"),
            ));
        }
        let (name, under_lease) = (BranchName::main(), UnderLease::Refuse);
        store.branch(&key, BranchChange::Move { name, to, expect: Some(head), under_lease }).await
    }
}

async fn state(store: &dyn Store, key: &SessionKey, point: Point) -> Result<PointState> {
    let lost = || Error::internal(format!("point {point} of session {key} is not there"));
    store.state(At::Point(key.clone(), point)).await?.ok_or_else(lost)
}

fn waits(state: &PointState) -> bool {
    state.messages().last().is_some_and(is_waiting)
}

/// Where the turn started that led to a point, be it with edits after its end.
async fn before_turn_at(store: &dyn Store, key: &SessionKey, point: Point) -> Result<Point> {
    let unknown = || {
        Error::not_resumable(format!("which turn led to point {point} cannot be told: move the head by hand (rewind)"))
    };
    if let Some(turn) = last_turn(store, key, point).await? {
        return Ok(store.turn(turn).await?.ok_or_else(unknown)?.from);
    }
    // What a fork inherited is in the log of the session it was forked off.
    let origin = store.existing(key).await?.forked_from.ok_or_else(unknown)?;
    let key = SessionKey::new(key.app.clone(), key.user.clone(), origin.session);
    Box::pin(before_turn_at(store, &key, point.min(origin.point))).await
}

/// The turn that ended at a point, or the last before it on the same stretch of the tree.
async fn last_turn(store: &dyn Store, key: &SessionKey, point: Point) -> Result<Option<TurnId>> {
    let at = RecordQuery::of(key.clone()).after(point.seq() - 1);
    let found = store.records(at.limit(1)).await?.items.into_iter().next();
    let Some(record) = found.filter(|record| record.seq == point.seq()) else { return Ok(None) };
    if record.kind == RecordKind::End {
        return Ok(record.turn);
    }
    let (mut last, mut query) = (None, RecordQuery::of(key.clone()));
    loop {
        let page = store.records(query.clone()).await?;
        let before =
            |end: &&Record| end.kind == RecordKind::End && end.segment == record.segment && end.seq < point.seq();
        last = page.items.iter().rev().find(before).and_then(|end| end.turn).or(last);
        match page.next {
            Some(next) => query = query.from(next),
            None => return Ok(last),
        }
    }
}
