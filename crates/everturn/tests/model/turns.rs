//! What turns and edits do, in the reference model.

use everturn::store::{BeginTurn, Busy, Commit, Detach, EndTurn, IfMoved, Start, StepTurn};
use everturn::{
    BranchName, Changes, EndStatus, ErrorKind, Event, InvocationId, NewSnapshot, RecordKind, SnapshotEvent, SnapshotId,
    SnapshotStatus, StateDelta, TurnStatus,
};

use crate::tree::{Answer, Ended, MayMove, Model, NewNode, NodeId, SessionIx, Turn, TurnIx};

/// What beginning a turn led to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BeginAnswer {
    Begun(TurnIx),
    Running(TurnIx),
    Ended(TurnIx),
}

/// What was written, and whether the head went along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteAnswer {
    pub(crate) node: NodeId,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) on_head: bool,
}

pub(crate) fn owned(mut events: Vec<Event>, invocation: Option<&InvocationId>) -> Vec<Event> {
    for event in &mut events {
        event.invocation_id = event.invocation_id.take().or_else(|| invocation.cloned());
    }
    events
}

/// What the input changes: one event by the user, if it says anything.
pub(crate) fn input_changes(request: &BeginTurn) -> Changes {
    let said = !request.input.messages.is_empty() || !request.input.state_delta.is_empty();
    let event = Event::new("user")
        .with_messages(request.input.messages.iter().cloned())
        .with_state(request.input.state_delta.clone());
    if said { Changes::new().event(event) } else { Changes::new() }
}

impl Model {
    fn find_start(&mut self, start: &Start) -> Answer<(SessionIx, Option<NodeId>)> {
        match start {
            Start::Session(key) => Ok((self.live(key)?, None)),
            Start::OpenOrCreate(create) => {
                let id = create.id.clone().expect("the generator names it");
                let key = everturn::SessionKey::new(create.app.clone(), create.user.clone(), id);
                match self.find(&key) {
                    Some(session) => Ok((session, None)),
                    None => Ok((self.create(create)?, None)),
                }
            }
            Start::Point { session, point } => {
                let session = self.live(session)?;
                Ok((session, Some(self.resumable(session, *point)?)))
            }
            Start::Snapshot { id, session } => {
                let snap = self.snap(*id).ok_or(ErrorKind::NotFound)?;
                let owner = &self.sessions[snap.session].key;
                if let Some(wanted) = session.as_ref().filter(|wanted| *wanted != owner) {
                    let same_owner = (&wanted.app, &wanted.user) == (&owner.app, &owner.user);
                    return Err(if same_owner { ErrorKind::Invalid } else { ErrorKind::NotFound });
                }
                match snap.status {
                    SnapshotStatus::Completed => Ok((snap.session, Some(snap.node))),
                    _ => Err(ErrorKind::NotResumable),
                }
            }
        }
    }

    /// The session a request would begin in.
    pub(crate) fn begin_finds(&self, request: &BeginTurn) -> Option<SessionIx> {
        match &request.start {
            Start::Session(key) | Start::Point { session: key, .. } => self.find(key),
            Start::Snapshot { id, .. } => self.snap(*id).map(|snap| snap.session),
            Start::OpenOrCreate(create) => {
                let id = create.id.clone().expect("the generator names it");
                self.find(&everturn::SessionKey::new(create.app.clone(), create.user.clone(), id))
            }
        }
    }

    /// A point where a turn may start: after a completed turn, an edit, or a step.
    pub(crate) fn resumable(&self, session: SessionIx, point: everturn::Point) -> Answer<NodeId> {
        let node = self.at(session, point).ok_or(ErrorKind::NotFound)?;
        match self.nodes[node].kind {
            RecordKind::End | RecordKind::Edit | RecordKind::Step => Ok(node),
            _ => Err(ErrorKind::NotResumable),
        }
    }

    /// The branch a point belongs to when nobody names one.
    fn branch_of(&self, session: SessionIx, node: NodeId) -> BranchName {
        let heads = &self.sessions[session].heads;
        if heads[&BranchName::main()].node == node {
            return BranchName::main();
        }
        if let Some((name, _)) = heads.iter().find(|(_, head)| head.node == node) {
            return name.clone();
        }
        let mut holding = heads.iter().filter(|(_, head)| self.on_line(head.node, node)).map(|(name, _)| name);
        match (holding.next(), holding.next()) {
            (Some(only), None) => only.clone(),
            _ => BranchName::main(),
        }
    }

    pub(crate) fn begin(&mut self, request: &BeginTurn) -> Answer<BeginAnswer> {
        let (session, at) = self.find_start(&request.start)?;
        let used = |turn: &Turn| turn.session == session && turn.key.is_some() && turn.key == request.key;
        if let Some(turn) = self.turns.iter().position(used) {
            return self.repeated(turn, request);
        }
        let branch = match (&request.branch, at) {
            (Some(branch), _) => branch.clone(),
            (None, Some(node)) => self.branch_of(session, node),
            (None, None) => BranchName::main(),
        };
        let head = self.sessions[session].heads.get(&branch).ok_or(ErrorKind::NotFound)?.node;
        if request.expect.is_some_and(|expect| expect != self.nodes[head].point) {
            return Err(ErrorKind::Conflict);
        }
        if request.snapshot.is_some_and(|id| self.snap(id).is_some()) {
            return Err(ErrorKind::AlreadyExists);
        }
        let holder = self.holder(session, &branch);
        if at.is_none() && holder.is_some() && !matches!(request.busy, Busy::Branch) {
            return Err(ErrorKind::Busy);
        }
        let start = at.unwrap_or(head);
        let leased = start == head && holder.is_none();
        let mut state = self.nodes[start].state.clone();
        let effects = state.apply(&input_changes(request), &StateDelta::new())?;
        if leased {
            self.lose(session, &branch);
        }
        let turn = self.turns.len();
        let begin = self.append(
            session,
            NewNode {
                kind: RecordKind::Begin,
                parent: Some(start),
                turn: Some((turn, 1)),
                state,
                events: owned(effects.events, Some(&request.invocation)),
                event: None,
                snapshot: None,
            },
        );
        if leased {
            self.sessions[session].heads.get_mut(&branch).expect("it is there").lease = Some(turn);
        }
        self.turns.push(Turn {
            session,
            begin,
            start,
            branch,
            attempt: 1,
            tip: Some(begin),
            may_move: if leased { MayMove::Leased } else { MayMove::If(head) },
            reserved: request.snapshot,
            key: request.key.clone(),
            agent: request.agent.clone(),
            invocation: request.invocation.clone(),
            input: request.input.clone(),
            tools: Vec::new(),
            scopes: effects.scopes,
            puts: Vec::new(),
            began_at: self.now,
            beat: self.now,
            ended: None,
            grants: Vec::new(),
        });
        Ok(BeginAnswer::Begun(turn))
    }

    fn repeated(&mut self, turn: TurnIx, request: &BeginTurn) -> Answer<BeginAnswer> {
        // The generator repeats keys with the start they had, so that the input decides.
        if self.turns[turn].input != request.input {
            return Err(ErrorKind::Conflict);
        }
        match self.turn_status(turn) {
            TurnStatus::Running => Ok(BeginAnswer::Running(turn)),
            TurnStatus::Dead => self.take_over(turn).map(|()| BeginAnswer::Begun(turn)),
            _ => Ok(BeginAnswer::Ended(turn)),
        }
    }

    /// Whether a fence of an attempt still holds.
    pub(crate) fn fenced(&self, turn: TurnIx, attempt: u64) -> Answer<NodeId> {
        let row = &self.turns[turn];
        if !self.sessions[row.session].alive {
            return Err(ErrorKind::Deleted);
        }
        match (&row.ended, row.tip) {
            (Some(ended), _) if ended.status == EndStatus::Aborted => Err(ErrorKind::Aborted),
            (None, Some(tip)) if row.attempt == attempt => Ok(tip),
            _ => Err(ErrorKind::Fenced),
        }
    }

    pub(crate) fn renew(&mut self, turn: TurnIx, attempt: u64) -> Answer<()> {
        self.fenced(turn, attempt)?;
        self.turns[turn].beat = self.now;
        Ok(())
    }

    pub(crate) fn step(&mut self, turn: TurnIx, attempt: u64, request: &StepTurn) -> Answer<WriteAnswer> {
        let tip = self.fenced(turn, attempt)?;
        let (session, reserved) = (self.turns[turn].session, self.turns[turn].reserved);
        let mut state = self.nodes[tip].state.clone();
        let effects = state.apply(&request.changes, &StateDelta::new())?;
        let detached = request.detach == Detach::Background;
        if detached && reserved.is_none() {
            return Err(ErrorKind::Invalid);
        }
        if let Some(new) = &request.snapshot {
            if self.snap(new.id).is_some() {
                return Err(ErrorKind::AlreadyExists);
            }
            if reserved == Some(new.id) {
                return Err(ErrorKind::Invalid);
            }
        }
        state.index += u64::from(request.event.is_some());
        let parent = self.nearest(tip, |snap| snap.status == SnapshotStatus::Completed).map(|snap| snap.id);
        let pending = reserved.filter(|_| detached);
        let snapshot = request.snapshot.as_ref().map(|new| new.id).or(pending);
        let invocation = self.turns[turn].invocation.clone();
        let new = NewNode {
            kind: RecordKind::Step,
            parent: Some(tip),
            turn: Some((turn, attempt)),
            state,
            events: owned(effects.events.clone(), Some(&invocation)),
            event: request.event,
            snapshot,
        };
        let node = self.append(session, new);
        let mut last = node;
        if let Some(new) = &request.snapshot {
            let mut snap = self.snapshot_of(new.id, new.label.clone(), node);
            snap.parent = parent;
            self.snaps.push(snap);
            if pending.is_some() {
                // A record names one snapshot at most, so the pending one gets a record of its own.
                let new = NewNode {
                    kind: RecordKind::Step,
                    parent: Some(node),
                    turn: Some((turn, attempt)),
                    state: self.nodes[node].state.clone(),
                    events: Vec::new(),
                    event: None,
                    snapshot: pending,
                };
                last = self.append(session, new);
            }
        }
        if let Some(id) = pending.filter(|id| self.snap(*id).is_none()) {
            let mut snap = self.snapshot_of(id, None, last);
            let parent = request.snapshot.as_ref().map(|new| new.id).or(parent);
            (snap.parent, snap.event, snap.status, snap.turn) = (parent, None, SnapshotStatus::Pending, Some(turn));
            snap.index = self.nodes[last].state.index;
            self.snaps.push(snap);
        }
        self.sessions[session].usage.add(&effects.usage);
        let puts = Self::puts(&effects, self.nodes[node].point);
        let row = &mut self.turns[turn];
        row.tip = Some(last);
        row.scopes.extend(effects.scopes);
        row.puts.extend(puts);
        row.tools.extend(request.changes.tools.iter().map(|entry| (attempt, entry.clone())));
        row.beat = self.now;
        Ok(WriteAnswer { node, snapshot, on_head: false })
    }

    pub(crate) fn end(&mut self, turn: TurnIx, attempt: u64, request: &EndTurn) -> Answer<WriteAnswer> {
        let tip = self.fenced(turn, attempt)?;
        let mut state = self.nodes[tip].state.clone();
        state.clone().apply(&request.changes, &request.scopes)?;
        if let Some(new) = &request.snapshot {
            let mine = |turn_of: Option<TurnIx>| turn_of == Some(turn);
            if self.snap(new.id).is_some_and(|snap| snap.status != SnapshotStatus::Pending || !mine(snap.turn)) {
                return Err(ErrorKind::AlreadyExists);
            }
        }
        let effects = state.apply(&request.changes, &request.scopes)?;
        let (session, branch) = (self.turns[turn].session, self.turns[turn].branch.clone());
        let completed = request.status == EndStatus::Completed;
        state.index += u64::from(completed);
        state.turns += u64::from(completed);

        let pending = self.turns[turn].reserved.and_then(|id| self.snap(id)).filter(|snap| snap.turn == Some(turn));
        let pending = pending.cloned();
        let kept = pending.as_ref().map(|snap| NewSnapshot { id: snap.id, label: snap.label.clone() });
        let snapshot = request.snapshot.clone().or(kept);
        let from = if completed { tip } else { self.turns[turn].start };
        let parent = self.nearest(from, |snap| snap.status == SnapshotStatus::Completed).map(|snap| snap.id);
        let node = self.append(
            session,
            NewNode {
                kind: if completed { RecordKind::End } else { RecordKind::Void },
                parent: Some(tip),
                turn: Some((turn, attempt)),
                state,
                events: owned(effects.events.clone(), Some(&self.turns[turn].invocation.clone())),
                event: completed.then_some(SnapshotEvent::TurnEnd),
                snapshot: snapshot.as_ref().map(|new| new.id),
            },
        );
        self.nodes[node].finish = request.outcome.finish_reason;
        if !completed {
            self.hide(turn, attempt);
        }
        if let Some(new) = &snapshot {
            self.end_snapshot(node, new, parent, pending, request);
        }
        let on_head = self.end_head(turn, &branch, node, completed);
        self.sessions[session].usage.add(&effects.usage);
        let mut row = self.turns[turn].clone();
        row.tools.extend(request.changes.tools.iter().map(|entry| (attempt, entry.clone())));
        row.tip = None;
        let snapshot = snapshot.map(|new| new.id);
        row.ended = Some(Ended { status: request.status, outcome: request.outcome.clone(), node, snapshot });
        let point = self.nodes[node].point;
        let puts = std::mem::take(&mut row.puts).into_iter().chain(Self::puts(&effects, point)).collect();
        let scopes: Vec<_> = std::mem::take(&mut row.scopes).into_iter().chain(effects.scopes).collect();
        if completed {
            self.write_scopes(session, &scopes);
            self.give_versions(session, puts);
        }
        self.turns[turn] = row;
        Ok(WriteAnswer { node, snapshot, on_head })
    }

    fn end_snapshot(
        &mut self,
        node: NodeId,
        new: &NewSnapshot,
        parent: Option<SnapshotId>,
        pending: Option<crate::tree::Snap>,
        request: &EndTurn,
    ) {
        let status = match request.status {
            EndStatus::Completed => SnapshotStatus::Completed,
            EndStatus::Failed => SnapshotStatus::Failed,
            EndStatus::Aborted => SnapshotStatus::Aborted,
        };
        let mut snap = self.snapshot_of(new.id, new.label.clone(), node);
        (snap.parent, snap.event, snap.status) = (parent, Some(SnapshotEvent::TurnEnd), status);
        (snap.finish, snap.error) = (request.outcome.finish_reason, request.outcome.error.clone());
        if let Some(mut before) = pending {
            let same = before.id == new.id;
            if same {
                snap.created_at = before.created_at;
                snap.label = snap.label.or_else(|| before.label.clone());
            }
            self.snaps.retain(|snap| snap.id != before.id);
            if !same {
                (before.status, before.turn, before.updated_at) = (status, None, self.now);
                (before.finish, before.error) = (snap.finish, snap.error.clone());
                self.snaps.push(before);
            }
        }
        self.snaps.push(snap);
    }

    /// Moves the head if the turn may, and lets go of the lease.
    fn end_head(&mut self, turn: TurnIx, branch: &BranchName, node: NodeId, completed: bool) -> bool {
        let session = self.turns[turn].session;
        let Some(head) = self.sessions[session].heads.get(branch).cloned() else { return false };
        let mine = head.lease == Some(turn);
        let moves = match self.turns[turn].may_move {
            MayMove::Leased => mine,
            MayMove::If(seen) => head.node == seen && self.holder(session, branch).is_none(),
            MayMove::Nothing => false,
        };
        if completed && moves && !mine {
            self.lose(session, branch);
        }
        let head = self.sessions[session].heads.get_mut(branch).expect("it is there");
        if mine {
            head.lease = None;
        }
        if completed && moves {
            head.node = node;
        }
        completed && moves
    }

    pub(crate) fn commit(&mut self, request: &Commit) -> Answer<WriteAnswer> {
        let session = self.live(&request.session)?;
        let branch = request.branch.clone().unwrap_or_default();
        let head = self.sessions[session].heads.get(&branch).ok_or(ErrorKind::NotFound)?.node;
        let moved = request.expect.filter(|expect| *expect != self.nodes[head].point);
        let held = self.holder(session, &branch).is_some();
        let base = match (moved, request.if_moved) {
            (Some(_), IfMoved::Refuse) => return Err(ErrorKind::Conflict),
            (Some(expect), IfMoved::SideLine) => self.resumable(session, expect)?,
            (None, IfMoved::Refuse) if held => return Err(ErrorKind::Busy),
            (None, _) => head,
        };
        let mut state = self.nodes[base].state.clone();
        let effects = state.apply(&request.changes, &StateDelta::new())?;
        if request.snapshot.as_ref().is_some_and(|new| self.snap(new.id).is_some()) {
            return Err(ErrorKind::AlreadyExists);
        }
        let on_head = moved.is_none() && !held;
        if on_head {
            self.lose(session, &branch);
        }
        state.index += u64::from(request.event.is_some());
        let parent = self.nearest(base, |snap| snap.status == SnapshotStatus::Completed).map(|snap| snap.id);
        let new = NewNode {
            kind: RecordKind::Edit,
            parent: Some(base),
            turn: None,
            state,
            events: owned(effects.events.clone(), request.invocation.as_ref()),
            event: request.event,
            snapshot: request.snapshot.as_ref().map(|new| new.id),
        };
        let node = self.append(session, new);
        let point = self.nodes[node].point;
        if let Some(new) = &request.snapshot {
            let mut snap = self.snapshot_of(new.id, new.label.clone(), node);
            snap.parent = parent;
            self.snaps.push(snap);
        }
        self.give_versions(session, Self::puts(&effects, point));
        self.write_scopes(session, &effects.scopes);
        self.sessions[session].usage.add(&effects.usage);
        if on_head {
            self.sessions[session].heads.get_mut(&branch).expect("it is there").node = node;
        }
        Ok(WriteAnswer { node, snapshot: request.snapshot.as_ref().map(|new| new.id), on_head })
    }
}
