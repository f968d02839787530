//! Why a handler gave up.

use std::fmt;

use serde::Serialize;

use crate::json::Json;
use crate::snapshot::TurnError;
use crate::{Error, ErrorKind};

/// What a handler returns: a value for its caller, or why it gave up.
pub type Handled<R = ()> = std::result::Result<R, Failure>;

/// Why a handler gave up. `?` makes one of any error; [`Failure::new`] gives it a status clients can act on.
///
/// ```
/// use everturn::{Failure, Handled};
///
/// fn number(text: &str) -> Handled<u32> {
///     let n: u32 = text.parse()?;
///     if n > 100 {
///         return Err(Failure::new("INVALID_ARGUMENT", "at most 100, please"));
///     }
///     Ok(n)
/// }
/// assert_eq!(number("x").unwrap_err().error().status, "INTERNAL");
/// assert_eq!(number("101").unwrap_err().error().status, "INVALID_ARGUMENT");
/// ```
pub struct Failure {
    error: TurnError,
    kind: Option<ErrorKind>,
}

impl Failure {
    /// A failure with a status in capitals, like `UNAVAILABLE`, and what happened.
    pub fn new(status: impl Into<String>, message: impl Into<String>) -> Self {
        Self { error: TurnError::new(status, message), kind: None }
    }

    /// The same with more about it.
    #[must_use]
    pub fn details<T: Serialize + ?Sized>(mut self, details: &T) -> Self {
        self.error.details = Json::from_value(details).ok();
        self
    }

    /// The same with what was being done when it happened.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.error.message = format!("{what}: {}", self.error.message);
        self
    }

    /// The error as clients are shown it.
    #[must_use]
    pub fn error(&self) -> &TurnError {
        &self.error
    }

    /// The kind of the error of Everturn's that caused it, if one did.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        self.kind
    }

    pub(crate) fn into_error(self) -> TurnError {
        self.error
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error.status, self.error.message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error.message)
    }
}

/// Any error is a failure. (That is also why `Failure` itself is not a [`std::error::Error`].)
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let kind = (&error as &dyn std::any::Any).downcast_ref::<Error>().map(Error::kind);
        let status = kind.map_or("INTERNAL", ErrorKind::status);
        Self { error: TurnError::new(status, error.to_string()), kind }
    }
}

impl From<TurnError> for Failure {
    fn from(error: TurnError) -> Self {
        Self { error, kind: None }
    }
}

impl ErrorKind {
    /// The status in capitals that Genkit's clients know it by.
    #[must_use]
    pub fn status(self) -> &'static str {
        match self {
            Self::NotFound | Self::Deleted => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::Conflict | Self::Fenced | Self::Aborted => "ABORTED",
            Self::Busy | Self::Unavailable => "UNAVAILABLE",
            Self::NotResumable | Self::Invalid => "INVALID_ARGUMENT",
            Self::TooLarge => "RESOURCE_EXHAUSTED",
            Self::WrongMode => "FAILED_PRECONDITION",
            Self::Expired => "OUT_OF_RANGE",
            Self::Unsupported => "UNIMPLEMENTED",
            Self::Corrupt => "DATA_LOSS",
            Self::Internal => "INTERNAL",
            Self::UnknownOutcome => "UNKNOWN",
        }
    }
}

impl From<&Error> for TurnError {
    fn from(error: &Error) -> Self {
        Self::new(error.kind().status(), error.to_string())
    }
}
