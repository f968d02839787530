//! Decoded states of sessions in use.
//!
//! The disk format does not make a turn flat in history; this does: the state a turn starts from is usually the one the
//! last turn left here, and a state written by another process is caught up with, not added up anew.
//!
//! Messages are most of what a state weighs, and making a record takes none of them unless it cuts some off. So the sessions
//! that do not find room here stay at hand without their messages: whoever only writes need not have them added up again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::line::Interval;
use super::tables::Place;
use crate::state::{Messages, PointState};

/// States kept of one session: enough for a turn, its steps, and the point before it that may be regenerated from.
const POINTS: usize = 8;
/// Sequence numbers that are shortly after a state: a few turns of others.
const SHORTLY: u64 = 32;
/// States without messages kept of one session: where a turn began, and where it stands.
const BARE_POINTS: usize = 2;

#[derive(Debug)]
pub(crate) struct StateCache {
    whole: Tier,
    /// States without their messages, of sessions that are not among the whole ones.
    bare: Tier,
    hits: AtomicU64,
    misses: AtomicU64,
    /// How often what was not used was dropped.
    round: Arc<AtomicU64>,
}

/// States of one kind, so many bytes of them.
#[derive(Debug)]
struct Tier {
    sessions: Cache<u64, Session, ByWeight>,
    weighter: ByWeight,
    bytes: u64,
    points: usize,
    round: Arc<AtomicU64>,
}

/// What a cache holds, and how often it was of use.
#[cfg(feature = "sqlite")]
pub(crate) struct CacheStats {
    pub(crate) sessions: u64,
    pub(crate) bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// A session's states, and what they weighed when they were put here: the cache must find the same weight again.
#[derive(Clone, Debug, Default)]
struct Session {
    points: Arc<Mutex<VecDeque<Entry>>>,
    weight: u64,
    /// The round it was last used in.
    used: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    /// Whether a line may be added up from here: not so inside a turn, which may turn out void.
    settled: bool,
    state: PointState,
    weight: u64,
}

/// Weighs a session, but never so much that it would not be kept at all: a conversation that outgrew the cache would be
/// added up anew at every turn.
#[derive(Clone, Debug)]
struct ByWeight {
    most: u64,
}

impl Weighter<u64, Session> for ByWeight {
    fn weight(&self, _: &u64, session: &Session) -> u64 {
        session.weight.clamp(1, self.most)
    }
}

impl Tier {
    fn new(bytes: u64, points: usize, round: Arc<AtomicU64>) -> Self {
        let bytes = bytes.max(64);
        let sessions = usize::try_from(bytes / 4096).unwrap_or(1 << 20).clamp(16, 1 << 20);
        // One shard: several would divide the room, and none could hold a long conversation.
        let options = OptionsBuilder::new().estimated_items_capacity(sessions).weight_capacity(bytes).shards(1).build();
        let weighter = ByWeight { most: (bytes / 4).max(1) };
        let built = options.map(|options| {
            Cache::with_options(options, weighter.clone(), DefaultHashBuilder::default(), DefaultLifecycle::default())
        });
        let sessions = built.unwrap_or_else(|_| Cache::with_weighter(sessions, bytes, weighter.clone()));
        Self { sessions, weighter, bytes, points, round }
    }

    /// What is kept of a session, for whoever uses it now.
    fn session(&self, num: u64) -> Option<Session> {
        let session = self.sessions.get(&num)?;
        session.used.store(self.round.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(session)
    }

    /// Drops the sessions that were last used in an earlier round.
    fn drop_unused(&self, round: u64) {
        self.sessions.retain(|_, session| session.used.load(Ordering::Relaxed) >= round);
    }

    fn get(&self, place: Place) -> Option<PointState> {
        let session = self.session(place.num)?;
        let points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
        points.iter().rev().find(|entry| entry.place == place).map(|entry| entry.state.clone())
    }

    fn put(&self, place: Place, settled: bool, state: PointState) {
        let mut session = self.session(place.num).unwrap_or_else(|| Session {
            used: Arc::new(AtomicU64::new(self.round.load(Ordering::Relaxed))),
            ..Session::default()
        });
        let weight = {
            let mut points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
            points.retain(|entry| entry.place != place);
            if points.len() == self.points {
                points.pop_front();
            }
            points.push_back(Entry { place, settled, weight: state.weight(), state });
            // Neighbouring states share nearly everything, so the heaviest stands for all.
            let heaviest = points.iter().map(|entry| entry.weight).max().unwrap_or(0);
            heaviest + 512 * points.len() as u64
        };
        // In coarse steps: weighing a session anew means putting it in anew, which most turns can do without.
        let weight = weight.next_multiple_of((weight / 8).next_power_of_two());
        if session.weight != weight {
            session.weight = weight;
            self.sessions.insert(place.num, session);
        }
    }

    /// The last settled state on a stretch, and what of the stretch comes after it.
    fn last_settled(&self, stretch: &Interval) -> Option<(PointState, Interval)> {
        let session = self.session(stretch.num)?;
        let points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
        let on_it = points.iter().filter(|entry| {
            let Place { segment, seq, .. } = entry.place;
            entry.settled && segment == stretch.segment && (stretch.from..=stretch.to).contains(&seq)
        });
        let last = on_it.max_by_key(|entry| entry.place.seq)?;
        Some((last.state.clone(), Interval { from: last.place.seq + 1, ..*stretch }))
    }

    /// Whether no other session would have to go for this one to weigh so much.
    fn has_room_for(&self, num: u64, weight: u64) -> bool {
        let now = self.sessions.peek(&num).map_or(0, |session| self.weighter.weight(&num, &session));
        self.sessions.weight().saturating_sub(now) + weight.min(self.weighter.most) <= self.bytes
    }
}

impl StateCache {
    pub(crate) fn new(bytes: u64) -> Self {
        let bare = bytes / 8;
        let round = Arc::<AtomicU64>::default();
        let whole = Tier::new(bytes - bare, POINTS, round.clone());
        let bare = Tier::new(bare, BARE_POINTS, round.clone());
        Self { whole, bare, hits: AtomicU64::new(0), misses: AtomicU64::new(0), round }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            sessions: (self.whole.sessions.len() + self.bare.sessions.len()) as u64,
            bytes: self.whole.sessions.weight() + self.bare.sessions.weight(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }

    /// The state at exactly this place.
    pub(crate) fn get(&self, place: Place) -> Option<PointState> {
        self.counted(self.whole.get(place))
    }

    /// The same without its messages, where only that is at hand.
    pub(crate) fn get_bare(&self, place: Place) -> Option<PointState> {
        self.counted(self.bare.get(place))
    }

    fn counted(&self, found: Option<PointState>) -> Option<PointState> {
        self.hits.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// Counts a state that had to be added up.
    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// The furthest settled state on a line, and what of the line is left after it.
    pub(crate) fn nearest(&self, line: &[Interval]) -> Option<(PointState, Vec<Interval>)> {
        for (i, interval) in line.iter().enumerate().rev() {
            if let Some((state, after)) = self.whole.last_settled(interval) {
                let mut rest = line[i..].to_vec();
                rest[0] = after;
                return Some((state, rest));
            }
        }
        None
    }

    /// A settled state that lies shortly before a place, and what is between them. Nothing if the state at that very place is
    /// here.
    pub(crate) fn shortly_before(&self, place: Place) -> Option<(PointState, Interval)> {
        let Place { num, segment, seq } = place;
        let lately = Interval { num, segment, from: seq.saturating_sub(SHORTLY), to: seq };
        self.whole.last_settled(&lately).filter(|(_, missed)| missed.from <= seq)
    }

    /// Keeps a state that somebody wants to read.
    pub(crate) fn put(&self, place: Place, settled: bool, state: PointState) {
        self.whole.put(place, settled, state);
    }

    /// Keeps a state that was added up only to write after it: whole if no other has to go for it.
    pub(crate) fn put_to_write(&self, place: Place, settled: bool, state: PointState) {
        if self.whole.has_room_for(place.num, state.weight()) {
            self.whole.put(place, settled, state);
        } else {
            self.put_bare(place, settled, state);
        }
    }

    /// Keeps a state without its messages.
    pub(crate) fn put_bare(&self, place: Place, settled: bool, state: PointState) {
        self.bare.put(place, settled, PointState { messages: Messages::default(), ..state });
    }

    pub(crate) fn forget(&self, num: u64) {
        self.whole.sessions.remove(&num);
        self.bare.sessions.remove(&num);
    }

    /// Drops the sessions that were not used since this was called last.
    #[cfg(feature = "sqlite")]
    pub(crate) fn drop_unused(&self) {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        self.whole.drop_unused(round);
        self.bare.drop_unused(round);
    }

    pub(crate) fn clear(&self) {
        self.whole.sessions.clear();
        self.bare.sessions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use crate::message::Message;

    /// A state that weighs so many bytes and a little more.
    fn heavy(bytes: u64) -> PointState {
        let mut state = PointState::empty(SessionId::new("s").unwrap());
        while state.weight() < bytes {
            state.messages.push(Message::user("x".repeat(1024)));
        }
        state
    }

    #[test]
    fn a_conversation_makes_room_for_itself() {
        let cache = StateCache::new(1 << 20);
        // Seven eighths of that are for whole states, and a session counts a quarter of them at most.
        for num in 1..=4 {
            for seq in 1..20 {
                let place = Place { num, segment: 1, seq };
                cache.put_to_write(place, true, heavy(200 << 10));
                assert!(cache.get(place).is_some(), "session {num} was not kept whole at {seq}");
            }
        }
        let place = Place { num: 5, segment: 1, seq: 1 };
        cache.put_to_write(place, true, heavy(200 << 10));
        assert!(cache.get(place).is_none() && cache.get_bare(place).is_some(), "another had to go for it");
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn what_is_not_used_between_two_calls_is_dropped() {
        let cache = StateCache::new(1 << 20);
        let place = |num| Place { num, segment: 1, seq: 1 };
        for num in 0..100 {
            cache.put(place(num), true, heavy(1 << 10));
            cache.put_bare(place(num + 1000), true, heavy(1 << 10));
        }
        cache.drop_unused();
        assert_eq!(cache.stats().sessions, 200, "they were used just now");
        assert!(cache.get(place(7)).is_some() && cache.get_bare(place(1007)).is_some());
        cache.drop_unused();
        assert_eq!(cache.stats().sessions, 2);
        assert!(cache.get(place(7)).is_some() && cache.get_bare(place(1007)).is_some());
        cache.drop_unused();
        cache.drop_unused();
        assert_eq!((cache.stats().sessions, cache.stats().bytes), (0, 0));
    }

    #[test]
    fn a_conversation_heavier_than_the_cache_is_kept_all_the_same() {
        let cache = StateCache::new(1 << 16);
        let state = heavy(400 << 10);
        let place = Place { num: 1, segment: 1, seq: 1 };
        for seq in 1..20 {
            cache.put(Place { seq, ..place }, true, state.clone());
            assert!(cache.get(Place { seq, ..place }).is_some(), "it was dropped at {seq}");
        }
    }
}
