//! Compactions as they are kept and read.

use serde::{Deserialize, Serialize};

use crate::event::{Event, EventKind};
use crate::json::Json;
use crate::message::Message;
use crate::session::SessionKey;
use crate::state::{Messages, PointState, View};
use crate::store::{At, EventQuery, MAX_PAGE, Store};
use crate::{BranchName, Point, Result, Timestamp, Usage};

/// What a compaction inside a turn did. It counts once the turn completes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Compacted {
    /// What is no longer shown, as the model was shown it: of a second compaction that is the first one's summary and
    /// what was said since.
    pub replaced: Vec<Message>,
    /// What is shown instead.
    pub summary: Vec<Message>,
    /// What the summary cost.
    pub usage: Usage,
}

/// A compaction that is kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CompactionRecord {
    /// The point from which the model is shown the summary. Going back to one before it undoes it.
    pub point: Point,
    /// When it was made.
    pub at: Timestamp,
    /// What is no longer shown, as the model was shown it: of a second compaction that is the first one's summary and
    /// what was said since.
    pub replaced: Vec<Message>,
    /// What is shown instead.
    pub summary: Vec<Message>,
    /// What the summary cost.
    pub usage: Usage,
}

/// What a compaction's event says: what the model is shown from here on, and what it was shown before.
///
/// What was replaced is not copied; it can be told from both and from the messages, which are all there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) view: View,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<View>,
}

impl Noted {
    pub(crate) fn event(&self, agent: &str, usage: Usage) -> Result<Event> {
        let mut event = Event::new(agent);
        event.kind = EventKind::Compaction;
        event.usage = (!usage.is_empty()).then_some(usage);
        event.metadata = Some(Json::from_value(self)?);
        Ok(event)
    }

    /// What the event of a compaction says; of one that somebody else wrote, what can be told from the state there.
    fn read(event: &Event, state: &PointState, last: Option<&View>) -> Option<Self> {
        let noted = event.metadata.as_ref().and_then(|noted| noted.to().ok());
        noted.or_else(|| Some(Self { view: state.view()?.clone(), before: last.cloned() }))
    }

    fn replaced(&self, messages: &Messages) -> Vec<Message> {
        let pinned = |index: usize| self.view.pinned.contains(&(index as u64));
        let hidden = self.before.as_ref().map_or(0, View::hidden);
        let shown = self.before.as_ref().map(|view| view.kept(messages)).unwrap_or_default();
        let said = shown.into_iter().chain(hidden..self.view.hidden()).filter(|index| !pinned(*index));
        let summary = self.before.iter().flat_map(|view| view.summary.clone());
        summary.chain(said.filter_map(|index| messages.get(index).cloned())).collect()
    }
}

/// The compactions on the line of a branch, the oldest first, each with the state at its point.
pub(crate) async fn history(
    store: &dyn Store,
    key: &SessionKey,
    branch: &BranchName,
) -> Result<Vec<(CompactionRecord, PointState)>> {
    let mut query = EventQuery::at(At::Head(key.clone(), branch.clone())).limit(MAX_PAGE);
    let mut records = Vec::new();
    let mut last = None;
    loop {
        let page = store.events(query.clone()).await?;
        for event in page.items.into_iter().filter(|event| event.kind == EventKind::Compaction) {
            let Some(state) = state_with(store, key, event.seq).await? else { continue };
            let Some(noted) = Noted::read(&event, &state, last.as_ref()) else { continue };
            let record = CompactionRecord {
                point: state.point(),
                at: event.at.unwrap_or_default(),
                replaced: noted.replaced(state.messages()),
                summary: noted.view.summary.clone(),
                usage: event.usage.unwrap_or_default(),
            };
            last = Some(noted.view);
            records.push((record, state));
        }
        let Some(next) = page.next else { return Ok(records) };
        query = query.from(next);
    }
}

/// The state at the record that holds an event. A record is named by its first event, and may have others before ours.
async fn state_with(store: &dyn Store, key: &SessionKey, seq: u64) -> Result<Option<PointState>> {
    for seq in (1..=seq).rev() {
        let state = store.state(At::Point(key.clone(), Point::new(seq))).await?;
        if state.is_some() {
            return Ok(state);
        }
    }
    Ok(None)
}
