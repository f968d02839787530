//! The `everturn` command.

mod agents;
mod auth;
mod cli;
mod config;
mod http;
mod ops;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
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
