//! Broken creating, listing, changing and deleting.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use everturn::store::*;
use everturn::{Begin, ErrorKind, Json, Point, Receipt, Result, SessionId, SessionKey, SessionRecord, StateDelta};

use super::{Breakage, Inner, forged};

/// A creation replaces what is there.
#[derive(Debug)]
pub(crate) struct CreationOverwrites;

#[async_trait]
impl Breakage for CreationOverwrites {
    async fn create(&self, inner: &Inner, session: CreateSession) -> Result<SessionRecord> {
        if let Some(id) = &session.id {
            inner.delete(&SessionKey::new(session.app.clone(), session.user.clone(), id.clone())).await?;
        }
        inner.create(session).await
    }
}

/// A creation that finds a session answers with it.
#[derive(Debug)]
pub(crate) struct CreationOpens;

#[async_trait]
impl Breakage for CreationOpens {
    async fn create(&self, inner: &Inner, session: CreateSession) -> Result<SessionRecord> {
        inner.open_or_create(session).await
    }
}

/// Ids that differ in case are one.
#[derive(Debug)]
pub(crate) struct CaseDoesNotCount;

#[async_trait]
impl Breakage for CaseDoesNotCount {
    async fn create(&self, inner: &Inner, session: CreateSession) -> Result<SessionRecord> {
        let lower = |id: &SessionId| id.as_str().to_lowercase();
        let wanted = session.id.as_ref().map(lower);
        let listed = inner.list(ListSessions::of(session.app.clone(), session.user.clone())).await?.items;
        if listed.iter().any(|known| Some(lower(&known.id)) == wanted) {
            return Err(everturn::Error::new(ErrorKind::AlreadyExists, "there is one already"));
        }
        inner.create(session).await
    }
}

/// The parts of a session's metadata that nobody asked about are lost.
#[derive(Debug)]
pub(crate) struct UpdateReplacesMetadata;

#[async_trait]
impl Breakage for UpdateReplacesMetadata {
    async fn update(&self, inner: &Inner, key: &SessionKey, mut update: UpdateSession) -> Result<SessionRecord> {
        let found = inner.existing(key).await?;
        let members: std::collections::BTreeMap<String, Json> = found.metadata.to()?;
        update.remove_metadata.extend(members.into_keys().filter(|name| !update.set_metadata.contains_key(name)));
        inner.update(key, update).await
    }
}

/// A title has to wait for a turn's end.
#[derive(Debug)]
pub(crate) struct UpdateMeetsTurns;

#[async_trait]
impl Breakage for UpdateMeetsTurns {
    async fn update(&self, inner: &Inner, key: &SessionKey, update: UpdateSession) -> Result<SessionRecord> {
        match inner.running(Some(key)).await?.is_empty() {
            true => inner.update(key, update).await,
            false => Err(everturn::Error::new(ErrorKind::Busy, "a turn runs")),
        }
    }
}

/// A page starts so and so many sessions from the top, wherever they have gone since.
#[derive(Debug)]
pub(crate) struct ListsByOffset;

#[async_trait]
impl Breakage for ListsByOffset {
    async fn list(&self, inner: &Inner, mut query: ListSessions) -> Result<Page<SessionRecord>> {
        let offset = query.cursor.take().and_then(|cursor| cursor.as_str().parse().ok()).unwrap_or(0);
        let limit = std::mem::replace(&mut query.limit, MAX_PAGE);
        let all = inner.list(query).await?.items;
        let more = all.len() > offset + limit;
        let next = more.then(|| Cursor::from_text((offset + limit).to_string()));
        Ok(Page { items: all.into_iter().skip(offset).take(limit).collect(), next })
    }
}

/// Sessions that were written to after the first page are left out of the others.
#[derive(Debug, Default)]
pub(crate) struct HidesTouched(std::sync::Mutex<Vec<SessionKey>>);

#[async_trait]
impl Breakage for HidesTouched {
    async fn update(&self, inner: &Inner, key: &SessionKey, update: UpdateSession) -> Result<SessionRecord> {
        self.0.lock().unwrap().push(key.clone());
        inner.update(key, update).await
    }

    async fn list(&self, inner: &Inner, query: ListSessions) -> Result<Page<SessionRecord>> {
        let later = query.cursor.is_some();
        let mut page = inner.list(query).await?;
        page.items.retain(|session| !later || !self.0.lock().unwrap().contains(&session.key()));
        Ok(page)
    }
}

/// The clock on the wall orders a listing.
#[derive(Debug)]
pub(crate) struct ListsByClock;

#[async_trait]
impl Breakage for ListsByClock {
    async fn list(&self, inner: &Inner, query: ListSessions) -> Result<Page<SessionRecord>> {
        let mut page = inner.list(query).await?;
        page.items.sort_by(|a, b| (b.updated_at, &b.id).cmp(&(a.updated_at, &a.id)));
        Ok(page)
    }
}

/// A filter is not looked at.
#[derive(Debug)]
pub(crate) struct IgnoresLabels;

#[async_trait]
impl Breakage for IgnoresLabels {
    async fn list(&self, inner: &Inner, mut query: ListSessions) -> Result<Page<SessionRecord>> {
        query.label = None;
        inner.list(query).await
    }
}

/// A deletion only says so.
#[derive(Debug)]
pub(crate) struct DeletesNothing;

#[async_trait]
impl Breakage for DeletesNothing {
    async fn delete(&self, inner: &Inner, key: &SessionKey) -> Result<bool> {
        Ok(inner.session(key).await?.is_some())
    }
}

/// A late end brings the deleted session back.
#[derive(Debug)]
pub(crate) struct ResurrectsTheDeleted;

#[async_trait]
impl Breakage for ResurrectsTheDeleted {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        match inner.end(end).await {
            Err(error) if error.kind() == ErrorKind::Deleted => Ok(forged(2)),
            done => done,
        }
    }
}

/// A purge deletes, and leaves the bytes to somebody else.
#[derive(Debug)]
pub(crate) struct PurgesNothing;

#[async_trait]
impl Breakage for PurgesNothing {
    async fn purge(&self, inner: &Inner, key: &SessionKey) -> Result<Purged> {
        inner.delete(key).await?;
        Ok(Purged::default())
    }
}

/// Forks go with their original.
#[derive(Debug)]
pub(crate) struct ForksDieWithTheirOriginal;

#[async_trait]
impl Breakage for ForksDieWithTheirOriginal {
    async fn delete(&self, inner: &Inner, key: &SessionKey) -> Result<bool> {
        for session in inner.list(ListSessions::default()).await?.items {
            if session.forked_from.as_ref().is_some_and(|origin| origin.session == key.id) {
                inner.delete(&session.key()).await?;
            }
        }
        inner.delete(key).await
    }
}

/// A fork counts what its line spent as its own.
#[derive(Debug)]
pub(crate) struct ForkCopiesUsage;

#[async_trait]
impl Breakage for ForkCopiesUsage {
    async fn fork(&self, inner: &Inner, fork: ForkSession) -> Result<SessionRecord> {
        Ok(with_usage(inner.fork(fork).await?))
    }

    async fn session(&self, inner: &Inner, key: &SessionKey) -> Result<Option<SessionRecord>> {
        Ok(inner.session(key).await?.map(with_usage))
    }
}

fn with_usage(mut session: SessionRecord) -> SessionRecord {
    if session.forked_from.is_some() {
        session.usage = std::mem::take(&mut session.inherited_usage);
    }
    session
}

/// A key is known across sessions.
#[derive(Debug, Default)]
pub(crate) struct KeysAreGlobal(std::sync::Mutex<std::collections::HashMap<everturn::TurnKey, everturn::TurnId>>);

#[async_trait]
impl Breakage for KeysAreGlobal {
    async fn begin(&self, inner: &Inner, turn: BeginTurn) -> Result<Begin> {
        let known = turn.key.as_ref().and_then(|key| self.0.lock().unwrap().get(key).copied());
        if let Some(known) = known {
            return Ok(Begin::Running(known));
        }
        let key = turn.key.clone();
        let begin = inner.begin(turn).await?;
        if let (Some(key), Begin::Begun(begun)) = (key, &begin) {
            self.0.lock().unwrap().insert(key, begun.turn);
        }
        Ok(begin)
    }
}

/// All users share one user's keys.
#[derive(Debug)]
pub(crate) struct UsersShareTheirState;

#[async_trait]
impl Breakage for UsersShareTheirState {
    async fn scopes(
        &self,
        inner: &Inner,
        app: &everturn::AppName,
        user: Option<&everturn::UserId>,
    ) -> Result<everturn::ScopedState> {
        let shared = everturn::UserId::new("u1")?;
        inner.scopes(app, user.map(|_| &shared)).await
    }
}

/// Null deletes a key.
#[derive(Debug)]
pub(crate) struct NullDeletes;

#[async_trait]
impl Breakage for NullDeletes {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        for event in &mut end.changes.events {
            let nulls = event.state_delta.iter().filter(|(_, value)| **value == Json::null());
            event.state_removed.extend(nulls.map(|(key, _)| key.clone()).collect::<Vec<_>>());
            event.state_delta.retain(|_, value| *value != Json::null());
        }
        inner.end(end).await
    }
}

/// Scopes are written whatever becomes of the turn.
#[derive(Debug)]
pub(crate) struct ScopesOfFailedTurnsApply;

#[async_trait]
impl Breakage for ScopesOfFailedTurnsApply {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let session = inner.turn(end.fence.turn()).await?.map(|turn| turn.session);
        let scopes = end.scopes.clone();
        let receipt = inner.end(end).await?;
        if let Some(session) = session.filter(|_| !receipt.on_head) {
            write_scopes(inner, &session, scopes).await?;
        }
        Ok(receipt)
    }
}

/// Scopes are written with each step, before anybody knows how the turn ends.
#[derive(Debug)]
pub(crate) struct ScopesApplyEarly;

#[async_trait]
impl Breakage for ScopesApplyEarly {
    async fn step(&self, inner: &Inner, step: StepTurn) -> Result<Receipt> {
        let session = inner.turn(step.fence.turn()).await?.map(|turn| turn.session);
        let mut scopes = StateDelta::new();
        step.changes.events.iter().for_each(|event| scopes.set.extend(event.state_delta.clone()));
        if let Some(session) = session {
            write_scopes(inner, &session, scopes).await?;
        }
        inner.step(step).await
    }
}

/// Writes scopes through a session made for it.
async fn write_scopes(inner: &Inner, session: &SessionKey, scopes: StateDelta) -> Result<()> {
    let mut scratch = CreateSession::new(session.app.clone(), session.user.clone());
    scratch.state = scopes;
    inner.create(scratch).await.map(drop)
}

/// What is too large is taken, and lost.
#[derive(Debug)]
pub(crate) struct SwallowsTheTooLarge;

#[async_trait]
impl Breakage for SwallowsTheTooLarge {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        match inner.end(end).await {
            Err(error) if error.kind() == ErrorKind::TooLarge => Ok(forged(1)),
            done => done,
        }
    }
}

/// A verification that looks at nothing.
#[derive(Debug)]
pub(crate) struct VerifiesNothing;

#[async_trait]
impl Breakage for VerifiesNothing {
    async fn verify(&self, _: &Inner, _: VerifyScope) -> Result<Verified> {
        Ok(Verified::default())
    }
}

/// A watch that first tells what was there before it.
#[derive(Debug)]
pub(crate) struct WatchReplays;

struct Replaying {
    inner: Box<dyn Watch>,
    told: AtomicBool,
    head: Point,
}

#[async_trait]
impl Watch for Replaying {
    async fn next(&mut self) -> Result<WatchEvent> {
        if !self.told.swap(true, Ordering::Relaxed) {
            return Ok(WatchEvent::Written(self.head));
        }
        self.inner.next().await
    }
}

#[async_trait]
impl Breakage for WatchReplays {
    async fn watch(&self, inner: &Inner, target: WatchTarget) -> Result<Box<dyn Watch>> {
        let watch = inner.watch(target.clone()).await?;
        match target {
            WatchTarget::Session(key) => {
                let head = inner.existing(&key).await?.head;
                Ok(Box::new(Replaying { inner: watch, told: AtomicBool::new(false), head }))
            }
            WatchTarget::Snapshot(_) => Ok(watch),
        }
    }
}
