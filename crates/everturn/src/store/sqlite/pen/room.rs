//! What the writer does where the disk is full.

use std::time::Duration;

use super::super::failure;
use super::super::reserve::cut_free_pages;
use super::Pen;
use crate::Result;

impl Pen {
    /// The disk is full: gives up the reserve and moves the log into the file with its room. That frees the log's, mostly
    /// more than the file takes.
    pub(super) fn make_room(&mut self) {
        self.file.reserve().give_up();
        // Readers are not waited for: where they keep the log from being cut, it begins anew when they are done.
        if let Err(error) = self.with_patience(Duration::ZERO, Self::truncate_log) {
            tracing::warn!(%error, "the disk is full, and the log was not moved into the file");
            self.circumstances.note(&error);
        }
    }

    /// Gives the file's free pages back to the volume, until there is room for the reserve again.
    pub(super) fn give_back(&mut self) {
        while !self.file.reserve().is_kept() {
            let cut = self.conn.as_ref().map_or(Ok(false), |conn| cut_free_pages(conn));
            let moved = self.with_patience(Duration::ZERO, Self::truncate_log);
            match cut.and_then(|cut| moved.map(|()| cut)) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, "the file's free pages were not given back");
                    return self.circumstances.note(&error);
                }
            }
        }
        tracing::info!("there is room again: the store's reserve is kept anew");
    }

    /// Does something with SQLite waiting so long for others.
    fn with_patience(&mut self, wait: Duration, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let set = |pen: &Self, wait| match &pen.conn {
            Some(conn) => conn.busy_timeout(wait).map_err(|e| failure(e, "write")),
            None => Ok(()),
        };
        set(self, wait)?;
        let done = work(self);
        set(self, self.file.lock_wait())?;
        done
    }
}
