//! Sessions: creating, changing, branching, forking and deleting them.

use std::collections::{BTreeMap, BTreeSet};

use super::body::{ArtifactBody, Body};
use super::line::climb;
use super::prepare::{Draft, Prepared};
use super::rules::{Ctx, NO_LIMIT, NewRecord, head_of, live_session, no_branch, no_session, show, snapshot_row};
use super::tables::{BranchRow, Flow, Head, Only, Place, PutArtifact, Read, RecordMeta, RecordRow, Scan, SessionRow};
use crate::json::{Json, Node, quote};
use crate::session::{SessionKey, SessionRecord};
use crate::snapshot::{FinishReason, SnapshotStatus};
use crate::state::{PointState, Tip, keys_weight};
use crate::store::{BranchChange, CreateSession, Limits, UnderLease, UpdateSession};
use crate::turn::{CustomChange, NewSnapshot, RecordKind};
use crate::{BranchName, Error, Point, Result, SessionId, SnapshotId, Usage};

/// The most bytes a title may have, and the most labels and the bytes of one.
const MAX_TITLE: usize = 4096;
const MAX_LABELS: usize = 100;
const MAX_LABEL: usize = 256;
const MAX_METADATA: usize = 64 << 10;
/// The most branches a session can have beside `main`.
const MAX_BRANCHES: usize = 10_000;

/// A session about to be created, made ready.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) session: CreateSession,
    pub(crate) key: SessionKey,
    pub(crate) prepared: Prepared,
}

impl NewSession {
    /// About how many bytes are gone through to make one ready.
    pub(crate) fn weight(session: &CreateSession) -> usize {
        let custom = match &session.changes.custom {
            Some(CustomChange::Set(custom)) => custom.as_str().len(),
            _ => 0,
        };
        let messages = session.changes.events.iter().flat_map(|event| &event.messages);
        custom + keys_weight(&session.state.set) + messages.map(|message| message.as_str().len()).sum::<usize>()
    }

    pub(crate) fn prepare(mut session: CreateSession, id: SessionId, limits: &Limits) -> Result<Self> {
        session.id = Some(id.clone());
        check_title(session.title.as_deref())?;
        check_labels(&session.labels)?;
        if let Some(metadata) = &session.metadata {
            check_metadata(metadata)?;
            Json::check_stored("a session's metadata", metadata.as_str())?;
        }
        let key = SessionKey::new(session.app.clone(), session.user.clone(), id);
        let draft = Draft { changes: session.changes.clone(), state: session.state.clone(), ..Draft::default() };
        let prepared = draft.prepare(Some(&PointState::empty(key.id.clone())), limits)?;
        Ok(Self { session, key, prepared })
    }
}

/// Refuses a session whose title, labels or metadata are not as they must be.
pub(crate) fn check_session(title: Option<&str>, labels: &BTreeSet<String>, metadata: &Json) -> Result<()> {
    check_title(title)?;
    check_labels(labels)?;
    check_metadata(metadata)
}

fn check_title(title: Option<&str>) -> Result<()> {
    match title {
        Some(title) if title.len() > MAX_TITLE => {
            Err(Error::too_large(format!("a title has at most {MAX_TITLE} bytes")))
        }
        _ => Ok(()),
    }
}

fn check_labels(labels: &BTreeSet<String>) -> Result<()> {
    if labels.len() > MAX_LABELS || labels.iter().any(|label| label.len() > MAX_LABEL) {
        return Err(Error::too_large(format!(
            "a session has at most {MAX_LABELS} labels of at most {MAX_LABEL} bytes each"
        )));
    }
    if labels.iter().any(|label| label.trim().is_empty()) {
        return Err(Error::invalid("a label is blank: leave it out"));
    }
    Ok(())
}

fn metadata_too_large() -> Error {
    Error::too_large(format!("a session's metadata has at most {MAX_METADATA} bytes"))
}

fn check_metadata(metadata: &Json) -> Result<()> {
    if metadata.as_str().len() > MAX_METADATA {
        return Err(metadata_too_large());
    }
    match metadata.node()? {
        Node::Object(_) => Ok(()),
        _ => Err(Error::invalid("a session's metadata is a JSON object")),
    }
}

pub(crate) fn create(ctx: &mut Ctx<'_>, new: &NewSession) -> Result<SessionRow> {
    if ctx.tx.find_session(&new.key)?.is_some() {
        return Err(Error::already_exists(format!(
            "there is a session {} already: open it, or use another id",
            new.key
        )));
    }
    if let Some(seed) = new.session.seed {
        ctx.check_snapshot_id(seed, None)?;
    }
    let num = ctx.tx.new_num()?;
    let segment = ctx.tx.new_segment(num, None)?;
    let tip = new.prepared.tip_after(&Tip::EMPTY);
    let mut row = SessionRow {
        num,
        tree: num,
        key: new.key.clone(),
        agent: new.session.agent.clone(),
        title: new.session.title.clone(),
        labels: new.session.labels.clone(),
        metadata: new.session.metadata.clone().unwrap_or_else(Json::empty_object),
        created_at: ctx.env.now,
        updated_at: ctx.env.now,
        next_seq: 1,
        main: Head { seq: 1, num, segment, next: Some(segment), lease: None, turns: 0 },
        usage: new.prepared.usage,
        inherited: Usage::default(),
        interrupted: false,
        forked: None,
        deleted: false,
        created_pos: 0,
        updated_pos: 0,
    };
    first_record(ctx, &mut row, segment, &tip, &new.prepared.bytes, new.prepared.width, new.session.seed)?;
    ctx.write_blobs(&row, &new.prepared)?;
    let named = new.prepared.puts.iter().filter_map(|put| Some((put.name.clone()?, put.digest)));
    let puts: Vec<_> = named.map(|(name, digest)| PutArtifact { name, digest, seq: 1 }).collect();
    ctx.write_versions(&row, &puts)?;
    ctx.write_scopes(&new.key, &new.prepared.scopes)?;
    ctx.tx.put_session(&row)?;
    Ok(row)
}

/// Writes a session's first record, and the snapshot of it if one is wanted.
fn first_record(
    ctx: &mut Ctx<'_>,
    row: &mut SessionRow,
    segment: u64,
    tip: &Tip,
    body: &[u8],
    width: u64,
    snapshot: Option<SnapshotId>,
) -> Result<()> {
    let record = NewRecord { segment, kind: RecordKind::Edit, turn: None, event: None, snapshot, width, tip, body };
    let meta = ctx.append(row, record)?;
    if let Some(id) = snapshot {
        ctx.tx.put_snapshot(&snapshot_row(&meta, &NewSnapshot::new(id), None, tip.digests.state()))?;
    }
    Ok(())
}

/// An admin record that says what was changed.
fn admin(text: String, limits: &Limits) -> Result<Prepared> {
    let draft = Draft { admin: Some(Json::parse_wrapped(&text)?), ..Draft::default() };
    draft.prepare(None, limits)
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    quote(text, &mut out);
    out
}

pub(crate) fn update(
    ctx: &mut Ctx<'_>,
    key: &SessionKey,
    update: &UpdateSession,
    limits: &Limits,
) -> Result<SessionRecord> {
    let mut row = live_session(ctx.tx, key)?;
    let mut said = Vec::new();
    if let Some(title) = &update.title {
        check_title(title.as_deref())?;
        row.title.clone_from(title);
        said.push(format!("\"title\":{}", title.as_deref().map_or("null".to_owned(), quoted)));
    }
    if !update.add_labels.is_empty() || !update.remove_labels.is_empty() {
        row.labels.extend(update.add_labels.iter().cloned());
        row.labels.retain(|label| !update.remove_labels.contains(label));
        check_labels(&row.labels)?;
        let labels: Vec<_> = row.labels.iter().map(|label| quoted(label)).collect();
        said.push(format!("\"labels\":[{}]", labels.join(",")));
    }
    if !update.set_metadata.is_empty() || !update.remove_metadata.is_empty() {
        // More than all of it may have need not be read to be refused.
        if keys_weight(&update.set_metadata) > MAX_METADATA {
            return Err(metadata_too_large());
        }
        let delta =
            crate::state::StateDelta { set: update.set_metadata.clone(), remove: update.remove_metadata.clone() };
        let mut node = Some(row.metadata.node()?);
        delta.apply_to(&mut node)?;
        row.metadata = Json::trusted(node.unwrap_or(Node::Object(Vec::new())).print());
        check_metadata(&row.metadata)?;
        Json::check_stored("a session's metadata", row.metadata.as_str())?;
        said.push(format!("\"metadata\":{}", row.metadata));
    }
    if !said.is_empty() {
        let prepared = admin(format!("{{{}}}", said.join(",")), limits)?;
        ctx.append_admin(&mut row, &prepared)?;
        ctx.tx.put_session(&row)?;
    }
    show(ctx.tx, ctx.env, &row)
}

pub(crate) fn branch(
    ctx: &mut Ctx<'_>,
    key: &SessionKey,
    change: &BranchChange,
    limits: &Limits,
) -> Result<SessionRecord> {
    let mut row = live_session(ctx.tx, key)?;
    let said = match change {
        BranchChange::Create { name, at } => {
            if head_of(ctx.tx, &row, name)?.is_some() {
                return Err(Error::already_exists(format!("there is a branch {name:?} already: use another name")));
            }
            if ctx.tx.branches(row.num)?.len() >= MAX_BRANCHES {
                return Err(Error::too_large(format!("a session has at most {MAX_BRANCHES} branches: delete some")));
            }
            let head = head_at(ctx, &row, *at)?;
            ctx.tx.put_branch(row.num, &BranchRow { name: name.clone(), head })?;
            format!("{{\"branch\":{},\"at\":{at}}}", quoted(name.as_str()))
        }
        BranchChange::Move { name, to, expect, under_lease } => {
            let mut old = head_of(ctx.tx, &row, name)?.ok_or_else(|| no_branch(name))?;
            must_stand(name, &old, *expect)?;
            let mut head = head_at(ctx, &row, *to)?;
            let interrupted = interrupted_at(ctx, &row, &head)?;
            free_branch(ctx, &mut row, &mut old, name, *under_lease)?;
            if head.place() == old.place() {
                head.next = old.next;
            }
            ctx.put_head(&mut row, name, head)?;
            if name.is_main() {
                row.interrupted = interrupted;
            }
            format!("{{\"branch\":{},\"at\":{to}}}", quoted(name.as_str()))
        }
        BranchChange::Delete { name, expect, under_lease } => {
            if name.is_main() {
                return Err(Error::invalid("every session keeps its branch `main`: delete the session instead"));
            }
            let mut old = head_of(ctx.tx, &row, name)?.ok_or_else(|| no_branch(name))?;
            must_stand(name, &old, *expect)?;
            free_branch(ctx, &mut row, &mut old, name, *under_lease)?;
            ctx.tx.delete_branch(row.num, name)?;
            format!("{{\"branch\":{},\"at\":null}}", quoted(name.as_str()))
        }
    };
    let prepared = admin(said, limits)?;
    ctx.append_admin(&mut row, &prepared)?;
    ctx.tx.put_session(&row)?;
    show(ctx.tx, ctx.env, &row)
}

/// Refuses a change of a branch that does not stand where it is expected to.
fn must_stand(name: &BranchName, head: &Head, expect: Option<Point>) -> Result<()> {
    match expect.filter(|expect| expect.seq() != head.seq) {
        None => Ok(()),
        Some(expect) => Err(Error::conflict(format!(
            "the head of {name:?} is at {}, not at {expect}: read again and decide",
            head.seq
        ))),
    }
}

/// A head at a completed point. Whether its segment could be continued is not looked up: opening a new one is safe.
fn head_at(ctx: &Ctx<'_>, row: &SessionRow, point: Point) -> Result<Head> {
    let meta = ctx.resumable_point(row, point)?;
    if meta.kind == RecordKind::Step {
        return Err(Error::not_resumable(format!(
            "point {point} is inside a turn: a branch stands at a completed one"
        )));
    }
    let Place { num, segment, seq } = meta.place();
    Ok(Head { seq, num, segment, next: None, lease: None, turns: meta.tip.turns })
}

/// Whether the last turn of the session's own on the way to a head waits for a person; edits do not answer for one.
fn interrupted_at(ctx: &Ctx<'_>, session: &SessionRow, head: &Head) -> Result<bool> {
    let mut last = None;
    climb(ctx.tx, head.place(), &mut |interval| {
        if interval.num != session.num {
            return Ok(false);
        }
        let scan = Scan {
            num: interval.num,
            from: interval.from,
            to: interval.to,
            segment: Some(interval.segment),
            only: Only::All,
            newest_first: true,
        };
        ctx.tx.scan_meta(scan, &mut |meta: RecordMeta| {
            if meta.kind == RecordKind::End {
                last = Some(meta.seq);
                return Ok(Flow::Stop);
            }
            Ok(Flow::More)
        })?;
        Ok(last.is_none())
    })?;
    let Some(record) = last.map(|seq| ctx.tx.record(session.num, seq)).transpose()?.flatten() else {
        return Ok(false);
    };
    let end = Body::decode(&record.body)?.end;
    Ok(end.and_then(|end| end.outcome.finish_reason) == Some(FinishReason::Interrupted))
}

/// Takes a branch from whoever holds it, if that is allowed.
fn free_branch(
    ctx: &mut Ctx<'_>,
    row: &mut SessionRow,
    head: &mut Head,
    name: &BranchName,
    under_lease: UnderLease,
) -> Result<()> {
    match ctx.lease_holder(row, head)? {
        Some(holder) if under_lease == UnderLease::Refuse => Err(Error::busy(format!(
            "turn {}.{} runs on the branch {name:?}: wait for its end, or force it off the head",
            row.num, holder.begin
        ))),
        Some(mut holder) => {
            // It goes on writing where it is, but nobody's head will follow it.
            holder.leased = false;
            holder.seen = None;
            ctx.tx.put_turn(&holder)?;
            head.lease = None;
            head.next = None;
            Ok(())
        }
        None => ctx.lose(row, head),
    }
}

/// Where a fork begins, and what it takes along.
pub(crate) struct NewFork {
    pub(crate) origin: SessionKey,
    pub(crate) place: Place,
    pub(crate) id: SessionId,
    pub(crate) snapshot: SnapshotId,
    pub(crate) prepared: Prepared,
}

pub(crate) fn fork(ctx: &mut Ctx<'_>, new: &NewFork) -> Result<SessionRecord> {
    let origin = live_session(ctx.tx, &new.origin)?;
    let key = SessionKey::new(origin.key.app.clone(), origin.key.user.clone(), new.id.clone());
    if ctx.tx.find_session(&key)?.is_some() {
        return Err(Error::already_exists(format!("there is a session {key} already: use another id")));
    }
    ctx.check_snapshot_id(new.snapshot, None)?;
    let meta = ctx.meta(new.place)?;
    let num = ctx.tx.new_num()?;
    let segment = ctx.tx.new_segment(num, Some(new.place))?;
    let seq = meta.seq + meta.width;
    let mut row = SessionRow {
        num,
        tree: origin.tree,
        key,
        agent: origin.agent.clone(),
        title: origin.title.clone(),
        labels: BTreeSet::new(),
        metadata: origin.metadata.clone(),
        created_at: ctx.env.now,
        updated_at: ctx.env.now,
        next_seq: seq,
        main: Head { seq, num, segment, next: Some(segment), lease: None, turns: meta.tip.turns },
        usage: Usage::default(),
        inherited: meta.tip.usage,
        interrupted: false,
        forked: Some((origin.key.id, meta.seq)),
        deleted: false,
        created_pos: 0,
        updated_pos: 0,
    };
    first_record(ctx, &mut row, segment, &meta.tip, &new.prepared.bytes, 1, Some(new.snapshot))?;
    ctx.tx.put_session(&row)?;
    show(ctx.tx, ctx.env, &row)
}

pub(crate) fn delete(ctx: &mut Ctx<'_>, key: &SessionKey) -> Result<Option<u64>> {
    let Some(mut row) = ctx.tx.find_session(key)? else { return Ok(None) };
    row.deleted = true;
    for turn in ctx.tx.turns(Some(row.num))? {
        ctx.release_snapshot(&turn)?;
        ctx.tx.delete_turn(turn.num, turn.begin)?;
    }
    ctx.tx.put_session(&row)?;
    Ok(Some(row.num))
}

pub(crate) fn label(ctx: &mut Ctx<'_>, id: SnapshotId, label: Option<&str>) -> Result<()> {
    let unknown = || Error::not_found(format!("there is no snapshot {id}: list the session's snapshots"));
    if label.is_some_and(|label| label.len() > MAX_LABEL) {
        return Err(Error::too_large(format!("a label has at most {MAX_LABEL} bytes")));
    }
    let mut row = ctx.tx.snapshot(id)?.filter(|row| !row.is_reserved()).ok_or_else(unknown)?;
    ctx.tx.session(row.num)?.filter(|session| !session.deleted).ok_or_else(unknown)?;
    row.label = label.map(str::to_owned);
    ctx.tx.put_snapshot(&row)
}

/// How far lines of live sessions reach into each segment of a tree.
fn reach(read: &dyn Read, tree: u64) -> Result<BTreeMap<u64, u64>> {
    let mut reach: BTreeMap<u64, u64> = BTreeMap::new();
    for session in read.tree_sessions(tree)?.into_iter().filter(|session| !session.deleted) {
        for segment in read.segments(session.num)? {
            let mut parent = segment.parent;
            while let Some(place) = parent {
                let slot = reach.entry(place.segment).or_default();
                if *slot >= place.seq {
                    break;
                }
                *slot = place.seq;
                parent = read.segment(place.segment)?.and_then(|segment| segment.parent);
            }
        }
    }
    Ok(reach)
}

/// What a slice of reclaiming did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaimed {
    pub(crate) removed: u64,
    pub(crate) kept: u64,
    pub(crate) done: bool,
}

/// Removes at most `limit` records of a deleted session that no live session's line reaches.
pub(crate) fn reclaim(ctx: &mut Ctx<'_>, num: u64, limit: usize) -> Result<Reclaimed> {
    let Some(row) = ctx.tx.session(num)?.filter(|row| row.deleted) else {
        return Ok(Reclaimed { done: true, ..Reclaimed::default() });
    };
    let reach = reach(ctx.tx, row.tree)?;
    let mut left = limit;
    let mut segments: Vec<u64> = ctx.tx.segments(num)?.into_iter().map(|segment| segment.id).collect();
    segments.push(0);
    for segment in &segments {
        let from = reach.get(segment).map_or(0, |seq| seq + 1);
        left -= ctx.tx.remove_records(num, from, NO_LIMIT, *segment, left)?;
        if left == 0 {
            return Ok(Reclaimed { removed: limit as u64, kept: 0, done: false });
        }
    }
    let mut kept = 0;
    let scan = Scan { num, from: 0, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
    ctx.tx.scan_meta(scan, &mut |_| {
        kept += 1;
        Ok(Flow::More)
    })?;
    ctx.tx.remove_session_parts(num)?;
    if kept == 0 {
        ctx.tx.remove_session(num)?;
    }
    if ctx.tx.has_blobs(row.tree)? {
        let keep = named_blobs(ctx.tx, row.tree)?;
        ctx.tx.keep_blobs(row.tree, &keep)?;
    }
    Ok(Reclaimed { removed: (limit - left) as u64, kept, done: true })
}

/// The artifact contents that records still in a tree name.
fn named_blobs(read: &dyn Read, tree: u64) -> Result<BTreeSet<crate::Digest>> {
    let mut keep = BTreeSet::new();
    for session in read.tree_sessions(tree)? {
        let scan =
            Scan { num: session.num, from: 0, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
        read.scan(scan, &mut |row: RecordRow| {
            if row.meta.kind != RecordKind::Admin {
                let body = Body::decode(&row.body)?;
                keep.extend(body.artifacts.iter().filter_map(|change| match change {
                    ArtifactBody::Put(put) => Some(put.digest),
                    _ => None,
                }));
            }
            Ok(Flow::More)
        })?;
    }
    Ok(keep)
}

/// Finds the session and place a fork starts from.
pub(crate) fn fork_place(read: &dyn Read, at: &crate::store::At) -> Result<(SessionKey, Place)> {
    use crate::store::At;
    let found = super::read::locate(read, at)?;
    let Some((session, meta)) = found else {
        return Err(match at {
            At::Head(key, _) if read.find_session(key)?.is_none() => no_session(key),
            At::Head(_, branch) => no_branch(branch),
            At::Point(key, _) if read.find_session(key)?.is_none() => no_session(key),
            At::Point(_, point) => Error::not_found(format!("the session has no point {point}: read its events")),
            At::Snapshot(id) => Error::not_found(format!("there is no snapshot {id}: list the session's snapshots")),
        });
    };
    if let At::Snapshot(id) = at
        && read.snapshot(*id)?.is_none_or(|row| row.status != SnapshotStatus::Completed)
    {
        return Err(Error::not_resumable(format!("snapshot {id} is not completed: fork at its parent or at the head")));
    }
    match meta.kind {
        RecordKind::End | RecordKind::Edit | RecordKind::Step => Ok((session.key, meta.place())),
        _ => Err(Error::not_resumable(format!(
            "point {} is not the end of anything: fork at a completed turn or a mid-turn step",
            meta.seq
        ))),
    }
}
