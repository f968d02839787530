//! Agents whose turns go on only when they are told to.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use everturn::store::Store;
use everturn::{
    Agent, AgentBuilder, Failure, Input, Message, Patience, Session, Snapshot, SnapshotId, SnapshotStatus, Turn,
};
use tokio::sync::{Semaphore, mpsc};

use crate::support::*;

/// Longer than anything here takes on a loaded machine: a test that hangs fails instead.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A turn that has begun.
pub(crate) struct Started {
    pub(crate) text: String,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) session: Session<Tally>,
}

/// What holds the turns of an agent.
pub(crate) struct Gate {
    started: mpsc::UnboundedReceiver<Started>,
    cancelled: mpsc::UnboundedReceiver<String>,
    open: Arc<Semaphore>,
}

impl Gate {
    /// The next turn that begins.
    pub(crate) async fn started(&mut self) -> Started {
        in_time(self.started.recv()).await.expect("the agent is there")
    }

    /// The next turn that notices that it was cancelled.
    pub(crate) async fn cancelled(&mut self) -> String {
        in_time(self.cancelled.recv()).await.expect("the agent is there")
    }

    /// Whether a turn has begun that nobody has asked for yet.
    pub(crate) fn has_started(&mut self) -> bool {
        self.started.try_recv().is_ok()
    }

    /// Lets one turn go on.
    pub(crate) fn go(&self) {
        self.open.add_permits(1);
    }
}

/// Whether a turn stops when it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    Well,
    /// It goes on as if nobody had said anything.
    Nothing,
}

/// An agent like the echo, whose turns wait halfway until they are let go.
pub(crate) fn gated(hears: Hears) -> (AgentBuilder<Tally>, Gate) {
    let (tell, started) = mpsc::unbounded_channel();
    let (tell_cancelled, cancelled) = mpsc::unbounded_channel();
    let open = Arc::new(Semaphore::new(0));
    let gate = Gate { started, cancelled, open: open.clone() };
    let agent = Agent::flow("echo", move |turn: Turn<Tally>| {
        let (tell, tell_cancelled, open) = (tell.clone(), tell_cancelled.clone(), open.clone());
        async move {
            let text = turn.text();
            turn.update_custom(|tally| tally.last = "halfway".to_owned())?;
            let _ = tell.send(Started {
                text: text.clone(),
                snapshot: turn.snapshot_id(),
                session: turn.session().clone(),
            });
            tokio::select! {
                permit = open.acquire() => permit.expect("it is never closed").forget(),
                () = turn.cancelled(), if hears == Hears::Well => {
                    let _ = tell_cancelled.send(text);
                    return Err(Failure::new("CANCELLED", "told to stop"));
                }
            }
            echo_turn(turn).await
        }
    });
    (agent, gate)
}

/// One that hears well, on a store.
pub(crate) fn held(store: Arc<dyn Store>) -> (Agent<Tally>, Gate) {
    let (agent, gate) = gated(Hears::Well);
    (agent.shared_store(store).build().unwrap(), gate)
}

/// An input that is to be worked on in the background.
pub(crate) fn detached(text: &str) -> Input {
    let mut input = Input::text(text);
    input.detach = true;
    input
}

pub(crate) fn patience(change: impl FnOnce(&mut Patience)) -> Patience {
    let mut patience = Patience::default();
    change(&mut patience);
    patience
}

/// Waits for something that comes soon, or fails.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("this should not take so long")
}

/// Looks again and again until something is there, or fails.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> T {
    in_time(async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
}

/// A snapshot, which is there.
pub(crate) async fn row(agent: &Agent<Tally>, id: SnapshotId) -> Snapshot {
    agent.snapshot(id).await.unwrap().expect("it is there")
}

pub(crate) async fn status(agent: &Agent<Tally>, id: SnapshotId) -> SnapshotStatus {
    row(agent, id).await.status
}

/// What was said in the state of a snapshot.
pub(crate) fn said_in(snapshot: &Snapshot) -> Vec<String> {
    snapshot.state.as_ref().unwrap().messages.iter().map(Message::text).collect()
}
