//! The turns' side of an engine: requests are made ready here, written, and their states kept at hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::begin::{self, NewTurn};
use super::body::{BeginBody, EndBody, put_varint};
use super::fold::Fold;
use super::prepare::{Draft, Needs, Prepared};
use super::queue::Front;
use super::rules::{Ctx, Step};
use super::sessions::{self, NewSession};
use super::tables::Place;
use super::turns::{self, Written};
use super::{Backend, Effort, Inner, Sync, catch_up, edit};
use crate::aside::{away, is_large};
use crate::digest::Digest;
use crate::event::Event;
use crate::json::Json;
use crate::session::SessionKey;
use crate::state::{PointState, keys_weight};
use crate::store::{BeginTurn, Busy, Commit, CreateSession, EndTurn, Limits, Start, StepTurn, TurnRef};
use crate::turn::{Aborted, Begin, Begun, Changes, EndStatus, Fence, Outcome, Receipt, RecordKind};
use crate::{BranchName, Error, ErrorKind, FinishReason, Point, Result, SessionId, SnapshotId, TurnId, TurnKey};

/// How soon a branch that another process holds is looked at again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl<B: Backend> Inner<B> {
    pub(crate) async fn begin(&self, turn: BeginTurn) -> Result<Begin> {
        let (mut attempt, queue) = self.attempt(turn).await?;
        let Some(queue) = queue else { return self.try_begin(&mut attempt).await };
        // Whatever waits is boxed: few have to, and the others need not carry it along.
        let _front = match self.queues.try_enter(&queue.place) {
            Some(front) => front,
            None => Box::pin(self.stand_in(&queue)).await?,
        };
        match self.try_begin(&mut attempt).await {
            Err(error) if error.kind() == ErrorKind::Busy => {
                Box::pin(self.begin_when_free(&mut attempt, &queue, error)).await
            }
            done => done,
        }
    }

    /// Makes a turn ready, and says in which queue it stands if it waits for its branch.
    async fn attempt(&self, turn: BeginTurn) -> Result<(Attempt, Option<Queue>)> {
        let named = match &turn.start {
            Start::OpenOrCreate(session) => {
                let derived = turn.key.as_ref().map(|key| derived_id(session, key)).transpose()?;
                Some(self.name_session(session, derived)?)
            }
            _ => None,
        };
        let limits = self.config.limits;
        let attempt = match is_large(weight(&turn)) {
            true => Box::pin(away(move || Attempt::new(turn, named, &limits))).await?,
            false => Attempt::new(turn, named, &limits)?,
        };
        let NewTurn { turn, create, .. } = &*attempt.new;
        let key = match (&turn.start, create) {
            (Start::Session(key), _) => Some(key.clone()),
            (Start::OpenOrCreate(_), Some(new)) => Some(new.key.clone()),
            _ => None,
        };
        let queue = match (key, turn.busy) {
            (Some(key), Busy::Wait(limit)) => {
                Some(Queue { place: (key, turn.branch.clone().unwrap_or_default()), limit, since: Instant::now() })
            }
            _ => None,
        };
        Ok((attempt, queue))
    }

    /// Makes a record ready for the state it follows.
    async fn prepare(&self, draft: &Arc<Draft>, base: Option<PointState>) -> Result<Prepared> {
        let limits = self.config.limits;
        let custom = base.as_ref().and_then(PointState::custom).map_or(0, |custom| custom.as_str().len());
        match is_large(draft.weight() + custom) {
            true => {
                let draft = draft.clone();
                Box::pin(away(move || draft.prepare(base.as_ref(), &limits))).await
            }
            false => draft.prepare(base.as_ref(), &limits),
        }
    }

    /// Waits for those in this process who came before.
    async fn stand_in(&self, queue: &Queue) -> Result<Front<(SessionKey, BranchName)>> {
        let front = self.queues.enter(queue.place.clone());
        tokio::time::timeout_at(queue.deadline(), front).await.map_err(|_| {
            let limit = queue.limit;
            let busy =
                || Error::busy(format!("the branch was busy for {limit:?}: wait longer, or begin on a side line"));
            // Those in front may be kept by the store, not by a turn.
            self.backend.hindrance().unwrap_or_else(busy)
        })
    }

    /// Tries again whenever something was written to the session, and every now and then, because other processes write
    /// too. The branch was busy, as the error says.
    async fn begin_when_free(&self, attempt: &mut Attempt, queue: &Queue, mut error: Error) -> Result<Begin> {
        if Instant::now() >= queue.deadline() {
            return Err(error);
        }
        let key = queue.place.0.clone();
        let row = self.backend.read(move |read, _| read.find_session(&key)).await?;
        let news = self.news.of(row.map_or(0, |row| row.num));
        loop {
            // Told from before the attempt on, so that an end in between is not missed.
            let mut told = Box::pin(news.clone().notified_owned());
            told.as_mut().enable();
            match self.try_begin(attempt).await {
                Err(again) if again.kind() == ErrorKind::Busy => error = again,
                done => return done,
            }
            let now = Instant::now();
            if now >= queue.deadline() {
                return Err(error);
            }
            let until = queue.deadline().min(now + queue.pause(now, self.config.poll));
            let _ = tokio::time::timeout_at(until, told).await;
        }
    }

    async fn try_begin(&self, attempt: &mut Attempt) -> Result<Begin> {
        if let (Some(_), Some(new)) = (&attempt.draft, &attempt.new.create) {
            // The input changes state, which must be there first.
            let new = new.clone();
            let made = self.write(Sync::Lazy, move |ctx| sessions::create(ctx, &new).map(drop)).await;
            match made {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => attempt.new = Arc::new(NewTurn { create: None, ..(*attempt.new).clone() }),
            }
        }
        let answer = loop {
            let job = attempt.new.clone();
            let bytes = job.prepared.as_ref().map_or(0, |prepared| prepared.size());
            let cache = self.cache.clone();
            let begin = move |ctx: &mut Ctx<'_>| {
                let step = begin::begin(ctx, &job)?;
                let caught_up = match &step {
                    Step::Done(Written { record: Some((from, _)), .. }) => catch_up(ctx.tx, &cache, *from)?,
                    _ => None,
                };
                Ok((step, caught_up))
            };
            let place = match self.write_record(Sync::Lazy, bytes, begin).await? {
                (Step::Done(written), caught_up) => break self.begun(written, caught_up, attempt),
                (Step::Rebase(place), _) => place,
            };
            let draft = attempt.draft.as_ref();
            let draft = draft.ok_or_else(|| Error::internal("a begin that follows anything was to follow"))?;
            let prepared = self.prepare(draft, Some(self.base_at(place, draft.needs()).await?)).await?;
            attempt.new = Arc::new(NewTurn { prepared: Some(Arc::new(prepared)), ..(*attempt.new).clone() });
        };
        if matches!(answer, Begin::Ended(_)) {
            // Whoever ended it may still be waiting for the disk.
            self.backend.settled().await?;
        }
        Ok(answer)
    }

    /// Keeps at hand what a begin has brought about, and tells of it.
    fn begun(&self, written: Written<Begin>, caught_up: Option<PointState>, attempt: &Attempt) -> Begin {
        // What is at hand is told without waiting for the disk.
        if let (Some(state), Some((from, _))) = (caught_up, &written.record)
            && self.backend.is_settled()
        {
            self.cache.put(*from, true, state);
        }
        self.remember(&written, attempt.new.prepared.as_deref());
        if let (Begin::Begun(begun), Some((from, meta))) = (&written.answer, &written.record) {
            self.standing.begun(begun.turn, &begun.session, *from, meta.place());
        }
        self.news.tell(written.session);
        written.answer
    }

    pub(crate) async fn step(&self, mut step: StepTurn) -> Result<Receipt> {
        let draft = Arc::new(Draft::of(std::mem::take(&mut step.changes)));
        let turn = step.fence.turn;
        let base = self.standing.of(turn);
        let step = Arc::new(step);
        let written = self.write_after(draft, base, move |ctx, prepared| turns::step(ctx, &step, prepared)).await?;
        if let Some((_, meta)) = &written.record {
            self.standing.moved(turn, meta.place());
        }
        Ok(written.answer)
    }

    pub(crate) async fn end(&self, mut end: EndTurn) -> Result<Receipt> {
        let draft = Arc::new(Draft {
            changes: std::mem::take(&mut end.changes),
            state: std::mem::take(&mut end.scopes),
            end: Some(EndBody { status: end.status.into(), outcome: strip(end.outcome.clone())? }),
            ..Draft::default()
        });
        let turn = end.fence.turn;
        let base = self.standing.of(turn);
        let end = Arc::new(end);
        let written = self.write_after(draft, base, move |ctx, prepared| turns::end(ctx, &end, prepared)).await?;
        self.standing.ended(turn);
        Ok(written.answer)
    }

    pub(crate) async fn commit(&self, commit: Commit) -> Result<Receipt> {
        let (changes, invocation) = (commit.changes.clone(), commit.invocation.clone());
        let draft = Arc::new(Draft { changes, invocation, ..Draft::default() });
        let commit = Arc::new(commit);
        let written = self.write_after(draft, None, move |ctx, prepared| edit::commit(ctx, &commit, prepared)).await?;
        Ok(written.answer)
    }

    /// Prepares a record for the state it follows, and again if it turns out to follow another one.
    async fn write_after<T, F>(&self, draft: Arc<Draft>, mut base: Option<Place>, rule: F) -> Result<Written<T>>
    where
        T: Send + 'static,
        F: Fn(&mut Ctx<'_>, Option<&Prepared>) -> Result<Step<Written<T>>> + Send + std::marker::Sync + 'static,
    {
        // Whoever writes it takes about as long to wake up as the record takes to make.
        self.backend.rouse();
        let needs = draft.needs();
        let rule = Arc::new(rule);
        // A place that was remembered may be out of date: another handle may have written to the turn.
        let mut guessed = true;
        loop {
            let prepared = match (needs, base) {
                (Needs::Nothing, _) => Some(self.prepare(&draft, None).await?),
                (_, None) => None,
                (_, Some(place)) => {
                    let made = match self.base_at(place, needs).await {
                        Ok(state) => self.prepare(&draft, Some(state)).await,
                        Err(error) => Err(error),
                    };
                    match made {
                        Ok(prepared) => Some(prepared),
                        Err(_) if guessed => None,
                        // What it was to follow is gone; the writer knows why.
                        Err(error) if error.kind() == ErrorKind::NotFound => None,
                        Err(error) => return Err(error),
                    }
                }
            };
            let prepared = Arc::new(prepared);
            let (job, rule) = (prepared.clone(), rule.clone());
            let bytes = job.as_ref().as_ref().map_or(0, Prepared::size);
            let effort = if draft.is_void() { Effort::Freeing } else { Effort::of_record(bytes) };
            match self.backend.write(Sync::Durable, effort, move |ctx| rule(ctx, job.as_ref().as_ref())).await? {
                Step::Done(written) => {
                    self.remember(&written, prepared.as_ref().as_ref());
                    self.news.tell(written.session);
                    return Ok(written);
                }
                Step::Rebase(place) => (base, guessed) = (Some(place), false),
            }
        }
    }

    pub(crate) async fn abort(&self, turn: TurnRef) -> Result<Aborted> {
        let outcome = Outcome::finished(FinishReason::Aborted);
        let draft = Draft { end: Some(EndBody { status: EndStatus::Aborted.into(), outcome }), ..Draft::default() };
        let prepared = draft.prepare(None, &self.config.limits)?;
        let written = self.write_freeing(Sync::Durable, move |ctx| turns::abort(ctx, &turn, &prepared)).await?;
        self.standing.ended(written.answer.turn);
        self.news.tell(written.session);
        Ok(written.answer)
    }

    pub(crate) async fn renew(&self, fence: &Fence) -> Result<()> {
        let fence = *fence;
        self.write_freeing(Sync::Lazy, move |ctx| turns::renew(ctx, &fence)).await
    }

    pub(crate) async fn take_over(&self, turn: TurnId) -> Result<Begun> {
        let fresh = SnapshotId::from_uuid(self.config.clock.uuid());
        let written = self.write(Sync::Durable, move |ctx| begin::take_over(ctx, turn, fresh)).await?;
        if let Some((from, meta)) = &written.record {
            self.standing.begun(turn, &written.answer.session, *from, meta.place());
        }
        self.news.tell(written.session);
        Ok(written.answer)
    }

    /// Keeps the state after a record at hand, if the one before it was or has nothing in it.
    fn remember<T>(&self, written: &Written<T>, prepared: Option<&Prepared>) {
        let (Some((base, meta)), Some(prepared)) = (&written.record, prepared) else { return };
        if meta.kind == RecordKind::Void {
            return;
        }
        let blank = || {
            let (session, tip) = written.blank.clone()?;
            let state = PointState { point: Point::new(base.seq), tip, ..PointState::empty(session) };
            self.cache.put(*base, true, state.clone());
            Some(state)
        };
        let after = |before: PointState| -> Result<PointState> {
            let mut fold = Fold::from(before);
            fold.apply_written(meta, &prepared.body, prepared.custom.as_ref().map(|custom| &custom.value));
            fold.finish(|digest| {
                let put = prepared.puts.iter().find(|put| put.digest == digest);
                put.map(|put| put.content.clone()).ok_or_else(|| Error::internal("an artifact was not at hand"))
            })
        };
        let settled = matches!(meta.kind, RecordKind::End | RecordKind::Edit);
        let kept = match self.cache.get(*base).or_else(blank) {
            Some(whole) => after(whole).map(|state| self.cache.put(meta.place(), settled, state)),
            None => match self.cache.get_bare(*base) {
                Some(bare) => after(bare).map(|state| self.cache.put_bare(meta.place(), settled, state)),
                None => Ok(()),
            },
        };
        if let Err(error) = kept {
            tracing::warn!(%error, "a state was not kept at hand");
        }
    }
}

/// The queue a turn stands in until its branch is free.
struct Queue {
    place: (SessionKey, BranchName),
    since: Instant,
    limit: Duration,
}

impl Queue {
    fn deadline(&self) -> Instant {
        // Whoever waits for ever may say so.
        self.since.checked_add(self.limit).unwrap_or(self.since + FOR_EVER)
    }

    /// How long to wait before looking again whether another process has left the branch: a part of what was waited already.
    /// So a short turn is followed soon, and a long one is not asked about all the time.
    fn pause(&self, now: Instant, most: Duration) -> Duration {
        (now.duration_since(self.since) / 4).max(SHORTEST_PAUSE).min(most)
    }
}

/// A turn about to begin, for as often as it is tried.
struct Attempt {
    new: Arc<NewTurn>,
    /// Its record, where that depends on the state it follows and so must be made for it.
    draft: Option<Arc<Draft>>,
}

impl Attempt {
    /// A session that may have to be made has its id.
    fn new(mut turn: BeginTurn, named: Option<SessionId>, limits: &Limits) -> Result<Self> {
        // Only a key is compared with what it stood for before.
        let payload = if turn.key.is_some() { payload(&turn)? } else { Digest::ABSENT };
        let mut create = None;
        if let (Start::OpenOrCreate(session), Some(id)) = (&mut turn.start, named) {
            let new = NewSession::prepare((**session).clone(), id, limits)?;
            **session = new.session.clone();
            create = Some(Arc::new(new));
        }
        let draft = begin_draft(&mut turn);
        let (prepared, draft) = match draft.needs() {
            Needs::Rest | Needs::Messages => (None, Some(Arc::new(draft))),
            Needs::Nothing => (Some(Arc::new(draft.into_prepared(None, limits)?)), None),
        };
        Ok(Self { new: Arc::new(NewTurn { turn, payload, create, prepared }), draft })
    }
}

/// About how many bytes are gone through to make a turn ready.
fn weight(turn: &BeginTurn) -> usize {
    let input = &turn.input;
    let messages = input.messages.iter().map(|message| message.as_str().len()).sum::<usize>();
    let json = [&input.data, &input.resume].into_iter().flatten().map(|json| json.as_str().len()).sum::<usize>();
    let create = match &turn.start {
        Start::OpenOrCreate(create) => NewSession::weight(create),
        _ => 0,
    };
    messages + json + keys_weight(&input.state_delta.set) + create
}

fn strip(mut outcome: Outcome) -> Result<Outcome> {
    outcome.message = outcome.message.map(crate::Message::without_snapshot_id).transpose()?;
    Ok(outcome)
}

/// The record of a begin. The input goes into it; deciding where the turn starts does not need it.
fn begin_draft(turn: &mut BeginTurn) -> Draft {
    let mut changes = Changes::new();
    let mut input = std::mem::take(&mut turn.input);
    if !input.messages.is_empty() || !input.state_delta.is_empty() {
        let event = Event::new("user")
            .with_messages(std::mem::take(&mut input.messages))
            .with_state(std::mem::take(&mut input.state_delta));
        changes = changes.event(event);
    }
    let begin = BeginBody {
        invocation: turn.invocation.clone(),
        agent: turn.agent.clone(),
        branch: turn.branch.clone().unwrap_or_default(),
        key: turn.key.clone(),
        input,
    };
    Draft { changes, begin: Some(begin), ..Draft::default() }
}

/// What a key stands for: where the turn starts, on which branch, with what input.
fn payload(turn: &BeginTurn) -> Result<Digest> {
    let start = match &turn.start {
        Start::Session(key) => format!("session {key}"),
        // With or without creating it, a session is the same start.
        Start::OpenOrCreate(create) => match &create.id {
            Some(id) => format!("session {}/{}/{id}", create.app, create.user),
            None => format!("fresh {}/{}", create.app, create.user),
        },
        Start::Snapshot { id, .. } => format!("snapshot {id}"),
        Start::Point { session, point } => format!("point {session} {point}"),
    };
    let branch = turn.branch.as_ref().map_or("", BranchName::as_str);
    let input = Digest::of_json(&Json::written(&turn.input)?)?;
    let mut text = Vec::new();
    for part in [start.as_bytes(), branch.as_bytes(), input.as_bytes()] {
        put_varint(&mut text, part.len() as u64);
        text.extend_from_slice(part);
    }
    Ok(Digest::of_parts(&[&text]))
}

/// The id of a session that nobody named but whose first turn has a key.
fn derived_id(session: &CreateSession, key: &TurnKey) -> Result<SessionId> {
    let mut text = Vec::new();
    for part in [session.app.as_str(), session.user.as_str(), key.as_str()] {
        put_varint(&mut text, part.len() as u64);
        text.extend_from_slice(part.as_bytes());
    }
    let digest = Digest::of_parts(&[b"everturn session 1\n", &text]).to_string();
    SessionId::new(format!("k-{}", &digest[..32]))
}
