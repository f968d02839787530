//! What becomes of attempts at turns: hidden, lost, taken over, aborted. In the reference model.

use everturn::store::{BeginTurn, EndTurn, Start};
use everturn::{
    BranchName, EndStatus, ErrorKind, FinishReason, NewSnapshot, Outcome, RecordKind, StateDelta, TurnStatus,
};

use crate::tree::{Answer, MayMove, Model, NewNode, SessionIx, Turn, TurnIx};
use crate::turns::{input_changes, owned};

impl Model {
    /// Hides what an attempt wrote from all points after it.
    pub(crate) fn hide(&mut self, turn: TurnIx, attempt: u64) {
        for node in &mut self.nodes {
            if node.turn == Some((turn, attempt)) && node.kind != RecordKind::Void {
                node.voided = true;
            }
        }
    }

    fn void_attempt(&mut self, turn: TurnIx) {
        let row = self.turns[turn].clone();
        let Some(tip) = row.tip else { return };
        self.hide(turn, row.attempt);
        let new = NewNode {
            kind: RecordKind::Void,
            parent: Some(tip),
            turn: Some((turn, row.attempt)),
            state: self.nodes[tip].state.clone(),
            events: Vec::new(),
            event: None,
            snapshot: None,
        };
        self.append(row.session, new);
        let row = &mut self.turns[turn];
        row.attempt += 1;
        row.tip = None;
        row.scopes.clear();
        row.puts.clear();
    }

    /// Takes a branch from the dead turn that holds it, if there is one.
    pub(crate) fn lose(&mut self, session: SessionIx, branch: &BranchName) {
        let head = self.sessions[session].heads.get_mut(branch).expect("it is there");
        let Some(turn) = head.lease.take() else { return };
        self.void_attempt(turn);
        self.turns[turn].may_move = MayMove::If(self.turns[turn].start);
    }

    pub(crate) fn take_over(&mut self, turn: TurnIx) -> Answer<()> {
        let session = self.turns[turn].session;
        if !self.sessions[session].alive {
            return Err(ErrorKind::NotFound);
        }
        match self.turn_status(turn) {
            TurnStatus::Running => return Err(ErrorKind::Busy),
            TurnStatus::Dead => {}
            _ => return Err(ErrorKind::Conflict),
        }
        self.void_attempt(turn);
        let Turn { start, begin, branch, invocation, .. } = self.turns[turn].clone();
        if let Some(head) = self.sessions[session].heads.get(&branch).cloned()
            && head.lease != Some(turn)
            && head.node == start
            && self.holder(session, &branch).is_none()
        {
            self.lose(session, &branch);
            self.sessions[session].heads.get_mut(&branch).expect("it is there").lease = Some(turn);
            self.turns[turn].may_move = MayMove::Leased;
        }
        let request = BeginTurn::new(
            Start::Session(self.sessions[session].key.clone()),
            invocation,
            self.turns[turn].input.clone(),
        );
        let mut state = self.nodes[start].state.clone();
        let effects = state.apply(&input_changes(&request), &StateDelta::new())?;
        assert_eq!(state, self.nodes[begin].state, "the same input at the same start");
        let new = NewNode {
            kind: RecordKind::Begin,
            parent: Some(start),
            turn: Some((turn, self.turns[turn].attempt)),
            state,
            events: owned(effects.events, Some(&request.invocation)),
            event: None,
            snapshot: None,
        };
        let node = self.append(session, new);
        let row = &mut self.turns[turn];
        row.tip = Some(node);
        row.scopes = effects.scopes;
        row.beat = self.now;
        Ok(())
    }

    pub(crate) fn abort(&mut self, turn: TurnIx) -> Answer<TurnStatus> {
        let before = self.turn_status(turn);
        if !self.sessions[self.turns[turn].session].alive {
            return Err(ErrorKind::NotFound);
        }
        if self.turns[turn].ended.is_some() {
            return Ok(before);
        }
        let row = &mut self.turns[turn];
        row.tip = row.tip.or(Some(row.start));
        let outcome = Outcome::finished(FinishReason::Aborted);
        let fence = row.grants[0].1[0];
        let mut end = EndTurn::voided(fence, EndStatus::Aborted, outcome);
        end.snapshot = row.reserved.map(NewSnapshot::new);
        let attempt = row.attempt;
        self.end(turn, attempt, &end)?;
        Ok(before)
    }
}
