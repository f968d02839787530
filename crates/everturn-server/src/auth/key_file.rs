//! The file of API keys.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use everturn::Timestamp;
use serde::{Deserialize, Serialize};

use super::private_file::{self, Stamp};
use super::{ApiKey, KeyId};

const VERSION: u32 = 1;

/// Where API keys are kept: a small JSON file that only its owner may touch.
#[derive(Clone, Debug)]
pub(crate) struct KeyFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    keys: Vec<ApiKey>,
}

/// What became of a wish to revoke a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    Now,
    Before(Timestamp),
}

impl KeyFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn stamp(&self) -> anyhow::Result<Option<Stamp>> {
        Stamp::at(&self.path).map_err(|error| anyhow::anyhow!("cannot look at {}: {error}", self.path.display()))
    }

    /// All keys, none if there is no file.
    pub(crate) fn read(&self) -> anyhow::Result<Option<Vec<ApiKey>>> {
        let Some(content) = private_file::read(&self.path)? else { return Ok(None) };
        let shown = self.path.display();
        let content: Content = serde_json::from_slice(&content)
            .map_err(|error| anyhow::anyhow!("{shown} is not a file of keys, or damaged: {error}"))?;
        anyhow::ensure!(content.version == VERSION, "{shown} was written by a newer everturn: use that one");
        Ok(Some(content.keys))
    }

    /// Adds a key.
    pub(crate) fn add(&self, key: ApiKey) -> anyhow::Result<()> {
        self.change(|keys| {
            anyhow::ensure!(keys.iter().all(|other| other.id != key.id), "this id is taken: try again");
            keys.push(key);
            Ok(((), Save::Yes))
        })
    }

    /// Revokes a key for good. Its entry stays, so that the list tells what it was.
    pub(crate) fn revoke(&self, id: &KeyId, now: Timestamp) -> anyhow::Result<Revoked> {
        self.change(|keys| {
            let key = keys.iter_mut().find(|key| key.id == *id);
            let key = key.with_context(|| format!("there is no key {id}: `everturn keys list` shows them"))?;
            if let Some(before) = key.revoked {
                return Ok((Revoked::Before(before), Save::No));
            }
            key.revoked = Some(now);
            Ok((Revoked::Now, Save::Yes))
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<ApiKey>) -> anyhow::Result<(T, Save)>) -> anyhow::Result<T> {
        // Two who read before either wrote would lose one of their changes, and a revoked key would be back.
        let _lock = private_file::lock(&self.path)?;
        let mut keys = self.read()?.unwrap_or_default();
        let (done, save) = change(&mut keys)?;
        if let Save::Yes = save {
            let mut text = serde_json::to_string_pretty(&Content { version: VERSION, keys })?;
            text.push('\n');
            private_file::replace(&self.path, text.as_bytes())?;
        }
        Ok(done)
    }
}

enum Save {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Right, Rights, Token};

    fn key() -> ApiKey {
        let user = everturn::UserId::new("ann").unwrap();
        ApiKey::new(&Token::random().unwrap(), user, Rights::up_to(Right::Read), Timestamp::from_micros(1))
    }

    #[test]
    fn changes_made_at_once_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("new/keys.json"));
        assert!(file.read().unwrap().is_none());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| file.add(key()).unwrap());
            }
        });
        assert_eq!(file.read().unwrap().unwrap().len(), 8);
    }

    #[test]
    fn a_key_is_revoked_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let (key, now) = (key(), Timestamp::from_micros(5));
        file.add(key.clone()).unwrap();
        assert_eq!(file.revoke(&key.id, now).unwrap(), Revoked::Now);
        assert_eq!(file.revoke(&key.id, Timestamp::from_micros(6)).unwrap(), Revoked::Before(now));
        assert!(file.revoke(&"0123456789ab".parse().unwrap(), now).unwrap_err().to_string().contains("keys list"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let good = serde_json::to_value(Content { version: 1, keys: vec![key()] }).unwrap();
        let mut restricted = good.clone();
        restricted["keys"][0]["only_from"] = "10.0.0.0/8".into();
        let mut newer = good.clone();
        newer["version"] = 2.into();
        for bad in [restricted.to_string(), newer.to_string(), String::new(), "{".to_owned(), "[]".to_owned()] {
            private_file::replace(file.path(), bad.as_bytes()).unwrap();
            assert!(file.read().is_err(), "{bad}");
            assert!(file.add(key()).is_err(), "and not written over: {bad}");
        }
        private_file::replace(file.path(), good.to_string().as_bytes()).unwrap();
        assert_eq!(file.read().unwrap().unwrap().len(), 1);
    }
}
