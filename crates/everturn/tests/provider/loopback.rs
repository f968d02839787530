//! A provider on this machine: it answers what its script says, in the language of the provider it stands for, and
//! remembers what it was asked.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response};
use everturn::model::Provider;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::wire::{Said, Wire};

/// The key that tests give.
pub(crate) const KEY: &str = "secret-key-of-the-tests";

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// What the provider does with one request.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    pieces: Vec<Vec<u8>>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    /// The body is whole.
    Whole,
    /// The connection is dropped in the middle of the body.
    Cut,
    /// Nothing more comes, and the connection stays.
    Stall,
    /// This comes for ever.
    Endless(Vec<u8>),
}

impl Reply {
    /// A whole answer, one piece a frame.
    pub(crate) fn answer(wire: Wire, said: &Said) -> Self {
        Self { status: 200, headers: Vec::new(), pieces: wire.encode(said), end: End::Whole }
    }

    /// Bytes that no provider would send.
    pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, headers: Vec::new(), pieces: vec![bytes.into()], end: End::Whole }
    }

    /// An error with a message, wrapped as the provider does.
    pub(crate) fn error(wire: Wire, status: u16, message: &str) -> Self {
        Self { status, ..Self::raw(wire.error(status, message)) }
    }

    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// The same in pieces of so many bytes, which end in the middle of frames, strings and characters.
    pub(crate) fn torn(mut self, bytes: usize) -> Self {
        self.pieces = self.pieces.concat().chunks(bytes).map(<[u8]>::to_vec).collect();
        self
    }

    /// Only the first frames, and then the connection is dropped.
    pub(crate) fn cut_after(mut self, frames: usize) -> Self {
        self.pieces.truncate(frames);
        self.end = End::Cut;
        self
    }

    /// Only the first frames, and then the body ends as if it were whole.
    pub(crate) fn ended_after(mut self, frames: usize) -> Self {
        self.pieces.truncate(frames);
        self
    }

    /// Only the first frames, and then nothing.
    pub(crate) fn stalled_after(mut self, frames: usize) -> Self {
        self.pieces.truncate(frames);
        self.end = End::Stall;
        self
    }

    /// Its frames, and then the same bytes for ever.
    pub(crate) fn endless(mut self, frames: usize, bytes: impl Into<Vec<u8>>) -> Self {
        self.pieces.truncate(frames);
        self.end = End::Endless(bytes.into());
        self
    }

    fn body(self, told: Told) -> BoxStream<'static, Result<Bytes, io::Error>> {
        let first = stream::iter(self.pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
        let last: BoxStream<'static, Result<Bytes, io::Error>> = match self.end {
            End::Whole => stream::empty().boxed(),
            // What was sent so far must have left before the connection goes.
            End::Cut => stream::once(async {
                tokio::task::yield_now().await;
                Err(io::Error::other("cut"))
            })
            .boxed(),
            End::Stall => stream::pending().boxed(),
            End::Endless(bytes) => stream::repeat_with(move || Ok(Bytes::from(bytes.clone()))).boxed(),
        };
        first
            // Each piece goes out by itself.
            .then(|piece| async {
                tokio::task::yield_now().await;
                piece
            })
            .chain(last)
            .map(move |piece| {
                let _lives_as_long_as_the_body = &told;
                piece
            })
            .boxed()
    }
}

/// Tells that a body was dropped, sent or not.
struct Told(mpsc::UnboundedSender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

struct Shared {
    script: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<Asked>>,
    dropped: mpsc::UnboundedSender<()>,
}

/// A running provider. It ends with the test's runtime.
pub(crate) struct Loopback {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    dropped: mpsc::UnboundedReceiver<()>,
}

impl Loopback {
    /// Answers with these, one a request; further requests get a 418.
    pub(crate) async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let (sender, dropped) = mpsc::unbounded_channel();
        let script = Mutex::new(script.into_iter().collect());
        let shared = Arc::new(Shared { script, asked: Mutex::default(), dropped: sender });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, dropped }
    }

    /// The base address for a wire.
    pub(crate) fn url(&self, wire: Wire) -> String {
        format!("http://{}{}", self.address, wire.base())
    }

    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// A model on it that tries again without waiting.
    pub(crate) fn model(&self, wire: Wire) -> Provider {
        Provider::new(wire.model()).unwrap().endpoint(self.url(wire)).unwrap().api_key(KEY).backoff(Duration::ZERO)
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// The one thing it was asked.
    pub(crate) fn only_asked(&self) -> Asked {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.into_iter().next().unwrap()
    }

    /// Waits until a body is sent or its reader is gone.
    pub(crate) async fn body_dropped(&mut self) {
        self.dropped.recv().await.unwrap();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let path = head.uri.path_and_query().unwrap().to_string();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    shared.asked.lock().unwrap().push(Asked { path, headers: head.headers, body });
    let reply = shared.script.lock().unwrap().pop_front();
    let reply = reply.unwrap_or_else(|| Reply { status: 418, ..Reply::raw("the script is at its end") });
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    let told = Told(shared.dropped.clone());
    Ok(response.body(Body::from_stream(reply.body(told))).unwrap())
}
