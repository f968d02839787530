//! What a turn writes on its way.

use std::sync::Arc;

use super::begin::note_snapshot;
use super::{Known, Place, Run};
use crate::agent::policy::LastSnapshot;
use crate::snapshot::SnapshotEvent;
use crate::store::{StepTurn, Store};
use crate::stream::Chunk;
use crate::turn::{Begun, NewSnapshot, Receipt};
use crate::{Result, SnapshotId};

impl Run {
    /// All tools of one model iteration have answered: a point inside the turn, if the policy wants it named.
    pub(crate) async fn tool_iteration_end(self: &Arc<Self>) -> Result<Option<SnapshotId>> {
        let run = self.clone();
        self.to_its_end(async move { run.write_tool_iteration().await }).await?
    }

    /// Writes what was changed so far, tool calls too: on disk when it returns. Without a store there is nowhere to.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<()> {
        let run = self.clone();
        let flush = async move {
            let place = run.place.lock().await;
            let (Some(store), Some(begun)) = (&run.def.store, &place.begun) else { return Ok(()) };
            run.write_step(&**store, begun, None, None).await.map(drop)
        };
        self.to_its_end(flush).await?
    }

    async fn write_tool_iteration(&self) -> Result<Option<SnapshotId>> {
        let mut place = self.place.lock().await;
        let (Some(store), Some(begun)) = (&self.def.store, place.begun.clone()) else { return Ok(None) };
        let span = tracing::info_span!(
            parent: &place.span,
            "sessionFlow/toolIteration",
            "genkit:metadata:agent" = tracing::field::Empty,
            "genkit:metadata:sessionFlow" = tracing::field::Empty,
            "genkit:metadata:snapshotId" = tracing::field::Empty,
        );
        let event = SnapshotEvent::ToolIterationEnd;
        let named = self.wants_snapshot(&mut place, event, None).await?;
        let id = named.then(|| self.def.snapshot_id());
        let receipt = self.write_step(&**store, &begun, Some(event), id).await?;
        place.index += 1;
        let Some(id) = id else { return Ok(None) };
        self.named_inside(&mut place, id, &receipt);
        note_snapshot(&span, self.def.name.as_str(), id);
        drop(place);
        self.send(Chunk::snapshot_created(id)).await?;
        Ok(Some(id))
    }

    fn named_inside(&self, place: &mut Place, id: SnapshotId, receipt: &Receipt) {
        place.snapshot_ids.push(id);
        place.last_snapshot = Known::Is(Some(LastSnapshot { id, digest: receipt.digest, point: receipt.point }));
    }

    async fn write_step(
        &self,
        store: &dyn Store,
        begun: &Begun,
        event: Option<SnapshotEvent>,
        snapshot: Option<SnapshotId>,
    ) -> Result<Receipt> {
        let (changes, taken) = {
            let mut work = self.work();
            (work.changes(self.def.upcasters.version()), work.take())
        };
        let mut step = StepTurn::new(begun.fence, changes);
        step.event = event;
        step.snapshot = snapshot.map(NewSnapshot::new);
        let receipt = match store.step(step).await {
            Ok(receipt) => receipt,
            Err(error) => {
                self.work().put_back(&self.def.name, taken)?;
                return Err(error);
            }
        };
        let mut work = self.work();
        work.older_schema = false;
        work.at = Some(receipt.point);
        Ok(receipt)
    }
}
