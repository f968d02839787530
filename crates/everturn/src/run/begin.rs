//! How a turn of an invocation begins.

use std::sync::Arc;

use super::attach::Attached;
use super::start::check_custom;
use super::work::{Content, Phase, Work};
use super::{Known, Next, Place, Run, Running, Stop, TurnHandle};
use crate::agent::Output;
use crate::agent::definition::ContentInSpans;
use crate::agent::policy::LastSnapshot;
use crate::aside::beside;
use crate::connection::Ticket;
use crate::json::Json;
use crate::snapshot::SnapshotEvent;
use crate::state::{PointState, Scope, StateDelta, keys_weight, split_key};
use crate::store::{At, BeginTurn, Busy, Commit, SnapshotRef, Start};
use crate::turn::{Begin, Begun, EndedTurn, Input, NewSnapshot, Receipt};
use crate::{Error, ErrorKind, Result};

/// What beginning a turn led to.
pub(crate) enum Beginning {
    /// Go ahead.
    Turn(TurnHandle),
    /// There was a turn with that key before; nothing runs here.
    Instead(Instead),
}

/// What there is instead of a turn that begins.
pub(crate) enum Instead {
    /// The turn with that key has ended.
    Ended(Box<EndedTurn>),
    /// It goes on in the background.
    Detached(Box<Output>),
}

impl Run {
    /// Begins a turn with an input. While it begins nothing can be changed: it would belong to no turn.
    pub(crate) async fn begin_turn(self: &Arc<Self>, input: Input) -> Result<Beginning> {
        let mut place = self.place.lock().await;
        if input.detach && self.def.store.is_none() {
            return Err(self.needs_store_to_detach());
        }
        let before = std::mem::replace(&mut self.work().phase, Phase::Ended);
        let beginning = self.begin_after(&mut place, before, input).await;
        if beginning.is_err() {
            self.work().phase = before;
        }
        beginning
    }

    async fn begin_after(self: &Arc<Self>, place: &mut Place, before: Phase, input: Input) -> Result<Beginning> {
        // What a handler that owns its loop changed between two turns is an edit where it stood.
        if before == Phase::Between && self.work().is_edited() {
            self.write_edit(place, None, None).await?;
        }
        self.compact_first(place, &input).await;
        let stood = place.point;
        // What an older turn was stopped for says nothing about this one.
        self.take_stop();
        let handle = match place.next.clone() {
            Next::Working => self.begin_working(place, input)?,
            next => match self.begin_stored(place, next, input).await? {
                Ok(handle) => handle,
                Err(instead) => return Ok(Beginning::Instead(instead)),
            },
        };
        // A state that cannot be shown stops the turn by itself.
        let _ = self.tell_anew(&handle.input);
        let head_moved = stood.is_some() && stood != place.point;
        Ok(Beginning::Turn(TurnHandle { head_moved, ..handle }))
    }

    fn begin_working(self: &Arc<Self>, place: &mut Place, input: Input) -> Result<TurnHandle> {
        if let Some(key) = shared_key(&input.state_delta) {
            return Err(needs_store(key));
        }
        let mut work = self.work();
        let mut content = work.now.clone();
        for message in &input.messages {
            content.messages.push(message.clone().without_snapshot_id()?);
        }
        let delta = input.state_delta.of_scope(Scope::Session);
        if !delta.is_empty() {
            let changed = content.custom.as_ref().map_or(0, |custom| custom.as_str().len()) + keys_weight(&delta.set);
            content.custom = beside(changed, || {
                let mut custom = content.custom.as_ref().map(Json::node).transpose()?;
                delta.apply_to(&mut custom)?;
                Ok::<_, Error>(custom.map(|node| Json::trusted(node.print())))
            })?;
        }
        work.now = content;
        work.settle();
        work.turn_index = place.turn_index;
        open(&mut work, &input);
        drop(work);
        Ok(self.handle(place, input, None, None))
    }

    async fn begin_stored(
        self: &Arc<Self>,
        place: &mut Place,
        next: Next,
        input: Input,
    ) -> Result<Result<TurnHandle, Instead>> {
        let store = self.def.store.as_ref().ok_or_else(|| Error::internal("a stored turn without a store"))?;
        let key = place.key.clone().ok_or_else(|| Error::internal("a stored turn without a session"))?;
        self.refuse_own(place)?;
        let mut taken_over = None;
        let start = match next {
            Next::Fresh(create) => Start::OpenOrCreate(create),
            Next::Head => Start::Session(key),
            Next::Snapshot(id) => Start::Snapshot { id, session: Some(key) },
            Next::Point(point) => Start::Point { session: key, point },
            Next::TakeOver(turn) => {
                taken_over = Some(turn);
                Start::Session(key)
            }
            Next::Working => return Err(Error::internal("a working state begins no stored turn")),
        };
        let mut turn = BeginTurn::new(start, self.invocation.clone(), input.clone());
        turn.agent = Some(self.def.name.clone());
        turn.branch = place.branch.clone();
        turn.expect = place.expect.take();
        turn.key = place.turn_key.take();
        turn.busy = place.busy;
        let background = input.detach || self.unattended || self.is_background();
        // A turn in the background always has a row to look at.
        turn.snapshot = (background || !self.def.policy.is_never()).then(|| self.def.snapshot_id());
        // What this process knows to be over holds no branch, and a key whose turn was not kept begins it again.
        self.def.local.unwritten.write(&**store).await;
        let begun = loop {
            let begin = match taken_over {
                Some(turn) => Begin::Begun(store.take_over(turn).await?),
                None => store.begin(turn.clone()).await.map_err(not_begun)?,
            };
            let running = match begin {
                Begin::Begun(begun) => break begun,
                Begin::Ended(ended) => return Ok(Err(Instead::Ended(ended))),
                Begin::Running(running) => running,
            };
            if background && let Some(output) = self.already_detached(&**store, running).await? {
                return Ok(Err(Instead::Detached(Box::new(output))));
            }
            match self.attach(&**store, running).await? {
                Attached::Ended(ended) => return Ok(Err(Instead::Ended(ended))),
                Attached::Died => {}
            }
        };
        // From here on the turn is in the store: whatever goes wrong must end it there, and whoever aborts it finds it.
        self.def.local.runs(begun.turn, self);
        let ready = async {
            self.load(place, &begun, &input).await?;
            if self.keeps {
                self.keep_stream(store, begun.fence);
            }
            match background {
                true => self.go_background(place, &begun).await,
                false => Ok(()),
            }
        };
        match ready.await {
            Ok(()) => self.has_begun(&begun),
            // Somebody aborted it while it began. It ends as any other that is aborted does.
            Err(error) if error.kind() == ErrorKind::Aborted => self.stop(Stop::Lost(error)),
            Err(error) => {
                self.end_stream();
                self.def.local.ended(begun.turn);
                self.void(store, &begun, &error).await;
                return Err(error);
            }
        }
        let handle = self.handle(place, input, Some(&begun), begun.snapshot_id);
        place.begun = Some(begun);
        Ok(Ok(handle))
    }

    fn has_begun(&self, begun: &Begun) {
        let (session, snapshot_id) = (begun.session.id.clone(), begun.snapshot_id);
        self.ticket.send_replace(Some(Ticket { turn: begun.turn, session, snapshot_id }));
    }

    /// A handler that waits for its own branch would wait for itself.
    fn refuse_own(&self, place: &Place) -> Result<()> {
        let (Some(parent), Some(key)) = (&self.parent, &place.key) else { return Ok(()) };
        let waits = matches!(place.next, Next::Fresh(_) | Next::Head) && matches!(place.busy, Busy::Wait(_));
        if waits && parent.holds(key, &place.branch.clone().unwrap_or_default()) {
            return Err(Error::busy(format!(
                "session {} is held by the turn this is called from: use another session or branch, or start at a snapshot",
                key.id
            )));
        }
        Ok(())
    }

    async fn load(&self, place: &mut Place, begun: &Begun, input: &Input) -> Result<()> {
        let store = self.def.store.as_ref().ok_or_else(|| Error::internal("a stored turn without a store"))?;
        let at = |point| At::Point(begun.session.clone(), point);
        let lost = || Error::internal("the turn that was begun is not there");
        let state = store.state(at(begun.point)).await?.ok_or_else(lost)?;
        let custom = self.present_custom(place, &state)?;
        let good = match self.good_before(place, begun) {
            Some(good) => good,
            None => {
                let from = store.state(at(begun.from)).await?.ok_or_else(lost)?;
                let custom = self.def.upcasters.apply(from.schema_version(), from.custom().cloned())?;
                Content { custom, ..Content::from(&from) }
            }
        };
        // Read again only for those who have read them before.
        let reads_scopes = self.work().scopes.is_some();
        let earlier = self.earlier_attempt(&**store, begun).await?;
        let scopes = if reads_scopes { Some(store.scopes(&self.def.app, Some(&self.user)).await?) } else { None };
        if place.point != Some(begun.from) {
            place.last_snapshot = Known::NotYet;
            place.digest = None;
        }
        place.key = Some(begun.session.clone());
        place.branch = Some(begun.branch.clone());
        place.point = Some(begun.from);
        place.on_head = begun.leased;
        place.index = begun.index;
        place.turn_index = begun.turn_index;
        let _ = self.session.set(begun.session.id.clone());
        let mut work = self.work();
        work.session = begun.session.id.clone();
        work.scopes = scopes;
        work.at = Some(begun.point);
        work.good_at = Some(begun.from);
        work.older_schema = state.schema_version() != self.def.upcasters.version() && custom.is_some();
        work.load(&state, custom, good);
        work.turn_index = begun.turn_index;
        open(&mut work, input);
        work.calls = earlier.last_call();
        work.earlier = earlier;
        Ok(())
    }

    /// The state before the turn, when the last turn of this invocation left it.
    fn good_before(&self, place: &Place, begun: &Begun) -> Option<Content> {
        (place.point == Some(begun.from) && place.begun.is_none() && !place.snapshot_ids.is_empty())
            .then(|| self.work().now.clone())
    }

    /// The custom state in the shape this agent knows, checked against its schema.
    fn present_custom(&self, place: &mut Place, state: &PointState) -> Result<Option<Json>> {
        let bytes = state.custom().map_or(0, |custom| custom.as_str().len());
        beside(bytes, || self.checked_custom(place, state))
    }

    fn checked_custom(&self, place: &mut Place, state: &PointState) -> Result<Option<Json>> {
        let custom = self.def.upcasters.apply(state.schema_version(), state.custom().cloned())?;
        let same = |checked: &Json| custom.as_ref().is_some_and(|custom| custom.as_str() == checked.as_str());
        if self.def.schema.is_some() && !place.checked.as_ref().is_some_and(same) {
            check_custom(&self.def, custom.as_ref())?;
            place.checked.clone_from(&custom);
        }
        Ok(custom)
    }

    fn handle(
        self: &Arc<Self>,
        place: &mut Place,
        input: Input,
        begun: Option<&Begun>,
        snapshot_id: Option<crate::SnapshotId>,
    ) -> TurnHandle {
        let cancel = self.cancel.child_token();
        let span = self.turn_span(place, &input);
        place.span = span.clone();
        place.serial += 1;
        *self.running() = Some(Running {
            serial: place.serial,
            since: tokio::time::Instant::now(),
            fence: begun.map(|begun| begun.fence),
            key: begun.filter(|begun| begun.leased).map(|begun| begun.session.clone()),
            branch: begun.map(|begun| begun.branch.clone()).unwrap_or_default(),
            cancel: cancel.clone(),
        });
        // What stopped it before there was anything to cancel.
        if self.is_stopped() {
            cancel.cancel();
        }
        self.began.notify_one();
        TurnHandle {
            run: self.clone(),
            serial: place.serial,
            input: Arc::new(input),
            turn_index: place.turn_index,
            snapshot_id,
            head_moved: false,
            cancel,
            span,
        }
    }

    fn turn_span(&self, place: &Place, input: &Input) -> tracing::Span {
        let session = self.work().session.clone();
        let span = tracing::info_span!(
            "sessionFlow/turn",
            otel.name = format!("sessionFlow/turn/{}", place.turn_index),
            "everturn.agent" = %self.def.name,
            "everturn.finish_reason" = tracing::field::Empty,
            "everturn.session" = %session,
            "everturn.invocation" = %self.invocation,
            "everturn.turn_index" = place.turn_index,
            "genkit:metadata:agent" = tracing::field::Empty,
            "genkit:metadata:sessionFlow" = tracing::field::Empty,
            "genkit:metadata:snapshotId" = tracing::field::Empty,
            "genkit:input" = tracing::field::Empty,
            "genkit:output" = tracing::field::Empty,
            "otel.status_code" = tracing::field::Empty,
            "otel.status_description" = tracing::field::Empty,
        );
        if self.def.content_in_spans == ContentInSpans::Include
            && let Ok(json) = Json::written(input)
        {
            span.record("genkit:input", bounded(json.as_str()));
        }
        span
    }

    /// Writes what was changed outside turns, where the invocation stands; beside the head if that has moved.
    pub(crate) async fn write_edit(
        &self,
        place: &mut Place,
        event: Option<SnapshotEvent>,
        snapshot: Option<NewSnapshot>,
    ) -> Result<Option<Receipt>> {
        let changes = self.work().edit(&self.def.name, self.def.upcasters.version());
        let (Some(store), Some(key), Some(point)) = (&self.def.store, place.key.clone(), place.point) else {
            self.work().settle_edit(None);
            return Ok(None);
        };
        let mut commit = Commit::new(key, changes).expect(point).or_side_line();
        commit.branch = place.branch.clone();
        commit.invocation = Some(self.invocation.clone());
        commit.event = event;
        commit.snapshot = snapshot;
        let receipt = store.commit(commit).await?;
        place.point = Some(receipt.point);
        place.on_head = receipt.on_head;
        place.digest = Some(receipt.digest);
        // A line beside the head goes on there. One that was on the head when it was edited goes on with the head,
        // wherever that is now, and is told.
        if matches!(place.next, Next::Point(_) | Next::Snapshot(_)) {
            place.next = Next::Point(receipt.point);
        }
        place.index += u64::from(event.is_some());
        self.work().settle_edit(Some(receipt.point));
        Ok(Some(receipt))
    }

    /// The nearest snapshot at or before the last point that counts.
    pub(crate) async fn last_snapshot(&self, place: &mut Place) -> Result<Option<LastSnapshot>> {
        if let Known::Is(last) = place.last_snapshot {
            return Ok(last);
        }
        let (Some(store), Some(key), Some(point)) = (&self.def.store, &place.key, place.point) else {
            return Ok(None);
        };
        let found = store.snapshot(SnapshotRef::Nearest(key.clone(), point)).await?;
        let last = found.map(|row| LastSnapshot { id: row.snapshot_id, digest: row.digest, point: row.point });
        place.last_snapshot = Known::Is(last);
        Ok(last)
    }
}

/// A turn whose begin may have been written has done nothing yet.
fn not_begun(error: Error) -> Error {
    match error.kind() {
        ErrorKind::UnknownOutcome => Error::unavailable("the turn did not begin: send it again").with_source(error),
        _ => error,
    }
}

/// Opens the working state for a turn with an input.
fn open(work: &mut Work, input: &Input) {
    work.phase = Phase::Turn;
    work.finish_reason = None;
    work.label = None;
    work.calls = 0;
    work.scope_delta = shared_part(&input.state_delta);
    let temp = input.state_delta.of_scope(Scope::Temp);
    work.temp.retain(|key, _| !temp.remove.contains(key));
    work.temp.extend(temp.set);
}

/// Names the snapshot on the span that made it.
pub(crate) fn note_snapshot(span: &tracing::Span, agent: &str, id: crate::SnapshotId) {
    span.record("genkit:metadata:snapshotId", tracing::field::display(id));
    span.record("genkit:metadata:agent", agent);
    span.record("genkit:metadata:sessionFlow", agent);
}

/// The part of a change that concerns the scopes a store shares among sessions.
pub(crate) fn shared_part(delta: &StateDelta) -> StateDelta {
    let shared = |key: &&String| matches!(split_key(key).0, Scope::App | Scope::User);
    StateDelta {
        set: delta.set.iter().filter(|(key, _)| shared(key)).map(|(key, value)| (key.clone(), value.clone())).collect(),
        remove: delta.remove.iter().filter(shared).cloned().collect(),
    }
}

/// A key of a change that only a store can keep.
pub(crate) fn shared_key(delta: &StateDelta) -> Option<&str> {
    let mut keys = delta.set.keys().chain(&delta.remove);
    keys.find(|key| matches!(split_key(key).0, Scope::App | Scope::User)).map(String::as_str)
}

pub(crate) fn needs_store(key: &str) -> Error {
    Error::new(
        ErrorKind::WrongMode,
        format!("the state key {key:?} is shared among sessions, which needs a store: give the agent one"),
    )
}

/// What a span may carry of a text.
pub(crate) fn bounded(text: &str) -> &str {
    const MOST: usize = 4096;
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
