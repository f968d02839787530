//! Everturn over HTTP.

mod access;
mod cors;
mod genkit;
mod guard;
mod headers;
mod identify;
mod problem;
mod server;

pub(crate) use access::{Access, Origin};
pub(crate) use server::{Server, Settings};
