//! The `everturn` command.
//!
//! Ctrl-C needs no handler here: it ends the process at once, and a store loses nothing that was acknowledged when its
//! process dies.

mod cli;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match cli::Everturn::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if cli::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("everturn: {}", error.to_string().replace(['\n', '\r'], " "));
            ExitCode::FAILURE
        }
    }
}
