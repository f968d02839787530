//! Everturn over HTTP.

mod access;
mod body;
mod cors;
mod genkit;
mod guard;
mod headers;
mod identify;
mod problem;
mod server;
mod v1;

pub(crate) use access::{Access, Origin};
pub(crate) use server::{Server, Settings};
