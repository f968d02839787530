//! What leaves an agent while it works: chunks, the queue they wait in, and the handle that sends them.

mod chunk;
mod queue;
mod responder;

pub use chunk::{Chunk, TurnEnd};
pub use queue::StreamLimits;
pub(crate) use queue::{Reader, Receiver, Room, Sender, channel};
pub use responder::Responder;
