//! The sessions' side of an engine: how they are made, changed, deleted and reclaimed.

use super::prepare::Draft;
use super::rules::{Ctx, show};
use super::sessions::{self, NewFork, NewSession};
use super::{Backend, Engine, Inner, Sync, import};
use crate::aside::{away, is_large};
use crate::session::{SessionKey, SessionRecord};
use crate::store::{BranchChange, CreateSession, ForkSession, ImportSession, Purged, UpdateSession};
use crate::turn::Changes;
use crate::{ErrorKind, Result, SessionId, SnapshotId};

/// Records removed in one go while a deleted session is reclaimed, so that turns need not wait long.
const RECLAIM_SLICE: usize = 256;

impl<B: Backend> Engine<B> {
    pub(crate) async fn delete(&self, key: &SessionKey) -> Result<bool> {
        let Some(num) = self.mark_deleted(key).await? else { return Ok(false) };
        // The session is gone for everybody now; its bytes go in slices, without anybody waiting for them.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let engine = self.clone();
            runtime.spawn(async move {
                if let Err(error) = engine.sweep(num).await {
                    tracing::warn!(%error, "a deleted session was not reclaimed; the next delete or purge will");
                }
            });
        }
        Ok(true)
    }
}

impl<B: Backend> Inner<B> {
    fn fresh_id(&self) -> Result<SessionId> {
        SessionId::new(self.config.clock.uuid().to_string())
    }

    /// What a session that is to be made is called.
    pub(super) fn name_session(&self, session: &CreateSession, derived: Option<SessionId>) -> Result<SessionId> {
        session.id.clone().or(derived).map_or_else(|| self.fresh_id(), Ok)
    }

    pub(crate) async fn create(&self, session: CreateSession) -> Result<SessionRecord> {
        let (id, limits) = (self.name_session(&session, None)?, self.config.limits);
        let new = match is_large(NewSession::weight(&session)) {
            true => away(move || NewSession::prepare(session, id, &limits)).await?,
            false => NewSession::prepare(session, id, &limits)?,
        };
        self.write_new(move |ctx| {
            let row = sessions::create(ctx, &new)?;
            show(ctx.tx, ctx.env, &row)
        })
        .await
    }

    /// Makes a session.
    async fn write_new<F>(&self, rule: F) -> Result<SessionRecord>
    where
        F: FnMut(&mut Ctx<'_>) -> Result<SessionRecord> + Send + 'static,
    {
        let made = self.write(Sync::Durable, rule).await?;
        self.standing.made(&made.key());
        Ok(made)
    }

    pub(crate) async fn update(&self, key: &SessionKey, update: UpdateSession) -> Result<SessionRecord> {
        let (key, limits) = (key.clone(), self.config.limits);
        self.write_to_session(move |ctx| sessions::update(ctx, &key, &update, &limits)).await
    }

    pub(crate) async fn branch(&self, key: &SessionKey, change: BranchChange) -> Result<SessionRecord> {
        let (key, limits) = (key.clone(), self.config.limits);
        self.write_to_session(move |ctx| sessions::branch(ctx, &key, &change, &limits)).await
    }

    async fn write_to_session<F>(&self, mut rule: F) -> Result<SessionRecord>
    where
        F: FnMut(&mut Ctx<'_>) -> Result<SessionRecord> + Send + 'static,
    {
        let (record, num) = self
            .write(Sync::Durable, move |ctx| {
                let record = rule(ctx)?;
                let num = ctx.tx.find_session(&record.key())?.map_or(0, |row| row.num);
                Ok((record, num))
            })
            .await?;
        self.news.tell(num);
        Ok(record)
    }

    pub(crate) async fn fork(&self, fork: ForkSession) -> Result<SessionRecord> {
        let id = match fork.id {
            Some(id) => id,
            None => self.fresh_id()?,
        };
        let snapshot = fork.snapshot.unwrap_or_else(|| SnapshotId::from_uuid(self.config.clock.uuid()));
        let prepared = Draft::of(Changes::new()).prepare(None, &self.config.limits)?;
        let from = fork.from;
        self.write_new(move |ctx| {
            let (origin, place) = sessions::fork_place(ctx.tx, &from)?;
            let new = NewFork { origin, place, id: id.clone(), snapshot, prepared: prepared.clone() };
            sessions::fork(ctx, &new)
        })
        .await
    }

    async fn mark_deleted(&self, key: &SessionKey) -> Result<Option<u64>> {
        let key = key.clone();
        let num = self.write_freeing(Sync::Durable, move |ctx| sessions::delete(ctx, &key)).await?;
        if let Some(num) = num {
            self.standing.deleted(num);
            self.cache.forget(num);
            self.news.tell(num);
        }
        Ok(num)
    }

    /// Reclaims what deleted sessions left, `first` before all others. Says what came of that one.
    async fn sweep(&self, first: u64) -> Result<Purged> {
        let others = self.backend.read(|read, _| read.deleted_sessions()).await?;
        let mut purged = Purged::default();
        let others = others.into_iter().map(|row| row.num).filter(|num| *num != first);
        for num in std::iter::once(first).chain(others) {
            let mut most = RECLAIM_SLICE;
            loop {
                let reclaim = self.write_freeing(Sync::Durable, move |ctx| sessions::reclaim(ctx, num, most)).await;
                let slice = match reclaim {
                    // A full disk may have room for removing less at once.
                    Err(error) if error.kind() == ErrorKind::Unavailable && most > 1 => {
                        most /= 4;
                        continue;
                    }
                    done => done?,
                };
                if num == first {
                    purged.removed += slice.removed;
                    purged.kept_for_forks = slice.kept;
                }
                if slice.done {
                    break;
                }
            }
        }
        Ok(purged)
    }

    pub(crate) async fn purge(&self, key: &SessionKey) -> Result<Purged> {
        let mut nums: Vec<u64> = self.mark_deleted(key).await?.into_iter().collect();
        let wanted = key.clone();
        let deleted = self.backend.read(|read, _| read.deleted_sessions()).await?;
        nums.extend(deleted.into_iter().filter(|row| row.key == wanted).map(|row| row.num));
        nums.dedup();
        let mut purged = Purged::default();
        for num in nums {
            let one = self.sweep(num).await?;
            purged.removed += one.removed;
            purged.kept_for_forks += one.kept_for_forks;
        }
        self.cache.clear();
        self.backend.scrub().await?;
        Ok(purged)
    }

    pub(crate) async fn import(&self, session: ImportSession) -> Result<SessionRecord> {
        let limits = self.config.limits;
        // Adding up what came from elsewhere takes as long as it takes; others need the thread.
        let mut checked = away(move || import::Checked::new(session, &limits)).await?;
        checked.name(|| SnapshotId::from_uuid(self.config.clock.uuid()));
        self.write_new(move |ctx| import::write(ctx, &checked)).await
    }
}
