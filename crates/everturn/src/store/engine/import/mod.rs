//! A session on its way in: everything is checked before anything is written.
//!
//! What came from elsewhere is not trusted. Its states are added up record by record, and each must have the digest it
//! says; whatever can be told from that is told from that and not read.

mod check;
mod cost;
mod shape;
mod write;

pub(crate) use check::Checked;
pub(crate) use write::write;
