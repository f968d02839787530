//! JSON kept as the text it came in.
//!
//! A number's spelling and members nobody here knows are part of what a user said, so bodies never pass through a type
//! that would change them. [`Json`] is that text, checked once; the tree inside is built only to compare, hash or patch.

mod canonical;
mod members;
mod node;
mod scan;
pub(crate) mod steps;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub(crate) use canonical::canonical_bytes;
pub(crate) use members::Lookup;
pub(crate) use node::{MAX_DEPTH, MAX_SENT_DEPTH, MAX_STORED_DEPTH, Node, quote, quoted_len, shown};
pub(crate) use scan::{Scanner, is_within};

use crate::state::Held;
use crate::{Error, Result};

/// A checked piece of JSON text, cheap to clone.
///
/// ```
/// use everturn::Json;
///
/// let json = Json::parse(r#"{"n": 9007199254740993, "price": 1.10}"#)?;
/// assert_eq!(json.as_str(), r#"{"n": 9007199254740993, "price": 1.10}"#);
/// // Equality is by meaning: white space and the order of members do not count, the spelling of numbers does.
/// assert_eq!(json, Json::parse(r#"{"price":1.10,"n":9007199254740993}"#)?);
/// assert_ne!(json, Json::parse(r#"{"price":1.1,"n":9007199254740993}"#)?);
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone)]
pub struct Json {
    /// Possibly that of many values: an allocation for each message of a long conversation would be most of reading it.
    text: Arc<str>,
    start: usize,
    end: usize,
}

impl Json {
    /// Checks a text and keeps it.
    ///
    /// Refused: anything RFC 8259 refuses, members named twice, unpaired surrogates, and nesting deeper than 100 levels. What
    /// is stored and exported has 28 levels more: room for what is put around it.
    pub fn parse(text: impl AsRef<str>) -> Result<Self> {
        Self::parse_within(text.as_ref(), MAX_SENT_DEPTH)
    }

    /// Checks a text that may hold what was sent with something around it.
    pub(crate) fn parse_wrapped(text: &str) -> Result<Self> {
        Self::parse_within(text, MAX_DEPTH)
    }

    fn parse_within(text: &str, deepest: usize) -> Result<Self> {
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        Node::parse_within(text, deepest)?;
        Ok(Self::trusted(text))
    }

    /// Refuses what is nested too deep to be stored and exported.
    pub(crate) fn check_stored(what: &str, text: &str) -> Result<()> {
        match is_within(text, MAX_STORED_DEPTH) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} is nested too deep: what is kept may be nested {MAX_STORED_DEPTH} levels, and what is sent {MAX_SENT_DEPTH}"
            ))),
        }
    }

    /// The JSON of any serialisable value.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::invalid("the value cannot be written as JSON").with_source(error))?;
        Self::parse(text)
    }

    /// The same for a value of ours, whose JSON is known to be sound: it is not checked again.
    pub(crate) fn written<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        serde_json::to_string(value)
            .map(Self::trusted)
            .map_err(|error| Error::invalid("the value cannot be written as JSON").with_source(error))
    }

    /// Reads it as a typed value.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.as_str())
            .map_err(|error| Error::invalid("the JSON does not have the expected shape").with_source(error))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text[self.start..self.end]
    }

    /// `null`, which is a value, not its absence.
    #[must_use]
    pub fn null() -> Self {
        Self::trusted("null")
    }

    /// `{}`.
    #[must_use]
    pub fn empty_object() -> Self {
        Self::trusted("{}")
    }

    /// Takes text that is known to be checked: it was read from a store, or printed by us.
    pub(crate) fn trusted(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { start: 0, end: text.len(), text }
    }

    /// Takes a piece of a text that is known to be checked, and shares the text.
    pub(crate) fn piece(text: &Arc<str>, piece: Range<usize>) -> Self {
        debug_assert!(text.get(piece.clone()).is_some(), "the piece is not in the text");
        Self { text: text.clone(), start: piece.start, end: piece.end }
    }

    /// The text in memory.
    pub(crate) fn held(&self) -> Held {
        Held::of(&self.text, self.text.len())
    }

    /// Visits the names of an object's members as they are meant; other values have none.
    pub(crate) fn each_name(&self, mut visit: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let mut scanner = Scanner::new(self.as_str());
        if scanner.peek()? != b'{' {
            return Ok(());
        }
        scanner.members(|scanner, name| {
            visit(&canonical::unescaped(name)?)?;
            scanner.skip()
        })
    }

    pub(crate) fn node(&self) -> Result<Node> {
        Node::parse(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
            || match (canonical_bytes(self.as_str()), canonical_bytes(other.as_str())) {
                (Ok(a), Ok(b)) => a == b,
                _ => false,
            }
    }
}

impl Eq for Json {}

/// `null`: what custom state without a type of its own begins as.
impl Default for Json {
    fn default() -> Self {
        Self::null()
    }
}

/// Any JSON.
impl schemars::JsonSchema for Json {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Json".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        true.into()
    }
}

impl std::str::FromStr for Json {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Borrowing the text as a raw value scans it once more; the alternative is a copy.
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse_wrapped(raw.get()).map_err(serde::de::Error::custom)
    }
}

/// Reads an optional member so that a `null` that was written stays one: serde's `Option` would take it for absent.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}
