//! What every store does, written once: the rules over a backend's rows.
//!
//! A backend gives rows (`tables`), one writer and some readers. Above it a request is made ready on the caller's
//! thread (`prepare`), decided and written inside the backend's transaction (`turns`, `sessions`), and answered: requests about turns
//! in `writes`, those that make, change and delete sessions in `lives`, those that read here. States
//! are added up in one place (`fold`) along lines (`line`).

mod begin;
mod beside;
mod body;
mod cache;
mod edit;
mod events;
mod excerpt;
mod export;
mod fold;
mod gather;
mod import;
mod line;
mod list;
mod lives;
mod page;
mod prepare;
mod prose;
mod queue;
mod read;
mod rules;
mod scopes;
mod sessions;
mod snapshots;
mod standing;
mod streams;
mod tables;
mod tree;
mod turns;
mod verify;
mod walk;
mod watch;
mod writes;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
pub(crate) use body::encode;
pub(crate) use body::{put_varint, take_varint};
pub(crate) use line::Interval;
pub(crate) use read::members;
pub(crate) use rules::{Ctx, Env};
#[cfg(feature = "sqlite")]
pub(crate) use streams::sweep_at_opening;
pub(crate) use tables::*;

#[cfg(feature = "sqlite")]
pub(crate) use cache::CacheStats;
use cache::StateCache;
use fold::{fold, fold_shortly, owned_by};
use line::line;
use prepare::Needs;
use queue::{News, Queues};
use rules::show;
use standing::Standing;

use super::Watch;
use super::request::*;
use crate::aside::{away, is_large};
use crate::clock::Clock;
use crate::event::Event;
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::Snapshot;
use crate::state::{PointState, ScopedState, StateDelta};
use crate::turn::{Record, RecordKind, RunningTurn, TurnRecord};
use crate::{AppName, BranchName, Error, ErrorKind, Result, SnapshotId, TurnId, UserId};

/// How much of an acknowledged write must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Visible to every process; on disk no later than the next durable write.
    Lazy,
    Durable,
}

/// How long a write may keep whoever makes it busy, the disk apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// No longer than a plain turn.
    Brief,
    Long,
    /// As long as it takes; it removes something, or ends a turn without a result. A store whose disk is full does that when
    /// it can do nothing else.
    Freeing,
}

impl Effort {
    /// What a record takes that has so many bytes, artifacts included.
    fn of_record(bytes: usize) -> Self {
        /// Sixteen pages.
        const MOST: usize = 64 << 10;
        if bytes <= MOST { Self::Brief } else { Self::Long }
    }
}

/// Where rows are kept.
pub(crate) trait Backend: Send + std::marker::Sync + Debug + 'static {
    /// Runs a rule alone, in a transaction. It may run more than once; only its last run counts.
    fn write<T, F>(&self, sync: Sync, effort: Effort, rule: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static;

    /// Says that a durable write comes as soon as it is made ready.
    fn rouse(&self) {}

    /// Reads from one consistent moment. What is read is as durable as it is ever said to be. What seems damaged may be read
    /// again, from another moment; only the last run counts.
    fn read<T, F>(&self, reader: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: FnMut(&dyn Read, &Env<'_>) -> Result<T> + Send + 'static;

    /// Waits until what rules have seen so far is as durable as it is said to be.
    fn settled(&self) -> impl Future<Output = Result<()>> + Send;

    /// Whether all that rules have seen so far is as durable as it is said to be.
    fn is_settled(&self) -> bool {
        true
    }

    /// Why writes wait, if something beside this process keeps them from being made.
    fn hindrance(&self) -> Option<Error> {
        None
    }

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
    /// How long the stream of a turn that has ended stays.
    pub(crate) stream_grace: Duration,
    pub(crate) cache_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clock: Arc::new(crate::SystemClock::new()),
            lease: Duration::from_secs(60),
            poll: Duration::from_millis(100),
            limits: Limits::default(),
            stream_grace: Duration::from_secs(600),
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
    standing: Standing,
}

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
            standing: Standing::default(),
        }))
    }

    #[cfg(any(test, feature = "sqlite"))]
    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn cache_stats(&self) -> CacheStats {
        self.0.cache.stats()
    }

    /// Drops what is at hand and was not used since this was called last.
    #[cfg(feature = "sqlite")]
    pub(crate) fn drop_unused(&self) {
        self.0.cache.drop_unused();
        self.0.news.drop_unused();
    }

    /// How many entries are kept by session or branch, beside decoded states.
    #[cfg(feature = "sqlite")]
    pub(crate) fn entries(&self) -> usize {
        self.0.news.len() + self.0.queues.len() + self.0.standing.len()
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
        self.backend.write(sync, Effort::Long, rule).await
    }

    /// Runs a rule that gives room back, or ends something.
    async fn write_freeing<T, F>(&self, sync: Sync, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        self.backend.write(sync, Effort::Freeing, rule).await
    }

    /// Runs a rule that writes one record of so many bytes, or less than a record.
    async fn write_record<T, F>(&self, sync: Sync, bytes: usize, rule: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
    {
        self.backend.write(sync, Effort::of_record(bytes), rule).await
    }

    pub(crate) async fn session(&self, key: &SessionKey) -> Result<Option<SessionRecord>> {
        let key = key.clone();
        self.backend.read(move |read, env| read.find_session(&key)?.map(|row| show(read, env, &row)).transpose()).await
    }

    pub(crate) async fn list(&self, query: ListSessions) -> Result<Page<SessionRecord>> {
        self.backend.read(move |read, env| list::list(read, env, &query)).await
    }

    pub(crate) async fn running(&self, session: Option<&SessionKey>) -> Result<Vec<RunningTurn>> {
        let session = session.cloned();
        self.backend.read(move |read, env| read::running(read, env, session.as_ref())).await
    }

    pub(crate) async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>> {
        self.backend.read(move |read, env| read::turn(read, env, turn)).await
    }

    pub(crate) async fn state(&self, at: At) -> Result<Option<PointState>> {
        if let At::Point(key, point) = &at
            && let Some(state) = self.standing.place(key, *point).and_then(|place| self.cache.get(place))
        {
            return Ok(Some(owned_by(state, &key.id)));
        }
        let cache = self.cache.clone();
        let found = self
            .backend
            .read(move |read, _| {
                let Some((session, meta)) = read::locate(read, &at)? else { return Ok(None) };
                let place = meta.place();
                let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
                let state = match cache.get(place) {
                    Some(state) => (state, None),
                    None => (add_up(read, &cache, session.tree, place)?, Some((place, settled))),
                };
                Ok(Some((state, session.key.id)))
            })
            .await?;
        let Some(((state, added_up), id)) = found else { return Ok(None) };
        // Kept only now that what was read is on disk: what is at hand is told without waiting.
        if let Some((place, settled)) = added_up {
            self.cache.put(place, settled, state.clone());
        }
        Ok(Some(owned_by(state, &id)))
    }

    /// The state a record is to follow. Its messages may be left out where making the record does not take them.
    async fn base_at(&self, place: Place, needs: Needs) -> Result<PointState> {
        let bare = || self.cache.get_bare(place).filter(|_| needs == Needs::Rest);
        match self.cache.get(place).or_else(bare) {
            Some(state) => Ok(state),
            None => Box::pin(self.base_from_disk(place)).await,
        }
    }

    async fn base_from_disk(&self, place: Place) -> Result<PointState> {
        let cache = self.cache.clone();
        let (state, settled) = self
            .backend
            .read(move |read, _| {
                let gone = || Error::not_found("the session is gone");
                let meta = read.meta(place.num, place.seq)?.ok_or_else(gone)?;
                let session = read.session(place.num)?.ok_or_else(gone)?;
                let state = owned_by(add_up(read, &cache, session.tree, place)?, &session.key.id);
                let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
                Ok((state, settled))
            })
            .await?;
        self.cache.put_to_write(place, settled, state.clone());
        Ok(state)
    }

    pub(crate) async fn events(&self, query: EventQuery) -> Result<Page<Event>> {
        self.backend.read(move |read, _| events::events(read, &query)).await
    }

    pub(crate) async fn records(&self, query: RecordQuery) -> Result<Page<Record>> {
        self.backend.read(move |read, _| read::records(read, &query)).await
    }

    pub(crate) async fn snapshot(&self, which: SnapshotRef) -> Result<Option<Snapshot>> {
        self.backend.read(move |read, env| snapshots::snapshot(read, env, &which)).await
    }

    pub(crate) async fn snapshots(&self, query: ListSnapshots) -> Result<Page<Snapshot>> {
        self.backend.read(move |read, env| snapshots::snapshots(read, env, &query)).await
    }

    pub(crate) async fn label(&self, id: SnapshotId, label: Option<String>) -> Result<Snapshot> {
        let shown = self
            .write(Sync::Durable, move |ctx| {
                sessions::label(ctx, id, label.as_deref())?;
                snapshots::snapshot(ctx.tx, ctx.env, &SnapshotRef::Id(id))
            })
            .await?;
        shown.ok_or_else(|| Error::internal("a snapshot was labelled that is not there"))
    }

    pub(crate) async fn scopes(&self, app: &AppName, user: Option<&UserId>) -> Result<ScopedState> {
        let (app, user) = (app.clone(), user.cloned());
        self.backend.read(move |read, _| read::scopes(read, &app, user.as_ref())).await
    }

    pub(crate) async fn set_scopes(&self, app: &AppName, user: Option<&UserId>, delta: StateDelta) -> Result<()> {
        let (app, user) = (app.clone(), user.cloned());
        scopes::check(&delta, user.as_ref(), &self.config.limits)?;
        self.write(Sync::Durable, move |ctx| scopes::set(ctx, &app, user.as_ref(), &delta)).await
    }

    pub(crate) async fn tree(&self, query: TreeQuery) -> Result<TreePage> {
        self.backend.read(move |read, env| tree::tree(read, env, &query)).await
    }

    pub(crate) async fn previews(&self, sessions: &[SessionKey]) -> Result<Vec<Option<Preview>>> {
        let sessions = sessions.to_vec();
        self.backend.read(move |read, _| excerpt::previews(read, &sessions)).await
    }

    pub(crate) async fn export(&self, session: &SessionKey, cursor: Option<&Cursor>) -> Result<ExportPage> {
        let (session, cursor) = (session.clone(), cursor.cloned());
        self.backend.read(move |read, _| export::export(read, &session, cursor.as_ref())).await
    }

    pub(crate) async fn artifacts(&self, query: ArtifactQuery) -> Result<Vec<StoredArtifact>> {
        self.backend.read(move |read, _| read::artifacts(read, &query)).await
    }

    pub(crate) async fn keep_chunks(&self, pack: KeepChunks) -> Result<()> {
        let limits = self.config.limits;
        let new = match is_large(pack.chunks.iter().map(|chunk| chunk.as_str().len()).sum()) {
            true => away(move || streams::NewPack::prepare(&pack, &limits)).await?,
            false => streams::NewPack::prepare(&pack, &limits)?,
        };
        self.write_record(Sync::Lazy, new.bytes(), move |ctx| streams::keep(ctx, &new, &limits)).await
    }

    pub(crate) async fn chunks(&self, query: ChunkQuery) -> Result<ChunkPage> {
        self.backend.read(move |read, env| streams::chunks(read, env, &query)).await
    }

    pub(crate) async fn verify(&self, scope: VerifyScope) -> Result<Verified> {
        self.backend.read(move |read, _| verify::verify(read, &scope)).await
    }

    pub(crate) async fn reopen(&self) -> Result<()> {
        self.cache.clear();
        self.backend.reopen().await
    }
}

/// The state at a place that is not at hand, added up from the nearest one that is.
fn add_up(read: &dyn Read, cache: &StateCache, tree: u64, place: Place) -> Result<PointState> {
    cache.missed();
    let whole = line(read, place)?;
    let owner = read.session(place.num)?.ok_or_else(|| Error::corrupt("a record belongs to no session"))?.key.id;
    let state = match cache.nearest(&whole) {
        Some((base, rest)) => fold(read, tree, base, &rest)?,
        None => fold(read, tree, PointState::empty(owner.clone()), &whole)?,
    };
    Ok(owned_by(state, &owner))
}

/// The state that others left where a turn begins, if one that is at hand lies shortly before. A transaction that writes has
/// just read what they wrote; having it read again, by a reader, would take as long as the rest of the turn.
fn catch_up(read: &dyn Read, cache: &StateCache, place: Place) -> Result<Option<PointState>> {
    let Some((state, missed)) = cache.shortly_before(place) else { return Ok(None) };
    match fold_shortly(read, state, missed) {
        // The turn has begun and does not depend on it; whoever reads the state is told. Only what takes the transaction back
        // must be an error here.
        Err(error) if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Internal) => Ok(None),
        caught_up => caught_up,
    }
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
                keep_chunks(pack: KeepChunks) -> ();
                chunks(query: ChunkQuery) -> ChunkPage;
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
                set_scopes(app: &AppName, user: Option<&UserId>, delta: StateDelta) -> ();
                tree(query: TreeQuery) -> TreePage;
                previews(sessions: &[SessionKey]) -> Vec<Option<Preview>>;
                export(session: &SessionKey, cursor: Option<&Cursor>) -> ExportPage;
                import(session: ImportSession) -> SessionRecord;
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
