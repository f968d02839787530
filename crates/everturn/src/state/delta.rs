//! Scoped state: keys with prefixes, and changes to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::json::{Json, Lookup, Node};
use crate::{Error, Result};

/// Whom a key of state belongs to, told by its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// `app:`, shared by all sessions of an app.
    App,
    /// `user:`, shared by a user's sessions within an app.
    User,
    /// No prefix: this session. These keys are the top level of its custom state.
    Session,
    /// `temp:`, this invocation only; never stored.
    Temp,
}

impl Scope {
    /// The prefix of its keys.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::App => "app:",
            Self::User => "user:",
            Self::Session => "",
            Self::Temp => "temp:",
        }
    }
}

/// Splits a key into its scope and the key without its prefix.
pub(crate) fn split_key(key: &str) -> (Scope, &str) {
    [Scope::App, Scope::User, Scope::Temp]
        .into_iter()
        .find_map(|scope| key.strip_prefix(scope.prefix()).map(|rest| (scope, rest)))
        .unwrap_or((Scope::Session, key))
}

/// About how many bytes keys have, and their values.
pub(crate) fn keys_weight(set: &BTreeMap<String, Json>) -> usize {
    set.iter().map(|(key, value)| key.len() + value.as_str().len()).sum()
}

/// Prefixed keys inside custom state would be shadowed by the scopes they name.
pub(crate) fn refuse_prefixed(custom: &Json) -> Result<()> {
    custom.each_name(|key| match split_key(key).0 {
        Scope::Session => Ok(()),
        _ => Err(Error::invalid(format!(
            "custom state has the key {key:?}: keys with the prefixes app:, user: and temp: are set through state deltas"
        ))),
    })
}

/// A change of keys: some set, some removed. `null` is a value like any other.
///
/// ```
/// use everturn::{Json, StateDelta};
///
/// let delta = StateDelta::new().set("user:tone", Json::parse("\"dry\"")?).set("step", Json::null()).remove("draft");
/// assert_eq!(delta.set.len(), 2);
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDelta {
    /// Keys with their new values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, Json>,
    /// Keys that go away.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove: BTreeSet<String>,
}

impl StateDelta {
    /// A change of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: Json) -> Self {
        let key = key.into();
        self.remove.remove(&key);
        self.set.insert(key, value);
        self
    }

    /// Removes a key.
    #[must_use]
    pub fn remove(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        self.set.remove(&key);
        self.remove.insert(key);
        self
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// The part of one scope, without prefixes.
    pub(crate) fn of_scope(&self, scope: Scope) -> Self {
        let pick = |key: &str| {
            let (of, rest) = split_key(key);
            (of == scope).then(|| rest.to_owned())
        };
        Self {
            set: self.set.iter().filter_map(|(key, value)| Some((pick(key)?, value.clone()))).collect(),
            remove: self.remove.iter().filter_map(|key| pick(key)).collect(),
        }
    }

    /// The keys by which one custom state differs from another; nothing where either has no keys.
    pub(crate) fn between(was: Option<&Json>, is: Option<&Json>) -> Result<Self> {
        let members = |json: Option<&Json>| match json.map(Json::node).transpose() {
            Ok(None) => Ok(Some(Vec::new())),
            Ok(Some(Node::Object(members))) => Ok(Some(members)),
            Ok(Some(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let (Some(was), Some(is)) = (members(was)?, members(is)?) else { return Ok(Self::new()) };
        let (mut in_was, mut in_is) = (Lookup::new(&was), Lookup::new(&is));
        let mut delta = Self::new();
        for (at, (key, node)) in is.iter().enumerate() {
            if in_was.near(at, key).is_none_or(|before| was[before].1 != *node) {
                delta.set.insert(key.to_string(), Json::trusted(node.print()));
            }
        }
        let gone = was.iter().enumerate().filter(|(at, (key, _))| in_is.near(*at, key).is_none());
        delta.remove.extend(gone.map(|(_, (key, _))| key.to_string()));
        Ok(delta)
    }

    /// Lays a later change over this one.
    pub(crate) fn then(&mut self, later: &Self) {
        for key in &later.remove {
            self.set.remove(key);
            self.remove.insert(key.clone());
        }
        for (key, value) in &later.set {
            self.remove.remove(key);
            self.set.insert(key.clone(), value.clone());
        }
    }

    /// Applies it to an object's members.
    pub(crate) fn apply_to(&self, custom: &mut Option<Node>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let node = custom.get_or_insert_with(|| Node::Object(Vec::new()));
        let Node::Object(members) = node else {
            return Err(Error::invalid(
                "the custom state is not an object, so it has no keys to set: replace it with an object first",
            ));
        };
        if !self.remove.is_empty() {
            members.retain(|(key, _)| !self.remove.contains(&**key));
        }
        let mut known = Lookup::new(members);
        let places: Vec<_> = self.set.keys().map(|key| known.find(key)).collect();
        for ((key, value), place) in self.set.iter().zip(places) {
            let value = value.node()?;
            match place {
                Some(at) => members[at].1 = value,
                None => members.push((key.as_str().into(), value)),
            }
        }
        Ok(())
    }
}

/// The keys of all scopes that a session sees, with their prefixes.
pub type ScopedState = BTreeMap<String, Json>;
