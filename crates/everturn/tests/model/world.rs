//! The stores under test beside the model, and how their answers are held against it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use everturn::store::{BeginTurn, MemoryOptions, SqliteOptions, Store};
use everturn::{Clock as _, ManualClock, Result, SnapshotId, TurnId};
use uuid::Uuid;

use crate::support::Rng;
use crate::tree::{Answer, LEASE, Model, TurnIx};

/// What went wrong, if something did.
pub(crate) type Check<T = ()> = std::result::Result<T, String>;

/// One store, with a clock of its own that all clocks keep pace with.
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    clock: ManualClock,
}

pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) rng: Rng,
    /// What was done, for whoever has to find out why it went wrong.
    pub(crate) log: Vec<String>,
    /// What each turn was begun with, to begin it again.
    pub(crate) requests: BTreeMap<TurnIx, BeginTurn>,
    names: u64,
    dir: tempfile::TempDir,
    /// What the SQLite store may keep at hand: all there is, little, or nothing.
    cache_bytes: u64,
}

/// The place of the SQLite store among the lanes.
const SQLITE: usize = 1;

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = || ManualClock::new("2026-01-01T00:00:00Z".parse().expect("it is a time"));
        let dir = tempfile::tempdir().expect("there is room");
        let (memory, sqlite) = (clock(), clock());
        let model = Model::new(memory.now());
        let mut world = Self {
            model,
            lanes: Vec::new(),
            rng: Rng::new(0),
            log: Vec::new(),
            requests: BTreeMap::new(),
            names: 0,
            dir,
            cache_bytes: [64 << 20, 20_000, 0][usize::try_from(seed % 3).expect("small")],
        };
        let store = MemoryOptions::new().clock(Arc::new(memory.clone())).lease(LEASE).build();
        world.lanes.push(Lane { name: "memory", store: Arc::new(store), clock: memory });
        let store = world.open(&sqlite);
        world.lanes.push(Lane { name: "sqlite", store, clock: sqlite });
        world
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("sessions.db")
    }

    fn open(&self, clock: &ManualClock) -> Arc<dyn Store> {
        let options = SqliteOptions::new(self.file()).clock(Arc::new(clock.clone())).lease(LEASE);
        let options = options.cache_bytes(self.cache_bytes);
        Arc::new(options.open().expect("the file opens"))
    }

    /// The SQLite file through a handle that has never seen it: nothing at hand, nothing remembered.
    pub(crate) fn second_handle(&self) -> Lane {
        let clock = self.lanes[SQLITE].clock.clone();
        Lane { name: "sqlite, second handle", store: self.open(&clock), clock }
    }

    /// Closes the SQLite file and opens it again, long after: whoever held a lease is dead on every lane.
    pub(crate) fn restart(&mut self) {
        self.pass(LEASE + Duration::from_secs(1));
        let clock = self.lanes[SQLITE].clock.clone();
        self.lanes.remove(SQLITE);
        let store = self.open(&clock);
        self.lanes.insert(SQLITE, Lane { name: "sqlite", store, clock });
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.model.now = self.model.now.plus(time);
        self.lanes.iter().for_each(|lane| lane.clock.advance(time));
    }

    pub(crate) fn note(&mut self, what: impl Debug) {
        self.log.push(format!("{what:?}"));
    }

    /// A number that was not given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(crate) fn snapshot_id(&mut self) -> SnapshotId {
        SnapshotId::from_uuid(Uuid::from_u128(u128::from(self.number())))
    }

    /// Holds what every store answered against what the model did; gives the answers when there are some.
    pub(crate) fn agree<T, M>(&self, expected: &Answer<M>, got: Vec<Result<T>>) -> Check<Vec<T>> {
        let mut answers = Vec::new();
        for (lane, got) in self.lanes.iter().zip(got) {
            match (expected, got) {
                (Ok(_), Ok(answer)) => answers.push(answer),
                (Err(kind), Err(error)) if *kind == error.kind() => {}
                (Ok(_), Err(error)) => return Err(format!("{} refuses: {error:?}", lane.name)),
                (Err(kind), Err(error)) => return Err(format!("{} says {error:?}, not {kind:?}", lane.name)),
                (Err(kind), Ok(_)) => return Err(format!("{} accepts what is {kind:?}", lane.name)),
            }
        }
        Ok(answers)
    }

    /// The name a store has for a turn.
    pub(crate) fn turn_id(&self, turn: TurnIx, lane: usize) -> TurnId {
        turn_id(&self.model, turn, lane)
    }
}

pub(crate) fn turn_id(model: &Model, turn: TurnIx, lane: usize) -> TurnId {
    // Every handle on the SQLite file has the names the first one gave.
    model.turns[turn].grants[0].1[lane.min(SQLITE)].turn()
}

/// Fails unless two things are equal.
pub(crate) fn same<T: PartialEq + Debug>(what: impl Debug, got: &T, expected: &T) -> Check {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what:?}\n     got {got:?}\nexpected {expected:?}"))
}

/// Does something in every store.
macro_rules! everywhere {
    ($world:ident, |$store:ident, $lane:ident| $call:expr) => {{
        let mut answers = Vec::new();
        for $lane in 0..$world.lanes.len() {
            let $store = $world.lanes[$lane].store.clone();
            answers.push($call.await);
        }
        answers
    }};
}
pub(crate) use everywhere;
