//! What is refused before a route of `/v1` is reached, in its own words.
//!
//! Whoever lets requests in serves several wires and speaks as Genkit does.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use everturn::ErrorKind;

use super::frames::frame;
use super::problem::Problem;
use crate::http::problem::{self as http, Told};

/// Says again as a [`Problem`] what went wrong below `/v1`.
pub(in crate::http) async fn reword<F>(request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let ours = request.uri().path().starts_with("/v1/");
    let mut response = next(request).await;
    match response.extensions_mut().remove::<Told>() {
        Some(Told(what)) if ours => said_again(response, what),
        _ => response,
    }
}

/// The same answer with another body: what its headers say stays.
fn said_again(response: Response, what: String) -> Response {
    let status = response.status();
    let (mut parts, _) = response.into_parts();
    let (said, body) = Problem::new(status, code_of(status), what).into_response().into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    if let Some(kind) = said.headers.get(CONTENT_TYPE) {
        parts.headers.insert(CONTENT_TYPE, kind.clone());
    }
    Response::from_parts(parts, body)
}

/// The last event of a stream that is ended from outside.
pub(in crate::http) fn last_event(ended: &http::Problem) -> String {
    let status = ended.http();
    let problem = Problem::new(status, code_of(status), ended.error.message.clone());
    // A problem is a few plain texts, and those can be written.
    frame("error", None, &problem).unwrap_or_default()
}

fn code_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => ErrorKind::Invalid.name(),
        StatusCode::UNAUTHORIZED => "unauthenticated",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => ErrorKind::NotFound.name(),
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        StatusCode::REQUEST_TIMEOUT => "timeout",
        StatusCode::TOO_MANY_REQUESTS => "too_many_requests",
        StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Unavailable.name(),
        _ => ErrorKind::Internal.name(),
    }
}
