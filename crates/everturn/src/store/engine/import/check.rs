//! Checking what is to be brought in, by adding it up.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::body::{ArtifactBody, Body, CustomBody, encode};
use super::super::fold::Fold;
use super::super::prepare::MAX_PATCHES;
use super::super::sessions::check_session;
use super::super::tables::RecordMeta;
use super::super::verify::{branch_change, chain_after};
use super::cost::{Cost, Span, spans};
use super::shape::{Ended, contents, how_ended, shape};
use crate::artifact::Artifact;
use crate::digest::Digest;
use crate::json::Json;
use crate::state::{PointState, Tip, refuse_prefixed};
use crate::store::{
    Entry, HeadEntry, ImportSession, Limits, PlaceEntry, RecordEntry, SegmentEntry, SessionEntry, SnapshotIds,
    VersionEntry,
};
use crate::turn::RecordKind;
use crate::{AgentName, BranchName, Error, ErrorKind, Result, SessionId, SessionKey, SnapshotId};

/// The most stretches a tree that is brought in may have, and branches.
const MAX_SEGMENTS: usize = 100_000;
/// Far beyond any count a session reaches, and far from where adding to it would overflow.
pub(super) const MAX_COUNT: u64 = 1 << 62;
/// The most sessions a line may have begun in.
const MAX_ORIGINS: usize = 1_000;

/// A session that holds together, ready to be written.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(super) key: SessionKey,
    pub(super) agent: Option<AgentName>,
    snapshots: SnapshotIds,
    /// What its snapshots are called here, by what they were called.
    pub(super) ids: HashMap<SnapshotId, SnapshotId>,
    pub(super) session: SessionEntry,
    pub(super) segments: Vec<SegmentEntry>,
    pub(super) records: Vec<CheckedRecord>,
    pub(super) versions: Vec<VersionEntry>,
    /// What was left behind where branches stand, where turns started that had not ended, and where those stood.
    pub(super) tips: HashMap<PlaceEntry, Tip>,
    /// The last record of each turn that had not ended.
    pub(super) last: HashMap<u64, PlaceEntry>,
}

/// A record with what it leaves behind, packed.
#[derive(Debug)]
pub(super) struct CheckedRecord {
    pub(super) entry: RecordEntry,
    pub(super) width: u64,
    pub(super) tip: Tip,
    pub(super) body: Vec<u8>,
    pub(super) contents: Vec<(Digest, Vec<u8>)>,
}

/// How far a stretch of the tree has been added up.
struct Stretch {
    of: u64,
    /// The state before the turn that is being read.
    settled: PointState,
    /// The turn that is being read, the attempt at it, and the state in it.
    turn: Option<(u64, u64, PointState)>,
    last: u64,
}

struct Checking<'a> {
    limits: &'a Limits,
    id: SessionId,
    session: &'a SessionEntry,
    segments: HashMap<u64, &'a SegmentEntry>,
    /// Those that go on: a stretch is dropped with its last record, and its states with it.
    stretches: HashMap<u64, Stretch>,
    /// The turn and the attempt that each of the others ended in.
    ended: HashMap<u64, Option<(u64, u64)>>,
    /// States that stretches begin with, and how many of them have not begun.
    states: HashMap<PlaceEntry, (usize, Option<PointState>)>,
    /// What is left behind where something refers to, once it is known.
    tips: HashMap<PlaceEntry, Option<Tip>>,
    spans: HashMap<u64, Span>,
    /// The turns that had not ended.
    open: HashSet<u64>,
    cost: Cost,
    /// The places a branch can stand at.
    completed: HashSet<PlaceEntry>,
    /// Each session's next number.
    next: Vec<Option<u64>>,
    /// The number after the record that the session was forked at.
    forked_after: Option<u64>,
    /// Attempts at each turn, and whether it has ended.
    turns: HashMap<(u64, u64), (u64, Ended)>,
    last: HashMap<u64, PlaceEntry>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::invalid(format!("{}: the export does not hold together, nothing was brought in", what.into()))
}

pub(super) fn check(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(wrong(what())) }
}

impl Checked {
    /// Checks everything that can be told without the store.
    pub(crate) fn new(import: ImportSession, limits: &Limits) -> Result<Self> {
        import.session()?;
        let ImportSession { key, agent, snapshots, entries } = import;
        let (mut session, mut segments, mut records, mut versions) = (None, Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Session(entry) if session.is_none() => session = Some(*entry),
                Entry::Segment(entry) if records.is_empty() && versions.is_empty() => segments.push(entry),
                Entry::Record(entry) if versions.is_empty() => records.push(*entry),
                Entry::Version(entry) => versions.push(entry),
                _ => return Err(wrong("its parts are not in their order")),
            }
        }
        let session = session.ok_or_else(|| wrong("it has no session"))?;
        check_session(session.title.as_deref(), &session.labels, &session.metadata)?;
        let mut checking = Checking::new(&key.id, &session, &segments, &records, limits)?;
        let records = records.into_iter().map(|record| checking.record(record)).collect::<Result<Vec<_>>>()?;
        let (tips, last) = checking.done(&records, &mut versions)?;
        let ids = HashMap::new();
        Ok(Self { key, agent, snapshots, ids, session, segments, records, versions, tips, last })
    }

    /// Names its snapshots.
    pub(crate) fn name(&mut self, mut fresh: impl FnMut() -> SnapshotId) {
        let known = self.records.iter().filter_map(|record| record.entry.snapshot.as_ref());
        let named = known.map(|snapshot| match self.snapshots {
            SnapshotIds::Keep => (snapshot.id, snapshot.id),
            SnapshotIds::Fresh => (snapshot.id, fresh()),
        });
        self.ids = named.collect();
    }
}

impl<'a> Checking<'a> {
    fn new(
        id: &SessionId,
        session: &'a SessionEntry,
        segments: &'a [SegmentEntry],
        records: &[RecordEntry],
        limits: &'a Limits,
    ) -> Result<Self> {
        let origins = session.origins.len();
        check(
            segments.len() <= MAX_SEGMENTS && session.branches.len() <= MAX_SEGMENTS && origins <= MAX_ORIGINS,
            || "its tree is larger than any that is taken".to_owned(),
        )?;
        let mut known: HashMap<u64, &SegmentEntry> = HashMap::new();
        let mut states: HashMap<PlaceEntry, (usize, Option<PointState>)> = HashMap::new();
        let mut tips = HashMap::new();
        let spans = spans(records);
        for segment in segments {
            let parent_known = segment.parent.is_none_or(|parent| {
                known.get(&parent.segment).is_some_and(|found| found.of == parent.of && found.of >= segment.of)
            });
            let fits = segment.id != 0 && segment.of <= origins as u64 && parent_known;
            check(fits && known.insert(segment.id, segment).is_none(), || {
                format!("the stretch {} hangs nowhere", segment.id)
            })?;
            if let Some(parent) = segment.parent {
                tips.insert(parent, None);
                if spans.contains_key(&segment.id) {
                    states.entry(parent).or_default().0 += 1;
                }
            }
        }
        tips.extend(session.branches.iter().map(|branch| (branch.at, None)));
        tips.extend(session.open.iter().map(|turn| (turn.start, None)));
        let forks =
            std::iter::once(&session.forked_from).chain(session.origins.iter().map(|origin| &origin.forked_from));
        for (of, fork) in forks.clone().enumerate() {
            let Some(fork) = fork else { continue };
            let roots = segments.iter().filter(|segment| segment.of == of as u64).filter_map(|segment| segment.parent);
            let begins = roots.clone().any(|at| at.of == of as u64 + 1 && at.seq == fork.point.seq());
            let elsewhere = roots.clone().any(|at| at.of != of as u64 && at.of != of as u64 + 1);
            check(begins && !elsewhere, || "it does not begin where it was forked off".to_owned())?;
        }
        let forked = forks.clone().filter(|fork| fork.is_some()).count();
        check(forked == origins && forks.take(origins).all(Option::is_some), || "its origins do not fit".to_owned())?;
        let mut next = vec![None; origins + 1];
        if session.forked_from.is_none() {
            next[0] = Some(1);
        }
        Ok(Self {
            limits,
            id: id.clone(),
            session,
            segments: known,
            stretches: HashMap::new(),
            ended: HashMap::new(),
            states,
            tips,
            spans,
            open: session.open.iter().map(|turn| turn.begin).collect(),
            cost: Cost::of(records),
            completed: HashSet::new(),
            next,
            forked_after: None,
            turns: HashMap::new(),
            last: HashMap::new(),
        })
    }

    fn record(&mut self, entry: RecordEntry) -> Result<CheckedRecord> {
        let seq = entry.seq;
        self.add(entry).map_err(|error| match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Internal => {
                wrong(format!("record {seq}: {error}")).with_source(error)
            }
            _ => error,
        })
    }

    fn add(&mut self, mut entry: RecordEntry) -> Result<CheckedRecord> {
        let body: Body = entry.body.to()?;
        // Written anew, so that no other spelling of it reads differently elsewhere.
        let text = body.text()?;
        if text.len() > self.limits.body {
            return Err(Error::too_large(format!("record {} is larger than this store takes", entry.seq)));
        }
        entry.body = Json::trusted(text.clone());
        let width = (body.events.len() as u64).max(1);
        self.number(&entry, width)?;
        shape(&entry, &body)?;
        let contents = contents(&entry, &body)?;
        let tip = match entry.kind {
            RecordKind::Admin => Tip::EMPTY,
            _ => self.grow(&entry, &body, &text, &contents, width)?,
        };
        let packed =
            contents.iter().map(|(digest, artifact)| Ok((*digest, encode(Json::written(&**artifact)?.as_str())?)));
        let contents = packed.collect::<Result<_>>()?;
        entry.contents.clear();
        Ok(CheckedRecord { width, tip, body: encode(&text)?, contents, entry })
    }

    /// Numbers have no gap in the session itself, which goes on where it was forked off; of its origins there is only what its line needs.
    fn number(&mut self, entry: &RecordEntry, width: u64) -> Result<()> {
        let at = usize::try_from(entry.of).ok().filter(|of| *of < self.next.len());
        let at = at.ok_or_else(|| wrong("it is of no session"))?;
        let fits = match self.next[at] {
            Some(next) if at == 0 => entry.seq == next,
            Some(next) => entry.seq >= next,
            None if at == 0 => Some(entry.seq) == self.forked_after,
            None => entry.seq >= 1,
        };
        check(fits && entry.seq < MAX_COUNT, || "it is not where it should be in the log".to_owned())?;
        // Origins come before what was forked off them.
        check(self.next[..at].iter().all(Option::is_none), || "it comes too late".to_owned())?;
        self.next[at] = Some(entry.seq + width);
        if at == 1 && self.session.forked_from.as_ref().is_some_and(|fork| fork.point.seq() == entry.seq) {
            self.forked_after = self.next[at];
        }
        Ok(())
    }

    /// Adds a record to the stretch it is in, and gives what it leaves behind.
    fn grow(
        &mut self,
        entry: &RecordEntry,
        body: &Body,
        text: &str,
        contents: &[(Digest, Arc<Artifact>)],
        width: u64,
    ) -> Result<Tip> {
        let place = PlaceEntry { of: entry.of, segment: entry.segment, seq: entry.seq };
        let mut stretch = match self.stretches.remove(&entry.segment) {
            Some(stretch) => stretch,
            None => self.open(entry)?,
        };
        check(stretch.of == entry.of && stretch.last < entry.seq, || "its stretch is not its own".to_owned())?;
        stretch.last = entry.seq;
        let before = self.follow(&stretch, entry)?;
        self.cost.add_up(&before, body)?;
        let mut tip = tip_after(&before.tip, entry, body)?;
        tip.digests.chain = chain_after(&before, text)?;
        let state = added(before, entry, body, text, contents, &mut tip, width)?;
        self.cost.hold(&state, body)?;
        if let Some(custom) = state.custom.as_ref().filter(|_| body.custom.is_some()) {
            let size = custom.as_str().len();
            if size > self.limits.custom {
                return Err(Error::too_large("its custom state is larger than this store takes"));
            }
            refuse_prefixed(custom)?;
        }
        check(Some(tip.digests.state()) == entry.digest, || "the state after it has another digest".to_owned())?;
        if let Some((_, wanted)) = self.states.get_mut(&place) {
            *wanted = Some(state.clone());
        }
        if let Some(known) = self.tips.get_mut(&place) {
            *known = Some(tip.clone());
        }
        if let Some(turn) = entry.turn.filter(|_| entry.of == 0) {
            self.last.insert(turn, place);
            if self.open.contains(&turn) {
                self.tips.insert(place, Some(tip.clone()));
            }
        }
        match (entry.kind, entry.turn.zip(entry.attempt)) {
            (RecordKind::Begin | RecordKind::Step, Some((turn, attempt))) => {
                stretch.turn = Some((turn, attempt, state))
            }
            (RecordKind::Void, _) => stretch.turn = None,
            _ => (stretch.turn, stretch.settled) = (None, state),
        }
        if matches!(entry.kind, RecordKind::End | RecordKind::Edit) {
            self.completed.insert(place);
        }
        if self.spans.get(&entry.segment).is_some_and(|span| span.last == (entry.of, entry.seq)) {
            self.ended.insert(entry.segment, stretch.turn.map(|(turn, attempt, _)| (turn, attempt)));
        } else {
            self.stretches.insert(entry.segment, stretch);
        }
        Ok(tip)
    }

    /// A stretch begins where its parent is.
    fn open(&mut self, entry: &RecordEntry) -> Result<Stretch> {
        check(!self.ended.contains_key(&entry.segment), || "its stretch is over".to_owned())?;
        let segment = self.segments.get(&entry.segment).ok_or_else(|| wrong("it is in no stretch"))?;
        let (settled, last) = match segment.parent {
            None => (PointState::empty(self.id.clone()), 0),
            Some(parent) => {
                let follows_nothing = || wrong("its stretch follows nothing");
                let (left, state) = self.states.get_mut(&parent).ok_or_else(follows_nothing)?;
                *left = left.saturating_sub(1);
                // The last one that begins with it takes it along.
                let state = if *left == 0 { state.take() } else { state.clone() };
                (state.ok_or_else(follows_nothing)?, parent.seq)
            }
        };
        Ok(Stretch { of: segment.of, settled, turn: None, last })
    }

    /// The state a record follows, if it may follow it.
    fn follow(&mut self, stretch: &Stretch, entry: &RecordEntry) -> Result<PointState> {
        let out_of_turn = || wrong("it is out of turn");
        let Some((turn, attempt)) = entry.turn.zip(entry.attempt) else {
            check(stretch.turn.is_none(), || "a turn has not ended before it".to_owned())?;
            return Ok(stretch.settled.clone());
        };
        let known = self.turns.entry((entry.of, turn)).or_insert((0, Ended::No));
        let again = known.1 == Ended::Lost && entry.kind == RecordKind::Begin;
        check(known.1 == Ended::No || again, || "its turn has ended before it".to_owned())?;
        if entry.kind == RecordKind::Begin {
            let fits = stretch.turn.is_none() && attempt == known.0 + 1 && (attempt > 1 || turn == entry.seq);
            *known = (attempt, Ended::No);
            return if fits { Ok(stretch.settled.clone()) } else { Err(out_of_turn()) };
        }
        let begun = known.0;
        known.1 = how_ended(entry)?;
        if known.1 == Ended::Lost {
            known.0 = attempt;
        }
        match &stretch.turn {
            Some((open, at, state)) if (*open, *at) == (turn, attempt) => Ok(state.clone()),
            // A turn that lost its branch may end on a stretch of its own.
            None if entry.kind == RecordKind::Void && begun > 0 && attempt >= begun => Ok(stretch.settled.clone()),
            _ => Err(out_of_turn()),
        }
    }

    /// Checks what refers to the whole.
    fn done(
        self,
        records: &[CheckedRecord],
        versions: &mut Vec<VersionEntry>,
    ) -> Result<(HashMap<PlaceEntry, Tip>, HashMap<u64, PlaceEntry>)> {
        let names: HashSet<_> = self.session.branches.iter().map(|HeadEntry { name, .. }| name).collect();
        check(names.len() == self.session.branches.len() && names.iter().any(|name| name.is_main()), || {
            "its branches are not those of a session".to_owned()
        })?;
        check(
            names_in_log(records)? == names.iter().copied().filter(|name| !name.is_main()).cloned().collect(),
            || "its branches are not those that its log tells of".to_owned(),
        )?;
        check(self.session.branches.iter().all(|branch| self.completed.contains(&branch.at)), || {
            "a branch stands where nothing was completed".to_owned()
        })?;
        check(self.next.iter().all(Option::is_some), || "a session has no records".to_owned())?;
        let open = self.open;
        let unfinished = self
            .turns
            .iter()
            .filter(|((of, _), (_, ended))| *of == 0 && *ended == Ended::No)
            .map(|((_, turn), _)| *turn);
        check(unfinished.collect::<HashSet<_>>() == open, || "a turn has neither ended nor is it open".to_owned())?;
        for turn in &self.session.open {
            let stands =
                turn.segment.is_none_or(|segment| self.ended.get(&segment) == Some(&Some((turn.begin, turn.attempt))));
            let counts = turn.attempt < MAX_COUNT;
            check(counts && stands && self.tips.get(&turn.start).is_some_and(Option::is_some), || {
                format!("turn {} stands nowhere", turn.begin)
            })?;
        }
        let mut ids = HashSet::new();
        let twice = records.iter().filter_map(|record| record.entry.snapshot.as_ref()).any(|row| !ids.insert(row.id));
        check(!twice, || "a snapshot is in it twice".to_owned())?;
        check_versions(records, versions, &open, self.session.origins.len() as u64)?;
        let tips = self.tips.into_iter().filter_map(|(place, tip)| Some((place, tip?))).collect();
        Ok((tips, self.last))
    }
}

/// What a record leaves behind but for the digests.
fn tip_after(base: &Tip, entry: &RecordEntry, body: &Body) -> Result<Tip> {
    let mut tip = base.clone();
    let messages = |count: usize| count as u64;
    if let Some(splice) = &body.splice {
        check(splice.keep <= tip.messages, || "it keeps more messages than there are".to_owned())?;
        tip.messages = splice.keep + messages(splice.messages.len());
    }
    tip.messages += messages(body.events.iter().map(|event| event.messages.len()).sum());
    match &body.custom {
        None => {}
        Some(CustomBody::Set(_) | CustomBody::Clear(_)) => (tip.patches, tip.patch_bytes) = (0, 0),
        Some(CustomBody::Patch(patch)) => {
            tip.patches += 1;
            tip.patch_bytes += patch.as_str().len() as u64;
            check(tip.patches <= MAX_PATCHES, || "its custom state was patched too often".to_owned())?;
        }
    }
    tip.usage.add(&body.usage);
    body.events.iter().filter_map(|event| event.usage.as_ref()).for_each(|usage| tip.usage.add(usage));
    tip.turns += u64::from(entry.kind == RecordKind::End);
    tip.index += u64::from(entry.event.is_some());
    tip.schema = entry.schema;
    Ok(tip)
}

/// The state after a record; its digests go into the tip.
fn added(
    before: PointState,
    entry: &RecordEntry,
    body: &Body,
    text: &str,
    contents: &[(Digest, Arc<Artifact>)],
    tip: &mut Tip,
    width: u64,
) -> Result<PointState> {
    let meta = RecordMeta {
        num: 0,
        seq: entry.seq,
        segment: entry.segment,
        kind: entry.kind,
        turn: entry.turn,
        attempt: entry.attempt.unwrap_or(0),
        at: entry.at,
        event: entry.event,
        snapshot: None,
        width,
        tip: tip.clone(),
    };
    let contents: HashMap<&Digest, &Arc<Artifact>> = contents.iter().map(|(digest, found)| (digest, found)).collect();
    let mut fold = Fold::from(before);
    fold.apply_unchecked(&meta, text)?;
    let mut state = fold.finish(|digest| {
        contents.get(&digest).map(|found| Arc::clone(found)).ok_or_else(|| wrong("an artifact is missing"))
    })?;
    if body.custom.is_some() {
        tip.digests.custom = state.custom.as_ref().map_or(Ok(Digest::ABSENT), Digest::of_json)?;
    }
    if !body.artifacts.is_empty() {
        tip.digests.artifacts = state.artifacts_digest();
    }
    if body.view.is_some() {
        let digest = |view: &Arc<crate::View>| Digest::of_json(&Json::written(&**view)?);
        tip.digests.view = state.view.as_ref().map_or(Ok(Digest::ABSENT), digest)?;
    }
    state.tip = tip.clone();
    Ok(state)
}

/// What a record put under a name.
fn named_puts(record: &CheckedRecord) -> Result<Vec<(String, Digest)>> {
    if record.entry.kind == RecordKind::Admin {
        return Ok(Vec::new());
    }
    let body: Body = record.entry.body.to()?;
    let named = body.artifacts.into_iter().filter_map(|change| match change {
        ArtifactBody::Put(put) => Some((put.name?, put.digest)),
        _ => None,
    });
    Ok(named.collect())
}

/// The branches beside `main` that were made and not deleted.
fn names_in_log(records: &[CheckedRecord]) -> Result<HashSet<BranchName>> {
    let mut names = HashSet::new();
    for record in records.iter().filter(|record| record.entry.of == 0 && record.entry.kind == RecordKind::Admin) {
        if let Some(change) = branch_change(&record.entry.body.to()?)? {
            change.note(&mut names);
        }
    }
    Ok(names)
}

/// Each version must be of something that was put; those of turns that will not end get none.
fn check_versions(
    records: &[CheckedRecord],
    versions: &mut Vec<VersionEntry>,
    open: &HashSet<u64>,
    origins: u64,
) -> Result<()> {
    let completed: HashSet<_> = records
        .iter()
        .map(|record| &record.entry)
        .filter(|entry| entry.kind == RecordKind::End)
        .map(|entry| (entry.turn, entry.attempt))
        .collect();
    let given: HashSet<_> = versions
        .iter()
        .filter(|version| version.of == 0)
        .map(|version| (version.seq, version.name.clone(), version.digest))
        .collect();
    let mut turns: HashMap<(u64, u64), Option<u64>> = HashMap::new();
    let mut put: HashSet<(u64, u64, String, Digest)> = HashSet::new();
    for record in records {
        let entry = &record.entry;
        turns.insert((entry.of, entry.seq), entry.turn);
        let counts = entry.of == 0 && (entry.turn.is_none() || completed.contains(&(entry.turn, entry.attempt)));
        for (name, digest) in named_puts(record)? {
            check(!counts || given.contains(&(entry.seq, name.clone(), digest)), || {
                format!("what record {} put has no version", entry.seq)
            })?;
            put.insert((entry.of, entry.seq, name, digest));
        }
    }
    let of_open = |version: &VersionEntry| {
        let turn = turns.get(&(version.of, version.seq)).copied().flatten();
        version.of == 0 && turn.is_some_and(|turn| open.contains(&turn))
    };
    versions.retain(|version| !of_open(version));
    let mut seen = HashSet::new();
    for version in versions.iter() {
        let known = match turns.contains_key(&(version.of, version.seq)) {
            true => put.contains(&(version.of, version.seq, version.name.clone(), version.digest)),
            // Off the line: it only counts.
            false => (1..=origins).contains(&version.of),
        };
        let first = seen.insert((version.of, &version.name, version.version));
        let counts = version.version < MAX_COUNT && version.seq < MAX_COUNT;
        check(known && first && counts && !version.name.is_empty(), || {
            format!("version {} of {:?} is of nothing", version.version, version.name)
        })?;
    }
    Ok(())
}
