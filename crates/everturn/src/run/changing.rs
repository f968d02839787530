//! Changing custom state from inside a change of custom state.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::Run;
use crate::{Error, Result};

thread_local! {
    /// Invocations whose custom state this thread is changing, or showing, right now.
    static CHANGING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// This thread changes an invocation's custom state. While it does, code of the application runs (the change itself, the
/// transforms); if that changes the custom state again it would wait for itself, and is refused instead.
pub(crate) struct Changing(PhantomData<*const ()>);

impl Changing {
    pub(crate) fn enter(run: &Run) -> Result<Self> {
        let me = std::ptr::from_ref(run).addr();
        CHANGING.with_borrow_mut(|changing| {
            if changing.contains(&me) {
                return Err(Error::busy("the custom state is being changed by this very call: return from it first"));
            }
            changing.push(me);
            Ok(Self(PhantomData))
        })
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.with_borrow_mut(Vec::pop);
    }
}
