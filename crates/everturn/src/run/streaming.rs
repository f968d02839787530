//! What a run says while it works.

use super::work::Work;
use super::{Run, Stop};
use crate::agent::SharedState;
use crate::json::Json;
use crate::patch::Patch;
use crate::stream::{Chunk, Reader};
use crate::{Error, Result};

impl Run {
    /// Sends a chunk, waiting for room. What the custom state became before it is told before it.
    pub(crate) async fn send(&self, chunk: Chunk) -> Result<()> {
        self.catch_up().await?;
        self.send_shaped(chunk).await
    }

    async fn send_shaped(&self, chunk: Chunk) -> Result<()> {
        let shaped = self.def.transforms.chunk(chunk, &self.caller).inspect_err(|error| {
            self.stop(Stop::Withheld(Error::new(error.kind(), error.to_string())));
        })?;
        let Some(chunk) = shaped else { return Ok(()) };
        if self.out.send(chunk).await == Reader::Gone {
            self.stop(Stop::Aborted);
            return Err(Error::aborted("nobody reads the stream any more: stop"));
        }
        Ok(())
    }

    /// Tells the client of a change of custom state, if there is room; else it is told with the next chunk.
    pub(crate) fn tell_custom(&self, work: &mut Work) -> Result<()> {
        let Some((patch, shown)) = self.custom_patch(work)? else { return Ok(()) };
        let shaped = self.def.transforms.chunk(Chunk::patch(patch), &self.caller).inspect_err(|error| {
            self.stop(Stop::Withheld(Error::new(error.kind(), error.to_string())));
        })?;
        // A patch that a transform drops was never told: the next one starts from what was.
        let Some(chunk) = shaped else { return Ok(()) };
        match self.out.try_send(chunk) {
            Ok(()) => work.streamed = super::work::Streamed { last: Some(shown), behind: false },
            Err(_) => work.streamed.behind = true,
        }
        Ok(())
    }

    /// Tells what there was no room for.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        let chunk = {
            let mut work = self.work();
            if !work.streamed.behind {
                return Ok(());
            }
            work.streamed.behind = false;
            match self.custom_patch(&work)? {
                None => return Ok(()),
                Some((patch, shown)) => {
                    work.streamed.last = Some(shown);
                    Chunk::patch(patch)
                }
            }
        };
        self.send_shaped(chunk).await
    }

    /// What turns the custom state the client knows into the present one; the first of a turn replaces all of it.
    fn custom_patch(&self, work: &Work) -> Result<Option<(Patch, Option<Json>)>> {
        let shown = self.shown_custom(work)?;
        let patch = match &work.streamed.last {
            Some(last) => Patch::diff_followed(last.as_ref(), shown.as_ref())?,
            None => match &shown {
                Some(custom) => Patch::replace_all(custom)?,
                None => Patch::clear(),
            },
        };
        Ok((!patch.is_empty()).then_some((patch, shown)))
    }

    /// The custom state as the client may see it.
    fn shown_custom(&self, work: &Work) -> Result<Option<Json>> {
        if self.def.transforms.state.is_none() {
            return Ok(work.now.custom.clone());
        }
        let state = SharedState {
            session: Some(work.session.clone()),
            messages: work.now.messages.clone(),
            custom: work.now.custom.clone(),
            artifacts: work.now.artifacts.clone(),
        };
        match self.def.transforms.state(state, &self.caller) {
            Ok(state) => Ok(state.custom),
            Err(error) => {
                self.stop(Stop::Withheld(Error::new(error.kind(), error.to_string())));
                Err(error)
            }
        }
    }

    /// Before a failed turn's end: the client goes back to the last good custom state.
    pub(crate) async fn tell_rollback(&self) {
        let patch = {
            let mut work = self.work();
            if work.streamed.last.is_none() && !work.streamed.behind {
                return;
            }
            work.streamed.behind = false;
            let Ok(shown) = self.shown_custom(&work) else { return };
            let patch = match &shown {
                Some(custom) => Patch::replace_all(custom),
                None => Ok(Patch::clear()),
            };
            work.streamed.last = Some(shown);
            patch
        };
        if let Ok(patch) = patch {
            let _ = self.send_shaped(Chunk::patch(patch)).await;
        }
    }
}
