//! A session's tree, page by page, as a page draws it.

use std::collections::{HashMap, HashSet};

use super::body::Body;
use super::excerpt::shortened;
use super::line::Lines;
use super::page::{page_limit, weight};
use super::read::{preceding, turn_status};
use super::rules::{Env, NO_LIMIT, all_branches, live_session, named_snapshot};
use super::tables::{BranchRow, Flow, Only, Read, RecordMeta, RecordRow, Scan};
use super::walk::{damaged, scan_whole};
use crate::message::Role;
use crate::store::{Cursor, MAX_PAGE_BYTES, NodeKind, NodeSnapshot, TreeNode, TreePage, TreeQuery};
use crate::turn::{RecordKind, TurnStatus};
use crate::{Error, Point, Result, TurnId};

/// What a node has apart from labels and errors, at most.
const NODE_BYTES: usize = 2 << 10;

/// Snapshots that one node lists; a turn with more of them shows its first ones and its last.
const MAX_SNAPSHOTS: usize = 100;

pub(crate) fn tree(read: &dyn Read, env: &Env<'_>, query: &TreeQuery) -> Result<TreePage> {
    let limit = page_limit(query.limit)?;
    let session = live_session(read, &query.session)?;
    let after = match &query.cursor {
        Some(cursor) => cursor.numbers::<1>('t')?[0],
        None => 0,
    };
    let mut running = HashMap::new();
    for turn in read.turns(Some(session.num))? {
        running.insert(turn.begin, turn_status(env, &turn));
    }
    let branches = all_branches(read, &session)?;
    let mut growing = Growing {
        read,
        lines: Lines::of(read, &branches)?,
        branches,
        running,
        limit,
        bytes: query.bytes.min(MAX_PAGE_BYTES),
        from_start: after == 0,
        nodes: Vec::new(),
        of_turn: HashMap::new(),
        open: HashSet::new(),
        lost: HashSet::new(),
        more: false,
    };
    let scan = Scan {
        num: session.num,
        from: after.saturating_add(1),
        to: NO_LIMIT,
        segment: None,
        only: Only::All,
        newest_first: false,
    };
    let whole = scan_whole(read, scan, &mut |row: RecordRow| growing.add(&row))?;
    if !growing.more && scan.from < session.next_seq {
        whole.reaches(session.next_seq - 1)?;
    }
    if let Some(turn) = growing.open.iter().next() {
        let num = session.num;
        return Err(Error::corrupt(format!("turn {turn} of session number {num} has neither ended nor is it running")));
    }
    let next = growing.nodes.last().filter(|_| growing.more).map(|node| Cursor::of('t', &[node.begin.seq()]));
    let nodes = growing.nodes;
    Ok(TreePage { nodes, next, last: session.next_seq - 1 })
}

struct Growing<'a> {
    read: &'a dyn Read,
    from_start: bool,
    branches: Vec<BranchRow>,
    lines: Lines,
    /// Turns that have not ended, by their begin.
    running: HashMap<u64, TurnStatus>,
    limit: usize,
    /// How much room there is left. A node grows while the page is made, so this ends the page with the node after it.
    bytes: usize,
    nodes: Vec<TreeNode>,
    of_turn: HashMap<u64, usize>,
    /// Turns of this page that have ended, and whose end has not been read yet.
    open: HashSet<u64>,
    /// Those of them that were lost: another attempt may follow.
    lost: HashSet<u64>,
    more: bool,
}

impl Growing<'_> {
    fn add(&mut self, row: &RecordRow) -> Result<Flow> {
        let meta = &row.meta;
        let begins = meta.kind == RecordKind::Edit || meta.kind == RecordKind::Begin && meta.turn == Some(meta.seq);
        let is_full = self.nodes.len() == self.limit || (self.bytes == 0 && !self.nodes.is_empty());
        if begins && is_full {
            self.more = true;
        } else if begins {
            self.begin(meta)?;
        }
        let known = match meta.turn {
            Some(turn) => self.of_turn.get(&turn).copied(),
            None if begins && !self.more => self.nodes.len().checked_sub(1),
            None => None,
        };
        if let Some(at) = known {
            let body = Body::decode(&row.body).map_err(|e| damaged(meta, e))?;
            self.tell(at, meta, &body)?;
        }
        Ok(if self.more && self.open.is_empty() && self.lost.is_empty() { Flow::Stop } else { Flow::More })
    }

    fn begin(&mut self, meta: &RecordMeta) -> Result<()> {
        self.bytes = self.bytes.saturating_sub(NODE_BYTES);
        let from = preceding(self.read, meta)?.map(|meta| Point::new(meta.seq));
        // A session's first record is how it was created or forked.
        let root = self.from_start && self.nodes.is_empty();
        let status = match meta.turn {
            Some(turn) => self.running.get(&turn).copied(),
            None => Some(TurnStatus::Completed),
        };
        if let Some(turn) = meta.turn {
            self.of_turn.insert(turn, self.nodes.len());
            if status.is_none() {
                self.open.insert(turn);
            }
        }
        self.nodes.push(TreeNode {
            begin: Point::new(meta.seq),
            kind: match meta.kind {
                RecordKind::Edit if root => NodeKind::Root,
                RecordKind::Edit => NodeKind::Edit,
                _ => NodeKind::Turn,
            },
            from,
            end: Point::new(meta.seq),
            turn: meta.turn.map(|begin| TurnId { session: meta.num, begin }),
            status: status.unwrap_or(TurnStatus::Completed),
            orphaned: false,
            heads: Vec::new(),
            snapshots: Vec::new(),
            input: None,
            answer: None,
            finish_reason: None,
            error: None,
            usage: crate::Usage::default(),
            attempts: 0,
            began_at: meta.at,
            ended_at: meta.at,
        });
        Ok(())
    }

    /// Adds what a record tells to its node.
    fn tell(&mut self, at: usize, meta: &RecordMeta, body: &Body) -> Result<()> {
        let (read, node) = (self.read, &mut self.nodes[at]);
        node.end = Point::new(meta.seq);
        node.ended_at = meta.at;
        node.attempts = node.attempts.max(meta.attempt);
        node.usage.add(&body.usage);
        body.events.iter().filter_map(|event| event.usage.as_ref()).for_each(|usage| node.usage.add(usage));
        let messages = || body.events.iter().flat_map(|event| &event.messages);
        if meta.kind == RecordKind::Begin {
            node.input = messages().next().map(|message| shortened(&message.text())).or(node.input.take());
            node.answer = None;
        } else if let Some(said) = messages().rfind(|message| message.role() == Role::Model) {
            node.answer = Some(shortened(&said.text()));
        }
        if meta.kind == RecordKind::Edit && body.view.is_some() && node.kind == NodeKind::Edit {
            node.kind = NodeKind::Compaction;
        }
        let row = named_snapshot(read, meta)?;
        if let Some(row) = row.filter(|row| (row.num, row.seq) == (meta.num, meta.seq)) {
            if node.snapshots.len() == MAX_SNAPSHOTS {
                node.snapshots.pop();
            }
            self.bytes = self.bytes.saturating_sub(weight(&row.label)?);
            node.snapshots.push(NodeSnapshot { id: row.id, point: Point::new(row.seq), label: row.label });
        }
        let ended = body.end.as_ref().and_then(|end| Some((end.status.status()?, &end.outcome)));
        if let (Some((status, outcome)), Some(turn)) = (ended, meta.turn)
            && !self.running.contains_key(&turn)
        {
            (node.status, node.finish_reason) = (status.into(), outcome.finish_reason);
            node.error = outcome.error.clone();
            self.bytes = self.bytes.saturating_sub(weight(&node.error)?);
            self.open.remove(&turn);
            match outcome.lost {
                true => self.lost.insert(turn),
                false => self.lost.remove(&turn),
            };
        }
        if matches!(meta.kind, RecordKind::End | RecordKind::Edit) {
            node.orphaned = !self.lines.hold(read, meta)?;
            let here = |branch: &&BranchRow| branch.head.place() == meta.place();
            node.heads = self.branches.iter().filter(here).map(|branch| branch.name.clone()).collect();
        }
        Ok(())
    }
}
