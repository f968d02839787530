//! Pages of other origins: none, or exactly those that were named.

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::guard::only;
use super::{Access, Origin};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const SENT: HeaderValue = HeaderValue::from_static(
    "accept, authorization, content-type, idempotency-key, if-match, last-event-id, traceparent, x-request-id",
);
const SHOWN: HeaderValue = HeaderValue::from_static("etag, retry-after, www-authenticate, x-request-id");
const SECONDS: HeaderValue = HeaderValue::from_static("600");

/// Tells browsers which pages may read the answers. There are no cookies, so none are ever allowed along.
pub(super) async fn cors<F>(access: &Access, request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    if access.origins.is_empty() {
        return next(request).await;
    }
    let origin = allowed(request.headers(), &access.origins).map(Origin::header);
    let mut response = match &origin {
        // A browser asks this before the page's own request, and without the page's credentials.
        Some(_) if is_preflight(&request) => preflight(),
        _ => next(request).await,
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, SHOWN);
    }
    response
}

fn allowed<'a>(headers: &HeaderMap, origins: &'a [Origin]) -> Option<&'a Origin> {
    let origin = only(headers, &ORIGIN).ok()??;
    origins.iter().find(|allowed| allowed.as_str() == origin)
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (ACCESS_CONTROL_ALLOW_HEADERS, SENT),
        (ACCESS_CONTROL_MAX_AGE, SECONDS),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}
