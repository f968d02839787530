//! Changing a message that was said, written or not.

use super::Work;
use crate::event::Event;
use crate::message::Message;
use crate::turn::Splice;
use crate::{Error, Result};

impl Work {
    /// Puts another message in the place of the last one that fits, and makes it the last of all: what was said beside
    /// it while its calls ran stands before it. What was there is the answer. `carrier` is the event that brings it
    /// where the one that brought the old message cannot.
    pub(crate) fn replace_last(
        &mut self,
        fits: impl Fn(&Message) -> bool,
        message: Message,
        carrier: Event,
    ) -> Result<Message> {
        self.check_open()?;
        let index = self.now.messages.iter().rev().position(fits).map(|back| self.now.messages.len() - 1 - back);
        let old = index.and_then(|index| Some((index, self.now.messages.get(index)?.clone())));
        let Some((index, old)) = old else {
            return Err(Error::internal("there is no message to replace"));
        };
        let behind: Vec<Message> = self.now.messages.iter().skip(index + 1).cloned().collect();
        if old == message && behind.is_empty() {
            return Ok(old);
        }
        self.replace_unwritten(index, &message, carrier);
        self.now.messages.truncate(index);
        for message in behind.into_iter().chain([message]) {
            self.now.messages.push(message);
        }
        Ok(old)
    }

    /// What is to be written is what was, some of it spliced, then what events bring: the same there.
    fn replace_unwritten(&mut self, index: usize, message: &Message, carrier: Event) {
        let base = &self.base.messages;
        let splice = self.pending.splice.take();
        let (keep, mut spliced) = match splice {
            Some(splice) => (usize::try_from(splice.keep).unwrap_or(usize::MAX), splice.messages),
            None => (base.len(), Vec::new()),
        };
        let brought = keep + spliced.len();
        let events = &mut self.pending.events;
        if index < brought {
            let from = keep.min(index);
            let mut messages: Vec<Message> = base.iter().take(keep).skip(from).cloned().collect();
            messages.append(&mut spliced);
            messages.remove(index - from);
            match events.iter().all(|event| event.messages.is_empty()) {
                true => messages.push(message.clone()),
                false => events.push(carrier.with_messages([message.clone()])),
            }
            self.pending.splice = Some(Splice { keep: from as u64, messages });
            return;
        }
        if brought != base.len() || keep != base.len() {
            self.pending.splice = Some(Splice { keep: keep as u64, messages: spliced });
        }
        let mut at = index - brought;
        let from = events.iter().position(|event| {
            let here = at < event.messages.len();
            at -= if here { 0 } else { event.messages.len() };
            here
        });
        let Some(from) = from else { return };
        events[from].messages.remove(at);
        let alone = events[from].messages.is_empty();
        let event = if alone { events.remove(from) } else { carrier };
        events.push(event.with_messages([message.clone()]));
    }
}
