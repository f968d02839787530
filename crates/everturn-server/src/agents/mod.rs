//! The agents that `--demo` hosts: small, deterministic, and made to show every way a turn can go.

mod asker;
mod echo;
mod redact;

use std::sync::Arc;

use everturn::Registry;
use everturn::store::Store;

/// All demo agents, the stored ones in one store.
pub(crate) fn demo(store: &Arc<dyn Store>) -> everturn::Result<Registry> {
    let mut registry = Registry::new();
    registry.register(echo::stored(store.clone())?)?;
    registry.register(echo::client_managed()?)?;
    registry.register(redact::agent(store.clone())?)?;
    registry.register(asker::agent(store.clone())?)?;
    Ok(registry)
}
