//! What a run says while it works.

use std::sync::{MutexGuard, PoisonError};

use super::changing::Changing;
use super::{Run, Stop};
use crate::aside::beside;
use crate::json::Json;
use crate::patch::Patch;
use crate::state::Scope;
use crate::stream::{Chunk, Reader, Room};
use crate::turn::Input;
use crate::{Error, Result};

/// What the client has been told of the custom state.
#[derive(Default)]
pub(crate) struct Told {
    /// The last it was told; absent as long as it was told nothing.
    last: Option<Option<Json>>,
    /// It was told in this turn: the next patch follows the last. Else it replaces all.
    following: bool,
    /// It changed since, and there was no room to say so.
    behind: bool,
}

fn bytes(custom: &Option<Json>) -> usize {
    custom.as_ref().map_or(0, |custom| custom.as_str().len())
}

impl Run {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn begins: the next patch replaces all. What the client knows and is no longer so, because the input changed
    /// it or somebody else went on meanwhile, it is told at once.
    pub(crate) fn tell_anew(&self, input: &Input) -> Result<()> {
        let _changing = Changing::enter(self)?;
        let mut told = self.told();
        told.following = false;
        let changed = !input.state_delta.of_scope(Scope::Session).is_empty();
        if changed || told.behind || self.is_stale(&told)? {
            self.try_tell(&mut told)?;
        }
        Ok(())
    }

    /// A turn or the invocation has ended. What a transform shows of the custom state may depend on the rest of the
    /// state, which changes without a patch; the client that follows knows by then what is shown.
    pub(crate) fn tell_shown(&self) {
        let mut told = self.told();
        if self.is_stale(&told).unwrap_or(false) {
            told.behind = true;
        }
    }

    /// Whether the client was told something else than what would be shown now.
    fn is_stale(&self, told: &Told) -> Result<bool> {
        match &told.last {
            Some(last) => {
                let shown = self.shown_custom()?;
                Ok(beside(bytes(last) + bytes(&shown), || *last != shown))
            }
            None => Ok(false),
        }
    }

    /// Sends a chunk, waiting for room. What the custom state became before it is told before it.
    pub(crate) async fn send(&self, chunk: Chunk) -> Result<()> {
        self.catch_up().await?;
        let Some(chunk) = self.shape(chunk)? else { return Ok(()) };
        self.keep_chunk(&chunk);
        self.keeping_room().await;
        if self.is_background() {
            return Ok(());
        }
        self.heard(self.out.send(chunk).await)
    }

    fn heard(&self, reader: Reader) -> Result<()> {
        match reader {
            Reader::Reads => Ok(()),
            // Its turn went to the background meanwhile, where nobody need read.
            Reader::Gone if self.is_background() || self.keeps => Ok(()),
            Reader::Gone => {
                self.stop(Stop::Aborted);
                Err(Error::aborted("nobody reads the stream any more: stop"))
            }
        }
    }

    fn shape(&self, chunk: Chunk) -> Result<Option<Chunk>> {
        match &self.def.transforms.chunk {
            None => Ok(Some(chunk)),
            Some(_) => self.shaped(self.def.transforms.chunk(chunk, &self.caller())),
        }
    }

    /// What cannot be shaped is not shown, and the turn that said it stops.
    fn shaped<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.stop(Stop::Withheld(Error::new(error.kind(), error.to_string()))))
    }

    /// Tells the client of a change of custom state, if there is room; else it is told with the next chunk.
    pub(crate) fn tell_custom(&self, _: &Changing) -> Result<()> {
        self.try_tell(&mut self.told())
    }

    /// Tells what there was no room for. A patch is made when there is room for it and not before: one that waited
    /// could be overtaken by the next, or be lost with the task that waited.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        loop {
            if !self.told().behind {
                return Ok(());
            }
            let taken = self.out.taken();
            {
                let _changing = Changing::enter(self)?;
                let mut told = self.told();
                self.try_tell(&mut told)?;
                if !told.behind {
                    return Ok(());
                }
            }
            self.heard(taken.await)?;
        }
    }

    fn try_tell(&self, told: &mut Told) -> Result<()> {
        told.behind = false;
        let shown = self.shown_custom()?;
        let before = told.last.as_ref().filter(|_| told.following);
        let patch = beside(before.map_or(0, bytes) + bytes(&shown), || match (before, &shown) {
            (Some(last), shown) => Patch::diff_followed(last.as_ref(), shown.as_ref()),
            (_, Some(custom)) => Patch::replace_all(custom),
            (_, None) => Ok(Patch::clear()),
        })?;
        if patch.is_empty() {
            return Ok(());
        }
        // A patch that a transform drops was never told: the next one starts from what was.
        let Some(chunk) = self.shape(Chunk::patch(patch))? else { return Ok(()) };
        let kept = self.kept().is_some().then(|| chunk.clone());
        let room = if self.is_background() { Room::Enough } else { self.out.try_send(chunk) };
        match room {
            Room::Enough => {
                if let Some(chunk) = kept {
                    self.keep_chunk(&chunk);
                }
                (told.last, told.following) = (Some(shown), true);
            }
            Room::None => told.behind = true,
        }
        Ok(())
    }

    /// The custom state as the client may see it.
    fn shown_custom(&self) -> Result<Option<Json>> {
        if self.def.transforms.state.is_none() {
            return Ok(self.work().now.custom.clone());
        }
        let state = self.shared_state();
        Ok(self.shaped(self.def.transforms.state(state, &self.caller()))?.custom)
    }

    /// Before a failed turn's end: the client goes back to the last good custom state, if it was told of another.
    pub(crate) async fn tell_rollback(&self) {
        {
            let mut told = self.told();
            if !told.following && !told.behind {
                return;
            }
            (told.following, told.behind) = (false, true);
        }
        // The turn has ended; whether anybody still reads changes nothing about it.
        let _ = self.catch_up().await;
    }
}
