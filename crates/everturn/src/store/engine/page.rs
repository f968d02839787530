//! How much goes on a page.

use std::io;

use serde::Serialize;

use crate::store::{MAX_PAGE, MAX_PAGE_BYTES};
use crate::{Error, Result};

/// What a page still has room for, in items and in bytes. A page that was bounded in items only could be as large as all
/// of memory: an item may have 16 MiB, and few bytes on disk.
pub(crate) struct Room {
    items: usize,
    bytes: usize,
    empty: bool,
}

impl Room {
    pub(crate) fn new(limit: usize, bytes: usize) -> Result<Self> {
        Ok(Self { items: page_limit(limit)?, bytes: bytes.min(MAX_PAGE_BYTES), empty: true })
    }

    /// Whether no further item goes on the page, however small it is.
    pub(crate) fn is_full(&self) -> bool {
        self.items == 0 || (self.bytes == 0 && !self.empty)
    }

    /// Whether an item goes on the page, which then has less room. The first one always does.
    pub(crate) fn take<T: Serialize>(&mut self, item: &T) -> Result<bool> {
        self.take_bytes(weight(item)?)
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<bool> {
        if self.is_full() || (bytes > self.bytes && !self.empty) {
            return Ok(false);
        }
        (self.items, self.bytes, self.empty) = (self.items - 1, self.bytes.saturating_sub(bytes), false);
        Ok(true)
    }
}

/// The most items of a page that was asked for.
pub(crate) fn page_limit(limit: usize) -> Result<usize> {
    match limit {
        0 => Err(Error::invalid("a page of nothing was asked for: ask for 1 to 1000 items")),
        limit => Ok(limit.min(MAX_PAGE)),
    }
}

/// How many bytes something has as JSON.
pub(crate) fn weight<T: Serialize>(item: &T) -> Result<usize> {
    struct Counted(usize);

    impl io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counted = Counted(0);
    serde_json::to_writer(&mut counted, item)
        .map_err(|error| Error::internal("an item of a page could not be written").with_source(error))?;
    Ok(counted.0)
}
