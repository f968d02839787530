//! A copy of a store that is in use.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use super::file::{APPLICATION_ID, StoreFile, foreign};
use super::owner::open_private;
use super::{Durability, SqliteStore, failure};
use crate::{Error, ErrorKind, Result};

/// How long is waited for whoever holds the file at the moment.
const PATIENCE: Duration = Duration::from_secs(30);

impl SqliteStore {
    /// Copies a store's file to a new one, as of one moment, while any process goes on writing to it; how many bytes the
    /// copy has is the answer. It has everything that was acknowledged before this was called. Turns that ran then are
    /// dead in the copy, like those of a process that was killed.
    ///
    /// Refused: a file that is no store (`Invalid`), a copy that is there already (`AlreadyExists`). A copy that failed
    /// leaves nothing under its name.
    ///
    /// ```
    /// use everturn::store::{CreateSession, SqliteStore, Store};
    /// use everturn::SessionKey;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (dir.path().join("sessions.db"), dir.path().join("copy.db"));
    /// let store = SqliteStore::open(&path)?;
    /// let key = SessionKey::of("shop", "ann", "order-42")?;
    /// store.create(CreateSession::at(key.clone())).await?;
    /// SqliteStore::backup(&path, &copy)?;
    /// assert!(SqliteStore::open(&copy)?.session(&key).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let taken = || {
            let text = format!("{} is there already: name another file, or remove it", to.display());
            Error::new(ErrorKind::AlreadyExists, text)
        };
        if to.try_exists().unwrap_or(false) {
            return Err(taken());
        }
        if !from.try_exists().unwrap_or(false) {
            return Err(Error::not_found(format!("there is no store at {}: check the path", from.display())));
        }
        // As long as the copy takes, the file is not closed beside it: that would drop the locks that keep it whole.
        let _open = StoreFile::prepare(from, None, Durability::PowerSafe, 1, PATIENCE, 0)?;
        let source = open_source(from)?;
        let unusable = |e: std::io::Error| {
            Error::unavailable(format!("cannot write {}: check the path and its permissions", to.display()))
                .with_source(e)
        };
        let partial = StoreFile::beside(to, ".partial");
        let copied = (|| {
            let _ = fs::remove_file(&partial);
            let file = open_private(&partial).map_err(unusable)?;
            copy(&source, &partial)?;
            file.sync_all().map_err(unusable)?;
            let bytes = file.metadata().map_err(unusable)?.len();
            // Unlike a rename, a link takes nobody's place.
            fs::hard_link(&partial, to).map_err(|e| match e.kind() {
                std::io::ErrorKind::AlreadyExists => taken(),
                _ => unusable(e),
            })?;
            Ok(bytes)
        })();
        let _ = fs::remove_file(&partial);
        copied
    }
}

/// A connection to the store's file.
fn open_source(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(path, flags).map_err(|e| failure(e, "open"))?;
    source.busy_timeout(PATIENCE).map_err(|e| failure(e, "open"))?;
    let application = source.pragma_query_value(None, "application_id", |row| row.get::<_, i32>(0));
    match application {
        Ok(APPLICATION_ID) => Ok(source),
        Ok(_) => Err(foreign(path)),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => Err(foreign(path)),
        Err(error) => Err(failure(error, "open")),
    }
}

/// Copies in one go: in parts, it would begin anew with every commit by somebody else.
fn copy(source: &Connection, to: &Path) -> Result<()> {
    let mut target = Connection::open(to).map_err(|e| failure(e, "open"))?;
    let backup = Backup::new(source, &mut target).map_err(|e| failure(e, "copy"))?;
    backup.run_to_completion(i32::MAX, Duration::from_millis(50), None).map_err(|e| failure(e, "copy"))?;
    drop(backup);
    target.close().map_err(|(_, e)| failure(e, "copy"))
}
