//! From records to state: the one place where a line is added up.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::body::{ArtifactBody, FoldBody, FoldCustom, ViewBody, decode, decode_into};
use super::gather::Gather;
use super::line::Interval;
use super::tables::{Read, RecordMeta};
use crate::artifact::Artifact;
use crate::digest::Digest;
use crate::json::Json;
use crate::patch::Patch;
use crate::state::{PointState, StateArtifact};
use crate::turn::RecordKind;
use crate::{Error, Point, Result, SessionId};

/// A state being added up.
pub(crate) struct Fold {
    state: PointState,
    /// Patches since the custom state was last known as a whole; applied once, at the end.
    patches: Vec<Box<str>>,
    artifacts: Vec<FoldArtifact>,
    /// Messages that are not in the state yet.
    gather: Gather,
}

struct FoldArtifact {
    name: Option<String>,
    digest: Digest,
    content: Option<Arc<Artifact>>,
}

impl Fold {
    pub(crate) fn from(state: PointState) -> Self {
        let artifacts = state
            .artifacts
            .iter()
            .map(|artifact| FoldArtifact {
                name: artifact.content.name.clone(),
                digest: artifact.digest,
                content: Some(artifact.content.clone()),
            })
            .collect();
        Self { state, patches: Vec::new(), artifacts, gather: Gather::default() }
    }

    /// Adds one record.
    pub(crate) fn apply(&mut self, meta: &RecordMeta, text: &str) -> Result<()> {
        let body = FoldBody::parse(text)?;
        let (state, gather) = (&mut self.state, &mut self.gather);
        if let Some(splice) = body.splice {
            gather.settle(&mut state.messages);
            state.messages.truncate(usize::try_from(splice.keep).unwrap_or(usize::MAX));
            splice.messages.iter().for_each(|text| gather.push(text, &mut state.messages));
        }
        body.messages.iter().for_each(|text| gather.push(text, &mut state.messages));
        gather.set_chain(meta.tip.digests.chain, &mut state.messages);
        match body.custom {
            None => {}
            Some(FoldCustom::Set(text)) => {
                self.patches.clear();
                state.custom = Some(Json::trusted(text));
            }
            Some(FoldCustom::Patch(text)) => self.patches.push(text.into()),
            Some(FoldCustom::Clear) => {
                self.patches.clear();
                state.custom = None;
            }
        }
        for change in body.artifacts {
            change_artifacts(&mut self.artifacts, change);
        }
        match body.view {
            None => {}
            Some(ViewBody::Set(view)) => state.view = Some(Arc::new(view)),
            Some(ViewBody::Clear(_)) => state.view = None,
        }
        state.tip = meta.tip.clone();
        state.point = Point::new(meta.seq);
        Ok(())
    }

    /// Gives the custom state as a whole, so that patches need not be applied.
    pub(crate) fn set_custom(&mut self, custom: Option<Json>) {
        self.patches.clear();
        self.state.custom = custom;
    }

    /// The state, once `content` has found the artifacts it does not hold yet.
    pub(crate) fn finish(mut self, mut content: impl FnMut(Digest) -> Result<Arc<Artifact>>) -> Result<PointState> {
        self.gather.settle(&mut self.state.messages);
        if !self.patches.is_empty() {
            let custom = self.state.custom.take().unwrap_or_else(Json::null);
            let mut node = custom.node()?;
            for patch in &self.patches {
                Patch::parse(patch)?
                    .apply_node(&mut node)
                    .map_err(|e| Error::corrupt("a stored patch of custom state does not apply").with_source(e))?;
            }
            self.state.custom = Some(Json::trusted(node.print()));
        }
        let artifacts = self
            .artifacts
            .into_iter()
            .map(|artifact| {
                let content = match artifact.content {
                    Some(content) => content,
                    None => content(artifact.digest)?,
                };
                Ok(StateArtifact { digest: artifact.digest, content })
            })
            .collect::<Result<Vec<_>>>()?;
        self.state.artifacts = Arc::new(artifacts);
        Ok(self.state)
    }
}

fn change_artifacts(list: &mut Vec<FoldArtifact>, change: ArtifactBody) {
    match change {
        ArtifactBody::Put(put) => {
            let new = FoldArtifact { name: put.name, digest: put.digest, content: None };
            match list.iter_mut().find(|artifact| artifact.name.is_some() && artifact.name == new.name) {
                Some(slot) => *slot = new,
                None => list.push(new),
            }
        }
        ArtifactBody::Remove(name) => list.retain(|artifact| artifact.name.as_deref() != Some(&*name)),
        ArtifactBody::Clear(_) => list.clear(),
    }
}

/// The list of artifact digests after some changes, for preparing a record.
pub(crate) fn artifact_digests_after(base: &PointState, changes: &[ArtifactBody]) -> Vec<Digest> {
    let mut fold = Fold::from(base.clone());
    for change in changes {
        change_artifacts(&mut fold.artifacts, change.clone());
    }
    fold.artifacts.iter().map(|artifact| artifact.digest).collect()
}

/// Walks the records that make up a line's state, in order, leaving out what is void at its end.
///
/// A turn's records are held back until its end or its void is seen: a void hides them from every later point, but not
/// from the point of the void itself, nor from a point inside the turn.
pub(crate) fn walk(
    read: &dyn Read,
    line: &[Interval],
    visit: &mut dyn FnMut(&RecordMeta, &str) -> Result<()>,
) -> Result<()> {
    let end = line.last().map(|stretch| (stretch.segment, stretch.to));
    let mut walk = Walk { visit, held: Vec::new(), bodies: Vec::new(), text: Vec::new() };
    let mut segment = None;
    read.scan_line(line, &mut |meta, body| {
        if segment.replace(meta.segment) != Some(meta.segment) {
            walk.release()?;
        }
        match meta.kind {
            RecordKind::Begin | RecordKind::Step => walk.hold(meta, body),
            RecordKind::Void if end != Some((meta.segment, meta.seq)) => {
                walk.held.retain(|(held, _)| !meta.voids(held));
            }
            _ => {
                walk.release()?;
                walk.show(&meta, body)?;
            }
        }
        Ok(())
    })?;
    walk.release()
}

struct Walk<'v> {
    visit: &'v mut dyn FnMut(&RecordMeta, &str) -> Result<()>,
    /// Records that may yet turn out void, and where their bodies are. They are unpacked when they have not.
    held: Vec<(RecordMeta, Range<usize>)>,
    bodies: Vec<u8>,
    /// The text of the record that is shown, kept for its memory.
    text: Vec<u8>,
}

impl Walk<'_> {
    fn hold(&mut self, meta: RecordMeta, body: &[u8]) {
        let start = self.bodies.len();
        self.bodies.extend_from_slice(body);
        self.held.push((meta, start..self.bodies.len()));
    }

    fn release(&mut self) -> Result<()> {
        let (mut held, bodies) = (std::mem::take(&mut self.held), std::mem::take(&mut self.bodies));
        for (meta, at) in held.drain(..) {
            self.show(&meta, &bodies[at])?;
        }
        (self.held, self.bodies) = (held, bodies);
        self.bodies.clear();
        Ok(())
    }

    fn show(&mut self, meta: &RecordMeta, body: &[u8]) -> Result<()> {
        let text = decode_into(body, &mut self.text).map_err(|e| damaged(meta, e))?;
        (self.visit)(meta, text).map_err(|e| damaged(meta, e))
    }
}

pub(crate) fn damaged(meta: &RecordMeta, error: Error) -> Error {
    if error.kind() != crate::ErrorKind::Corrupt {
        return error;
    }
    Error::corrupt(format!("record {} of session number {} is damaged", meta.seq, meta.num)).with_source(error)
}

/// Adds up a line, from a state that lies on it or from nothing.
pub(crate) fn fold(read: &dyn Read, tree: u64, base: PointState, line: &[Interval]) -> Result<PointState> {
    let mut fold = Fold::from(base);
    walk(read, line, &mut |meta, text| fold.apply(meta, text))?;
    let mut seen: HashMap<Digest, Arc<Artifact>> = HashMap::new();
    fold.finish(|digest| {
        if let Some(artifact) = seen.get(&digest) {
            return Ok(artifact.clone());
        }
        let artifact = Arc::new(load_artifact(read, tree, digest)?);
        seen.insert(digest, artifact.clone());
        Ok(artifact)
    })
}

pub(crate) fn load_artifact(read: &dyn Read, tree: u64, digest: Digest) -> Result<Artifact> {
    let bytes = read
        .blob(tree, digest)?
        .ok_or_else(|| Error::corrupt(format!("the content {digest} of an artifact is missing")))?;
    serde_json::from_str(&decode(&bytes)?)
        .map_err(|e| Error::corrupt(format!("the content {digest} of an artifact is damaged")).with_source(e))
}

/// Names the session a state belongs to: a fork's state is its own, though its line began elsewhere.
pub(crate) fn owned_by(mut state: PointState, session: &SessionId) -> PointState {
    if state.session != *session {
        state.session = session.clone();
    }
    state
}
