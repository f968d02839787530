//! The server's bars: turns over HTTP against Genkit's and ADK's own servers, and what sessions and streams weigh.

mod load;
mod memory;
mod process;
mod servers;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::report::{Bar, Figure, Report};
use crate::stats::median;
use process::Process;
use wire::Wire;

/// Measures `everturn serve` against other servers on the same work, and says which bars it clears.
///
/// Each connection takes ten turns of the echo agent on a session of its own, over and over. The servers run at the same
/// time and are asked in turns, so that a ratio compares what happened within seconds. The load shares the machine with
/// the servers. Everturn is built, Genkit (npm) and ADK (PyPI) are installed below the target directory.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  everturn-bench server                    everything, some minutes
  everturn-bench server --quick --check    a first answer, as a gate
  everturn-bench server --alone            ours only, without the peers")]
pub(crate) struct Options {
    /// Also write the figures to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed or a peer could not be run, naming it
    #[arg(long)]
    check: bool,
    /// Fewer rounds and sessions: less certain
    #[arg(long)]
    quick: bool,
    /// Do not install or run the other servers
    #[arg(long)]
    alone: bool,
    /// Measure this binary instead of building one
    #[arg(long, value_name = "FILE")]
    everturn: Option<PathBuf>,
    /// Where the stores are made; its disk is what is measured [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The figures of one number of connections.
struct Figures {
    connections: usize,
    servers: [OfServer; 3],
}

/// What is measured of one server, ours over it included.
struct OfServer {
    wire: Wire,
    turns: Figure,
    p50: Figure,
    p99: Figure,
    refused: Figure,
    ratio: Option<Figure>,
}

/// Names of figures are fixed texts, so the rows are spelled by macros.
macro_rules! of_server {
    ($wire:expr, $key:literal, $name:literal, $n:literal, $ratio:expr) => {
        OfServer {
            wire: $wire,
            turns: Figure {
                name: concat!($key, "_turns_", $n),
                what: concat!($name, ": turns/s at ", $n, " connections"),
                bar: Bar::None,
            },
            p50: Figure {
                name: concat!($key, "_p50_ms_", $n),
                what: concat!($name, ": half of the turns take longer, at ", $n, " (ms)"),
                bar: Bar::None,
            },
            p99: Figure {
                name: concat!($key, "_p99_ms_", $n),
                what: concat!($name, ": one of a hundred takes longer, at ", $n, " (ms)"),
                bar: Bar::None,
            },
            refused: Figure {
                name: concat!($key, "_refused_", $n),
                what: concat!($name, ": turns refused with an error, of a hundred sent, at ", $n),
                bar: if matches!($wire, Wire::Everturn) { Bar::AtMost(0.0) } else { Bar::None },
            },
            ratio: $ratio,
        }
    };
}

macro_rules! figures {
    ($n:literal, $bar:expr) => {
        Figures {
            connections: $n,
            servers: [
                of_server!(Wire::Everturn, "server", "Everturn, durable", $n, None),
                of_server!(
                    Wire::Genkit,
                    "genkit",
                    "Genkit's express server",
                    $n,
                    Some(Figure {
                        name: concat!("genkit_ratio_", $n),
                        what: concat!("our turns/s over Genkit's, at ", $n),
                        bar: $bar,
                    })
                ),
                of_server!(
                    Wire::Adk,
                    "adk",
                    "adk api_server",
                    $n,
                    Some(Figure {
                        name: concat!("adk_ratio_", $n),
                        what: concat!("our turns/s over ADK's, at ", $n),
                        bar: $bar,
                    })
                ),
            ],
        }
    };
}

static FIGURES: [Figures; 4] =
    [figures!(1, Bar::None), figures!(16, Bar::None), figures!(64, Bar::AtLeast(10.0)), figures!(256, Bar::None)];

/// How long each server is asked for in one round, at least.
const ROUND: Duration = Duration::from_millis(700);

struct Running {
    wire: Wire,
    process: Process,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        bail!("this is a debug build, and its load would be slower than the servers: cargo run --release");
    }
    let everturn = match &options.everturn {
        // It is started in another directory.
        Some(binary) => binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?,
        None => servers::built()?,
    };
    let temp = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .context("cannot create a directory for the stores")?;
    // One thread: the load must not take what the servers need.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::default();
    let missing = runtime.block_on(measure(options, &everturn, temp.path(), &mut report))?;
    report.print();
    for wire in [Wire::Everturn, Wire::Genkit, Wire::Adk] {
        println!("{:8}  {}", wire.name(), servers::durability(wire));
    }
    if let Some(path) = &options.json {
        report.write_json(path, options.quick)?;
    }
    let verdict = report.verdict(options.check);
    for (wire, why) in &missing {
        eprintln!("\n== NOT RUN: {}: {why:#}\n", wire.name());
    }
    Ok(if options.check && !missing.is_empty() { ExitCode::FAILURE } else { verdict })
}

/// Fills the report, and says which servers could not be run.
async fn measure(
    options: &Options,
    everturn: &Path,
    dir: &Path,
    report: &mut Report,
) -> Result<Vec<(Wire, anyhow::Error)>> {
    let peers: &[Wire] = if options.alone { &[] } else { &[Wire::Genkit, Wire::Adk] };
    let mut running = vec![Running { wire: Wire::Everturn, process: servers::everturn(everturn, dir)? }];
    let mut missing = Vec::new();
    for wire in peers {
        match servers::peer(*wire, dir) {
            Ok(process) => running.push(Running { wire: *wire, process }),
            Err(why) => missing.push((*wire, why)),
        }
    }
    let since = Instant::now();
    for server in &running {
        load::round(server.wire, server.process.addr, 16, "warm").await?;
    }
    for figures in &FIGURES {
        eprintln!("{:>4.0} s  {} connections", since.elapsed().as_secs_f64(), figures.connections);
        compare(options.quick, &running, figures, report).await?;
    }
    drop(running);
    eprintln!("{:>4.0} s  memory", since.elapsed().as_secs_f64());
    let memory = memory::run(everturn, &dir.join("memory"), options.quick).await?;
    for (figure, value) in memory::FIGURES.iter().zip(memory) {
        report.add(figure, value);
    }
    eprintln!("{:>4.0} s  done", since.elapsed().as_secs_f64());
    Ok(missing)
}

/// What one server showed in all rounds.
#[derive(Default)]
struct Seen {
    rates: Vec<f64>,
    millis: Vec<f64>,
    refused: usize,
}

async fn compare(quick: bool, running: &[Running], figures: &'static Figures, report: &mut Report) -> Result<()> {
    // With many connections one round of a slow server takes long, and says as much as several short ones.
    let rounds = match (figures.connections, quick) {
        (64, false) => 5,
        (64, true) => 3,
        (256, _) => 1,
        (_, false) => 3,
        (_, true) => 1,
    };
    let mut seen: Vec<Seen> = running.iter().map(|_| Seen::default()).collect();
    for round in 0..rounds {
        for (server, seen) in running.iter().zip(&mut seen) {
            let (start, mut rates, mut again) = (Instant::now(), Vec::new(), 0);
            while rates.is_empty() || start.elapsed() < ROUND {
                let name = format!("{}-{round}-{again}", figures.connections);
                let round = load::round(server.wire, server.process.addr, figures.connections, &name).await?;
                rates.push(round.turns_per_s);
                seen.millis.extend(round.millis);
                seen.refused += round.refused;
                again += 1;
            }
            seen.rates.push(median(&rates));
            eprintln!("        {:8} {:.0} turns/s", server.wire.name(), median(&rates));
        }
    }
    let ours = seen[0].rates.clone();
    for of in &figures.servers {
        let Some(n) = running.iter().position(|server| server.wire == of.wire) else { continue };
        let Seen { rates, millis, refused } = &mut seen[n];
        report.add(&of.turns, median(rates));
        report.add(&of.p50, median(millis));
        report.add(&of.p99, percentile_99(millis));
        report.add(&of.refused, 100.0 * *refused as f64 / (*refused + millis.len()) as f64);
        if let Some(ratio) = &of.ratio {
            let ratios: Vec<f64> = ours.iter().zip(rates).map(|(ours, theirs)| ours / *theirs).collect();
            report.add(ratio, median(&ratios));
        }
    }
    Ok(())
}

fn percentile_99(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(f64::NAN)
}
