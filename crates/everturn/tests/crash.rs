//! What a kill costs: nothing that was acknowledged.
//!
//! A child process works on one file with several tasks at once and says each receipt after its acknowledgement; it is
//! killed at a random moment, and the file is opened again. Prevented are: an acknowledgement that came before its
//! bytes were in the file; a turn of which only the events or only the scopes survive; a half-written batch that is
//! read; records that no longer match their digests; a stream with a gap, or without its acknowledged end; and a session
//! that stays locked for a lease's length because its owner could not say goodbye.
//!
//! `EVERTURN_ROUNDS` sets the number of kills, `EVERTURN_SEED` the moments.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everturn::store::{
    At, BeginTurn, Busy, ChunkQuery, Commit, CreateSession, Durability, EndTurn, EventQuery, ForkSession, KeepChunks,
    ListSessions, SqliteOptions, SqliteStore, Start, StepTurn, Store, StoreExt, VerifyScope,
};
use everturn::{
    Begin, Changes, Digest, EndStatus, Event, Fence, FinishReason, Input, Message, NewSnapshot, Outcome, Point,
    Position, Receipt, SessionId, SessionKey, SnapshotEvent, SnapshotId, StateDelta, ToolEntry, ToolPhase, TurnId,
    TurnKey, TurnStatus,
};
use serde::{Deserialize, Serialize};
use support::{Child, Rng, all_events, invocation, json, key, say, setting, var};
use uuid::Uuid;

const FILE: &str = "EVERTURN_CRASH_FILE";
const ROUND: &str = "EVERTURN_CRASH_ROUND";

const STRICT: &str = "sessions.db";
const RELAXED: &str = "relaxed.db";

/// A file is killed so often before a new one begins: verifying stays cheap, recovery of a recovered file is seen.
const KILLS_PER_FILE: u64 = 5;

/// So long that a test which waited for it would fail by its own deadline.
const LEASE: Duration = Duration::from_secs(60);

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Begun {
        session: String,
        turn: TurnId,
        n: u64,
    },
    Streamed {
        session: String,
        turn: TurnId,
        chunks: u64,
    },
    Written {
        session: String,
        n: u64,
        receipt: Receipt,
    },
    Completed {
        session: String,
        n: u64,
        receipt: Receipt,
    },
    Forked {
        session: String,
        head: Point,
        digest: Digest,
    },
    /// From now on this session with its turn may be gone; then it is.
    Deleting {
        session: String,
        n: u64,
    },
    Deleted {
        session: String,
    },
}

/// A kill costs nothing whether or not one waits for the disk; every other file does not.
fn open(path: &Path) -> SqliteStore {
    let relaxed = path.file_name().is_some_and(|name| name == RELAXED);
    let durability = if relaxed { Durability::ProcessSafe } else { Durability::PowerSafe };
    SqliteOptions::new(path).lease(LEASE).durability(durability).open().expect("a file that was killed opens")
}

fn begin(session: SessionKey, n: u64) -> BeginTurn {
    let start = Start::Session(session);
    BeginTurn::new(start, invocation("work"), Input::text(format!("do {n}"))).busy(Busy::Refuse).key(turn_key(n))
}

/// Whether turn `n` is one of those that fail.
fn fails(n: u64) -> bool {
    n % 7 == 5
}

fn turn_key(n: u64) -> TurnKey {
    TurnKey::new(format!("key {n}")).expect("it is short")
}

fn done(n: u64) -> Event {
    // Some are so long that they go to their table at once.
    let noise = Rng::new(n).letters(if n % 5 == 4 { 12_000 } else { 0 });
    Event::model("agent", Message::model(format!("did {n} {noise}")))
}

fn mark(n: u64) -> StateDelta {
    StateDelta::new().set(format!("user:t{n}"), json(n.to_string()))
}

/// The end of turn `n`: its event and its key in the user's scope, by one of the two ways there are.
fn completed(fence: Fence, n: u64) -> EndTurn {
    let end = if n.is_multiple_of(2) {
        EndTurn::completed(fence, Changes::new().event(done(n))).scopes(mark(n))
    } else {
        EndTurn::completed(fence, Changes::new().event(done(n).with_state(mark(n))))
    };
    end.snapshot(NewSnapshot::new(SnapshotId::from_uuid(Uuid::now_v7())))
}

async fn work(store: &SqliteStore, session: &SessionKey, n: u64) {
    let name = session.id.to_string();
    let begun = store.begin(begin(session.clone(), n)).await.expect("the branch is free").begun().expect("it is new");
    say(&Said::Begun { session: name.clone(), turn: begun.turn, n });
    for i in 0..n % 4 {
        let chunk = json(format!("\"chunk {i} of {n}\""));
        store.keep_chunks(KeepChunks::new(begun.fence, i, vec![chunk])).await.expect("the fence holds");
        say(&Said::Streamed { session: name.clone(), turn: begun.turn, chunks: i + 1 });
    }
    if n.is_multiple_of(3) {
        let call = ToolEntry::new("c1", "look", ToolPhase::Started, Some(json("{\"q\":1}")));
        let step = StepTurn::new(begun.fence, Changes::new().event(Event::new("agent").with_state(mark(n))).tool(call))
            .event(SnapshotEvent::ToolIterationEnd)
            .snapshot(NewSnapshot::new(SnapshotId::from_uuid(Uuid::now_v7())));
        let receipt = store.step(step).await.expect("the fence holds");
        say(&Said::Written { session: name.clone(), n, receipt });
    }
    if fails(n) {
        let failed = Outcome::finished(FinishReason::Failed);
        let mut end = EndTurn::voided(begun.fence, EndStatus::Failed, failed);
        end.changes = Changes::new().event(done(n).with_state(mark(n)));
        store.end(end).await.expect("a turn may fail");
    } else {
        let receipt = store.end(completed(begun.fence, n)).await.expect("the fence holds");
        say(&Said::Completed { session: name.clone(), n, receipt });
    }
    if n.is_multiple_of(5) {
        let edit = Changes::new().event(Event::new("editor")).custom(json(format!("{{\"edited\":{n}}}")));
        let receipt = store.commit(Commit::new(session.clone(), edit)).await.expect("nothing runs");
        say(&Said::Written { session: name, n, receipt });
    }
}

async fn fork(store: &SqliteStore, from: &SessionKey, n: u64) {
    let id = SessionId::new(format!("fork {n}")).expect("it is short");
    let fork = ForkSession::at(At::head(from.clone())).id(id);
    let record = store.fork(fork).await.expect("the head can be forked");
    let state = store.head_state(&record.key()).await.expect("the fork has a head");
    say(&Said::Forked { session: record.id.to_string(), head: record.head, digest: state.digest() });
    work(store, &record.key(), n).await;
    if n.is_multiple_of(3) {
        say(&Said::Deleting { session: record.id.to_string(), n });
        if n.is_multiple_of(2) {
            store.purge(&record.key()).await.expect("it can be purged");
        } else {
            assert!(store.delete(&record.key()).await.expect("it can be deleted"));
        }
        say(&Said::Deleted { session: record.id.to_string() });
    }
}

#[test]
#[ignore = "this is the child that the test beside it kills"]
fn child() {
    let (Some(file), Some(round)) = (var(FILE), var(ROUND)) else { return };
    let round: u64 = round.parse().expect("the parent counts");
    let store = Arc::new(open(Path::new(&file)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("it starts");
    let tasks: Vec<_> = (0..4_u64)
        .map(|task| {
            let store = store.clone();
            runtime.spawn(async move {
                let mine = key("ann", &format!("s{}", task % 3));
                if task < 3 {
                    store.open_or_create(CreateSession::at(mine.clone())).await.expect("it can be opened");
                }
                for n in (round * 4 + task) * 10_000.. {
                    if task < 3 {
                        work(&store, &mine, n).await;
                    } else if store.session(&mine).await.expect("it can be read").is_some() {
                        fork(&store, &mine, n).await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).expect("a task works until the kill");
    }
}

/// Everything that was acknowledged on one file, over all its kills.
#[derive(Default)]
struct Acknowledged {
    points: BTreeMap<(String, Point), Digest>,
    completed: BTreeMap<(String, u64), Receipt>,
    /// What the last process worked on, and the turn each session was seen to begin and not to end.
    open: BTreeMap<String, Option<(u64, TurnId)>>,
    deleted: BTreeSet<String>,
    /// How many chunks the last process has kept of its turns' streams.
    streamed: BTreeMap<(String, TurnId), u64>,
    /// Turns whose session was to be deleted: what they wrote into scopes stays.
    left: BTreeSet<u64>,
}

impl Acknowledged {
    fn note(&mut self, said: Said) {
        match said {
            Said::Begun { session, turn, n } => {
                self.open.insert(session, Some((n, turn)));
            }
            Said::Streamed { session, turn, chunks } => {
                self.streamed.insert((session, turn), chunks);
            }
            Said::Written { session, receipt, .. } => {
                self.points.insert((session, receipt.point), receipt.digest);
            }
            Said::Completed { session, n, receipt } => {
                assert!(receipt.on_head, "nobody else moves this head");
                self.points.insert((session.clone(), receipt.point), receipt.digest);
                self.completed.insert((session.clone(), n), receipt);
                self.open.insert(session, None);
            }
            Said::Forked { session, head, digest } => {
                self.open.insert(session.clone(), None);
                self.points.insert((session, head), digest);
            }
            Said::Deleting { session, n } => {
                self.points.retain(|(of, _), _| *of != session);
                self.completed.retain(|(of, _), _| *of != session);
                self.streamed.retain(|(of, _), _| *of != session);
                self.open.remove(&session);
                self.left.insert(n);
            }
            Said::Deleted { session } => drop(self.deleted.insert(session)),
        }
    }
}

async fn check(store: &SqliteStore, known: &Acknowledged) {
    let verified = store.verify(VerifyScope::All).await.expect("everything can be read");
    assert_eq!(verified.damage, None);

    for ((session, point), digest) in &known.points {
        let state = store.state(At::Point(key("ann", session), *point)).await.expect("the point can be read");
        let state = state.unwrap_or_else(|| panic!("{session} at {point} was acknowledged and is gone"));
        assert_eq!(state.digest(), *digest, "{session} at {point}");
    }

    for ((session, turn), chunks) in &known.streamed {
        let page = store.chunks(ChunkQuery::of(*turn)).await.expect("the stream can be read");
        let places: Vec<_> = page.chunks.iter().map(|(position, _)| *position).collect();
        assert!(
            places.len() as u64 >= *chunks,
            "{chunks} chunks of {turn} in {session} were kept, {places:?} are left"
        );
        assert!(places.iter().copied().eq((0..).map(|n| Position::new(1, n)).take(places.len())), "a gap: {places:?}");
    }

    let mut said = BTreeMap::new();
    for session in sessions(store).await {
        let events = all_events(store, EventQuery::of(session.clone())).await.expect("the line can be read");
        let mut mine = BTreeSet::new();
        for text in events.iter().flat_map(|event| &event.messages).map(Message::text) {
            if let Some(n) = text.strip_prefix("did ").and_then(|rest| rest.split(' ').next()) {
                assert!(mine.insert(n.parse::<u64>().expect("the child counts")), "{session} says {n} twice");
            }
        }
        said.insert(session.id.to_string(), mine);
    }
    let back: Vec<_> = known.deleted.iter().filter(|session| said.contains_key(*session)).collect();
    assert!(back.is_empty(), "deleted sessions came back: {back:?}");
    for (session, n) in known.completed.keys() {
        assert!(said[session].contains(n), "turn {n} of {session} was acknowledged and is not on its line");
    }

    // A turn's event and its key in the user's scope are both there or both not: the failed ones have neither.
    let scopes = store.scopes(&key("ann", "s0").app, Some(&key("ann", "s0").user)).await.expect("scopes can be read");
    let marked: BTreeSet<u64> = scopes.keys().map(|key| key["user:t".len()..].parse().expect("it is ours")).collect();
    let on_lines: BTreeSet<u64> = said.values().flatten().copied().collect();
    let torn: Vec<_> = marked.symmetric_difference(&on_lines).filter(|n| !known.left.contains(n)).collect();
    assert!(torn.is_empty(), "turns with only an event or only a scope: {torn:?}");
    assert!(!on_lines.iter().any(|n| fails(*n)), "a failed turn is on a line");
}

async fn sessions(store: &SqliteStore) -> Vec<SessionKey> {
    let owner = key("ann", "any");
    let page = store.list(ListSessions::of(owner.app, owner.user).limit(1000)).await.expect("sessions can be listed");
    assert_eq!(page.next, None, "a file of this test has few sessions");
    page.items.iter().map(|session| session.key()).collect()
}

/// Nobody waits for a dead process: every session can be written to at once, and a retried key finds its turn.
async fn go_on(store: &SqliteStore, known: &mut Acknowledged, rng: &mut Rng) {
    for (turn, status) in store.running(None).await.expect("it can be read").iter().map(|t| (t.turn, t.status)) {
        assert_eq!(status, TurnStatus::Dead, "turn {turn} has no owner");
    }
    for (name, open) in std::mem::take(&mut known.open) {
        let session = key("ann", &name);
        let Some((n, turn)) = open.filter(|_| rng.percent(50)) else {
            let fresh = BeginTurn::new(Start::Session(session), invocation("next"), Input::text("next"));
            let begun = store.begin(fresh.busy(Busy::Refuse)).await.expect("the owner is dead");
            let begun = begun.begun().expect("it has no key");
            let outcome = Outcome::finished(FinishReason::Aborted);
            store.end(EndTurn::voided(begun.fence, EndStatus::Aborted, outcome)).await.expect("the fence holds");
            continue;
        };
        match store.begin(begin(session, n)).await.expect("the owner is dead") {
            Begin::Begun(begun) => {
                assert_eq!(begun.turn, turn, "a retried key takes its own turn over");
                assert_eq!(begun.fence.attempt(), 2);
                // One that would fail anyway stays open: it dies with this handle, and the next process goes past it.
                if !fails(n) {
                    let receipt = store.end(completed(begun.fence, n)).await.expect("the fence holds");
                    known.note(Said::Completed { session: name, n, receipt });
                }
            }
            Begin::Ended(ended) => assert_eq!(ended.turn, turn),
            Begin::Running(turn) => panic!("turn {turn} has no owner and is called running"),
        }
    }
    known.open.clear();
    // Those of turns that were taken over have begun anew.
    known.streamed.clear();
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_to_a_kill() {
    let rounds: u64 = setting("EVERTURN_ROUNDS", 200);
    let seed: u64 = setting("EVERTURN_SEED", 1);
    let mut acknowledged = 0;
    for first in (0..rounds).step_by(KILLS_PER_FILE as usize) {
        let dir = tempfile::tempdir().expect("there is room");
        let file = dir.path().join(if (first / KILLS_PER_FILE).is_multiple_of(2) { STRICT } else { RELAXED });
        let mut known = Acknowledged::default();
        for round in first..rounds.min(first + KILLS_PER_FILE) {
            println!("round {round} of seed {seed}");
            let mut rng = Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
            let child =
                Child::start("child", &[(FILE, file.to_str().expect("it is text")), (ROUND, &round.to_string())]);
            // Some are killed while they open the file, most after some acknowledgements.
            let lines = if rng.percent(10) { 0 } else { 1 + rng.below(60) };
            for _ in 0..lines {
                known.note(child.hear().expect("it works until it is killed"));
            }
            let pause = Duration::from_micros(rng.next() % if lines == 0 { 30_000 } else { 3_000 });
            let from = Instant::now();
            while from.elapsed() < pause {
                std::hint::spin_loop();
            }
            for said in child.kill() {
                known.note(said);
            }
            let store = open(&file);
            check(&store, &known).await;
            go_on(&store, &mut known, &mut rng).await;
        }
        check(&open(&file), &known).await;
        acknowledged += known.completed.len();
    }
    let rounds = usize::try_from(rounds).expect("few");
    assert!(
        acknowledged > rounds,
        "{acknowledged} turns were acknowledged in {rounds} rounds: hardly anything was tested"
    );
}
