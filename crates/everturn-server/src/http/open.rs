//! Streams that are open: they end when their reader is no longer let in, and their large frames are counted.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::answers::{Answers, LARGE, Share, WithoutRoom, no_room, piece};
use super::identify::not_known;
use super::problem::Problem;
use super::{genkit, v1};

/// How a stream says that it was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// Events of `/v1`.
    Events,
    /// Genkit's frames.
    Genkit,
    /// A file. What is missing at its end tells.
    File,
}

impl Wire {
    pub(super) fn of(request: &Request) -> Self {
        let path = request.uri().path();
        match path.starts_with("/genkit/") {
            true => Self::Genkit,
            false if path.ends_with("/export") => Self::File,
            false => Self::Events,
        }
    }

    /// The last that is said.
    fn last(self, problem: &Problem) -> Option<Bytes> {
        match self {
            Self::Events => Some(v1::last_event(problem).into()),
            Self::Genkit => Some(genkit::last_frame(problem).into()),
            Self::File => None,
        }
    }
}

/// What becomes of a stream that is no longer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is a turn's, and goes on to its end.
    GoesOn,
    IsDropped,
}

/// How a stream ends before its end.
pub(super) struct Open {
    pub(super) wire: Wire,
    pub(super) rest: Rest,
    pub(super) without: WithoutRoom,
    /// Its reader is no longer let in.
    pub(super) ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Open {
    pub(super) fn body(self, body: Body, answers: Arc<Answers>) -> Body {
        Body::new(OpenBody { open: self, body: Some(body), answers, rest: Bytes::new(), held: None })
    }
}

struct OpenBody {
    open: Open,
    /// Nothing when it was ended.
    body: Option<Body>,
    answers: Arc<Answers>,
    /// What is left of a large frame, and the room it takes until the next one is asked for.
    rest: Bytes,
    held: Option<Share>,
}

type Framed = Option<Result<Frame<Bytes>, axum::Error>>;

impl OpenBody {
    fn end(&mut self, problem: &Problem) -> Framed {
        if let Some(mut body) = self.body.take().filter(|_| self.open.rest == Rest::GoesOn) {
            tokio::spawn(async move { while poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_some() {} });
        }
        Some(match self.open.wire.last(problem) {
            Some(last) => Ok(Frame::data(last)),
            None => Err(axum::Error::new(io::Error::other(problem.error.message.clone()))),
        })
    }
}

impl HttpBody for OpenBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Framed> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(piece(&mut self.rest))));
        }
        self.held = None;
        if self.body.is_none() {
            return Poll::Ready(None);
        }
        if self.open.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(self.end(&not_known()));
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        let large = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).filter(|data| data.len() >= LARGE);
        let Some(large) = large.cloned() else { return Poll::Ready(frame) };
        self.held = self.answers.take(large.len(), self.open.without);
        if self.held.is_none() {
            return Poll::Ready(self.end(&no_room()));
        }
        self.rest = large;
        Poll::Ready(Some(Ok(piece(&mut self.rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
