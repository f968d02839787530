//! Stores that break a promise on purpose.
//!
//! [`Breakage`] has every method of a store and passes each on; what breaks a promise overrides one or two of them.

pub(crate) mod heads;
pub(crate) mod lost;
pub(crate) mod reads;
pub(crate) mod sessions;
pub(crate) mod streams;
pub(crate) mod turns;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use everturn::store::conformance::{Capabilities, Harness, LEASE};
use everturn::store::*;
use everturn::{
    Aborted, AppName, Begin, Begun, Event, Fence, ManualClock, PointState, Receipt, Record, Result, RunningTurn,
    ScopedState, SessionKey, SessionRecord, Snapshot, SnapshotId, StateDelta, TurnId, TurnRecord, UserId,
};

pub(crate) type Inner = Arc<dyn Store>;

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// How a store is broken: nowhere, unless a method says so.
        #[async_trait]
        pub(crate) trait Breakage: fmt::Debug + Send + Sync + 'static {
            $(async fn $name(&self, inner: &Inner $(, $arg: $type)*) -> Result<$answer> {
                inner.$name($($arg),*).await
            })*
        }

        #[async_trait]
        impl<B: Breakage> Store for Broken<B> {
            $(async fn $name(&self $(, $arg: $type)*) -> Result<$answer> {
                self.how.$name(&self.inner $(, $arg)*).await
            })*
        }
    };
}

passed_on! {
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

/// A memory store that is broken somehow.
#[derive(Debug)]
pub(crate) struct Broken<B> {
    inner: Inner,
    how: B,
}

/// A memory store that is not broken.
#[derive(Debug)]
pub(crate) struct Whole;

impl Breakage for Whole {}

/// A harness of one handle.
pub(crate) struct Bench {
    clock: ManualClock,
    store: Arc<dyn Store>,
}

impl Bench {
    pub(crate) fn new<B: Breakage>(how: impl FnOnce(&ManualClock) -> B) -> Self {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let inner = Arc::new(MemoryOptions::new().clock(Arc::new(clock.clone())).lease(LEASE).build());
        Self { store: Arc::new(Broken { inner, how: how(&clock) }), clock }
    }
}

#[async_trait]
impl Harness for Bench {
    async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(self.store.clone())
    }

    async fn second(&self) -> Result<Arc<dyn Store>> {
        Ok(self.store.clone())
    }

    fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

/// A receipt for something that was never written.
pub(crate) fn forged(point: u64) -> Receipt {
    let digest = "0".repeat(64);
    let text = format!(
        r#"{{"point":{point},"snapshotId":null,"digest":"{digest}","onHead":true,"at":"2026-01-01T00:00:00Z"}}"#
    );
    everturn::Json::parse(text).and_then(|json| json.to()).expect("a forged receipt has a receipt's shape")
}
