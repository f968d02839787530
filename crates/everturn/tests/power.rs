//! What a power cut, a failing disk and a full one cost: nothing that was acknowledged.
//!
//! The store works through a VFS that records every write and sync, so that each moment at which the power could have
//! gone can be tried afterwards, with whatever the disk's caches may have kept: nothing, a random part, torn pages.
//! Prevented are: an acknowledgement before its fsync; a file that no longer opens, or that opens with half a batch; a
//! checkpoint that drops the log before the database is on disk; a store that goes on after a failed fsync, whose
//! pages the kernel has already forgotten; a stream with a gap in the middle; and a full disk that takes the store down
//! for good.
//!
//! `EVERTURN_POWER_ALL=1` tries every moment, `EVERTURN_SEED` picks other random parts.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn::store::{
    At, BeginTurn, Busy, ChunkQuery, Commit, CreateSession, EndTurn, EventQuery, ForkSession, KeepChunks, ListSessions,
    SqliteOptions, SqliteStore, Start, StepTurn, Store, StoreExt, UpdateSession, VerifyScope,
};
use everturn::{
    Artifact, Begun, Changes, Digest, ErrorKind, Event, Fence, Input, Message, NewSnapshot, Part, Point, Position,
    Result, SessionId, SessionKey, SnapshotEvent, SnapshotId, StateDelta, TurnId,
};
use everturn_testvfs::{FaultVfs, Loss, Trace};
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};
use support::{Rng, all_events, invocation, json, key, setting};
use uuid::Uuid;

const FILE: &str = "sessions.db";

/// Turns from this number on belong to a session that is purged.
const PURGED: u64 = 9000;

/// What was acknowledged.
#[derive(Debug, Serialize, Deserialize)]
enum Ack {
    /// The state at a point.
    Point {
        session: String,
        point: Point,
        digest: Digest,
    },
    /// A turn on its session's line, with its key in the user's scope.
    Turn {
        session: String,
        n: u64,
    },
    /// A turn with a stream, of which so many chunks came before a durable write.
    Streamed {
        session: String,
        turn: TurnId,
        durable: u64,
    },
    Titled {
        session: String,
        title: String,
    },
    /// Not an acknowledgement: from now on the session may be gone.
    Deleting {
        session: String,
    },
    Deleted {
        session: String,
    },
}

fn options(vfs: &FaultVfs, dir: &Path) -> SqliteOptions {
    let disk = vfs.clone();
    SqliteOptions::new(dir.join(FILE)).vfs_with_sync(vfs.name(), move |log| disk.sync_file(log))
}

fn open(vfs: &FaultVfs, dir: &Path) -> Result<SqliteStore> {
    options(vfs, dir).open()
}

fn session(id: &str) -> SessionKey {
    key("ann", id)
}

async fn begin(store: &SqliteStore, session: &SessionKey) -> Result<Begun> {
    let turn = BeginTurn::new(Start::Session(session.clone()), invocation("work"), Input::text("go on"));
    store.begin(turn.busy(Busy::Refuse)).await?.begun()
}

fn finish(fence: Fence, n: u64) -> EndTurn {
    // Some are so long that they go to their table at once.
    let noise = Rng::new(n).letters(if n % 7 == 2 { 12_000 } else { 0 });
    let text = Message::model(format!("did {n} {noise}"));
    let mark = StateDelta::new().set(format!("user:t{n}"), json(n.to_string()));
    let mut changes = Changes::new().event(Event::model("agent", text));
    if n.is_multiple_of(4) {
        changes = changes.artifact(Artifact::new("report", vec![Part::text("word ".repeat(n as usize % 900))]));
    }
    if n.is_multiple_of(3) {
        changes = changes.custom(json(format!("{{\"n\":{n},\"same\":\"{}\"}}", "x".repeat(600))));
    }
    EndTurn::completed(fence, changes).scopes(mark).snapshot(NewSnapshot::new(SnapshotId::from_uuid(Uuid::now_v7())))
}

/// A store whose acknowledgements go into the trace, each right after it came.
struct Worker {
    vfs: FaultVfs,
    store: Arc<SqliteStore>,
}

impl Worker {
    fn ack(&self, ack: &Ack) {
        self.vfs.mark(serde_json::to_string(ack).expect("it can be written"));
    }

    fn point(&self, session: &SessionKey, point: Point, digest: Digest) {
        self.ack(&Ack::Point { session: session.id.to_string(), point, digest });
    }

    async fn create(&self, session: &SessionKey) -> Result<()> {
        self.store.create(CreateSession::at(session.clone())).await?;
        let state = self.store.head_state(session).await?;
        self.point(session, state.point(), state.digest());
        Ok(())
    }

    async fn turn(&self, session: &SessionKey, n: u64) -> Result<()> {
        let begun = begin(&self.store, session).await?;
        let streamed = n % 4;
        for i in 0..streamed {
            let chunk = json(format!("\"chunk {i} of {n}\""));
            self.store.keep_chunks(KeepChunks::new(begun.fence, i, vec![chunk])).await?;
            self.ack(&Ack::Streamed { session: session.id.to_string(), turn: begun.turn, durable: 0 });
        }
        if n % 5 == 1 {
            let changes = Changes::new().event(Event::model("agent", Message::model("thinking ".repeat(200))));
            let step = StepTurn::new(begun.fence, changes).event(SnapshotEvent::ToolIterationEnd);
            let receipt = self.store.step(step).await?;
            self.point(session, receipt.point, receipt.digest);
        }
        let receipt = self.store.end(finish(begun.fence, n)).await?;
        self.point(session, receipt.point, receipt.digest);
        self.ack(&Ack::Turn { session: session.id.to_string(), n });
        self.ack(&Ack::Streamed { session: session.id.to_string(), turn: begun.turn, durable: streamed });
        Ok(())
    }

    async fn edit(&self, session: &SessionKey, n: u64) -> Result<()> {
        let edit = Changes::new().custom(json(format!("{{\"edit\":{n}}}")));
        let receipt = self.store.commit(Commit::new(session.clone(), edit)).await?;
        self.point(session, receipt.point, receipt.digest);
        Ok(())
    }

    async fn title(&self, session: &SessionKey, n: u64) -> Result<()> {
        let title = format!("title {n}");
        self.store.update(session, UpdateSession::title(&title)).await?;
        self.ack(&Ack::Titled { session: session.id.to_string(), title });
        Ok(())
    }

    async fn fork(&self, from: &SessionKey, id: &str) -> Result<SessionKey> {
        let id = SessionId::new(id).expect("it is short");
        let record = self.store.fork(ForkSession::at(At::head(from.clone())).id(id)).await?;
        let state = self.store.head_state(&record.key()).await?;
        self.point(&record.key(), record.head, state.digest());
        Ok(record.key())
    }

    async fn delete(&self, session: &SessionKey) -> Result<()> {
        self.ack(&Ack::Deleting { session: session.id.to_string() });
        self.store.purge(session).await?;
        self.ack(&Ack::Deleted { session: session.id.to_string() });
        Ok(())
    }
}

/// Some work of every kind in one session of its own, ending at the first error.
async fn work(worker: Arc<Worker>, who: u64, turns: u64) -> Result<()> {
    let mine = session(&format!("s{who}"));
    worker.create(&mine).await?;
    for i in 0..turns {
        let n = who * 1000 + i;
        worker.turn(&mine, n).await?;
        match i % 6 {
            1 => worker.title(&mine, n).await?,
            2 => worker.edit(&mine, n).await?,
            3 => {
                let fork = worker.fork(&mine, &format!("fork {n}")).await?;
                worker.turn(&fork, n + 500).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// What must be there, by the acknowledgements before a cut.
#[derive(Default)]
struct Expected {
    points: BTreeMap<(String, Point), Digest>,
    turns: BTreeSet<(String, u64)>,
    titles: BTreeMap<String, String>,
    /// Turns with streams, and how many chunks came before a durable write.
    streams: BTreeMap<(String, TurnId), u64>,
    deleted: BTreeSet<String>,
}

impl Expected {
    fn at(trace: &Trace, cut: usize) -> Self {
        let mut expected = Self::default();
        for mark in trace.marks_before(cut) {
            match serde_json::from_str(mark).expect("it is ours") {
                Ack::Point { session, point, digest } => {
                    expected.points.insert((session, point), digest);
                }
                Ack::Turn { session, n } => {
                    expected.turns.insert((session, n));
                }
                Ack::Streamed { session, turn, durable } => {
                    expected.streams.insert((session, turn), durable);
                }
                Ack::Titled { session, title } => {
                    expected.titles.insert(session, title);
                }
                Ack::Deleting { session } => {
                    expected.points.retain(|(of, _), _| *of != session);
                    expected.turns.retain(|(of, _)| *of != session);
                    expected.streams.retain(|(of, _), _| *of != session);
                }
                Ack::Deleted { session } => drop(expected.deleted.insert(session)),
            }
        }
        expected
    }
}

/// Compares a store with what was acknowledged; gives the turns that are on lines.
async fn check(store: &SqliteStore, expected: &Expected, what: &str) -> BTreeSet<u64> {
    let damage = store.verify(VerifyScope::All).await.unwrap_or_else(|e| panic!("{what}: {e:?}")).damage;
    assert_eq!(damage, None, "{what}");
    for ((id, point), digest) in &expected.points {
        let state = store.state(At::Point(session(id), *point)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        assert_eq!(state.map(|state| state.digest()), Some(*digest), "{what}: {id} at {point}");
    }
    for ((id, turn), durable) in &expected.streams {
        let left = match store.chunks(ChunkQuery::of(*turn)).await {
            Ok(page) => page.chunks,
            // Its begin was on its way as well.
            Err(error) if error.kind() == ErrorKind::NotFound && *durable == 0 => continue,
            Err(error) => panic!("{what}: {error:?}"),
        };
        assert!(left.len() as u64 >= *durable, "{what}: the stream of {turn} in {id} has lost its end");
        let whole = left.iter().zip(0..).all(|((position, _), n)| *position == Position::new(1, n));
        assert!(whole, "{what}: the stream of {turn} in {id} has a gap: {left:?}");
    }
    for (id, title) in &expected.titles {
        let record = store.existing(&session(id)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        // Later titles may have been on their way.
        let number = |title: &str| title["title ".len()..].parse::<u64>().expect("it is ours");
        assert!(record.title.is_some_and(|found| number(&found) >= number(title)), "{what}: {id}");
    }
    let owner = session("any");
    let list = ListSessions::of(owner.app.clone(), owner.user.clone()).limit(1000);
    let found = store.list(list).await.unwrap_or_else(|e| panic!("{what}: {e:?}")).items;
    let mut on_lines = BTreeSet::new();
    for record in &found {
        let events = all_events(store, EventQuery::of(record.key())).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        let texts = events.iter().flat_map(|event| &event.messages).map(Message::text);
        let said: BTreeSet<u64> =
            texts.filter_map(|text| text.strip_prefix("did ")?.split(' ').next()?.parse().ok()).collect();
        let acknowledged = expected.turns.iter().filter(|(of, _)| *of == *record.id.as_str()).map(|(_, n)| *n);
        let lost: Vec<_> = acknowledged.filter(|n| !said.contains(n)).collect();
        assert!(lost.is_empty(), "{what}: {} lost the turns {lost:?}", record.id);
        on_lines.extend(said);
    }
    let there: BTreeSet<_> = found.iter().map(|record| record.id.to_string()).collect();
    assert!(expected.turns.iter().all(|(id, _)| there.contains(id)), "{what}: a session is gone");
    assert!(expected.deleted.is_disjoint(&there), "{what}: a purged session came back");
    let scopes = store.scopes(&owner.app, Some(&owner.user)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let marked: BTreeSet<u64> = scopes.keys().map(|key| key["user:t".len()..].parse().expect("it is ours")).collect();
    // The turns of the session that is purged leave only their scopes behind, as they should.
    let torn: Vec<_> = on_lines.symmetric_difference(&marked).filter(|n| **n < PURGED).collect();
    assert!(torn.is_empty(), "{what}: turns with only an event or only a scope: {torn:?}");
    on_lines
}

/// Cuts the power at some moments of a trace, all of them if the environment says so.
async fn cut_power(trace: &Trace, stride: usize) {
    let seed: u64 = setting("EVERTURN_SEED", 1);
    let all = setting::<u8>("EVERTURN_POWER_ALL", 0) != 0;
    let cuts: Vec<_> = if all { (0..=trace.len()).collect() } else { trace.sync_points().collect() };
    let mut rng = Rng::new(seed);
    let mut tried = 0;
    for cut in cuts {
        let random = rng.next();
        let losses = [Loss::DropUnsynced, Loss::KeepRandom { seed: random }, Loss::Torn { seed: random }];
        for loss in losses {
            if !all && rng.below(stride) != 0 {
                continue;
            }
            tried += 1;
            let what = format!("cut {cut} of {}, {loss:?}", trace.len());
            let dir = tempfile::tempdir().expect("there is room");
            trace.crash_at(cut, loss).write_into(dir.path()).expect("there is room");
            let store = SqliteStore::open(dir.path().join(FILE)).unwrap_or_else(|e| panic!("{what}: {e:?}"));
            check(&store, &Expected::at(trace, cut), &what).await;
        }
    }
    assert!(tried > 5, "only {tried} cuts were tried: the trace is too short to test anything");
}

/// While a file is made, SQLite keeps what it takes to undo a first page that was written in part.
#[test]
fn a_store_opens_whose_making_was_cut_short() {
    let dir = tempfile::tempdir().expect("there is room");
    let vfs = FaultVfs::register("making");
    vfs.start_recording();
    drop(open(&vfs, dir.path()).expect("it opens"));
    let trace = vfs.trace();
    for cut in 0..=trace.len() {
        for seed in 0..8 {
            let left = tempfile::tempdir().expect("there is room");
            trace.crash_at(cut, Loss::Torn { seed }).write_into(left.path()).expect("there is room");
            let opened = SqliteStore::open(left.path().join(FILE));
            opened.unwrap_or_else(|e| panic!("cut {cut} of {}, seed {seed}: {e:?}", trace.len()));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_a_power_cut() {
    let dir = tempfile::tempdir().expect("there is room");
    let vfs = FaultVfs::register("power");
    vfs.start_recording();
    // Three times: closing a store and opening it again is the time of checkpoints.
    for life in 0..3 {
        let store = Arc::new(open(&vfs, dir.path()).expect("it opens"));
        let worker = Arc::new(Worker { vfs: vfs.clone(), store });
        let tasks: Vec<_> = (0..3).map(|task| tokio::spawn(work(worker.clone(), life * 3 + task, 8))).collect();
        let gone = session(&format!("gone {life}"));
        worker.create(&gone).await.expect("it works");
        worker.turn(&gone, PURGED + life).await.expect("it works");
        worker.delete(&gone).await.expect("it works");
        for task in tasks {
            task.await.expect("it does not panic").expect("the disk is fine");
        }
    }
    let trace = vfs.trace();
    let expected = Expected::at(&trace, trace.len());
    assert_eq!(expected.turns.len(), 9 * (8 + 1), "every turn was acknowledged");
    cut_power(&trace, 4).await;
}

/// Whether an error says that something was refused, or that it may have been kept.
fn is_told(error: &everturn::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_after_a_failed_fsync() {
    for nth in [1, 2, 3, 5, 8] {
        let dir = tempfile::tempdir().expect("there is room");
        let vfs = FaultVfs::register(&format!("fsync-{nth}"));
        vfs.start_recording();
        let store = Arc::new(open(&vfs, dir.path()).expect("it opens"));
        let worker = Arc::new(Worker { vfs: vfs.clone(), store: store.clone() });
        let first = session("first");
        worker.create(&first).await.expect("the disk is fine");
        worker.turn(&first, 1).await.expect("the disk is fine");

        vfs.fail_sync_after(nth);
        let tasks: Vec<_> = (1..4).map(|task| tokio::spawn(work(worker.clone(), task, 50))).collect();
        for task in tasks {
            let error = task.await.expect("it does not panic").expect_err("the disk has failed");
            assert!(is_told(&error), "{error:?}");
        }
        let before = Expected::at(&vfs.trace(), vfs.trace().len());

        // The disk works again, but what the kernel forgot nobody knows: closed until it is opened anew.
        vfs.heal();
        let error = begin(&store, &first).await.expect_err("the store is closed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("reopen"), "the text names the fix: {error}");
        let error = store.create(CreateSession::at(session("late"))).await.expect_err("the store is closed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

        store.reopen().await.expect("the disk works");
        let seen = check(&store, &before, &format!("reopened after sync {nth} failed")).await;
        let trace = vfs.trace();
        worker.turn(&first, 2).await.expect("the disk works");

        // What the reopened store showed is really there, whatever the disk's cache loses now.
        let after = tempfile::tempdir().expect("there is room");
        trace.crash_at(trace.len(), Loss::DropUnsynced).write_into(after.path()).expect("there is room");
        let kept = SqliteStore::open(after.path().join(FILE)).expect("it opens");
        let kept = check(&kept, &before, &format!("cut after the reopening, sync {nth}")).await;
        assert!(kept.is_superset(&seen), "shown after the reopening and not on disk: {:?}", &seen - &kept);
        cut_power(&vfs.trace(), 6).await;
    }
}

#[tokio::test]
async fn a_failed_write_closes_the_store_until_it_is_reopened() {
    let dir = tempfile::tempdir().expect("there is room");
    let vfs = FaultVfs::register("write");
    vfs.start_recording();
    let store = Arc::new(open(&vfs, dir.path()).expect("it opens"));
    let worker = Worker { vfs: vfs.clone(), store: store.clone() };
    let mine = session("mine");
    worker.create(&mine).await.expect("the disk is fine");
    for n in 1..6 {
        worker.turn(&mine, n * 2).await.expect("the disk is fine");
        vfs.fail_writes_after(n);
        let error = loop {
            if let Err(error) = worker.turn(&mine, n * 2 + 1).await {
                break error;
            }
        };
        assert!(is_told(&error), "{error:?}");
        let refused = error.kind() == ErrorKind::Unavailable;
        vfs.heal();
        let error = begin(&store, &mine).await.expect_err("the store is closed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        store.reopen().await.expect("the disk works");
        let trace = vfs.trace();
        let seen = check(&store, &Expected::at(&trace, trace.len()), "reopened after a failed write").await;
        assert!(!refused || !seen.contains(&(n * 2 + 1)), "what was told to be refused is there: {error:?}");
        // The turn whose end failed may be waiting for its end: nobody else will give it.
        for turn in store.running(None).await.expect("it can be read") {
            store.abort(everturn::store::TurnRef::Turn(turn.turn)).await.expect("it can be aborted");
        }
    }
}

#[tokio::test]
async fn a_full_disk_rolls_back_and_the_store_goes_on() {
    let dir = tempfile::tempdir().expect("there is room");
    let vfs = FaultVfs::register("full");
    vfs.start_recording();
    let store = Arc::new(open(&vfs, dir.path()).expect("it opens"));
    let worker = Worker { vfs: vfs.clone(), store: store.clone() };
    let mine = session("mine");
    worker.create(&mine).await.expect("there is room");
    worker.turn(&mine, 1).await.expect("there is room");
    let begun = begin(&store, &mine).await.expect("there is room");
    let before = store.existing(&mine).await.expect("it is there");

    let size = |name: &str| std::fs::metadata(dir.path().join(name)).map_or(0, |file| file.len());
    vfs.disk_limit(size(FILE) + size(&format!("{FILE}-wal")) + 1);
    let mut end = finish(begun.fence, 2);
    let big: String = (0..9000).map(|i| format!("{i:x} ")).collect();
    end.changes = end.changes.event(Event::model("agent", Message::model(&big)));
    let error = store.end(end.clone()).await.expect_err("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let mut create = CreateSession::at(session("other"));
    create.changes = Changes::new().event(Event::model("agent", Message::model(&big)));
    let error = store.create(create.clone()).await.expect_err("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

    // Nothing of it is there, and what was there can be read.
    assert_eq!(store.existing(&mine).await.expect("it can be read"), before);
    assert_eq!(store.session(&session("other")).await.expect("it can be read"), None);
    let trace = vfs.trace();
    let on_lines = check(&store, &Expected::at(&trace, trace.len()), "the disk is full").await;
    assert_eq!(on_lines, BTreeSet::from([1]));

    // Once there is room the very same calls go through, without a reopening.
    vfs.heal();
    assert!(store.end(end).await.expect("there is room again").on_head);
    store.create(create).await.expect("there is room again");
    let reread = options(&vfs, dir.path()).poll(Duration::from_millis(20)).open().expect("it opens");
    let on_lines = check(&reread, &Expected::at(&trace, trace.len()), "there is room again").await;
    assert_eq!(on_lines, BTreeSet::from([1, 2]));
}

/// SQLite counts what it wrote to its file as moved there before that is on disk, and would not move it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_disk_lost_of_the_file_is_moved_there_again() {
    let dir = tempfile::tempdir().expect("there is room");
    let vfs = FaultVfs::register("file");
    vfs.start_recording();
    let store = Arc::new(open(&vfs, dir.path()).expect("it opens"));
    let worker = Worker { vfs: vfs.clone(), store: store.clone() };
    let mine = session("mine");
    worker.create(&mine).await.expect("the disk is fine");
    for n in 0..20 {
        worker.turn(&mine, n).await.expect("the disk is fine");
    }
    // As long as somebody reads, only what was there before is moved. SQLite syncs the file with the rest.
    let file = dir.path().join(FILE);
    let connect = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags_and_vfs(&file, flags, vfs.name()).expect("it opens")
    };
    let (reading, moving) = (connect(), connect());
    reading.execute_batch("BEGIN; SELECT count(*) FROM session;").expect("it reads");
    for n in 20..40 {
        worker.turn(&mine, n).await.expect("the disk is fine");
    }
    let syncs = vfs.sync_count();
    let (log, moved): (u32, u32) = moving
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
        .expect("the disk is fine");
    assert!(moved > 50 && moved < log && vfs.sync_count() <= syncs + 1, "{moved} of {log} pages were moved");
    drop(reading);
    vfs.forget(&file);
    vfs.fail_sync_after(1);
    let error = worker.turn(&mine, 40).await.expect_err("the disk fails");
    assert!(is_told(&error), "{error:?}");

    // Not while anybody else has it open: with them the log is not read anew. The system tells them of the failure as well.
    let refused = store.reopen().await.expect_err("it is open elsewhere");
    assert!(refused.to_string().contains("close it there"), "{refused}");
    drop(moving);
    vfs.heal();
    store.reopen().await.expect("the disk works");
    check(&store, &Expected::at(&vfs.trace(), vfs.trace().len()), "reopened after the disk had failed").await;
    for turn in store.running(None).await.expect("it can be read") {
        store.abort(everturn::store::TurnRef::Turn(turn.turn)).await.expect("it can be aborted");
    }
    worker.turn(&mine, 41).await.expect("the disk works");
    let trace = vfs.trace();
    let after = tempfile::tempdir().expect("there is room");
    trace.crash_at(trace.len(), Loss::DropUnsynced).write_into(after.path()).expect("there is room");
    let kept = SqliteStore::open(after.path().join(FILE)).expect("it opens");
    check(&kept, &Expected::at(&trace, trace.len()), "cut after the reopening").await;
}
