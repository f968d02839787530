//! Streams of processes that are killed: what was kept is read afterwards, and a new attempt is told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everturn::store::{SqliteOptions, Store};
use everturn::{ErrorKind, FinishReason, Init, Position, Recovery};
use serde::{Deserialize, Serialize};

use crate::children::{Child, say, var};
use crate::support::sid;
use crate::{all, background, heard, positions, steps, talker, words};

const FILE: &str = "EVERTURN_STREAM_FILE";

#[derive(Debug, Serialize, Deserialize)]
struct Here {
    snapshot: String,
}

fn open(file: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteOptions::new(file).open().unwrap())
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let Some(file) = var(FILE).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // It says 150 of 300 words, and waits for the rest.
        let agent = talker(&steps(150)).shared_store(open(&file)).build().unwrap();
        let output = agent.run(background("say 300"), Init::session(sid("s"))).await.unwrap();
        let id = output.snapshot_id.unwrap();
        let mut following = agent.follow(id, None).await.unwrap();
        for _ in 0..150 {
            following.next().await.unwrap().unwrap();
        }
        say(&Here { snapshot: id.to_string() });
        std::future::pending::<()>().await;
    });
}

fn killed(file: &Path) -> everturn::SnapshotId {
    let child = Child::start("dying::child", &[(FILE, file.to_str().unwrap())]);
    let here: Here = child.hear().expect("it says where it is");
    child.kill::<Here>();
    here.snapshot.parse().unwrap()
}

#[tokio::test]
async fn what_a_killed_process_had_shown_is_read_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let id = killed(&file);
    let agent = talker(&steps(0)).recovery(Recovery::Leave).shared_store(open(&file)).build().unwrap();
    let mut following = agent.follow(id, None).await.unwrap();
    for n in 0..150 {
        let next = following.next().await.unwrap().unwrap();
        assert_eq!((next.position, next.chunk.text()), (Some(Position::new(1, n)), format!("{n} ")));
    }
    let error = following.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "nobody will try it again: {error}");
}

#[tokio::test]
async fn a_reader_of_a_killed_process_goes_on_with_the_next_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessions.db");
    let id = killed(&file);
    let agent = talker(&steps(300)).shared_store(open(&file)).build().unwrap();
    let waiting = agent.follow(id, Some(Position::new(1, 149))).await.unwrap();
    let waiting = tokio::spawn(all(waiting));
    assert_eq!(agent.recover().await.unwrap().len(), 1);
    let followed = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert_eq!(followed[0].chunk.restarted, Some(2));
    assert_eq!(heard(&followed), (words(0..300), FinishReason::Stop));
    assert_eq!(positions(&followed)[0], Position::new(2, 0));
    // After all is over, a position of the attempt that died still leads to what counts.
    let again = all(agent.follow(id, Some(Position::new(1, 20))).await.unwrap()).await;
    assert_eq!(heard(&again), (words(0..300), FinishReason::Stop));
    assert_eq!(again.iter().filter(|one| one.chunk.restarted.is_some()).count(), 1);
}
