//! The server: its routes, and how it starts and stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use everturn::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::{Access, cors, genkit, guard, headers, identify, v1};

/// The one route that anybody may ask.
pub(super) const HEALTH: &str = "/healthz";

/// The largest body that is taken.
pub(super) const MAX_BODY: usize = 16 << 20;

/// How long turns that run may go on after the server was asked to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Where a server listens, and to whom.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
    pub(crate) access: Access,
}

/// A server that listens.
pub(crate) struct Server {
    listener: TcpListener,
    router: Router,
    stopping: CancellationToken,
}

impl Server {
    /// Takes the port.
    pub(crate) async fn bind(settings: Settings, agents: Registry) -> anyhow::Result<Self> {
        let Settings { addr, access } = settings;
        anyhow::ensure!(
            addr.ip().is_loopback() || access.authority.knows_somebody(),
            "{addr} can be reached from other machines, and there is no valid key to tell who is who: make one with \
             `everturn keys create --user NAME`, give --keys FILE or --jwt-key FILE, or listen on 127.0.0.1"
        );
        let listener = TcpListener::bind(addr).await.with_context(|| {
            format!("cannot listen on {addr}: choose another port with --addr, or 0 for any free one")
        })?;
        let stopping = CancellationToken::new();
        let router = router(agents, access).layer(Extension(v1::Streams::until(stopping.clone())));
        Ok(Self { listener, router, stopping })
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
        let service = self.router.into_make_service_with_connect_info::<SocketAddr>();
        let served = axum::serve(self.listener, service).with_graceful_shutdown(graceful).into_future();
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

fn router(agents: Registry, access: Access) -> Router {
    let routes = Router::new()
        .route(HEALTH, get(|| async { "ok" }))
        .nest("/genkit", genkit::routes(agents.clone()))
        .merge(v1::routes(agents))
        .fallback(|| async { Problem::not_found("there is nothing at this address") })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY));
    let access = Arc::new(access);
    // Around all routes as one: on a router of routes, axum adds `Allow` outside the layers, and a stranger's 401 would
    // tell which addresses there are.
    Router::new()
        .fallback_service(routes)
        .layer(from_fn_with_state(access.clone(), identify::identify))
        .layer(from_fn_with_state(access.clone(), cors::cors))
        .layer(from_fn_with_state(access, guard::guard))
        .layer(from_fn(headers::secure))
}

async fn method_not_allowed() -> Response {
    use axum::response::IntoResponse as _;
    Problem::invalid("this address does not take that method").code(StatusCode::METHOD_NOT_ALLOWED).into_response()
}
