//! State, as plainly as it can be kept: whole copies, changed in place.

use std::collections::BTreeMap;

use everturn::{
    Artifact, ArtifactChange, Changes, CustomChange, Digest, ErrorKind, Event, Json, Message, StateDelta, Usage, View,
    ViewChange,
};
use sha2::{Digest as _, Sha256};

/// Everything a line adds up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) content: Content,
    pub(crate) schema: u64,
    pub(crate) turns: u64,
    pub(crate) index: u64,
    pub(crate) usage: Usage,
}

/// The part of it that a digest stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) messages: Vec<Message>,
    pub(crate) custom: Option<Json>,
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) view: Option<View>,
}

impl Content {
    /// The digest as `docs/format.md` defines it, computed from nothing but the content.
    pub(crate) fn digest(&self) -> Digest {
        let of = |json: &Json| Digest::of_json(json).expect("it is JSON");
        let chain = |digests: &mut dyn Iterator<Item = Digest>| digests.fold(Digest::ABSENT, Digest::chain);
        let messages = chain(&mut self.messages.iter().map(|message| of(message.json())));
        let written = |artifact: &Artifact| Json::from_value(artifact).expect("it is JSON");
        let artifacts = chain(&mut self.artifacts.iter().map(|artifact| of(&written(artifact))));
        let custom = self.custom.as_ref().map_or(Digest::ABSENT, of);
        let view = self.view.as_ref().map(|view| Json::from_value(view).expect("it is JSON"));
        let view = view.as_ref().map_or(Digest::ABSENT, of);
        let mut hash = Sha256::new();
        hash.update(b"everturn state 1\n");
        for part in [messages, custom, artifacts, view] {
            hash.update(part.as_bytes());
        }
        Digest::from_bytes(hash.finalize().into())
    }
}

/// What a record does beside changing the state of its line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    /// Changes of the `app:` and `user:` scopes, in order.
    pub(crate) scopes: Vec<(String, Option<Json>)>,
    /// Named artifacts that were put.
    pub(crate) puts: Vec<Artifact>,
    pub(crate) usage: Usage,
    /// The events that are stored.
    pub(crate) events: Vec<Event>,
}

impl State {
    /// Changes the state as a record does: the splice, the events, other deltas, then custom, artifacts and view.
    pub(crate) fn apply(&mut self, changes: &Changes, delta: &StateDelta) -> Result<Effects, ErrorKind> {
        let mut effects = Effects { usage: changes.usage, ..Effects::default() };
        if let Some(splice) = &changes.splice {
            let keep = usize::try_from(splice.keep).expect("the generator keeps few");
            if keep > self.content.messages.len() {
                return Err(ErrorKind::Invalid);
            }
            self.content.messages.truncate(keep);
            self.content.messages.extend(splice.messages.iter().cloned());
        }
        // A custom state that is given as a whole wins over keys, whatever those are.
        let whole = changes.custom.is_some();
        for event in changes.events.iter().filter(|event| !event.partial) {
            self.content.messages.extend(event.messages.iter().cloned());
            let of = StateDelta { set: event.state_delta.clone(), remove: event.state_removed.clone() };
            self.delta(&of, whole, &mut effects)?;
            effects.usage.add(&event.usage.unwrap_or_default());
            let mut stored = event.clone();
            stored.state_delta.retain(|key, _| !key.starts_with("temp:"));
            stored.state_removed.retain(|key| !key.starts_with("temp:"));
            effects.events.push(stored);
        }
        self.delta(delta, whole, &mut effects)?;
        match &changes.custom {
            None => {}
            Some(CustomChange::Clear) => self.content.custom = None,
            Some(CustomChange::Set(custom)) => {
                let prefixed = |key: &String| ["app:", "user:", "temp:"].iter().any(|prefix| key.starts_with(prefix));
                if members(custom).is_some_and(|members| members.keys().any(prefixed)) {
                    return Err(ErrorKind::Invalid);
                }
                self.content.custom = Some(custom.clone());
            }
        }
        for change in &changes.artifacts {
            self.artifact(change, &mut effects);
        }
        match &changes.view {
            None => {}
            Some(ViewChange::Set(view)) => self.content.view = Some(view.clone()),
            Some(ViewChange::Clear) => self.content.view = None,
        }
        self.schema = changes.schema_version.unwrap_or(self.schema);
        self.usage.add(&effects.usage);
        Ok(effects)
    }

    fn delta(&mut self, delta: &StateDelta, whole: bool, effects: &mut Effects) -> Result<(), ErrorKind> {
        let shared = |key: &str| key.starts_with("app:") || key.starts_with("user:");
        let own = |key: &str| !shared(key) && !key.starts_with("temp:");
        let removed = delta.remove.iter().filter(|key| shared(key)).map(|key| (key.clone(), None));
        let set = delta.set.iter().filter(|(key, _)| shared(key));
        effects.scopes.extend(removed.chain(set.map(|(key, value)| (key.clone(), Some(value.clone())))));

        if whole || !delta.set.keys().chain(&delta.remove).any(|key| own(key)) {
            return Ok(());
        }
        let mut custom = match &self.content.custom {
            None => BTreeMap::new(),
            Some(custom) => members(custom).ok_or(ErrorKind::Invalid)?,
        };
        delta.remove.iter().for_each(|key| drop(custom.remove(key)));
        custom.extend(delta.set.iter().filter(|(key, _)| own(key)).map(|(key, value)| (key.clone(), value.clone())));
        self.content.custom = Some(Json::from_value(&custom).expect("it is JSON"));
        Ok(())
    }

    fn artifact(&mut self, change: &ArtifactChange, effects: &mut Effects) {
        let list = &mut self.content.artifacts;
        match change {
            ArtifactChange::Clear => list.clear(),
            ArtifactChange::Remove(name) => list.retain(|artifact| artifact.name.as_ref() != Some(name)),
            ArtifactChange::Put(new) => {
                match list.iter_mut().find(|old| old.name.is_some() && old.name == new.name) {
                    Some(slot) => *slot = new.clone(),
                    None => list.push(new.clone()),
                }
                effects.puts.extend(new.name.is_some().then(|| new.clone()));
            }
        }
    }
}

/// The members of an object; nothing if it is none.
pub(crate) fn members(json: &Json) -> Option<BTreeMap<String, Json>> {
    json.as_str().starts_with('{').then(|| json.to().expect("it is an object"))
}
