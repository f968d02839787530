//! Benchmarks of Everturn.
//!
//! What counts is a ratio within one run, or a count: both mean the same on a laptop and on a noisy virtual machine.
//! Where a bar is in milliseconds, the machine's own time for an fsync is printed beside it.

mod agents;
mod child;
mod report;
mod runtime;
mod server;
mod stats;
mod store;
mod stream;
mod texts;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Everturn against the bars it is built to clear.
#[derive(Parser)]
#[command(name = "everturn-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Store(store::Options),
    Runtime(runtime::Options),
    Stream(stream::Options),
    Server(server::Options),
    /// One of several processes of a measurement; started by the benchmark itself.
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        role: child::Role,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Store(options) => store::run(&options),
        Command::Runtime(options) => runtime::run(&options),
        Command::Stream(options) => stream::run(&options),
        Command::Server(options) => server::run(&options),
        Command::Child { role } => role.play().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
