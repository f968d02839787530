//! The `everturn` command.

mod agents;
mod auth;
mod cli;
mod config;
mod http;
mod ops;

use std::process::ExitCode;

use clap::Parser;

/// What a request is made of is often given back by another thread than took it, which the system's allocator has locks for.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::Everturn::parse().run().await {
        Ok(code) => code,
        Err(error) if cli::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("everturn: {}", error.to_string().replace(['\n', '\r'], " "));
            ExitCode::FAILURE
        }
    }
}
