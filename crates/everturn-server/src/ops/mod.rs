//! What whoever runs a server sees of it: numbers, lines, traces, and a store that is looked after.

mod health;
mod log;
mod metrics;
mod process;
mod telemetry;
mod turns;

pub(crate) use health::{Health, NotReady, watch};
pub(crate) use metrics::{Answered, Gauge, Metrics, Refusal};
pub(crate) use process::raise_file_limit;
pub(crate) use telemetry::Telemetry;
pub(crate) use turns::{REQUESTS, keep_with_request};
