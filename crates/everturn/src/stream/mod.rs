//! What leaves an agent while it works: chunks, their places, and the queue they wait in.

mod chunk;
mod lately;
mod position;
mod queue;
mod ring;

pub use chunk::{Chunk, TurnEnd};
pub(crate) use lately::Held;
pub use position::Position;
pub use queue::StreamLimits;
pub(crate) use queue::{Reader, Receiver, Room, Sender, channel};
pub(crate) use ring::{News, Ring};
