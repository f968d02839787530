//! A model whose answers are written down beforehand.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Model, ModelChunk, ModelRequest, ModelStream};
use crate::json::Json;
use crate::part::Part;
use crate::snapshot::FinishReason;
use crate::{Error, ErrorKind, Result, Usage};

/// One scripted answer.
#[derive(Clone, Debug)]
pub struct Reply {
    chunks: Vec<ModelChunk>,
    error: Option<(ErrorKind, String)>,
}

impl Reply {
    /// Some text.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::parts(vec![Part::text(text)])
    }

    /// Any parts.
    #[must_use]
    pub fn parts(parts: Vec<Part>) -> Self {
        let done = ModelChunk::new(parts).finished(FinishReason::Stop, Usage::default());
        Self { chunks: vec![done], error: None }
    }

    /// A request for a tool. A reference makes several calls of one tool tellable; see [`Reply::calls`].
    ///
    /// # Panics
    ///
    /// When the input is not JSON: a script is part of the program.
    #[must_use]
    pub fn call(tool: &str, input: &str) -> Self {
        Self::calls([(tool, None, input)])
    }

    /// Requests for tools, each with its reference if it has one.
    ///
    /// # Panics
    ///
    /// When an input is not JSON: a script is part of the program.
    #[must_use]
    pub fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, Option<&'a str>, &'a str)>) -> Self {
        let request = |(tool, reference, input)| {
            let input = Json::parse(input).expect("a scripted call's input is JSON");
            Part::tool_request(tool, reference, &input)
        };
        Self::parts(calls.into_iter().map(request).collect())
    }

    /// The chunks as they shall come.
    #[must_use]
    pub fn chunks(chunks: Vec<ModelChunk>) -> Self {
        Self { chunks, error: None }
    }

    /// A failure, after the chunks so far.
    #[must_use]
    pub fn then_fail(mut self, kind: ErrorKind, message: impl Into<String>) -> Self {
        self.error = Some((kind, message.into()));
        self
    }

    /// The same text in so many chunks.
    #[must_use]
    pub fn in_pieces(mut self, pieces: usize) -> Self {
        let text: Vec<char> =
            self.chunks.iter().flat_map(|chunk| chunk.as_text().chars().collect::<Vec<_>>()).collect();
        let usage = self.chunks.iter().rev().find_map(|chunk| chunk.usage).unwrap_or_default();
        let each = text.len().div_ceil(pieces.max(1)).max(1);
        self.chunks = text.chunks(each).map(|piece| ModelChunk::text(piece.iter().collect::<String>())).collect();
        if let Some(last) = self.chunks.pop() {
            self.chunks.push(last.finished(FinishReason::Stop, usage));
        }
        self
    }

    /// The same at a price.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        if let Some(last) = self.chunks.last_mut() {
            last.usage = Some(usage);
        }
        self
    }
}

type Script = dyn Fn(&ModelRequest) -> Option<Reply> + Send + Sync;

/// A model for tests and demonstrations: it answers what it was told to, in order, or by a function of the request.
#[derive(Clone)]
pub struct ScriptedModel {
    script: Arc<Script>,
    requests: Arc<Mutex<Vec<ModelRequest>>>,
}

impl ScriptedModel {
    /// Answers with these, one a request. A request beyond the last is an error.
    #[must_use]
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = Mutex::new(replies.into_iter().collect::<VecDeque<_>>());
        Self::answering(move |_| replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front())
    }

    /// Answers by a function of the request; `None` is an error.
    #[must_use]
    pub fn answering(script: impl Fn(&ModelRequest) -> Option<Reply> + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), requests: Arc::default() }
    }

    /// What it was asked so far.
    #[must_use]
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedModel").finish_non_exhaustive()
    }
}

impl Model for ScriptedModel {
    fn name(&self) -> &str {
        "scripted"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let reply = (self.script)(&request);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        let reply = reply.unwrap_or_else(|| {
            Reply::chunks(Vec::new()).then_fail(ErrorKind::Invalid, "the script has no answer to this request")
        });
        let chunks = reply.chunks.into_iter().map(Ok);
        let error = reply.error.map(|(kind, message)| Err(Error::new(kind, message)));
        let items: Vec<Result<ModelChunk>> = chunks.chain(error).collect();
        Box::pin(futures_util::stream::iter(items))
    }
}
