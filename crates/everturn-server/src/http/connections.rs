//! Connections: taken, watched, and closed when their clients are late or the server stops.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::held::hold;
use super::pace::{Late, Pace, Paced};
use crate::config::Limits;
use crate::ops::{Gauge, Metrics, Refusal};

/// How long the system has to find room when no connection can be taken for want of files.
const NO_FILES: Duration = Duration::from_millis(100);

/// Connections that may be told at once that there are too many; more are closed without a word.
const REFUSALS: usize = 64;

/// How long telling them may take.
const REFUSING: Duration = Duration::from_secs(1);

/// After how much silence the system asks whether a client's machine is still there.
const STILL_THERE: Duration = Duration::from_secs(30);

/// What all connections of a listener share.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) limits: Arc<Limits>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) open: Arc<Gauge>,
    pub(super) stop: CancellationToken,
}

/// Serves whoever connects until it is to stop, and returns when the last connection is closed.
pub(super) async fn serve(listener: TcpListener, router: Router, on: Arc<Listening>) {
    // Each connection has a sender; when all are gone nobody can send any more.
    let (alive, mut all_closed) = mpsc::channel::<Infallible>(1);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    loop {
        let accepted = tokio::select! {
            biased;
            () = on.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) if on.open.get() >= on.limits.connections => {
                on.metrics.refused(Refusal::Connections);
                if let Ok(permit) = refusals.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = timeout(REFUSING, refuse(stream)).await;
                        drop(permit);
                    });
                }
            }
            Ok((stream, peer)) => {
                let (router, on, alive) = (router.clone(), on.clone(), alive.clone());
                let open = Open::new(on.open.clone());
                tokio::spawn(async move {
                    connection(stream, peer, router, &on).await;
                    drop((open, alive));
                });
            }
            Err(error) if is_of_client(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be taken; it is tried again");
                sleep(NO_FILES).await;
            }
        }
    }
    drop((listener, alive));
    all_closed.recv().await;
}

/// Whether a connection failed before it was taken, which is nobody's trouble but its client's.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A connection that is counted.
struct Open(Arc<Gauge>);

impl Open {
    fn new(gauge: Arc<Gauge>) -> Self {
        gauge.up();
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.down();
    }
}

/// An answer to somebody whose request was not read.
fn unread(status: &str, retry: &str, code: &str, detail: &str) -> String {
    let (number, title) = status.split_once(' ').unwrap_or((status, ""));
    let kind = format!("urn:everturn:problem:{code}");
    let body =
        format!(r#"{{"type":"{kind}","title":"{title}","status":{number},"code":"{code}","detail":"{detail}"}}"#);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\n{retry}connection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Says that there are too many. What was sent is read, or closing would take the answer back.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let detail = "too many connections are open: try again in a second";
    let answer = unread("503 Service Unavailable", "retry-after: 1\r\n", "unavailable", detail);
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut sink = [0; 1024];
    while stream.read(&mut sink).await? > 0 {}
    Ok(())
}

/// Tells the system how long a client may be gone before it is given up.
fn prepare(stream: &TcpStream, limits: &Limits) {
    // None of these is worth losing a connection for.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt;
        let patience = u32::try_from(limits.write_timeout.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(stream, patience);
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, STILL_THERE);
        let _ = sockopt::set_tcp_keepintvl(stream, STILL_THERE);
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, on: &Listening) {
    prepare(&stream, &on.limits);
    let pace = Arc::new(Pace::new(&on.limits));
    let io = TokioIo::new(Paced { stream, pace: pace.clone() });
    let (routes, noting) = (TowerToHyperService::new(router), pace.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let answering = noting.answering();
        let answer = routes.call(request);
        async move { answer.await.map(|response| hold(response, answering)) }
    });
    let mut http = http1::Builder::new();
    http.header_read_timeout(None).max_buf_size(on.limits.header);
    let mut conn = http.serve_connection(io, service);
    let mut stop = pin!(on.stop.cancelled());
    let mut stopping = false;
    let mut alarm = pin!(sleep_until(Instant::now() + on.limits.header_timeout));
    let late = poll_fn(|cx| {
        // What a connection waits for changes only while it is polled.
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            Pin::new(&mut conn).graceful_shutdown();
            // Somebody who has not said a word waits for nothing.
            if pace.is_new() {
                return Poll::Ready(None);
            }
        }
        if Pin::new(&mut conn).poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        loop {
            let Some((at, late)) = pace.deadline() else { return Poll::Pending };
            if at <= Instant::now() {
                return Poll::Ready(Some(late));
            }
            // An alarm that rings too early is set again then; most never ring.
            if at < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(at);
            }
            ready!(alarm.as_mut().poll(cx));
        }
    });
    if late.await == Some(Late::Head) {
        let detail = "the head of the request did not come in time: send it faster";
        let answer = unread("408 Request Timeout", "", "timeout", detail);
        let mut stream = conn.into_parts().io.into_inner().stream;
        // If there is no room for it the client is later still.
        let _ = stream.try_write(answer.as_bytes());
        let _ = timeout(REFUSING, stream.shutdown()).await;
    }
}
