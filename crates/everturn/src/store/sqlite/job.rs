//! A write on its way: a rule, and somebody who waits for its answer.

use tokio::sync::oneshot;

use super::super::engine::{Ctx, Effort, Sync};
use crate::{Error, ErrorKind, Result};

/// A rule with somebody waiting for its answer.
pub(super) trait Job: Send {
    fn sync(&self) -> Sync;
    fn effort(&self) -> Effort;
    /// Runs the rule. An error means that it failed, not that it refused.
    fn run(&mut self, ctx: &mut Ctx<'_>) -> Result<()>;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

/// A rule, and what came of it. All of it goes back to whoever asked, who frees what it allocated.
struct RuleJob<T, F> {
    sync: Sync,
    effort: Effort,
    rule: F,
    result: Option<Result<T>>,
    reply: Option<oneshot::Sender<Box<Self>>>,
}

/// Where the answer to a job comes.
pub(super) struct Answer<T, F>(oneshot::Receiver<Box<RuleJob<T, F>>>);

/// A rule to run, and where its answer comes.
pub(super) fn job<T, F>(sync: Sync, effort: Effort, rule: F) -> (Box<dyn Job>, Answer<T, F>)
where
    T: Send + 'static,
    F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    (Box::new(RuleJob { sync, effort, rule, result: None, reply: Some(reply) }), Answer(answer))
}

impl<T, F> Answer<T, F> {
    pub(super) async fn wait(self) -> Result<T> {
        let job = self.0.await.map_err(|_| Error::internal("the writer has stopped"))?;
        job.result.unwrap_or_else(|| Err(Error::internal("a rule did not run")))
    }
}

impl<T: Send, F: FnMut(&mut Ctx<'_>) -> Result<T> + Send> Job for RuleJob<T, F> {
    fn sync(&self) -> Sync {
        self.sync
    }

    fn effort(&self) -> Effort {
        self.effort
    }

    fn run(&mut self, ctx: &mut Ctx<'_>) -> Result<()> {
        match (self.rule)(ctx) {
            Err(error) if is_failure(&error) => Err(error),
            result => {
                self.result = Some(result);
                Ok(())
            }
        }
    }

    fn answer(mut self: Box<Self>, outcome: Result<()>) {
        if let Err(error) = outcome {
            // What was refused wrote nothing, but was refused for what may not be kept.
            let refused = matches!(self.result, Some(Err(_))) && error.kind() == ErrorKind::UnknownOutcome;
            let again = || Error::unavailable("the disk failed while others wrote: try again when the store is open");
            self.result = Some(Err(if refused { again() } else { error }));
        }
        if let Some(reply) = self.reply.take() {
            // Nobody may be waiting any more.
            let _ = reply.send(self);
        }
    }
}

/// Whether a rule broke down, possibly in the middle of writing, rather than refused before it wrote.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Internal)
}
