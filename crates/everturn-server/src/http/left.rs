//! What is left of a body that was answered before it was read.
//!
//! A connection that is closed while its client still sends loses the answer: the client's system is told so, and most
//! clients never look at what came before. So what is left is read for a while and thrown away.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use axum::response::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::timeout;

/// What is left of a body costs the connection unless it is this or less, and so is read sooner than a new one is made.
const SMALL: u64 = 64 << 10;

/// How much is read at most, for how long, and how long nothing may come.
const MOST: usize = 64 << 20;
const LONGEST: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// A body that comes back when it is dropped before its end.
pub(super) struct Lent {
    body: Option<Incoming>,
    back: Arc<Mutex<Option<Incoming>>>,
}

/// Where it comes back to.
pub(super) struct Left(Arc<Mutex<Option<Incoming>>>);

/// Gives a request a body that comes back.
pub(super) fn lend(request: Request<Incoming>) -> (Request<Lent>, Left) {
    let back = Arc::default();
    let left = Left(Arc::clone(&back));
    (request.map(|body| Lent { body: Some(body), back }), left)
}

impl Left {
    /// Reads what is left of the body, and says that the connection is closed after this unless that is little. `busy` is
    /// dropped when it was read.
    pub(super) fn answered<T: Send + 'static>(self, response: &mut Response, busy: T) {
        let Some(body) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if body.size_hint().upper().is_none_or(|left| left > SMALL) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        tokio::spawn(async move {
            let _ = timeout(LONGEST, read_on(body)).await;
            drop(busy);
        });
    }
}

async fn read_on(mut body: Incoming) {
    let mut read = 0;
    while read < MOST {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Ok(Some(Ok(frame))) = timeout(PAUSE, frame).await else { return };
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}
