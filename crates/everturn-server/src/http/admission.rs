//! How much may go on at once, all together and for each key. What is too much is told when to come again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request};
use axum::http::header::{ACCEPT, RETRY_AFTER};
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse as _, Response};

use super::held::hold;
use super::problem::Problem;
use crate::auth::Identity;
use crate::config::Limits;
use crate::ops::{Gauge, Metrics, Refusal, keep_with_request};

/// Where turns are run.
const TURNS: [&str; 2] = ["/v1/agents/{agent}/turns", "/genkit/{name}"];

/// How addresses end whose answers may take as long as a turn does, or as their reader likes.
const WAITING: [&str; 5] = ["/export", "/follow", "/stream", "/wait", "/waitForSnapshot"];

/// Addresses of answers that may be large.
const READS: [&str; 12] = [
    "/v1/agents/{agent}/sessions",
    "/v1/agents/{agent}/sessions/{session}/state",
    "/v1/agents/{agent}/sessions/{session}/events",
    "/v1/agents/{agent}/sessions/{session}/records",
    "/v1/agents/{agent}/sessions/{session}/tree",
    "/v1/agents/{agent}/sessions/{session}/compactions",
    "/v1/agents/{agent}/sessions/{session}/snapshots",
    "/v1/agents/{agent}/sessions/{session}/artifacts",
    "/v1/agents/{agent}/sessions/{session}/artifacts/{artifact}",
    "/v1/agents/{agent}/sessions/{session}/artifacts/{artifact}/download",
    "/v1/agents/{agent}/snapshots/{snapshot}",
    "/v1/agents/{agent}/snapshots/{snapshot}/diff",
];

/// What a request asks for, as far as bounds are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// A turn.
    Turn,
    /// Something that may take as long as a turn does, or as its reader likes.
    Wait,
    /// Something that may be large.
    Read,
    Other,
}

impl Asks {
    pub(super) fn of(request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if request.method() == Method::POST && TURNS.contains(&route) {
            Self::Turn
        } else if WAITING.iter().any(|end| route.ends_with(end)) {
            Self::Wait
        } else if route.ends_with("/getSnapshot") || request.method() == Method::GET && READS.contains(&route) {
            Self::Read
        } else {
            Self::Other
        }
    }
}

/// What may go on at once.
#[derive(Debug)]
pub(super) struct Admission {
    turns: Arc<Slots>,
    streams: Arc<Slots>,
    most_turns: usize,
    metrics: Arc<Metrics>,
}

impl Admission {
    pub(super) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        let slots = |gauge, most, per_key| Arc::new(Slots { open: gauge, most, per_key, by_key: Mutex::default() });
        Self {
            turns: slots(Arc::default(), limits.turns, limits.turns_per_key),
            streams: slots(metrics.streams.clone(), limits.streams, limits.streams_per_key),
            most_turns: limits.turns,
            metrics,
        }
    }

    fn admit(&self, request: &Request) -> Result<Admitted, Refusal> {
        let asks = Asks::of(request);
        let accepts = |accept: &HeaderValue| accept.to_str().is_ok_and(|text| text.contains("text/event-stream"));
        let is_stream = asks == Asks::Wait || request.headers().get_all(ACCEPT).iter().any(accepts);
        let key = request.extensions().get::<Identity>().map_or_else(|| "".into(), |identity| identity.key.clone());
        let mut admitted = Admitted::default();
        if asks == Asks::Turn {
            // Those count too that no request began: the ones that are taken over from a server that died.
            if self.metrics.turns_running.get() >= self.most_turns {
                return Err(Refusal::Turns);
            }
            let taken = self.turns.take(&key).map_err(|full| full.of(Refusal::Turns, Refusal::TurnsOfKey));
            let slot = Arc::new(taken?);
            keep_with_request(slot.clone());
            admitted.turn = Some(slot);
        }
        if is_stream {
            let taken = self.streams.take(&key).map_err(|full| full.of(Refusal::Streams, Refusal::StreamsOfKey));
            admitted.stream = Some(taken?);
        }
        Ok(admitted)
    }
}

/// What a request takes up while it lasts.
#[derive(Default)]
#[allow(dead_code, reason = "held until it is dropped")]
struct Admitted {
    /// A turn that goes on in the background goes on taking it up.
    turn: Option<Arc<Slot>>,
    stream: Option<Slot>,
}

/// Lets a request pass if there is room for it.
pub(super) async fn admit<F>(admission: &Admission, request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    match admission.admit(&request) {
        Ok(Admitted { turn: None, stream: None }) => next(request).await,
        Ok(admitted) => hold(next(request).await, admitted),
        Err(why) => {
            admission.metrics.refused(why);
            refused(why)
        }
    }
}

fn refused(why: Refusal) -> Response {
    let (status, seconds, detail) = match why {
        Refusal::TurnsOfKey => {
            ("RESOURCE_EXHAUSTED", "1", "too many turns of this key run at once: wait for one to end")
        }
        Refusal::StreamsOfKey => ("RESOURCE_EXHAUSTED", "5", "too many streams of this key are open: close one"),
        Refusal::Streams => ("UNAVAILABLE", "5", "too many streams are open: try again later"),
        Refusal::Turns | Refusal::Connections | Refusal::AnswerBytes => {
            ("UNAVAILABLE", "1", "too many turns run at once: try again later")
        }
    };
    let mut response = Problem::new(status, detail).into_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    response
}

/// Room for so many at once, and so many of each key.
#[derive(Debug)]
struct Slots {
    open: Arc<Gauge>,
    most: usize,
    per_key: usize,
    by_key: Mutex<HashMap<Arc<str>, usize>>,
}

/// Who has too many.
#[derive(Debug, PartialEq, Eq)]
enum Full {
    All,
    Key,
}

impl Full {
    fn of(self, all: Refusal, key: Refusal) -> Refusal {
        match self {
            Self::All => all,
            Self::Key => key,
        }
    }
}

impl Slots {
    fn take(self: &Arc<Self>, key: &Arc<str>) -> Result<Slot, Full> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = by_key.get(key).copied().unwrap_or(0);
        // A key that has too many is told so, also when the others have: waiting for them would not help it.
        if of_key >= self.per_key {
            return Err(Full::Key);
        }
        if self.open.get() >= self.most {
            return Err(Full::All);
        }
        by_key.insert(key.clone(), of_key + 1);
        self.open.up();
        Ok(Slot { slots: self.clone(), key: key.clone() })
    }
}

struct Slot {
    slots: Arc<Slots>,
    key: Arc<str>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut by_key = self.slots.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                by_key.remove(&self.key);
            }
        }
        self.slots.open.down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_and_nothing_is_remembered_of_those_who_left() {
        let slots = Arc::new(Slots { open: Arc::default(), most: 3, per_key: 2, by_key: Mutex::default() });
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let first = slots.take(&ann).ok().unwrap();
        let second = slots.take(&ann).ok().unwrap();
        assert_eq!(slots.take(&ann).err(), Some(Full::Key));
        let third = slots.take(&bob).ok().unwrap();
        assert_eq!(slots.take(&bob).err(), Some(Full::All));
        drop(first);
        assert!(slots.take(&bob).is_ok());
        drop((second, third));
        assert!(slots.by_key.lock().unwrap().is_empty());
        assert_eq!(slots.open.get(), 0);
    }
}
