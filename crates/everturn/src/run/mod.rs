//! One invocation of an agent: where it starts, its turns one after the other, and what it leaves.
//!
//! Data flows one way: an input begins a turn in the store, the handler changes the [working state](work), its end
//! writes what was changed, and only then the stream says so. The working state is what the handler sees; the store is
//! asked again at each begin, so that a turn always stands on what is really kept.

mod attach;
mod background;
pub(crate) mod begin;
pub(crate) mod changing;
mod compacting;
mod drive;
pub(crate) mod end;
mod finish;
mod keeping;
mod ledger;
pub(crate) mod retry;
mod start;
mod step;
mod streaming;
mod taking;
pub(crate) mod work;

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use drive::drive;
pub(crate) use ledger::TurnLedger;
use start::Started;
pub(crate) use start::{check_custom, resolve};
use streaming::Told;
use work::Work;

use crate::agent::definition::Definition;
use crate::agent::local::Guard;
use crate::agent::policy::LastSnapshot;
use crate::agent::{Caller, SharedState};
use crate::connection::{Finished, Ticket};
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::{FinishReason, TurnError};
use crate::store::{Busy, CreateSession};
use crate::stream::Sender;
use crate::turn::{Begun, Fence, Input};
use crate::{BranchName, Error, InvocationId, Point, Result, SessionId, SnapshotId, TurnId, TurnKey, UserId};

/// Somebody wants the turn that runs to go on in the background.
pub(crate) type DetachAsked = oneshot::Sender<Result<()>>;

/// One invocation of an agent.
pub(crate) struct Run {
    pub(crate) def: Arc<Definition>,
    pub(crate) user: UserId,
    pub(crate) invocation: InvocationId,
    /// The session, once a turn has begun in it.
    pub(crate) session: Arc<OnceLock<SessionId>>,
    /// What finds the turn again that runs, or that is shown in its place.
    pub(crate) ticket: watch::Sender<Option<Ticket>>,
    pub(crate) out: Sender,
    /// Fires when nobody wants the invocation any more.
    pub(crate) cancel: CancellationToken,
    /// The invocation this one was started from, if a handler started it.
    pub(crate) parent: Option<Arc<Run>>,
    pub(crate) inputs: tokio::sync::Mutex<mpsc::Receiver<Input>>,
    /// Where whoever started the invocation is answered.
    pub(crate) finished: watch::Sender<Option<Finished>>,
    /// Set once it goes on whatever becomes of whoever started it.
    pub(crate) released: Arc<AtomicBool>,
    /// Its first turn goes to the background when it begins, whatever its input says.
    pub(crate) unattended: bool,
    /// Whether what its turns say is kept, in the background or not.
    pub(crate) keeps: bool,
    /// The stream of the turn that runs, if it is kept.
    pub(crate) kept: Mutex<Option<Arc<keeping::Kept>>>,
    pub(crate) guard: Mutex<Option<Guard>>,
    /// Told when the turn that runs is to go on in the background, and how that went.
    pub(crate) detach: tokio::sync::Mutex<mpsc::Receiver<DetachAsked>>,
    pub(crate) work: Mutex<Work>,
    /// One writer of custom state at a time, so that reading and writing it is one step.
    pub(crate) custom_writers: Mutex<()>,
    pub(crate) told: Mutex<Told>,
    pub(crate) place: tokio::sync::Mutex<Place>,
    /// The fence of the turn that runs, and what cancels that turn alone.
    pub(crate) running: Mutex<Option<Running>>,
    /// Why the turn must stop, when something other than its handler decided so.
    pub(crate) stop: Mutex<Option<Stop>>,
    pub(crate) stopped: tokio::sync::Notify,
    /// Told when a turn begins.
    pub(crate) began: tokio::sync::Notify,
    /// The turn that a handler that owns its loop has asked for.
    pub(crate) beginning: tokio::sync::Mutex<Option<taking::BeginningTurn>>,
    /// Why a handler that owns its loop got no turn.
    pub(crate) unserved: Mutex<Option<Unserved>>,
}

/// Why a handler that owns its loop got no turn, kept for whoever waits for the invocation.
pub(crate) enum Unserved {
    /// The turn was refused.
    Refused(Error, Box<Input>),
    /// There was a turn under the same key before.
    Instead(begin::Instead),
}

#[derive(Clone)]
pub(crate) struct Running {
    /// Counts the turns of an invocation, so that a handle on an older one is told from this one's.
    pub(crate) serial: u64,
    pub(crate) since: tokio::time::Instant,
    pub(crate) fence: Option<Fence>,
    pub(crate) key: Option<SessionKey>,
    pub(crate) branch: BranchName,
    pub(crate) cancel: CancellationToken,
}

/// Why a turn was stopped from outside.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Nobody wants it any more.
    Aborted,
    /// The store says it is no longer ours.
    Lost(Error),
    /// It took too long.
    TimedOut,
    /// What it said could not be shown.
    Withheld(Error),
    /// Its end could not be written as it was meant.
    Broken(Error),
    /// Its end may have been written or not.
    InDoubt(Error),
}

/// How the next turn starts.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// At the head of a branch; the session is made if there is none.
    Fresh(Box<CreateSession>),
    /// At the head of a branch.
    Head,
    /// At a snapshot, which belongs to the session.
    Snapshot(SnapshotId),
    /// At a point, beside the head.
    Point(Point),
    /// Where a turn that died had started.
    TakeOver(TurnId),
    /// There is no store; the working state is all there is.
    Working,
}

/// Where an invocation stands in the store, and what it has to show so far.
pub(crate) struct Place {
    pub(crate) key: Option<SessionKey>,
    pub(crate) branch: Option<BranchName>,
    pub(crate) next: Next,
    pub(crate) expect: Option<Point>,
    pub(crate) turn_key: Option<TurnKey>,
    pub(crate) busy: Busy,
    pub(crate) begun: Option<Begun>,
    /// The last point that counts.
    pub(crate) point: Option<Point>,
    pub(crate) on_head: bool,
    /// The digest of the state at that point, where it is known.
    pub(crate) digest: Option<crate::Digest>,
    pub(crate) last_snapshot: Known<Option<LastSnapshot>>,
    pub(crate) snapshot_ids: Vec<SnapshotId>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) error: Option<TurnError>,
    /// Nobody knows whether the last turn was kept: then there is no output to give.
    pub(crate) in_doubt: Option<Error>,
    pub(crate) output: Option<Json>,
    /// The next opportunity for a snapshot.
    pub(crate) index: u64,
    pub(crate) turn_index: u64,
    /// Turns begun by this invocation.
    pub(crate) serial: u64,
    pub(crate) span: tracing::Span,
    /// The custom state whose schema was checked last.
    pub(crate) checked: Option<Json>,
}

/// Something that is asked for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known<T> {
    NotYet,
    Is(T),
}

/// A turn as a handler is given it, with its types rubbed off.
#[derive(Clone)]
pub(crate) struct TurnHandle {
    pub(crate) run: Arc<Run>,
    pub(crate) serial: u64,
    pub(crate) input: Arc<Input>,
    pub(crate) turn_index: u64,
    pub(crate) snapshot_id: Option<SnapshotId>,
    pub(crate) head_moved: bool,
    pub(crate) cancel: CancellationToken,
    pub(crate) span: tracing::Span,
}

impl TurnHandle {
    /// Refuses what a handle on a turn that is over would do to the one that runs.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.run.work().check_open()?;
        match &*self.run.running() {
            Some(running) if running.serial == self.serial => Ok(()),
            _ => Err(Error::fenced("the turn has ended: what is changed now would not be kept")),
        }
    }
}

impl Run {
    pub(crate) fn new(
        def: Arc<Definition>,
        user: UserId,
        invocation: InvocationId,
        started: Started,
        inputs: mpsc::Receiver<Input>,
        detach: mpsc::Receiver<DetachAsked>,
        out: Sender,
    ) -> Self {
        Self {
            def,
            user,
            invocation,
            session: Arc::default(),
            ticket: watch::Sender::new(None),
            out,
            cancel: CancellationToken::new(),
            parent: crate::live::current_run(),
            inputs: tokio::sync::Mutex::new(inputs),
            finished: watch::Sender::new(None),
            released: Arc::default(),
            unattended: false,
            keeps: false,
            kept: Mutex::default(),
            guard: Mutex::default(),
            detach: tokio::sync::Mutex::new(detach),
            work: Mutex::new(started.work),
            custom_writers: Mutex::default(),
            told: Mutex::default(),
            place: tokio::sync::Mutex::new(started.place),
            running: Mutex::default(),
            stop: Mutex::default(),
            stopped: tokio::sync::Notify::new(),
            began: tokio::sync::Notify::new(),
            beginning: tokio::sync::Mutex::default(),
            unserved: Mutex::default(),
        }
    }

    /// The same with nobody to attend to it.
    pub(crate) fn in_background(mut self, unattended: bool) -> Self {
        self.unattended = unattended;
        self
    }

    /// The same with what its turns say kept.
    pub(crate) fn keeping_streams(mut self, keeps: bool) -> Self {
        self.keeps = keeps;
        self
    }

    /// Whom what leaves is shown to.
    pub(crate) fn caller(&self) -> Caller {
        Caller { agent: self.def.name.clone(), user: self.user.clone(), session: Some(self.work().session.clone()) }
    }

    pub(crate) fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the turn that runs. The first reason counts.
    pub(crate) fn stop(&self, why: Stop) {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        if let Some(running) = &*self.running() {
            running.cancel.cancel();
        }
        self.stopped.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn take_stop(&self) -> Option<Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether this invocation, or one it was started from, holds a branch right now.
    pub(crate) fn holds(&self, key: &SessionKey, branch: &BranchName) -> bool {
        let mine = self.running().as_ref().is_some_and(|held| held.key.as_ref() == Some(key) && held.branch == *branch);
        mine || self.parent.as_ref().is_some_and(|parent| parent.holds(key, branch))
    }

    /// The working state as it is handed out.
    pub(crate) fn shared_state(&self) -> SharedState {
        let work = self.work();
        work.now.shared(&work.session)
    }

    /// The last good state as it is handed out.
    pub(crate) fn good_state(&self) -> SharedState {
        let work = self.work();
        work.good.shared(&work.session)
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
