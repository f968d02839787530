//! What stores are asked, and what they answer.

mod heads;
mod reading;
mod sessions;
mod streams;
mod transfer;
mod tree;
mod turns;

pub use heads::*;
pub use reading::*;
pub use sessions::*;
pub use streams::*;
pub use transfer::*;
pub use tree::*;
pub use turns::*;

/// The most items a page can have.
pub const MAX_PAGE: usize = 1000;

/// The most bytes a page can have, as JSON. One item is always given, whatever it weighs.
pub const MAX_PAGE_BYTES: usize = 4 << 20;
