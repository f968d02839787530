//! A turn with the same key runs already: whoever asks again is shown that one.

use super::Run;
use crate::agent::Output;
use crate::agent::follow::{Following, OnDeath};
use crate::connection::Ticket;
use crate::snapshot::FinishReason;
use crate::store::Store;
use crate::stream::Reader;
use crate::turn::{EndedTurn, RunningTurn};
use crate::{Error, ErrorKind, Result, TurnId};

/// What attaching to a turn came to.
pub(super) enum Attached {
    /// It has ended.
    Ended(Box<EndedTurn>),
    /// Its process died: with the same key it can be taken over.
    Died,
}

impl Run {
    /// Hands on what a turn says, wherever it runs, until it has ended. What was said before is handed on if it is kept.
    pub(super) async fn attach(&self, store: &dyn Store, turn: TurnId) -> Result<Attached> {
        let mut following = Following::of(&self.def, turn, None).await?.on_death(OnDeath::Tell);
        self.show_ticket(store, turn).await?;
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Error::aborted("nobody waits for the turn any more")),
                next = following.next() => next,
            };
            match next {
                Ok(Some(followed)) => {
                    if self.out.send(followed.chunk).await == Reader::Gone {
                        return Err(Error::aborted("nobody waits for the turn any more"));
                    }
                }
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(Attached::Died),
                Err(error) => return Err(error),
            }
        }
        match store.turn(turn).await?.and_then(|turn| turn.ended) {
            // It was not kept: with the same key it runs again.
            Some(ended) if ended.outcome.lost => Ok(Attached::Died),
            Some(ended) => Ok(Attached::Ended(Box::new(ended))),
            None => Err(Error::unavailable(format!(
                "turn {turn} has failed, and the store cannot write that yet: try again later"
            ))),
        }
    }

    async fn show_ticket(&self, store: &dyn Store, turn: TurnId) -> Result<()> {
        let Some(record) = store.turn(turn).await? else { return Ok(()) };
        let running = store.running(Some(&record.session)).await?;
        let running = running.into_iter().find(|running| running.turn == turn);
        let snapshot_id = match running {
            Some(running) => running.snapshot_id,
            None => record.ended.and_then(|ended| ended.snapshot_id),
        };
        self.ticket.send_replace(Some(Ticket { turn, session: record.session.id, snapshot_id }));
        Ok(())
    }

    /// The answer to whoever asks again for a turn that was sent to the background: where to look for what becomes of it.
    pub(super) async fn already_detached(&self, store: &dyn Store, turn: TurnId) -> Result<Option<Output>> {
        let Some(record) = store.turn(turn).await? else { return Ok(None) };
        let running = store.running(Some(&record.session)).await?;
        let detached = |running: &&RunningTurn| running.turn == turn && running.detached;
        let Some(id) = running.iter().find(detached).and_then(|running| running.snapshot_id) else { return Ok(None) };
        let mut output = Output::new(record.session.id, record.invocation);
        output.snapshot_id = Some(id);
        output.snapshot_ids.push(id);
        output.finish_reason = Some(FinishReason::Detached);
        Ok(Some(output))
    }
}
