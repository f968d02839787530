//! Where the turns that were begun here stand.
//!
//! Whoever begins a turn reads the state it stands at next, and the one it started from. Neither changes while it runs, and
//! both are mostly at hand: knowing their places spares asking a reader where they are. Only for a moment: another process may
//! delete the session, and make one anew under its name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::tables::Place;
use crate::session::SessionKey;
use crate::{Point, TurnId};

/// How long after its begin a turn's points are known by their session's name.
const MOMENT: Duration = Duration::from_secs(1);

/// Turns that are remembered; the rest are asked for.
const MAX_TURNS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Standing(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    turns: HashMap<TurnId, Stand>,
    /// The turn that was last begun in a session.
    last: HashMap<SessionKey, TurnId>,
}

#[derive(Debug)]
struct Stand {
    session: SessionKey,
    from: Place,
    at: Place,
    since: Instant,
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn len(&self) -> usize {
        let turns = self.lock();
        turns.turns.len() + turns.last.len()
    }

    /// A turn has begun, or begun anew.
    pub(crate) fn begun(&self, turn: TurnId, session: &SessionKey, from: Place, at: Place) {
        let mut turns = self.lock();
        if turns.turns.len() >= MAX_TURNS {
            *turns = Turns::default();
        }
        turns.turns.insert(turn, Stand { session: session.clone(), from, at, since: Instant::now() });
        turns.last.insert(session.clone(), turn);
    }

    /// It stands elsewhere now.
    pub(crate) fn moved(&self, turn: TurnId, at: Place) {
        if let Some(stand) = self.lock().turns.get_mut(&turn) {
            stand.at = at;
        }
    }

    pub(crate) fn ended(&self, turn: TurnId) {
        let mut turns = self.lock();
        if let Some(stand) = turns.turns.remove(&turn)
            && turns.last.get(&stand.session) == Some(&turn)
        {
            turns.last.remove(&stand.session);
        }
    }

    /// A session was deleted: its turns stand nowhere.
    pub(crate) fn deleted(&self, num: u64) {
        let turns = &mut *self.lock();
        turns.turns.retain(|turn, _| turn.session != num);
        turns.last.retain(|_, turn| turn.session != num);
    }

    /// A session was made under a name: what is known by that name is of another one, whoever deleted that.
    pub(crate) fn made(&self, session: &SessionKey) {
        self.lock().last.remove(session);
    }

    /// Where a turn stands. Another handle may have written to it since.
    pub(crate) fn of(&self, turn: TurnId) -> Option<Place> {
        self.lock().turns.get(&turn).map(|stand| stand.at)
    }

    /// The place of a point, if a turn that has just begun here stands at it or started from it.
    pub(crate) fn place(&self, session: &SessionKey, point: Point) -> Option<Place> {
        let turns = self.lock();
        let stand = turns.last.get(session).and_then(|turn| turns.turns.get(turn))?;
        if stand.since.elapsed() > MOMENT {
            return None;
        }
        [stand.at, stand.from].into_iter().find(|place| place.seq == point.seq())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_running_turns_are_known_and_forgotten_with_them() {
        let standing = Standing::default();
        let session = SessionKey::of("a", "u", "s").unwrap();
        let place = |seq| Place { num: 1, segment: 1, seq };
        let turn = |begin| TurnId { session: 1, begin };
        standing.begun(turn(3), &session, place(2), place(3));
        assert_eq!(standing.place(&session, Point::new(2)), Some(place(2)));
        standing.moved(turn(3), place(4));
        assert_eq!((standing.of(turn(3)), standing.place(&session, Point::new(3))), (Some(place(4)), None));
        // A second turn beside the first; the first one's end does not take it along.
        standing.begun(turn(5), &session, place(2), place(5));
        standing.ended(turn(3));
        assert_eq!((standing.of(turn(3)), standing.place(&session, Point::new(5))), (None, Some(place(5))));
        standing.ended(turn(5));
        assert_eq!(standing.place(&session, Point::new(5)), None);
    }

    #[test]
    fn points_of_a_session_that_is_gone_are_not_known() {
        let standing = Standing::default();
        let session = SessionKey::of("a", "u", "s").unwrap();
        let place = |num| Place { num, segment: 1, seq: 2 };
        let turn = |session| TurnId { session, begin: 2 };
        standing.begun(turn(1), &session, place(1), place(1));
        standing.made(&session);
        assert_eq!(standing.place(&session, Point::new(2)), None);
        // The old one's end does not take the new one's turn along, nor does its deletion.
        standing.begun(turn(2), &session, place(2), place(2));
        standing.deleted(1);
        assert_eq!((standing.of(turn(1)), standing.place(&session, Point::new(2))), (None, Some(place(2))));
        standing.deleted(2);
        assert_eq!((standing.of(turn(2)), standing.place(&session, Point::new(2))), (None, None));
    }
}
