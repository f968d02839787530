//! Processes that take turns in one session: what the others wrote is read where the turn begins, and once.

mod support;

use std::time::Duration;

use everturn::store::{
    At, BeginTurn, Busy, Commit, CreateSession, Durability, EndTurn, SqliteOptions, SqliteStore, Start, StepTurn,
    Store as _, StoreExt as _,
};
use everturn::{
    Artifact, Begun, Changes, EndStatus, Event, Input, Json, Message, Outcome, Part, PointState, SessionKey,
};
use support::{Rng, invocation, json, key};

fn open(dir: &tempfile::TempDir) -> SqliteStore {
    SqliteOptions::new(dir.path().join("s.db")).durability(Durability::ProcessSafe).open().unwrap()
}

async fn begin(store: &SqliteStore, key: &SessionKey, question: &str) -> Begun {
    let begin = BeginTurn::new(Start::Session(key.clone()), invocation("i"), Input::text(question));
    store.begin(begin).await.unwrap().begun().unwrap()
}

fn said(text: &str) -> Changes {
    Changes::new().event(Event::model("helper", Message::model(text)))
}

/// Longer than what is written whole each time, so that most turns write a change to what the other wrote.
fn custom(rng: &mut Rng) -> everturn::Json {
    json(format!("{{\"n\":{},\"rest\":\"{}\"}}", rng.below(1000), "long ".repeat(100)))
}

/// More than is read in passing, however well it packs.
fn noise(rng: &mut Rng) -> String {
    (0..90_000).map(|_| char::from(b'0' + rng.below(64) as u8)).collect()
}

async fn state(store: &SqliteStore, key: &SessionKey, begun: &Begun) -> PointState {
    store.state(At::Point(key.clone(), begun.point)).await.unwrap().unwrap()
}

/// Both read the same as somebody who never saw the session before.
async fn reads_as_a_stranger_does(dir: &tempfile::TempDir, key: &SessionKey, read: &PointState, begun: &Begun) {
    let theirs = state(&open(dir), key, begun).await;
    assert_eq!(read.digest(), theirs.digest());
    assert_eq!(read.messages(), theirs.messages());
    assert_eq!((read.custom(), read.turns()), (theirs.custom(), theirs.turns()));
    assert_eq!(read.artifacts(), theirs.artifacts());
}

#[tokio::test]
async fn what_others_wrote_is_not_read_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (stores, key) = ([open(&dir), open(&dir)], key("u", "s"));
    stores[0].create(CreateSession::at(key.clone())).await.unwrap();
    let mut rng = Rng::new(1);
    let mut warm = [0; 2];
    for turn in 0..60 {
        let store = &stores[turn % 2];
        let begun = begin(store, &key, &format!("question {turn}")).await;
        let read = state(store, &key, &begun).await;
        assert_eq!(read.messages().len(), 2 * turn + 1);
        if turn % 10 == 9 {
            reads_as_a_stranger_does(&dir, &key, &read, &begun).await;
        }
        let changes = said(&format!("answer {turn}")).custom(custom(&mut rng));
        assert!(store.end(EndTurn::completed(begun.fence, changes)).await.unwrap().on_head);
        if turn < 2 {
            warm[turn] = store.stats().cache_misses;
        }
    }
    for (store, warm) in stores.iter().zip(warm) {
        assert_eq!(store.stats().cache_misses, warm, "a state was added up beside the begin that had read it");
    }
}

/// Whoever waits looks again soon at first, however rarely it looks for news otherwise.
#[tokio::test]
async fn a_branch_that_another_process_frees_is_taken_soon() {
    let dir = tempfile::tempdir().unwrap();
    let rarely = Duration::from_secs(3600);
    let open = || SqliteOptions::new(dir.path().join("s.db")).poll(rarely).open().unwrap();
    let (ours, theirs, key) = (open(), open(), key("u", "s"));
    ours.create(CreateSession::at(key.clone())).await.unwrap();
    let held = begin(&theirs, &key, "theirs").await;
    let waiting = tokio::spawn(async move {
        let mut begin = BeginTurn::new(Start::Session(key), invocation("i"), Input::text("ours"));
        begin.busy = Busy::Wait(Duration::MAX);
        ours.begin(begin).await.unwrap().begun().unwrap()
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    theirs.end(EndTurn::completed(held.fence, said("done"))).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it waits to look again");
    assert_eq!(waited.unwrap().turn_index, held.turn_index + 1);
}

#[tokio::test]
async fn whatever_others_wrote_reads_as_it_does_to_a_stranger() {
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let (stores, key) = ([open(&dir), open(&dir), open(&dir)], key("u", "s"));
        stores[0].create(CreateSession::at(key.clone())).await.unwrap();
        let mut rng = Rng::new(seed);
        for turn in 0..80 {
            let store = rng.pick(&stores);
            let begun = begin(store, &key, &format!("question {turn}")).await;
            if rng.percent(70) {
                let read = state(store, &key, &begun).await;
                reads_as_a_stranger_does(&dir, &key, &read, &begun).await;
            }
            for i in 0..rng.below(3) {
                store.step(StepTurn::new(begun.fence, said(&format!("step {i}")))).await.unwrap();
            }
            let answer = if rng.percent(5) { noise(&mut rng) } else { format!("answer {turn}") };
            let mut changes = said(&answer);
            if rng.percent(50) {
                changes = changes.custom(custom(&mut rng));
            }
            if rng.percent(20) {
                changes = changes.artifact(Artifact::new("notes", vec![Part::text(format!("turn {turn}"))]));
            }
            if rng.percent(5) {
                changes = changes.splice(1, vec![Message::user("the rest was long")]);
            }
            let end = match rng.below(10) {
                0 => EndTurn::voided(begun.fence, EndStatus::Failed, Outcome::default()),
                1 => EndTurn::voided(begun.fence, EndStatus::Aborted, Outcome::default()),
                _ => EndTurn::completed(begun.fence, changes),
            };
            store.end(end).await.unwrap();
            if rng.percent(20) {
                let edit = Changes::new().custom(custom(&mut rng));
                rng.pick(&stores).commit(Commit::new(key.clone(), edit)).await.unwrap();
            }
        }
        let (at_hand, added_up) =
            (stores[0].head_state(&key).await.unwrap(), open(&dir).head_state(&key).await.unwrap());
        assert_eq!(at_hand.digest(), added_up.digest());
        let verified = stores[0].verify(everturn::store::VerifyScope::All).await.unwrap();
        assert!(verified.damage.is_none(), "{:?}", verified.damage);
    }
}

/// A log that is moved into the file while others add to it is never moved whole, and grows until somebody has to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_log_begins_anew_however_many_write() {
    const WRITERS: usize = 4;
    const TURNS: usize = 500;
    let dir = tempfile::tempdir().unwrap();
    let mut writing = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (store, key) = (open(&dir), key("u", &format!("s{writer}")));
        store.create(CreateSession::at(key.clone())).await.unwrap();
        writing.spawn(async move {
            let mut rng = Rng::new(writer as u64);
            let text = noise(&mut rng);
            let mut log = 0;
            for turn in 0..TURNS {
                let begun = begin(&store, &key, "next").await;
                let from = turn * 97 % 60_000;
                let changes = said(&text[from..from + 16_000]);
                store.end(EndTurn::completed(begun.fence, changes)).await.unwrap();
                log = log.max(store.stats().log_bytes);
            }
            log
        });
    }
    let log = writing.join_all().await.into_iter().max().unwrap();
    // All of it is some 40 MiB. It is moved at 4, and again at 4 more where two were at it.
    assert!(log < 16 << 20, "the log grew to {log} bytes");
}

/// A patch holds its values two levels deeper than the state: one of the deepest legal state could not be read again.
#[tokio::test]
async fn the_deepest_custom_state_that_is_taken_is_read_again() {
    let (dir, key) = (tempfile::tempdir().unwrap(), SessionKey::of("a", "u", "s").unwrap());
    let (store, other) = (open(&dir), open(&dir));
    store.create(CreateSession::at(key.clone())).await.unwrap();
    let text = "x".repeat(4000);
    let holding = |deep: &str| format!("{{\"text\":\"{text}\",\"deep\":{deep}}}");
    let nested = |depth: usize| holding(&("[".repeat(depth) + &"]".repeat(depth)));
    let deepest = (50..200).map(nested).take_while(|state| Json::parse(state.as_str()).is_ok()).last();
    let states = [holding("null"), deepest.unwrap()];
    for state in &states {
        let begun = begin(&store, &key, "go on").await;
        let changes = said("done").custom(state.parse().unwrap());
        store.end(EndTurn::completed(begun.fence, changes)).await.unwrap();
    }
    for store in [&store, &other, &open(&dir)] {
        let begun = begin(store, &key, "and now").await;
        let read = state(store, &key, &begun).await;
        assert_eq!(read.custom().map(ToString::to_string), Some(states[1].clone()));
        store.end(EndTurn::completed(begun.fence, said("done"))).await.unwrap();
    }
}
