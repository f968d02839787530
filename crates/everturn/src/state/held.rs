//! Memory that states share.

use std::sync::{Arc, Weak};

/// A piece of memory that states share, and for as long as one of them is there.
pub(crate) struct Held {
    pub(crate) bytes: u64,
    is_held: Box<dyn Fn() -> bool + Send>,
}

impl Held {
    pub(crate) fn of<T: ?Sized + Send + Sync + 'static>(piece: &Arc<T>, bytes: usize) -> Self {
        let piece: Weak<T> = Arc::downgrade(piece);
        Self { bytes: bytes as u64, is_held: Box::new(move || piece.strong_count() > 0) }
    }

    pub(crate) fn is_held(&self) -> bool {
        (self.is_held)()
    }
}
