//! What custom state must look like, and how older shapes become the present one.

use std::fmt;
use std::sync::Arc;

use crate::json::Json;
use crate::{Error, ErrorKind, Result};

/// The most violations an error lists.
const MAX_VIOLATIONS: usize = 10;

/// What a custom state must look like, compiled once for an agent.
#[derive(Clone)]
pub(crate) struct StateSchema {
    json: Json,
    validator: Arc<jsonschema::Validator>,
}

impl StateSchema {
    pub(crate) fn new(json: Json) -> Result<Self> {
        let value: serde_json::Value = json.to()?;
        let validator = jsonschema::validator_for(&value)
            .map_err(|error| Error::invalid(format!("the state schema is not a JSON schema: {error}")))?;
        Ok(Self { json, validator: Arc::new(validator) })
    }

    pub(crate) fn json(&self) -> &Json {
        &self.json
    }

    /// Checks a custom state; an absent one is never wrong.
    pub(crate) fn check(&self, custom: Option<&Json>) -> Result<()> {
        let Some(custom) = custom else { return Ok(()) };
        let value: serde_json::Value = custom.to()?;
        let violations: Vec<_> = self
            .validator
            .iter_errors(&value)
            .take(MAX_VIOLATIONS)
            .map(|error| (error.instance_path().to_string(), error.to_string()))
            .collect();
        if violations.is_empty() {
            return Ok(());
        }
        let list: Vec<_> = violations
            .iter()
            .map(|(path, what)| format!("{}: {what}", if path.is_empty() { "(root)" } else { path }))
            .collect();
        let text = format!("the custom state does not fit the agent's state schema: {}", list.join("; "));
        Err(Error::new(ErrorKind::Invalid, text).with_source(SchemaViolation { violations }))
    }
}

impl fmt::Debug for StateSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

/// Where a custom state breaks its schema: the source of the error that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaViolation {
    violations: Vec<(String, String)>,
}

impl SchemaViolation {
    /// The places, as JSON pointers, and what is wrong with each.
    #[must_use]
    pub fn violations(&self) -> &[(String, String)] {
        &self.violations
    }
}

impl fmt::Display for SchemaViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violations", self.violations.len())
    }
}

impl std::error::Error for SchemaViolation {}

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
