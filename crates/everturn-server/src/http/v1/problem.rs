//! Errors of `/v1`: `application/problem+json` with a stable code, and the fix in the detail.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn::{Error, ErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::body::Refused;
use crate::http::problem::brief;

/// What went wrong (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Problem {
    /// A name of this kind of problem that never changes.
    #[serde(rename = "type")]
    kind: String,
    /// The HTTP status in words.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What the caller can do about it, as one word that never changes.
    code: &'static str,
    /// What happened, and the fix.
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:everturn:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code,
            detail: brief(detail.into()),
        }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::Invalid.name(), detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::NotFound.name(), detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// The head is not where `If-Match` says.
    pub(super) fn precondition(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, ErrorKind::Conflict.name(), detail)
    }

    /// An error of a conditional write: what was expected and is not so is a precondition that failed.
    pub(super) fn conditional(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Conflict => Self::precondition(error.to_string()),
            _ => error.into(),
        }
    }
}

/// The status that a kind of error stands for.
fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Invalid | ErrorKind::WrongMode => StatusCode::BAD_REQUEST,
        ErrorKind::AlreadyExists
        | ErrorKind::Conflict
        | ErrorKind::Busy
        | ErrorKind::Fenced
        | ErrorKind::NotResumable
        | ErrorKind::Aborted => StatusCode::CONFLICT,
        ErrorKind::Deleted | ErrorKind::Expired => StatusCode::GONE,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        // Not 503: programs that send such a request again by themselves could have it done twice.
        ErrorKind::UnknownOutcome => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (status, code) = (status_of(error.kind()), error.kind().name());
        let told = error.kind() == ErrorKind::UnknownOutcome;
        if status == StatusCode::INTERNAL_SERVER_ERROR && !told {
            // What broke inside is for whoever runs the server.
            tracing::error!(%error, "a request failed");
            return Self::new(status, code, "internal error: the server's log has more");
        }
        Self::new(status, code, error.to_string())
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let code = match refused.status {
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
            StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge.name(),
            StatusCode::REQUEST_TIMEOUT => "timeout",
            _ => ErrorKind::Invalid.name(),
        };
        Self::new(refused.status, code, refused.why)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let again = self.code == ErrorKind::Busy.name() || self.code == ErrorKind::Unavailable.name();
        let mut response = (status, axum::Json(self)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if again {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
