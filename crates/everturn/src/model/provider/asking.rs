//! One question to a provider: sent, sent again where that may help, and answered piece by piece.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream::unfold;
use genai::chat::{ChatStream, ChatStreamEvent};
use tokio::time::{sleep, timeout};

use super::Provider;
use super::access::{Access, Secret};
use super::answer::Answer;
use super::body::Body;
use super::failure::{Again, Failure};
use super::watch::Watch;
use crate::model::{ModelChunk, ModelRequest, ModelStream};
use crate::{Error, Result};

/// The longest pause before another try. A provider that asks for more gets no other try: the caller hears of it at once.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What comes on the wire may be so many times what is said: every piece has its wrapping.
const WRAPPING: usize = 64;

pub(super) fn stream(provider: Provider, request: ModelRequest) -> ModelStream {
    let asking = Asking { provider, request: Some(request), body: None, open: None, tries: 0, said: false };
    Box::pin(unfold(Some(asking), |asking| async move {
        let mut asking = asking?;
        match asking.next().await? {
            Ok(chunk) => Some((Ok(chunk), Some(asking))),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

struct Asking {
    provider: Provider,
    /// Until it is converted.
    request: Option<ModelRequest>,
    body: Option<Body>,
    open: Option<Open>,
    /// Failed tries so far.
    tries: u32,
    /// Whether anything was handed on.
    said: bool,
}

/// A connection on which the answer comes.
struct Open {
    stream: ChatStream,
    watch: Arc<Watch>,
    answer: Answer,
    host: String,
    secret: Secret,
}

/// Why a try ended early.
enum Stop {
    /// The provider failed.
    Failed(Failure),
    /// The request cannot be sent at all.
    Wrong(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Asking {
    async fn next(&mut self) -> Option<Result<ModelChunk>> {
        loop {
            if let Some(open) = &mut self.open {
                if let Some(chunk) = open.answer.ready.pop_front() {
                    self.said = true;
                    return Some(Ok(chunk));
                }
                if open.answer.done {
                    return None;
                }
            }
            match self.step().await {
                Ok(()) => {}
                Err(Stop::Wrong(error)) => return Some(Err(error)),
                Err(Stop::Failed(failure)) => match self.pause_before_retry(failure.again) {
                    Some(pause) => {
                        self.tries += 1;
                        self.open = None;
                        sleep(pause).await;
                    }
                    None => return Some(Err(self.error(failure))),
                },
            }
        }
    }

    /// Sends the request, or takes in the next event of its answer.
    async fn step(&mut self) -> Result<(), Stop> {
        let Some(open) = &mut self.open else {
            self.open = Some(self.open().await?);
            return Ok(());
        };
        let limits = self.provider.limits;
        let event = open.event(limits.idle, limits.answer).await?;
        let mut seen = open.watch.seen();
        match event {
            Some(Ok(event)) => open.answer.take(event, &mut seen, &self.provider.name)?,
            Some(Err(_)) if seen.refusal.is_some() => open.answer.refuse(),
            Some(Err(error)) => return Err(Failure::from_genai(error, &open.host).into()),
            None => return Err(seen.failure.as_deref().map_or_else(Failure::cut, Failure::said).into()),
        }
        if open.answer.bytes() > limits.answer {
            return Err(Failure::too_long(limits.answer).into());
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<Open, Stop> {
        let name = &self.provider.name;
        if let Some(request) = self.request.take() {
            self.body = Some(Body::new(&request, name)?);
        }
        let body = self.body.as_ref().ok_or_else(|| Error::internal("a request was lost before it was sent"))?;
        let Access { client, target, host, secret } = self.provider.access().await?;
        let watch = Arc::new(Watch::new(name.wire()));
        let options = body.options.clone().with_raw_frame_sink_arc(watch.clone());
        let answer = client.exec_chat_stream(target, body.request.clone(), Some(&options)).await;
        let stream = answer.map_err(|error| Failure::from_genai(error, &host))?.stream;
        Ok(Open { stream, watch, answer: Answer::default(), host, secret })
    }

    fn pause_before_retry(&self, again: Again) -> Option<Duration> {
        if self.said || self.tries >= self.provider.limits.retries {
            return None;
        }
        match again {
            Again::No => None,
            Again::After(pause) => (pause <= LONGEST_PAUSE).then_some(pause),
            Again::Yes => {
                let doubled = 2u32.saturating_pow(self.tries);
                Some(self.provider.limits.backoff.saturating_mul(doubled).min(LONGEST_PAUSE))
            }
        }
    }

    fn error(&self, failure: Failure) -> Error {
        let error = failure.into_error(&self.provider.name.full, || self.provider.key_advice());
        match &self.open {
            Some(open) => Error::new(error.kind(), open.secret.hide_in(error.message().to_owned())),
            None => error,
        }
    }
}

impl Open {
    /// The next event, however many keep-alives come before it.
    async fn event(
        &mut self,
        idle: Duration,
        limit: usize,
    ) -> Result<Option<Result<ChatStreamEvent, genai::Error>>, Failure> {
        let Self { stream, watch, .. } = self;
        let mut frames = watch.seen().frames;
        loop {
            let next = poll_fn(|cx| {
                let event = Pin::new(&mut *stream).poll_next(cx);
                // A wire full of keep-alives yields no event that could be counted.
                match watch.seen().bytes > limit.saturating_mul(WRAPPING) {
                    true => Poll::Ready(Err(Failure::too_long(limit))),
                    false => event.map(Ok),
                }
            });
            match timeout(idle, next).await {
                Ok(event) => return event,
                Err(_) if watch.seen().frames > frames => frames = watch.seen().frames,
                Err(_) => return Err(Failure::stalled(idle)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn asking(said: bool, tries: u32) -> Asking {
        let provider = Provider::new("openai/x").unwrap().retries(3).backoff(Duration::from_secs(10));
        Asking { provider, request: None, body: None, open: None, tries, said }
    }

    #[test]
    fn pauses_double_and_are_never_longer_than_half_a_minute() {
        let pauses: Vec<_> = (0..4).map(|tries| asking(false, tries).pause_before_retry(Again::Yes)).collect();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(pauses, [seconds(10), seconds(20), seconds(30), None]);
    }

    #[test]
    fn a_pause_that_is_asked_for_is_kept_unless_it_is_too_long() {
        let pause = |seconds| asking(false, 0).pause_before_retry(Again::After(Duration::from_secs(seconds)));
        assert_eq!(pause(7), Some(Duration::from_secs(7)));
        assert_eq!(pause(31), None);
    }

    #[test]
    fn what_was_begun_is_not_asked_again() {
        assert_eq!(asking(true, 0).pause_before_retry(Again::Yes), None);
        assert_eq!(asking(false, 0).pause_before_retry(Again::No), None);
    }

    #[test]
    fn only_a_provider_that_may_recover_is_asked_again() {
        for (failure, kind, again) in [
            (Failure::cut(), ErrorKind::Unavailable, Again::Yes),
            (Failure::stalled(Duration::ZERO), ErrorKind::Unavailable, Again::No),
            (Failure::too_long(1), ErrorKind::TooLarge, Again::No),
        ] {
            assert_eq!((failure.kind, failure.again), (kind, again), "{}", failure.what);
        }
    }
}
