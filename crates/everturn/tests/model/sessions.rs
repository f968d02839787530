//! What changes sessions and their branches, in the reference model.

use everturn::store::{At, BranchChange, CreateSession, ForkSession, UnderLease, UpdateSession};
use everturn::{
    BranchName, ErrorKind, FinishReason, RecordKind, SessionKey, SessionStatus, SnapshotId, SnapshotStatus, Usage,
};

use crate::state::{State, members};
use crate::tree::{Answer, Head, MayMove, Model, NewNode, NodeId, Session, SessionIx, TurnIx};

fn first(state: State, parent: Option<NodeId>, snapshot: Option<SnapshotId>) -> NewNode {
    NewNode { kind: RecordKind::Edit, parent, turn: None, state, events: Vec::new(), event: None, snapshot }
}

impl Model {
    pub(crate) fn create(&mut self, request: &CreateSession) -> Answer<SessionIx> {
        let id = request.id.clone().expect("the generator names it");
        let key = SessionKey::new(request.app.clone(), request.user.clone(), id);
        if self.find(&key).is_some() {
            return Err(ErrorKind::AlreadyExists);
        }
        if request.seed.is_some_and(|id| self.snap(id).is_some()) {
            return Err(ErrorKind::AlreadyExists);
        }
        let mut state = State::default();
        let effects = state.apply(&request.changes, &request.state)?;
        let metadata = request.metadata.as_ref().map(|json| members(json).expect("the generator makes objects"));
        let session = self.add_session(key, 1, None);
        let row = &mut self.sessions[session];
        row.agent.clone_from(&request.agent);
        row.title.clone_from(&request.title);
        row.labels.clone_from(&request.labels);
        row.metadata = metadata.unwrap_or_default();
        row.usage = effects.usage;
        let mut new = first(state, None, request.seed);
        new.events = effects.events.clone();
        let node = self.add_first(session, new);
        let point = self.nodes[node].point;
        self.give_versions(session, Self::puts(&effects, point));
        self.write_scopes(session, &effects.scopes);
        Ok(session)
    }

    fn add_session(&mut self, key: SessionKey, next: u64, origin: Option<NodeId>) -> SessionIx {
        self.sessions.push(Session {
            key,
            alive: true,
            agent: None,
            title: None,
            labels: Default::default(),
            metadata: Default::default(),
            created_at: self.now,
            updated_at: self.now,
            created: self.position + 1,
            updated: 0,
            next,
            nodes: Vec::new(),
            segments: Default::default(),
            heads: Default::default(),
            usage: Usage::default(),
            inherited: Usage::default(),
            origin,
            forked_from: None,
            versions: Vec::new(),
        });
        self.sessions.len() - 1
    }

    fn add_first(&mut self, session: SessionIx, new: NewNode) -> NodeId {
        let snapshot = new.snapshot;
        let node = self.append(session, new);
        self.sessions[session].heads.insert(BranchName::main(), Head { node, lease: None });
        if let Some(id) = snapshot {
            self.snaps.push(self.snapshot_of(id, None, node));
        }
        node
    }

    pub(crate) fn update(&mut self, key: &SessionKey, update: &UpdateSession) -> Answer<SessionIx> {
        let session = self.live(key)?;
        let row = &mut self.sessions[session];
        if let Some(title) = &update.title {
            row.title.clone_from(title);
        }
        row.labels.extend(update.add_labels.iter().cloned());
        row.labels.retain(|label| !update.remove_labels.contains(label));
        row.metadata.retain(|name, _| !update.remove_metadata.contains(name));
        row.metadata.extend(update.set_metadata.iter().map(|(name, value)| (name.clone(), value.clone())));
        if *update != UpdateSession::default() {
            self.admin(session);
        }
        Ok(session)
    }

    pub(crate) fn delete(&mut self, key: &SessionKey) -> bool {
        let Some(session) = self.find(key) else { return false };
        self.sessions[session].alive = false;
        true
    }

    pub(crate) fn label(&mut self, id: SnapshotId, label: Option<&str>) -> Answer<()> {
        self.snap(id).ok_or(ErrorKind::NotFound)?;
        let snap = self.snaps.iter_mut().find(|snap| snap.id == id).expect("it was just found");
        snap.label = label.map(str::to_owned);
        Ok(())
    }

    /// Where a branch may stand: a completed point.
    fn settled(&self, session: SessionIx, point: everturn::Point) -> Answer<NodeId> {
        let node = self.resumable(session, point)?;
        if self.nodes[node].kind == RecordKind::Step { Err(ErrorKind::NotResumable) } else { Ok(node) }
    }

    /// Takes a branch from whoever holds it.
    fn free(&mut self, session: SessionIx, branch: &BranchName, under_lease: UnderLease) -> Answer<()> {
        match self.holder(session, branch) {
            Some(_) if under_lease == UnderLease::Refuse => Err(ErrorKind::Busy),
            Some(holder) => {
                self.turns[holder].may_move = MayMove::Nothing;
                self.sessions[session].heads.get_mut(branch).expect("it is there").lease = None;
                Ok(())
            }
            None => {
                self.lose(session, branch);
                Ok(())
            }
        }
    }

    pub(crate) fn branch(&mut self, key: &SessionKey, change: &BranchChange) -> Answer<SessionIx> {
        let session = self.live(key)?;
        let known = |model: &Self, name| model.sessions[session].heads.contains_key(name);
        match change {
            BranchChange::Create { name, at } => {
                if known(self, name) {
                    return Err(ErrorKind::AlreadyExists);
                }
                let node = self.settled(session, *at)?;
                self.sessions[session].heads.insert(name.clone(), Head { node, lease: None });
            }
            BranchChange::Move { name, to, expect, under_lease } => {
                if !known(self, name) {
                    return Err(ErrorKind::NotFound);
                }
                let head = self.nodes[self.sessions[session].heads[name].node].point;
                if expect.is_some_and(|expect| expect != head) {
                    return Err(ErrorKind::Conflict);
                }
                let node = self.settled(session, *to)?;
                self.free(session, name, *under_lease)?;
                self.sessions[session].heads.get_mut(name).expect("it is there").node = node;
            }
            BranchChange::Delete { name, under_lease, .. } => {
                if name.is_main() {
                    return Err(ErrorKind::Invalid);
                }
                if !known(self, name) {
                    return Err(ErrorKind::NotFound);
                }
                self.free(session, name, *under_lease)?;
                self.sessions[session].heads.remove(name);
            }
        }
        self.admin(session);
        Ok(session)
    }

    /// The session and the record a place means.
    pub(crate) fn locate(&self, at: &At) -> Option<(SessionIx, NodeId)> {
        match at {
            At::Head(key, branch) => {
                let session = self.find(key)?;
                Some((session, self.sessions[session].heads.get(branch)?.node))
            }
            At::Point(key, point) => {
                let session = self.find(key)?;
                Some((session, self.at(session, *point)?))
            }
            At::Snapshot(id) => self.snap(*id).map(|snap| (snap.session, snap.node)),
        }
    }

    pub(crate) fn fork(&mut self, request: &ForkSession) -> Answer<SessionIx> {
        let (from, node) = self.locate(&request.from).ok_or(ErrorKind::NotFound)?;
        if let At::Snapshot(id) = request.from
            && self.snap(id).is_some_and(|snap| snap.status != SnapshotStatus::Completed)
        {
            return Err(ErrorKind::NotResumable);
        }
        if matches!(self.nodes[node].kind, RecordKind::Begin | RecordKind::Void) {
            return Err(ErrorKind::NotResumable);
        }
        let origin = self.sessions[from].clone();
        let id = request.id.clone().expect("the generator names it");
        let key = SessionKey::new(origin.key.app, origin.key.user, id);
        let forked_from = origin.key.id;
        if self.find(&key).is_some() || request.snapshot.is_some_and(|id| self.snap(id).is_some()) {
            return Err(ErrorKind::AlreadyExists);
        }
        let at = self.nodes[node].clone();
        let next = at.point.seq() + (at.events.len() as u64).max(1);
        let session = self.add_session(key, next, Some(node));
        let row = &mut self.sessions[session];
        row.forked_from = Some(forked_from);
        row.agent = origin.agent;
        row.title = origin.title;
        row.metadata = origin.metadata;
        row.inherited = at.state.usage;
        self.add_first(session, first(at.state, Some(node), request.snapshot));
        Ok(session)
    }

    pub(crate) fn status(&self, session: SessionIx) -> SessionStatus {
        let head = self.sessions[session].heads[&BranchName::main()].node;
        // A fork does not wait for an answer that its origin was to get.
        let own = |end: &NodeId| self.nodes[*end].session == session;
        let waits = |end: NodeId| self.nodes[end].finish == Some(FinishReason::Interrupted);
        if self.running().any(|turn: TurnIx| self.turns[turn].session == session && self.alive(turn)) {
            SessionStatus::Running
        } else if self.last_end(head).filter(own).is_some_and(waits) {
            SessionStatus::Interrupted
        } else {
            SessionStatus::Idle
        }
    }
}
