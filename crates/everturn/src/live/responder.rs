//! The handle that sends chunks.

use std::sync::Arc;

use serde::Serialize;

use crate::agent::definition::Handler;
use crate::agent::failure::Handled;
use crate::artifact::Artifact;
use crate::model::ModelChunk;
use crate::run::Run;
use crate::run::end::Ending;
use crate::stream::Chunk;
use crate::{Error, Result};

/// Where a handler's answer goes as it is made. Sending waits while the reader is behind; a reader that is gone aborts
/// the turn.
#[derive(Clone)]
pub struct Responder(Arc<Run>);

impl Responder {
    pub(crate) fn of(run: Arc<Run>) -> Self {
        Self(run)
    }

    /// Sends a chunk. What the framework says itself (patches of custom state, snapshots, the end of a turn) is
    /// refused; an artifact in it is put into the session as well.
    pub async fn send(&self, chunk: Chunk) -> Result<()> {
        chunk.refuse_framework_fields()?;
        if let Some(artifact) = &chunk.artifact {
            self.0.work().put_artifact(artifact.clone())?;
        }
        self.0.work().check_open()?;
        self.0.send(chunk).await
    }

    /// Sends a piece of what the model says.
    pub async fn model_chunk(&self, chunk: ModelChunk) -> Result<()> {
        self.send(Chunk::model(chunk)).await
    }

    /// Sends a piece of text as the model's.
    pub async fn text(&self, text: impl AsRef<str>) -> Result<()> {
        self.model_chunk(ModelChunk::text(text)).await
    }

    /// Says what the agent is doing: any serialisable value.
    pub async fn status<T: Serialize + ?Sized>(&self, status: &T) -> Result<()> {
        self.send(Chunk::status(status)?).await
    }

    /// Puts an artifact into the session and streams it.
    pub async fn artifact(&self, artifact: Artifact) -> Result<()> {
        self.send(Chunk::artifact(artifact)).await
    }

    /// Ends the turn, for a handler that takes its turns itself. Elsewhere a turn ends when its handler returns.
    pub async fn end_turn(&self) -> Handled {
        if !matches!(self.0.def.handler, Handler::Loop(_)) {
            return Err(Error::invalid("this handler is called for each turn: return from it to end the turn").into());
        }
        self.0.end_open_turn(Ending::Done(None)).await
    }
}
