//! What the reference model keeps: every record with its whole state, and where everything stands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everturn::{
    AgentName, AppName, Artifact, BranchName, Digest, EndStatus, ErrorKind, Event, Fence, FinishReason, Input,
    InvocationId, Json, Outcome, Point, RecordKind, SessionId, SessionKey, SnapshotEvent, SnapshotId, SnapshotStatus,
    Timestamp, ToolEntry, TurnError, TurnKey, TurnStatus, Usage, UserId,
};

use crate::state::{Effects, State};

/// How long a writer may be silent, in the model and in the stores.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) type NodeId = usize;
pub(crate) type SessionIx = usize;
pub(crate) type TurnIx = usize;
pub(crate) type Answer<T> = Result<T, ErrorKind>;

/// One record, and the state after it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) session: SessionIx,
    pub(crate) point: Point,
    pub(crate) kind: RecordKind,
    /// What it follows; nothing for a session's first record and for admin records.
    pub(crate) parent: Option<NodeId>,
    pub(crate) turn: Option<(TurnIx, u64)>,
    /// Whether its turn did not complete.
    pub(crate) voided: bool,
    pub(crate) state: State,
    pub(crate) digest: Digest,
    pub(crate) events: Vec<Event>,
    pub(crate) at: Timestamp,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) finish: Option<FinishReason>,
    /// The stretch of the tree it is in, by its first record. The stores say which; the model checks that they may.
    pub(crate) segment: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) node: NodeId,
    pub(crate) lease: Option<TurnIx>,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) alive: bool,
    pub(crate) agent: Option<AgentName>,
    pub(crate) title: Option<String>,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) metadata: BTreeMap<String, Json>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) created: u64,
    pub(crate) updated: u64,
    pub(crate) next: u64,
    pub(crate) nodes: Vec<NodeId>,
    /// What the first store calls its stretches, and the first record of each.
    pub(crate) segments: BTreeMap<u64, u64>,
    pub(crate) heads: BTreeMap<BranchName, Head>,
    pub(crate) usage: Usage,
    pub(crate) inherited: Usage,
    pub(crate) origin: Option<NodeId>,
    /// The session a fork was asked of; the origin may be what that one had inherited itself.
    pub(crate) forked_from: Option<SessionId>,
    pub(crate) versions: Vec<Version>,
}

#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) artifact: Artifact,
    /// The record that put it.
    pub(crate) put: Point,
}

/// Which head a turn may move when it completes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MayMove {
    /// The one whose lease it holds.
    Leased,
    /// Its branch's, if that still stands there and nobody holds it.
    If(NodeId),
    /// None: it was forced off.
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) session: SessionIx,
    pub(crate) begin: NodeId,
    pub(crate) start: NodeId,
    pub(crate) branch: BranchName,
    pub(crate) attempt: u64,
    /// The last record of the open attempt; nothing once the branch was taken from a dead writer.
    pub(crate) tip: Option<NodeId>,
    pub(crate) may_move: MayMove,
    pub(crate) reserved: Option<SnapshotId>,
    pub(crate) key: Option<TurnKey>,
    pub(crate) agent: Option<AgentName>,
    pub(crate) invocation: InvocationId,
    pub(crate) input: Input,
    pub(crate) tools: Vec<(u64, ToolEntry)>,
    pub(crate) scopes: Vec<(String, Option<Json>)>,
    pub(crate) puts: Vec<(Artifact, Point)>,
    pub(crate) began_at: Timestamp,
    pub(crate) beat: Timestamp,
    pub(crate) ended: Option<Ended>,
    /// The attempts that were begun, each with its fence in every store.
    pub(crate) grants: Vec<(u64, Vec<Fence>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) status: EndStatus,
    pub(crate) outcome: Outcome,
    pub(crate) node: NodeId,
    pub(crate) snapshot: Option<SnapshotId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Snap {
    pub(crate) id: SnapshotId,
    pub(crate) session: SessionIx,
    pub(crate) node: NodeId,
    pub(crate) parent: Option<SnapshotId>,
    pub(crate) index: u64,
    pub(crate) turn_index: u64,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) status: SnapshotStatus,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) error: Option<TurnError>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) label: Option<String>,
    pub(crate) turn: Option<TurnIx>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) now: Timestamp,
    pub(crate) position: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) snaps: Vec<Snap>,
    pub(crate) app: BTreeMap<AppName, BTreeMap<String, Json>>,
    pub(crate) user: BTreeMap<(AppName, UserId), BTreeMap<String, Json>>,
}

/// A record to be added.
pub(crate) struct NewNode {
    pub(crate) kind: RecordKind,
    pub(crate) parent: Option<NodeId>,
    pub(crate) turn: Option<(TurnIx, u64)>,
    pub(crate) state: State,
    pub(crate) events: Vec<Event>,
    pub(crate) event: Option<SnapshotEvent>,
    pub(crate) snapshot: Option<SnapshotId>,
}

impl Model {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    pub(crate) fn find(&self, key: &SessionKey) -> Option<SessionIx> {
        self.sessions.iter().position(|session| session.alive && session.key == *key)
    }

    pub(crate) fn live(&self, key: &SessionKey) -> Answer<SessionIx> {
        self.find(key).ok_or(ErrorKind::NotFound)
    }

    pub(crate) fn snap(&self, id: SnapshotId) -> Option<&Snap> {
        self.snaps.iter().find(|snap| snap.id == id && self.sessions[snap.session].alive)
    }

    /// The way from the root to a node.
    pub(crate) fn line(&self, node: NodeId) -> Vec<NodeId> {
        let mut line: Vec<_> = std::iter::successors(Some(node), |node| self.nodes[*node].parent).collect();
        line.reverse();
        line
    }

    pub(crate) fn on_line(&self, tip: NodeId, node: NodeId) -> bool {
        self.line(tip).contains(&node)
    }

    pub(crate) fn on_some_line(&self, session: SessionIx, node: NodeId) -> bool {
        self.sessions[session].heads.values().any(|head| self.on_line(head.node, node))
    }

    /// The record a session knows by a point: its own, or one on the line it was forked off.
    pub(crate) fn at(&self, session: SessionIx, point: Point) -> Option<NodeId> {
        let session = &self.sessions[session];
        let own = session.nodes.iter().copied().find(|node| self.nodes[*node].point == point);
        own.filter(|node| self.nodes[*node].kind != RecordKind::Admin)
            .or_else(|| self.line(session.origin?).into_iter().find(|node| self.nodes[*node].point == point))
    }

    pub(crate) fn alive(&self, turn: TurnIx) -> bool {
        self.now.as_micros() - self.turns[turn].beat.as_micros() <= i64::try_from(LEASE.as_micros()).expect("short")
    }

    pub(crate) fn turn_status(&self, turn: TurnIx) -> TurnStatus {
        match &self.turns[turn].ended {
            Some(ended) => ended.status.into(),
            None if self.alive(turn) => TurnStatus::Running,
            None => TurnStatus::Dead,
        }
    }

    /// Turns that have begun and not ended, in sessions that are there.
    pub(crate) fn running(&self) -> impl Iterator<Item = TurnIx> {
        (0..self.turns.len())
            .filter(|turn| self.turns[*turn].ended.is_none() && self.sessions[self.turns[*turn].session].alive)
    }

    /// The living turn that holds a branch.
    pub(crate) fn holder(&self, session: SessionIx, branch: &BranchName) -> Option<TurnIx> {
        self.sessions[session].heads[branch].lease.filter(|turn| self.alive(*turn))
    }

    /// The nearest completed snapshot at or before a node, along its line.
    pub(crate) fn nearest(&self, node: NodeId, accept: impl Fn(&Snap) -> bool) -> Option<&Snap> {
        let there = |snap: &Snap| self.sessions[snap.session].alive && accept(snap);
        let at = |node: &NodeId| self.snaps.iter().find(|snap| snap.node == *node && there(snap));
        self.line(node).iter().rev().find_map(at)
    }

    /// The last turn of a line that completed.
    pub(crate) fn last_end(&self, node: NodeId) -> Option<NodeId> {
        self.line(node).into_iter().rev().find(|node| self.nodes[*node].kind == RecordKind::End)
    }

    pub(crate) fn append(&mut self, session: SessionIx, new: NewNode) -> NodeId {
        let id = self.nodes.len();
        self.position += 1;
        let row = &mut self.sessions[session];
        let point = Point::new(row.next);
        let mut events = new.events;
        for (i, event) in events.iter_mut().enumerate() {
            event.seq = point.seq() + i as u64;
            event.at = event.at.or(Some(self.now));
            event.turn_index = new.turn.map(|_| new.state.turns - u64::from(new.kind == RecordKind::End));
        }
        row.next += (events.len() as u64).max(1);
        row.updated_at = self.now;
        row.updated = self.position;
        row.nodes.push(id);
        self.nodes.push(Node {
            session,
            point,
            kind: new.kind,
            parent: new.parent,
            turn: new.turn,
            voided: false,
            digest: new.state.content.digest(),
            state: new.state,
            events,
            at: self.now,
            event: new.event,
            snapshot: new.snapshot,
            finish: None,
            segment: None,
        });
        id
    }

    pub(crate) fn admin(&mut self, session: SessionIx) {
        let new = NewNode {
            kind: RecordKind::Admin,
            parent: None,
            turn: None,
            state: State::default(),
            events: Vec::new(),
            event: None,
            snapshot: None,
        };
        self.append(session, new);
    }

    /// A snapshot of a node, completed; the caller changes what is otherwise.
    pub(crate) fn snapshot_of(&self, id: SnapshotId, label: Option<String>, node: NodeId) -> Snap {
        let of = &self.nodes[node];
        Snap {
            id,
            session: of.session,
            node,
            parent: None,
            index: of.state.index - u64::from(of.event.is_some()),
            turn_index: of.state.turns - u64::from(of.kind == RecordKind::End),
            event: of.event,
            status: SnapshotStatus::Completed,
            finish: None,
            error: None,
            created_at: self.now,
            updated_at: self.now,
            label,
            turn: None,
        }
    }

    pub(crate) fn write_scopes(&mut self, session: SessionIx, scopes: &[(String, Option<Json>)]) {
        let SessionKey { app, user, .. } = self.sessions[session].key.clone();
        for (key, value) in scopes {
            let map = if key.starts_with("app:") {
                self.app.entry(app.clone()).or_default()
            } else {
                self.user.entry((app.clone(), user.clone())).or_default()
            };
            match value {
                Some(value) => drop(map.insert(key.clone(), value.clone())),
                None => drop(map.remove(key)),
            }
        }
    }

    /// Gives artifacts their versions.
    pub(crate) fn give_versions(&mut self, session: SessionIx, puts: Vec<(Artifact, Point)>) {
        for (artifact, put) in puts {
            let name = artifact.name.clone().expect("only named ones have versions");
            let version = self.next_version(session, &name, None);
            let of = self.nodes.iter_mut().find(|node| node.session == session && node.point == put);
            if let Some(event) = of.and_then(|node| node.events.last_mut()) {
                event.artifact_delta.insert(name.clone(), version);
            }
            self.sessions[session].versions.push(Version { name, version, artifact, put });
        }
    }

    fn next_version(&self, session: SessionIx, name: &str, until: Option<Point>) -> u64 {
        let row = &self.sessions[session];
        let mut of_name = row.versions.iter().filter(|version| version.name == name);
        match of_name.rfind(|version| until.is_none_or(|until| version.put <= until)) {
            Some(last) => last.version + 1,
            None => row.origin.map_or(0, |origin| {
                let origin = &self.nodes[origin];
                let until = until.map_or(origin.point, |until| until.min(origin.point));
                self.next_version(origin.session, name, Some(until))
            }),
        }
    }

    pub(crate) fn puts(effects: &Effects, at: Point) -> Vec<(Artifact, Point)> {
        effects.puts.iter().map(|artifact| (artifact.clone(), at)).collect()
    }
}
