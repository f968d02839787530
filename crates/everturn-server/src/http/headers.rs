//! What every answer tells browsers.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Not to be guessed at, framed or followed back here.
const ALWAYS: [(HeaderName, &str); 3] =
    [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (REFERRER_POLICY, "no-referrer"), (X_FRAME_OPTIONS, "DENY")];

/// An answer is data for one reader, kept nowhere, that loads nothing; a page says for itself what it needs.
const UNLESS_SAID: [(HeaderName, &str); 2] =
    [(CACHE_CONTROL, "no-store"), (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'")];

/// Adds the headers to whatever is answered, refusals too.
pub(super) async fn secure<F>(request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let mut response = next(request).await;
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in UNLESS_SAID {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
