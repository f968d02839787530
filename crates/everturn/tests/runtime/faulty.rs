//! A store whose writes can be made to fail, or to wait.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use everturn::store::*;
use everturn::{
    Aborted, AppName, Begin, Begun, Error, ErrorKind, Event, Fence, PointState, Receipt, Record, Result, RunningTurn,
    ScopedState, SessionKey, SessionRecord, Snapshot, SnapshotId, StateDelta, TurnId, TurnRecord, UserId,
};
use tokio::sync::Notify;

/// Which write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Begin,
    Step,
    End,
    Commit,
    Renew,
}

/// What happens to a write.
enum Fault {
    Fails(ErrorKind),
    Waits(Pause),
}

/// A write that waits until it is let go.
#[derive(Clone, Default)]
pub(crate) struct Pause {
    reached: Arc<Notify>,
    go: Arc<Notify>,
}

impl Pause {
    /// Waits until the write is about to happen.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    pub(crate) fn go(&self) {
        self.go.notify_one();
    }
}

/// What happens to the writes of a store, each once and in order; they work otherwise.
#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<VecDeque<(Write, Fault)>>>);

impl Faults {
    /// The next such write fails.
    pub(crate) fn fail(&self, write: Write, kind: ErrorKind) {
        self.0.lock().unwrap().push_back((write, Fault::Fails(kind)));
    }

    /// The next such write waits.
    pub(crate) fn pause(&self, write: Write) -> Pause {
        let pause = Pause::default();
        self.0.lock().unwrap().push_back((write, Fault::Waits(pause.clone())));
        pause
    }

    pub(crate) fn store(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Faulty { inner, faults: self.clone() })
    }

    fn next(&self, write: Write) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap();
        let found = faults.iter().position(|(which, _)| *which == write)?;
        faults.remove(found).map(|(_, fault)| fault)
    }

    async fn check(&self, write: Write) -> Result<()> {
        while let Some(fault) = self.next(write) {
            match fault {
                Fault::Fails(kind) => return Err(Error::new(kind, format!("{write:?} was made to fail"))),
                Fault::Waits(pause) => {
                    pause.reached.notify_one();
                    pause.go.notified().await;
                }
            }
        }
        Ok(())
    }
}

struct Faulty {
    inner: Arc<dyn Store>,
    faults: Faults,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty $(, fails as $write:expr)?;)*) => {
        #[async_trait]
        impl Store for Faulty {
            $(async fn $name(&self $(, $arg: $type)*) -> Result<$answer> {
                $(self.faults.check($write).await?;)?
                self.inner.$name($($arg),*).await
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
    begin(turn: BeginTurn) -> Begin, fails as Write::Begin;
    step(step: StepTurn) -> Receipt, fails as Write::Step;
    end(end: EndTurn) -> Receipt, fails as Write::End;
    commit(commit: Commit) -> Receipt, fails as Write::Commit;
    abort(turn: TurnRef) -> Aborted;
    renew(fence: &Fence) -> (), fails as Write::Renew;
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
