//! Chunks: the items of an agent's output stream.

use serde::{Deserialize, Serialize};

use crate::artifact::Artifact;
use crate::json::Json;
use crate::model::ModelChunk;
use crate::patch::Patch;
use crate::snapshot::FinishReason;
use crate::{Error, Result, SnapshotId};

/// One item of the output stream. Several members may be set; a wire that wants one a frame gets them
/// [apart](Chunk::split).
///
/// ```
/// use everturn::Chunk;
/// use everturn::model::ModelChunk;
///
/// let chunk = Chunk::model(ModelChunk::text("Hel"));
/// assert_eq!(chunk.text(), "Hel");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Chunk {
    /// A piece of what the model says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_chunk: Option<ModelChunk>,
    /// What the agent is doing, in its own words.
    #[serde(deserialize_with = "crate::json::present", skip_serializing_if = "Option::is_none")]
    pub status: Option<Json>,
    /// How the custom state changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_patch: Option<Patch>,
    /// Something that was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// A snapshot that no turn's end tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_created: Option<SnapshotId>,
    /// The turn is over; the next input may be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_end: Option<TurnEnd>,
    /// The turn is tried anew, in this attempt: what was said before does not count. Only for those who follow a stream that
    /// is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted: Option<u64>,
    /// Chunks that would have come here are gone: the stream was longer than is kept, or is kept no longer. Only for those
    /// who follow a stream that is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
    /// The custom state as the patches so far have made it. Filled in where chunks are received, never sent.
    #[serde(skip)]
    pub custom: Option<Json>,
}

/// How a turn ended, as its stream tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnEnd {
    /// The snapshot taken there; of a failed turn, the one that shows what was said until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl Chunk {
    /// A piece of what the model says.
    #[must_use]
    pub fn model(chunk: ModelChunk) -> Self {
        Self { model_chunk: Some(chunk), ..Self::default() }
    }

    /// What the agent is doing: any serialisable value.
    pub fn status<T: Serialize + ?Sized>(status: &T) -> Result<Self> {
        Ok(Self { status: Some(Json::from_value(status)?), ..Self::default() })
    }

    pub(crate) fn patch(patch: Patch) -> Self {
        Self { custom_patch: Some(patch), ..Self::default() }
    }

    pub(crate) fn artifact(artifact: Artifact) -> Self {
        Self { artifact: Some(artifact), ..Self::default() }
    }

    pub(crate) fn snapshot_created(id: SnapshotId) -> Self {
        Self { snapshot_created: Some(id), ..Self::default() }
    }

    pub(crate) fn turn_end(snapshot_id: Option<SnapshotId>, finish_reason: FinishReason) -> Self {
        Self { turn_end: Some(TurnEnd { snapshot_id, finish_reason }), ..Self::default() }
    }

    pub(crate) fn restarted(attempt: u64) -> Self {
        Self { restarted: Some(attempt), ..Self::default() }
    }

    pub(crate) fn missed() -> Self {
        Self { missed: true, ..Self::default() }
    }

    /// The text the model says in it.
    #[must_use]
    pub fn text(&self) -> String {
        self.model_chunk.as_ref().map(ModelChunk::as_text).unwrap_or_default()
    }

    /// One chunk for each member that is set, in the order they are declared.
    #[must_use]
    pub fn split(self) -> Vec<Self> {
        let Self {
            model_chunk,
            status,
            custom_patch,
            artifact,
            snapshot_created,
            turn_end,
            restarted,
            missed,
            custom: _,
        } = self;
        let none = Self::default;
        [
            Self { model_chunk, ..none() },
            Self { status, ..none() },
            Self { custom_patch, ..none() },
            Self { artifact, ..none() },
            Self { snapshot_created, ..none() },
            Self { turn_end, ..none() },
            Self { restarted, ..none() },
            Self { missed, ..none() },
        ]
        .into_iter()
        .filter(|chunk| !chunk.is_empty())
        .collect()
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a handler may not send by hand, because it would contradict what the framework sends.
    pub(crate) fn refuse_framework_fields(&self) -> Result<()> {
        let forbidden = [
            ("customPatch", self.custom_patch.is_some(), "change the session's custom state, it streams by itself"),
            ("snapshotCreated", self.snapshot_created.is_some(), "snapshots announce themselves"),
            ("turnEnd", self.turn_end.is_some(), "return from the turn, or end it"),
        ];
        match forbidden.into_iter().find(|(_, set, _)| *set) {
            Some((name, _, fix)) => Err(Error::invalid(format!("`{name}` is not sent by hand: {fix}"))),
            None => Ok(()),
        }
    }

    /// Roughly what it holds in memory.
    pub(crate) fn weight(&self) -> usize {
        let model = self.model_chunk.as_ref().map_or(0, ModelChunk::weight);
        let status = self.status.as_ref().map_or(0, |status| status.as_str().len());
        let artifact = self
            .artifact
            .as_ref()
            .map_or(0, |artifact| artifact.parts.iter().map(|part| part.as_str().len()).sum::<usize>());
        let patch = self.custom_patch.as_ref().map_or(0, Patch::weight);
        128 + model + status + artifact + patch
    }
}
