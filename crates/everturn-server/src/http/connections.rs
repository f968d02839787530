//! Connections: taken, watched, and closed when their clients are late or the server stops.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
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
use super::left::lend;
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

fn problem(status: impl Display, title: &str, code: &str, detail: &str) -> String {
    let kind = format!("urn:everturn:problem:{code}");
    format!(r#"{{"type":"{kind}","title":"{title}","status":{status},"code":"{code}","detail":"{detail}"}}"#)
}

/// An answer to somebody whose request was not read.
fn unread(status: &str, retry: &str, code: &str, detail: &str) -> String {
    let (number, title) = status.split_once(' ').unwrap_or((status, ""));
    let body = problem(number, title, code, detail);
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
    read_out(stream).await
}

/// Closes a connection when its client has nothing more to say.
async fn read_out(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut sink = [0; 4096];
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
    let io = TokioIo::new(Paced { stream, pace: pace.clone(), refused: false });
    let (routes, noting) = (TowerToHyperService::new(router), pace.clone());
    let most = on.limits.header;
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let answering = Arc::new(noting.answering());
        let fits = head_bytes(&request) <= most;
        let (request, left) = lend(request);
        let routes = routes.clone();
        async move {
            let mut response = match fits {
                true => routes.call(request).await?,
                false => too_large_a_head(most),
            };
            left.answered(&mut response, answering.clone());
            Ok::<_, Infallible>(hold(response, answering))
        }
    });
    let mut http = http1::Builder::new();
    http.header_read_timeout(None).max_buf_size(on.limits.header);
    let mut conn = http.serve_connection(io, service);
    let mut stop = pin!(on.stop.cancelled());
    let mut stopping = false;
    let mut alarm = pin!(sleep_until(Instant::now() + on.limits.header_timeout));
    let end = poll_fn(|cx| {
        // What a connection waits for changes only while it is polled.
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            Pin::new(&mut conn).graceful_shutdown();
        }
        if let Poll::Ready(done) = Pin::new(&mut conn).poll(cx) {
            return Poll::Ready(End::Done(done));
        }
        // A client that has not asked for anything waits for nothing. What had come was read just now.
        if stopping && pace.is_headless() {
            return Poll::Ready(End::Stopped);
        }
        loop {
            let Some((at, late)) = pace.deadline() else { return Poll::Pending };
            if at <= Instant::now() {
                return Poll::Ready(End::Late(late));
            }
            // An alarm that rings too early is set again then; most never ring.
            if at < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(at);
            }
            ready!(alarm.as_mut().poll(cx));
        }
    });
    let end = end.await;
    let parts = conn.into_parts();
    let answer = match end {
        End::Late(Late::Head) => {
            let detail = "the head of the request did not come in time: send it faster";
            unread("408 Request Timeout", "", "timeout", detail)
        }
        // Of a head that is too large its beginning is still there; one with a length beyond all numbers has been read.
        End::Done(Err(error)) if error.is_parse_too_large() => match holds_a_head(&parts.read_buf) {
            true => unread("431 Request Header Fields Too Large", "", "too_large", &head_limit(on.limits.header)),
            false => {
                let detail = "the length of the body is larger than any body can be: send less";
                unread("413 Payload Too Large", "", "too_large", detail)
            }
        },
        End::Late(_) | End::Done(_) | End::Stopped => return,
    };
    let stream = parts.io.into_inner().stream;
    // If there is no room for it the client is later still.
    let _ = stream.try_write(answer.as_bytes());
    let _ = timeout(REFUSING, read_out(stream)).await;
}

/// How a connection ended.
enum End {
    Done(hyper::Result<()>),
    Late(Late),
    Stopped,
}

/// What a head has in bytes, written as plainly as it can be. The parser of heads takes some more than it is told to.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let uri = request.uri();
    let target = match uri.authority() {
        None => uri.path_and_query().map_or(0, |target| target.as_str().len()),
        Some(_) => uri.to_string().len(),
    };
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + headers.sum::<usize>() + "\r\n".len()
}

fn head_limit(most: usize) -> String {
    format!("the head of the request is larger than the limit of {most} bytes, or has more than 100 headers: send less")
}

fn too_large_a_head(most: usize) -> Response {
    let (status, kind) =
        (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, HeaderValue::from_static("application/problem+json"));
    let body = problem(status.as_u16(), "Request Header Fields Too Large", "too_large", &head_limit(most));
    (status, [(CONTENT_TYPE, kind), (CONNECTION, HeaderValue::from_static("close"))], body).into_response()
}

/// Whether the first line of a head is in what was not read.
fn holds_a_head(unread: &[u8]) -> bool {
    unread.windows(6).any(|bytes| bytes == b"HTTP/1") || unread.len() >= usize::from(u16::MAX)
}
