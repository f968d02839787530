//! Turns and edits: random requests.

use std::time::Duration;

use everturn::store::{BeginTurn, Busy, Commit, EndTurn, Start, StepTurn, TurnRef};
use everturn::{
    AgentName, Begin, Begun, Changes, EndStatus, ErrorKind, Event, Fence, FinishReason, Input, Message, NewSnapshot,
    Outcome, Point, Receipt, SnapshotEvent, TurnError, TurnKey,
};

use crate::content;
use crate::support::invocation;
use crate::tree::{Answer, LEASE, MayMove, NodeId, SessionIx, TurnIx};
use crate::turns::{BeginAnswer, WriteAnswer};
use crate::world::{Check, World, everywhere, same};

impl World {
    fn input(&mut self, at: Option<NodeId>) -> Input {
        let own = at.is_some_and(|node| content::has_keys(&self.model.nodes[node].state));
        let mut input = Input::messages(content::messages(&mut self.rng, 2));
        if self.rng.percent(25) {
            input.state_delta = content::delta(&mut self.rng, own);
        }
        input.data = self.rng.percent(20).then(|| content::value(&mut self.rng, 2));
        input
    }

    /// Where a turn might start, right or wrong, and the record there when it is known.
    fn some_start(&mut self, session: SessionIx) -> (Start, Option<NodeId>) {
        let key = self.key_of(session);
        let snaps: Vec<_> =
            self.model.snaps.iter().filter(|snap| snap.session == session).map(|snap| (snap.id, snap.node)).collect();
        match self.rng.below(20) {
            0..5 if !snaps.is_empty() => {
                let (id, node) = *self.rng.pick(&snaps);
                let other = self.some_session();
                let named = [None, Some(key), Some(self.key_of(other))];
                (Start::Snapshot { id, session: self.rng.pick(&named).clone() }, Some(node))
            }
            5..9 => {
                let node = self.some_node(session);
                (Start::Point { session: key, point: self.model.nodes[node].point }, Some(node))
            }
            9 => (Start::Point { session: key, point: Point::new(9_999_999) }, None),
            10 => {
                let create = if self.live_sessions().len() < 6 {
                    self.new_session()
                } else {
                    return (Start::Session(key), None);
                };
                (Start::OpenOrCreate(Box::new(create)), None)
            }
            _ => (Start::Session(key), None),
        }
    }

    fn some_begin(&mut self) -> BeginTurn {
        let session = self.some_session();
        let (start, node) = self.some_start(session);
        let by_session = matches!(start, Start::Session(_));
        let branch = (by_session && self.rng.percent(30)).then(|| self.a_branch_of(session));
        let branch = if self.rng.percent(4) { Some(self.some_branch()) } else { branch };
        let head = self.model.sessions[session].heads.get(&branch.clone().unwrap_or_default()).map(|head| head.node);
        let at = if by_session { head } else { node };
        let name = invocation(&format!("i{}", self.number()));
        let mut turn = BeginTurn::new(start, name, self.input(at));
        turn.branch = branch;
        turn.busy = match self.rng.below(10) {
            0..5 => Busy::Branch,
            5 => Busy::Wait(Duration::from_millis(1)),
            _ => Busy::Refuse,
        };
        if self.rng.percent(15) {
            let node = if self.rng.percent(60) { head } else { Some(self.some_node(session)) };
            turn.expect = node.map(|node| self.model.nodes[node].point);
        }
        // A session that must be made first has no head to expect and no branch but one.
        if matches!(turn.start, Start::OpenOrCreate(_)) {
            (turn.expect, turn.branch) = (None, None);
        }
        if self.rng.percent(30) {
            turn.key = Some(TurnKey::new(format!("k{}", self.number())).expect("it is short"));
        }
        if self.rng.percent(50) {
            turn.snapshot = Some(self.snapshot_id());
        }
        turn.agent = self.rng.percent(20).then(|| AgentName::new("agent").expect("it is a name"));
        turn
    }

    /// Begins a turn somewhere; gives it if it may go on.
    pub(crate) async fn begin(&mut self) -> Check<Option<TurnIx>> {
        let turn = self.some_begin();
        self.begin_this(turn).await
    }

    async fn begin_this(&mut self, turn: BeginTurn) -> Check<Option<TurnIx>> {
        self.note(&turn);
        let expected = self.model.begin(&turn);
        let got = everywhere!(self, |store, lane| store.begin(turn.clone()));
        let answers = self.agree(&expected, got)?;
        let Ok(expected) = expected else { return Ok(None) };
        if let BeginAnswer::Begun(ix) = expected {
            self.requests.insert(ix, turn);
        }
        let mut fences = Vec::new();
        for (lane, answer) in answers.into_iter().enumerate() {
            match (expected, answer) {
                (BeginAnswer::Begun(ix), Begin::Begun(begun)) => fences.push(self.check_begun(ix, &begun)?),
                (BeginAnswer::Running(ix), Begin::Running(turn)) => {
                    same("the running turn", &turn, &self.turn_id(ix, lane))?;
                }
                (BeginAnswer::Ended(ix), Begin::Ended(ended)) => {
                    same("the ended turn", &ended.turn, &self.turn_id(ix, lane))?;
                    let known = self.model.turns[ix].ended.as_ref().expect("it has ended");
                    same("its outcome", &(ended.status, ended.outcome), &(known.status, known.outcome.clone()))?;
                    let node = &self.model.nodes[known.node];
                    same("its end", &(ended.point, ended.digest), &(node.point, node.digest))?;
                }
                (expected, answer) => return Err(format!("{expected:?} was expected, {answer:?} is the answer")),
            }
        }
        let BeginAnswer::Begun(ix) = expected else { return Ok(None) };
        let attempt = self.model.turns[ix].attempt;
        self.model.turns[ix].grants.push((attempt, fences));
        Ok(Some(ix))
    }

    fn check_begun(&self, ix: TurnIx, begun: &Begun) -> Check<Fence> {
        let turn = &self.model.turns[ix];
        let nodes = &self.model.nodes;
        same("the attempt", &(begun.fence.attempt(), begun.fence.turn()), &(turn.attempt, begun.turn))?;
        same("the session", &begun.session, &self.model.sessions[turn.session].key)?;
        same("the branch", &begun.branch, &turn.branch)?;
        same("where it starts", &begun.from, &nodes[turn.start].point)?;
        let tip = turn.tip.expect("it has just begun");
        same("where it stands", &begun.point, &nodes[tip].point)?;
        let start = &nodes[turn.start].state;
        same("its indexes", &(begun.turn_index, begun.index), &(start.turns, start.index))?;
        same("its snapshot", &begun.snapshot_id, &turn.reserved)?;
        same("its lease", &begun.leased, &(turn.may_move == MayMove::Leased))?;
        Ok(begun.fence)
    }

    /// Some turn that has begun, and an attempt at it: mostly one that may still write.
    fn some_turn(&mut self) -> Option<(TurnIx, u64, Vec<Fence>)> {
        let running: Vec<_> = self.model.running().collect();
        let all: Vec<_> = (0..self.model.turns.len()).collect();
        let from = if self.rng.percent(10) { &all } else { &running };
        if from.is_empty() {
            return None;
        }
        let turn = *self.rng.pick(from);
        let grants = self.model.turns[turn].grants.clone();
        let grant = if self.rng.percent(70) { grants.len() - 1 } else { self.rng.below(grants.len()) };
        let (attempt, fences) = grants[grant].clone();
        Some((turn, attempt, fences))
    }

    fn some_changes(&mut self, turn: TurnIx, attempt: u64) -> Changes {
        if self.model.fenced(turn, attempt).is_err() {
            // Whoever is fenced off may find its input wrong first; what suits any state cannot be.
            return Changes::new().event(Event::model("agent", Message::model("too late")));
        }
        let row = &self.model.turns[turn];
        let state = self.model.nodes[row.tip.unwrap_or(row.start)].state.clone();
        let mut changes = if self.rng.percent(3) {
            content::wrong(&mut self.rng, &state)
        } else {
            content::changes(&mut self.rng, &state)
        };
        if self.rng.percent(20) {
            changes = changes.tool(content::tool(&mut self.rng));
        }
        changes
    }

    fn check_receipts(&self, expected: &Answer<WriteAnswer>, got: Vec<everturn::Result<Receipt>>) -> Check {
        for receipt in self.agree(expected, got)? {
            let Ok(expected) = expected else { continue };
            let node = &self.model.nodes[expected.node];
            same("the receipt's point", &receipt.point, &node.point)?;
            same("the receipt's digest", &receipt.digest, &node.digest)?;
            same("the receipt's snapshot", &receipt.snapshot_id, &expected.snapshot)?;
            same("whether the head went along", &receipt.on_head, &expected.on_head)?;
            same("the receipt's time", &receipt.at, &self.model.now)?;
        }
        Ok(())
    }

    pub(crate) async fn step(&mut self) -> Check {
        match self.some_turn() {
            Some((turn, attempt, fences)) => self.step_this(turn, attempt, fences).await,
            None => self.begin().await.map(drop),
        }
    }

    async fn step_this(&mut self, turn: TurnIx, attempt: u64, fences: Vec<Fence>) -> Check {
        let mut step = StepTurn::new(fences[0], self.some_changes(turn, attempt));
        if self.rng.percent(50) {
            step = step.event(SnapshotEvent::ToolIterationEnd);
        }
        if self.rng.percent(50) {
            step = step.snapshot(NewSnapshot::new(self.snapshot_id()));
        }
        if self.rng.percent(20) {
            step = step.detach();
        }
        self.note((turn, attempt, &step));
        let expected = self.model.step(turn, attempt, &step);
        let got = everywhere!(self, |store, lane| {
            step.fence = fences[lane];
            store.step(step.clone())
        });
        self.check_receipts(&expected, got)
    }

    fn some_end(&mut self, turn: TurnIx, attempt: u64, fence: Fence, status: EndStatus) -> EndTurn {
        let reason = match status {
            EndStatus::Completed if self.rng.percent(15) => FinishReason::Interrupted,
            EndStatus::Completed => *self.rng.pick(&[FinishReason::Stop, FinishReason::Length, FinishReason::Other]),
            EndStatus::Failed => FinishReason::Failed,
            EndStatus::Aborted => FinishReason::Aborted,
        };
        let mut outcome = Outcome::finished(reason);
        outcome.output = self.rng.percent(30).then(|| content::value(&mut self.rng, 2));
        outcome.error = (status == EndStatus::Failed).then(|| TurnError::new("INTERNAL", content::text(&mut self.rng)));
        let row = &self.model.turns[turn];
        let own = content::has_keys(&self.model.nodes[row.tip.unwrap_or(row.start)].state);
        let reserved = row.reserved;
        let mut end = EndTurn::completed(fence, self.some_changes(turn, attempt)).outcome(outcome);
        end.status = status;
        if end.changes.custom.is_none() && self.rng.percent(25) {
            let own = own && self.model.fenced(turn, attempt).is_ok();
            end.scopes = content::delta(&mut self.rng, own);
        }
        if self.rng.percent(65) {
            let id = reserved.filter(|_| self.rng.percent(80)).unwrap_or_else(|| self.snapshot_id());
            let new = NewSnapshot::new(id);
            end.snapshot = Some(if self.rng.percent(20) { new.labelled("marked") } else { new });
        }
        end
    }

    pub(crate) async fn end(&mut self) -> Check {
        let Some((turn, attempt, fences)) = self.some_turn() else { return self.begin().await.map(drop) };
        let status = match self.rng.below(10) {
            0..7 => EndStatus::Completed,
            7..9 => EndStatus::Failed,
            _ => EndStatus::Aborted,
        };
        self.end_this(turn, attempt, fences, status).await
    }

    async fn end_this(&mut self, turn: TurnIx, attempt: u64, fences: Vec<Fence>, status: EndStatus) -> Check {
        let mut end = self.some_end(turn, attempt, fences[0], status);
        self.note((turn, attempt, &end));
        let expected = self.model.end(turn, attempt, &end);
        let got = everywhere!(self, |store, lane| {
            end.fence = fences[lane];
            store.end(end.clone())
        });
        self.check_receipts(&expected, got)
    }

    /// A turn from its begin to its end, which is mostly a good one.
    pub(crate) async fn whole_turn(&mut self) -> Check {
        let session = self.some_session();
        let branch = self.a_branch_of(session);
        let head = self.model.sessions[session].heads[&branch].node;
        let name = invocation(&format!("i{}", self.number()));
        let input = self.input(Some(head));
        let mut request = BeginTurn::new(Start::Session(self.key_of(session)), name, input);
        request.branch = (!branch.is_main()).then_some(branch);
        request.busy = Busy::Branch;
        let Some(turn) = self.begin_this(request).await? else { return Ok(()) };
        let (attempt, fences) = self.model.turns[turn].grants[0].clone();
        let status = if self.rng.percent(85) { EndStatus::Completed } else { EndStatus::Failed };
        self.end_this(turn, attempt, fences, status).await
    }

    pub(crate) async fn take_over(&mut self) -> Check {
        let Some((turn, ..)) = self.some_turn() else { return self.begin().await.map(drop) };
        if self.rng.percent(60) {
            self.note("its writer is dead");
            self.pass(LEASE + Duration::from_secs(1));
        }
        self.note(("take over", turn));
        let expected = self.model.take_over(turn);
        let got = everywhere!(self, |store, lane| store.take_over(self.turn_id(turn, lane)));
        let answers = self.agree(&expected, got)?;
        let fences = answers.iter().map(|begun| self.check_begun(turn, begun)).collect::<Check<Vec<_>>>()?;
        if expected.is_err() {
            return Ok(());
        }
        let (before, old_fences) = self.model.turns[turn].grants.last().expect("it has begun").clone();
        let attempt = self.model.turns[turn].attempt;
        self.model.turns[turn].grants.push((attempt, fences));
        // Whoever had it may not know yet.
        match self.rng.below(5) {
            0 => self.renew_this(turn, before, old_fences).await,
            1 => self.step_this(turn, before, old_fences).await,
            2 => self.end_this(turn, before, old_fences, EndStatus::Completed).await,
            _ => Ok(()),
        }
    }

    /// A key that was used before, with the same request or with another input.
    pub(crate) async fn retry(&mut self) -> Check {
        let keyed = |turn: &TurnIx| {
            let row = &self.model.turns[*turn];
            row.key.is_some() && self.model.sessions[row.session].alive
        };
        let turns: Vec<_> = (0..self.model.turns.len()).filter(keyed).collect();
        if turns.is_empty() {
            return Ok(());
        }
        let turn = *self.rng.pick(&turns);
        let mut request = self.requests[&turn].clone();
        request.busy = Busy::Refuse;
        if self.rng.percent(15) {
            request.input = Input::text("another input");
        }
        // The session may be there anew, and its old points not: then it is another request.
        if self.model.begin_finds(&request) != Some(self.model.turns[turn].session) {
            return Ok(());
        }
        self.begin_this(request).await.map(drop)
    }

    pub(crate) async fn abort(&mut self) -> Check {
        let Some((turn, ..)) = self.some_turn() else { return Ok(()) };
        let row = &self.model.turns[turn];
        let by_snapshot = row.reserved.filter(|_| row.ended.is_none());
        let by_invocation = (row.ended.is_none() && self.model.sessions[row.session].alive)
            .then(|| (self.model.sessions[row.session].key.clone(), row.invocation.clone()));
        let way = self.rng.below(3);
        self.note(("abort", turn, way));
        let expected = self.model.abort(turn);
        let got = everywhere!(self, |store, lane| {
            let which = match (way, by_snapshot, by_invocation.clone()) {
                (1, Some(id), _) => TurnRef::Snapshot(id),
                (2, _, Some((key, invocation))) => TurnRef::Invocation(key, invocation),
                _ => TurnRef::Turn(self.turn_id(turn, lane)),
            };
            store.abort(which)
        });
        for (lane, aborted) in self.agree(&expected, got)?.into_iter().enumerate() {
            same("the turn", &aborted.turn, &self.turn_id(turn, lane))?;
            same("what it was", &Ok(aborted.before), &expected)?;
        }
        Ok(())
    }

    pub(crate) async fn renew(&mut self) -> Check {
        match self.some_turn() {
            Some((turn, attempt, fences)) => self.renew_this(turn, attempt, fences).await,
            None => Ok(()),
        }
    }

    async fn renew_this(&mut self, turn: TurnIx, attempt: u64, fences: Vec<Fence>) -> Check {
        self.note(("renew", turn, attempt));
        let expected = self.model.renew(turn, attempt);
        let got = everywhere!(self, |store, lane| store.renew(&fences[lane]));
        self.agree(&expected, got).map(drop)
    }

    pub(crate) async fn commit(&mut self) -> Check {
        let session = self.some_session();
        let branch = if self.rng.percent(90) { self.a_branch_of(session) } else { self.some_branch() };
        let head = self.model.sessions[session].heads.get(&branch).map(|head| head.node);
        let expected_at = match self.rng.below(4) {
            0 => head,
            1 => Some(self.some_node(session)),
            _ => None,
        };
        let base = expected_at.or(head);
        let state = base.map(|node| self.model.nodes[node].state.clone()).unwrap_or_default();
        let changes = content::changes(&mut self.rng, &state);
        let mut commit = Commit::new(self.key_of(session), changes).branch(branch);
        commit.expect = expected_at.map(|node| self.model.nodes[node].point);
        if self.rng.percent(60) {
            commit = commit.or_side_line();
        }
        if self.rng.percent(30) {
            commit = commit.event(SnapshotEvent::InvocationEnd);
        }
        if self.rng.percent(40) {
            commit = commit.snapshot(NewSnapshot::new(self.snapshot_id()));
        }
        commit.invocation = self.rng.percent(30).then(|| invocation("edit"));
        self.note(&commit);
        let expected = self.model.commit(&commit);
        if expected.as_ref().is_err_and(|kind| *kind == ErrorKind::Invalid) {
            return Err("the generator made an edit that cannot be".to_owned());
        }
        let got = everywhere!(self, |store, lane| store.commit(commit.clone()));
        self.check_receipts(&expected, got)
    }
}
