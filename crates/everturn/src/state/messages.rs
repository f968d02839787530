//! A list of messages that is cheap to copy and to grow at its end.

use std::fmt;
use std::sync::Arc;

use crate::Result;
use crate::digest::Digest;
use crate::message::Message;

/// Full chunks are shared between all copies; only the last, unfinished one is ever copied. Each message that is added
/// to a copy costs half of one on average, and each chunk a list of all chunks.
const CHUNK: usize = 32;

/// The messages of a conversation.
///
/// Copies share their content: adding to a copy of ten thousand copies a few dozen pointers.
#[derive(Clone, Default)]
pub struct Messages {
    full: Arc<Vec<Arc<Chunk>>>,
    last: Arc<Chunk>,
}

#[derive(Clone, Default)]
struct Chunk {
    messages: Vec<Message>,
    bytes: u64,
    /// The chain value after this chunk's last message, where it is known.
    chain: Option<Digest>,
    /// Bytes of all chunks before this one.
    before: u64,
}

impl Messages {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK + self.last.messages.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Message> {
        let chunk = self.full.get(index / CHUNK).unwrap_or(&self.last);
        let chunk = if index / CHUNK > self.full.len() { return None } else { chunk };
        chunk.messages.get(index % CHUNK)
    }

    /// The last message.
    #[must_use]
    pub fn last(&self) -> Option<&Message> {
        self.len().checked_sub(1).and_then(|index| self.get(index))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> + Clone {
        self.full.iter().chain(std::iter::once(&self.last)).flat_map(|chunk| chunk.messages.iter())
    }

    /// All of them, in a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Message> {
        self.iter().cloned().collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.last.before + self.last.bytes
    }

    pub(crate) fn push(&mut self, message: Message) {
        if self.last.messages.len() == CHUNK {
            let done = std::mem::take(&mut self.last);
            let before = done.before + done.bytes;
            Arc::make_mut(&mut self.full).push(done);
            self.last = Arc::new(Chunk { messages: Vec::with_capacity(CHUNK), before, ..Chunk::default() });
        }
        if Arc::get_mut(&mut self.last).is_none() {
            // With room for what comes, which a plain copy would not have.
            let mut messages = Vec::with_capacity(CHUNK);
            messages.extend_from_slice(&self.last.messages);
            self.last = Arc::new(Chunk { messages, ..*self.last });
        }
        let last = Arc::make_mut(&mut self.last);
        last.bytes += message.as_str().len() as u64 + 64;
        last.chain = None;
        last.messages.push(message);
    }

    /// Notes the chain value after the message that is last now.
    pub(crate) fn set_chain(&mut self, chain: Digest) {
        if self.last.chain != Some(chain) {
            Arc::make_mut(&mut self.last).chain = Some(chain);
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let chunk = len / CHUNK;
        if chunk < self.full.len() {
            let full = Arc::make_mut(&mut self.full);
            self.last = full[chunk].clone();
            full.truncate(chunk);
        }
        let last = Arc::make_mut(&mut self.last);
        last.messages.truncate(len % CHUNK);
        last.bytes = last.messages.iter().map(|message| message.as_str().len() as u64 + 64).sum();
        last.chain = None;
    }

    /// The chain value after the first `len` messages.
    pub(crate) fn chain_at(&self, len: usize) -> Result<Digest> {
        // Start from the nearest full chunk before whose chain value is known; recompute from there.
        let whole = (len / CHUNK).min(self.full.len());
        let known = (0..whole).rev().find_map(|i| self.full[i].chain.map(|chain| (i + 1, chain)));
        let (from, mut chain) = known.unwrap_or((0, Digest::ABSENT));
        for index in from * CHUNK..len {
            let Some(message) = self.get(index) else { break };
            chain = chain.chain(Digest::of_json_text(message.as_str())?);
        }
        Ok(chain)
    }
}

impl FromIterator<Message> for Messages {
    fn from_iter<I: IntoIterator<Item = Message>>(messages: I) -> Self {
        let mut list = Self::default();
        messages.into_iter().for_each(|message| list.push(message));
        list
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a Message;
    type IntoIter = Box<dyn Iterator<Item = &'a Message> + 'a>;
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(messages: &Messages, len: usize) -> Digest {
        messages
            .iter()
            .take(len)
            .fold(Digest::ABSENT, |chain, message| chain.chain(Digest::of_json_text(message.as_str()).unwrap()))
    }

    #[test]
    fn copies_do_not_see_each_others_changes() {
        for len in [0, 1, 63, 64, 65, 128, 300] {
            let mut list = Messages::default();
            for i in 0..len {
                list.push(Message::user(i.to_string()));
                if i % 3 == 0 {
                    let value = chain(&list, list.len());
                    list.set_chain(value);
                }
            }
            let copy = list.clone();
            list.push(Message::user("more"));
            assert_eq!((copy.len(), list.len()), (len, len + 1));
            for cut in [0, 1, 63, 64, 65, 127, 128, 299] {
                let mut shorter = list.clone();
                shorter.truncate(cut);
                let kept = cut.min(len + 1);
                assert_eq!(shorter.len(), kept);
                assert!(shorter.iter().eq(list.iter().take(kept)));
                assert_eq!(list.chain_at(kept).unwrap(), chain(&list, kept));
                shorter.push(Message::user("other"));
                assert_eq!(shorter.chain_at(kept + 1).unwrap(), chain(&shorter, kept + 1));
            }
            assert_eq!(copy.len(), len);
            assert_eq!(list.bytes(), list.iter().map(|m| m.as_str().len() as u64 + 64).sum::<u64>());
        }
    }
}
