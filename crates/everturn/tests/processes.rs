//! Several processes on one file.
//!
//! Prevented are: "database is locked" reaching a caller; a turn that is lost or doubled because two processes thought
//! they held one branch; a cached state that another process has outdated; a process that was stopped in its turn, wakes
//! up and writes over its successor; a session that nobody can use because its owner was killed; and a watcher that
//! sleeps through what another process wrote.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use everturn::store::conformance::Verdict;
use everturn::store::conformance::writers::{self, WhenBusy, WriterPlan, WriterReport};
use everturn::store::{
    At, BeginTurn, Busy, CreateSession, EndTurn, EventQuery, SqliteOptions, SqliteStore, Start, StepTurn, Store,
    StoreExt, VerifyScope, WatchEvent, WatchTarget,
};
use everturn::{
    Begun, BranchName, Changes, ErrorKind, Event, Input, Json, Message, NewSnapshot, Receipt, SessionKey, SnapshotId,
    SnapshotStatus, StateDelta, TurnStatus,
};
use serde::{Deserialize, Serialize};
use support::{Child, all_events, invocation, json, key, say, setting, told, var};
use tokio::time::timeout;
use uuid::Uuid;

const FILE: &str = "EVERTURN_PROCESS_FILE";
const ROLE: &str = "EVERTURN_PROCESS_ROLE";
const WHO: &str = "EVERTURN_PROCESS_WHO";
const TURNS: &str = "EVERTURN_PROCESS_TURNS";
const LEASE: &str = "EVERTURN_PROCESS_LEASE_MS";

/// Longer than anything here takes on a loaded machine, and shorter than the leases that must not be waited for.
const SOON: Duration = Duration::from_secs(30);
const LONG_LEASE: Duration = Duration::from_secs(600);

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Ready,
    Begun { turn: String, leased: bool },
    Ended(Receipt),
    Refused(String),
    Texts(Vec<String>),
    Wrote(WriterReport),
    Done,
}

fn open(path: &Path, lease: Duration) -> SqliteStore {
    SqliteOptions::new(path).lease(lease).poll(Duration::from_millis(20)).open().expect("the file opens")
}

fn shared() -> SessionKey {
    key("all", "shared")
}

fn begin(session: SessionKey, busy: Busy) -> BeginTurn {
    BeginTurn::new(Start::Session(session), invocation("work"), Input::text("go on")).busy(busy)
}

async fn begun(store: &SqliteStore, session: &SessionKey, busy: Busy) -> Begun {
    store.begin(begin(session.clone(), busy)).await.expect("the turn begins").begun().expect("it has no key")
}

fn says(text: impl AsRef<str>) -> Changes {
    Changes::new().event(Event::model("agent", Message::model(text)))
}

/// One turn that says who did it and which it is, and counts on in the custom state as it finds it.
async fn turn(store: &SqliteStore, session: &SessionKey, who: &str, i: usize) -> Receipt {
    let begun = begun(store, session, Busy::Wait(LONG_LEASE)).await;
    let state =
        store.state(At::Point(session.clone(), begun.point)).await.expect("it can be read").expect("it is ours");
    let count: u64 = state.custom().map_or(0, |custom| custom.to::<BTreeMap<String, u64>>().expect("ours")["count"]);
    let changes = says(format!("{who} {i}")).custom(json(format!("{{\"count\":{}}}", count + 1)));
    let mark = StateDelta::new().set(format!("user:{who} {i}"), Json::null());
    store.end(EndTurn::completed(begun.fence, changes).scopes(mark)).await.expect("the turn ends")
}

async fn said_on(store: &SqliteStore, session: SessionKey) -> Vec<String> {
    let events = all_events(store, EventQuery::of(session)).await.expect("the line can be read");
    let texts = events.iter().filter(|event| event.author == "agent").flat_map(|event| &event.messages);
    texts.map(Message::text).collect()
}

#[test]
#[ignore = "this is the child of the tests beside it"]
fn child() {
    let (Some(file), Some(role)) = (var(FILE), var(ROLE)) else { return };
    let lease = Duration::from_millis(setting(LEASE, 600_000));
    if role == "visitor" {
        return visitor(&file);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("it starts");
    runtime.block_on(async {
        if role == "opener" {
            return opener(Path::new(&file)).await;
        }
        let store = open(Path::new(&file), lease);
        match role.as_str() {
            "worker" => worker(store).await,
            "holder" => holder(&store).await,
            "contender" => contender(&store).await,
            "detached" => detached(&store).await,
            "writer" => writer(&store).await,
            "reader" => say(&Said::Texts(said_on(&store, shared()).await)),
            other => panic!("there is no role {other}"),
        }
    });
}

/// Turns in a session of its own and in the shared one, at the same time.
async fn worker(store: SqliteStore) {
    let store = std::sync::Arc::new(store);
    let who = var(WHO).expect("the parent names it");
    let turns = setting(TURNS, 0);
    say(&Said::Ready);
    told();
    let mine = {
        let (store, who) = (store.clone(), who.clone());
        tokio::spawn(async move {
            let session = key("all", &who);
            store.open_or_create(CreateSession::at(session.clone())).await.expect("it can be made");
            for i in 0..turns {
                assert!(turn(&store, &session, &format!("own {who}"), i).await.on_head);
            }
        })
    };
    store.open_or_create(CreateSession::at(shared())).await.expect("it can be made");
    for i in 0..turns {
        assert!(turn(&store, &shared(), &who, i).await.on_head);
    }
    mine.await.expect("its own session works as well");
    say(&Said::Done);
}

/// Opens a file that may not be there yet, four times at once, and begins a turn through each handle.
async fn opener(file: &Path) {
    say(&Said::Ready);
    told();
    let start = Barrier::new(4);
    let stores: Vec<_> = std::thread::scope(|scope| {
        let open_it = || {
            start.wait();
            open(file, LONG_LEASE)
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open_it)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it opens")).collect()
    });
    for (i, store) in stores.iter().enumerate() {
        let mine = key("all", &format!("{} {i}", std::process::id()));
        store.open_or_create(CreateSession::at(shared())).await.expect("it can be made");
        store.create(CreateSession::at(mine.clone())).await.expect("it is new");
        let begun = begun(store, &mine, Busy::Refuse).await;
        say(&Said::Begun { turn: begun.turn.to_string(), leased: begun.leased });
    }
    told();
}

/// Begins a turn, waits for a word inside it, and ends it.
async fn holder(store: &SqliteStore) {
    let begun = begun(store, &shared(), Busy::Refuse).await;
    say(&Said::Begun { turn: begun.turn.to_string(), leased: begun.leased });
    told();
    let mark = StateDelta::new().set("user:late", Json::null());
    match store.end(EndTurn::completed(begun.fence, says("late")).scopes(mark)).await {
        Ok(receipt) => say(&Said::Ended(receipt)),
        Err(error) => say(&Said::Refused(error.kind().name().to_owned())),
    }
}

/// Waits for the branch and does one turn.
async fn contender(store: &SqliteStore) {
    say(&Said::Ready);
    let begun = begun(store, &shared(), Busy::Wait(LONG_LEASE)).await;
    say(&Said::Begun { turn: begun.turn.to_string(), leased: begun.leased });
    let receipt = store.end(EndTurn::completed(begun.fence, says("in time"))).await.expect("the turn ends");
    say(&Said::Ended(receipt));
}

/// Sends a turn to the background, and does one thing at each word.
async fn detached(store: &SqliteStore) {
    let id: SnapshotId = var(WHO).expect("the parent names it").parse().expect("it is an id");
    let begun =
        store.begin(begin(shared(), Busy::Refuse).snapshot(id)).await.expect("it is free").begun().expect("new");
    store.step(StepTurn::new(begun.fence, Changes::new()).detach()).await.expect("it may detach");
    say(&Said::Ready);
    told();
    let end = EndTurn::completed(begun.fence, says("done")).snapshot(NewSnapshot::new(id));
    say(&Said::Ended(store.end(end).await.expect("the turn ends")));
    told();
    assert!(store.delete(&shared()).await.expect("it can be deleted"));
    say(&Said::Done);
}

/// Does the turns of a plan.
async fn writer(store: &SqliteStore) {
    let plan: WriterPlan = json(var(WHO).expect("the parent has a plan")).to().expect("it is a plan");
    say(&Said::Ready);
    told();
    say(&Said::Wrote(writers::write(store, &plan).await.expect("nobody is in its way")));
}

/// Looks into the file and closes it in order: whoever is the last to do so clears away the log.
fn visitor(file: &str) {
    let connection = rusqlite::Connection::open(file).expect("the file opens");
    let begun: i64 =
        connection.query_row("SELECT count(*) FROM slot WHERE at = 0", [], |row| row.get(0)).expect("it reads");
    assert_eq!(begun, 1);
    connection.close().expect("it closes");
    say(&Said::Done);
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("there is room") }
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("sessions.db")
    }

    fn child(&self, role: &str, vars: &[(&str, &str)]) -> Child {
        let file = self.file();
        let mut all = vec![(FILE, file.to_str().expect("it is text")), (ROLE, role)];
        all.extend(vars);
        Child::start("child", &all)
    }

    async fn with_session(&self, lease: Duration) -> SqliteStore {
        let store = open(&self.file(), lease);
        store.create(CreateSession::at(shared())).await.expect("it is new");
        store
    }
}

/// A new file is switched to its log and given its tables while others wait to do the same; and each handle's sign of
/// life is cleared away by nobody who comes at that moment.
#[tokio::test]
async fn processes_that_make_a_file_together_all_get_it_and_live() {
    for _ in 0..setting("EVERTURN_OPENINGS", 8) {
        let place = Place::new();
        let mut children: Vec<_> = (0..3).map(|_| place.child("opener", &[])).collect();
        for child in &children {
            assert!(matches!(child.hear(), Some(Said::Ready)));
        }
        for child in &mut children {
            child.tell("go");
        }
        for child in &children {
            for _ in 0..4 {
                assert!(matches!(child.hear(), Some(Said::Begun { leased: true, .. })));
            }
        }
        let store = open(&place.file(), LONG_LEASE);
        let states = || async {
            let running = store.running(None).await.expect("it can be read");
            running.iter().map(|turn| turn.status).collect::<Vec<_>>()
        };
        assert_eq!(states().await, [TurnStatus::Running; 12], "all their owners live");
        for child in children {
            child.kill::<Said>();
        }
        assert_eq!(states().await, [TurnStatus::Dead; 12], "all their owners are dead");
        assert_eq!(store.verify(VerifyScope::All).await.expect("it can be read").sessions, 13);
    }
}

#[tokio::test]
async fn four_processes_lose_and_double_nothing() {
    let turns: usize = setting("EVERTURN_TURNS", 40);
    let place = Place::new();
    let names = ["a", "b", "c", "d"];
    let mut children: Vec<_> =
        names.iter().map(|who| place.child("worker", &[(WHO, who), (TURNS, &turns.to_string())])).collect();
    for child in &children {
        assert!(matches!(child.hear(), Some(Said::Ready)));
    }
    for child in &mut children {
        child.tell("go");
    }
    for child in children {
        // A child that got any error has failed and said nothing.
        assert!(matches!(child.finish::<Said>()[..], [Said::Done]));
    }

    let store = open(&place.file(), LONG_LEASE);
    let mut shared_turns = said_on(&store, shared()).await;
    let record = store.existing(&shared()).await.expect("it is there");
    assert_eq!(record.turns, 4 * turns as u64);
    let count = store.head_state(&shared()).await.expect("it is there").custom().cloned();
    assert_eq!(count, Some(json(format!("{{\"count\":{}}}", 4 * turns))), "a turn built on an outdated state");
    for who in names {
        let expected: Vec<_> = (0..turns).map(|i| format!("{who} {i}")).collect();
        let in_order: Vec<_> = shared_turns.extract_if(.., |text| text.starts_with(who)).collect();
        assert_eq!(in_order, expected);
        let own: Vec<_> = expected.iter().map(|text| format!("own {text}")).collect();
        assert_eq!(said_on(&store, key("all", who)).await, own);
    }
    assert_eq!(shared_turns, Vec::<String>::new(), "somebody wrote what nobody said");
    let scopes = store.scopes(&shared().app, Some(&shared().user)).await.expect("they can be read");
    assert_eq!(scopes.len(), 8 * turns);
    assert_eq!(store.verify(VerifyScope::All).await.expect("it can be read").damage, None);
}

/// The kit of the conformance suite, with two processes.
async fn two_writers(when_busy: WhenBusy) -> [WriterReport; 2] {
    let place = Place::new();
    let plans = ["ann", "bob"].map(|who| WriterPlan::new(shared(), who, when_busy));
    let mut children = plans.clone().map(|plan| {
        let plan = Json::from_value(&plan).expect("a plan is plain data");
        place.child("writer", &[(WHO, plan.as_str())])
    });
    for child in &children {
        assert!(matches!(child.hear(), Some(Said::Ready)));
    }
    for child in &mut children {
        child.tell("go");
    }
    let reports = children.map(|child| match &mut child.finish::<Said>()[..] {
        [Said::Wrote(report)] => report.clone(),
        other => panic!("a writer said {other:?}"),
    });
    let store = open(&place.file(), LONG_LEASE);
    let verdict = writers::check(&store, &plans[0], &reports).await;
    assert!(matches!(verdict, Verdict::Passed), "{verdict:?}");
    reports
}

#[tokio::test]
async fn two_writers_that_wait_are_all_on_one_line() {
    two_writers(WhenBusy::Wait).await;
}

#[tokio::test]
async fn two_writers_that_are_refused_are_so_before_any_work() {
    two_writers(WhenBusy::Refuse).await;
}

#[tokio::test]
async fn two_writers_that_branch_lose_no_turn() {
    two_writers(WhenBusy::Branch).await;
}

/// A report that claims more than is there is not believed.
#[tokio::test]
async fn a_lost_turn_of_two_writers_is_noticed() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let plan = WriterPlan::new(shared(), "ann", WhenBusy::Wait).turns(3);
    let report = writers::write(&store, &plan).await.expect("nobody is in its way");
    let verdict = writers::check(&store, &plan, std::slice::from_ref(&report)).await;
    assert!(matches!(verdict, Verdict::Passed), "{verdict:?}");
    // Its last turn is taken off the line, as a store would that lets two writers hold one branch.
    let head = store.existing(&shared()).await.expect("it is there").head;
    let events = all_events(&store, EventQuery::of(shared())).await.expect("the line can be read");
    let before = events.iter().filter(|event| event.author == "helper").rev().nth(1);
    let before = everturn::Point::new(before.expect("it has done three turns").seq);
    assert!(before < head);
    store.rewind(&shared(), before).await.expect("nothing runs");
    let verdict = writers::check(&store, &plan, &[report]).await;
    assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
}

#[tokio::test]
async fn a_process_that_slept_through_its_lease_is_fenced() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let lease = [(LEASE, "300")];
    let mut sleeper = place.child("holder", &lease);
    assert!(matches!(sleeper.hear(), Some(Said::Begun { leased: true, .. })));
    sleeper.signal("STOP");

    let successor = place.child("contender", &lease);
    assert!(matches!(successor.hear(), Some(Said::Ready)));
    assert!(matches!(successor.hear(), Some(Said::Begun { leased: true, .. })));
    let Some(Said::Ended(receipt)) = successor.hear() else { panic!("the successor ends its turn") };
    assert!(receipt.on_head);

    sleeper.tell("end it");
    sleeper.signal("CONT");
    let Some(Said::Refused(kind)) = sleeper.hear() else { panic!("a fenced turn has ended") };
    assert_eq!(kind, ErrorKind::Fenced.name());

    assert_eq!(said_on(&store, shared()).await, ["in time"]);
    let record = store.existing(&shared()).await.expect("it is there");
    assert_eq!((record.head, record.turns), (receipt.point, 1));
    let scopes = store.scopes(&shared().app, Some(&shared().user)).await.expect("they can be read");
    assert!(scopes.is_empty(), "a refused end has written a scope");
}

#[tokio::test]
async fn a_killed_owners_session_is_free_at_once() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let owner = place.child("holder", &[]);
    let Some(Said::Begun { turn, .. }) = owner.hear() else { panic!("it begins a turn") };

    let refused = store.begin(begin(shared(), Busy::Refuse)).await.expect_err("its owner lives");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let turn = turn.parse().expect("it is a turn");
    assert_eq!(store.take_over(turn).await.expect_err("its owner lives").kind(), ErrorKind::Busy);
    let waiting = place.child("contender", &[]);
    assert!(matches!(waiting.hear(), Some(Said::Ready)));

    owner.kill::<Said>();
    // Who waited for the branch gets it, though the lease has ten minutes left.
    assert!(matches!(waiting.hear(), Some(Said::Begun { leased: true, .. })));
    assert!(matches!(waiting.hear(), Some(Said::Ended(_))));
    let next = begun(&store, &shared(), Busy::Refuse).await;
    store.end(EndTurn::completed(next.fence, says("after"))).await.expect("the turn ends");
    assert_eq!(said_on(&store, shared()).await, ["in time", "after"]);
}

#[tokio::test]
async fn a_killed_owners_turn_can_be_taken_over_at_once() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let owner = place.child("holder", &[]);
    let Some(Said::Begun { turn, .. }) = owner.hear() else { panic!("it begins a turn") };
    let turn = turn.parse().expect("it is a turn");
    owner.kill::<Said>();

    assert_eq!(store.turn(turn).await.expect("it can be read").expect("it began").status, TurnStatus::Dead);
    let begun = store.take_over(turn).await.expect("its owner is dead");
    assert_eq!((begun.turn, begun.fence.attempt(), begun.branch), (turn, 2, BranchName::main()));
    assert!(store.end(EndTurn::completed(begun.fence, says("taken over"))).await.expect("the turn ends").on_head);
    assert_eq!(said_on(&store, shared()).await, ["taken over"]);
}

#[tokio::test]
async fn a_watcher_sees_what_another_process_writes() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let id = SnapshotId::from_uuid(Uuid::now_v7());
    let mut session = store.watch(WatchTarget::Session(shared())).await.expect("it can be watched");
    let mut writer = place.child("detached", &[(WHO, &id.to_string())]);
    assert!(matches!(writer.hear(), Some(Said::Ready)));
    let seen = timeout(SOON, session.next()).await.expect("the begin is seen").expect("the store reads");
    assert!(matches!(seen, WatchEvent::Written(_)), "{seen:?}");

    let mut snapshot = store.watch(WatchTarget::Snapshot(id)).await.expect("it can be watched");
    writer.tell("end it");
    let Some(Said::Ended(receipt)) = writer.hear() else { panic!("the turn ends") };
    let seen = timeout(SOON, snapshot.next()).await.expect("the end is seen").expect("the store reads");
    assert_eq!(seen, WatchEvent::Snapshot(SnapshotStatus::Completed));
    let end = async {
        loop {
            match session.next().await.expect("the store reads") {
                WatchEvent::Written(point) if point >= receipt.point => return,
                WatchEvent::Written(_) => {}
                other => panic!("nothing else has happened: {other:?}"),
            }
        }
    };
    timeout(SOON, end).await.expect("the end is seen");

    writer.tell("delete it");
    let gone = async { while session.next().await.expect("the store reads") != WatchEvent::Deleted {} };
    timeout(SOON, gone).await.expect("the deletion is seen");
    assert!(matches!(writer.finish::<Said>()[..], [Said::Done]));
}

/// Closing any descriptor of a file drops all of a process's POSIX locks on it, SQLite's too. A process that opens a
/// store twice and does so would no longer count as a user of the file: the next one to close it would take the log
/// away, and everything acknowledged from then on would go into a file without a name.
#[tokio::test]
async fn a_second_handle_in_one_process_costs_the_first_nothing() {
    let place = Place::new();
    let store = place.with_session(LONG_LEASE).await;
    let second = open(&place.file(), LONG_LEASE);
    assert!(matches!(place.child("visitor", &[]).finish::<Said>()[..], [Said::Done]));

    assert!(turn(&store, &shared(), "after", 0).await.on_head);
    assert!(turn(&second, &shared(), "after", 1).await.on_head);
    let seen = place.child("reader", &[]).finish();
    let [Said::Texts(texts)] = &seen[..] else { panic!("it reads: {seen:?}") };
    assert_eq!(*texts, ["after 0", "after 1"], "acknowledged, and in no file");
}
