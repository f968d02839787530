//! From records to state: the one place where a line is added up.
//!
//! Invariant: what was added up is what the records said when they were written. Each record keeps counts and digests of the
//! state after it, and these are compared, so that a record that is missing, changed or out of its place is an error and
//! never another state.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use super::beside::add_line;
use super::body::{ArtifactBody, Body, FoldBody, FoldCustom, ViewBody, decode, unpacked_len};
use super::gather::Gather;
use super::line::Interval;
use super::tables::{Read, RecordMeta};
use super::walk::walk_while;
use crate::artifact::Artifact;
use crate::digest::{Digest, StateDigests};
use crate::json::Json;
use crate::patch::{Document, Patch};
use crate::state::{PointState, StateArtifact, View};
use crate::turn::RecordKind;
use crate::{Error, Point, Result, SessionId};

/// A state being added up.
pub(crate) struct Fold {
    state: PointState,
    /// Patches since the custom state was last known as a whole; applied once, at the end.
    patches: Vec<Box<str>>,
    /// The artifacts, once they change.
    artifacts: Option<ArtifactList>,
    /// Messages that are not in the state yet.
    gather: Gather,
    /// What changed and is compared once it is whole.
    changed: Changed,
}

/// The parts of a state that records have changed.
#[derive(Default)]
struct Changed {
    custom: bool,
    artifacts: bool,
    view: bool,
}

/// Artifacts, found by name without going through all.
#[derive(Default)]
struct ArtifactList {
    names: HashMap<String, usize>,
    /// In their order; nothing where one was taken away.
    items: Vec<Option<(Digest, Option<Arc<Artifact>>)>>,
}

impl ArtifactList {
    fn of(state: &PointState) -> Self {
        let mut list = Self::default();
        for StateArtifact { digest, content } in state.artifacts.iter() {
            list.push(content.name.clone(), *digest, Some(content.clone()));
        }
        list
    }

    fn push(&mut self, name: Option<String>, digest: Digest, content: Option<Arc<Artifact>>) {
        if let Some(name) = name {
            self.names.entry(name).or_insert(self.items.len());
        }
        self.items.push(Some((digest, content)));
    }

    fn change(&mut self, change: ArtifactBody) {
        match change {
            ArtifactBody::Put(put) => match put.name.as_ref().and_then(|name| self.names.get(name)) {
                Some(at) => self.items[*at] = Some((put.digest, None)),
                None => self.push(put.name, put.digest, None),
            },
            ArtifactBody::Remove(name) => {
                if let Some(at) = self.names.remove(&name) {
                    self.items[at] = None;
                }
            }
            ArtifactBody::Clear(_) => *self = Self::default(),
        }
    }
}

impl Fold {
    pub(crate) fn from(state: PointState) -> Self {
        Self { state, patches: Vec::new(), artifacts: None, gather: Gather::default(), changed: Changed::default() }
    }

    /// Adds one record, given as it is stored. It must follow the one before it: its counts and its chain of messages are
    /// compared with what comes of adding it.
    pub(crate) fn apply(&mut self, meta: &RecordMeta, text: &str) -> Result<()> {
        let body = FoldBody::parse(text)?;
        self.check_follows(meta, &body)?;
        self.add(meta, body);
        Ok(())
    }

    /// Adds one record whose digests are not known yet.
    pub(crate) fn apply_unchecked(&mut self, meta: &RecordMeta, text: &str) -> Result<()> {
        self.add(meta, FoldBody::parse(text)?);
        Ok(())
    }

    fn check_follows(&mut self, meta: &RecordMeta, body: &FoldBody<'_>) -> Result<()> {
        let (before, tip) = (&self.state.tip, &meta.tip);
        let (mut chain, mut messages) = (before.digests.chain, before.messages);
        let mut spliced: &[&str] = &[];
        if let Some(splice) = &body.splice {
            self.gather.settle(&mut self.state.messages);
            let keep = usize::try_from(splice.keep).ok().filter(|keep| *keep <= self.state.messages.len());
            let keep = keep.ok_or_else(|| Error::corrupt("it keeps more messages than there are"))?;
            (chain, messages) = (self.state.messages.chain_at(keep)?, splice.keep);
            spliced = &splice.messages;
        }
        for text in spliced.iter().chain(&body.messages) {
            chain = chain.chain(Digest::of_json_text(text)?);
            messages += 1;
        }
        let same = |part: fn(&StateDigests) -> Digest| part(&before.digests) == part(&tip.digests);
        let holds = messages == tip.messages
            && chain == tip.digests.chain
            && tip.turns == before.turns + u64::from(meta.kind == RecordKind::End)
            && tip.index == before.index + u64::from(meta.event.is_some())
            && (body.custom.is_some() || same(|digests| digests.custom))
            && (!body.artifacts.is_empty() || same(|digests| digests.artifacts))
            && (body.view.is_some() || same(|digests| digests.view));
        if !holds {
            return Err(Error::corrupt("what comes before it is not what it was written after"));
        }
        self.changed.custom |= body.custom.is_some();
        self.changed.artifacts |= !body.artifacts.is_empty();
        self.changed.view |= body.view.is_some();
        Ok(())
    }

    fn add(&mut self, meta: &RecordMeta, body: FoldBody<'_>) {
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
        self.stand_after(meta, body.artifacts, body.view);
    }

    /// Adds one record that was just written, sharing its messages. The custom state after it is given as a whole, if
    /// it changed.
    pub(crate) fn apply_written(&mut self, meta: &RecordMeta, body: &Body, custom: Option<&Option<Json>>) {
        let messages = &mut self.state.messages;
        self.gather.settle(messages);
        if let Some(splice) = &body.splice {
            messages.truncate(usize::try_from(splice.keep).unwrap_or(usize::MAX));
            splice.messages.iter().for_each(|message| messages.push(message.clone()));
        }
        body.events.iter().flat_map(|event| &event.messages).for_each(|message| messages.push(message.clone()));
        messages.set_chain(meta.tip.digests.chain);
        if let Some(custom) = custom {
            self.patches.clear();
            self.state.custom = custom.clone();
        }
        self.stand_after(meta, body.artifacts.clone(), body.view.clone());
    }

    fn stand_after(&mut self, meta: &RecordMeta, artifacts: Vec<ArtifactBody>, view: Option<ViewBody>) {
        if !artifacts.is_empty() {
            let list = self.artifacts.get_or_insert_with(|| ArtifactList::of(&self.state));
            artifacts.into_iter().for_each(|change| list.change(change));
        }
        match view {
            None => {}
            Some(ViewBody::Set(view)) => self.state.view = Some(Arc::new(view)),
            Some(ViewBody::Clear(_)) => self.state.view = None,
        }
        self.state.tip = meta.tip.clone();
        self.state.point = Point::new(meta.seq);
    }

    /// The state, once `content` has found the artifacts it does not hold yet.
    pub(crate) fn finish(mut self, mut content: impl FnMut(Digest) -> Result<Arc<Artifact>>) -> Result<PointState> {
        self.gather.settle(&mut self.state.messages);
        if !self.patches.is_empty() {
            let custom = self.state.custom.take().unwrap_or_else(Json::null);
            let broken = || Error::corrupt("a stored patch of custom state does not apply");
            let mut document = Document::new(Some(&custom))?;
            for patch in &self.patches {
                let applied = Patch::parse(patch).and_then(|patch| document.apply(&patch));
                applied.map_err(|e| broken().with_source(e))?;
            }
            self.state.custom = Some(document.into_json().ok_or_else(broken)?);
        }
        if let Some(artifacts) = self.artifacts.take() {
            let artifacts = artifacts.items.into_iter().flatten().map(|(digest, known)| {
                let content = match known {
                    Some(content) => content,
                    None => content(digest)?,
                };
                Ok(StateArtifact { digest, content })
            });
            self.state.artifacts = Arc::new(artifacts.collect::<Result<Vec<_>>>()?);
            if self.changed.artifacts && self.state.artifacts_digest() != self.state.tip.digests.artifacts {
                return Err(self.wrong("artifacts are"));
            }
        }
        if self.changed.custom {
            let custom = self.state.custom.as_ref().map_or(Ok(Digest::ABSENT), Digest::of_json)?;
            if custom != self.state.tip.digests.custom {
                return Err(self.wrong("custom state is"));
            }
        }
        if self.changed.view && of_view(self.state.view.as_deref())? != self.state.tip.digests.view {
            return Err(self.wrong("view is"));
        }
        Ok(self.state)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::corrupt(format!("record {} is damaged: the {what} not what it was written with", self.state.point))
    }
}

pub(crate) fn of_view(view: Option<&View>) -> Result<Digest> {
    view.map_or(Ok(Digest::ABSENT), |view| Digest::of_json(&Json::written(view)?))
}

/// The list of artifact digests after some changes, for preparing a record.
pub(crate) fn artifact_digests_after(base: &PointState, changes: &[ArtifactBody]) -> Vec<Digest> {
    let mut list = ArtifactList::of(base);
    changes.iter().for_each(|change| list.change(change.clone()));
    list.items.into_iter().flatten().map(|(digest, _)| digest).collect()
}

/// Adds up a line, from a state that lies on it or from nothing.
pub(crate) fn fold(read: &dyn Read, tree: u64, base: PointState, line: &[Interval]) -> Result<PointState> {
    let fold = add_line(read, line, Fold::from(base))?;
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

/// Bytes that may be read, and unpacked, in passing: a few turns of words.
const SHORT: u64 = 256 << 10;

/// Adds a stretch to a state that lies right before it, in passing. Nothing where that would take long: where there is more to
/// read or unpack than [`SHORT`], or an artifact. Nor where the stretch ends inside a turn, which may turn out void.
pub(crate) fn fold_shortly(read: &dyn Read, base: PointState, stretch: Interval) -> Result<Option<PointState>> {
    let long = Cell::new(false);
    let give_up = || {
        long.set(true);
        Error::internal("too much was written to be added up in passing")
    };
    let mut left = SHORT;
    let mut check = |body: &[u8]| {
        let taken = unpacked_len(body).and_then(|unpacked| left.checked_sub(unpacked.max(body.len() as u64)));
        left = taken.ok_or_else(give_up)?;
        Ok(())
    };
    let added = walk_while(read, &[stretch], &mut check, &mut |_| Err(give_up())).and_then(|batch| {
        let settled = |last: &RecordMeta| matches!(last.kind, RecordKind::End | RecordKind::Edit);
        if !batch.last().is_some_and(|last| settled(last) && last.seq == stretch.to) {
            return Err(give_up());
        }
        let mut fold = Fold::from(base);
        batch.visit(&mut |meta, text| fold.apply(meta, text))?;
        fold.finish(|_| Err(give_up()))
    });
    match added {
        Err(_) if long.get() => Ok(None),
        added => added.map(Some),
    }
}

pub(crate) fn load_artifact(read: &dyn Read, tree: u64, digest: Digest) -> Result<Artifact> {
    let bytes = read
        .blob(tree, digest)?
        .ok_or_else(|| Error::corrupt(format!("the content {digest} of an artifact is missing")))?;
    let damaged = || Error::corrupt(format!("the content {digest} of an artifact is damaged"));
    let text = decode(&bytes).map_err(|e| damaged().with_source(e))?;
    if Digest::of_json_text(&text)? != digest {
        return Err(damaged());
    }
    serde_json::from_str(&text).map_err(|e| damaged().with_source(e))
}

/// Names the session a state belongs to: a fork's state is its own, though its line began elsewhere.
pub(crate) fn owned_by(mut state: PointState, session: &SessionId) -> PointState {
    if state.session != *session {
        state.session = session.clone();
    }
    state
}
