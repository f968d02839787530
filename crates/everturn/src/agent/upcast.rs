//! How older shapes of custom state become the present one.

use std::fmt;
use std::sync::Arc;

use crate::json::Json;
use crate::{Error, ErrorKind, Result};

type Upcast = dyn Fn(Json) -> Result<Json> + Send + Sync;

/// Steps from one version of the custom state's schema to the next.
#[derive(Clone, Default)]
pub(crate) struct Upcasters(Vec<Arc<Upcast>>);

impl Upcasters {
    pub(crate) fn push(&mut self, step: Arc<Upcast>) {
        self.0.push(step);
    }

    /// The present version: what states are written with.
    pub(crate) fn version(&self) -> u64 {
        self.0.len() as u64
    }

    /// Brings a state from the version it was written with to the present one.
    pub(crate) fn apply(&self, version: u64, custom: Option<Json>) -> Result<Option<Json>> {
        if version > self.version() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the custom state has schema version {version}, this agent knows up to {}: run a newer agent",
                    self.version()
                ),
            ));
        }
        let Some(mut custom) = custom else { return Ok(None) };
        let from = usize::try_from(version).unwrap_or(usize::MAX);
        for (step, upcast) in self.0.iter().enumerate().skip(from) {
            custom = upcast(custom).map_err(|error| {
                Error::invalid(format!("the custom state could not be brought from version {step} to {}", step + 1))
                    .with_source(error)
            })?;
        }
        Ok(Some(custom))
    }
}

impl fmt::Debug for Upcasters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to version {}", self.version())
    }
}
