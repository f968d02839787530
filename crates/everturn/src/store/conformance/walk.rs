//! A random walk through everything that shapes the tree, against a model that is too simple to be wrong: it keeps the
//! whole state of every point.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bench::{Bench, answer, end, invocation, json, key, texts};
use super::verdict::{Check, fail, holds, refused, same, there};
use crate::store::{
    At, BeginTurn, BranchChange, Busy, Commit, CreateSession, EndTurn, EventQuery, ForkSession, MAX_PAGE, Start,
    StepTurn, Store, StoreExt, UnderLease, VerifyScope,
};
use crate::{
    Begun, BranchName, Changes, EndStatus, ErrorKind, Event, Input, Json, Message, Outcome, Point, SessionKey,
    SnapshotEvent, StateDelta, TurnId,
};

const SEEDS: u64 = 10;
const STEPS: usize = 70;

/// What a point holds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    messages: Vec<String>,
    keys: BTreeMap<String, u64>,
    turns: u64,
    index: u64,
}

/// A turn that runs.
struct Open {
    begun: Begun,
    content: Content,
    branch: BranchName,
    /// For a side line, the head it saw.
    seen: Option<Point>,
}

#[derive(Default)]
struct Model {
    points: BTreeMap<Point, Content>,
    /// Points a branch may stand at.
    settled: Vec<Point>,
    /// Points a turn may start from.
    resumable: Vec<Point>,
    heads: BTreeMap<BranchName, Point>,
    leases: BTreeMap<BranchName, TurnId>,
    open: Vec<Open>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % (bound as u64)).unwrap_or(0)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

struct Walk {
    key: SessionKey,
    handles: [Arc<dyn Store>; 2],
    random: Random,
    model: Model,
    count: u64,
}

pub(super) async fn random_steps_agree_with_a_simple_model(t: Bench) -> Check {
    let handles = [t.store.clone(), t.second().await?];
    for seed in 1..=SEEDS {
        let key = key(&format!("seed {seed}"));
        let made = t.store.create(CreateSession::at(key.clone())).await?;
        let mut model = Model::default();
        model.points.insert(made.head, Content::default());
        model.settled.push(made.head);
        model.resumable.push(made.head);
        model.heads.insert(BranchName::main(), made.head);
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut walk = Walk { key, handles: handles.clone(), random, model, count: 0 };
        for _ in 0..STEPS {
            walk.step().await?;
            walk.compare().await?;
        }
        walk.compare_all(&t).await?;
    }
    same(t.second().await?.verify(VerifyScope::All).await?.damage, None, "the damage")
}

impl Walk {
    fn store(&mut self) -> Arc<dyn Store> {
        let handle = self.random.below(2);
        self.handles[handle].clone()
    }

    fn branch(&mut self) -> BranchName {
        let names: Vec<_> = self.model.heads.keys().cloned().collect();
        self.random.pick(&names)
    }

    async fn step(&mut self) -> Check {
        match self.random.below(20) {
            0..=4 => self.begin_at_head().await,
            5..=6 => self.begin_at_point().await,
            7..=9 => self.write().await,
            10..=14 => self.end().await,
            15 => self.fail().await,
            16 => self.edit().await,
            17 => self.rewind().await,
            18 => self.branch_off().await,
            _ => self.fork().await,
        }
    }

    fn word(&mut self) -> String {
        self.count += 1;
        format!("w{}", self.count)
    }

    /// Something to change, and the content after it.
    fn change(&mut self, before: &Content) -> (Changes, Content) {
        let mut after = before.clone();
        let mut changes = Changes::new();
        if self.random.below(6) == 0 {
            let keep = self.random.below(after.messages.len() + 1);
            let word = self.word();
            after.messages.truncate(keep);
            after.messages.push(word.clone());
            changes = changes.splice(keep as u64, vec![Message::user(word)]);
        }
        for _ in 0..=self.random.below(2) {
            let word = self.word();
            after.messages.push(word.clone());
            changes = changes.event(Event::model("m", Message::model(word)));
        }
        if self.random.below(2) == 0 {
            let name = format!("k{}", self.random.below(4));
            let mut delta = StateDelta::new();
            if self.random.below(4) == 0 {
                after.keys.remove(&name);
                delta = delta.remove(name);
            } else {
                after.keys.insert(name.clone(), self.count);
                delta = delta.set(name, json(&self.count.to_string()));
            }
            changes = changes.event(Event::new("m").with_state(delta));
        }
        (changes, after)
    }

    async fn begin(&mut self, begin: BeginTurn, at: Point, leased: bool, word: String) -> Check {
        let begun = self.store().begin(begin).await?.begun()?;
        same((begun.from, begun.leased), (at, leased), "where the turn starts, and its lease")?;
        let mut content = self.model.points[&at].clone();
        same((begun.turn_index, begun.index), (content.turns, content.index), "the turn's indexes")?;
        content.messages.push(word);
        self.model.points.insert(begun.point, content.clone());
        let branch = begun.branch.clone();
        let seen = (!leased).then(|| self.model.heads[&branch]);
        if leased {
            self.model.leases.insert(branch.clone(), begun.turn);
        }
        self.model.open.push(Open { begun, content, branch, seen });
        Ok(())
    }

    async fn begin_at_head(&mut self) -> Check {
        let (branch, word) = (self.branch(), self.word());
        let at = self.model.heads[&branch];
        let start = Start::Session(self.key.clone());
        let begin = BeginTurn::new(start, invocation("i"), Input::text(&word)).branch(branch.clone());
        let leased = !self.model.leases.contains_key(&branch);
        self.begin(begin.busy(Busy::Branch), at, leased, word).await
    }

    async fn begin_at_point(&mut self) -> Check {
        let (branch, word) = (self.branch(), self.word());
        let at = self.random.pick(&self.model.resumable);
        let start = Start::Point { session: self.key.clone(), point: at };
        let begin = BeginTurn::new(start, invocation("i"), Input::text(&word)).branch(branch.clone());
        let leased = self.model.heads[&branch] == at && !self.model.leases.contains_key(&branch);
        self.begin(begin, at, leased, word).await
    }

    async fn write(&mut self) -> Check {
        if self.model.open.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.model.open.len());
        let (fence, before) = (self.model.open[which].begun.fence, self.model.open[which].content.clone());
        let (changes, mut after) = self.change(&before);
        let mut step = StepTurn::new(fence, changes);
        if self.random.below(2) == 0 {
            step = step.event(SnapshotEvent::ToolIterationEnd);
            after.index += 1;
        }
        let receipt = self.store().step(step).await?;
        self.model.points.insert(receipt.point, after.clone());
        self.model.resumable.push(receipt.point);
        self.model.open[which].content = after;
        Ok(())
    }

    async fn end(&mut self) -> Check {
        if self.model.open.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.model.open.len());
        let open = self.model.open.swap_remove(which);
        let (changes, mut after) = self.change(&open.content);
        after.turns += 1;
        after.index += 1;
        let receipt = self.store().end(EndTurn::completed(open.begun.fence, changes)).await?;
        let moves = match open.seen {
            None => true,
            Some(seen) => {
                self.model.heads.get(&open.branch) == Some(&seen) && !self.model.leases.contains_key(&open.branch)
            }
        };
        same(receipt.on_head, moves, "whether the turn ended on the head")?;
        self.model.points.insert(receipt.point, after);
        self.model.settled.push(receipt.point);
        self.model.resumable.push(receipt.point);
        if open.seen.is_none() {
            self.model.leases.remove(&open.branch);
        }
        if moves {
            self.model.heads.insert(open.branch, receipt.point);
        }
        Ok(())
    }

    async fn fail(&mut self) -> Check {
        if self.model.open.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.model.open.len());
        let open = self.model.open.swap_remove(which);
        let (changes, after) = self.change(&open.content);
        let status = if self.random.below(2) == 0 { EndStatus::Failed } else { EndStatus::Aborted };
        let mut ending = EndTurn::voided(open.begun.fence, status, Outcome::default());
        ending.changes = changes;
        let receipt = self.store().end(ending).await?;
        holds(!receipt.on_head, "a void turn is not on the head")?;
        self.model.points.insert(receipt.point, after);
        if open.seen.is_none() {
            self.model.leases.remove(&open.branch);
        }
        Ok(())
    }

    async fn edit(&mut self) -> Check {
        let branch = self.branch();
        let before = self.model.points[&self.model.heads[&branch]].clone();
        let (changes, mut after) = self.change(&before);
        let mut commit = Commit::new(self.key.clone(), changes).branch(branch.clone());
        if self.random.below(2) == 0 {
            commit = commit.event(SnapshotEvent::InvocationEnd);
            after.index += 1;
        }
        let edited = self.store().commit(commit).await;
        if self.model.leases.contains_key(&branch) {
            return refused(edited, ErrorKind::Busy, "an edit beside a running turn");
        }
        let receipt = edited?;
        holds(receipt.on_head, "an edit moves the head")?;
        self.model.points.insert(receipt.point, after);
        self.model.settled.push(receipt.point);
        self.model.resumable.push(receipt.point);
        self.model.heads.insert(branch, receipt.point);
        Ok(())
    }

    async fn rewind(&mut self) -> Check {
        let branch = self.branch();
        let to = self.random.pick(&self.model.settled);
        let change = BranchChange::Move { name: branch.clone(), to, expect: None, under_lease: UnderLease::Refuse };
        let key = self.key.clone();
        let moved = self.store().branch(&key, change).await;
        if self.model.leases.contains_key(&branch) {
            return refused(moved, ErrorKind::Busy, "a rewind beside a running turn");
        }
        moved?;
        self.model.heads.insert(branch, to);
        Ok(())
    }

    async fn branch_off(&mut self) -> Check {
        let name = BranchName::new(format!("b{}", self.model.heads.len()))?;
        let at = self.random.pick(&self.model.settled);
        let key = self.key.clone();
        self.store().branch(&key, BranchChange::Create { name: name.clone(), at }).await?;
        self.model.heads.insert(name, at);
        Ok(())
    }

    async fn fork(&mut self) -> Check {
        let at = self.random.pick(&self.model.resumable);
        let store = self.store();
        let forked = store.fork(ForkSession::at(At::Point(self.key.clone(), at))).await?.key();
        let mut wanted = self.model.points[&at].messages.clone();
        same(texts(&store.head_state(&forked).await?), wanted.clone(), "what was said up to the fork point")?;
        let start = Start::Session(forked.clone());
        let begun = store.begin(BeginTurn::new(start, invocation("i"), Input::text("more"))).await?.begun()?;
        store.end(end(begun.fence, "more")).await?;
        wanted.extend(["more".to_owned(), "re: more".to_owned()]);
        same(texts(&self.store().head_state(&forked).await?), wanted, "what was said in the fork")
    }

    /// The heads, and one point of all.
    async fn compare(&mut self) -> Check {
        let store = self.store();
        let session = store.existing(&self.key).await?;
        let heads: BTreeMap<_, _> = session.branches.into_iter().map(|b| (b.name, b.head)).collect();
        same(&heads, &self.model.heads, "the heads")?;
        let points: Vec<_> = self.model.points.keys().copied().collect();
        let point = self.random.pick(&points);
        self.compare_point(&store, point).await
    }

    async fn compare_point(&self, store: &Arc<dyn Store>, point: Point) -> Check {
        let wanted = &self.model.points[&point];
        let at = At::Point(self.key.clone(), point);
        let state = there(store.state(at).await?, &format!("point {point} of {}", self.key))?;
        let keys = state.custom().map(Json::to::<BTreeMap<String, u64>>).transpose()?.unwrap_or_default();
        let found = Content { messages: texts(&state), keys, turns: wanted.turns, index: wanted.index };
        if found != *wanted {
            return fail(format!("point {point} of {}: found {found:?} instead of {wanted:?}", self.key));
        }
        if self.model.resumable.contains(&point) {
            let counts = (state.turns(), state.index());
            same(counts, (wanted.turns, wanted.index), &format!("turns and opportunities at point {point}"))?;
        }
        Ok(())
    }

    /// Events along each branch: their numbers only grow, and none is of another line.
    async fn compare_events(&self, store: &Arc<dyn Store>) -> Check {
        for branch in self.model.heads.keys() {
            let at = At::Head(self.key.clone(), branch.clone());
            let events = store.events(EventQuery::at(at).limit(MAX_PAGE)).await?.items;
            holds(events.is_sorted_by(|a, b| a.seq < b.seq), "the events' numbers only grow along a line")?;
            let wanted = &self.model.points[&self.model.heads[branch]];
            let turns = events.iter().filter_map(|event| event.turn_index).max().map_or(0, |last| last + 1);
            same(turns, wanted.turns, "the turns that events tell of")?;
        }
        Ok(())
    }

    /// Every point, through a handle that remembers nothing. Equal contents have equal digests, others do not.
    async fn compare_all(&self, t: &Bench) -> Check {
        let store = t.second().await?;
        self.compare_events(&store).await?;
        let mut digests = BTreeMap::new();
        for (point, content) in &self.model.points {
            self.compare_point(&store, *point).await?;
            let state = there(store.state(At::Point(self.key.clone(), *point)).await?, "the point")?;
            // A key that was set and removed leaves an empty object, not an absent one.
            let custom = state.custom().map(|custom| custom.as_str().len());
            let known = (content.messages.clone(), content.keys.clone(), custom);
            let first = digests.entry(known).or_insert_with(|| state.digest());
            same(state.digest(), *first, "the digests of equal states")?;
        }
        let distinct: std::collections::BTreeSet<_> = digests.values().collect();
        same(distinct.len(), digests.len(), "as many digests as states")
    }
}

/// The walk is the same each time.
pub(super) async fn equal_walks_give_equal_states(t: Bench) -> Check {
    let other = t.second().await?;
    let mut digests = Vec::new();
    for (i, store) in [t.store.clone(), other].into_iter().enumerate() {
        let key = key(&format!("walk {i}"));
        store.create(CreateSession::at(key.clone())).await?;
        let mut random = Random(7);
        for _ in 0..20 {
            let word = random.below(1000).to_string();
            let start = Start::Session(key.clone());
            let begun = store.begin(BeginTurn::new(start, invocation("i"), Input::text(&word))).await?.begun()?;
            store.end(EndTurn::completed(begun.fence, answer(&word))).await?;
        }
        digests.push(store.head_state(&key).await?.digest());
    }
    same(digests[0], digests[1], "the digests of one conversation held twice")
}
