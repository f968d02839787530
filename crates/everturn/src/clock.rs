//! Time and ids as things that are handed in, so that tests are deterministic.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::{ContextV7, Uuid};

use crate::{Error, Result};

/// A moment in UTC, in whole microseconds.
///
/// Times are cut to microseconds when they are made, so that a stored one equals the one that was handed out.
///
/// ```
/// use everturn::Timestamp;
///
/// let t: Timestamp = "2026-11-16T00:03:25.439Z".parse()?;
/// assert_eq!(t.to_string(), "2026-11-16T00:03:25.439Z");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// So many microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The moment so much later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => fmt::Display::fmt(&time, f),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        text.parse::<jiff::Timestamp>()
            .map(|time| Self(time.as_microsecond()))
            .map_err(|_| Error::invalid("a time is written like 2026-11-16T00:03:25.439Z"))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Where time and fresh ids come from.
///
/// `now` is shown to people and orders nothing. `uptime` decides whether a lease is still alive: it counts since the
/// machine started, is the same for every process on it and never jumps.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time on the wall.
    fn now(&self) -> Timestamp;

    /// Time since the machine started.
    fn uptime(&self) -> Duration;

    /// Names this start of the machine; leases of another one are dead.
    fn boot_id(&self) -> &str;

    /// A fresh UUID, version 7 unless the clock is made for tests.
    fn uuid(&self) -> Uuid;
}

/// The real clock.
#[derive(Debug)]
pub struct SystemClock {
    boot_id: String,
    started: std::time::Instant,
}

impl SystemClock {
    /// A clock that reads the machine's.
    #[must_use]
    pub fn new() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_else(|_| "boot".to_owned());
        Self { boot_id, started: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(jiff::Timestamp::now().as_microsecond())
    }

    #[cfg(all(feature = "sqlite", target_os = "linux"))]
    fn uptime(&self) -> Duration {
        // The boot-time clock goes on while the machine sleeps, so a laptop's lid does not keep dead leases alive.
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[cfg(all(feature = "sqlite", not(target_os = "linux")))]
    fn uptime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[cfg(not(feature = "sqlite"))]
    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn uuid(&self) -> Uuid {
        let _ = self.started;
        fresh_uuid()
    }
}

/// A UUID of version 7, greater than all that this process made before.
pub(crate) fn fresh_uuid() -> Uuid {
    static CONTEXT: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    uuid_at(&CONTEXT.lock().unwrap_or_else(PoisonError::into_inner), jiff::Timestamp::now())
}

/// A UUID made at a time. These ids cannot say a time before 1970, and their library panics if asked to: a clock that is not
/// set yet counts as standing at 1970, where the context still tells them apart and orders them.
fn uuid_at(context: &ContextV7, now: jiff::Timestamp) -> Uuid {
    let now = now.max(jiff::Timestamp::UNIX_EPOCH);
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let nanoseconds = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
    Uuid::new_v7(uuid::Timestamp::from_unix(context, seconds, nanoseconds))
}

/// A clock that moves only when told to, and counts its UUIDs up: for tests and for output that must not change.
///
/// ```
/// use everturn::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new("2026-01-01T00:00:00Z".parse()?);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), before.plus(Duration::from_secs(1)));
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualInner>);

#[derive(Debug)]
struct ManualInner {
    wall: AtomicI64,
    uptime: AtomicU64,
    uuids: AtomicU64,
    tick: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at a time.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(ManualInner {
            wall: AtomicI64::new(start.0),
            uptime: AtomicU64::new(1_000_000_000),
            uuids: AtomicU64::new(1),
            tick: AtomicU64::new(0),
        }))
    }

    /// Lets time pass: on the wall and since the machine's start.
    pub fn advance(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.0.wall.fetch_add(i64::try_from(micros).unwrap_or(i64::MAX), Ordering::SeqCst);
        self.0.uptime.fetch_add(micros, Ordering::SeqCst);
    }

    /// Moves the clock on the wall only, as an administrator or a time server would.
    pub fn set_wall(&self, to: Timestamp) {
        self.0.wall.store(to.0, Ordering::SeqCst);
    }

    /// From now on each reading of the wall clock moves it forward by so much.
    pub fn tick_by(&self, step: Duration) {
        self.0.tick.store(u64::try_from(step.as_micros()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let tick = self.0.tick.load(Ordering::SeqCst);
        Timestamp(self.0.wall.fetch_add(i64::try_from(tick).unwrap_or(0), Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        Duration::from_micros(self.0.uptime.load(Ordering::SeqCst))
    }

    fn boot_id(&self) -> &str {
        "manual"
    }

    fn uuid(&self) -> Uuid {
        let count = self.0.uuids.fetch_add(1, Ordering::SeqCst);
        Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0000 | u128::from(count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_ordered_and_told_apart_whatever_the_clock_says() {
        let context = ContextV7::new();
        let times =
            ["1969-12-31T23:59:59.999Z", "1900-01-01T00:00:00.5Z", "2026-01-01T00:00:00Z", "1960-01-01T00:00:00Z"];
        let mut made = Vec::new();
        for time in times {
            let time = time.parse().unwrap();
            made.extend((0..1000).map(|_| uuid_at(&context, time)));
        }
        assert!(made.is_sorted());
        assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), made.len());
        assert!(made.iter().all(|id| id.get_version_num() == 7));
    }
}
