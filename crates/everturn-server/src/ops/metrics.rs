//! Numbers about a server, in the text format that Prometheus reads.
//!
//! Labels have few values: routes by their template, agents by name, kinds of errors. Nothing a client sends becomes one.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use everturn::ErrorKind;
use everturn::store::{SqliteStats, SqliteStore};

use super::process;

/// Upper ends of the buckets that times are counted in, in seconds.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How often something took how long.
#[derive(Debug, Default, Clone)]
struct Times {
    buckets: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = SECONDS.iter().position(|most| seconds <= *most) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// Something that there are more or fewer of.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicUsize);

impl Gauge {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn down(&self) {
        self.sub(1);
    }

    /// Adds so many if there are no more than the most then, or if there are none now; whether it did.
    pub(crate) fn add_up_to(&self, more: usize, most: usize) -> bool {
        let add = |now: usize| now.checked_add(more).filter(|then| now == 0 || *then <= most);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(crate) fn sub(&self, less: usize) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// Why a server did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    Connections,
    Turns,
    TurnsOfKey,
    Streams,
    StreamsOfKey,
    AnswerBytes,
}

impl Refusal {
    const ALL: [Self; 6] =
        [Self::Connections, Self::Turns, Self::TurnsOfKey, Self::Streams, Self::StreamsOfKey, Self::AnswerBytes];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Turns => "turns",
            Self::TurnsOfKey => "turns_per_key",
            Self::Streams => "streams",
            Self::StreamsOfKey => "streams_per_key",
            Self::AnswerBytes => "answer_bytes",
        }
    }
}

/// The address of a request: its method and its template.
pub(crate) type Route = (&'static str, String);

/// A request that was answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) route: Route,
    pub(crate) status: u16,
    /// How long it took until the answer began.
    pub(crate) after: Duration,
}

/// What a server counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    started: Instant,
    requests: Mutex<BTreeMap<(Route, u16), Times>>,
    turns: Mutex<BTreeMap<(String, &'static str), Times>>,
    operations: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    refusals: [AtomicU64; Refusal::ALL.len()],
    pub(crate) turns_running: Gauge,
    pub(crate) connections: Arc<Gauge>,
    pub(crate) streams: Arc<Gauge>,
    pub(crate) answer_bytes: Arc<Gauge>,
    reopened: AtomicU64,
    lines_dropped: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            requests: Mutex::default(),
            turns: Mutex::default(),
            operations: Mutex::default(),
            refusals: Default::default(),
            turns_running: Gauge::default(),
            connections: Arc::default(),
            streams: Arc::default(),
            answer_bytes: Arc::default(),
            reopened: AtomicU64::new(0),
            lines_dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn answered(&self, Answered { route, status, after }: Answered) {
        lock(&self.requests).entry((route, status)).or_default().add(after);
    }

    pub(crate) fn refused(&self, why: Refusal) {
        self.refusals[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn turn_ended(&self, agent: String, outcome: &'static str, took: Duration) {
        lock(&self.turns).entry((agent, outcome)).or_default().add(took);
    }

    pub(super) fn operation(&self, name: &'static str, result: Result<(), ErrorKind>) {
        let result = result.err().map_or("ok", ErrorKind::name);
        *lock(&self.operations).entry((name, result)).or_default() += 1;
    }

    pub(super) fn reopened(&self) {
        self.reopened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn line_dropped(&self) {
        self.lines_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything, as text.
    pub(crate) fn text(&self, store: Option<&SqliteStore>) -> String {
        let mut out = Text(String::with_capacity(8192));
        self.requests_to(&mut out);
        self.turns_to(&mut out);
        out.family("everturn_refusals_total", "counter", "Requests and connections turned away because of a limit.");
        for why in Refusal::ALL {
            let labels = labels(&[("limit", why.name())]);
            out.value("everturn_refusals_total", &labels, self.refusals[why as usize].load(Ordering::Relaxed));
        }
        out.single("everturn_connections_open", "gauge", "Connections that are open.", self.connections.get());
        let help = "Streams and waiting requests that are open.";
        out.single("everturn_streams_open", "gauge", help, self.streams.get());
        let help = "Bytes of large answers that wait for their clients.";
        out.single("everturn_answer_bytes", "gauge", help, self.answer_bytes.get());
        self.store_to(&mut out);
        if let Some(store) = store {
            sqlite_to(&mut out, &store.stats());
        }
        self.process_to(&mut out);
        out.0
    }

    fn requests_to(&self, out: &mut Text) {
        let name = "everturn_http_request_seconds";
        out.family(name, "histogram", "Time until the answer to a request began, by route and status.");
        for (((method, route), status), times) in &*lock(&self.requests) {
            let status = status.to_string();
            out.times(name, &labels(&[("method", method), ("route", route), ("status", &status)]), times);
        }
    }

    fn turns_to(&self, out: &mut Text) {
        let name = "everturn_turn_seconds";
        out.family(name, "histogram", "Time that turns took, by agent and how they ended.");
        for ((agent, outcome), times) in &*lock(&self.turns) {
            out.times(name, &labels(&[("agent", agent), ("outcome", outcome)]), times);
        }
        let help = "Turns that run, also in the background.";
        out.single("everturn_turns_running", "gauge", help, self.turns_running.get());
    }

    fn store_to(&self, out: &mut Text) {
        let name = "everturn_store_operations_total";
        out.family(name, "counter", "What was asked of the store and how it went: ok, or the kind of error.");
        for ((operation, result), count) in &*lock(&self.operations) {
            out.value(name, &labels(&[("operation", operation), ("result", result)]), count);
        }
        let help = "How often the store was opened anew after a failure.";
        out.single("everturn_store_reopened_total", "counter", help, self.reopened.load(Ordering::Relaxed));
    }

    fn process_to(&self, out: &mut Text) {
        if let Some(bytes) = process::resident_bytes() {
            out.single("process_resident_memory_bytes", "gauge", "Memory in use.", bytes);
        }
        if let Some(files) = process::open_files() {
            out.single("process_open_fds", "gauge", "Files and connections that are open.", files);
        }
        let help = "Seconds since the server started.";
        out.single("everturn_uptime_seconds", "gauge", help, self.started.elapsed().as_secs());
        let help = "Lines of the log that were dropped because nobody took them.";
        out.single("everturn_log_lines_dropped_total", "counter", help, self.lines_dropped.load(Ordering::Relaxed));
        out.family("everturn_build_info", "gauge", "The server's version.");
        out.value("everturn_build_info", &labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1);
    }
}

fn sqlite_to(out: &mut Text, stats: &SqliteStats) {
    out.single("everturn_store_commits_total", "counter", "Transactions that were committed.", stats.commits);
    let name = "everturn_store_batch_size";
    out.family(name, "histogram", "Writes in a transaction.");
    for (most, count) in &stats.batch_sizes {
        let most = if *most == u64::MAX { "+Inf".to_owned() } else { most.to_string() };
        out.value(&format!("{name}_bucket"), &labels(&[("le", &most)]), count);
    }
    out.value(&format!("{name}_sum"), "", stats.writes);
    out.value(&format!("{name}_count"), "", stats.commits);
    out.single(
        "everturn_store_syncs_total",
        "counter",
        "Waits for the disk; many transactions may share one.",
        stats.syncs,
    );
    let help = "Batches that failed and left nothing behind.";
    out.single("everturn_store_rollbacks_total", "counter", help, stats.rollbacks);
    out.single("everturn_store_log_bytes", "gauge", "Bytes in SQLite's log after the last commit.", stats.log_bytes);
    let help = "Sessions whose decoded states are at hand.";
    out.single("everturn_cache_sessions", "gauge", help, stats.cached_sessions);
    out.single("everturn_cache_bytes", "gauge", "What these weigh.", stats.cached_bytes);
    out.single("everturn_cache_hits_total", "counter", "States that were at hand.", stats.cache_hits);
    let help = "States that had to be added up from the log.";
    out.single("everturn_cache_misses_total", "counter", help, stats.cache_misses);
}

/// Labels as they are written, without braces.
fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect::<Vec<_>>().join(",")
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.value(name, "", value);
    }

    fn times(&mut self, name: &str, labels: &str, times: &Times) {
        let (mut sum, bucket) = (0, format!("{name}_bucket"));
        for (most, count) in SECONDS.iter().zip(times.buckets) {
            sum += count;
            self.value(&bucket, &format!("{labels},le=\"{most}\""), sum);
        }
        self.value(&bucket, &format!("{labels},le=\"+Inf\""), times.count);
        self.value(&format!("{name}_sum"), labels, times.sum);
        self.value(&format!("{name}_count"), labels, times.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_every_bucket_that_holds_them() {
        let metrics = Metrics::new();
        for millis in [2, 2000, 60_000] {
            let route = ("GET", "/v1/agents".to_owned());
            metrics.answered(Answered { route, status: 200, after: Duration::from_millis(millis) });
        }
        let text = metrics.text(None);
        let of = |le: &str| {
            let labels = r#"method="GET",route="/v1/agents",status="200""#;
            let line = format!("everturn_http_request_seconds_bucket{{{labels},le=\"{le}\"}} ");
            text.lines().find_map(|l| l.strip_prefix(&line)).unwrap_or_else(|| panic!("{le}\n{text}")).to_owned()
        };
        assert_eq!(
            (of("0.001"), of("0.0025"), of("2.5"), of("10"), of("+Inf")),
            ("0".into(), "1".into(), "2".into(), "2".into(), "3".into())
        );
    }

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(labels(&[("a", "x\"} 1\ny\\")]), "a=\"x\\\"} 1\\ny\\\\\"");
    }
}
