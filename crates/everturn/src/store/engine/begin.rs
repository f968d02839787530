//! How a turn begins: by session, snapshot or point; again under the same key; or taken over from the dead.

use std::sync::Arc;

use super::body::Body;
use super::prepare::Prepared;
use super::read::preceding;
use super::rules::{Ctx, NewRecord, Step, head_of, live_session, no_branch};
use super::sessions::{NewSession, create};
use super::tables::{Flow, Head, KeyRow, Only, Read, RecordMeta, Scan, SessionRow, SnapshotRow, StreamRow, TurnRow};
use super::turns::{Written, ended, find_turn, last_record};
use crate::digest::Digest;
use crate::session::SessionKey;
use crate::snapshot::SnapshotStatus;
use crate::state::{Scope, StateDelta, Tip, split_key};
use crate::store::{BeginTurn, Busy, Start, TurnRef};
use crate::turn::{Begin, Begun, EndedTurn, Fence, RecordKind};
use crate::{BranchName, Error, Point, Result, SnapshotId, TurnId};

/// A turn about to begin, made ready.
#[derive(Clone)]
pub(crate) struct NewTurn {
    pub(crate) turn: BeginTurn,
    pub(crate) payload: Digest,
    pub(crate) create: Option<Arc<NewSession>>,
    pub(crate) prepared: Option<Arc<Prepared>>,
}

pub(crate) fn begin(ctx: &mut Ctx<'_>, new: &NewTurn) -> Result<Step<Written<Begin>>> {
    let request = &new.turn;
    let found = find_start(ctx, request)?;
    let known = match (&found, &request.key) {
        (Some((session, _)), Some(key)) => ctx.tx.key(session.num, key)?,
        _ => None,
    };
    if let (Some((session, _)), Some(row)) = (&found, &known)
        && let Some(answer) = repeated(ctx, session, row, new)?
    {
        return Ok(Step::Done(answer));
    }
    if let Some(id) = request.snapshot {
        ctx.check_snapshot_id(id, None)?;
    }
    let (mut session, at) = match found {
        Some(found) => found,
        None => (create_first(ctx, new)?, None),
    };
    let start = choose_start(ctx, &mut session, request, at)?;
    let place = start.base.place();
    match &new.prepared {
        Some(prepared) if prepared.base.is_none_or(|base| base == place.seq) => {
            write_begin(ctx, session, new, prepared, start).map(Step::Done)
        }
        _ => Ok(Step::Rebase(place)),
    }
}

/// Creates the session a turn opens. Everything that could still refuse the turn is checked first.
fn create_first(ctx: &mut Ctx<'_>, new: &NewTurn) -> Result<SessionRow> {
    let request = &new.turn;
    let Some(create_new) = &new.create else {
        return Err(Error::not_found("there is no such session: create it first"));
    };
    if request.expect.is_some() {
        return Err(Error::conflict("a head was expected, but there is no session: read again and decide"));
    }
    if let Some(branch) = request.branch.as_ref().filter(|branch| !branch.is_main()) {
        return Err(no_branch(branch));
    }
    if request.snapshot.is_some() && request.snapshot == create_new.session.seed {
        return Err(Error::invalid("the seed and the turn need snapshot ids of their own"));
    }
    create(ctx, create_new)
}

/// Where a turn starts: the record it follows, its branch, and whether it holds it.
struct Chosen {
    base: RecordMeta,
    branch: BranchName,
    head: Head,
    leased: bool,
}

fn choose_start(
    ctx: &mut Ctx<'_>,
    session: &mut SessionRow,
    request: &BeginTurn,
    at: Option<RecordMeta>,
) -> Result<Chosen> {
    let branch = match (&request.branch, &at) {
        (Some(branch), _) => branch.clone(),
        (None, Some(meta)) => ctx.branch_of(session, meta.place())?,
        (None, None) => BranchName::main(),
    };
    let mut head = head_of(ctx.tx, session, &branch)?.ok_or_else(|| no_branch(&branch))?;
    if let Some(expect) = request.expect
        && expect.seq() != head.seq
    {
        return Err(Error::conflict(format!(
            "the head of {branch:?} is at {}, not at {expect}: read again and decide",
            head.seq
        )));
    }
    let holder = ctx.lease_holder(session, &mut head)?;
    if let (None, Some(holder), Busy::Refuse | Busy::Wait(_)) = (&at, &holder, request.busy) {
        return Err(Error::busy(format!(
            "turn {} holds the branch {branch:?}: wait for it, or begin on a side line",
            TurnId { session: session.num, begin: holder.begin }
        )));
    }
    let base = match at {
        Some(meta) => meta,
        None => ctx.meta(head.place())?,
    };
    let leased = base.place() == head.place() && holder.is_none();
    Ok(Chosen { base, branch, head, leased })
}

fn write_begin(
    ctx: &mut Ctx<'_>,
    mut session: SessionRow,
    new: &NewTurn,
    prepared: &Prepared,
    start: Chosen,
) -> Result<Written<Begin>> {
    let request = &new.turn;
    let Chosen { base, branch, mut head, leased } = start;
    let place = base.place();
    let segment = if leased {
        ctx.lose(&mut session, &mut head)?;
        let segment = ctx.segment_after(&session, &mut head)?;
        head.lease = Some(session.next_seq);
        segment
    } else {
        ctx.tx.new_segment(session.num, Some(place))?
    };
    let seen = (!leased).then_some(head.seq);
    let tip = prepared.tip_after(&base.tip);
    let begin = session.next_seq;
    let record = NewRecord {
        segment,
        kind: RecordKind::Begin,
        turn: Some((begin, 1)),
        event: None,
        snapshot: None,
        width: prepared.width,
        tip: &tip,
        body: &prepared.bytes,
    };
    let meta = ctx.append(&mut session, record)?;
    let turn = TurnRow {
        num: session.num,
        begin,
        attempt: 1,
        branch: branch.clone(),
        agent: request.agent.clone(),
        invocation: request.invocation.clone(),
        key: request.key.clone(),
        start: place,
        segment: Some(segment),
        tip: begin,
        leased,
        seen,
        snapshot: request.snapshot,
        scopes: prepared.scopes.clone(),
        artifacts: Vec::new(),
        streams: false,
        began_at: ctx.env.now,
        beat: ctx.env.beat(),
    };
    ctx.tx.put_turn(&turn)?;
    if let Some(id) = request.snapshot {
        ctx.tx.put_snapshot(&SnapshotRow::reserved(id, session.num, begin, ctx.env.now))?;
    }
    if let Some(key) = &request.key {
        ctx.tx.put_key(session.num, key, &KeyRow { turn: begin, payload: new.payload })?;
    }
    session.usage.add(&prepared.usage);
    if leased {
        ctx.put_head(&mut session, &branch, head)?;
    }
    ctx.tx.put_session(&session)?;
    let answer = Begin::Begun(begun(&session, &turn, &tip));
    let blank = base.tip.is_blank().then(|| (session.key.id.clone(), base.tip));
    Ok(Written { answer, record: Some((place, meta)), blank, session: session.num })
}

fn begun(session: &SessionRow, turn: &TurnRow, tip: &Tip) -> Begun {
    let id = TurnId { session: turn.num, begin: turn.begin };
    Begun {
        turn: id,
        fence: Fence { turn: id, attempt: turn.attempt },
        session: session.key.clone(),
        branch: turn.branch.clone(),
        from: Point::new(turn.start.seq),
        point: Point::new(turn.tip),
        turn_index: tip.turns,
        index: tip.index,
        snapshot_id: turn.snapshot,
        leased: turn.leased,
    }
}

/// Finds the session and, when the start names one, the point.
fn find_start(ctx: &Ctx<'_>, request: &BeginTurn) -> Result<Option<(SessionRow, Option<RecordMeta>)>> {
    match &request.start {
        Start::Session(key) => Ok(Some((live_session(ctx.tx, key)?, None))),
        Start::OpenOrCreate(create) => {
            let id = create.id.clone().ok_or_else(|| Error::internal("a session to open has no id"))?;
            let key = SessionKey::new(create.app.clone(), create.user.clone(), id);
            let Some(row) = ctx.tx.find_session(&key)? else { return Ok(None) };
            if let (Some(wanted), Some(agent)) = (&create.agent, &row.agent)
                && wanted != agent
            {
                return Err(Error::of_another_agent(&key.id));
            }
            Ok(Some((row, None)))
        }
        Start::Point { session, point } => {
            let session = live_session(ctx.tx, session)?;
            let meta = ctx.resumable_point(&session, *point)?;
            Ok(Some((session, Some(meta))))
        }
        Start::Snapshot { id, session } => {
            let unknown = || Error::not_found(format!("there is no snapshot {id}: list the session's snapshots"));
            let row = ctx.tx.snapshot(*id)?.filter(|row| !row.is_reserved()).ok_or_else(unknown)?;
            let owner = ctx.tx.session(row.num)?.filter(|owner| !owner.deleted).ok_or_else(unknown)?;
            if let Some(wanted) = session
                && *wanted != owner.key
            {
                if (&wanted.app, &wanted.user) != (&owner.key.app, &owner.key.user) {
                    return Err(unknown());
                }
                return Err(Error::invalid(format!(
                    "snapshot {id} does not belong to session {} (it belongs to {}): leave one of them out",
                    wanted.id, owner.key.id
                )));
            }
            if row.status != SnapshotStatus::Completed {
                return Err(Error::not_resumable(format!(
                    "snapshot {id} is not resumable: only completed ones are, start at its parent or at the head"
                )));
            }
            let meta = ctx.resumable_point(&owner, Point::new(row.seq))?;
            Ok(Some((owner, Some(meta))))
        }
    }
}

/// The answer to a key that was used before; nothing where its turn was lost before it did anything.
fn repeated(ctx: &mut Ctx<'_>, session: &SessionRow, row: &KeyRow, new: &NewTurn) -> Result<Option<Written<Begin>>> {
    if row.payload != new.payload {
        return Err(Error::conflict("that key was used for another input: use a fresh key for a new turn"));
    }
    let id = TurnId { session: session.num, begin: row.turn };
    let answer = match ctx.tx.turn(session.num, row.turn)? {
        Some(turn) if ctx.env.alive(&turn.beat) => Begin::Running(id),
        Some(turn) => return Ok(Some(take_over_row(ctx, session.clone(), turn)?.map(Begin::Begun))),
        None => match ended(ctx.tx, session, row.turn)? {
            // It begins where the branch stands now. One that did something goes on where it was: it is not done twice.
            Some(ended) if ended.outcome.lost && !has_steps(ctx.tx, &ended)? => return Ok(None),
            Some(ended) if ended.outcome.lost => {
                let again = run_again(ctx, session.clone(), row.turn, new.turn.snapshot)?;
                return Ok(Some(again.map(Begin::Begun)));
            }
            Some(ended) => Begin::Ended(Box::new(ended)),
            None => return Err(Error::corrupt(format!("turn {id} has neither ended nor is it running"))),
        },
    };
    Ok(Some(Written::nothing(session.num, answer)))
}

/// Whether a turn that has ended wrote anything on its way.
fn has_steps(read: &dyn Read, ended: &EndedTurn) -> Result<bool> {
    let TurnId { session: num, begin } = ended.turn;
    let mut found = false;
    let to = ended.point.seq();
    let scan = Scan { num, from: begin, to, segment: None, only: Only::All, newest_first: false };
    read.scan_meta(scan, &mut |meta: RecordMeta| {
        found = meta.kind == RecordKind::Step && meta.turn == Some(begin);
        Ok(if found { Flow::Stop } else { Flow::More })
    })?;
    Ok(found)
}

/// Takes over a turn. One that was lost reserves a fresh snapshot id, if it had one.
pub(crate) fn take_over(ctx: &mut Ctx<'_>, id: TurnId, fresh: SnapshotId) -> Result<Written<Begun>> {
    let (session, begin) = find_turn(ctx, &TurnRef::Turn(id))?;
    match ctx.tx.turn(session.num, begin)? {
        Some(turn) if ctx.env.alive(&turn.beat) => {
            Err(Error::busy(format!("turn {id} is alive: abort it, or wait until its lease runs out")))
        }
        Some(turn) => take_over_row(ctx, session, turn),
        None => match ended(ctx.tx, &session, begin)? {
            Some(ended) if ended.outcome.lost => run_again(ctx, session, begin, ended.snapshot_id.map(|_| fresh)),
            _ => Err(Error::conflict(format!("turn {id} has ended already: there is nothing to take over"))),
        },
    }
}

/// Makes the next attempt at a turn that was ended because it was lost, as if it had only lost its branch.
fn run_again(
    ctx: &mut Ctx<'_>,
    session: SessionRow,
    begin: u64,
    snapshot: Option<SnapshotId>,
) -> Result<Written<Begun>> {
    let id = TurnId { session: session.num, begin };
    let damaged = || Error::corrupt(format!("the begin of turn {id} is missing or follows nothing"));
    let (last, ..) = last_record(ctx.tx, session.num, begin)?.ok_or_else(damaged)?;
    let record = ctx.tx.record(session.num, begin)?.ok_or_else(damaged)?;
    let start = preceding(ctx.tx, &record.meta)?.ok_or_else(damaged)?.place();
    let given = Body::decode(&record.body)?.begin.ok_or_else(damaged)?;
    if let Some(id) = snapshot {
        ctx.check_snapshot_id(id, None)?;
        ctx.tx.put_snapshot(&SnapshotRow::reserved(id, session.num, begin, ctx.env.now))?;
    }
    // What the attempts before said is void with them.
    ctx.tx.remove_packs(session.num, begin)?;
    ctx.tx.put_stream(&StreamRow { num: session.num, turn: begin, chunks: 0, ended_at: None })?;
    let turn = TurnRow {
        num: session.num,
        begin,
        attempt: last.attempt + 1,
        branch: given.branch,
        agent: given.agent,
        invocation: given.invocation,
        key: given.key,
        start,
        segment: None,
        tip: start.seq,
        leased: false,
        seen: Some(start.seq),
        snapshot,
        scopes: StateDelta::new(),
        artifacts: Vec::new(),
        streams: false,
        began_at: ctx.env.now,
        beat: ctx.env.beat(),
    };
    take_over_row(ctx, session, turn)
}

/// Starts the next attempt at a dead turn: the same start, the same input, a higher fence.
fn take_over_row(ctx: &mut Ctx<'_>, mut session: SessionRow, mut turn: TurnRow) -> Result<Written<Begun>> {
    let begin = ctx
        .tx
        .record(turn.num, turn.begin)?
        .ok_or_else(|| Error::corrupt(format!("the begin of turn {} is missing", turn.begin)))?;
    let body = Body::decode(&begin.body)?;
    ctx.void_attempt_if_open(&mut session, &mut turn)?;
    let mut head = head_of(ctx.tx, &session, &turn.branch)?;
    let holds_lease = head.as_ref().is_some_and(|head| head.lease == Some(turn.begin));
    let at_start = head.as_mut().filter(|head| head.place() == turn.start);
    let free = match at_start {
        Some(head) => ctx.lease_holder(&mut session, head)?.is_none(),
        None => false,
    };
    let segment = match (&mut head, turn.segment) {
        (Some(_), Some(segment)) if holds_lease => segment,
        (Some(head), _) if free => {
            ctx.lose(&mut session, head)?;
            head.lease = Some(turn.begin);
            turn.leased = true;
            ctx.segment_after(&session, head)?
        }
        _ => {
            turn.leased = false;
            ctx.tx.new_segment(session.num, Some(turn.start))?
        }
    };
    turn.segment = Some(segment);
    for event in &body.events {
        let pick = |key: &String| matches!(split_key(key).0, Scope::App | Scope::User);
        turn.scopes.then(&StateDelta {
            set: event.state_delta.iter().filter(|(k, _)| pick(k)).map(|(k, v)| (k.clone(), v.clone())).collect(),
            remove: event.state_removed.iter().filter(|k| pick(k)).cloned().collect(),
        });
    }
    let record = NewRecord {
        segment,
        kind: RecordKind::Begin,
        turn: Some((turn.begin, turn.attempt)),
        event: None,
        snapshot: None,
        width: begin.meta.width,
        tip: &begin.meta.tip,
        body: &begin.body,
    };
    let meta = ctx.append(&mut session, record)?;
    turn.tip = meta.seq;
    turn.beat = ctx.env.beat();
    ctx.tx.put_turn(&turn)?;
    if let Some(head) = head.filter(|_| turn.leased) {
        let branch = turn.branch.clone();
        ctx.put_head(&mut session, &branch, head)?;
    }
    ctx.tx.put_session(&session)?;
    let answer = begun(&session, &turn, &meta.tip);
    Ok(Written { answer, record: Some((turn.start, meta)), blank: None, session: session.num })
}

impl Ctx<'_> {
    /// Voids the last attempt; one that already lost its branch has been voided then.
    fn void_attempt_if_open(&mut self, session: &mut SessionRow, turn: &mut TurnRow) -> Result<()> {
        if turn.segment.is_some() { self.void_attempt(session, turn) } else { Ok(()) }
    }
}
