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

struct RuleJob<T, F> {
    sync: Sync,
    effort: Effort,
    rule: F,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

/// A rule to run, and where its answer comes.
pub(super) fn job<T, F>(sync: Sync, effort: Effort, rule: F) -> (Box<dyn Job>, oneshot::Receiver<Result<T>>)
where
    T: Send + 'static,
    F: FnMut(&mut Ctx<'_>) -> Result<T> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    (Box::new(RuleJob { sync, effort, rule, result: None, reply }), answer)
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

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Self { rule, result, reply, .. } = *self;
        // Before the answer: whoever asked is to be the last to let go of what the rule held, and frees what it allocated.
        drop(rule);
        let result = outcome.and_then(|()| result.unwrap_or_else(|| Err(Error::internal("a rule did not run"))));
        let _ = reply.send(result);
    }
}

/// Whether a rule broke down, possibly in the middle of writing, rather than refused before it wrote.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Internal)
}
