//! Artifacts: what an agent made that a user may look at by itself.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::json::Json;
use crate::part::Part;
use crate::{Error, Point, Result};

/// The longest name an artifact may have, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// A named (or unnamed) output: a report, a file, a picture.
///
/// Putting an artifact with the name of an existing one replaces that one where it stands; unnamed ones are appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it holds.
    pub parts: Vec<Part>,
    /// Whatever goes with it.
    #[serde(default, deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

impl Artifact {
    /// A named artifact.
    ///
    /// ```
    /// use everturn::{Artifact, Part};
    ///
    /// let report = Artifact::new("report.md", vec![Part::text("# Findings")]);
    /// assert_eq!(report.name.as_deref(), Some("report.md"));
    /// ```
    #[must_use]
    pub fn new(name: impl Into<String>, parts: Vec<Part>) -> Self {
        Self { name: Some(name.into()), parts, metadata: None }
    }

    /// An artifact without a name.
    #[must_use]
    pub fn unnamed(parts: Vec<Part>) -> Self {
        Self { name: None, parts, metadata: None }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.name {
            Some(name) if name.len() > MAX_NAME_BYTES => {
                Err(Error::too_large(format!("an artifact's name has at most {MAX_NAME_BYTES} bytes")))
            }
            Some(name) if name.is_empty() => {
                Err(Error::invalid("an artifact's name is empty: leave the name out, or give one"))
            }
            _ => Ok(()),
        }
    }
}

/// One stored version of a named artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactVersion {
    /// The artifact's name.
    pub name: String,
    /// Its version, counted from 0 per session and name, never rewound.
    pub version: u64,
    /// The record that put it.
    pub point: Point,
    /// The digest of its content.
    pub digest: Digest,
}
