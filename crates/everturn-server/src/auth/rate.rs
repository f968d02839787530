//! How often somebody may ask.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most callers that are told apart.
const MAX_CALLERS: usize = 10_000;

/// How often the forgotten are looked for when there is no room.
const SWEEP: Duration = Duration::from_secs(1);

/// So many in a time, and twice as many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    count: u32,
    per: Duration,
}

impl Rate {
    /// So many a second.
    pub(crate) const fn per_second(count: u32) -> Self {
        Self { count, per: Duration::from_secs(1) }
    }

    /// The time each request uses up.
    fn each(self) -> Duration {
        self.per / self.count
    }

    /// How far ahead of time somebody may be who asks at once.
    fn ahead(self) -> Duration {
        self.each() * self.count.saturating_mul(2).saturating_sub(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.per.as_secs() == 60 { "m" } else { "s" };
        write!(f, "{}/{unit}", self.count)
    }
}

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a rate is a number a second or a minute: 50/s, 600/m".to_owned();
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let per = match unit {
            "s" => 1,
            "m" => 60,
            _ => return Err(wrong()),
        };
        // Above a million each request would take less time than a clock can tell.
        let count = count.parse().ok().filter(|count| (1..=1_000_000).contains(count)).ok_or_else(wrong)?;
        Ok(Self { count, per: Duration::from_secs(per) })
    }
}

/// Lets each caller ask at a rate.
///
/// A caller is one moment: when all they asked for is used up (the generic cell rate algorithm, a token bucket without
/// the bucket). Who is not ahead of time need not be remembered, so memory is bounded by who asked just now. When even
/// they are too many, newcomers share one allowance instead of taking somebody's place.
#[derive(Debug)]
pub(crate) struct RateLimit<K> {
    rate: Rate,
    capacity: usize,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    used_up: HashMap<K, Duration>,
    newcomers: Duration,
    swept: Duration,
}

impl<K: Eq + Hash> RateLimit<K> {
    pub(crate) fn new(rate: Rate) -> Self {
        Self::with_capacity(rate, MAX_CALLERS)
    }

    fn with_capacity(rate: Rate, capacity: usize) -> Self {
        let state = State { used_up: HashMap::new(), newcomers: Duration::ZERO, swept: Duration::ZERO };
        Self { rate, capacity, state: Mutex::new(state) }
    }

    /// Counts a request. One too many is not counted, and told how long to wait. `uptime` is the moment on a clock that
    /// never jumps.
    pub(crate) fn take(&self, caller: K, uptime: Duration) -> Result<(), Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if state.used_up.len() >= self.capacity && uptime.saturating_sub(state.swept) >= SWEEP {
            state.swept = uptime;
            state.used_up.retain(|_, used_up| *used_up > uptime);
        }
        let used_up = if state.used_up.len() < self.capacity || state.used_up.contains_key(&caller) {
            state.used_up.entry(caller).or_default()
        } else {
            &mut state.newcomers
        };
        let from = (*used_up).max(uptime);
        match (from - uptime).checked_sub(self.rate.ahead()) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                *used_up = from + self.rate.each();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(limit: &RateLimit<u32>, caller: u32, at: Duration) -> usize {
        (0..1000).take_while(|_| limit.take(caller, at).is_ok()).count()
    }

    #[test]
    fn twice_the_rate_at_once_and_the_rate_after_that() {
        let limit = RateLimit::new(Rate::per_second(5));
        let start = Duration::from_secs(100);
        assert_eq!(taken(&limit, 1, start), 10);
        let wait = limit.take(1, start).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(200), "{wait:?}");
        assert_eq!(limit.take(1, start + wait), Ok(()));
        assert_eq!(taken(&limit, 1, start + Duration::from_secs(1)), 4, "one of the five is taken");
        assert_eq!(taken(&limit, 1, start + Duration::from_secs(60)), 10, "and no more, however long one waits");
    }

    #[test]
    fn callers_do_not_use_up_each_others() {
        let limit = RateLimit::new(Rate::per_second(5));
        assert_eq!(taken(&limit, 1, Duration::ZERO), 10);
        assert_eq!(taken(&limit, 2, Duration::ZERO), 10);
    }

    #[test]
    fn memory_is_bounded_and_newcomers_are_limited_too() {
        let limit = RateLimit::with_capacity(Rate::per_second(5), 100);
        let now = Duration::from_secs(10);
        let passed = (0..10_000).filter(|caller| limit.take(*caller, now).is_ok()).count();
        assert_eq!(passed, 110, "each of the first hundred, and ten of all the others");
        assert_eq!(limit.state.lock().unwrap().used_up.len(), 100);
        assert_eq!(limit.take(7, now), Ok(()), "who was there first still has their own");
        assert_eq!(taken(&limit, 20_000, now + Duration::from_secs(5)), 10, "there is room again");
    }

    #[test]
    fn rates_are_read_as_they_are_shown() {
        for text in ["50/s", "1/m", "1000000/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for bad in ["", "50", "0/s", "-1/s", "5/h", "1.5/s", "1000001/s", "/s", "5/s "] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }
}
