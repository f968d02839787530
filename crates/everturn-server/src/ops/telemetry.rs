//! Logs and traces: set up when a server starts, let out when it stops.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Request, Response};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt as _, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use super::log::{Flush, Lines};
use super::metrics::Metrics;
use super::turns::{self, CountTurns};
use crate::config::{Config, LogFormat};

/// How long sending spans to the collector may take.
const EXPORT: Duration = Duration::from_secs(10);

/// Logs and traces that are on. To be stopped, so that the last of them get out.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
    _lines: Flush,
}

impl Telemetry {
    /// Switches on what was asked for, for the whole process.
    pub(crate) fn start(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let filter = log_filter(&config.log_level)?;
        let (lines, flush) = Lines::start(metrics.clone()).context("cannot start the thread that writes the log")?;
        let format = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(false);
        // Events only: the fields of spans have ids of users and sessions, which are for traces.
        let filter = filter.and(filter_fn(|metadata| metadata.is_event()));
        let log: Box<dyn Layer<Registry> + Send + Sync> = match config.log_format {
            LogFormat::Text => format.with_filter(filter).boxed(),
            LogFormat::Json => {
                let json = format.json().flatten_event(true).with_current_span(false).with_span_list(false);
                json.with_filter(filter).boxed()
            }
        };
        let traces = tracer_provider(&|name| std::env::var(name).ok())?;
        let otel = traces.as_ref().map(|provider| {
            let ours = |metadata: &tracing::Metadata<'_>| {
                metadata.is_span()
                    && metadata.target().starts_with("everturn")
                    && *metadata.level() <= tracing::Level::INFO
            };
            tracing_opentelemetry::layer().with_tracer(provider.tracer("everturn")).with_filter(filter_fn(ours)).boxed()
        });
        if traces.is_some() {
            opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        }
        let turns = CountTurns(metrics.clone()).with_filter(filter_fn(turns::counts)).boxed();
        // Those that are there: one that may be there keeps others from knowing that nobody wants their spans.
        let layers: Vec<_> = [Some(log), Some(turns), otel].into_iter().flatten().collect();
        tracing_subscriber::registry().with(layers).try_init().context("logs are on already")?;
        Ok(Self { traces, _lines: flush })
    }

    /// Lets the last spans and lines out.
    pub(crate) async fn stop(self) {
        let Some(traces) = self.traces else { return };
        // It waits for a thread that waits for this runtime.
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || traces.shutdown()).await {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// What is logged. A level alone is for everturn; others say what is wrong and no more, and those who would write what
/// providers answer say nothing, unless they are named.
fn log_filter(text: &str) -> anyhow::Result<Targets> {
    let wrong = |what: &str| {
        format!(
            "log-level: \"{what}\" is no level or target=level: use error, warn, info, debug, trace, off, or everturn=debug"
        )
    };
    let mut targets = Targets::new().with_target("genai", LevelFilter::OFF);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = part.split_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        let level: LevelFilter = level.parse().ok().with_context(|| wrong(part))?;
        targets = match target {
            Some(target) => targets.with_target(target, level),
            None => targets.with_target("everturn", level).with_default(level.min(LevelFilter::WARN)),
        };
    }
    Ok(targets)
}

/// Where spans go, by the environment variables that OpenTelemetry has for it; nowhere unless an endpoint is named.
fn tracer_provider(variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Option<SdkTracerProvider>> {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let is = |name: &str, value: &str| set(name).is_some_and(|set| set.trim().eq_ignore_ascii_case(value));
    let endpoint = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
    if endpoint.is_none() || is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(None);
    }
    let protocol = set("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL"));
    let protocol = match protocol.as_deref().map(str::trim) {
        None | Some("http/protobuf") => Protocol::HttpBinary,
        Some("http/json") => Protocol::HttpJson,
        Some(other) => {
            anyhow::bail!("OTEL_EXPORTER_OTLP_PROTOCOL={other} is not spoken here: use http/protobuf or http/json")
        }
    };
    let http = reqwest::Client::builder().timeout(EXPORT).redirect(reqwest::redirect::Policy::none()).build()?;
    let client = Collector { http, runtime: tokio::runtime::Handle::current() };
    let exporter = SpanExporter::builder().with_http().with_protocol(protocol).with_http_client(client).build();
    let exporter = exporter.context("traces cannot be exported: check the OTEL_EXPORTER_OTLP_ variables")?;
    let mut resource = Resource::builder();
    let named = set("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|attributes| attributes.contains("service.name="));
    if set("OTEL_SERVICE_NAME").is_none() && !named {
        resource = resource.with_service_name("everturn");
    }
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build()))
}

/// Sends spans by the server's own runtime: the exporter's thread has none.
#[derive(Debug)]
struct Collector {
    http: reqwest::Client,
    runtime: tokio::runtime::Handle,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            let answer = http.execute(request.try_into()?).await?;
            let status = answer.status();
            // What a collector says beside its status is of no use to us, and might be long.
            drop(answer);
            Ok::<_, HttpError>(Response::builder().status(status).body(Bytes::new())?)
        });
        sent.await?
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_is_ours_and_what_others_would_say_is_kept_short() {
        let filter = log_filter("debug").unwrap();
        assert!(filter.would_enable("everturn::http", &Level::DEBUG));
        assert!(filter.would_enable("hyper", &Level::WARN) && !filter.would_enable("hyper", &Level::INFO));
        assert!(!filter.would_enable("genai::webc", &Level::ERROR));
        let filter = log_filter("warn,genai=info,everturn::store=trace").unwrap();
        assert!(filter.would_enable("genai::webc", &Level::INFO));
        assert!(filter.would_enable("everturn::store::sqlite", &Level::TRACE));
        assert!(!filter.would_enable("everturn::http", &Level::INFO));
        assert!(!log_filter("off").unwrap().would_enable("everturn", &Level::ERROR));
        assert!(log_filter("loud").is_err() && log_filter("everturn=loud").is_err());
    }

    #[tokio::test]
    async fn traces_are_exported_only_where_an_endpoint_is_named_and_nobody_said_no() {
        let provider = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            tracer_provider(&|name| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()))
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        assert!(provider(&[]).unwrap().is_none());
        assert!(provider(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(provider(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        let refused = provider(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).err().unwrap();
        assert!(refused.to_string().contains("http/protobuf"), "{refused}");
    }
}
