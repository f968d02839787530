//! Sessions as files: one line after the other, each with a checksum that depends on all lines before it.
//!
//! `docs/export.md` describes the file. Writing one and reading one take little memory but for what a session holds; a file
//! that was cut short, changed or put together from two is noticed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::digest::Digest;
use crate::json::Json;
use crate::session::SessionKey;
use crate::store::{Cursor, Entry, ImportSession, Store};
use crate::{Error, Result, SessionId};

/// The version of the file that is written, and the only one that is read.
const VERSION: u64 = 1;

/// What a line is besides an [`Entry`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Frame {
    /// The first line.
    Export(Header),
    /// The last one.
    End(Trailer),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trailer {
    lines: u64,
}

/// The checksum of a line: of the one before it, and of its text.
fn sum(before: Digest, text: &str) -> Digest {
    Digest::of_parts(&[before.as_bytes(), text.as_bytes()])
}

/// Writes a session as a file, piece by piece.
///
/// ```
/// use std::sync::Arc;
///
/// use everturn::store::{CreateSession, MemoryStore, Store};
/// use everturn::{Exporter, Importer, SessionKey};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
/// let key = SessionKey::of("shop", "ann", "order-42")?;
/// store.create(CreateSession::at(key.clone()).title("Tea")).await?;
///
/// let mut importer = Importer::new(1 << 20);
/// let mut exporter = Exporter::new(store, key.clone());
/// while let Some(piece) = exporter.next().await? {
///     importer.push(piece.as_bytes())?;
/// }
/// let elsewhere = MemoryStore::new();
/// let session = elsewhere.import(importer.finish(key)?).await?;
/// assert_eq!(session.title.as_deref(), Some("Tea"));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Exporter {
    store: Arc<dyn Store>,
    key: SessionKey,
    at: Stage,
    before: Digest,
    lines: u64,
}

#[derive(Debug)]
enum Stage {
    Header,
    Entries(Option<Cursor>),
    Trailer,
    Over,
}

impl Exporter {
    /// Of a session. What it holds when the first piece is asked for is what is written.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, key: SessionKey) -> Self {
        Self { store, key, at: Stage::Header, before: Digest::ABSENT, lines: 0 }
    }

    /// The next lines, whole; nothing after the last.
    pub async fn next(&mut self) -> Result<Option<String>> {
        let mut out = String::new();
        match std::mem::replace(&mut self.at, Stage::Over) {
            Stage::Header => {
                let page = self.store.export(&self.key, None).await?;
                self.line(&mut out, &Frame::Export(Header { version: VERSION }))?;
                self.page(&mut out, page.entries, page.next)?;
            }
            Stage::Entries(cursor) => {
                let page = self.store.export(&self.key, cursor.as_ref()).await?;
                self.page(&mut out, page.entries, page.next)?;
            }
            Stage::Trailer => {
                let lines = self.lines;
                self.line(&mut out, &Frame::End(Trailer { lines }))?;
            }
            Stage::Over => return Ok(None),
        }
        Ok(Some(out))
    }

    fn page(&mut self, out: &mut String, entries: Vec<Entry>, next: Option<Cursor>) -> Result<()> {
        entries.iter().try_for_each(|entry| self.line(out, entry))?;
        self.at = match next {
            Some(cursor) => Stage::Entries(Some(cursor)),
            None => Stage::Trailer,
        };
        Ok(())
    }

    fn line<T: Serialize>(&mut self, out: &mut String, value: &T) -> Result<()> {
        // Line feeds within strings are escaped; between tokens of what was kept as it came they mean nothing.
        let json = Json::written(value)?;
        // What could not be brought in again is told now.
        let text = Json::parse_wrapped(json.as_str())?.as_str().replace(['\n', '\r'], " ");
        self.before = sum(self.before, &text);
        self.lines += 1;
        out.push_str(&format!("[\"{}\",{text}]\n", self.before));
        Ok(())
    }
}

/// Reads a file that [`Exporter`] wrote, however it comes in pieces.
#[derive(Debug)]
pub struct Importer {
    /// What has come of a line that is not whole yet.
    rest: Vec<u8>,
    entries: Vec<Entry>,
    before: Digest,
    lines: u64,
    left: usize,
    ended: bool,
}

impl Importer {
    /// Of a file of at most so many bytes, which are held until all have come.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { rest: Vec::new(), entries: Vec::new(), before: Digest::ABSENT, lines: 0, left: limit, ended: false }
    }

    /// Takes the next piece of the file. An error is final.
    pub fn push(&mut self, piece: &[u8]) -> Result<()> {
        self.left = self.left.checked_sub(piece.len()).ok_or_else(|| {
            Error::too_large("the export is larger than what is taken here: bring it in where more is")
        })?;
        let mut piece = piece;
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let mut line = std::mem::take(&mut self.rest);
            line.extend_from_slice(&piece[..end]);
            piece = &piece[end + 1..];
            let number = self.lines + 1;
            self.line(&line)
                .map_err(|error| Error::invalid(format!("line {number} of the export: {error}")).with_source(error))?;
        }
        self.rest.extend_from_slice(piece);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let damaged = || Error::invalid("it is not as it was written, or lines before it are missing");
        if self.ended {
            return Err(Error::invalid("it comes after the end"));
        }
        let line = std::str::from_utf8(line).map_err(|_| damaged())?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        let (said, text) = line.strip_prefix("[\"").and_then(|rest| rest.split_once("\",")).ok_or_else(damaged)?;
        let text = text.strip_suffix(']').ok_or_else(damaged)?;
        let expected = sum(self.before, text);
        if expected.to_string() != said {
            return Err(damaged());
        }
        let json = Json::parse_wrapped(text)?;
        let cause = |error: Error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Error::invalid(why)
        };
        if self.lines == 0 {
            let newer = |version| Error::unsupported(format!("it is of version {version}, and {VERSION} is read here"));
            match json.to::<Frame>() {
                Ok(Frame::Export(Header { version: VERSION })) => {}
                Ok(Frame::Export(Header { version })) => return Err(newer(version)),
                _ => return Err(Error::invalid("it is not the beginning of an export")),
            }
        } else if let Ok(Frame::End(trailer)) = json.to::<Frame>() {
            if trailer.lines != self.lines {
                return Err(damaged());
            }
            self.ended = true;
        } else {
            self.entries.push(json.to().map_err(cause)?);
        }
        self.before = expected;
        self.lines += 1;
        Ok(())
    }

    /// The session, to be brought in under a key, once the whole file has come.
    pub fn finish(self, key: SessionKey) -> Result<ImportSession> {
        if !self.ended || !self.rest.is_empty() {
            return Err(Error::invalid("the export was cut short: its last line is missing, get the whole file"));
        }
        Ok(ImportSession::new(key, self.entries))
    }

    /// The same where it was, of whom it was, but for what it is called.
    pub fn into_session(self, id: ImportId, clock: &dyn Clock) -> Result<ImportSession> {
        let Some(Entry::Session(session)) = self.entries.first() else {
            return Err(Error::invalid("the export is empty: get the whole file"));
        };
        let id = match id {
            ImportId::Keep => session.id.clone(),
            ImportId::Named(id) => id,
            ImportId::Fresh => SessionId::new(clock.uuid().to_string())?,
        };
        let key = SessionKey::new(session.app.clone(), session.user.clone(), id);
        self.finish(key)
    }
}

/// What a session that is brought in is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImportId {
    /// What it was called.
    #[default]
    Keep,
    /// This.
    Named(SessionId),
    /// Something fresh.
    Fresh,
}
