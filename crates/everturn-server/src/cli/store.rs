//! Where sessions are kept, as it is typed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use everturn::store::{Limits, MemoryOptions, SqliteOptions, SqliteStore, Store};

use crate::config::Config;

/// A store by its name: `sqlite:PATH`, `memory:`, or a path alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreSpec {
    Sqlite(PathBuf),
    Memory,
}

/// What a served store takes: custom state may be as large as the largest text somebody can send.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.custom = limits.body / 2;
    limits
}

/// A store that is open, and the same again where it has numbers to tell.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sqlite: Option<SqliteStore>,
}

impl StoreSpec {
    pub(crate) fn open(&self, config: &Config) -> anyhow::Result<Opened> {
        let (cache, poll, grace) = (config.store_cache.0, config.store_poll, config.stream_grace);
        Ok(match self {
            Self::Sqlite(path) => {
                let options = SqliteOptions::new(path).limits(limits()).cache_bytes(cache).poll(poll);
                let options = options.lock_wait(config.store_lock_wait).reserve(config.store_reserve.0);
                let store = options.stream_grace(grace).open()?;
                Opened { store: Arc::new(store.clone()), sqlite: Some(store) }
            }
            Self::Memory => {
                let options = MemoryOptions::new().limits(limits()).cache_bytes(cache).poll(poll);
                Opened { store: Arc::new(options.stream_grace(grace).build()), sqlite: None }
            }
        })
    }

    /// The file, for what needs one.
    pub(crate) fn path(&self) -> anyhow::Result<&Path> {
        match self {
            Self::Sqlite(path) => Ok(path),
            Self::Memory => anyhow::bail!("this needs a file: use --store sqlite:PATH"),
        }
    }
}

impl FromStr for StoreSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("sqlite:").unwrap_or(text);
        match text {
            "memory:" => Ok(Self::Memory),
            _ if path.is_empty() => Err("the path is missing: sqlite:PATH, or memory:".to_owned()),
            _ => Ok(Self::Sqlite(path.into())),
        }
    }
}

impl fmt::Display for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Memory => f.write_str("memory, and gone when the process ends"),
        }
    }
}
