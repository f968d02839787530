//! One error type, sorted by what the caller does next.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, as the caller needs to know it.
///
/// Kinds are coarse on purpose: each one calls for another reaction. The text of the [`Error`] says what exactly
/// happened and names the fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such thing. Check the id, or create it.
    NotFound,
    /// The id is taken. Use another one, or open what is there.
    AlreadyExists,
    /// The session was deleted while you worked on it. Stop; nothing more can be written.
    Deleted,
    /// What you expected is no longer so (a moved head, a key used with another payload). Read again and decide.
    Conflict,
    /// Somebody else holds it right now. Wait and retry, or branch.
    Busy,
    /// Your turn was taken over. Stop; the other attempt owns it.
    Fenced,
    /// The point exists but a turn cannot start there. Pick a completed one.
    NotResumable,
    /// The operation does not fit how this agent keeps its state.
    WrongMode,
    /// The input is wrong and will stay wrong. Correct it.
    Invalid,
    /// The input is over a limit. Send less, or raise the limit.
    TooLarge,
    /// It was valid once and is no longer (a cursor, a position). Start over.
    Expired,
    /// The turn was aborted. Stop; its end is final.
    Aborted,
    /// This store cannot do that.
    Unsupported,
    /// The store cannot be reached or written right now. Retry later; nothing was written.
    Unavailable,
    /// The disk failed while something was written, and it may be kept or not. Look before you do it again; a turn with a
    /// key can be sent again as it is.
    UnknownOutcome,
    /// What is stored is damaged. Restore from a backup; the text names the place.
    Corrupt,
    /// A bug in Everturn.
    Internal,
}

impl ErrorKind {
    /// The kind's stable name, as used on wires and in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Deleted => "deleted",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Fenced => "fenced",
            Self::NotResumable => "not_resumable",
            Self::WrongMode => "wrong_mode",
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::Expired => "expired",
            Self::Aborted => "aborted",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::UnknownOutcome => "unknown_outcome",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// The error of every fallible operation.
///
/// ```
/// use everturn::{ErrorKind, SessionId};
///
/// let error = SessionId::new("  ").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(error.to_string().contains("blank"));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// Whether it leaves it unknown what is on disk.
    disk_failed: bool,
}

/// A `Result` with Everturn's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a kind, with a text that says what happened and names the fix.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None, disk_failed: false }))
    }

    /// The same error with its cause attached.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The text, without its cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $(pub(crate) fn $name(message: impl Into<String>) -> Self { Self::new(ErrorKind::$kind, message) })*
        }
    };
}

constructors! {
    not_found => NotFound, already_exists => AlreadyExists, deleted => Deleted, conflict => Conflict,
    busy => Busy, fenced => Fenced, not_resumable => NotResumable, invalid => Invalid, too_large => TooLarge,
    aborted => Aborted, unavailable => Unavailable, corrupt => Corrupt, internal => Internal, unsupported => Unsupported,
}

#[cfg(feature = "sqlite")]
impl Error {
    /// The disk failed while something was done: nobody knows what is there.
    pub(crate) fn disk_failed(doing: &str) -> Self {
        let mut error = Self::unavailable(format!("the disk failed while the store was to {doing}"));
        error.0.disk_failed = true;
        error
    }

    /// Whether a store must not go on after it before it was opened anew.
    pub(crate) fn is_disk_failure(&self) -> bool {
        self.0.disk_failed
    }

    /// The same for a write that may have been kept all the same.
    pub(crate) fn in_doubt(mut self) -> Self {
        self.0.kind = ErrorKind::UnknownOutcome;
        self.0.message.push_str(", which may be kept or not");
        self
    }
}

impl Error {
    /// Whether the store could not write, as opposed to refusing what it was given.
    pub(crate) fn is_stores(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome)
    }

    pub(crate) fn of_another_agent(session: &crate::SessionId) -> Self {
        Self::conflict(format!("session {session} belongs to another agent of this app: use another id"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
