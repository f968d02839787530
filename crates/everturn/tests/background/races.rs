//! Aborts against ends, and processes that wake up too late: whoever loses has written nothing.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{SnapshotRef, Store, StoreExt, VerifyScope};
use everturn::{Agent, FinishReason, Init, Input, Recovery, Snapshot, SnapshotId, SnapshotStatus, Turn};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::children::{HEARTBEAT, LEASE, LONG, Place, Said, of_worker};
use crate::gate::*;
use crate::processes::{Rng, setting};
use crate::support::*;

/// Looks at a row again and again: once its status is final nothing about it changes any more.
async fn watched(store: Arc<dyn Store>, id: SnapshotId, stop: CancellationToken) -> Option<Snapshot> {
    let mut last = None;
    loop {
        let over = stop.is_cancelled();
        let row = store.snapshot(SnapshotRef::Id(id)).await.unwrap();
        if let Some(row) = row.filter(|row| row.status != SnapshotStatus::Pending) {
            match &last {
                None => last = Some(row),
                Some(last) => assert_eq!(&row, last, "a row changed after it was final"),
            }
        }
        if over {
            return last;
        }
        tokio::task::yield_now().await;
    }
}

async fn dawdle(steps: usize) {
    for _ in 0..steps {
        tokio::task::yield_now().await;
    }
}

/// How the races ended.
#[derive(Default, Debug)]
struct Ends {
    completed: usize,
    aborted: usize,
}

async fn race(home: &Home, rng: &mut Rng, n: usize, ends: &mut Ends) {
    let (tell, mut started) = mpsc::unbounded_channel();
    let (work, wait) = (rng.below(60), rng.below(60));
    let agent = Agent::flow("echo", move |turn: Turn<Tally>| {
        let tell = tell.clone();
        async move {
            tell.send(turn.snapshot_id().unwrap())?;
            dawdle(work).await;
            // As one that never looks whether it was cancelled.
            echo_turn(turn).await
        }
    });
    let agent = agent.shared_store(home.store()).build().unwrap();
    let session = format!("s{n}");
    let attached = rng.percent(50);
    let mut connection = agent.connect(Init::session(sid(&session))).await.unwrap();
    connection.send(if attached { Input::text("one") } else { detached("one") }).await.unwrap();
    let id = started.recv().await.unwrap();
    let stop = CancellationToken::new();
    let watcher = tokio::spawn(watched(home.store(), id, stop.clone()));
    let aborter = if rng.percent(50) { agent.clone() } else { stored(home) };
    dawdle(wait).await;
    let before = aborter.abort(id).await.unwrap().expect("it was begun");
    let output = in_time(connection.output()).await.unwrap();
    assert_eq!(agent.drain(SOON).await, 0);
    stop.cancel();
    let row = in_time(watcher).await.unwrap().expect("it has ended");
    let head = home.store().head_state(&key(&session)).await.unwrap();
    let expected = match before {
        SnapshotStatus::Pending => {
            ends.aborted += 1;
            (SnapshotStatus::Aborted, FinishReason::Aborted, 0)
        }
        SnapshotStatus::Completed => {
            ends.completed += 1;
            (SnapshotStatus::Completed, FinishReason::Stop, 2)
        }
        other => panic!("it was {other:?}"),
    };
    assert_eq!((row.status, row.finish_reason.unwrap(), head.messages().len()), expected, "race {n}");
    let told = if attached { expected.1 } else { FinishReason::Detached };
    assert_eq!((output.finish_reason, output.error), (Some(told), None), "race {n}: what was told is what was kept");
}

async fn races(home: Home) {
    let seed = setting("EVERTURN_SEED", 5);
    println!("EVERTURN_SEED={seed}");
    let (mut rng, mut ends) = (Rng::new(seed), Ends::default());
    for n in 0..500 {
        race(&home, &mut rng, n, &mut ends).await;
    }
    assert!(ends.completed > 0 && ends.aborted > 0, "these were no races: {ends:?}");
    assert!(home.elsewhere().verify(VerifyScope::All).await.unwrap().damage.is_none());
}

mod an_abort_and_an_end_never_both_win {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory() {
        races(Home::memory()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        races(Home::sqlite()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_and_an_end_in_another_process_never_both_win() {
    let place = Place::new();
    let mut child = place.child(&[]);
    let agent = place.agent(Recovery::Leave);
    let store = place.store(LONG);
    let mut rng = Rng::new(setting("EVERTURN_SEED", 6));
    let mut ends = Ends::default();
    for n in 0..40 {
        let (session, attached) = (format!("s{n}"), rng.percent(50));
        child.tell(&format!("{} {session} hold until go", if attached { "attach" } else { "detach" }));
        let id = if attached { child.started() } else { child.accepted() };
        if attached {
            child.tell("output");
        }
        let stop = CancellationToken::new();
        let watcher = tokio::spawn(watched(store.clone(), id, stop.clone()));
        // One comes after the other by about as long as an end or an abort takes.
        let behind = Duration::from_micros(rng.below(2000) as u64);
        let abort = {
            let (agent, behind) = (agent.clone(), if rng.percent(50) { behind } else { Duration::ZERO });
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || {
                std::thread::sleep(behind);
                runtime.block_on(agent.abort(id))
            })
        };
        std::thread::sleep(if rng.percent(50) { behind } else { Duration::ZERO });
        child.tell("go");
        let before = in_time(abort).await.unwrap().unwrap().expect("it was begun");
        let told = attached.then(|| match child.next() {
            Said::Output { finish, error: None } => finish.expect("it has ended"),
            other => panic!("the child said {other:?}"),
        });
        child.tell("drain");
        assert!(matches!(child.next(), Said::Drained(0)));
        // The permit is left over when the turn stopped before it took it.
        child.tell("stay");
        stop.cancel();
        let row = in_time(watcher).await.unwrap().expect("it has ended");
        let (status, reason) = match before {
            SnapshotStatus::Pending => {
                ends.aborted += 1;
                (SnapshotStatus::Aborted, FinishReason::Aborted)
            }
            SnapshotStatus::Completed => {
                ends.completed += 1;
                (SnapshotStatus::Completed, FinishReason::Stop)
            }
            other => panic!("it was {other:?}"),
        };
        assert_eq!((row.status, row.finish_reason), (status, Some(reason)), "race {n}");
        assert_eq!(told.unwrap_or(reason), reason, "race {n}: what was told is what was kept");
    }
    assert!(ends.aborted > 0 && ends.completed > 0, "these were no races: {ends:?}");
    assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
}

/// Stopped inside its handler past its lease, its turn done elsewhere, then let go on: it is told, and leaves nothing.
#[tokio::test]
async fn a_process_that_wakes_up_after_its_turn_was_retried_is_fenced() {
    for how in ["attach", "detach"] {
        let place = Place::new();
        let mut sleeper = place.child(&[(LEASE, "400"), (HEARTBEAT, "50")]);
        sleeper.tell(&format!("{how} s hold until go"));
        let id = if how == "attach" { sleeper.started() } else { sleeper.accepted() };
        let clock = Arc::new(everturn::SystemClock::new());
        let agent = place.agent_with(Recovery::Retry { attempts: 3 }, clock, Duration::from_millis(400));
        let turn = agent.unfinished(&sid("s")).await.unwrap()[0].turn;
        assert_eq!(agent.recover().await.unwrap(), [], "it lives");
        sleeper.signal("STOP");
        if how == "attach" {
            let mut retried = until(async || agent.retry(turn).await.ok()).await;
            assert_eq!(in_time(retried.output()).await.unwrap().finish_reason, Some(FinishReason::Stop));
        } else {
            until(async || (agent.recover().await.unwrap().len() == 1).then_some(())).await;
            in_time(agent.wait(id, None)).await.unwrap();
        }
        let done = agent.snapshot(id).await.unwrap().unwrap();
        assert_eq!(done.status, SnapshotStatus::Completed);
        sleeper.tell("go");
        if how == "attach" {
            sleeper.tell("output");
        }
        sleeper.tell("drain");
        sleeper.signal("CONT");
        if how == "attach" {
            let mut told = None;
            for _ in 0..2 {
                if let Said::Output { finish, error } = sleeper.next() {
                    told = Some((finish, error));
                }
            }
            assert_eq!(told, Some((Some(FinishReason::Failed), Some("ABORTED".to_owned()))), "it is told");
        } else {
            assert!(matches!(sleeper.next(), Said::Drained(0)));
        }
        assert_eq!(agent.snapshot(id).await.unwrap().unwrap(), done, "{how}: the row is as it was");
        let store = place.store(LONG);
        let head = store.head_state(&of_worker("user", "s")).await.unwrap();
        let mine = format!("hold until go by {}", std::process::id());
        assert_eq!(texts(head.messages()), ["hold until go", &mine], "{how}: nothing of it is on the line");
        assert_eq!(store.existing(&of_worker("user", "s")).await.unwrap().turns, 1);
        assert!(store.verify(VerifyScope::All).await.unwrap().damage.is_none());
    }
}
