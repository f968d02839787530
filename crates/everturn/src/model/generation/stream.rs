//! A generation whose pieces are handed on as they come.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::hook::Observer;
use super::{Generated, Generation};
use crate::agent::Handled;
use crate::model::ModelChunk;
use crate::{Error, Result};

/// Pieces that may wait to be taken; a model that is further ahead waits.
const AHEAD: usize = 16;

impl<'a> Generation<'a> {
    /// Runs it and hands on what is said as it comes, by the model and by tools.
    pub fn stream(self) -> GenerationStream<'a> {
        let (sender, chunks) = mpsc::channel(AHEAD);
        let running = Box::pin(async move { self.observed(&Forward(sender)).await });
        GenerationStream { running: Some(running), chunks, done: None }
    }
}

struct Forward(mpsc::Sender<ModelChunk>);

#[async_trait]
impl Observer for Forward {
    async fn chunk(&self, chunk: ModelChunk) -> Handled {
        let gone = |_| Error::aborted("nobody takes the chunks any more");
        self.0.send(chunk).await.map_err(gone)?;
        Ok(())
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = Handled<Generated>> + Send + 'a>>;

/// A generation on its way. It goes on as its chunks are taken.
#[must_use = "a generation goes on as its chunks are taken"]
pub struct GenerationStream<'a> {
    running: Option<Running<'a>>,
    chunks: mpsc::Receiver<ModelChunk>,
    done: Option<Handled<Generated>>,
}

impl GenerationStream<'_> {
    /// The next piece, or nothing when all is said or something failed; [`response`](Self::response) then tells.
    pub async fn next(&mut self) -> Option<ModelChunk> {
        if let Some(running) = &mut self.running {
            tokio::select! {
                biased;
                Some(chunk) = self.chunks.recv() => return Some(chunk),
                done = running => {
                    self.done = Some(done);
                    self.running = None;
                }
            }
        }
        self.chunks.try_recv().ok()
    }

    /// What it came to, once all chunks are taken.
    pub fn response(self) -> Handled<Generated> {
        match self.done {
            Some(done) => done,
            None => {
                let still: Result<Generated> =
                    Err(Error::invalid("it is still going on: take its chunks to the end first"));
                Ok(still?)
            }
        }
    }
}
