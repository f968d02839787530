//! Who is let in, as it is typed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use everturn::{Clock, SystemClock};

use super::store::StoreSpec;
use crate::auth::{ApiKeys, Authority, Jwt, KeyFile, Rate};
use crate::http::{Access, Origin};

/// How often a key may be used unless told.
const RATE: Rate = Rate::per_second(50);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Who is let in")]
pub(crate) struct AccessArgs {
    /// The file of API keys that `everturn keys` makes; without this option keys.json beside the store, if it exists.
    /// Once there is one, every request but /healthz needs a key
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Also let in bearers of JSON Web Tokens signed with HS256 and the secret in this file, of 32 bytes or more and
    /// private (chmod 600). Their claims: sub (the user), aud, exp, rights, and if they like app and nbf
    #[arg(long, value_name = "FILE", requires = "jwt_audience")]
    jwt_key: Option<PathBuf>,
    /// The audience that tokens must name in aud
    #[arg(long, value_name = "NAME", requires = "jwt_key")]
    jwt_audience: Option<String>,
    /// How often each key may be used, a second or a minute (50/s, 600/m); twice as often at once
    #[arg(long, value_name = "N/s", default_value_t = RATE)]
    rate: Rate,
    /// Let pages of this origin ask, like https://app.example; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<Origin>,
}

impl Default for AccessArgs {
    fn default() -> Self {
        Self { keys: None, jwt_key: None, jwt_audience: None, rate: RATE, cors_origin: Vec::new() }
    }
}

impl AccessArgs {
    pub(crate) fn open(self, store: &StoreSpec) -> anyhow::Result<Access> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        if let Some(path) = &self.keys {
            // Who names a file wants it asked for; to let everybody in without it would be a surprise.
            anyhow::ensure!(
                path.exists(),
                "there are no keys in {0}: make one with `everturn keys create --user NAME --keys {0}`",
                path.display()
            );
        }
        let keys = key_file(self.keys.as_deref(), store);
        let keys = keys.map(|file| ApiKeys::open(file, clock.uptime())).transpose()?;
        let jwt = match (&self.jwt_key, &self.jwt_audience) {
            (Some(path), Some(audience)) => Some(Jwt::from_file(path, audience)?),
            _ => None,
        };
        Ok(Access { authority: Authority::new(keys, jwt, self.rate, clock), origins: self.cors_origin })
    }
}

/// The file of keys: the one that was named, or the one beside the store. A store without a file has none beside it.
pub(super) fn key_file(named: Option<&Path>, store: &StoreSpec) -> Option<KeyFile> {
    match (named, store) {
        (Some(path), _) => Some(KeyFile::new(path)),
        (None, StoreSpec::Sqlite(path)) => Some(KeyFile::new(path.with_file_name("keys.json"))),
        (None, StoreSpec::Memory) => None,
    }
}
