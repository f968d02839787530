//! Everturn over HTTP.

mod genkit;
mod guard;
mod problem;
mod server;

pub(crate) use server::{Server, Settings};
