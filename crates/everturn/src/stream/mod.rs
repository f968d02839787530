//! What leaves an agent while it works: chunks, and the queue they wait in.

mod chunk;
mod queue;

pub use chunk::{Chunk, TurnEnd};
pub use queue::StreamLimits;
pub(crate) use queue::{Reader, Receiver, Room, Sender, channel};
