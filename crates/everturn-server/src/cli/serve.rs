//! `everturn serve`: agents and their sessions over HTTP.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use everturn::store::Store;
use everturn::{Registry, Worker};

use super::access::AccessArgs;
use super::store::StoreSpec;
use crate::agents;
use crate::http::{Server, Settings};

/// Seconds that turns in the background have when the server stops.
const DRAIN: u64 = 10;

/// How often turns are looked for whose server died.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4100")]
    addr: SocketAddr,
    /// Host the demo agents: echo, echoClient, redact, asker
    #[arg(long)]
    demo: bool,
    /// How many seconds turns in the background may take to end when the server is asked to stop; what is left is taken
    /// over by the next server
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN)]
    drain: u64,
    #[command(flatten)]
    access: AccessArgs,
}

impl Serve {
    /// What `everturn` alone does.
    pub(crate) fn demo() -> Self {
        Self { addr: SocketAddr::from(([127, 0, 0, 1], 4100)), demo: true, drain: DRAIN, access: AccessArgs::default() }
    }

    pub(crate) async fn run(self, store: &StoreSpec, out: &mut dyn Write) -> anyhow::Result<()> {
        let access = self.access.open(store)?;
        let asks = access.authority.asks();
        let opened: Arc<dyn Store> = store.open()?;
        let agents = if self.demo { agents::demo(&opened)? } else { Registry::new() };
        let names: Vec<_> = agents.list().into_iter().map(|agent| agent.name.to_string()).collect();
        let worker = Worker::start(agents.clone(), LOOK);
        let server = Server::bind(Settings { addr: self.addr, access }, agents).await?;
        let base = format!("http://{}", server.addr()?);
        writeln!(out, "everturn listens on {base}")?;
        writeln!(out, "  sessions are kept in {store}")?;
        let whom = if asks { "whoever has a key" } else { "everybody on this machine" };
        writeln!(out, "  {whom} is let in")?;
        for name in &names {
            writeln!(out, "  agent {name:<12} {base}/genkit/{name}")?;
        }
        if names.is_empty() {
            writeln!(out, "  no agents are hosted: --demo hosts some")?;
        } else {
            writeln!(out, "try it:")?;
            let key = if asks { " -H \"Authorization: Bearer $KEY\"" } else { "" };
            writeln!(
                out,
                "  curl {base}/genkit/echo{key} -H 'Content-Type: application/json' \\\n    -d '{{\"data\":{{\"message\":{{\"role\":\"user\",\"content\":[{{\"text\":\"hi\"}}]}}}}}}'"
            )?;
        }
        writeln!(out, "Ctrl-C stops it; nothing that was acknowledged is lost")?;
        out.flush()?;
        server.serve(stop_signal()?).await?;
        let left = worker.shutdown(Duration::from_secs(self.drain)).await;
        if left > 0 {
            writeln!(out, "{left} invocations were still at work: the next server takes them over")?;
        }
        drop(opened);
        writeln!(out, "stopped")?;
        Ok(())
    }
}

/// Fires when somebody asks the process to stop. Asked twice, it stops at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for a request to stop")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(130);
        });
    })
}
