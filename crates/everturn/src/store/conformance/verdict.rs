//! How a case says what it found.

use std::fmt;
use std::panic::Location;

use crate::{Error, ErrorKind};

/// What a case found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The promise is kept.
    Passed,
    /// The harness cannot find out, for this reason.
    Skipped(String),
    /// The promise is broken.
    Failed(Failure),
}

impl Verdict {
    /// Whether the promise is kept, as far as the harness can find out.
    #[must_use]
    pub fn is_pass(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "FAILED",
        }
    }
}

/// How a promise was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    what: String,
    at: &'static Location<'static>,
}

impl Failure {
    #[track_caller]
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), at: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.what, self.at.file(), self.at.line())
    }
}

/// Why a case stopped before its end.
#[derive(Debug)]
pub(super) enum Stop {
    Skipped(String),
    Failed(Failure),
}

pub(super) type Check<T = ()> = Result<T, Stop>;

impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::Failed(Failure::new(format!("the store answered {error:?}")))
    }
}

#[track_caller]
pub(super) fn fail<T>(what: impl Into<String>) -> Check<T> {
    Err(Stop::Failed(Failure::new(what)))
}

/// Something must hold.
#[track_caller]
pub(super) fn holds(condition: bool, what: &str) -> Check {
    if condition { Ok(()) } else { fail(format!("it does not hold that {what}")) }
}

/// Two things must be equal: what was found, and what should have been.
#[track_caller]
pub(super) fn same<T: PartialEq + fmt::Debug>(found: T, wanted: T, what: &str) -> Check {
    if found == wanted { Ok(()) } else { fail(format!("{what}: found {found:?} instead of {wanted:?}")) }
}

/// Something must be there.
#[track_caller]
pub(super) fn there<T>(found: Option<T>, what: &str) -> Check<T> {
    match found {
        Some(found) => Ok(found),
        None => fail(format!("{what} is not there")),
    }
}

/// An operation must have been refused, with an error of this kind.
#[track_caller]
pub(super) fn refused<T: fmt::Debug>(result: crate::Result<T>, kind: ErrorKind, what: &str) -> Check {
    match result {
        Ok(done) => fail(format!("{what} was not refused as {kind:?} but answered {done:?}")),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => fail(format!("{what} was not refused as {kind:?} but as {error:?}")),
    }
}
