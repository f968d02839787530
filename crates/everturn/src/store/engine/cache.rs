//! Decoded states of sessions in use.
//!
//! The disk format does not make a turn flat in history; this does: the state a turn starts from is usually the one the
//! last turn left here, and a state written by another process is caught up with, not added up anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::line::Interval;
use super::tables::Place;
use crate::state::PointState;

/// States kept of one session: enough for a turn, its steps, and the point before it that may be regenerated from.
const POINTS: usize = 8;

#[derive(Debug)]
pub(crate) struct StateCache(Cache<u64, Session, ByWeight>);

/// A session's states, and what they weighed when they were put here: the cache must find the same weight again.
#[derive(Clone, Debug, Default)]
struct Session {
    points: Arc<Mutex<VecDeque<Entry>>>,
    weight: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    /// Whether a line may be added up from here: not so inside a turn, which may turn out void.
    settled: bool,
    state: PointState,
}

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<u64, Session> for ByWeight {
    fn weight(&self, _: &u64, session: &Session) -> u64 {
        session.weight.max(1)
    }
}

impl StateCache {
    pub(crate) fn new(bytes: u64) -> Self {
        let sessions = usize::try_from(bytes / 4096).unwrap_or(1 << 20).clamp(16, 1 << 20);
        Self(Cache::with_weighter(sessions, bytes, ByWeight))
    }

    /// The state at exactly this place.
    pub(crate) fn get(&self, place: Place) -> Option<PointState> {
        let session = self.0.get(&place.num)?;
        let points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
        points.iter().rev().find(|entry| entry.place == place).map(|entry| entry.state.clone())
    }

    /// The furthest settled state on a line, and what of the line is left after it.
    pub(crate) fn nearest(&self, line: &[Interval]) -> Option<(PointState, Vec<Interval>)> {
        for (i, interval) in line.iter().enumerate().rev() {
            let Some(session) = self.0.get(&interval.num) else { continue };
            let points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
            let on_line = points.iter().filter(|entry| {
                let Place { segment, seq, .. } = entry.place;
                entry.settled && segment == interval.segment && seq >= interval.from && seq <= interval.to
            });
            if let Some(entry) = on_line.max_by_key(|entry| entry.place.seq) {
                let mut rest = line[i..].to_vec();
                rest[0].from = entry.place.seq + 1;
                return Some((entry.state.clone(), rest));
            }
        }
        None
    }

    pub(crate) fn put(&self, place: Place, settled: bool, state: PointState) {
        let mut session = self.0.get(&place.num).unwrap_or_default();
        session.weight = {
            let mut points = session.points.lock().unwrap_or_else(PoisonError::into_inner);
            points.retain(|entry| entry.place != place);
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back(Entry { place, settled, state });
            // Neighbouring states share nearly everything, so the heaviest stands for all.
            let heaviest = points.iter().map(|entry| entry.state.weight()).max().unwrap_or(0);
            heaviest + 512 * points.len() as u64
        };
        self.0.insert(place.num, session);
    }

    pub(crate) fn forget(&self, num: u64) {
        self.0.remove(&num);
    }

    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}
