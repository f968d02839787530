//! The server: its routes, and how it starts and stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use everturn::Registry;
use tokio::net::TcpListener;

use super::admission::{Admission, admit};
use super::answers::{self, Answers};
use super::connections::{self, Listening};
use super::operations::{self, Operations};
use super::problem::Problem;
use super::{Access, cors, genkit, guard, headers, identify, limits, observe, v1};
use crate::config::Limits;
use crate::ops::{Gauge, Metrics};

/// Where a server listens, and to whom.
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
    pub(crate) metrics_addr: Option<SocketAddr>,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    /// How long requests may go on after the server was asked to stop.
    pub(crate) drain: Duration,
    pub(crate) operations: Operations,
}

/// A server that listens.
pub(crate) struct Server {
    listener: TcpListener,
    router: Router,
    listening: Arc<Listening>,
    metrics: Option<(TcpListener, Router, Arc<Listening>)>,
    drain: Duration,
}

async fn bind(addr: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr)
        .await
        .with_context(|| format!("cannot listen on {addr}: choose another port with {option}, or 0 for any free one"))
}

impl Server {
    /// Takes the port.
    pub(crate) async fn bind(settings: Settings, agents: Registry) -> anyhow::Result<Self> {
        let Settings { addr, metrics_addr, access, limits, drain, operations } = settings;
        anyhow::ensure!(
            addr.ip().is_loopback() || access.authority.knows_somebody(),
            "{addr} can be reached from other machines, and there is no valid key to tell who is who: make one with \
             `everturn keys create --user NAME`, give --keys FILE or --jwt-key FILE, or listen on 127.0.0.1"
        );
        let listener = bind(addr, "--addr").await?;
        let (limits, operations) = (Arc::new(limits), Arc::new(operations));
        let listening = |open: Arc<Gauge>| {
            let (limits, metrics) = (limits.clone(), operations.metrics.clone());
            Arc::new(Listening { limits, metrics, open, stop: operations.stopping.clone() })
        };
        let metrics = match metrics_addr {
            None => None,
            Some(addr) => {
                let router = operations::open_routes(operations.clone()).layer(from_fn(enter_locally));
                Some((bind(addr, "--metrics-addr").await?, router, listening(Arc::default())))
            }
        };
        let listening = listening(operations.metrics.connections.clone());
        let router = router(agents, access, limits.clone(), operations);
        Ok(Self { listener, router, listening, metrics, drain })
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Where it tells how it is doing, if that has a port of its own.
    pub(crate) fn metrics_addr(&self) -> anyhow::Result<Option<SocketAddr>> {
        Ok(self.metrics.as_ref().map(|(listener, ..)| listener.local_addr()).transpose()?)
    }

    /// Serves until it is asked to stop, then lets running requests end for a while.
    pub(crate) async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) {
        let Self { listener, router, listening, metrics, drain } = self;
        let stopping = listening.stop.clone();
        let asked = stopping.clone();
        tokio::spawn(async move {
            stop.await;
            asked.cancel();
        });
        if let Some((listener, router, listening)) = metrics {
            tokio::spawn(connections::serve(listener, router, listening));
        }
        let mut served = std::pin::pin!(connections::serve(listener, router, listening));
        tokio::select! {
            () = &mut served => return,
            () = stopping.cancelled() => {}
        }
        if tokio::time::timeout(drain, served).await.is_err() {
            tracing::warn!("requests were still running when the server stopped; their turns are aborted");
        }
    }
}

fn router(agents: Registry, access: Access, limits: Arc<Limits>, operations: Arc<Operations>) -> Router {
    let (metrics, access) = (operations.metrics.clone(), Arc::new(access));
    let stopping = v1::Stopping::from(operations.stopping.clone());
    let inside = Inside {
        admission: Admission::new(&limits, metrics.clone()),
        answers: Arc::new(Answers::new(&limits, metrics.clone())),
        access: access.clone(),
        stopping,
    };
    let routes = Router::new()
        .merge(operations::routes(operations))
        .nest("/genkit", genkit::routes(agents.clone()))
        .merge(v1::routes(agents))
        .fallback(|| async { Problem::not_found("there is nothing at this address") })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::new(inside), enter_route));
    // Around all routes as one: on a router of routes, axum adds `Allow` outside the layers, and a stranger's 401 would
    // tell which addresses there are.
    let front = Arc::new(Front { metrics, limits, access });
    Router::new().fallback_service(routes).layer(from_fn_with_state(front, enter))
}

/// What every request goes through before it gets to a route.
struct Front {
    metrics: Arc<Metrics>,
    limits: Arc<Limits>,
    access: Arc<Access>,
}

/// The way in, as one layer: axum copies all that is inside of a layer for each request, and layers inside each other are
/// copied as often as there are layers around them.
async fn enter(
    State(front): State<Arc<Front>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let Front { metrics, limits, access } = &*front;
    let identified = |request| identify::identify(access, peer, request, |request| next.run(request));
    let shared = |request| cors::cors(access, request, identified);
    let guarded = |request| guard::guard(access, request, shared);
    let worded = |request| v1::reword(request, guarded);
    let secured = |request| headers::secure(request, worded);
    let limited = |request| limits::limit(limits, request, secured);
    observe::observe(metrics, request, limited).await
}

/// What a request goes through that has found its route.
struct Inside {
    admission: Admission,
    answers: Arc<Answers>,
    access: Arc<Access>,
    stopping: v1::Stopping,
}

async fn enter_route(State(inside): State<Arc<Inside>>, mut request: Request, next: Next) -> Response {
    observe::note_route(&request);
    request.extensions_mut().insert(inside.stopping.clone());
    let Inside { admission, answers, access, .. } = &*inside;
    let bounded = |request| answers::bound(answers, access, request, |request| next.run(request));
    admit(admission, request, bounded).await
}

async fn enter_locally(request: Request, next: Next) -> Response {
    headers::secure(request, |request| guard::local(request, |request| next.run(request))).await
}

async fn method_not_allowed() -> Response {
    use axum::response::IntoResponse as _;
    Problem::invalid("this address does not take that method").code(StatusCode::METHOD_NOT_ALLOWED).into_response()
}
