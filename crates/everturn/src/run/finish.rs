//! How an invocation ends, and what it leaves its caller with.

use std::sync::Arc;

use super::begin::note_snapshot;
use super::work::Phase;
use super::{Known, Place, Run};
use crate::agent::policy::LastSnapshot;
use crate::agent::{Output, SharedState};
use crate::snapshot::{FinishReason, SnapshotEvent};
use crate::stream::Chunk;
use crate::turn::{Input, NewSnapshot};
use crate::{Result, SnapshotId};

impl Run {
    /// Ends the invocation: what was changed after the last turn is kept, the policy asked once more.
    pub(crate) async fn finish(self: &Arc<Self>, unprocessed: Vec<Input>) -> Result<Output> {
        let mut place = self.place.lock().await;
        let before = self.close();
        let failed = place.error.is_some() || place.finish_reason == Some(FinishReason::Aborted);
        // A handler that owns its loop may go on after a turn that failed, and what it changed then counts.
        let edited = before == Phase::Between && self.work().is_edited();
        if (!failed || edited)
            && place.point.is_some()
            && let Err(error) = self.write_invocation_end(&mut place).await
        {
            // The turns are kept; what came after them is not.
            place.error = Some((&error).into());
            place.finish_reason = Some(FinishReason::Failed);
            self.work().roll_back();
        }
        // What was changed after the last chunk and found no room then, or was dropped since, is told last.
        self.tell_shown();
        let _ = self.catch_up().await;
        self.output(&mut place, unprocessed).await
    }

    /// From here on nothing can be changed: what is written is all there is. What it was before is the answer.
    fn close(&self) -> Phase {
        let mut work = self.work();
        let before = work.phase;
        if before != Phase::Aborted {
            work.phase = Phase::Ended;
        }
        before
    }

    async fn write_invocation_end(&self, place: &mut Place) -> Result<()> {
        let edited = self.work().is_edited();
        let digest = match place.digest {
            Some(digest) if !edited => digest,
            _ => self.work().digests()?.state(),
        };
        let wanted = self.wants_snapshot(place, SnapshotEvent::InvocationEnd, Some(digest)).await?;
        // What has a name needs no second one.
        let wanted = wanted && self.last_snapshot(place).await?.is_none_or(|last| last.digest != digest);
        if !wanted && !edited {
            return Ok(());
        }
        let snapshot = wanted.then(|| NewSnapshot::new(self.def.snapshot_id()));
        let receipt = self.write_edit(place, Some(SnapshotEvent::InvocationEnd), snapshot).await?;
        if let Some(receipt) = receipt
            && let Some(id) = receipt.snapshot_id
        {
            place.snapshot_ids.push(id);
            place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
            note_snapshot(&tracing::Span::current(), self.def.name.as_str(), id);
            let _ = self.send(Chunk::snapshot_created(id)).await;
        }
        Ok(())
    }

    pub(super) async fn output(&self, place: &mut Place, unprocessed: Vec<Input>) -> Result<Output> {
        if let Some(error) = place.in_doubt.take() {
            return Err(error);
        }
        let failed = place.error.is_some() || place.finish_reason == Some(FinishReason::Aborted);
        // A snapshot names what was reached only if nothing was written after it.
        let named = match place.point {
            Some(point) => {
                let last = self.last_snapshot(place).await?;
                last.filter(|last| last.point == point || Some(last.digest) == place.digest).map(|last| last.id)
            }
            None => None,
        };
        let shown = self.def.transforms.state(self.shared_state(), &self.caller())?;
        let signature = match &self.def.signing {
            Some(keys) => Some(keys.sign(&self.def.name, &shown.to_session_state())?),
            None => None,
        };
        let state = match named {
            Some(id) if !failed => shown.with_snapshot_id(id),
            _ => shown,
        };
        let work = self.work();
        Ok(Output {
            session_id: work.session.clone(),
            invocation_id: self.invocation.clone(),
            output: place.output.clone(),
            message: if failed || place.finish_reason.is_none() { None } else { state.messages.last().cloned() },
            artifacts: state.artifacts.to_vec(),
            state,
            signature,
            snapshot_id: named,
            snapshot_ids: place.snapshot_ids.clone(),
            finish_reason: place.finish_reason,
            error: place.error.clone(),
            usage: work.spent,
            usage_by_model: work.spent_by_model.clone(),
            point: place.point,
            on_head: place.on_head,
            unprocessed,
        })
    }
}

impl SharedState {
    /// The same with the id of the snapshot on the last message, so that a client knows what to come back to.
    fn with_snapshot_id(mut self, id: SnapshotId) -> Self {
        if let Some(last) = self.messages.last().map(|last| last.with_snapshot_id(id)) {
            self.messages.truncate(self.messages.len() - 1);
            self.messages.push(last);
        }
        self
    }
}
