//! Large answers: how many bytes of them may wait for their clients, all together.
//!
//! An answer is in memory from when it was made until its client has taken it, and a client may take its time. Small
//! answers are bounded by the number of connections, large ones by their bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse as _, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Semaphore;

use super::Access;
use super::admission::Asks;
use super::identify::stranger;
use super::open::{Open, Rest, Wire};
use super::problem::Problem;
use crate::auth::Identity;
use crate::config::Limits;
use crate::ops::{Gauge, Metrics, Refusal};

/// Answers, and frames of streams, of at least so many bytes are counted.
pub(super) const LARGE: usize = 100 << 10;

/// Answers that may be large and are made at once. What one weighs is known when it is made, so until then it is counted
/// as one of these. Others wait for it, which is a moment.
const MAKING: usize = 8;

/// Bytes of a large answer that are handed to the connection at once. The connection copies them into its buffer, and only what
/// it has not been handed yet can be counted.
const PIECE: usize = 64 << 10;

/// The next piece of what is left of something large.
pub(super) fn piece(rest: &mut Bytes) -> Frame<Bytes> {
    Frame::data(rest.split_to(rest.len().min(PIECE)))
}

/// A large answer, which is counted until its last piece was taken.
struct Large {
    body: Body,
    rest: Bytes,
    _held: Share,
}

impl HttpBody for Large {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(piece(&mut self.rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, hint) = (self.rest.len() as u64, self.body.size_hint());
        hint.exact().map_or(SizeHint::default(), |left| SizeHint::with_exact(left + rest))
    }
}

/// The bytes of large answers.
#[derive(Debug)]
pub(super) struct Answers {
    most: usize,
    making: Semaphore,
    metrics: Arc<Metrics>,
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    bytes: usize,
    held: Arc<Gauge>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.sub(self.bytes);
    }
}

/// What to do with an answer for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithoutRoom {
    /// It can be asked for again.
    Refuse,
    /// It is what a turn or a write led to, and must be told.
    Count,
}

impl Answers {
    pub(super) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        Self { most: limits.answer_bytes, making: Semaphore::new(MAKING), metrics }
    }

    /// Room for so many bytes. Where nothing else is held there is room for any answer, or it could never be given.
    pub(super) fn take(&self, bytes: usize, without: WithoutRoom) -> Option<Share> {
        let most = match without {
            WithoutRoom::Refuse => self.most,
            WithoutRoom::Count => usize::MAX,
        };
        let held = &self.metrics.answer_bytes;
        if !held.add_up_to(bytes, most) {
            self.metrics.refused(Refusal::AnswerBytes);
            return None;
        }
        Some(Share { bytes, held: held.clone() })
    }
}

/// What is said where there is no room.
pub(super) fn no_room() -> Problem {
    Problem::new("UNAVAILABLE", "too many large answers wait for their clients: try again later, or read smaller pages")
}

/// Answers a request within the bounds of large answers, and as long as its sender is let in.
pub(super) async fn bound<F>(
    answers: &Arc<Answers>,
    access: &Arc<Access>,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = Response>,
{
    let asks = Asks::of(&request);
    let without = match *request.method() == Method::GET || matches!(asks, Asks::Read | Asks::Wait) {
        true => WithoutRoom::Refuse,
        false => WithoutRoom::Count,
    };
    let wire = Wire::of(&request);
    let identity = request.extensions().get::<Identity>().cloned().unwrap_or_else(Identity::local);
    let making = match asks {
        Asks::Read => answers.making.acquire().await.ok(),
        Asks::Turn | Asks::Wait | Asks::Other => None,
    };
    let response = match asks {
        Asks::Wait => tokio::select! {
            response = next(request) => response,
            () = access.authority.ended(&identity) => stranger(),
        },
        Asks::Turn | Asks::Read | Asks::Other => next(request).await,
    };
    let Some(bytes) = response.body().size_hint().exact() else {
        let rest = if asks == Asks::Turn { Rest::GoesOn } else { Rest::IsDropped };
        let access = access.clone();
        let ended = Box::pin(async move { access.authority.ended(&identity).await });
        return response.map(|body| Open { wire, rest, without, ended }.body(body, answers.clone()));
    };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes < LARGE {
        return response;
    }
    let share = answers.take(bytes, without);
    drop(making);
    match share {
        Some(share) => response.map(|body| Body::new(Large { body, rest: Bytes::new(), _held: share })),
        None => {
            let mut refused = no_room().into_response();
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            refused
        }
    }
}
