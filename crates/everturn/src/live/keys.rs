//! State as keys and values, over all scopes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::attribution;
use crate::json::{Json, Node};
use crate::run::Run;
use crate::run::begin::{needs_store, shared_key, shared_part};
use crate::run::work::Work;
use crate::state::{Scope, ScopedState, split_key};
use crate::{Error, Result, StateDelta};

/// A session's state as keys and values: no prefix is the session's own (the custom state's top level), `user:` is
/// shared by a user's sessions, `app:` by all of an app, `temp:` lasts as long as the invocation.
///
/// What is set is seen at once by this turn, and by everybody else when the turn completes. A key that is missing is
/// not a key whose value is `null`.
#[derive(Clone)]
pub struct StateMap {
    run: Arc<Run>,
}

impl StateMap {
    pub(super) fn of(run: Arc<Run>) -> Self {
        Self { run }
    }

    /// The value of a key, if there is one.
    pub fn get_json(&self, key: &str) -> Result<Option<Json>> {
        read(&self.run.work(), key)
    }

    /// The value of a key as a typed one, if there is one.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        self.get_json(key)?.as_ref().map(Json::to).transpose()
    }

    /// Sets a key.
    pub fn set<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<()> {
        self.change(StateDelta::new().set(key, Json::from_value(value)?))
    }

    /// Removes a key. Removing one that is not there changes nothing.
    pub fn remove(&self, key: &str) -> Result<()> {
        self.change(StateDelta::new().remove(key))
    }

    /// Changes several keys at once.
    pub fn change(&self, delta: StateDelta) -> Result<()> {
        self.run.change_state(delta)
    }

    /// All keys with their prefixes.
    pub fn all(&self) -> Result<ScopedState> {
        all(&self.run.work())
    }

    /// A copy that cannot be written to, for those who decide by it.
    pub fn read_only(&self) -> Result<ReadState> {
        Ok(ReadState(Arc::new(self.all()?)))
    }
}

impl Run {
    /// Changes keys of all scopes at once.
    pub(crate) fn change_state(&self, delta: StateDelta) -> Result<()> {
        if let Some(key) = delta.set.keys().chain(&delta.remove).find(|key| split_key(key).1.is_empty()) {
            return Err(Error::invalid(format!("the state key {key:?} has no name: give it one after its prefix")));
        }
        if let Some(key) = shared_key(&delta).filter(|_| self.def.store.is_none()) {
            return Err(needs_store(key));
        }
        let session = delta.of_scope(Scope::Session);
        if !session.is_empty() {
            self.write_custom(|custom| {
                let mut node = custom.map(Json::node).transpose()?;
                session.apply_to(&mut node)?;
                Ok(node.map(|node| Json::trusted(node.print())))
            })?;
        }
        let shared = shared_part(&delta);
        let mut work = self.work();
        work.check_open()?;
        attribution::note(&shared);
        let temp = delta.of_scope(Scope::Temp);
        work.temp.retain(|key, _| !temp.remove.contains(key));
        work.temp.extend(temp.set);
        work.scope_delta.then(&shared);
        Ok(())
    }
}

fn read(work: &Work, key: &str) -> Result<Option<Json>> {
    let (scope, name) = split_key(key);
    match scope {
        Scope::Temp => Ok(work.temp.get(name).cloned()),
        Scope::Session => {
            let node = work.now.custom.as_ref().map(Json::node).transpose()?;
            Ok(node.as_ref().and_then(|node| node.get(name)).map(|value| Json::trusted(value.print())))
        }
        Scope::App | Scope::User => {
            if work.scope_delta.remove.contains(key) {
                return Ok(None);
            }
            let stored = || work.scopes.as_ref().and_then(|scopes| scopes.get(key));
            Ok(work.scope_delta.set.get(key).or_else(stored).cloned())
        }
    }
}

fn all(work: &Work) -> Result<ScopedState> {
    let mut merged: BTreeMap<String, Json> = work.scopes.clone().unwrap_or_default();
    merged.retain(|key, _| !work.scope_delta.remove.contains(key));
    merged.extend(work.scope_delta.set.clone());
    merged.extend(work.temp.iter().map(|(key, value)| (format!("temp:{key}"), value.clone())));
    if let Some(Node::Object(members)) = work.now.custom.as_ref().map(Json::node).transpose()? {
        merged.extend(members.into_iter().map(|(key, value)| (key.into(), Json::trusted(value.print()))));
    }
    Ok(merged)
}

/// A session's state as keys and values, to be read only.
#[derive(Clone, Debug)]
pub struct ReadState(Arc<ScopedState>);

impl ReadState {
    /// The value of a key as a typed one, if there is one.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        self.0.get(key).map(Json::to).transpose()
    }

    /// All keys with their prefixes.
    #[must_use]
    pub fn all(&self) -> &ScopedState {
        &self.0
    }
}
