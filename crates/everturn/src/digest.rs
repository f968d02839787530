//! Digests: what makes two states the same state.
//!
//! `docs/format.md` defines them for strangers, with test vectors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::json::{Json, canonical_bytes};
use crate::{Error, Result};

/// A SHA-256 value, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// What stands for an absent thing: no custom state, no artifacts, no view, no messages yet.
    pub const ABSENT: Self = Self([0; 32]);

    /// Wraps raw bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest of a JSON value: SHA-256 of its canonical form.
    ///
    /// ```
    /// use everturn::{Digest, Json};
    ///
    /// let a = Digest::of_json(&Json::parse(r#"{"b": 1, "a": 2}"#)?)?;
    /// let b = Digest::of_json(&Json::parse(r#"{"a":2,"b":1}"#)?)?;
    /// assert_eq!(a, b);
    /// # Ok::<(), everturn::Error>(())
    /// ```
    pub fn of_json(json: &Json) -> Result<Self> {
        Self::of_json_text(json.as_str())
    }

    pub(crate) fn of_json_text(text: &str) -> Result<Self> {
        Ok(Self::of_parts(&[&canonical_bytes(text)?]))
    }

    /// The chain value after one more message: SHA-256 of the chain value before it and the message's digest.
    #[must_use]
    pub fn chain(self, next: Digest) -> Self {
        Self::of_parts(&[&self.0, &next.0])
    }

    pub(crate) fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// The digests of a state's four parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateDigests {
    /// The chain over all messages.
    pub(crate) chain: Digest,
    pub(crate) custom: Digest,
    pub(crate) artifacts: Digest,
    pub(crate) view: Digest,
}

impl StateDigests {
    pub(crate) const EMPTY: Self =
        Self { chain: Digest::ABSENT, custom: Digest::ABSENT, artifacts: Digest::ABSENT, view: Digest::ABSENT };

    /// The digest of the whole state.
    pub(crate) fn state(&self) -> Digest {
        Digest::of_parts(&[b"everturn state 1\n", &self.chain.0, &self.custom.0, &self.artifacts.0, &self.view.0])
    }
}

/// The digest of a list of artifacts: absent when empty, else the chain over their digests.
pub(crate) fn of_artifacts<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> Digest {
    digests.into_iter().fold(Digest::ABSENT, |chain, next| chain.chain(*next))
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("a digest is written as 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
