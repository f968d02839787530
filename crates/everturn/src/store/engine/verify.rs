//! Recomputing what is stored from what it says.

use std::collections::{HashMap, HashSet};

use super::body::{ArtifactBody, Body, FoldBody, decode};
use super::fold::{Fold, fold, load_artifact};
use super::line::line;
use super::rules::{NO_LIMIT, all_branches, live_session};
use super::tables::{
    Flow, ListBy, ListScan, Only, Owner, Place, Read, RecordMeta, RecordRow, Scan, SegmentRow, SessionRow,
};
use super::walk::damaged;
use crate::digest::Digest;
use crate::session::SessionKey;
use crate::snapshot::SnapshotStatus;
use crate::state::PointState;
use crate::store::{Damage, Verified, VerifyScope};
use crate::turn::RecordKind;
use crate::{BranchName, Error, ErrorKind, Point, Result};

pub(crate) fn verify(read: &dyn Read, scope: &VerifyScope) -> Result<Verified> {
    let mut report = Verified::default();
    match scope {
        VerifyScope::Session(key) => verify_session(read, &live_session(read, key)?, &mut report)?,
        VerifyScope::Rows => verify_rows(read, &mut report)?,
        VerifyScope::All => {
            verify_rows(read, &mut report)?;
            let mut all = Vec::new();
            let owner = Owner { app: None, user: None };
            let scan = ListScan { owner, by: ListBy::Created, newest_first: false, after: None };
            let listed = read.list(scan, &mut |row| {
                all.push(row);
                Ok(Flow::More)
            });
            noted(listed, &mut report, None, 0)?;
            for session in all {
                verify_session(read, &session, &mut report)?;
            }
        }
    }
    Ok(report)
}

/// Takes down an error that says that something is damaged; every other one is why it cannot be verified.
fn noted<T>(result: Result<T>, report: &mut Verified, session: Option<&SessionKey>, seq: u64) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid) => {
            report.found(Damage { session: session.cloned(), point: Point::new(seq), what: causes(&error) });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// An error with what it came of.
fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn verify_rows(read: &dyn Read, report: &mut Verified) -> Result<()> {
    read.check_rows(&mut |at, what| {
        let session = at.and_then(|(num, _)| read.session(num).ok().flatten()).map(|row| row.key);
        let seq = at.map_or(0, |(_, seq)| seq);
        report.found(Damage { session, point: Point::new(seq), what });
    })
}

/// How far a segment has been added up. Nothing is known of the states in it after a damaged record.
struct Stretch {
    /// The state before the turn that is being read, to go back to when it turns out void.
    settled: Option<PointState>,
    state: Option<PointState>,
}

/// An artifact that was put: the record, its name and its digest.
type Put = (u64, String, Digest);

struct Verifying<'a> {
    read: &'a dyn Read,
    session: &'a SessionRow,
    report: &'a mut Verified,
    segments: HashMap<u64, SegmentRow>,
    stretches: HashMap<u64, Stretch>,
    /// Records that other segments follow, and the states there.
    wanted: HashSet<Place>,
    states: HashMap<Place, PointState>,
    /// What records of completed turns have put: the record, the artifact's name and its digest.
    puts: HashSet<Put>,
    /// The branches beside `main` that the log tells of.
    branches: HashSet<BranchName>,
    /// Turns that have begun and not ended.
    open: HashSet<u64>,
    /// What records of turns have put that have not ended.
    open_puts: HashMap<(u64, u64), Vec<Put>>,
}

fn verify_session(read: &dyn Read, session: &SessionRow, report: &mut Verified) -> Result<()> {
    report.sessions += 1;
    let segments = noted(read.segments(session.num), report, Some(&session.key), 0)?.unwrap_or_default();
    let mut verifying = Verifying {
        read,
        session,
        report,
        wanted: segments.iter().filter_map(|segment| segment.parent).collect(),
        segments: segments.into_iter().map(|segment| (segment.id, segment)).collect(),
        stretches: HashMap::new(),
        states: HashMap::new(),
        puts: HashSet::new(),
        branches: HashSet::new(),
        open: HashSet::new(),
        open_puts: HashMap::new(),
    };
    verifying.records()?;
    verifying.heads()?;
    verifying.turns()?;
    verifying.versions()
}

impl Verifying<'_> {
    fn note<T>(&mut self, result: Result<T>, seq: u64) -> Result<Option<T>> {
        noted(result, self.report, Some(&self.session.key), seq)
    }

    fn wrong(&mut self, seq: u64, what: impl Into<String>) {
        let session = Some(self.session.key.clone());
        self.report.found(Damage { session, point: Point::new(seq), what: what.into() });
    }

    /// Reads the log number by number, so that each record that is damaged or missing is known.
    fn records(&mut self) -> Result<()> {
        let first = self.first_seq();
        let Some(mut seq) = self.note(first, 0)? else { return Ok(()) };
        // How many numbers a damaged record took is not known.
        let mut known = true;
        while seq < self.session.next_seq {
            let found = self.read.record(self.session.num, seq);
            match self.note(found, seq)? {
                None => (seq, known) = (seq + 1, false),
                Some(Some(row)) => {
                    (seq, known) = (seq + row.meta.width.max(1), true);
                    self.record(&row)?;
                }
                Some(None) => {
                    if known {
                        self.wrong(seq, "the record is missing from the log");
                    }
                    let next = self.next_seq(seq);
                    let next = self.note(next, seq)?.unwrap_or(Some(seq + 1));
                    let Some(next) = next else { break };
                    (seq, known) = (next, known && next > seq + 1);
                }
            }
        }
        if known && seq > self.session.next_seq {
            self.wrong(self.session.next_seq, "the log goes on after its last record");
        }
        Ok(())
    }

    /// The number of the session's first record: a fork counts on from the record it was made at.
    fn first_seq(&self) -> Result<u64> {
        let Some((_, forked)) = self.session.forked else { return Ok(1) };
        let mut parents = self.segments.values().filter_map(|segment| segment.parent);
        let Some(parent) = parents.find(|parent| parent.num != self.session.num && parent.seq == forked) else {
            return Err(Error::corrupt("a fork's line begins nowhere"));
        };
        let meta = self.read.meta(parent.num, parent.seq)?;
        meta.map(|meta| meta.seq + meta.width).ok_or_else(|| Error::corrupt("the record it was forked at is missing"))
    }

    /// The first number after one that there is a record of.
    fn next_seq(&self, after: u64) -> Result<Option<u64>> {
        let (num, mut next) = (self.session.num, None);
        let scan = Scan { num, from: after + 1, to: NO_LIMIT, segment: None, only: Only::All, newest_first: false };
        self.read.scan_meta(scan, &mut |meta: RecordMeta| {
            next = Some(meta.seq);
            Ok(Flow::Stop)
        })?;
        Ok(next)
    }

    /// Compares a record with the state before it and what it says it leaves behind.
    fn record(&mut self, row: &RecordRow) -> Result<()> {
        let meta = &row.meta;
        let text = decode(&row.body).and_then(|text| Body::parse(&text).map(|body| (text, body)));
        let Some((text, body)) = self.note(text.map_err(|e| damaged(meta, e)), meta.seq)? else {
            self.forget(meta.segment);
            return Ok(());
        };
        if meta.kind == RecordKind::Admin {
            let change = branch_change(&body);
            if let Some(Some(change)) = self.note(change, meta.seq)? {
                change.note(&mut self.branches);
            }
            return Ok(());
        }
        if let Some(turn) = meta.turn {
            let ended = body.end.as_ref().is_some_and(|end| end.status.status().is_some());
            if ended {
                self.open.remove(&turn)
            } else {
                meta.kind == RecordKind::Begin && self.open.insert(turn)
            };
        }
        self.report.records += 1;
        if !self.stretches.contains_key(&meta.segment) {
            let start = self.start(meta);
            let start = self.note(start, meta.seq)?;
            self.stretches.insert(meta.segment, Stretch { settled: start.clone(), state: start });
        }
        let before = self.stretches.get(&meta.segment).and_then(|stretch| stretch.state.clone());
        let Some(before) = before else { return Ok(()) };
        let after = self.added(before, meta, &text, &body);
        let Some(after) = self.note(after, meta.seq)? else {
            self.forget(meta.segment);
            return Ok(());
        };
        self.snapshot(meta, &after)?;
        self.put(meta, &body);
        if self.wanted.contains(&meta.place()) {
            self.states.insert(meta.place(), after.clone());
        }
        if let Some(stretch) = self.stretches.get_mut(&meta.segment) {
            match meta.kind {
                RecordKind::Void => stretch.state.clone_from(&stretch.settled),
                _ => stretch.state = Some(after),
            }
            if matches!(meta.kind, RecordKind::End | RecordKind::Edit) {
                stretch.settled.clone_from(&stretch.state);
            }
        }
        Ok(())
    }

    fn forget(&mut self, segment: u64) {
        self.stretches.insert(segment, Stretch { settled: None, state: None });
    }

    /// The state that the first record of a segment follows.
    fn start(&self, first: &RecordMeta) -> Result<PointState> {
        let segment = self.segments.get(&first.segment);
        let segment = segment.ok_or_else(|| Error::corrupt("the record is in no segment of its session"))?;
        let Some(parent) = segment.parent else { return Ok(PointState::empty(self.session.key.id.clone())) };
        match self.states.get(&parent) {
            Some(state) => Ok(state.clone()),
            None => {
                let empty = PointState::empty(self.session.key.id.clone());
                let state = fold(self.read, self.session.tree, empty, &line(self.read, parent)?)?;
                let stands = state.point.seq() == parent.seq;
                stands.then_some(state).ok_or_else(|| Error::corrupt("the record it follows is missing"))
            }
        }
    }

    fn added(&self, before: PointState, meta: &RecordMeta, text: &str, body: &Body) -> Result<PointState> {
        let mut usage = before.tip.usage;
        usage.add(&body.usage);
        body.events.iter().filter_map(|event| event.usage.as_ref()).for_each(|spent| usage.add(spent));
        let mut fold = Fold::from(before);
        fold.apply(meta, text).map_err(|e| damaged(meta, e))?;
        let state = fold.finish(|digest| Ok(load_artifact(self.read, self.session.tree, digest)?.into()))?;
        if usage != meta.tip.usage {
            return Err(Error::corrupt(format!("the usage of record {} does not add up", meta.seq)));
        }
        Ok(state)
    }

    fn snapshot(&mut self, meta: &RecordMeta, state: &PointState) -> Result<()> {
        let Some(id) = meta.snapshot else { return Ok(()) };
        let row = self.read.snapshot(id);
        let Some(row) = self.note(row, meta.seq)? else { return Ok(()) };
        let Some(row) = row else {
            self.wrong(meta.seq, format!("snapshot {id} is missing"));
            return Ok(());
        };
        if row.num != meta.num {
            self.wrong(meta.seq, format!("snapshot {id} is of another session"));
        }
        // While a turn runs in the background its snapshot moves on.
        if (row.num, row.seq) != (meta.num, meta.seq) {
            return Ok(());
        }
        self.report.snapshots += 1;
        if row.digest != state.digest() {
            self.wrong(meta.seq, format!("snapshot {id} does not have the digest of the state it names"));
        }
        let fits = match row.status {
            SnapshotStatus::Completed => !matches!(meta.kind, RecordKind::Void | RecordKind::Begin),
            _ => !matches!(meta.kind, RecordKind::End | RecordKind::Edit),
        };
        if !fits {
            self.wrong(meta.seq, format!("snapshot {id} cannot be {:?} there", row.status));
        }
        Ok(())
    }

    /// Notes which artifacts have a version.
    fn put(&mut self, meta: &RecordMeta, body: &Body) {
        let puts = body.artifacts.iter().filter_map(|change| match change {
            ArtifactBody::Put(put) => Some((meta.seq, put.name.clone()?, put.digest)),
            _ => None,
        });
        let Some(attempt) = meta.turn.map(|turn| (turn, meta.attempt)) else { return self.puts.extend(puts) };
        let open = self.open_puts.entry(attempt).or_default();
        open.extend(puts);
        if matches!(meta.kind, RecordKind::End | RecordKind::Void) {
            let puts = self.open_puts.remove(&attempt).unwrap_or_default();
            if meta.kind == RecordKind::End {
                self.puts.extend(puts);
            }
        }
    }

    fn heads(&mut self) -> Result<()> {
        let branches = all_branches(self.read, self.session);
        let mut unknown = std::mem::take(&mut self.branches);
        for branch in self.note(branches, 0)?.unwrap_or_default() {
            let head = &branch.head;
            if !branch.name.is_main() && !unknown.remove(&branch.name) {
                self.wrong(head.seq, format!("the log tells of no branch {:?}", branch.name));
            }
            let meta = self.read.meta(head.num, head.seq);
            let Some(meta) = self.note(meta, head.seq)? else { continue };
            let stands = meta.is_some_and(|meta| {
                meta.segment == head.segment
                    && meta.tip.turns == head.turns
                    && matches!(meta.kind, RecordKind::End | RecordKind::Edit)
            });
            let foreign = head.next.is_some_and(|next| !self.segments.contains_key(&next));
            if !stands || foreign {
                self.wrong(head.seq, format!("the head of {:?} points nowhere", branch.name));
                continue;
            }
            let line = line(self.read, head.place());
            self.note(line, head.seq)?;
        }
        for name in unknown {
            self.wrong(0, format!("the branch {name:?} is missing"));
        }
        Ok(())
    }

    fn turns(&mut self) -> Result<()> {
        let turns = self.read.turns(Some(self.session.num));
        for turn in self.note(turns, 0)?.unwrap_or_default() {
            self.open.remove(&turn.begin);
            let begin = self.read.meta(turn.num, turn.begin);
            let Some(begin) = self.note(begin, turn.begin)? else { continue };
            if begin.is_none_or(|meta| meta.kind != RecordKind::Begin || meta.turn != Some(turn.begin)) {
                self.wrong(turn.begin, "a running turn has no begin");
            }
        }
        for turn in std::mem::take(&mut self.open) {
            if !self.is_unknown(turn) {
                self.wrong(turn, "the turn has neither ended nor is it running");
            }
        }
        Ok(())
    }

    fn versions(&mut self) -> Result<()> {
        let rows = self.read.artifacts(self.session.num, None);
        let rows = self.note(rows, 0)?.unwrap_or_default();
        let mut given = HashSet::new();
        for row in rows {
            let version = (row.seq, row.name, row.digest);
            if !self.puts.contains(&version) && !self.is_unknown(row.seq) {
                self.wrong(row.seq, format!("version {} of {:?} was put by no record", row.version, version.1));
            }
            given.insert(version);
        }
        let mut missing: Vec<_> = self.puts.difference(&given).cloned().collect();
        missing.sort();
        for (seq, name, _) in missing {
            self.wrong(seq, format!("what it put as {name:?} has no version"));
        }
        Ok(())
    }

    /// Whether a record could not be compared, because it is damaged or follows one that is.
    fn is_unknown(&self, seq: u64) -> bool {
        let meta = self.read.meta(self.session.num, seq).ok().flatten();
        meta.is_none_or(|meta| self.stretches.get(&meta.segment).is_none_or(|stretch| stretch.state.is_none()))
    }
}

/// What an admin record says about a branch.
pub(crate) struct LoggedChange {
    name: BranchName,
    exists: bool,
}

impl LoggedChange {
    /// Keeps the names of the branches beside `main`.
    pub(crate) fn note(self, names: &mut HashSet<BranchName>) {
        match self.exists && !self.name.is_main() {
            true => names.insert(self.name),
            false => names.remove(&self.name),
        };
    }
}

/// Reads what an admin record says about a branch, if it is about one.
pub(crate) fn branch_change(body: &Body) -> Result<Option<LoggedChange>> {
    let members = body.admin.as_ref().map_or(Ok(Vec::new()), super::read::members)?;
    let of = |wanted: &str| members.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    let Some(name) = of("branch") else { return Ok(None) };
    Ok(Some(LoggedChange { name: name.to()?, exists: of("at").is_some_and(|at| at.as_str() != "null") }))
}

/// The chain value after a record, recomputed from its messages.
pub(crate) fn chain_after(before: &PointState, text: &str) -> Result<Digest> {
    let body = FoldBody::parse(text)?;
    let mut chain = before.tip.digests.chain;
    let mut spliced = Vec::new();
    if let Some(splice) = body.splice {
        chain = before.messages.chain_at(usize::try_from(splice.keep).unwrap_or(usize::MAX))?;
        spliced = splice.messages;
    }
    for message in spliced.into_iter().chain(body.messages) {
        chain = chain.chain(Digest::of_json_text(message)?);
    }
    Ok(chain)
}
