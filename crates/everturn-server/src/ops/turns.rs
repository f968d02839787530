//! Turns counted by what their spans say, wherever they run: behind a request, in the background, with or without a store.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::metrics::Metrics;

/// The name of a turn's span.
const TURN: &str = "sessionFlow/turn";

/// The target of the spans of requests.
pub(crate) const REQUESTS: &str = "everturn::http";

/// Counts turns as their spans begin and end.
pub(super) struct CountTurns(pub(super) Arc<Metrics>);

/// Whether a span is a turn's.
fn is_turn(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.name() == TURN && metadata.target().starts_with("everturn::")
}

/// Whether a span must be there for turns to be counted: a turn's, or that of a request, which may begin some. For the
/// filter of the layer: other spans cost it nothing.
pub(super) fn counts(metadata: &Metadata<'_>) -> bool {
    is_turn(metadata) || metadata.is_span() && metadata.target() == REQUESTS
}

/// Keeps something as long as the request that runs here, or anything that it began, goes on: a turn in the background
/// has the span of its request above its own. Where nobody counts turns it is dropped.
pub(crate) fn keep_with_request<T: Send + Sync + 'static>(kept: T) {
    struct Kept<T>(#[allow(dead_code, reason = "held until the span closes")] T);
    tracing::Span::current().with_subscriber(|(id, subscriber)| {
        if let Some(span) = subscriber.downcast_ref::<Registry>().and_then(|registry| registry.span(id)) {
            span.extensions_mut().replace(Kept(kept));
        }
    });
}

/// A turn that runs.
struct Running {
    since: Instant,
    told: Told,
}

#[derive(Default)]
struct Told {
    agent: String,
    reason: Option<String>,
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "everturn.agent" => self.agent = value.to_owned(),
            "everturn.finish_reason" => self.reason = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "everturn.agent" {
            self.agent = format!("{value:?}");
        }
    }
}

/// How a turn ended, as a label: what is not known must not become one.
fn outcome(reason: Option<&str>) -> &'static str {
    let known = ["stop", "length", "blocked", "interrupted", "failed", "aborted", "detached", "other"];
    known.into_iter().find(|known| Some(*known) == reason).unwrap_or("unknown")
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for CountTurns {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| is_turn(span.metadata())) else { return };
        let mut told = Told::default();
        attributes.record(&mut told);
        span.extensions_mut().insert(Running { since: Instant::now(), told });
        self.0.turns_running.up();
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(running) = span.extensions_mut().get_mut::<Running>() {
            values.record(&mut running.told);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(Running { since, told }) = context.span(&id).and_then(|span| span.extensions_mut().remove()) else {
            return;
        };
        self.0.turns_running.down();
        self.0.turn_ended(told.agent, outcome(told.reason.as_deref()), since.elapsed());
    }
}
