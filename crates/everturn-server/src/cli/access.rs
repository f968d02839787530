//! Who is let in, as it is set.

use std::path::Path;
use std::sync::Arc;

use everturn::{Clock, SystemClock};

use super::store::StoreSpec;
use crate::auth::{ApiKeys, Authority, Jwt, KeyFile};
use crate::config::AccessConfig;
use crate::http::Access;

pub(super) fn open(config: &AccessConfig, store: &StoreSpec) -> anyhow::Result<Access> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    if let Some(path) = &config.keys {
        // Who names a file wants it asked for; to let everybody in without it would be a surprise.
        anyhow::ensure!(
            path.exists(),
            "there are no keys in {0}: make one with `everturn keys create --user NAME --keys {0}`",
            path.display()
        );
    }
    let keys = key_file(config.keys.as_deref(), store);
    let keys = keys.map(|file| ApiKeys::open(file, clock.uptime())).transpose()?;
    let jwt = config.jwt.as_ref().map(|(path, audience)| Jwt::from_file(path, audience)).transpose()?;
    Ok(Access { authority: Authority::new(keys, jwt, config.rate, clock), origins: config.cors_origins.clone() })
}

/// The file of keys: the one that was named, or the one beside the store. A store without a file has none beside it.
pub(super) fn key_file(named: Option<&Path>, store: &StoreSpec) -> Option<KeyFile> {
    match (named, store) {
        (Some(path), _) => Some(KeyFile::new(path)),
        (None, StoreSpec::Sqlite(path)) => Some(KeyFile::new(path.with_file_name("keys.json"))),
        (None, StoreSpec::Memory) => None,
    }
}
