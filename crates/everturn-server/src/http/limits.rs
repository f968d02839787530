//! Limits on their way to where they are kept.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::Limits;

tokio::task_local! {
    /// The most items on a page, for the request that this task answers.
    static PAGE: usize;
}

/// The most items on a page.
pub(super) fn page() -> usize {
    PAGE.try_with(|page| *page).unwrap_or_else(|_| Limits::default().page)
}

/// The limits that hold for a request.
pub(super) fn of(request: &Request) -> Arc<Limits> {
    request.extensions().get::<Arc<Limits>>().cloned().unwrap_or_default()
}

/// Gives a request its limits, and its body the time it has.
pub(super) async fn limit<F>(limits: &Arc<Limits>, request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let mut request = match request.body().is_end_stream() {
        true => request,
        false => request.map(|body| Body::new(TimedBody::new(body, limits))),
    };
    request.extensions_mut().insert(limits.clone());
    PAGE.scope(limits.page, next(request)).await
}

/// A body that did not come in time.
#[derive(Debug)]
pub(super) struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body did not come in time: send it faster")
    }
}

impl Error for TooSlow {}

/// Whether a body could not be read because it did not come in time.
pub(super) fn is_too_slow(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<TooSlow>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A body that must go on coming, and come to an end.
struct TimedBody {
    body: Body,
    pause: Duration,
    end: Instant,
    /// Set only while something is waited for.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    fn new(body: Body, limits: &Limits) -> Self {
        Self { body, pause: limits.body_pause, end: Instant::now() + limits.body_timeout, alarm: None }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.alarm = None;
            return Poll::Ready(frame);
        }
        let at = (Instant::now() + self.pause).min(self.end);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Some(Err(axum::Error::new(TooSlow))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use futures_util::stream::unfold;

    use super::*;

    /// A body of so many bytes, one after each pause.
    fn trickle(bytes: usize, pause: Duration) -> Body {
        Body::from_stream(unfold(0, move |sent| async move {
            if sent == bytes {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok::<_, std::convert::Infallible>("x"), sent + 1))
        }))
    }

    async fn read(bytes: usize, pause: u64) -> Result<usize, bool> {
        let body = TimedBody::new(trickle(bytes, Duration::from_secs(pause)), &Limits::default());
        let read = to_bytes(Body::new(body), usize::MAX).await;
        read.map(|read| read.len()).map_err(|error| is_too_slow(&error))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_pause_a_little_but_not_long_and_not_for_ever() {
        assert_eq!(read(5, 20).await, Ok(5));
        assert_eq!(read(1, 31).await, Err(true), "a long pause");
        assert_eq!(read(20, 20).await, Err(true), "many short ones");
    }
}
