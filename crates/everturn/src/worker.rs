//! A worker: looks after turns whose process died.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::{Recovered, Registry};

/// Looks after the turns of some agents whose process died, again and again: what is done about them is each agent's
/// [`Recovery`](crate::Recovery). Any number of workers in any number of processes may
/// look after the same store.
///
/// ```
/// use std::time::Duration;
///
/// use everturn::{Registry, Worker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let worker = Worker::start(Registry::new(), Duration::from_secs(5));
/// // … and when the process is to end:
/// assert_eq!(worker.shutdown(Duration::from_secs(30)).await, 0, "nothing goes on");
/// # }
/// ```
#[must_use = "a worker that is dropped stops looking"]
pub struct Worker {
    agents: Registry,
    stop: CancellationToken,
    looking: Option<JoinHandle<()>>,
}

impl Worker {
    /// Looks now, and then so often.
    pub fn start(agents: Registry, every: Duration) -> Self {
        let stop = CancellationToken::new();
        let looking = tokio::spawn(look(agents.clone(), every.max(Duration::from_millis(1)), stop.clone()));
        Self { agents, stop, looking: Some(looking) }
    }

    /// Stops looking, and waits until nothing of the agents goes on in the background of this process, or so long. How many
    /// invocations still do is the answer: when the process ends, others can take them over.
    pub async fn shutdown(mut self, within: Duration) -> usize {
        self.stop.cancel();
        let started = tokio::time::Instant::now();
        if let Some(looking) = self.looking.take() {
            // A look that is under way is seen to its end, as long as there is time: a turn it has just taken counts.
            let _ = tokio::time::timeout(within, looking).await;
        }
        let mut left = 0;
        for agent in self.agents.agents() {
            left += agent.drain(within.saturating_sub(started.elapsed())).await;
        }
        left
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn look(agents: Registry, every: Duration, stop: CancellationToken) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        for agent in agents.agents() {
            match agent.recover().await {
                Ok(recovered) => recovered.iter().for_each(|what| match what {
                    Recovered::Failed(turn) => tracing::warn!(%turn, "a turn whose process died has failed"),
                    Recovered::Retried(turn) => tracing::info!(%turn, "a turn whose process died is tried again"),
                }),
                Err(error) => {
                    tracing::warn!(%error, agent = %agent.info().name, "dead turns could not be looked after; it is tried again")
                }
            }
        }
    }
}
