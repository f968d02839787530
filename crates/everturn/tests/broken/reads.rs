//! Broken reading: events, records, snapshots, artifacts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use everturn::store::*;
use everturn::{
    Changes, EndStatus, Event, Json, Point, PointState, Receipt, Record, Result, SessionKey, Snapshot, SnapshotStatus,
    Timestamp, ToolEntry, TurnStatus,
};

use super::{Breakage, Inner};

/// The tail is taken from the front.
#[derive(Debug)]
pub(crate) struct TailIsTheHead;

#[async_trait]
impl Breakage for TailIsTheHead {
    async fn events(&self, inner: &Inner, mut query: EventQuery) -> Result<Page<Event>> {
        let tail = query.tail.take();
        let mut page = inner.events(query).await?;
        page.items.truncate(tail.unwrap_or(usize::MAX));
        Ok(page)
    }
}

/// The last none are all.
#[derive(Debug)]
pub(crate) struct ZeroIsAll;

#[async_trait]
impl Breakage for ZeroIsAll {
    async fn events(&self, inner: &Inner, mut query: EventQuery) -> Result<Page<Event>> {
        query.tail = query.tail.filter(|tail| *tail > 0);
        inner.events(query).await
    }
}

/// `since` leaves its own moment out.
#[derive(Debug)]
pub(crate) struct SinceIsExclusive;

#[async_trait]
impl Breakage for SinceIsExclusive {
    async fn events(&self, inner: &Inner, mut query: EventQuery) -> Result<Page<Event>> {
        query.since = query.since.map(|since| since.plus(Duration::from_micros(1)));
        inner.events(query).await
    }
}

/// The tail is taken of what the time has left.
#[derive(Debug)]
pub(crate) struct TimeBeforeTail;

#[async_trait]
impl Breakage for TimeBeforeTail {
    async fn events(&self, inner: &Inner, mut query: EventQuery) -> Result<Page<Event>> {
        let tail = query.tail.take();
        let mut page = inner.events(query).await?;
        let skip = tail.map_or(0, |tail| page.items.len().saturating_sub(tail));
        page.items.drain(..skip);
        Ok(page)
    }
}

/// A page starts so and so many events from the first, wherever the line has gone since.
#[derive(Debug)]
pub(crate) struct PagesByOffset;

#[async_trait]
impl Breakage for PagesByOffset {
    async fn events(&self, inner: &Inner, query: EventQuery) -> Result<Page<Event>> {
        let mut all = query.clone();
        (all.cursor, all.limit) = (None, MAX_PAGE);
        let all = inner.events(all).await?.items;
        let start: usize = match &query.cursor {
            None => 0,
            Some(cursor) => match cursor.as_str().parse() {
                Ok(start) => start,
                Err(_) => return inner.events(query).await,
            },
        };
        let end = start + query.limit;
        let next = (end < all.len()).then(|| Cursor::from_text(end.to_string()));
        Ok(Page { items: all.into_iter().skip(start).take(query.limit).collect(), next })
    }
}

/// Void turns are always shown.
#[derive(Debug)]
pub(crate) struct ShowsVoidTurns;

#[async_trait]
impl Breakage for ShowsVoidTurns {
    async fn events(&self, inner: &Inner, query: EventQuery) -> Result<Page<Event>> {
        inner.events(query.with_voided()).await
    }
}

/// Times are kept to the second.
#[derive(Debug)]
pub(crate) struct TimesAreCut;

#[async_trait]
impl Breakage for TimesAreCut {
    async fn events(&self, inner: &Inner, query: EventQuery) -> Result<Page<Event>> {
        let mut page = inner.events(query).await?;
        for event in &mut page.items {
            event.at = event.at.map(|at| Timestamp::from_micros(at.as_micros() / 1_000_000 * 1_000_000));
        }
        Ok(page)
    }
}

/// Temporary keys are kept with their events.
#[derive(Debug, Default)]
pub(crate) struct StoresTemporaryKeys(Mutex<BTreeMap<String, Json>>);

#[async_trait]
impl Breakage for StoresTemporaryKeys {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let deltas = end.changes.events.iter().flat_map(|event| &event.state_delta);
        let temporary = deltas.filter(|(key, _)| key.starts_with("temp:"));
        self.0.lock().unwrap().extend(temporary.map(|(key, value)| (key.clone(), value.clone())));
        inner.end(end).await
    }

    async fn events(&self, inner: &Inner, query: EventQuery) -> Result<Page<Event>> {
        let mut page = inner.events(query).await?;
        for event in &mut page.items {
            event.state_delta.extend(self.0.lock().unwrap().clone());
        }
        Ok(page)
    }

    async fn scopes(
        &self,
        inner: &Inner,
        app: &everturn::AppName,
        user: Option<&everturn::UserId>,
    ) -> Result<everturn::ScopedState> {
        let mut scopes = inner.scopes(app, user).await?;
        scopes.extend(self.0.lock().unwrap().clone());
        Ok(scopes)
    }
}

/// What is void is not in the log.
#[derive(Debug)]
pub(crate) struct LogHidesVoids;

#[async_trait]
impl Breakage for LogHidesVoids {
    async fn records(&self, inner: &Inner, query: RecordQuery) -> Result<Page<Record>> {
        let mut page = inner.records(query).await?;
        page.items.retain(|record| !record.voided);
        Ok(page)
    }
}

/// A head's state is read once.
#[derive(Debug, Default)]
pub(crate) struct HeadsAreRemembered(Mutex<HashMap<String, PointState>>);

#[async_trait]
impl Breakage for HeadsAreRemembered {
    async fn state(&self, inner: &Inner, at: At) -> Result<Option<PointState>> {
        let At::Head(key, branch) = &at else { return inner.state(at).await };
        let name = format!("{key}@{branch}");
        let known = self.0.lock().unwrap().get(&name).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let state = inner.state(at).await?;
        self.0.lock().unwrap().extend(state.clone().map(|state| (name, state)));
        Ok(state)
    }
}

/// A place that is not there reads as the head.
#[derive(Debug)]
pub(crate) struct NowhereIsTheHead;

#[async_trait]
impl Breakage for NowhereIsTheHead {
    async fn state(&self, inner: &Inner, at: At) -> Result<Option<PointState>> {
        match (inner.state(at.clone()).await?, at) {
            (None, At::Point(key, _)) => inner.state(At::head(key)).await,
            (found, _) => Ok(found),
        }
    }
}

/// A pending snapshot stays pending, whoever died.
#[derive(Debug)]
pub(crate) struct PendingNeverExpires;

#[async_trait]
impl Breakage for PendingNeverExpires {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        let mut found = inner.snapshot(which).await?;
        if let Some(found) = found.as_mut().filter(|found| found.status == SnapshotStatus::Expired) {
            found.status = SnapshotStatus::Pending;
        }
        Ok(found)
    }
}

/// The latest snapshot is the latest settled one.
#[derive(Debug)]
pub(crate) struct LatestIgnoresPending;

#[async_trait]
impl Breakage for LatestIgnoresPending {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        match which {
            SnapshotRef::Latest(key) => inner.snapshot(SnapshotRef::LatestResumable(key)).await,
            other => inner.snapshot(other).await,
        }
    }
}

/// The latest snapshot is the newest in the log, wherever the head stands.
#[derive(Debug)]
pub(crate) struct LatestIgnoresTheHead;

#[async_trait]
impl Breakage for LatestIgnoresTheHead {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        match which {
            SnapshotRef::Latest(key) => Ok(inner.snapshots(ListSnapshots::of(key).newest_first()).await?.items.pop()),
            other => inner.snapshot(other).await,
        }
    }
}

/// The nearest snapshot is the head's, whatever the point.
#[derive(Debug)]
pub(crate) struct NearestIgnoresThePoint;

#[async_trait]
impl Breakage for NearestIgnoresThePoint {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        match which {
            SnapshotRef::Nearest(key, _) => inner.snapshot(SnapshotRef::LatestResumable(key)).await,
            other => inner.snapshot(other).await,
        }
    }
}

/// Only snapshots that were taken are counted.
#[derive(Debug)]
pub(crate) struct CountsTakenSnapshots;

#[async_trait]
impl Breakage for CountsTakenSnapshots {
    async fn snapshot(&self, inner: &Inner, which: SnapshotRef) -> Result<Option<Snapshot>> {
        let mut found = inner.snapshot(which).await?;
        if let Some(found) = &mut found
            && let Some(key) = found.session.clone()
        {
            let listed = inner.snapshots(ListSnapshots::of(key)).await?.items;
            let before = listed.iter().take_while(|other| other.snapshot_id != found.snapshot_id);
            found.index = before.count() as u64;
        }
        Ok(found)
    }
}

/// A rewind hides the versions ahead of the head.
#[derive(Debug)]
pub(crate) struct VersionsAreRewound;

#[async_trait]
impl Breakage for VersionsAreRewound {
    async fn artifacts(&self, inner: &Inner, query: ArtifactQuery) -> Result<Vec<StoredArtifact>> {
        let head = inner.existing(&query.session).await?.head;
        let mut found = inner.artifacts(query).await?;
        found.retain(|stored| stored.version.point <= head);
        Ok(found)
    }
}

/// A failed turn uses versions up.
#[derive(Debug)]
pub(crate) struct VoidsBurnVersions;

#[async_trait]
impl Breakage for VoidsBurnVersions {
    async fn end(&self, inner: &Inner, end: EndTurn) -> Result<Receipt> {
        let session = inner.turn(end.fence.turn()).await?.map(|turn| turn.session);
        let mut burnt = Changes::new();
        burnt.artifacts = end.changes.artifacts.clone();
        let failed = end.status == EndStatus::Failed;
        let receipt = inner.end(end).await?;
        if let Some(session) = session.filter(|_| failed && !burnt.artifacts.is_empty()) {
            inner.commit(Commit::new(session, burnt)).await?;
        }
        Ok(receipt)
    }
}

/// Of two equal contents one version is kept.
#[derive(Debug)]
pub(crate) struct EqualContentIsOneVersion;

#[async_trait]
impl Breakage for EqualContentIsOneVersion {
    async fn artifacts(&self, inner: &Inner, query: ArtifactQuery) -> Result<Vec<StoredArtifact>> {
        let mut seen = BTreeSet::new();
        let mut found = inner.artifacts(query).await?;
        found.retain(|stored| seen.insert((stored.version.name.clone(), stored.version.digest)));
        Ok(found)
    }
}

/// Tool calls are written down when they have answered.
#[derive(Debug)]
pub(crate) struct NotesToolsLate;

#[async_trait]
impl Breakage for NotesToolsLate {
    async fn step(&self, inner: &Inner, mut step: StepTurn) -> Result<Receipt> {
        step.changes.tools.retain(|entry: &ToolEntry| entry.phase != everturn::ToolPhase::Started);
        inner.step(step).await
    }
}

/// The head is read one record early.
#[derive(Debug)]
pub(crate) struct HeadLagsBehind;

#[async_trait]
impl Breakage for HeadLagsBehind {
    async fn session(&self, inner: &Inner, key: &everturn::SessionKey) -> Result<Option<everturn::SessionRecord>> {
        let mut found = inner.session(key).await?;
        if let Some(found) = &mut found {
            found.head = Point::new(found.head.seq().saturating_sub(1).max(1));
        }
        Ok(found)
    }
}

/// A tree shows what completed, and nothing else.
#[derive(Debug)]
pub(crate) struct TreesHideVoids;

#[async_trait]
impl Breakage for TreesHideVoids {
    async fn tree(&self, inner: &Inner, query: TreeQuery) -> Result<TreePage> {
        let mut page = inner.tree(query).await?;
        page.nodes.retain(|node| node.status == TurnStatus::Completed);
        Ok(page)
    }
}

/// An export has what is on `main`.
#[derive(Debug)]
pub(crate) struct ExportsMainOnly;

#[async_trait]
impl Breakage for ExportsMainOnly {
    async fn export(&self, inner: &Inner, session: &SessionKey, cursor: Option<&Cursor>) -> Result<ExportPage> {
        let mut page = inner.export(session, cursor).await?;
        for entry in &mut page.entries {
            if let Entry::Session(session) = entry {
                session.branches.retain(|branch| branch.name.is_main());
            }
        }
        Ok(page)
    }
}

/// What is kept lies deep in an export, whatever it is itself.
#[derive(Debug)]
pub(crate) struct ExportsTooDeep;

#[async_trait]
impl Breakage for ExportsTooDeep {
    async fn export(&self, inner: &Inner, session: &SessionKey, cursor: Option<&Cursor>) -> Result<ExportPage> {
        let mut page = inner.export(session, cursor).await?;
        for entry in &mut page.entries {
            if let Entry::Session(session) = entry {
                let deeper = "[".repeat(127) + &"]".repeat(127);
                session.metadata = serde_json::from_str(&format!("{{\"m\":{deeper}}}")).expect("what may be read");
            }
        }
        Ok(page)
    }
}

/// A page has as many items as were asked for, whatever they weigh.
#[derive(Debug)]
pub(crate) struct PagesOfAnyWeight;

#[async_trait]
impl Breakage for PagesOfAnyWeight {
    async fn records(&self, inner: &Inner, query: RecordQuery) -> Result<Page<Record>> {
        let mut page = inner.records(query.clone().bytes(MAX_PAGE_BYTES)).await?;
        while let Some(next) = page.next.take().filter(|_| page.items.len() < query.limit) {
            let rest = inner.records(query.clone().bytes(MAX_PAGE_BYTES).from(next)).await?;
            page.items.extend(rest.items);
            page.next = rest.next;
        }
        Ok(page)
    }

    async fn artifacts(&self, inner: &Inner, query: ArtifactQuery) -> Result<Vec<StoredArtifact>> {
        inner.artifacts(query.bytes(MAX_PAGE_BYTES)).await
    }
}

/// Where a page is full for its bytes, it goes on behind the item that had no room.
#[derive(Debug)]
pub(crate) struct LeavesOutTheHeavy;

#[async_trait]
impl Breakage for LeavesOutTheHeavy {
    async fn records(&self, inner: &Inner, query: RecordQuery) -> Result<Page<Record>> {
        let mut page = inner.records(query.clone()).await?;
        if let Some(next) = page.next.take_if(|_| page.items.len() < query.limit) {
            page.next = inner.records(query.from(next).limit(1)).await?.next;
        }
        Ok(page)
    }
}
