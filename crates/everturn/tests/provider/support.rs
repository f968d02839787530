//! What the tests share.

use everturn::model::{Model, ModelChunk, ModelRequest, Provider};
use everturn::{Error, Json, Message, Part};
use futures_util::StreamExt;
use serde_json::Value;

/// All that came of a question.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) chunks: Vec<ModelChunk>,
    pub(crate) error: Option<Error>,
}

impl Heard {
    pub(crate) fn text(&self) -> String {
        self.chunks.iter().map(ModelChunk::as_text).collect()
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        self.chunks.iter().flat_map(|chunk| chunk.content.clone()).collect()
    }

    pub(crate) fn reasoning(&self) -> String {
        self.parts().iter().filter_map(Part::as_reasoning).collect()
    }

    /// The chunks, if nothing failed.
    pub(crate) fn whole(self) -> Self {
        assert!(self.error.is_none(), "{:?}", self.error);
        self
    }

    pub(crate) fn error(self) -> Error {
        self.error.unwrap_or_else(|| panic!("nothing failed: {:?}", self.chunks))
    }
}

pub(crate) async fn ask(model: &Provider, request: ModelRequest) -> Heard {
    let mut stream = model.stream(request);
    let mut heard = Heard { chunks: Vec::new(), error: None };
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => heard.chunks.push(chunk),
            Err(error) => heard.error = Some(error),
        }
    }
    heard
}

pub(crate) fn hello() -> ModelRequest {
    ModelRequest::new(vec![Message::user("Hello?")])
}

pub(crate) fn json(value: Value) -> Json {
    Json::from_value(&value).unwrap()
}

pub(crate) fn message(value: Value) -> Message {
    Message::from_json(json(value)).unwrap()
}
