//! The runtime's bars: what an agent costs beside its store, and how fast it streams.

mod chunks;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::report::Report;

/// Measures agents in this process: their own time beside the store's, and their stream.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  everturn-bench runtime                  everything, under a minute
  everturn-bench runtime --check          the same, as a gate
  everturn-bench runtime --json f         figures also to a file")]
pub(crate) struct Options {
    /// Also write the figures to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed, naming it
    #[arg(long)]
    check: bool,
    /// Fewer samples, less certain
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workers = |count| tokio::runtime::Builder::new_multi_thread().worker_threads(count).enable_all().build();
    let mut report = Report::default();
    let samples = if options.quick { 300 } else { 1500 };
    // Where servers call agents from: a task of the runtime, not the thread that waits for it. With one worker, so that
    // what is measured is the agent's work and not how long an idle core takes to wake; the second figure has both.
    let one = workers(1)?.block_on(async { tokio::spawn(turns::run(samples)).await? })?;
    let two = workers(2)?.block_on(async { tokio::spawn(turns::run(samples)).await? })?;
    for (figure, value) in turns::FIGURES.iter().zip(one.into_iter().chain([two[0]])) {
        report.add(figure, value);
    }
    let quick = options.quick;
    let chunks = workers(2)?.block_on(async move { tokio::spawn(chunks::run(quick)).await? })?;
    for (figure, value) in chunks::FIGURES.iter().zip(chunks) {
        report.add(figure, value);
    }
    report.print();
    if let Some(path) = &options.json {
        report.write_json(path, options.quick)?;
    }
    Ok(report.verdict(options.check))
}
