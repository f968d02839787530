//! How long a client takes, and where that is too long.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Limits;

/// What a client is late with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// A request whose head has begun.
    Head,
    /// Any request at all.
    Idle,
    /// Taking what it is sent.
    Reading,
}

/// What a connection waits for, and since when.
#[derive(Debug)]
pub(super) struct Pace {
    state: Mutex<State>,
    header_timeout: Duration,
    keep_alive: Duration,
    write_timeout: Duration,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    blocked: Option<Instant>,
    /// Requests that are being answered: one, and those whose bodies are still read.
    answering: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come yet.
    New,
    /// A head is on its way.
    Head,
    /// A request is being answered.
    Busy,
    /// Between two requests.
    Idle,
}

impl Pace {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            state: Mutex::new(State { phase: Phase::New, since: Instant::now(), blocked: None, answering: 0 }),
            header_timeout: limits.header_timeout,
            keep_alive: limits.keep_alive,
            write_timeout: limits.write_timeout,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come, and is being answered until what this gives is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        let mut state = self.state();
        (state.phase, state.since) = (Phase::Busy, Instant::now());
        state.answering += 1;
        Answering(self.clone())
    }

    /// Whether no request has come whole, and nothing is on its way to the client.
    pub(super) fn is_headless(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::New | Phase::Head) && state.blocked.is_none()
    }

    fn heard(&self) {
        let mut state = self.state();
        match state.phase {
            // The time of a first head counts from the connection's start.
            Phase::New => state.phase = Phase::Head,
            Phase::Idle => (state.phase, state.since) = (Phase::Head, Instant::now()),
            Phase::Head | Phase::Busy => {}
        }
    }

    fn wrote(&self, blocked: bool) {
        let mut state = self.state();
        state.blocked = if blocked { Some(state.blocked.unwrap_or_else(Instant::now)) } else { None };
    }

    /// When the client is late, and with what.
    pub(super) fn deadline(&self) -> Option<(Instant, Late)> {
        let state = self.state();
        let waiting = match state.phase {
            Phase::New => Some((state.since + self.header_timeout, Late::Idle)),
            Phase::Head => Some((state.since + self.header_timeout, Late::Head)),
            Phase::Idle => Some((state.since + self.keep_alive, Late::Idle)),
            Phase::Busy => None,
        };
        let blocked = state.blocked.map(|since| (since + self.write_timeout, Late::Reading));
        match (waiting, blocked) {
            (Some(waiting), Some(blocked)) => Some(if blocked.0 < waiting.0 { blocked } else { waiting }),
            (waiting, blocked) => waiting.or(blocked),
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Answering(Arc<Pace>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.answering -= 1;
        if state.answering == 0 {
            (state.phase, state.since) = (Phase::Idle, Instant::now());
        }
    }
}

/// A connection whose pace is noted.
pub(super) struct Paced {
    pub(super) stream: TcpStream,
    pub(super) pace: Arc<Pace>,
    /// Whether a refusal of hyper's was not sent: then the connection stays open for another one.
    pub(super) refused: bool,
}

impl Paced {
    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        self.pace.wrote(written.is_pending());
        written
    }
}

/// How hyper answers a head that it does not take.
const REFUSAL: &[u8] = b"HTTP/1.1 431 ";

impl Paced {
    /// Whether this is hyper's own refusal of a head. It is the same for a head that is too large and for a length that is,
    /// and so it is not sent: the connection ends with an error then, and is told what it was.
    fn is_refusal(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(REFUSAL) && self.pace.is_headless()
    }
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pace.heard();
        }
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_refusal(buf) {
            self.refused = true;
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.first().is_some_and(|first| self.is_refusal(first)) {
            self.refused = true;
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refused {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(pace: &Pace) -> Option<(Duration, Late)> {
        let now = Instant::now();
        pace.deadline().map(|(at, late)| (at.saturating_duration_since(now), late))
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_time_and_answering_has_none() {
        let limits = Limits::default();
        let pace = Arc::new(Pace::new(&limits));
        assert_eq!(late(&pace), Some((limits.header_timeout, Late::Idle)));
        tokio::time::advance(Duration::from_secs(4)).await;
        pace.heard();
        let left = limits.header_timeout - Duration::from_secs(4);
        assert_eq!(late(&pace), Some((left, Late::Head)), "the first head counts from the start");
        let answering = pace.answering();
        assert_eq!(late(&pace), None);
        pace.wrote(true);
        tokio::time::advance(Duration::from_secs(5)).await;
        pace.wrote(true);
        assert_eq!(late(&pace), Some((limits.write_timeout - Duration::from_secs(5), Late::Reading)));
        pace.wrote(false);
        let next = pace.answering();
        drop(answering);
        assert_eq!(late(&pace), None, "another request is being answered");
        drop(next);
        assert_eq!(late(&pace), Some((limits.keep_alive, Late::Idle)));
        pace.heard();
        assert_eq!(late(&pace), Some((limits.header_timeout, Late::Head)));
    }
}
