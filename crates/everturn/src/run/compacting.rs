//! Compacting by itself, before a turn begins.

use super::{Known, Next, Place, Run};
use crate::compact::{AutoCompaction, HeadCompaction, Written};
use crate::session::SessionKey;
use crate::state::PointState;
use crate::store::{At, Store};
use crate::turn::Input;
use crate::{BranchName, ErrorKind, Result};

/// Where the next turn will start, if that is where a branch stands.
struct Head {
    key: SessionKey,
    branch: BranchName,
    state: PointState,
}

impl Run {
    /// Compacts what the next turn starts from, if the agent's policy says so. Whatever goes wrong, the turn goes on.
    pub(super) async fn compact_first(&self, place: &mut Place, input: &Input) {
        let (Some(auto), Some(store)) = (&self.def.compaction, &self.def.store) else { return };
        let compacting = tokio::time::timeout(auto.patience, self.compact_head(place, auto, &**store, input));
        let compacted = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return,
            compacted = compacting => compacted,
        };
        match compacted {
            Ok(Ok(None)) => {}
            Ok(Ok(Some((head, written)))) => self.stand_on(place, &head, written),
            Ok(Err(error))
                if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy | ErrorKind::NotResumable) =>
            {
                tracing::debug!(%error, "nothing is compacted now");
            }
            Ok(Err(error)) => tracing::warn!(%error, "a session was not compacted; its turn goes on with all of it"),
            Err(_) => tracing::warn!(
                waited = ?auto.patience,
                "the summariser took too long; the turn goes on with all that was said"
            ),
        }
    }

    async fn compact_head(
        &self,
        place: &Place,
        auto: &AutoCompaction,
        store: &dyn Store,
        input: &Input,
    ) -> Result<Option<(Head, Written)>> {
        let Some(head) = head_before(place, store).await? else { return Ok(None) };
        // A turn that will be refused is not paid for.
        if place.expect.is_some_and(|expect| expect != head.state.point()) {
            return Ok(None);
        }
        if !auto.is_due(store, &head.key, &head.state, input).await? {
            return Ok(None);
        }
        let compaction = HeadCompaction {
            store,
            key: head.key.clone(),
            branch: head.branch.clone(),
            agent: &self.def.name,
            invocation: self.invocation.clone(),
            snapshot: (!self.def.policy.is_never()).then(|| self.def.snapshot_id()),
        };
        let summarise = |messages| auto.summariser.summarise(messages);
        Ok(compaction.run(&head.state, &auto.options, summarise).await?.map(|written| (head, written)))
    }

    /// The turn starts after the compaction, as if nothing had been in between.
    fn stand_on(&self, place: &mut Place, head: &Head, written: Written) {
        let point = written.receipt.point;
        if place.expect.is_some() {
            place.expect = Some(point);
        }
        if !matches!(place.next, Next::Head) {
            place.next = Next::Point(point);
        }
        let mut work = self.work();
        work.spent.add(&written.record.usage);
        if place.point == Some(head.state.point()) {
            place.point = Some(point);
            place.digest = Some(written.receipt.digest);
            place.last_snapshot = Known::NotYet;
            work.show(written.view);
        }
    }
}

async fn head_before(place: &Place, store: &dyn Store) -> Result<Option<Head>> {
    let Some(key) = place.key.clone() else { return Ok(None) };
    let at = match &place.next {
        Next::Fresh(_) | Next::Working | Next::TakeOver(_) => return Ok(None),
        Next::Head => {
            let branch = place.branch.clone().unwrap_or_default();
            let state = store.state(At::Head(key.clone(), branch.clone())).await?;
            return Ok(state.map(|state| Head { key, branch, state }));
        }
        // A key stands for where its turn starts. Asked again it would start elsewhere, and be refused.
        Next::Snapshot(_) | Next::Point(_) if place.turn_key.is_some() => return Ok(None),
        Next::Snapshot(id) => At::Snapshot(*id),
        Next::Point(point) => At::Point(key.clone(), *point),
    };
    let (Some(state), Some(session)) = (store.state(at).await?, store.session(&key).await?) else { return Ok(None) };
    let stands = |branch: &&crate::Branch| {
        branch.head == state.point() && place.branch.as_ref().is_none_or(|named| *named == branch.name)
    };
    let branch = session.branches.iter().find(stands).map(|branch| branch.name.clone());
    Ok(branch.map(|branch| Head { key, branch, state }))
}
