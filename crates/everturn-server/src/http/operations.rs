//! What whoever runs the server asks: is it there, can it work, how is it doing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use everturn::store::SqliteStore;
use tokio_util::sync::CancellationToken;

use super::identify::demand;
use super::problem::Problem;
use crate::auth::{Identity, Right};
use crate::ops::{Health, Metrics, NotReady};

/// The routes that anybody may ask: they say whether, and nothing else.
pub(super) const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// What there is to tell.
pub(crate) struct Operations {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) sqlite: Option<SqliteStore>,
    /// Cancelled when the server is asked to stop.
    pub(crate) stopping: CancellationToken,
}

/// The routes for a server that knows who asks.
pub(super) fn routes(operations: Arc<Operations>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_for_admins))
        .with_state(operations)
}

/// The same for a port of their own, where nobody is asked who they are.
pub(super) fn open_routes(operations: Arc<Operations>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(|| async { Problem::not_found("there is nothing at this address: ask for /metrics") })
        .with_state(operations)
}

async fn healthz() -> &'static str {
    "ok"
}

/// Whether work can be sent here. What is wrong in detail is in the log.
async fn readyz(State(operations): State<Arc<Operations>>) -> Response {
    let not = |why: &'static str| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if operations.stopping.is_cancelled() {
        return not("stopping");
    }
    let (error, why) = match operations.health.ready().await {
        Ok(()) => return "ready".into_response(),
        Err(NotReady::Silent(error)) => (error, "the store does not answer: the server's log says why"),
        Err(NotReady::ReadOnly(error)) => (error, "nothing can be written to the store: the server's log says why"),
    };
    tracing::warn!(%error, "not ready");
    not(why)
}

async fn metrics_for_admins(
    State(operations): State<Arc<Operations>>,
    Extension(identity): Extension<Identity>,
) -> Result<Response, Problem> {
    demand(&identity, Right::Admin)?;
    Ok(metrics(State(operations)).await)
}

async fn metrics(State(operations): State<Arc<Operations>>) -> Response {
    let text = operations.metrics.text(operations.sqlite.as_ref());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, kind)], text).into_response()
}
