//! A list of messages that is cheap to copy and to grow at its end.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::Held;
use crate::Result;
use crate::digest::Digest;
use crate::json::steps;
use crate::message::Message;

/// Messages that lie together. Each chunk costs a list of all chunks.
const CHUNK: usize = 32;

/// The messages of a conversation.
///
/// Copies share their content: adding to a copy of ten thousand copies nothing, as long as no other copy has been added to.
#[derive(Clone, Default)]
pub struct Messages {
    full: Arc<Vec<Full>>,
    last: Option<Arc<Chunk>>,
    /// How many of the last chunk's messages are this list's. Another copy may have added more.
    len: usize,
    bytes: u64,
    /// The chain value after the last message, where it is known.
    chain: Option<Digest>,
}

/// A chunk that all of a list's later messages come after.
#[derive(Clone)]
struct Full {
    chunk: Arc<Chunk>,
    /// Bytes up to its end.
    bytes: u64,
    /// The chain value after its last message, once it is known.
    chain: OnceLock<Digest>,
}

/// Places for messages, each taken once: by the first of the copies that share the chunk to come so far.
#[derive(Default)]
struct Chunk([OnceLock<Message>; CHUNK]);

impl Chunk {
    /// The first messages, in a chunk that is not shared yet.
    fn copy(&self, len: usize) -> Self {
        let copy = Self::default();
        for (place, message) in copy.0.iter().zip(self.0[..len].iter().filter_map(OnceLock::get)) {
            let _ = place.set(message.clone());
        }
        copy
    }
}

fn weight(message: &Message) -> u64 {
    message.as_str().len() as u64 + 64
}

impl Messages {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK + self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Message> {
        if index >= self.len() {
            return None;
        }
        let chunk = match self.full.get(index / CHUNK) {
            Some(full) => &full.chunk,
            None => self.last.as_ref()?,
        };
        chunk.0[index % CHUNK].get()
    }

    /// The last message.
    #[must_use]
    pub fn last(&self) -> Option<&Message> {
        self.len().checked_sub(1).and_then(|index| self.get(index))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> + Clone {
        let last = self.last.iter().flat_map(|chunk| chunk.0[..self.len].iter());
        self.full.iter().flat_map(|full| full.chunk.0.iter()).chain(last).filter_map(OnceLock::get)
    }

    /// All of them, in a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Message> {
        self.iter().cloned().collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, message: Message) {
        if self.len == CHUNK
            && let Some(chunk) = self.last.take()
        {
            let chain = self.chain.map_or_else(OnceLock::new, OnceLock::from);
            Arc::make_mut(&mut self.full).push(Full { chunk, bytes: self.bytes, chain });
            self.len = 0;
        }
        self.bytes += weight(&message);
        self.chain = None;
        let chunk = self.last.get_or_insert_default();
        if let Err(message) = chunk.0[self.len].set(message) {
            // Another copy went on from here first; this one goes on in a chunk of its own.
            let own = chunk.copy(self.len);
            let _ = own.0[self.len].set(message);
            *chunk = Arc::new(own);
        }
        self.len += 1;
    }

    /// Notes the chain value after the message that is last now.
    pub(crate) fn set_chain(&mut self, chain: Digest) {
        self.chain = Some(chain);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        if len / CHUNK < self.full.len() {
            let full = Arc::make_mut(&mut self.full);
            self.last = Some(full[len / CHUNK].chunk.clone());
            full.truncate(len / CHUNK);
        }
        self.len = len % CHUNK;
        if self.len == 0 {
            self.last = None;
        }
        let kept = self.last.iter().flat_map(|chunk| &chunk.0[..self.len]).filter_map(OnceLock::get);
        self.bytes = self.full.last().map_or(0, |full| full.bytes) + kept.map(weight).sum::<u64>();
        self.chain = None;
    }

    /// The chain value after the first `len` messages.
    pub(crate) fn chain_at(&self, len: usize) -> Result<Digest> {
        if let Some(chain) = self.chain.filter(|_| len == self.len()) {
            return Ok(chain);
        }
        // Start from the nearest full chunk before whose chain value is known; recompute from there.
        let whole = (len / CHUNK).min(self.full.len());
        let known = (0..whole).rev().find_map(|i| self.full[i].chain.get().map(|chain| (i + 1, *chain)));
        let (from, mut chain) = known.unwrap_or((0, Digest::ABSENT));
        for index in from * CHUNK..len {
            let Some(message) = self.get(index) else { break };
            steps::count(1);
            chain = chain.chain(Digest::of_json_text(message.as_str())?);
            // Known from here on: a list that is cut off again and again is gone through once.
            if (index + 1) % CHUNK == 0
                && let Some(full) = self.full.get(index / CHUNK)
            {
                let _ = full.chain.set(chain);
            }
        }
        Ok(chain)
    }

    /// The list of its chunks, which copies share until they grow.
    pub(crate) fn held(&self) -> Held {
        Held::of(&self.full, self.full.len() * size_of::<Full>())
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
    fn copies_that_go_on_side_by_side_share_what_was_before() {
        let mut list = Messages::default();
        for i in 0..40 {
            list.push(Message::user(i.to_string()));
        }
        let mut other = list.clone();
        list.push(Message::user("list"));
        other.push(Message::user("other"));
        other.push(Message::user("more"));
        list.push(Message::user("again"));
        let texts = |messages: &Messages| messages.iter().skip(40).map(Message::text).collect::<Vec<_>>();
        assert_eq!(
            (texts(&list), texts(&other)),
            (vec!["list".into(), "again".into()], vec!["other".into(), "more".into()])
        );
        assert_eq!(
            list.get(3).map(Message::as_str).map(str::as_ptr),
            other.get(3).map(Message::as_str).map(str::as_ptr)
        );
        // Only the first copy goes on in place.
        assert!(!Arc::ptr_eq(list.last.as_ref().unwrap(), other.last.as_ref().unwrap()));
        assert_eq!((list.get(42), other.iter().next_back()), (None, other.last()));
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
