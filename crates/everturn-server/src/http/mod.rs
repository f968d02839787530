//! Everturn over HTTP.

mod access;
mod admission;
mod answers;
mod body;
mod connections;
mod cors;
mod genkit;
mod guard;
mod headers;
mod held;
mod identify;
mod large;
mod left;
mod limits;
mod observe;
mod open;
mod operations;
mod pace;
mod problem;
mod queue;
mod server;
mod v1;

pub(crate) use access::{Access, Origin};
pub(crate) use operations::Operations;
pub(crate) use server::{Server, Settings};
