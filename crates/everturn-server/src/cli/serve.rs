//! `everturn serve`: agents and their sessions over HTTP.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use everturn::store::SqliteStore;
use everturn::{Registry, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::access;
use crate::agents;
use crate::config::{Config, Flags, Layers, SETTINGS, Setting, Shape};
use crate::http::{Operations, Server, Settings};
use crate::ops::{self, Metrics, Telemetry};

const AFTER_HELP: &str = "\
Every setting can also be given in a file (--config FILE: header_timeout = \"10s\") and in the environment
(EVERTURN_HEADER_TIMEOUT=10s); the environment outdoes the file, and flags outdo both. Traces are exported where
OTEL_EXPORTER_OTLP_ENDPOINT says.";

/// Decoded states are dropped when they were not used for this long, or twice as long at most.
const UNUSED_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Default, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Serve {
    #[command(flatten)]
    given: Given,
    /// Print what the server would be set to, as a file for --config, with where each value comes from
    #[arg(long)]
    print_config: bool,
}

/// The settings that were given as flags.
#[derive(Debug, Clone, Default)]
struct Given(Flags);

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &&Setting| matches.value_source(setting.flag) == Some(ValueSource::CommandLine);
        let values =
            |setting: &Setting| matches.get_many::<String>(setting.flag).unwrap_or_default().cloned().collect();
        Ok(Self(SETTINGS.iter().filter(given).map(|setting| (setting.flag, values(setting))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let help = match (setting.shape, setting.default) {
        (Shape::Switch, _) | (_, "") => setting.help.to_owned(),
        (_, default) => format!("{} [default: {default}]", setting.help),
    };
    let argument = Arg::new(setting.flag).long(setting.flag).value_name(setting.value).help(help);
    let argument = argument.help_heading(setting.group);
    match setting.shape {
        Shape::One => argument,
        Shape::Many => argument.action(ArgAction::Append),
        Shape::Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}

impl Serve {
    /// What `everturn` alone does.
    pub(crate) fn demo() -> Self {
        Self { given: Given(Flags::from([("demo", vec!["true".to_owned()])])), print_config: false }
    }

    /// What was given as flags.
    pub(crate) fn flags(&self) -> Flags {
        self.given.0.clone()
    }

    pub(crate) async fn run(self, layers: Layers, out: &mut dyn Write) -> anyhow::Result<()> {
        let config = Config::read(&layers)?;
        if self.print_config {
            write!(out, "{}", layers.to_toml())?;
            return Ok(());
        }
        let metrics = Arc::new(Metrics::new());
        let telemetry = Telemetry::start(&config, &metrics)?;
        let served = serve(config, metrics, out).await;
        telemetry.stop().await;
        served
    }
}

async fn serve(config: Config, metrics: Arc<Metrics>, out: &mut dyn Write) -> anyhow::Result<()> {
    ops::raise_file_limit();
    check_clock(SystemTime::now())?;
    note_signals()?;
    let access = access::open(&config.access, &config.store)?;
    let asks = access.authority.asks();
    let opened = config.store.open(&config)?;
    let (store, health) = ops::watch(opened.store, metrics.clone());
    let agents = if config.demo { agents::demo(&store)? } else { Registry::new() };
    let names: Vec<_> = agents.list().into_iter().map(|agent| agent.name.to_string()).collect();
    let worker = Worker::start(agents.clone(), config.recovery_poll);
    let at_hand = opened.sqlite.clone();
    let operations = Operations { metrics, health, sqlite: opened.sqlite, stopping: CancellationToken::new() };
    let Config { addr, metrics_addr, limits, drain, .. } = config;
    let server = Server::bind(Settings { addr, metrics_addr, access, limits, drain, operations }, agents).await?;
    let banner =
        Banner { addr: server.addr()?, metrics: server.metrics_addr()?, store: config.store.to_string(), asks };
    banner.write(&names, out)?;
    tokio::select! {
        () = server.serve(stop_signal()?) => {}
        () = drop_unused(at_hand) => {}
    }
    let left = worker.shutdown(drain).await;
    if left > 0 {
        writeln!(out, "{left} invocations were still at work: the next server takes them over")?;
    }
    drop(store);
    writeln!(out, "stopped")?;
    Ok(())
}

/// Refuses a clock that is not set yet: HTTP cannot say a date before 1970, and each connection would be cut.
fn check_clock(now: SystemTime) -> anyhow::Result<()> {
    anyhow::ensure!(
        now >= SystemTime::UNIX_EPOCH,
        "the machine's clock stands before 1970: set it, then start the server"
    );
    Ok(())
}

/// Drops the decoded states of idle sessions every now and then, for as long as the server runs.
async fn drop_unused(store: Option<SqliteStore>) {
    loop {
        tokio::time::sleep(UNUSED_AFTER).await;
        if let Some(store) = store.clone() {
            // On a thread that ends soon after: the allocator gives memory back to the system when threads end.
            let _ = tokio::task::spawn_blocking(move || store.drop_unused()).await;
        }
    }
}

/// What is said when the server listens.
struct Banner {
    addr: SocketAddr,
    metrics: Option<SocketAddr>,
    store: String,
    asks: bool,
}

impl Banner {
    fn write(&self, agents: &[String], out: &mut dyn Write) -> anyhow::Result<()> {
        let base = format!("http://{}", self.addr);
        writeln!(out, "everturn listens on {base}")?;
        writeln!(out, "  sessions are kept in {}", self.store)?;
        let whom = if self.asks { "whoever has a key" } else { "everybody on this machine" };
        writeln!(out, "  {whom} is let in")?;
        if let Some(addr) = self.metrics {
            writeln!(out, "  metrics are at http://{addr}/metrics")?;
        }
        for name in agents {
            writeln!(out, "  agent {name:<12} {base}/genkit/{name}")?;
        }
        if agents.is_empty() {
            writeln!(out, "  no agents are hosted: --demo hosts some")?;
        } else {
            writeln!(out, "try it:")?;
            let key = if self.asks { " -H \"Authorization: Bearer $KEY\"" } else { "" };
            writeln!(
                out,
                "  curl {base}/genkit/echo{key} -H 'Content-Type: application/json' \\\n    -d '{{\"data\":{{\"message\":{{\"role\":\"user\",\"content\":[{{\"text\":\"hi\"}}]}}}}}}'"
            )?;
        }
        writeln!(out, "Ctrl-C stops it; nothing that was acknowledged is lost")?;
        out.flush()?;
        Ok(())
    }
}

/// Notes signals that ask other programs for something: unless they are listened to, they end the process at once.
fn note_signals() -> anyhow::Result<()> {
    let kinds = [
        ("SIGHUP", SignalKind::hangup()),
        ("SIGUSR1", SignalKind::user_defined1()),
        ("SIGUSR2", SignalKind::user_defined2()),
    ];
    for (name, kind) in kinds {
        let mut signals = listen(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::warn!(
                    "{name} changes nothing here: keys are read anew by themselves, SIGTERM stops the server"
                );
            }
        });
    }
    Ok(())
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

/// Fires when somebody asks the process to stop. Asked twice, it stops at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut quit = listen(SignalKind::quit())?;
    let mut asked = async move || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = quit.recv() => {}
        }
    };
    Ok(async move {
        asked().await;
        tokio::spawn(async move {
            asked().await;
            std::process::exit(130);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_not_set_is_refused() {
        assert!(check_clock(SystemTime::now()).is_ok());
        let error = check_clock(SystemTime::UNIX_EPOCH - Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("1970"), "{error}");
    }
}
