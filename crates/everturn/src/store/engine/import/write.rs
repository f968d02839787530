//! Writing a session that was checked, in one go.

use std::collections::{BTreeSet, HashMap};

use super::super::body::{Body, EndBody, EndBodyStatus, encode};
use super::super::rules::{Ctx, show};
use super::super::tables::{ArtifactRow, BranchRow, Head, Place, RecordMeta, SessionRow, SnapshotRow};
use super::check::{Checked, CheckedRecord};
use crate::json::Json;
use crate::session::{ForkOrigin, SessionKey, SessionRecord};
use crate::snapshot::FinishReason;
use crate::state::Tip;
use crate::store::{OpenEntry, PlaceEntry, SnapshotEntry};
use crate::turn::{Outcome, RecordKind};
use crate::{Error, Result, SnapshotId, Usage};

/// Writes a session.
pub(crate) fn write(ctx: &mut Ctx<'_>, checked: &Checked) -> Result<SessionRecord> {
    if ctx.tx.find_session(&checked.key)?.is_some() {
        return Err(Error::already_exists(format!(
            "there is a session {} already: bring it in under another id",
            checked.key
        )));
    }
    for id in checked.ids.values() {
        ctx.check_snapshot_id(*id, None).map_err(|error| {
            let fix = "the original may be here: bring it in with fresh snapshot ids";
            Error::already_exists(format!("snapshot {id} exists already, {fix}")).with_source(error)
        })?;
    }
    let mut writing = Writing { checked, nums: Vec::new(), segments: HashMap::new(), rows: Vec::new() };
    writing.sessions(ctx)?;
    writing.tree(ctx)?;
    for record in &checked.records {
        writing.record(ctx, record)?;
    }
    for turn in &checked.session.open {
        writing.abort(ctx, turn)?;
    }
    writing.rest(ctx)?;
    show(ctx.tx, ctx.env, &writing.rows[0])
}

struct Writing<'a> {
    checked: &'a Checked,
    /// The session's number here, and those of its origins.
    nums: Vec<u64>,
    segments: HashMap<u64, u64>,
    rows: Vec<SessionRow>,
}

impl Writing<'_> {
    fn num(&self, of: u64) -> Result<u64> {
        let num = usize::try_from(of).ok().and_then(|of| self.nums.get(of)).copied();
        num.ok_or_else(|| Error::internal("a place in no session was not noticed"))
    }

    fn place(&self, place: PlaceEntry) -> Result<Place> {
        let segment = self.segments.get(&place.segment).copied();
        let segment = segment.ok_or_else(|| Error::internal("a place in no stretch was not noticed"))?;
        Ok(Place { num: self.num(place.of)?, segment, seq: place.seq })
    }

    fn tip(&self, place: PlaceEntry) -> Result<&Tip> {
        self.checked.tips.get(&place).ok_or_else(|| Error::internal("a place that nothing leads to was not noticed"))
    }

    /// Gives numbers. The oldest origin comes first, as if it had been there first.
    fn sessions(&mut self, ctx: &mut Ctx<'_>) -> Result<()> {
        let session = &self.checked.session;
        self.nums = vec![0; session.origins.len() + 1];
        for of in (0..self.nums.len()).rev() {
            self.nums[of] = ctx.tx.new_num()?;
        }
        let tree = self.nums[session.origins.len()];
        let forked = |from: &Option<ForkOrigin>| from.as_ref().map(|from| (from.session.clone(), from.point.seq()));
        let nowhere = |num| Head { seq: 0, num, segment: 0, next: None, lease: None, turns: 0 };
        self.rows.push(SessionRow {
            num: self.nums[0],
            tree,
            key: self.checked.key.clone(),
            agent: self.checked.agent.clone().or_else(|| session.agent.clone()),
            title: session.title.clone(),
            labels: session.labels.clone(),
            metadata: session.metadata.clone(),
            created_at: session.created_at,
            updated_at: session.updated_at,
            next_seq: 0,
            main: nowhere(self.nums[0]),
            usage: session.usage,
            inherited: session.inherited_usage,
            interrupted: session.interrupted,
            forked: forked(&session.forked_from),
            deleted: false,
            created_pos: 0,
            updated_pos: 0,
        });
        // What it needs of the sessions it was forked off, as if they had been deleted since.
        for (origin, num) in session.origins.iter().zip(&self.nums[1..]) {
            let SessionKey { app, user, .. } = self.checked.key.clone();
            self.rows.push(SessionRow {
                num: *num,
                tree,
                key: SessionKey::new(app, user, origin.id.clone()),
                agent: None,
                title: None,
                labels: BTreeSet::new(),
                metadata: Json::empty_object(),
                created_at: origin.created_at,
                updated_at: origin.created_at,
                next_seq: 0,
                main: nowhere(*num),
                usage: Usage::default(),
                inherited: Usage::default(),
                interrupted: false,
                forked: forked(&origin.forked_from),
                deleted: true,
                created_pos: 0,
                updated_pos: 0,
            });
        }
        Ok(())
    }

    fn tree(&mut self, ctx: &mut Ctx<'_>) -> Result<()> {
        for segment in &self.checked.segments {
            let parent = segment.parent.map(|parent| self.place(parent)).transpose()?;
            let id = ctx.tx.new_segment(self.num(segment.of)?, parent)?;
            self.segments.insert(segment.id, id);
        }
        Ok(())
    }

    fn append(&mut self, ctx: &mut Ctx<'_>, of: u64, meta: &RecordMeta, body: &[u8]) -> Result<()> {
        let at = ctx.tx.append(meta, body)?;
        let row = usize::try_from(of).ok().and_then(|of| self.rows.get_mut(of));
        let row = row.ok_or_else(|| Error::internal("a record of no session was not noticed"))?;
        row.next_seq = meta.seq + meta.width;
        row.updated_pos = at;
        if row.created_pos == 0 {
            row.created_pos = at;
        }
        Ok(())
    }

    fn record(&mut self, ctx: &mut Ctx<'_>, record: &CheckedRecord) -> Result<()> {
        let entry = &record.entry;
        let num = self.num(entry.of)?;
        let segment = match entry.kind {
            RecordKind::Admin => 0,
            _ => self.place(PlaceEntry { of: entry.of, segment: entry.segment, seq: entry.seq })?.segment,
        };
        let meta = RecordMeta {
            num,
            seq: entry.seq,
            segment,
            kind: entry.kind,
            turn: entry.turn,
            attempt: entry.attempt.unwrap_or(0),
            at: entry.at,
            event: entry.event,
            snapshot: entry.snapshot.as_ref().and_then(|snapshot| self.checked.ids.get(&snapshot.id)).copied(),
            width: record.width,
            tip: record.tip.clone(),
        };
        self.append(ctx, entry.of, &meta, &record.body)?;
        let tree = self.rows[0].tree;
        record.contents.iter().try_for_each(|(digest, body)| ctx.tx.put_blob(tree, *digest, body))?;
        if let Some(snapshot) = &entry.snapshot {
            ctx.tx.put_snapshot(&self.snapshot(&meta, snapshot))?;
        }
        Ok(())
    }

    fn snapshot(&self, meta: &RecordMeta, entry: &SnapshotEntry) -> SnapshotRow {
        let here = |id: SnapshotId| self.checked.ids.get(&id).copied();
        SnapshotRow {
            id: here(entry.id).unwrap_or(entry.id),
            num: meta.num,
            seq: meta.seq,
            // One of a session it was forked off is not here.
            parent: entry.parent.and_then(here),
            digest: meta.tip.digests.state(),
            index: entry.index,
            turn_index: entry.turn_index,
            event: entry.event,
            status: entry.status,
            finish: entry.finish_reason,
            error: entry.error.clone(),
            created_at: entry.created_at,
            updated_at: entry.updated_at,
            label: entry.label.clone(),
            turn: None,
        }
    }

    /// A turn that had not ended cannot be gone on with here.
    fn abort(&mut self, ctx: &mut Ctx<'_>, turn: &OpenEntry) -> Result<()> {
        let (segment, tip) = match (turn.segment, self.checked.last.get(&turn.begin)) {
            (Some(segment), Some(last)) => {
                let place = self.place(PlaceEntry { of: 0, segment, seq: last.seq })?;
                (place.segment, self.tip(*last)?.clone())
            }
            _ => {
                let start = self.place(turn.start)?;
                (ctx.tx.new_segment(self.nums[0], Some(start))?, self.tip(turn.start)?.clone())
            }
        };
        let outcome = Outcome::finished(FinishReason::Aborted);
        let body = Body { end: Some(EndBody { status: EndBodyStatus::Aborted, outcome }), ..Body::default() };
        let meta = RecordMeta {
            num: self.nums[0],
            seq: self.rows[0].next_seq,
            segment,
            kind: RecordKind::Void,
            turn: Some(turn.begin),
            attempt: turn.attempt,
            at: ctx.env.now,
            event: None,
            snapshot: None,
            width: 1,
            tip,
        };
        self.append(ctx, 0, &meta, &encode(&body.text()?)?)
    }

    /// Heads, versions, and the sessions themselves.
    fn rest(&mut self, ctx: &mut Ctx<'_>) -> Result<()> {
        for branch in &self.checked.session.branches {
            let Place { num, segment, seq } = self.place(branch.at)?;
            let head = Head { seq, num, segment, next: None, lease: None, turns: self.tip(branch.at)?.turns };
            match branch.name.is_main() {
                true => self.rows[0].main = head,
                false => ctx.tx.put_branch(self.nums[0], &BranchRow { name: branch.name.clone(), head })?,
            }
        }
        for version in &self.checked.versions {
            let (name, version, digest, seq, of) =
                (version.name.clone(), version.version, version.digest, version.seq, version.of);
            ctx.tx.put_artifact(self.num(of)?, &ArtifactRow { name, version, digest, seq })?;
        }
        self.rows.iter().try_for_each(|row| ctx.tx.put_session(row))
    }
}
