//! Everturn over HTTP.

mod body;
mod genkit;
mod guard;
mod problem;
mod server;
mod v1;

pub(crate) use server::{Server, Settings};
