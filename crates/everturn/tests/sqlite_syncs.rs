//! What is committed waits for the disk beside the writer. Until it is there nobody is told of it, by an answer or by a read.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use everturn::store::{
    At, BeginTurn, CreateSession, Durability, EndTurn, SqliteOptions, SqliteStore, Start, Store as _, StoreExt as _,
};
use everturn::{
    Begin, Changes, Clock, ErrorKind, Event, Input, InvocationId, Message, SessionKey, SessionRecord, SystemClock,
    Timestamp, TurnKey,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Long enough for an answer that comes too early; what is right never takes so long.
const SOON: Duration = Duration::from_millis(100);

/// A disk that takes its time: each sync says that it began, and ends when it is let.
struct SlowDisk {
    began: Receiver<()>,
    go_on: Sender<io::Result<()>>,
}

/// The system's own VFS, with syncs that can be held. They go through freely until the disk is asked to be slow, and after
/// being held they end as they are told to.
fn store(dir: &Path) -> (SqliteStore, Arc<Mutex<bool>>, SlowDisk) {
    let (said, began) = channel();
    let (go_on, goes_on) = channel();
    let (slow, goes_on) = (Arc::new(Mutex::new(false)), Mutex::new(goes_on));
    let is_slow = slow.clone();
    let sync = move |log: &Path| {
        if *is_slow.lock().unwrap() {
            said.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap()?;
        }
        std::fs::OpenOptions::new().write(true).open(log)?.sync_data()
    };
    let store = SqliteOptions::new(dir.join("s.db")).vfs_with_sync("unix", sync).open().unwrap();
    (store, slow, SlowDisk { began, go_on })
}

fn turn(session: &SessionKey, key: &str) -> BeginTurn {
    let mut turn =
        BeginTurn::new(Start::Session(session.clone()), InvocationId::new("i").unwrap(), Input::text("hello"));
    turn.key = Some(TurnKey::new(key).unwrap());
    turn
}

fn done() -> Changes {
    Changes::new().event(Event::model("a", Message::model("done")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_told_nobody_before_it_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let key = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let begun = store.begin(turn(&key, "k")).await.unwrap().begun().unwrap();
    *slow.lock().unwrap() = true;
    let (ending, reading, repeating) = (store.clone(), store.clone(), store.clone());
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(begun.fence, done())).await.unwrap() });
    tokio::task::spawn_blocking(move || disk.began.recv().unwrap()).await.unwrap();

    // It is committed, and the disk has it not.
    let (read_key, repeated_key) = (key.clone(), key.clone());
    let mut read = tokio::spawn(async move { reading.existing(&read_key).await.unwrap() });
    let mut repeated = tokio::spawn(async move { repeating.begin(turn(&repeated_key, "k")).await.unwrap() });
    assert!(timeout(SOON, &mut end).await.is_err(), "the end was acknowledged too early");
    assert!(timeout(SOON, &mut read).await.is_err(), "the end could be read too early");
    assert!(timeout(SOON, &mut repeated).await.is_err(), "a repeated key was told of the end too early");

    *slow.lock().unwrap() = false;
    disk.go_on.send(Ok(())).unwrap();
    let receipt = end.await.unwrap();
    assert_eq!(read.await.unwrap().head, receipt.point);
    assert!(matches!(repeated.await.unwrap(), Begin::Ended(_)));
}

/// A begin catches up with what others wrote, and may see an end that waits for the disk: what it starts from is told by nobody
/// who did not wait as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_begins_after_an_unfinished_end_does_not_tell_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let key = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let first = store.begin(turn(&key, "1")).await.unwrap().begun().unwrap();
    store.end(EndTurn::completed(first.fence, done())).await.unwrap();
    let second = store.begin(turn(&key, "2")).await.unwrap().begun().unwrap();
    *slow.lock().unwrap() = true;
    let ending = store.clone();
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(second.fence, done())).await.unwrap() });
    tokio::task::spawn_blocking(move || disk.began.recv().unwrap()).await.unwrap();

    let third = store.begin(turn(&key, "3")).await.unwrap().begun().unwrap();
    for point in [third.from, third.point] {
        let read = timeout(SOON, store.state(At::Point(key.clone(), point))).await;
        assert!(read.is_err(), "what is not on disk was read at {point}");
    }
    assert!(timeout(SOON, &mut end).await.is_err(), "the end was acknowledged too early");

    *slow.lock().unwrap() = false;
    disk.go_on.send(Ok(())).unwrap();
    assert_eq!(end.await.unwrap().point, third.from);
    let state = store.state(At::Point(key.clone(), third.point)).await.unwrap().unwrap();
    assert_eq!(state.messages().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_does_not_wait_for_the_disk_that_others_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let [first, second] = ["s", "t"].map(|id| SessionKey::of("a", "u", id).unwrap());
    for key in [&first, &second] {
        store.create(CreateSession::at(key.clone())).await.unwrap();
    }
    let begun = store.begin(turn(&first, "k")).await.unwrap().begun().unwrap();
    *slow.lock().unwrap() = true;
    let ending = store.clone();
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(begun.fence, done())).await.unwrap() });
    tokio::task::spawn_blocking(move || disk.began.recv().unwrap()).await.unwrap();

    let other = timeout(Duration::from_secs(30), store.begin(turn(&second, "k"))).await;
    let other = other.expect("a begin waited for the disk").unwrap().begun().unwrap();
    assert!(timeout(SOON, &mut end).await.is_err(), "the end was acknowledged too early");
    *slow.lock().unwrap() = false;
    disk.go_on.send(Ok(())).unwrap();
    end.await.unwrap();
    assert!(store.end(EndTurn::completed(other.fence, done())).await.unwrap().on_head);
}

/// Has a session created that waits for the disk, until the disk goes on.
async fn keep_the_disk_busy(
    store: &SqliteStore,
    slow: &Mutex<bool>,
    disk: SlowDisk,
) -> (JoinHandle<everturn::Result<SessionRecord>>, SlowDisk) {
    *slow.lock().unwrap() = true;
    let creating = store.clone();
    let key = SessionKey::of("a", "u", "keeps the disk busy").unwrap();
    let create = tokio::spawn(async move { creating.create(CreateSession::at(key)).await });
    let began = tokio::task::spawn_blocking(move || {
        disk.began.recv().unwrap();
        disk
    });
    let disk = began.await.unwrap();
    *slow.lock().unwrap() = false;
    (create, disk)
}

/// What comes of a future at once, without anybody else being waited for.
async fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut future = std::pin::Pin::new(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A clock that counts the transactions of the writer's thread: each looks at the uptime once.
#[derive(Debug, Default)]
struct Witness {
    clock: SystemClock,
    by_writer: AtomicUsize,
}

impl Witness {
    fn by_writer(&self) -> usize {
        self.by_writer.load(Ordering::Relaxed)
    }
}

impl Clock for Witness {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn uptime(&self) -> Duration {
        if thread::current().name() == Some("everturn-write") {
            self.by_writer.fetch_add(1, Ordering::Relaxed);
        }
        self.clock.uptime()
    }

    fn boot_id(&self) -> &str {
        self.clock.boot_id()
    }

    fn uuid(&self) -> uuid::Uuid {
        self.clock.uuid()
    }
}

fn watched(dir: &Path, durability: Durability) -> (SqliteStore, Arc<Witness>) {
    let witness = Arc::<Witness>::default();
    let options = SqliteOptions::new(dir.join("s.db")).durability(durability).clock(witness.clone());
    (options.open().unwrap(), witness)
}

/// Whoever is answered by the writer's thread may find it still at its work, on a machine that has other things to do.
async fn let_pen_be_put_down() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// A thread that runs many tasks is kept by a begin only as long as a plain turn takes.
#[tokio::test]
async fn short_begins_are_written_by_their_callers_and_long_ones_are_not() {
    let large: String = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_string()).collect();
    let dir = tempfile::tempdir().unwrap();
    let (store, witness) = watched(dir.path(), Durability::PowerSafe);
    let session = |i: usize| SessionKey::of("a", "u", &i.to_string()).unwrap();
    for i in 0..20 {
        store.create(CreateSession::at(session(i))).await.unwrap();
    }
    let_pen_be_put_down().await;
    let mut by_writer = [0, 0];
    for i in 0..20 {
        let text = if i < 10 { "hi" } else { &large };
        let before = witness.by_writer();
        let begin = BeginTurn::new(Start::Session(session(i)), InvocationId::new("i").unwrap(), Input::text(text));
        store.begin(begin).await.unwrap();
        by_writer[i / 10] += witness.by_writer() - before;
    }
    assert!(by_writer[0] < 4 && by_writer[1] == 10, "of 10 short and 10 long begins the writer wrote {by_writer:?}");
}

/// Nobody's thread is kept by the disk, but an end is committed before its caller's next task runs.
#[tokio::test]
async fn ends_are_committed_by_their_callers() {
    for durability in [Durability::PowerSafe, Durability::ProcessSafe] {
        let dir = tempfile::tempdir().unwrap();
        let (store, witness) = watched(dir.path(), durability);
        let key = SessionKey::of("a", "u", "s").unwrap();
        store.create(CreateSession::at(key.clone())).await.unwrap();
        let_pen_be_put_down().await;
        let before = witness.by_writer();
        for i in 0..20 {
            let begun = store.begin(turn(&key, &i.to_string())).await.unwrap().begun().unwrap();
            assert!(store.end(EndTurn::completed(begun.fence, done())).await.unwrap().on_head);
        }
        let by_writer = witness.by_writer() - before;
        assert!(by_writer < 10, "of 20 turns' writes the writer made {by_writer} ({durability:?})");
        assert_eq!(store.head_state(&key).await.unwrap().turns(), 20);
    }
}

/// SQLite waits for another program by sleeping, which on a caller's thread would keep all its tasks.
#[tokio::test]
async fn another_program_that_holds_the_file_is_not_waited_for_by_callers() {
    let dir = tempfile::tempdir().unwrap();
    let (store, witness) = watched(dir.path(), Durability::PowerSafe);
    let key = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let begun = store.begin(turn(&key, "1")).await.unwrap().begun().unwrap();
    let_pen_be_put_down().await;
    let other = rusqlite::Connection::open(dir.path().join("s.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut end = store.end(EndTurn::completed(begun.fence, done()));
    let start = Instant::now();
    assert!(at_once(&mut end).await.is_none(), "it was written while another program held the file");
    // SQLite would have waited for half a minute.
    assert!(start.elapsed() < Duration::from_secs(10), "the caller's thread was kept for {:?}", start.elapsed());
    other.execute_batch("COMMIT").unwrap();
    let before = witness.by_writer();
    assert!(end.await.unwrap().on_head);
    assert_eq!(witness.by_writer(), before + 1, "the writer's thread did not write it");
    store.begin(turn(&key, "2")).await.unwrap().begun().unwrap();
}

/// Whoever ends while the disk is busy with others does not wait to be committed, and shares the next wait for the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_while_the_disk_is_busy_share_its_next_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let mut fences = Vec::new();
    for i in 0..4 {
        let key = SessionKey::of("a", "u", &i.to_string()).unwrap();
        store.create(CreateSession::at(key.clone())).await.unwrap();
        fences.push(store.begin(turn(&key, "k")).await.unwrap().begun().unwrap().fence);
    }
    let (create, disk) = keep_the_disk_busy(&store, &slow, disk).await;
    let before = store.stats();
    let mut ends: Vec<_> = fences.into_iter().map(|fence| store.end(EndTurn::completed(fence, done()))).collect();
    for end in &mut ends {
        assert!(at_once(end).await.is_none());
    }
    while store.stats().writes < before.writes + 4 {
        tokio::task::yield_now().await;
    }
    for end in &mut ends {
        assert!(at_once(end).await.is_none(), "an end was acknowledged while the disk was busy");
    }
    disk.go_on.send(Ok(())).unwrap();
    create.await.unwrap().unwrap();
    for end in ends {
        assert!(end.await.unwrap().on_head);
    }
    // One for the session and one for all ends, or two if one of them was just not there yet.
    assert!(store.stats().syncs <= before.syncs + 3, "{} for 4 ends", store.stats().syncs - before.syncs);
}

/// A system tells of a failed sync once: whoever syncs next must not take another's failure for its own success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_after_a_sync_of_somebody_else_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slow, disk) = store(dir.path());
    let first = SessionKey::of("a", "u", "s").unwrap();
    store.create(CreateSession::at(first.clone())).await.unwrap();
    let begun = store.begin(turn(&first, "k")).await.unwrap().begun().unwrap();
    let (create, disk) = keep_the_disk_busy(&store, &slow, disk).await;
    let ending = store.clone();
    let mut end = tokio::spawn(async move { ending.end(EndTurn::completed(begun.fence, done())).await });
    assert!(timeout(SOON, &mut end).await.is_err(), "the end did not wait for the sync before it");
    disk.go_on.send(Err(io::Error::other("the disk is broken"))).unwrap();
    // Both are committed, and may be on disk all the same.
    assert_eq!(create.await.unwrap().unwrap_err().kind(), ErrorKind::UnknownOutcome);
    assert_eq!(end.await.unwrap().unwrap_err().kind(), ErrorKind::UnknownOutcome);
    // Nobody is told of either until the store has been opened anew and knows what is on disk.
    assert_eq!(store.existing(&first).await.unwrap_err().kind(), ErrorKind::Unavailable);
    store.reopen().await.unwrap();
    store.existing(&first).await.unwrap();
}
