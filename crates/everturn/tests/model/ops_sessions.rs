//! Sessions, branches and forks: random requests.

use everturn::store::{At, BranchChange, CreateSession, ForkSession, UnderLease, UpdateSession};
use everturn::{AgentName, BranchName, Point, SessionId, SessionKey, SessionRecord};

use crate::content;
use crate::state::State;
use crate::support::key;
use crate::tree::{Answer, SessionIx};
use crate::world::{Check, World, everywhere, same};

/// More would make each comparison slow without making it stricter.
const MOST_SESSIONS: usize = 7;
const BRANCHES: [&str; 4] = ["main", "b1", "b2", "ветка"];

impl World {
    pub(crate) fn some_branch(&mut self) -> BranchName {
        BranchName::new(*self.rng.pick(&BRANCHES)).expect("it is a name")
    }

    /// A branch the session has.
    pub(crate) fn a_branch_of(&mut self, session: SessionIx) -> BranchName {
        let names: Vec<_> = self.model.sessions[session].heads.keys().cloned().collect();
        self.rng.pick(&names).clone()
    }

    /// A key that is free: a new one, or that of a session which was deleted.
    pub(crate) fn free_key(&mut self) -> SessionKey {
        let gone: Vec<_> = self.model.sessions.iter().filter(|row| !row.alive).map(|row| row.key.clone()).collect();
        let free: Vec<_> = gone.into_iter().filter(|key| self.model.find(key).is_none()).collect();
        if !free.is_empty() && self.rng.percent(60) {
            return self.rng.pick(&free).clone();
        }
        let user = if self.rng.percent(80) { "ann" } else { "bob" };
        key(user, &format!("s{}", self.number()))
    }

    pub(crate) fn new_session(&mut self) -> CreateSession {
        let mut create = CreateSession::at(self.free_key());
        if self.rng.percent(40) {
            create = create.title(content::text(&mut self.rng)).label("kept");
            create.agent = Some(AgentName::new("agent").expect("it is a name"));
            create.metadata = Some(crate::support::json("{\"kind\":\"test\",\"n\":1.10}"));
        }
        if self.rng.percent(50) {
            create.state = content::delta(&mut self.rng, true);
        }
        if self.rng.percent(40) {
            create.changes = content::changes(&mut self.rng, &State::default());
        }
        if self.rng.percent(50) {
            create.seed = Some(self.snapshot_id());
        }
        create
    }

    pub(crate) async fn create(&mut self) -> Check {
        let mut create = self.new_session();
        if self.live_sessions().len() >= MOST_SESSIONS || self.rng.percent(10) {
            // An id that is taken.
            if let Some(session) = self.live_sessions().first() {
                let SessionKey { app, user, id } = self.key_of(*session);
                (create.app, create.user, create.id) = (app, user, Some(id));
            }
        }
        self.note(&create);
        let expected = self.model.create(&create);
        let got = everywhere!(self, |store, lane| store.create(create.clone()));
        self.records_agree(&expected, got)
    }

    /// Every store shows the session as the model has it; the rest is compared with everything else.
    fn records_agree(&self, expected: &Answer<SessionIx>, got: Vec<everturn::Result<SessionRecord>>) -> Check {
        for found in self.agree(expected, got)? {
            let Ok(session) = expected else { continue };
            let row = &self.model.sessions[*session];
            same("the session", &found.key(), &row.key)?;
            let head = row.heads[&BranchName::main()].node;
            same("its head", &found.head, &self.model.nodes[head].point)?;
            same("its status", &found.status, &self.model.status(*session))?;
        }
        Ok(())
    }

    pub(crate) async fn touch(&mut self, session: SessionIx) -> Check {
        let mut update = UpdateSession::default();
        if self.rng.percent(50) {
            update.title = Some(self.rng.percent(70).then(|| content::text(&mut self.rng)));
        }
        for label in ["kept", "later", "ü"] {
            match self.rng.below(4) {
                0 => drop(update.add_labels.insert(label.to_owned())),
                1 => drop(update.remove_labels.insert(label.to_owned())),
                _ => {}
            }
        }
        for name in ["kind", "n", "more"] {
            match self.rng.below(5) {
                0 => drop(update.set_metadata.insert(name.to_owned(), content::value(&mut self.rng, 1))),
                1 => drop(update.remove_metadata.insert(name.to_owned())),
                _ => {}
            }
        }
        let key = self.key_of(session);
        self.note((&key, &update));
        let expected = self.model.update(&key, &update);
        let got = everywhere!(self, |store, lane| store.update(&key, update.clone()));
        self.records_agree(&expected, got)
    }

    pub(crate) async fn admin(&mut self) -> Check {
        if self.rng.percent(60) || self.model.snaps.is_empty() {
            let session = self.some_session();
            return self.touch(session).await;
        }
        let ids: Vec<_> = self.model.snaps.iter().map(|snap| snap.id).collect();
        let id = *self.rng.pick(&ids);
        let label = content::text(&mut self.rng).chars().take(40).collect();
        let label: Option<String> = self.rng.percent(70).then_some(label);
        self.note(("label", id, &label));
        let expected = self.model.label(id, label.as_deref());
        let got = everywhere!(self, |store, lane| store.label(id, label.clone()));
        for found in self.agree(&expected, got)? {
            same("the label", &found.label, &label)?;
        }
        Ok(())
    }

    pub(crate) async fn branch(&mut self) -> Check {
        let session = self.some_session();
        let key = self.key_of(session);
        let point = |world: &mut Self| {
            let node = if world.rng.percent(85) { world.some_settled(session) } else { world.some_node(session) };
            if world.rng.percent(4) { Point::new(9_999_999) } else { world.model.nodes[node].point }
        };
        let under_lease = if self.rng.percent(50) { UnderLease::Refuse } else { UnderLease::Force };
        let expect = if self.rng.percent(20) { Some(point(self)) } else { None };
        let change = match self.rng.below(10) {
            0..3 => BranchChange::Create { name: self.some_branch(), at: point(self) },
            3..5 => BranchChange::Delete { name: self.some_branch(), expect: None, under_lease },
            5 => BranchChange::Move { name: self.some_branch(), to: point(self), expect, under_lease },
            _ => BranchChange::Move { name: self.a_branch_of(session), to: point(self), expect, under_lease },
        };
        self.note((&key, &change));
        let expected = self.model.branch(&key, &change);
        let got = everywhere!(self, |store, lane| store.branch(&key, change.clone()));
        self.records_agree(&expected, got)
    }

    pub(crate) async fn fork(&mut self) -> Check {
        let session = self.some_session();
        let key = self.key_of(session);
        let snaps: Vec<_> =
            self.model.snaps.iter().filter(|snap| snap.session == session).map(|snap| snap.id).collect();
        let from = match self.rng.below(4) {
            0 => At::Head(key, self.a_branch_of(session)),
            1 if !snaps.is_empty() => At::Snapshot(*self.rng.pick(&snaps)),
            _ => {
                let node = self.some_node(session);
                At::Point(key, self.model.nodes[node].point)
            }
        };
        let taken = self.live_sessions().len() >= MOST_SESSIONS || self.rng.percent(5);
        let id = if taken { self.key_of(session).id } else { self.fork_id(session) };
        let mut fork = ForkSession::at(from).id(id);
        fork.snapshot = Some(self.snapshot_id());
        self.note(&fork);
        let expected = self.model.fork(&fork);
        let got = everywhere!(self, |store, lane| store.fork(fork.clone()));
        self.records_agree(&expected, got)
    }

    /// A fork belongs to the user of its origin, so only that user's free ids will do.
    fn fork_id(&mut self, origin: SessionIx) -> SessionId {
        let free = self.free_key();
        if free.user == self.model.sessions[origin].key.user {
            return free.id;
        }
        SessionId::new(format!("f{}", self.number())).expect("it is short")
    }

    /// Deletes a session, or purges one, be it there or deleted already.
    pub(crate) async fn remove(&mut self) -> Check {
        if self.rng.percent(50) {
            let session = self.some_session();
            let key = self.key_of(session);
            self.note(("delete", &key));
            let there = self.model.delete(&key);
            let got = everywhere!(self, |store, lane| store.delete(&key));
            for found in self.agree(&Ok(()), got)? {
                same("whether there was one", &found, &there)?;
            }
            return Ok(());
        }
        let any = self.rng.below(self.model.sessions.len());
        let key = self.key_of(any);
        self.note(("purge", &key));
        self.model.delete(&key);
        let got = everywhere!(self, |store, lane| store.purge(&key));
        self.agree(&Ok(()), got).map(drop)
    }
}
