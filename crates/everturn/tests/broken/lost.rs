//! Stores that do the wrong thing about turns that are lost.

use async_trait::async_trait;
use everturn::store::*;
use everturn::{Begun, ErrorKind, Receipt, Result, TurnId, TurnStatus};

use super::{Breakage, Inner};

/// A turn that was lost has failed for good, as one that failed by itself.
#[derive(Debug)]
pub(crate) struct LostForGood;

#[async_trait]
impl Breakage for LostForGood {
    async fn end(&self, inner: &Inner, mut end: EndTurn) -> Result<Receipt> {
        end.outcome.lost = false;
        inner.end(end).await
    }
}

/// What is given up is written down and goes on holding what it held.
#[derive(Debug)]
pub(crate) struct LostTurnsLinger;

#[async_trait]
impl Breakage for LostTurnsLinger {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        if end.outcome.lost {
            return inner.step(StepTurn::new(end.fence, end.changes)).await;
        }
        inner.end(end).await
    }
}

/// Who takes over what was lost is told that it has ended.
#[derive(Debug)]
pub(crate) struct TakesOverTheDeadOnly;

#[async_trait]
impl Breakage for TakesOverTheDeadOnly {
    async fn take_over(&self, inner: &Inner, turn: TurnId) -> Result<Begun> {
        match inner.turn(turn).await? {
            Some(found) if found.status == TurnStatus::Failed => {
                Err(everturn::Error::new(ErrorKind::Conflict, "it has ended"))
            }
            _ => inner.take_over(turn).await,
        }
    }
}
