//! Values as they are written: sizes, times and counts.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `16MiB`, `64KiB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// The same, or `0` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeOrNone(pub(crate) u64);

impl FromStr for SizeOrNone {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" { Ok(Self(0)) } else { text.parse::<ByteSize>().map(|size| Self(size.0)) }
    }
}

impl fmt::Display for SizeOrNone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { ByteSize(self.0).fmt(f) }
    }
}

const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

impl FromStr for ByteSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (unit, factor) = SIZES.into_iter().find(|(unit, _)| text.ends_with(unit))?;
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(factor).filter(|bytes| (1..=1 << 40).contains(bytes))
        };
        read().map(Self).ok_or_else(|| "a size is a number of bytes, with KiB, MiB or GiB: 16MiB, 4096".to_owned())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = SIZES.into_iter().find(|(_, factor)| self.0.is_multiple_of(*factor)).unwrap_or(("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// A stretch of time: `10s`, `250ms`, `5m`; a number alone is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

/// Longer than anything a server should wait for, and short enough for every clock.
const LONGEST: u64 = 7 * 24 * 3600 * 1000;

const TIMES: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("", 1000)];

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (unit, factor) = TIMES.into_iter().find(|(unit, _)| text.ends_with(unit))?;
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(factor).filter(|millis| *millis <= LONGEST)
        };
        let wrong = || "a time is a number with ms, s, m or h, up to 168h: 250ms, 10s, 5m".to_owned();
        read().map(|millis| Self(Duration::from_millis(millis))).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match millis {
            0 => f.write_str("0s"),
            _ if millis.is_multiple_of(3_600_000) => write!(f, "{}h", millis / 3_600_000),
            _ if millis.is_multiple_of(60_000) => write!(f, "{}m", millis / 60_000),
            _ if millis.is_multiple_of(1000) => write!(f, "{}s", millis / 1000),
            _ => write!(f, "{millis}ms"),
        }
    }
}

/// How many of something there may be: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(NonZeroU32);

impl Count {
    pub(crate) fn get(self) -> usize {
        self.0.get() as usize
    }
}

impl FromStr for Count {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<NonZeroU32>().ok().filter(|number| number.get() <= 1_000_000);
        number.map(Self).ok_or_else(|| "a number from 1 to 1000000 is needed".to_owned())
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("log lines are written as text or json".to_owned()),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_as_they_are_shown() {
        for text in ["16MiB", "64KiB", "2GiB", "4097"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["250ms", "10s", "5m", "2h", "0s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["4MiB", "0"] {
            assert_eq!(text.parse::<SizeOrNone>().unwrap().to_string(), text);
        }
        assert_eq!("10".parse(), Ok(Span(Duration::from_secs(10))));
        assert_eq!("1024".parse(), Ok(ByteSize(1024)));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["", "MiB", "0", "-1", "1.5MiB", "16MB", "99999999999999999999", "9999999GiB", "é"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        for bad in ["", "s", "-1s", "1.5s", "10d", "169h", "99999999999999999999s", "é"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        for bad in ["", "0", "-1", "1000001", "x"] {
            assert!(bad.parse::<Count>().is_err(), "{bad}");
        }
    }
}
