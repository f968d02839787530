//! Asking a model, and putting together what it says.

use std::future::poll_fn;
use std::pin::Pin;

use super::{Model, ModelChunk, ModelRequest, ModelStream};
use crate::message::{Message, Role};
use crate::part::{Part, PartKind};
use crate::snapshot::FinishReason;
use crate::{Error, Result, Usage};

/// All that a model said.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelResponse {
    /// Its message.
    pub message: Message,
    /// Why it stopped.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
}

/// Asks a model and hands on what it says as it comes.
pub fn generate_stream(model: &dyn Model, request: ModelRequest) -> Generating {
    Generating {
        stream: Some(model.stream(request)),
        parts: Vec::new(),
        open: None,
        usage: Usage::default(),
        finish_reason: None,
    }
}

/// Asks a model and waits for all it says.
///
/// ```
/// use everturn::Message;
/// use everturn::model::{ModelRequest, Reply, ScriptedModel, generate};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
/// let model = ScriptedModel::new([Reply::text("Hello!")]);
/// let response = generate(&model, ModelRequest::new(vec![Message::user("Hi.")])).await?;
/// assert_eq!(response.message.text(), "Hello!");
/// # Ok(()) }
/// ```
pub async fn generate(model: &dyn Model, request: ModelRequest) -> Result<ModelResponse> {
    let mut generating = generate_stream(model, request);
    while let Some(chunk) = generating.next().await {
        chunk?;
    }
    generating.response()
}

/// A model that is answering.
#[must_use = "a model answers as its chunks are taken"]
pub struct Generating {
    stream: Option<ModelStream>,
    parts: Vec<Part>,
    /// The text or reasoning that is still growing.
    open: Option<(PartKind, String)>,
    usage: Usage,
    finish_reason: Option<FinishReason>,
}

impl Generating {
    /// The next chunk that says something, or nothing when the model is done.
    pub async fn next(&mut self) -> Option<Result<ModelChunk>> {
        loop {
            let stream: &mut Pin<_> = self.stream.as_mut()?;
            match poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
                Some(Ok(chunk)) => {
                    self.take_in(&chunk);
                    if !chunk.content.is_empty() {
                        return Some(Ok(chunk));
                    }
                }
                other => {
                    self.stream = None;
                    return other;
                }
            }
        }
    }

    /// Pieces of plain text become one part, and so do pieces of reasoning; everything else stays a part of its own.
    fn take_in(&mut self, chunk: &ModelChunk) {
        for part in &chunk.content {
            match (part.plain(), &mut self.open) {
                (Some((kind, text)), Some((open, so_far))) if kind == *open => so_far.push_str(&text),
                (Some(begun), _) => {
                    self.close();
                    self.open = Some(begun);
                }
                (None, _) => {
                    self.close();
                    self.parts.push(part.clone());
                }
            }
        }
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        self.finish_reason = chunk.finish_reason.or(self.finish_reason);
    }

    fn close(&mut self) {
        match self.open.take() {
            Some((_, text)) if text.is_empty() => {}
            Some((PartKind::Reasoning, text)) => self.parts.push(Part::reasoning(text)),
            Some((_, text)) => self.parts.push(Part::text(text)),
            None => {}
        }
    }

    /// What was said until now.
    pub(crate) fn so_far(&mut self) -> ModelResponse {
        self.close();
        ModelResponse {
            message: Message::new(Role::Model, &self.parts),
            finish_reason: self.finish_reason.unwrap_or(FinishReason::Unknown),
            usage: self.usage,
        }
    }

    /// All that was said, once the stream has ended.
    pub fn response(&mut self) -> Result<ModelResponse> {
        if self.stream.is_some() {
            return Err(Error::invalid("the model is still answering: take its chunks to the end first"));
        }
        Ok(self.so_far())
    }
}
