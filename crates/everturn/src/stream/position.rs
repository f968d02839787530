//! Places in a turn's stream.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// A place in a turn's stream: the attempt, and how manieth chunk of it, counted from 0.
///
/// A reader keeps the position of the last chunk it saw and comes back with it. Written as text it is `attempt.n`.
///
/// ```
/// use everturn::Position;
///
/// let seen: Position = "1.41".parse()?;
/// assert_eq!(seen, Position::new(1, 41));
/// assert!(seen < Position::new(2, 0), "what another attempt says comes later");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The attempt at the turn, counted from 1.
    pub attempt: u64,
    /// How manieth chunk of the attempt it is, counted from 0.
    pub n: u64,
}

impl Position {
    /// A place in an attempt's stream.
    #[must_use]
    pub const fn new(attempt: u64, n: u64) -> Self {
        Self { attempt, n }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.n)
    }
}

impl FromStr for Position {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        // Numbers may be spelt with a sign elsewhere; here one place has one spelling but for leading zeros.
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let parse = || {
            let (attempt, n) = text.split_once('.')?;
            Some(Self { attempt: number(attempt)?, n: number(n)? })
        };
        parse().ok_or_else(|| Error::invalid("a position in a stream looks like 1.42: attempt and chunk"))
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn positions_round_trip_and_nothing_else_is_one() {
        for position in [Position::new(1, 0), Position::new(12, 345), Position::new(u64::MAX, u64::MAX)] {
            assert_eq!(position.to_string().parse::<Position>().unwrap(), position);
            let text = serde_json::to_string(&position).unwrap();
            assert_eq!(text, format!("\"{position}\""));
            assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        }
        for text in ["", "1", "1.", ".1", "1.2.3", "-1.2", "1.+2", "1. 2", "18446744073709551616.0"] {
            assert_eq!(text.parse::<Position>().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
    }

    #[test]
    fn a_later_attempt_comes_later() {
        assert!(Position::new(1, 9) < Position::new(2, 0) && Position::new(2, 0) < Position::new(2, 1));
    }
}
