//! Why a tool did not answer.

use std::fmt;

use serde::Serialize;

use crate::agent::Failure;
use crate::json::Json;

/// What a tool returns: its answer, or why there is none.
pub type ToolResult<T> = std::result::Result<T, ToolError>;

/// Why a tool did not answer. `?` makes one of any error.
pub struct ToolError(Trouble);

pub(crate) enum Trouble {
    /// It went wrong; the tool's own setting says who is told.
    Failed(Failure),
    /// It went wrong in a way that ends the turn.
    Fatal(Failure),
    /// A person must answer first.
    Interrupt(Json),
}

impl ToolError {
    /// Something went wrong, in words that a model can act on.
    pub fn new(message: impl Into<String>) -> Self {
        Self(Trouble::Failed(Failure::new("INTERNAL", message)))
    }

    /// Something went wrong that ends the turn, whatever the tool's setting says.
    pub fn fatal(failure: Failure) -> Self {
        Self(Trouble::Fatal(failure))
    }

    /// A person must answer first. The turn ends as `interrupted` with the payload, which says what is asked.
    pub fn interrupt<T: Serialize + ?Sized>(payload: &T) -> Self {
        match Json::from_value(payload) {
            Ok(payload) => Self(Trouble::Interrupt(payload)),
            Err(error) => Self(Trouble::Fatal(error.into())),
        }
    }

    pub(crate) fn into_trouble(self) -> Trouble {
        self.0
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Trouble::Failed(failure) | Trouble::Fatal(failure) => failure.fmt(f),
            Trouble::Interrupt(payload) => write!(f, "interrupted: {payload}"),
        }
    }
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        Self(Trouble::Failed(failure))
    }
}

/// Any error is a tool's error. (That is also why `ToolError` itself is not a [`std::error::Error`].)
impl<E: std::error::Error + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self(Trouble::Failed(error.into()))
    }
}
