//! Models of real providers, against a provider on this machine. Nothing else is ever asked.

mod answers;
mod bounds;
mod environment;
mod errors;
mod loopback;
mod requests;
mod retries;
mod support;
mod tools;
mod wire;
