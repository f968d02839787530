//! A store that is looked after: what is asked of it is counted, and when it closed itself it is opened again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn::store::*;
use everturn::{
    Aborted, AppName, Begin, Begun, Error, ErrorKind, Event, Fence, Point, PointState, Receipt, Record, Result,
    RunningTurn, ScopedState, SessionKey, SessionRecord, Snapshot, SnapshotId, StateDelta, TurnId, TurnRecord, UserId,
};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::metrics::Metrics;

/// How long a store may take to say that it is there.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// How long is waited before a store is opened again: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// Whether a store answers.
#[derive(Clone)]
pub(crate) struct Health {
    store: Arc<dyn Store>,
}

impl Health {
    /// Whether work can be sent here: the store answers, and writes.
    pub(crate) async fn ready(&self) -> Result<(), NotReady> {
        self.check().await.map_err(NotReady::Silent)?;
        // A write that waits for the store's locks as every other does, and changes nothing: there is no such turn.
        let no_turn = Fence::new(TurnId::new(0, Point::new(0)), 0);
        match timeout(ANSWERS_WITHIN, self.store.renew(&no_turn)).await {
            Ok(Err(error)) if is_failure(error.kind()) => Err(NotReady::ReadOnly(error)),
            Ok(_) => Ok(()),
            Err(_) => {
                let text = "the store does not write: another process holds its lock, or its disk does not answer";
                Err(NotReady::ReadOnly(Error::new(ErrorKind::Unavailable, text)))
            }
        }
    }

    /// Asks the store for something that is not there.
    pub(crate) async fn check(&self) -> Result<()> {
        let nobody = SessionKey::of("everturn", "readyz", "nothing")?;
        match timeout(ANSWERS_WITHIN, self.store.session(&nobody)).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the store does not answer: look at its disk")),
        }
    }
}

/// Why no work can be sent here.
pub(crate) enum NotReady {
    /// The store does not answer.
    Silent(Error),
    /// It answers, but nothing can be written.
    ReadOnly(Error),
}

fn is_failure(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Internal)
}

/// The same store, watched: the one to give to agents. As long as it is there, a task opens it again whenever it closed
/// itself.
pub(crate) fn watch(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> (Arc<dyn Store>, Health) {
    let (health, failed) = (Health { store: store.clone() }, Arc::new(Notify::new()));
    let task = tokio::spawn(look_after(health.clone(), failed.clone(), metrics.clone()));
    (Arc::new(Watched { inner: store, metrics, failed, task: task.abort_handle() }), health)
}

async fn look_after(health: Health, failed: Arc<Notify>, metrics: Arc<Metrics>) {
    loop {
        failed.notified().await;
        let mut wait = FIRST_WAIT;
        // A full disk leaves it open: then it answers, and goes on by itself when there is room.
        while let Err(error) = health.check().await {
            tracing::warn!(%error, "the store is opened anew in {} ms", wait.as_millis());
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
            match health.store.reopen().await {
                Ok(()) => {
                    metrics.reopened();
                    tracing::info!("the store is open again");
                }
                Err(error) => tracing::warn!(%error, "the store could not be opened: it is tried again"),
            }
        }
    }
}

struct Watched {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    failed: Arc<Notify>,
    task: tokio::task::AbortHandle,
}

impl Watched {
    fn note<T>(&self, operation: &'static str, answer: Result<T>) -> Result<T> {
        self.metrics.operation(operation, answer.as_ref().map(|_| ()).map_err(|error| error.kind()));
        let failed = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome);
        if answer.as_ref().is_err_and(failed) {
            self.failed.notify_one();
        }
        answer
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

macro_rules! watched {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for Watched {
            $(async fn $name(&self $(, $arg: $type)*) -> Result<$answer> {
                let answer = self.inner.$name($($arg),*).await;
                self.note(stringify!($name), answer)
            })*
        }
    };
}

watched! {
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
}
