//! What every store does, written once: the rules over a backend's rows.
//!
//! A backend gives rows (`tables`), one writer and some readers. Above it a request is made ready on the caller's
//! thread (`prepare`), decided and written inside the backend's transaction (`turns`, `sessions`), and answered. States
//! are added up in one place (`fold`) along lines (`line`).

mod body;
mod cache;
mod fold;
mod line;
mod list;
mod prepare;
mod queue;
mod read;
mod rules;
mod sessions;
mod tables;
mod turns;
mod verify;
mod watch;

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::collections::HashMap;
use std::time::Duration;

pub(crate) use body::{put_varint, take_varint};
pub(crate) use read::members;
pub(crate) use rules::{Ctx, Env};
pub(crate) use tables::*;

use body::{BeginBody, EndBody};
use cache::StateCache;
use fold::{Fold, fold, owned_by};
use line::line;
use prepare::{Draft, Prepared};
use queue::{News, Queues};
use rules::{Step, show};
use sessions::{NewFork, NewSession};
use turns::{NewTurn, Written};

use tokio::sync::Notify;

use super::request::*;
use super::Watch;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::event::Event;
use crate::json::Json;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::Snapshot;
use crate::state::{PointState, ScopedState, StateDelta};
use crate::turn::{
    Aborted, Begin, Begun, Changes, EndStatus, Fence, Input, Outcome, Receipt, Record, RecordKind, RunningTurn,
    TurnRecord,
};
use crate::{
    AppName, BranchName, Error, ErrorKind, FinishReason, Result, SessionId, SnapshotId, TurnId, TurnKey, UserId,
};

/// How much of an acknowledged write must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Visible to every process; on disk no later than the next durable write.
    Lazy,
    Durable,
}

/// Where rows are kept.
pub(crate) trait Backend: Send + std::marker::Sync + Debug + 'static {
    /// Runs a rule alone, in a transaction. It may run more than once; only its last run counts.
    fn write<T, F>(&self, sync: Sync, rule: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static;

    /// Reads from one consistent moment.
    fn read<T, F>(&self, reader: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: FnOnce(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static;

    /// Makes sure that what was removed is gone from every file.
    fn scrub(&self) -> impl Future<Output = Result<()>> + Send;

    /// Opens it anew after a failure.
    fn reopen(&self) -> impl Future<Output = Result<()>> + Send;
}

/// What a store is set to.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) clock: Arc<dyn Clock>,
    /// How long a writer may be silent before it is taken for dead.
    pub(crate) lease: Duration,
    /// How often changes by other processes are looked for.
    pub(crate) poll: Duration,
    pub(crate) limits: Limits,
    pub(crate) cache_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clock: Arc::new(crate::SystemClock::new()),
            lease: Duration::from_secs(60),
            poll: Duration::from_millis(100),
            limits: Limits::default(),
            cache_bytes: 64 << 20,
        }
    }
}

/// A store over a backend; cheap to clone.
#[derive(Debug)]
pub(crate) struct Engine<B: Backend>(Arc<Inner<B>>);

impl<B: Backend> Clone for Engine<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
pub(crate) struct Inner<B: Backend> {
    backend: B,
    config: Config,
    cache: Arc<StateCache>,
    news: News,
    queues: Queues<(SessionKey, BranchName)>,
    /// Where the turns begun here stand, so that the state they follow need not be asked for.
    tips: Mutex<HashMap<TurnId, Place>>,
}

/// Records removed in one go while a deleted session is reclaimed, so that turns need not wait long.
const RECLAIM_SLICE: usize = 256;
/// Turns whose place is remembered; the rest are asked for.
const MAX_TIPS: usize = 65_536;

impl<B: Backend> std::ops::Deref for Engine<B> {
    type Target = Inner<B>;
    fn deref(&self) -> &Inner<B> {
        &self.0
    }
}

impl<B: Backend> Engine<B> {
    pub(crate) fn new(backend: B, config: Config) -> Self {
        let cache = Arc::new(StateCache::new(config.cache_bytes));
        Self(Arc::new(Inner {
            backend,
            config,
            cache,
            news: News::default(),
            queues: Queues::default(),
            tips: Mutex::default(),
        }))
    }

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

    pub(crate) async fn watch(&self, target: WatchTarget) -> Result<Box<dyn Watch>> {
        match target {
            WatchTarget::Session(key) => {
                let row = self.backend.read(move |read, _| rules::live_session(read, &key)).await?;
                let news = self.news.of(row.num);
                Ok(Box::new(watch::SessionWatch { inner: self.0.clone(), num: row.num, seen: row.next_seq, news }))
            }
            WatchTarget::Snapshot(id) => {
                let row = self
                    .backend
                    .read(move |read, _| {
                        read.snapshot(id)?.ok_or_else(|| Error::not_found(format!("there is no snapshot {id}")))
                    })
                    .await?;
                let news = self.news.of(row.num);
                let seen = self.snapshot(SnapshotRef::Id(id)).await?.map(|snapshot| snapshot.status);
                if seen.is_none() {
                    return Err(Error::not_found(format!("there is no snapshot {id}: list the session's snapshots")));
                }
                Ok(Box::new(watch::SnapshotWatch { inner: self.0.clone(), id, seen, news }))
            }
        }
    }
}

impl<B: Backend> Inner<B> {
    async fn write<T, F>(&self, sync: Sync, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        self.backend.write(sync, rule).await
    }

    fn fresh_id(&self) -> Result<SessionId> {
        SessionId::new(self.config.clock.uuid().to_string())
    }

    fn new_session(&self, mut session: CreateSession, derived: Option<SessionId>) -> Result<NewSession> {
        let id = match session.id.take().or(derived) {
            Some(id) => id,
            None => self.fresh_id()?,
        };
        session.id = Some(id.clone());
        NewSession::prepare(session, id, &self.config.limits)
    }

    pub(crate) async fn create(&self, session: CreateSession) -> Result<SessionRecord> {
        let new = self.new_session(session, None)?;
        self.write(Sync::Durable, move |ctx| {
            let row = sessions::create(ctx, &new)?;
            show(ctx.tx, ctx.env, &row)
        })
        .await
    }

    pub(crate) async fn session(&self, key: &SessionKey) -> Result<Option<SessionRecord>> {
        let key = key.clone();
        self.backend
            .read(move |read, env| read.find_session(&key)?.map(|row| show(read, env, &row)).transpose())
            .await
    }

    pub(crate) async fn list(&self, query: ListSessions) -> Result<Page<SessionRecord>> {
        self.backend.read(move |read, env| list::list(read, env, &query)).await
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
        self.write(Sync::Durable, move |ctx| {
            let (origin, place) = sessions::fork_place(ctx.tx, &from)?;
            let new = NewFork { origin, place, id: id.clone(), snapshot, prepared: prepared.clone() };
            sessions::fork(ctx, &new)
        })
        .await
    }

    async fn mark_deleted(&self, key: &SessionKey) -> Result<Option<u64>> {
        let key = key.clone();
        let num = self.write(Sync::Durable, move |ctx| sessions::delete(ctx, &key)).await?;
        if let Some(num) = num {
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
            loop {
                let slice = self.write(Sync::Durable, move |ctx| sessions::reclaim(ctx, num, RECLAIM_SLICE)).await?;
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

    pub(crate) async fn begin(&self, mut turn: BeginTurn) -> Result<Begin> {
        let payload = payload(&turn)?;
        let mut create = None;
        if let Start::OpenOrCreate(session) = &turn.start {
            let derived = turn.key.as_ref().map(|key| derived_id(session, key)).transpose()?;
            let new = self.new_session((**session).clone(), derived)?;
            turn.start = Start::OpenOrCreate(Box::new(new.session.clone()));
            create = Some(new);
        }
        let queue = match (&turn.start, turn.busy) {
            (Start::Session(key), Busy::Wait(limit)) => Some((key.clone(), limit)),
            (Start::OpenOrCreate(_), Busy::Wait(limit)) => create.as_ref().map(|new| (new.key.clone(), limit)),
            _ => None,
        };
        let Some((key, limit)) = queue else { return self.try_begin(turn, payload, create).await };
        let place = (key, turn.branch.clone().unwrap_or_default());
        let deadline = tokio::time::Instant::now() + limit;
        let waited = |error: Option<Error>| {
            error.unwrap_or_else(|| {
                Error::busy(format!("the branch was busy for {limit:?}: wait longer, or begin on a side line"))
            })
        };
        let Ok(_front) = tokio::time::timeout_at(deadline, self.queues.enter(place.clone())).await else {
            return Err(waited(None));
        };
        let mut news = None;
        loop {
            // Told from before the attempt on, so that an end in between is not missed.
            let told = news.as_ref().map(|news: &Arc<Notify>| {
                let mut told = Box::pin(news.clone().notified_owned());
                told.as_mut().enable();
                told
            });
            match self.try_begin(turn.clone(), payload, create.clone()).await {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    let now = tokio::time::Instant::now();
                    if now >= deadline {
                        return Err(waited(Some(error)));
                    }
                    let Some(told) = told else {
                        let key = place.0.clone();
                        let row = self.backend.read(move |read, _| read.find_session(&key)).await?;
                        news = Some(self.news.of(row.map_or(0, |row| row.num)));
                        continue;
                    };
                    let until = deadline.min(now + self.config.poll);
                    let _ = tokio::time::timeout_at(until, told).await;
                }
                done => return done,
            }
        }
    }

    async fn try_begin(&self, turn: BeginTurn, payload: Digest, mut create: Option<NewSession>) -> Result<Begin> {
        let draft = begin_draft(&turn);
        let needs_base = draft.needs_base();
        if needs_base && let Some(new) = create.take() {
            // The input changes state, which must be there first.
            let made = self.write(Sync::Lazy, move |ctx| sessions::create(ctx, &new).map(drop)).await;
            match made {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let mut prepared = if needs_base { None } else { Some(draft.prepare(None, &self.config.limits)?) };
        let mut new = NewTurn { turn, payload, create, prepared: prepared.clone() };
        loop {
            let shared = Arc::new(new);
            let job = shared.clone();
            match self.write(Sync::Lazy, move |ctx| turns::begin(ctx, &job)).await? {
                Step::Done(written) => {
                    if let Begin::Begun(begun) = &written.answer {
                        self.remember_tip(begun.turn, &written);
                    }
                    self.remember(&written, prepared.as_ref());
                    self.news.tell(written.session);
                    return Ok(written.answer);
                }
                Step::Rebase(place) => {
                    let state = self.state_at(place).await?;
                    prepared = Some(draft.prepare(Some(&state), &self.config.limits)?);
                    new = NewTurn {
                        turn: shared.turn.clone(),
                        payload,
                        create: shared.create.clone(),
                        prepared: prepared.clone(),
                    };
                }
            }
        }
    }

    pub(crate) async fn step(&self, step: StepTurn) -> Result<Receipt> {
        let draft = Draft::of(step.changes.clone());
        let turn = step.fence.turn;
        let base = self.tip_of(turn);
        let step = Arc::new(step);
        let written = self
            .write_after(draft, base, move |ctx, prepared| turns::step(ctx, &step, prepared))
            .await?;
        self.remember_tip(turn, &written);
        Ok(written.answer)
    }

    pub(crate) async fn end(&self, end: EndTurn) -> Result<Receipt> {
        let draft = Draft {
            changes: end.changes.clone(),
            state: end.scopes.clone(),
            end: Some(EndBody { status: end.status.into(), outcome: strip(end.outcome.clone())? }),
            ..Draft::default()
        };
        let turn = end.fence.turn;
        let base = self.tip_of(turn);
        let end = Arc::new(end);
        let written =
            self.write_after(draft, base, move |ctx, prepared| turns::end(ctx, &end, prepared)).await?;
        self.forget_tip(turn);
        Ok(written.answer)
    }

    pub(crate) async fn commit(&self, commit: Commit) -> Result<Receipt> {
        let draft =
            Draft { changes: commit.changes.clone(), invocation: commit.invocation.clone(), ..Draft::default() };
        let commit = Arc::new(commit);
        let written = self.write_after(draft, None, move |ctx, prepared| turns::commit(ctx, &commit, prepared)).await?;
        Ok(written.answer)
    }

    /// Prepares a record for the state it follows, and again if it turns out to follow another one.
    async fn write_after<T, F>(&self, draft: Draft, mut base: Option<Place>, rule: F) -> Result<Written<T>>
    where
        T: Send + 'static,
        F: Fn(&mut Ctx<'_>, Option<&Prepared>) -> Result<Step<Written<T>>> + Send + std::marker::Sync + 'static,
    {
        let needs_base = draft.needs_base();
        let rule = Arc::new(rule);
        // A place that was remembered may be out of date: another handle may have written to the turn.
        let mut guessed = true;
        loop {
            let prepared = match (needs_base, base) {
                (false, _) => Some(draft.prepare(None, &self.config.limits)?),
                (true, None) => None,
                (true, Some(place)) => {
                    let made = match self.state_at(place).await {
                        Ok(state) => draft.prepare(Some(&state), &self.config.limits),
                        Err(error) => Err(error),
                    };
                    match made {
                        Ok(prepared) => Some(prepared),
                        Err(_) if guessed => None,
                        // What it was to follow is gone; the writer knows why.
                        Err(error) if error.kind() == ErrorKind::NotFound => None,
                        Err(error) => return Err(error),
                    }
                }
            };
            let prepared = Arc::new(prepared);
            let (job, rule) = (prepared.clone(), rule.clone());
            match self.write(Sync::Durable, move |ctx| rule(ctx, job.as_ref().as_ref())).await? {
                Step::Done(written) => {
                    self.remember(&written, prepared.as_ref().as_ref());
                    self.news.tell(written.session);
                    return Ok(written);
                }
                Step::Rebase(place) => (base, guessed) = (Some(place), false),
            }
        }
    }

    pub(crate) async fn abort(&self, turn: TurnRef) -> Result<Aborted> {
        let outcome = Outcome::finished(FinishReason::Aborted);
        let draft =
            Draft { end: Some(EndBody { status: EndStatus::Aborted.into(), outcome }), ..Draft::default() };
        let prepared = draft.prepare(None, &self.config.limits)?;
        let written = self.write(Sync::Durable, move |ctx| turns::abort(ctx, &turn, &prepared)).await?;
        self.forget_tip(written.answer.turn);
        self.news.tell(written.session);
        Ok(written.answer)
    }

    pub(crate) async fn renew(&self, fence: &Fence) -> Result<()> {
        let fence = *fence;
        self.write(Sync::Lazy, move |ctx| turns::renew(ctx, &fence)).await
    }

    pub(crate) async fn take_over(&self, turn: TurnId) -> Result<Begun> {
        let written = self.write(Sync::Durable, move |ctx| turns::take_over(ctx, turn)).await?;
        self.remember_tip(turn, &written);
        self.news.tell(written.session);
        Ok(written.answer)
    }

    pub(crate) async fn running(&self, session: Option<&SessionKey>) -> Result<Vec<RunningTurn>> {
        let session = session.cloned();
        self.backend.read(move |read, env| read::running(read, env, session.as_ref())).await
    }

    pub(crate) async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>> {
        self.backend.read(move |read, env| read::turn(read, env, turn)).await
    }

    pub(crate) async fn state(&self, at: At) -> Result<Option<PointState>> {
        let cache = self.cache.clone();
        self.backend
            .read(move |read, _| {
                let Some((session, meta)) = read::locate(read, &at)? else { return Ok(None) };
                let place = meta.place();
                let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
                let state = state_at(read, &cache, session.tree, place, settled)?;
                Ok(Some(owned_by(state, &session.key.id)))
            })
            .await
    }

    async fn state_at(&self, place: Place) -> Result<PointState> {
        if let Some(state) = self.cache.get(place) {
            return Ok(state);
        }
        let cache = self.cache.clone();
        self.backend
            .read(move |read, _| {
                let gone = || Error::not_found("the session is gone");
                let meta = read.meta(place.num, place.seq)?.ok_or_else(gone)?;
                let session = read.session(place.num)?.ok_or_else(gone)?;
                let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
                let state = state_at(read, &cache, session.tree, place, settled)?;
                Ok(owned_by(state, &session.key.id))
            })
            .await
    }

    pub(crate) async fn events(&self, query: EventQuery) -> Result<Page<Event>> {
        self.backend.read(move |read, _| read::events(read, &query)).await
    }

    pub(crate) async fn records(&self, query: RecordQuery) -> Result<Page<Record>> {
        self.backend.read(move |read, _| read::records(read, &query)).await
    }

    pub(crate) async fn snapshot(&self, which: SnapshotRef) -> Result<Option<Snapshot>> {
        self.backend.read(move |read, env| read::snapshot(read, env, &which)).await
    }

    pub(crate) async fn snapshots(&self, query: ListSnapshots) -> Result<Page<Snapshot>> {
        self.backend.read(move |read, env| read::snapshots(read, env, &query)).await
    }

    pub(crate) async fn label(&self, id: SnapshotId, label: Option<String>) -> Result<Snapshot> {
        let shown = self
            .write(Sync::Durable, move |ctx| {
                sessions::label(ctx, id, label.as_deref())?;
                read::snapshot(ctx.tx, ctx.env, &SnapshotRef::Id(id))
            })
            .await?;
        shown.ok_or_else(|| Error::internal("a snapshot was labelled that is not there"))
    }

    pub(crate) async fn scopes(&self, app: &AppName, user: Option<&UserId>) -> Result<ScopedState> {
        let (app, user) = (app.clone(), user.cloned());
        self.backend.read(move |read, _| read::scopes(read, &app, user.as_ref())).await
    }

    pub(crate) async fn artifacts(&self, query: ArtifactQuery) -> Result<Vec<StoredArtifact>> {
        self.backend.read(move |read, _| read::artifacts(read, &query)).await
    }

    pub(crate) async fn verify(&self, scope: VerifyScope) -> Result<Verified> {
        self.backend.read(move |read, _| verify::verify(read, &scope)).await
    }

    pub(crate) async fn reopen(&self) -> Result<()> {
        self.cache.clear();
        self.backend.reopen().await
    }

    fn tip_of(&self, turn: TurnId) -> Option<Place> {
        self.tips.lock().unwrap_or_else(PoisonError::into_inner).get(&turn).copied()
    }

    fn remember_tip<T>(&self, turn: TurnId, written: &Written<T>) {
        let Some((_, meta)) = &written.record else { return };
        let mut tips = self.tips.lock().unwrap_or_else(PoisonError::into_inner);
        if tips.len() >= MAX_TIPS {
            tips.clear();
        }
        tips.insert(turn, meta.place());
    }

    fn forget_tip(&self, turn: TurnId) {
        self.tips.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn);
    }

    /// Keeps the state after a record at hand, if the one before it was.
    fn remember<T>(&self, written: &Written<T>, prepared: Option<&Prepared>) {
        let (Some((base, meta)), Some(prepared)) = (&written.record, prepared) else { return };
        if meta.kind == RecordKind::Void {
            return;
        }
        let Some(before) = self.cache.get(*base) else { return };
        let after = || -> Result<PointState> {
            let mut fold = Fold::from(before);
            fold.apply(meta, &prepared.text)?;
            if let Some(custom) = &prepared.custom {
                fold.set_custom(custom.value.clone());
            }
            fold.finish(|digest| {
                let put = prepared.puts.iter().find(|put| put.digest == digest);
                put.map(|put| put.content.clone()).ok_or_else(|| Error::internal("an artifact was not at hand"))
            })
        };
        match after() {
            Ok(state) => {
                let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
                self.cache.put(meta.place(), settled, state);
            }
            Err(error) => tracing::warn!(%error, "a state was not kept at hand"),
        }
    }
}

/// The state at a place: at hand, or added up from the nearest one that is.
fn state_at(read: &dyn Read, cache: &StateCache, tree: u64, place: Place, settled: bool) -> Result<PointState> {
    if let Some(state) = cache.get(place) {
        return Ok(state);
    }
    let whole = line(read, place)?;
    let owner = read.session(place.num)?.ok_or_else(|| Error::corrupt("a record belongs to no session"))?.key.id;
    let state = match cache.nearest(&whole) {
        Some((base, rest)) => fold(read, tree, base, &rest)?,
        None => fold(read, tree, PointState::empty(owner.clone()), &whole)?,
    };
    let state = owned_by(state, &owner);
    cache.put(place, settled, state.clone());
    Ok(state)
}

fn strip(mut outcome: Outcome) -> Result<Outcome> {
    outcome.message = outcome.message.map(crate::Message::without_snapshot_id).transpose()?;
    Ok(outcome)
}

fn begin_draft(turn: &BeginTurn) -> Draft {
    let mut changes = Changes::new();
    if !turn.input.messages.is_empty() || !turn.input.state_delta.is_empty() {
        let event = Event::new("user")
            .with_messages(turn.input.messages.iter().cloned())
            .with_state(turn.input.state_delta.clone());
        changes = changes.event(event);
    }
    let input = Input { messages: Vec::new(), state_delta: StateDelta::new(), ..turn.input.clone() };
    let begin = BeginBody {
        invocation: turn.invocation.clone(),
        agent: turn.agent.clone(),
        branch: turn.branch.clone().unwrap_or_default(),
        key: turn.key.clone(),
        input,
    };
    Draft { changes, begin: Some(begin), ..Draft::default() }
}

/// What a key stands for: where the turn starts, on which branch, with what input.
fn payload(turn: &BeginTurn) -> Result<Digest> {
    let start = match &turn.start {
        Start::Session(key) => format!("session {key}"),
        // With or without creating it, a session is the same start.
        Start::OpenOrCreate(create) => match &create.id {
            Some(id) => format!("session {}/{}/{id}", create.app, create.user),
            None => format!("fresh {}/{}", create.app, create.user),
        },
        Start::Snapshot { id, .. } => format!("snapshot {id}"),
        Start::Point { session, point } => format!("point {session} {point}"),
    };
    let branch = turn.branch.as_ref().map_or("", BranchName::as_str);
    let input = Digest::of_json(&Json::from_value(&turn.input)?)?;
    let mut text = Vec::new();
    for part in [start.as_bytes(), branch.as_bytes(), input.as_bytes()] {
        put_varint(&mut text, part.len() as u64);
        text.extend_from_slice(part);
    }
    Ok(Digest::of_parts(&[&text]))
}

/// The id of a session that nobody named but whose first turn has a key.
fn derived_id(session: &CreateSession, key: &TurnKey) -> Result<SessionId> {
    let mut text = Vec::new();
    for part in [session.app.as_str(), session.user.as_str(), key.as_str()] {
        put_varint(&mut text, part.len() as u64);
        text.extend_from_slice(part.as_bytes());
    }
    let digest = Digest::of_parts(&[b"everturn session 1\n", &text]).to_string();
    SessionId::new(format!("k-{}", &digest[..32]))
}

/// Implements [`Store`](super::Store) for a type that wraps an engine as its first field.
macro_rules! engine_store {
    ($store:ty) => {
            $crate::store::engine::engine_store!(@impl $store;
                create(session: CreateSession) -> SessionRecord;
                session(key: &SessionKey) -> Option<SessionRecord>;
                list(query: ListSessions) -> Page<SessionRecord>;
                update(key: &SessionKey, update: UpdateSession) -> SessionRecord;
                delete(key: &SessionKey) -> bool;
                purge(key: &SessionKey) -> Purged;
                begin(turn: BeginTurn) -> Begin;
                step(step: StepTurn) -> Receipt;
                end(end: EndTurn) -> Receipt;
                commit(commit: Commit) -> Receipt;
                abort(turn: TurnRef) -> Aborted;
                renew(fence: &Fence) -> ();
                take_over(turn: TurnId) -> Begun;
                running(session: Option<&SessionKey>) -> Vec<RunningTurn>;
                turn(turn: TurnId) -> Option<TurnRecord>;
                state(at: At) -> Option<PointState>;
                events(query: EventQuery) -> Page<Event>;
                records(query: RecordQuery) -> Page<Record>;
                snapshot(which: SnapshotRef) -> Option<Snapshot>;
                snapshots(query: ListSnapshots) -> Page<Snapshot>;
                label(snapshot: SnapshotId, label: Option<String>) -> Snapshot;
                branch(session: &SessionKey, change: BranchChange) -> SessionRecord;
                fork(fork: ForkSession) -> SessionRecord;
                scopes(app: &AppName, user: Option<&UserId>) -> ScopedState;
                artifacts(query: ArtifactQuery) -> Vec<StoredArtifact>;
                watch(target: WatchTarget) -> Box<dyn Watch>;
                verify(scope: VerifyScope) -> Verified;
                reopen() -> ();
            );
    };
    (@impl $store:ty; $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait::async_trait]
        impl $crate::store::Store for $store {
            $(async fn $name(&self, $($arg: $type),*) -> $crate::Result<$answer> {
                self.0.$name($($arg),*).await
            })*
        }
    };
}
pub(crate) use engine_store;

