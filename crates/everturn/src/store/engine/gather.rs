//! Messages on their way from records into a state.
//!
//! Their texts are laid side by side and shared: an allocation for each message is most of what reading a long
//! conversation for the first time would cost.

use std::sync::Arc;

use crate::digest::Digest;
use crate::json::Json;
use crate::message::Message;
use crate::state::Messages;

/// Text that shares an allocation: also what a message keeps alive when it outlives its state.
const SHARED: usize = 32 << 10;

#[derive(Default)]
pub(super) struct Gather {
    text: String,
    messages: Vec<Gathered>,
}

struct Gathered {
    /// Where it ends in the text; it begins where the one before it ends.
    end: usize,
    /// The chain value after it, where that is known.
    chain: Option<Digest>,
}

impl Gather {
    pub(super) fn push(&mut self, text: &str, into: &mut Messages) {
        if self.text.len() + text.len() > SHARED {
            self.settle(into);
        }
        self.text.push_str(text);
        self.messages.push(Gathered { end: self.text.len(), chain: None });
    }

    /// Notes the chain value after the message that is last now.
    pub(super) fn set_chain(&mut self, chain: Digest, into: &mut Messages) {
        match self.messages.last_mut() {
            Some(last) => last.chain = Some(chain),
            None => into.set_chain(chain),
        }
    }

    /// Puts what was gathered into the list.
    pub(super) fn settle(&mut self, into: &mut Messages) {
        if self.messages.is_empty() {
            return;
        }
        let text: Arc<str> = self.text.as_str().into();
        self.text.clear();
        let mut start = 0;
        for Gathered { end, chain } in self.messages.drain(..) {
            into.push(Message::trusted(Json::piece(&text, start..end)));
            start = end;
            if let Some(chain) = chain {
                into.set_chain(chain);
            }
        }
    }
}
