//! One random thing after another, done in the model and in every store.

use std::time::Duration;

use everturn::store::{At, EventQuery, ListSessions, SessionOrder};
use everturn::{RecordKind, SessionKey};

use crate::compare::{everything, learn_segments, line_events, text, unnamed, verified};
use crate::support::{Rng, all_events};
use crate::tree::{LEASE, NodeId, SessionIx};
use crate::world::{Check, World, same};

/// What a case is mostly about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Profile {
    /// Everything.
    Mixed,
    /// Turns that die, are stolen, taken over, retried and aborted.
    Deaths,
    /// Branches, side lines, rewinds and forks, and what is left of them when sessions go.
    Trees,
    /// One long line with a large custom state that changes a little each time.
    Patches,
}

impl Profile {
    pub(crate) fn of(seed: u64) -> Self {
        match seed % 8 {
            0..3 => Self::Mixed,
            3 | 4 => Self::Trees,
            5 | 6 => Self::Deaths,
            _ => Self::Patches,
        }
    }

    /// How often each thing is done.
    fn weights(self) -> [(usize, Kind); 17] {
        let pick = |mixed, deaths, trees, patches| match self {
            Self::Mixed => mixed,
            Self::Deaths => deaths,
            Self::Trees => trees,
            Self::Patches => patches,
        };
        [
            (pick(4, 2, 3, 0), Kind::Create),
            (pick(16, 4, 14, 60), Kind::WholeTurn),
            (pick(14, 24, 10, 4), Kind::Begin),
            (pick(12, 12, 6, 6), Kind::Step),
            (pick(16, 12, 8, 6), Kind::End),
            (pick(3, 12, 2, 1), Kind::Sleep),
            (pick(3, 12, 2, 1), Kind::TakeOver),
            (pick(3, 10, 1, 0), Kind::Retry),
            (pick(4, 8, 2, 1), Kind::Abort),
            (pick(2, 4, 1, 0), Kind::Renew),
            (pick(8, 4, 8, 40), Kind::Commit),
            (pick(12, 6, 26, 2), Kind::Branch),
            (pick(4, 2, 12, 1), Kind::Fork),
            (pick(2, 1, 4, 0), Kind::Remove),
            (pick(4, 1, 2, 1), Kind::Admin),
            (pick(5, 2, 5, 2), Kind::Query),
            (pick(1, 1, 1, 1), Kind::Restart),
        ]
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Create,
    WholeTurn,
    Begin,
    Step,
    End,
    Sleep,
    TakeOver,
    Retry,
    Abort,
    Renew,
    Commit,
    Branch,
    Fork,
    Remove,
    Admin,
    Query,
    Restart,
}

impl World {
    /// One thing, chosen by a seed and by what there is.
    pub(crate) async fn op(&mut self, profile: Profile, seed: u64) -> Check {
        self.rng = Rng::new(seed);
        self.some_op(profile).await?;
        learn_segments(&mut self.model, &self.lanes[0]).await
    }

    async fn some_op(&mut self, profile: Profile) -> Check {
        let time = Duration::from_secs(1 + self.rng.below(3) as u64);
        self.pass(time);
        let weights = profile.weights();
        let total: usize = weights.iter().map(|(weight, _)| weight).sum();
        let mut left = self.rng.below(total);
        let kind = weights.iter().find_map(|(weight, kind)| match left.checked_sub(*weight) {
            None => Some(*kind),
            Some(rest) => {
                left = rest;
                None
            }
        });
        let kind = kind.unwrap_or(Kind::Create);
        if self.live_sessions().is_empty() {
            return self.create().await;
        }
        match kind {
            Kind::Create => self.create().await,
            Kind::WholeTurn => self.whole_turn().await,
            Kind::Begin => self.begin().await.map(drop),
            Kind::Step => self.step().await,
            Kind::End => self.end().await,
            Kind::Sleep => {
                let time = if self.rng.percent(60) { LEASE + Duration::from_secs(1) } else { LEASE / 3 };
                self.note(("sleep", time));
                self.pass(time);
                Ok(())
            }
            Kind::TakeOver => self.take_over().await,
            Kind::Retry => self.retry().await,
            Kind::Abort => self.abort().await,
            Kind::Renew => self.renew().await,
            Kind::Commit => self.commit().await,
            Kind::Branch => self.branch().await,
            Kind::Fork => self.fork().await,
            Kind::Remove => self.remove().await,
            Kind::Admin => self.admin().await,
            Kind::Query if self.rng.percent(25) => self.listing().await,
            Kind::Query => self.query().await,
            Kind::Restart => {
                self.note("restart");
                self.restart();
                Ok(())
            }
        }
    }

    /// Holds everything readable against the model, in every store and through a fresh handle on the file.
    pub(crate) async fn compare(&mut self, fresh: bool) -> Check {
        for index in 0..self.lanes.len() {
            everything(&self.model, &self.lanes[index], index).await?;
        }
        if fresh {
            let second = self.second_handle();
            everything(&self.model, &second, self.lanes.len()).await?;
            for lane in self.lanes.iter().chain([&second]) {
                verified(lane).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn live_sessions(&self) -> Vec<SessionIx> {
        (0..self.model.sessions.len()).filter(|ix| self.model.sessions[*ix].alive).collect()
    }

    pub(crate) fn some_session(&mut self) -> SessionIx {
        let live = self.live_sessions();
        // The newest one twice as often, so that some sessions grow long.
        if self.rng.percent(30) { live[live.len() - 1] } else { *self.rng.pick(&live) }
    }

    pub(crate) fn key_of(&self, session: SessionIx) -> SessionKey {
        self.model.sessions[session].key.clone()
    }

    /// Any record a session knows by its point: its own, voided or not, and what it inherited.
    pub(crate) fn some_node(&mut self, session: SessionIx) -> NodeId {
        let mut nodes = self.model.sessions[session].nodes.clone();
        nodes.retain(|node| self.model.nodes[*node].kind != RecordKind::Admin);
        if let Some(origin) = self.model.sessions[session].origin
            && self.rng.percent(30)
        {
            nodes = self.model.line(origin);
        }
        *self.rng.pick(&nodes)
    }

    /// The same, a place where something can go on.
    pub(crate) fn some_settled(&mut self, session: SessionIx) -> NodeId {
        for _ in 0..20 {
            let node = self.some_node(session);
            if matches!(self.model.nodes[node].kind, RecordKind::End | RecordKind::Edit) {
                return node;
            }
        }
        self.model.sessions[session].heads[&everturn::BranchName::main()].node
    }

    /// Events of some line, with every filter there is.
    async fn query(&mut self) -> Check {
        let session = self.some_session();
        let node = self.some_node(session);
        let at = At::Point(self.key_of(session), self.model.nodes[node].point);
        let voided = self.rng.percent(40);
        let mut expected = line_events(&self.model, node, voided);
        let mut query = EventQuery::at(at);
        if voided {
            query = query.with_voided();
        }
        if self.rng.percent(40) {
            let tail = self.rng.below(expected.len() + 2);
            query = query.tail(tail);
            expected.drain(..expected.len().saturating_sub(tail));
        }
        let seqs: Vec<u64> = expected.iter().map(|event| event.seq).chain([0]).collect();
        if self.rng.percent(40) {
            let after = *self.rng.pick(&seqs);
            query.after = Some(after);
            expected.retain(|event| event.seq > after);
        }
        if self.rng.percent(30) {
            let until = *self.rng.pick(&seqs);
            query.until = Some(until);
            expected.retain(|event| event.seq <= until);
        }
        if self.rng.percent(30)
            && let Some(since) = expected.iter().filter_map(|event| event.at).nth(expected.len() / 2)
        {
            query = query.since(since);
            expected.retain(|event| event.at >= Some(since));
        }
        let limit = 1 + self.rng.below(5);
        self.note((&query, limit));
        for lane in &self.lanes {
            let whole = text(all_events(&*lane.store, query.clone()).await)?;
            same((lane.name, &query), &unnamed(whole)?, &expected)?;
            let mut paged = Vec::new();
            let mut next = query.clone().limit(limit);
            loop {
                let page = text(lane.store.events(next.clone()).await)?;
                paged.extend(page.items);
                match page.next {
                    Some(cursor) => next = next.from(cursor),
                    None => break,
                }
            }
            same((lane.name, "by pages", limit, &query), &unnamed(paged)?, &expected)?;
        }
        Ok(())
    }

    /// A listing is as of its first page, whatever is written while one reads on.
    async fn listing(&mut self) -> Check {
        let newest = self.rng.percent(50);
        let order = if newest { SessionOrder::UpdatedNewest } else { SessionOrder::UpdatedOldest };
        self.note(("listing", order));
        let mut then = self.live_sessions();
        then.sort_by_key(|ix| self.model.sessions[*ix].updated);
        if newest {
            then.reverse();
        }
        let query = ListSessions::default().order(order).limit(2);
        let mut first = Vec::new();
        for lane in &self.lanes {
            first.push(text(lane.store.list(query.clone()).await)?);
        }
        let read: Vec<_> = then.iter().take(2).copied().collect();
        for _ in 0..3 {
            let session = self.some_session();
            if self.rng.percent(20) { self.create().await? } else { self.touch(session).await? }
        }
        then.retain(|ix| self.model.sessions[*ix].alive || read.contains(ix));
        let expected: Vec<_> = then.iter().map(|ix| self.key_of(*ix)).collect();
        for (lane, page) in self.lanes.iter().zip(first) {
            let mut found: Vec<_> = page.items.iter().map(|record| record.key()).collect();
            let mut next = page.next;
            while let Some(cursor) = next {
                let page = text(lane.store.list(query.clone().after(cursor)).await)?;
                found.extend(page.items.iter().map(|record| record.key()));
                next = page.next;
            }
            same((lane.name, "a listing as of its first page"), &found, &expected)?;
        }
        Ok(())
    }
}
