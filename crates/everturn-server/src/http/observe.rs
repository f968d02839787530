//! One line and a few numbers for each request, and never what was in it.
//!
//! What is told: an id, the method, the route's template, the status, how long it took, and the name of the key. Paths,
//! queries, headers and bodies hold what is somebody's own, and are told nobody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_http::HeaderExtractor;
use tracing::Instrument as _;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::held::hold;
use crate::ops::{Answered, Metrics, REQUESTS};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken from a client.
const LONGEST_ID: usize = 64;

/// What is said of a client that went away before it was answered.
const GONE: u16 = 499;

/// What becomes known about a request on its way inwards.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    route: OnceLock<MatchedPath>,
    key: OnceLock<Arc<str>>,
}

impl Seen {
    pub(super) fn key(&self, name: &Arc<str>) {
        let _ = self.0.key.set(name.clone());
    }

    fn route(&self) -> &str {
        self.0.route.get().map_or("none", MatchedPath::as_str)
    }
}

/// Notes which route a request took. Inside the router, where that is known.
pub(super) fn note_route(request: &Request) {
    let extensions = request.extensions();
    if let (Some(seen), Some(route)) = (extensions.get::<Seen>(), extensions.get::<MatchedPath>()) {
        let _ = seen.0.route.set(route.clone());
        let span = tracing::Span::current();
        if !span.is_disabled() {
            span.record("http.route", route.as_str());
            span.context().span().update_name(format!("{} {}", method(request.method()), route.as_str()));
        }
    }
}

/// Gives each request an id, and tells what became of it when its answer has been sent.
pub(super) async fn observe<F>(
    metrics: &Arc<Metrics>,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = Response>,
{
    let id = request_id(request.headers());
    let seen = Seen::default();
    let method = method(request.method());
    let span = span(method, request.headers());
    request.extensions_mut().insert(seen.clone());
    let id_text = id.to_str().unwrap_or_default().to_owned();
    let mut note = Note { metrics: metrics.clone(), id: id_text, method, seen, since: Instant::now(), begun: None };
    let mut response = next(request).instrument(span.clone()).await;
    let status = response.status().as_u16();
    span.record("http.response.status_code", status);
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
    note.begun = Some((status, note.since.elapsed()));
    response.headers_mut().insert(REQUEST_ID, id);
    hold(response, note)
}

/// The span of a request, below the one that its sender names.
fn span(method: &'static str, headers: &HeaderMap) -> tracing::Span {
    let span = tracing::info_span!(
        target: REQUESTS,
        "request",
        otel.name = method,
        otel.kind = "server",
        "http.request.method" = method,
        "http.route" = Empty,
        "http.response.status_code" = Empty,
        "otel.status_code" = Empty,
    );
    if !span.is_disabled() && headers.contains_key("traceparent") {
        let parent = opentelemetry::global::get_text_map_propagator(|known| known.extract(&HeaderExtractor(headers)));
        // Without a collector there is no parent to have.
        let _ = span.set_parent(parent);
    }
    span
}

/// The client's own id if it is a plain word, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let sent =
        headers.get(&REQUEST_ID).filter(|id| (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(plain));
    if let Some(id) = sent {
        return id.clone();
    }
    let id = format!("{:016x}", fresh_number());
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
}

/// A number that others are unlikely to have, though not to guess: nothing hangs on it. Chance is asked for once, not for
/// each request.
fn fresh_number() -> u64 {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(getrandom::u64().unwrap_or_default()));
    // Neighbours are to look different: the steps of SplitMix64.
    let mut number = NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The method as a label; what people make up is `other`.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// What is told about a request when it is dropped, however it ended.
struct Note {
    metrics: Arc<Metrics>,
    id: String,
    method: &'static str,
    seen: Seen,
    since: Instant,
    /// The status, and how long it took until the answer began.
    begun: Option<(u16, Duration)>,
}

impl Drop for Note {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        let (status, after) = self.begun.unwrap_or((GONE, took));
        let (route, key) = (self.seen.route(), self.seen.0.key.get().map_or("-", |key| &**key));
        self.metrics.answered(Answered { route: (self.method, route.to_owned()), status, after });
        let milliseconds = took.as_micros() as f64 / 1000.0;
        tracing::info!(
            target: "everturn::http",
            request_id = self.id, method = self.method, route, status, ms = milliseconds, key,
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_only_if_it_is_a_plain_word() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(text).unwrap());
            request_id(&headers)
        };
        for good in ["abc", "0192-a_b.c", &"x".repeat(64)] {
            assert_eq!(id(good), good);
        }
        for bad in ["", "a b", "a\"b", "a=b", "<x>", &"x".repeat(65)] {
            let made = id(bad);
            assert!(made != bad && made.len() == 16, "{bad}: {made:?}");
        }
    }
}
