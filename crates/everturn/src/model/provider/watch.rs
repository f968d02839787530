//! What the wire says and genai does not hand on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use genai::chat::{ChatFrameSink, FrameCtx, RawFrameRef};
use serde_json::Value;

use super::name::Wire;

/// Sees every frame of an answer before genai reads it.
pub(super) struct Watch {
    wire: Wire,
    seen: Mutex<Seen>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// Frames so far, keep-alives included: a sign of life.
    pub(super) frames: u64,
    /// Their bytes.
    pub(super) bytes: usize,
    /// Content blocks begun, where the wire has such. Two signatures in a row belong to two blocks.
    pub(super) blocks: u64,
    /// Reasoning that only its provider can read, since it was last taken.
    pub(super) redacted: Vec<Value>,
    /// Why the provider refused to answer.
    pub(super) refusal: Option<String>,
    /// A failure in the middle of the answer.
    pub(super) failure: Option<String>,
}

impl Watch {
    pub(super) fn new(wire: Wire) -> Self {
        Self { wire, seen: Mutex::default() }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a keep-alive counts for: an endless row of them is an endless answer.
const FRAME: usize = 32;

impl ChatFrameSink for Watch {
    fn on_frame(&self, _: &FrameCtx, frame: RawFrameRef<'_>) {
        let mut seen = self.seen();
        seen.frames += 1;
        seen.bytes += frame.data.len() + FRAME;
        // Frames are many and rarely tell of these: looking for a word first is cheaper than reading.
        match self.wire {
            Wire::Anthropic if frame.event == Some("content_block_start") => {
                seen.blocks += 1;
                if frame.data.contains("redacted_thinking") {
                    let block = frame.json().and_then(|mut json| json.get_mut("content_block").map(Value::take));
                    seen.redacted.extend(block.filter(|block| block["type"] == "redacted_thinking"));
                }
            }
            Wire::Gemini if frame.data.contains("\"blockReason\"") => {
                let reason =
                    frame.json().and_then(|json| json["promptFeedback"]["blockReason"].as_str().map(Into::into));
                seen.refusal = reason.or(seen.refusal.take());
            }
            Wire::Ollama if frame.data.contains("\"error\"") => {
                let failure = frame.json().and_then(|json| json["error"].as_str().map(Into::into));
                seen.failure = failure.or(seen.failure.take());
            }
            _ => {}
        }
    }
}
