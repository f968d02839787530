//! Sessions as they are lived: what a handler reads and changes while its turn runs.

pub(crate) mod attribution;
mod current;
mod keys;
mod overlay;
mod responder;
mod session;
mod transcript;
mod turn;
mod viewing;

pub(crate) use current::{current_run, in_scope};
pub use keys::{ReadState, StateMap};
pub use responder::Responder;
pub use session::Session;
pub use transcript::{MemoryTranscript, StoredTranscript, Transcript};
pub use turn::Turn;
