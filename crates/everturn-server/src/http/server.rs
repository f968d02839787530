//! The server: its routes, and how it starts and stops.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::get;
use everturn::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::{genkit, guard, v1};

/// The largest body that is taken.
pub(super) const MAX_BODY: usize = 16 << 20;

/// How long turns that run may go on after the server was asked to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
}

/// A server that listens.
pub(crate) struct Server {
    listener: TcpListener,
    router: Router,
    stopping: CancellationToken,
}

impl Server {
    /// Takes the port.
    pub(crate) async fn bind(settings: &Settings, agents: Registry) -> anyhow::Result<Self> {
        let addr = settings.addr;
        anyhow::ensure!(
            addr.ip().is_loopback(),
            "{addr} can be reached from other machines, and this server asks nobody who they are: listen on 127.0.0.1"
        );
        let listener = TcpListener::bind(addr).await.with_context(|| {
            format!("cannot listen on {addr}: choose another port with --addr, or 0 for any free one")
        })?;
        Ok(Self { listener, router: router(agents), stopping: CancellationToken::new() })
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until it is asked to stop, then lets running turns end for a while.
    pub(crate) async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
        let stopping = self.stopping.clone();
        let asked = stopping.clone();
        let graceful = async move {
            stop.await;
            asked.cancel();
        };
        let served = axum::serve(self.listener, self.router).with_graceful_shutdown(graceful).into_future();
        tokio::pin!(served);
        tokio::select! {
            done = &mut served => return Ok(done?),
            () = stopping.cancelled() => {}
        }
        match tokio::time::timeout(DRAIN, served).await {
            Ok(done) => Ok(done?),
            Err(_) => {
                tracing::warn!("turns were still running when the server stopped; they are aborted");
                Ok(())
            }
        }
    }
}

fn router(agents: Registry) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .nest("/genkit", genkit::routes(agents.clone()))
        .merge(v1::routes(agents))
        .fallback(|| async { Problem::not_found("there is nothing at this address") })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(guard::same_machine))
}

async fn method_not_allowed() -> Response {
    use axum::response::IntoResponse as _;
    Problem::invalid("this address does not take that method").code(StatusCode::METHOD_NOT_ALLOWED).into_response()
}
