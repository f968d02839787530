//! Validated identifiers, one newtype each.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::{Error, Result};

/// The longest a textual id may be, in bytes.
pub const MAX_ID_BYTES: usize = 256;

fn check(what: &str, text: &str) -> Result<()> {
    if text.trim().is_empty() {
        return Err(Error::invalid(format!("{what} is blank: give 1 to {MAX_ID_BYTES} bytes of text")));
    }
    if text.len() > MAX_ID_BYTES {
        return Err(Error::invalid(format!(
            "{what} has {} bytes: {MAX_ID_BYTES} is the most an id may have",
            text.len()
        )));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "{what} contains the control character U+{:04X}: remove it",
            u32::from(bad)
        )));
    }
    Ok(())
}

macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// 1 to 256 bytes, not blank, no control characters. Anything else is allowed: `../x` is an ordinary id, and
        /// stores encode what they must.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and wraps a text.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                let text = text.as_ref();
                check($what, text)?;
                Ok(Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

text_id! {
    /// The application a session belongs to; by default the agent's name.
    AppName, "the app name";
    /// The user a session belongs to.
    UserId, "the user id";
    /// The session's id, unique for one (app, user).
    SessionId, "the session id";
    /// The name of an agent.
    AgentName, "the agent name";
    /// The name of a branch.
    BranchName, "the branch name";
    /// One run of an agent: one or many turns on one connection.
    InvocationId, "the invocation id";
    /// The id of an event.
    EventId, "the event id";
    /// A caller's key that makes a turn idempotent for the life of its session.
    TurnKey, "the turn key";
}

impl BranchName {
    /// The branch every session has.
    #[must_use]
    pub fn main() -> Self {
        Self("main".into())
    }

    /// Whether this is the branch every session has.
    #[must_use]
    pub fn is_main(&self) -> bool {
        &*self.0 == "main"
    }
}

impl Default for BranchName {
    fn default() -> Self {
        Self::main()
    }
}

impl UserId {
    /// The user of programs that know only one: `user`.
    #[must_use]
    pub fn default_user() -> Self {
        Self("user".into())
    }
}

/// The id of a snapshot: a UUID (version 7 when Everturn made it), known before the turn ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(Uuid);

impl SnapshotId {
    /// Wraps a UUID.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The id that no snapshot has.
    #[must_use]
    pub const fn nil() -> Self {
        Self(Uuid::nil())
    }

    /// The UUID.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for SnapshotId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Uuid::try_parse(text)
            .map(Self)
            .map_err(|_| Error::invalid("a snapshot id is a UUID like 01890a5d-ac96-774b-bcce-b302099a8057"))
    }
}

impl Serialize for SnapshotId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SnapshotId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A place on a line: the sequence number of the record it stands after.
///
/// Numbers are given by the store, per session, and are the order of everything in it. A fork goes on counting from
/// the point it was made at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(u64);

impl Point {
    /// The point after the record with this sequence number.
    #[must_use]
    pub const fn new(seq: u64) -> Self {
        Self(seq)
    }

    /// The sequence number of the record the point stands after.
    #[must_use]
    pub const fn seq(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A turn, unique within a store: the session's internal number and the sequence number of the turn's begin.
///
/// Internal numbers are never reused, so a turn of a deleted session is never mistaken for one of a session created
/// later under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnId {
    pub(crate) session: u64,
    pub(crate) begin: u64,
}

impl TurnId {
    /// The turn that began at a point of the session with an internal number. For those who write stores.
    #[must_use]
    pub const fn new(session: u64, begin: Point) -> Self {
        Self { session, begin: begin.0 }
    }

    /// The session's internal number.
    #[must_use]
    pub const fn session(self) -> u64 {
        self.session
    }

    /// Where the turn began: the sequence number of its begin record.
    #[must_use]
    pub const fn begin(self) -> Point {
        Point(self.begin)
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.begin)
    }
}

impl FromStr for TurnId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (session, begin) = text.split_once('.')?;
            Some(Self { session: session.parse().ok()?, begin: begin.parse().ok()? })
        };
        parse().ok_or_else(|| Error::invalid("a turn id looks like 12.345"))
    }
}

impl Serialize for TurnId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TurnId {
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
    fn path_like_ids_are_ordinary() {
        for id in ["../x", "/etc/passwd", "a/b", "..", "C:\\x", "naïve 🙂", &"x".repeat(256)] {
            assert_eq!(SessionId::new(id).unwrap().as_str(), id);
        }
    }

    #[test]
    fn blank_overlong_and_control_ids_are_refused() {
        for id in ["", " ", "\t", &"x".repeat(257), "a\0b", "a\nb", "a\u{7f}", "a\u{85}"] {
            assert_eq!(SessionId::new(id).unwrap_err().kind(), ErrorKind::Invalid, "{id:?}");
        }
    }

    #[test]
    fn turn_ids_round_trip() {
        let id = TurnId { session: 12, begin: 345 };
        assert_eq!(id.to_string().parse::<TurnId>().unwrap(), id);
        assert!("12".parse::<TurnId>().is_err());
    }
}
