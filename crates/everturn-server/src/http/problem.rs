//! Errors as clients of Genkit know them: a status in capitals, a message, details.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn::{Error, TurnError};

/// The longest message, in bytes.
const LONGEST: usize = 2_000;

/// A message, cut where it is too long: what somebody sent may be quoted in it, and need not be sent back whole.
pub(crate) fn brief(mut message: String) -> String {
    if message.len() > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST));
        message.push('…');
    }
    message
}

/// What an answer says went wrong, for wires that say it in other words.
#[derive(Clone, Debug)]
pub(crate) struct Told(pub(crate) String);

/// An error on its way to a client.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) error: TurnError,
    code: Option<StatusCode>,
}

impl Problem {
    pub(crate) fn new(status: &str, message: impl Into<String>) -> Self {
        Self { error: TurnError::new(status, brief(message.into())), code: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("INVALID_ARGUMENT", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new("NOT_FOUND", message)
    }

    /// What somebody is known for, but may not do.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new("PERMISSION_DENIED", message)
    }

    /// The same under another HTTP code than the status stands for.
    pub(crate) fn code(mut self, code: StatusCode) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn http(&self) -> StatusCode {
        self.code.unwrap_or_else(|| http_code(&self.error.status))
    }
}

/// The HTTP code that a status stands for.
pub(crate) fn http_code(status: &str) -> StatusCode {
    let code = match status {
        "INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "OUT_OF_RANGE" => 400,
        "UNAUTHENTICATED" => 401,
        "PERMISSION_DENIED" => 403,
        "NOT_FOUND" => 404,
        "ALREADY_EXISTS" | "ABORTED" => 409,
        "RESOURCE_EXHAUSTED" => 429,
        "CANCELLED" => 499,
        "UNIMPLEMENTED" => 501,
        "UNAVAILABLE" => 503,
        "DEADLINE_EXCEEDED" => 504,
        _ => 500,
    };
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        if matches!(error.kind(), everturn::ErrorKind::Internal | everturn::ErrorKind::Corrupt) {
            // What broke inside is for whoever runs the server.
            tracing::error!(%error, "a request failed");
            return Self::new(error.kind().status(), "internal error");
        }
        Self { error: TurnError::from(&error), code: None }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = self.http();
        let told = Told(self.error.message.clone());
        let mut response = (code, Json(self.error)).into_response();
        response.extensions_mut().insert(told);
        if code == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
