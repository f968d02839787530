//! A process that is killed while somebody waits for its turn.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use everturn::store::{SqliteOptions, Store, TreeQuery, VerifyScope};
use everturn::{
    Agent, FinishReason, Init, Json, Message, Recovered, Recovery, SnapshotId, SnapshotStatus, Turn, TurnId, TurnKey,
    TurnStatus,
};
use serde::{Deserialize, Serialize};

use crate::children::{Child, say, var};
use crate::in_time;
use crate::support::{key, said, sid};

const FILE: &str = "EVERTURN_LOST_FILE";

#[derive(Debug, Serialize, Deserialize)]
struct Here {
    turn: String,
    snapshot: String,
}

fn open(file: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteOptions::new(file).open().unwrap())
}

/// Writes a step, says `working`, and waits for ever where it is told to.
fn agent(store: Arc<dyn Store>, waits: bool) -> Agent<Json> {
    let agent = Agent::flow("echo", move |turn: Turn<Json>| async move {
        turn.tool_iteration_end().await?;
        turn.responder().text("working").await?;
        if waits {
            std::future::pending::<()>().await;
        }
        turn.add_message(Message::model("done"))?;
        Ok(())
    });
    agent.shared_store(store).recovery(Recovery::Retry { attempts: 3 }).build().unwrap()
}

fn init() -> Init {
    Init::session(sid("s")).key(TurnKey::new("k").unwrap()).keep_stream()
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let Some(file) = var(FILE).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let agent = agent(open(&file), true);
        let connection = agent.connect(init()).await.unwrap();
        connection.send_text("one").await.unwrap();
        let ticket = connection.begun().await.unwrap();
        let mut following = agent.follow_turn(ticket.turn, None).await.unwrap();
        while following.next().await.unwrap().unwrap().chunk.text() != "working" {}
        // It is kept when another handle can read it.
        let elsewhere = self::agent(open(&file), true);
        let mut following = elsewhere.follow_turn(ticket.turn, None).await.unwrap();
        while following.next().await.unwrap().unwrap().chunk.text() != "working" {}
        say(&Here { turn: ticket.turn.to_string(), snapshot: ticket.snapshot_id.unwrap().to_string() });
        std::future::pending::<()>().await;
    });
}

fn killed(file: &Path) -> (TurnId, SnapshotId) {
    let child = Child::start("killed::child", &[(FILE, file.to_str().unwrap())]);
    let here: Here = child.hear().expect("it says where it is");
    child.kill::<Here>();
    (here.turn.parse().unwrap(), here.snapshot.parse().unwrap())
}

/// What everybody is told of a turn that was given up.
async fn is_over(agent: &Agent<Json>, turn: TurnId, id: SnapshotId) {
    let mut following = agent.follow(id, None).await.unwrap();
    let mut heard = Vec::new();
    while let Some(one) = in_time(following.next()).await.unwrap() {
        heard.push(one.chunk);
    }
    let end = heard.pop().unwrap().turn_end.unwrap();
    assert_eq!((end.finish_reason, end.snapshot_id), (FinishReason::Failed, Some(id)));
    assert_eq!(heard.iter().map(everturn::Chunk::text).collect::<String>(), "working");
    assert!(heard.iter().all(|chunk| chunk.restarted.is_none()));
    let row = agent.snapshot(id).await.unwrap().expect("a row");
    assert_eq!((row.status, row.error.as_ref().unwrap().status.as_str()), (SnapshotStatus::Failed, "UNAVAILABLE"));
    assert_eq!(in_time(agent.wait(id, None)).await.unwrap(), row);
    assert_eq!(agent.abort(id).await.unwrap(), Some(SnapshotStatus::Failed));
    let store = agent.store().unwrap();
    let tree = store.tree(TreeQuery::of(key("s"))).await.unwrap();
    let node = tree.nodes.iter().find(|node| node.turn == Some(turn)).unwrap();
    assert_eq!((node.status, node.finish_reason), (TurnStatus::Failed, Some(FinishReason::Failed)));
    assert_eq!(agent.turn(turn).await.unwrap().unwrap().status, TurnStatus::Failed);
    assert!(store.running(None).await.unwrap().is_empty(), "nothing is left of it");
}

#[tokio::test]
async fn its_turn_fails_for_everybody_and_runs_again_under_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let (turn, id) = killed(&file);
    let agent = agent(open(&file), false);
    // Who follows when nobody has looked yet is told as well.
    let waiting = agent.follow_turn(turn, None).await.unwrap();
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Failed(turn)]);
    assert_eq!(agent.recover().await.unwrap(), [], "once");
    is_over(&agent, turn, id).await;
    drop(waiting);
    let again = in_time(agent.run_text("one", init())).await.unwrap().ok().unwrap();
    assert_eq!(said(&again), ["one", "done"]);
    assert_ne!(again.snapshot_id, Some(id), "what failed stays so");
    let record = agent.turn(turn).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempt), (TurnStatus::Completed, 2), "it is the next attempt at the same turn");
    assert_eq!(agent.snapshot(id).await.unwrap().unwrap().status, SnapshotStatus::Failed);
    let tree = agent.store().unwrap().tree(TreeQuery::of(key("s"))).await.unwrap();
    assert_eq!(tree.nodes.last().map(|node| (node.turn, node.status)), Some((Some(turn), TurnStatus::Completed)));
    assert!(agent.store().unwrap().verify(VerifyScope::All).await.unwrap().damage.is_none());
}

#[tokio::test]
async fn a_turn_that_takes_its_branch_first_changes_nothing_about_that() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let (turn, id) = killed(&file);
    let agent = agent(open(&file), false);
    let mut following = agent.follow_turn(turn, None).await.unwrap();
    while in_time(following.next()).await.unwrap().unwrap().chunk.text() != "working" {}
    agent.run_text("two", Init::session(sid("s"))).await.unwrap().ok().unwrap();
    let mut waiting = tokio::spawn(async move {
        let mut heard = Vec::new();
        while let Some(one) = following.next().await.unwrap() {
            heard.push(one.chunk);
        }
        heard
    });
    let early = tokio::time::timeout(std::time::Duration::from_millis(500), &mut waiting).await;
    assert!(early.is_err(), "nobody has seen to it yet: {early:?}");
    assert_eq!(agent.recover().await.unwrap(), [Recovered::Failed(turn)]);
    let heard = in_time(waiting).await.unwrap();
    assert_eq!(heard.len(), 1, "nobody tries it anew: {heard:?}");
    assert_eq!(heard[0].turn_end.unwrap().finish_reason, FinishReason::Failed);
    assert_eq!(agent.snapshot(id).await.unwrap().unwrap().status, SnapshotStatus::Failed);
    assert!(agent.store().unwrap().running(None).await.unwrap().is_empty());
    // Its key still makes it happen, beside those that went on without it.
    let again = in_time(agent.run_text("one", init())).await.unwrap().ok().unwrap();
    assert_eq!((said(&again), again.on_head), (vec!["one".to_owned(), "done".to_owned()], false));
}

#[tokio::test]
async fn it_can_be_tried_again_by_hand() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let (turn, id) = killed(&file);
    let agent = agent(open(&file), false);
    agent.recover().await.unwrap();
    let again = agent.retry(turn).await.unwrap().output().await.unwrap().ok().unwrap();
    assert_eq!(said(&again), ["one", "done"]);
    assert!(again.on_head && again.snapshot_id.is_some_and(|fresh| fresh != id));
}
