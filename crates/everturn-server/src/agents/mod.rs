//! The agents that `--demo` hosts: small, deterministic, and made to show every way a turn can go.

mod asker;
mod echo;
mod redact;

use std::sync::Arc;

use everturn::store::Store;
use everturn::{Recovery, Registry};

/// Whatever they were at when their server died is tried again, though not for ever.
const RECOVERY: Recovery = Recovery::Retry { attempts: 3 };

/// All demo agents, the stored ones in one store.
pub(crate) fn demo(store: &Arc<dyn Store>) -> everturn::Result<Registry> {
    let mut registry = Registry::new();
    registry.register(echo::stored(store.clone())?)?;
    registry.register(echo::client_managed()?)?;
    registry.register(redact::agent(store.clone())?)?;
    registry.register(asker::agent(store.clone())?)?;
    Ok(registry)
}
