//! `everturn backup`: a copy of a store that is in use.

use std::io::Write;
use std::path::Path;

use everturn::store::SqliteStore;

pub(crate) fn run(store: &Path, to: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let bytes = SqliteStore::backup(store, to)?;
    writeln!(out, "{} has {bytes} bytes: everything that was acknowledged before now", to.display())?;
    Ok(())
}
