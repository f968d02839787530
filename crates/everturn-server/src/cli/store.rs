//! Where sessions are kept, as it is typed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use everturn::store::{Limits, MemoryOptions, SqliteOptions, Store};

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

impl StoreSpec {
    pub(crate) fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match self {
            Self::Sqlite(path) => Arc::new(SqliteOptions::new(path).limits(limits()).open()?),
            Self::Memory => Arc::new(MemoryOptions::new().limits(limits()).build()),
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
