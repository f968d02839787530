//! What somebody may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One right. Each includes those before it: who may write sees what comes of it anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Look at sessions and snapshots.
    Read,
    /// Run turns, abort them, change sessions.
    Write,
    /// What concerns the server or more than one user.
    Admin,
}

impl Right {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

/// The rights of a key or a token: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    highest: Right,
}

impl Rights {
    /// Everything up to a right.
    pub(crate) const fn up_to(highest: Right) -> Self {
        Self { highest }
    }

    /// Whether a right is among them.
    pub(crate) fn allow(self, right: Right) -> bool {
        right <= self.highest
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        Right::ALL.into_iter().filter(move |right| self.allow(*right)).map(Right::name)
    }

    fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut highest = None;
        for name in names {
            // A word that is not known may have been meant as a restriction, so it is never passed over.
            let right = Right::ALL.into_iter().find(|right| right.name() == name);
            highest = highest.max(Some(right.ok_or("rights are read, write and admin, with commas between them")?));
        }
        highest.map(Self::up_to).ok_or_else(|| "there must be at least one right: read, write or admin".to_owned())
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Rights {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_names(text.split(',').map(str::trim))
    }
}

impl Serialize for Rights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for Rights {
    /// A list of names, or one text with commas.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            List(Vec<String>),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::List(names) => Self::from_names(names.iter().map(String::as_str)),
            Written::Text(text) => text.parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_includes_those_below_it() {
        let write: Rights = "write".parse().unwrap();
        assert!(write.allow(Right::Read) && write.allow(Right::Write) && !write.allow(Right::Admin));
        assert_eq!(write.to_string(), "read,write");
        assert_eq!(Rights::up_to(Right::Admin).to_string(), "read,write,admin");
    }

    #[test]
    fn both_spellings_are_read_and_unknown_words_are_not_passed_over() {
        for text in [r#"["write","read"]"#, r#""read, write""#, r#"["write"]"#] {
            assert_eq!(serde_json::from_str::<Rights>(text).unwrap(), Rights::up_to(Right::Write), "{text}");
        }
        for text in ["[]", r#""""#, r#"["read","own"]"#, r#""READ""#, "null", "7", r#"["read",""]"#] {
            assert!(serde_json::from_str::<Rights>(text).is_err(), "{text}");
        }
    }
}
