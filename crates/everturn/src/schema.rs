//! What JSON must look like: custom state, what tools are given and answer, what a model is asked to answer.

use std::fmt;
use std::sync::Arc;

use crate::json::Json;
use crate::{Error, ErrorKind, Result};

/// The most violations an error lists.
const MAX_VIOLATIONS: usize = 10;

/// A JSON schema, compiled once.
#[derive(Clone)]
pub(crate) struct Schema {
    json: Json,
    validator: Arc<jsonschema::Validator>,
}

impl Schema {
    /// Compiles a schema. `what` names it in the error of one that is none.
    pub(crate) fn new(what: impl fmt::Display, json: Json) -> Result<Self> {
        let value: serde_json::Value = json.to()?;
        let validator = jsonschema::validator_for(&value)
            .map_err(|error| Error::invalid(format!("{what} is not a JSON schema: {error}")))?;
        Ok(Self { json, validator: Arc::new(validator) })
    }

    pub(crate) fn json(&self) -> &Json {
        &self.json
    }

    /// Checks a value. `broken` says what does not fit what, and is followed by where.
    pub(crate) fn check(&self, value: &Json, broken: impl fmt::Display) -> Result<()> {
        let value: serde_json::Value = value.to()?;
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
        let text = format!("{broken}: {}", list.join("; "));
        Err(Error::new(ErrorKind::Invalid, text).with_source(SchemaViolation { violations }))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

/// Where JSON breaks its schema: the source of the error that says so.
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
