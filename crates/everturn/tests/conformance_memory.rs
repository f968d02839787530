//! The memory store keeps every promise.

use std::sync::Arc;

use async_trait::async_trait;
use everturn::store::conformance::{Capabilities, Harness, LEASE, conformance_tests};
use everturn::store::{MemoryOptions, Store};
use everturn::{ManualClock, Result};

struct Memory {
    clock: ManualClock,
    store: Arc<dyn Store>,
}

impl Memory {
    fn new() -> Self {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let store = MemoryOptions::new().clock(Arc::new(clock.clone())).lease(LEASE).build();
        Self { clock, store: Arc::new(store) }
    }
}

#[async_trait]
impl Harness for Memory {
    async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(self.store.clone())
    }

    async fn second(&self) -> Result<Arc<dyn Store>> {
        Ok(self.store.clone())
    }

    fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

conformance_tests!(Memory::new());
