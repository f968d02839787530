//! Making a record ready before anybody waits for it.
//!
//! Hashing, comparing and compressing happen on the caller's thread, or beside it where they take long. What is left for
//! the writer is to check that the record still follows the point it was made for, and to store it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::body::{
    ArtifactBody, BeginBody, Body, CustomBody, EndBody, EndBodyStatus, PutBody, SpliceBody, ViewBody, encode,
};
use super::fold::artifact_digests_after;
use crate::artifact::Artifact;
use crate::digest::{Digest, of_artifacts};
use crate::event::Event;
use crate::json::{Json, MAX_STORED_DEPTH, Node, is_within};
use crate::message::Message;
use crate::patch::Patch;
use crate::state::{PointState, Scope, StateDelta, Tip, keys_weight, refuse_prefixed, split_key};
use crate::store::Limits;
use crate::turn::{ArtifactChange, Changes, CustomChange, Splice, ToolEntry, ViewChange};
use crate::{Error, InvocationId, Result, Usage};

/// Patches of custom state that may follow each other before it is written whole again: what a read has to apply.
pub(crate) const MAX_PATCHES: u64 = 128;
/// Shorter custom state is written whole: a patch would save next to nothing, and finding it takes as long as hashing a
/// message.
const MIN_PATCHED: usize = 128;

/// What a record is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) changes: Changes,
    /// State to change after the events, by prefixed key.
    pub(crate) state: StateDelta,
    pub(crate) begin: Option<BeginBody>,
    pub(crate) invocation: Option<InvocationId>,
    pub(crate) end: Option<EndBody>,
    pub(crate) admin: Option<Json>,
}

/// What must be known of the state a record follows before it can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// All but its messages: custom state and artifacts are stored as differences.
    Rest,
    /// Its messages too, because some are cut off.
    Messages,
}

/// A record that is ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// The point it was made for, if it depends on one.
    pub(crate) base: Option<u64>,
    pub(crate) bytes: Vec<u8>,
    /// What the bytes say, for the state after it.
    pub(crate) body: Body,
    splice: Option<(u64, Digest)>,
    messages: Vec<Digest>,
    pub(crate) custom: Option<PreparedCustom>,
    artifacts: Option<Digest>,
    pub(crate) puts: Vec<PreparedPut>,
    view: Option<Digest>,
    schema: Option<u64>,
    pub(crate) usage: Usage,
    pub(crate) width: u64,
    /// What it says about `app:` and `user:`, with prefixes.
    pub(crate) scopes: StateDelta,
}

#[derive(Clone, Debug)]
pub(crate) struct PreparedCustom {
    pub(crate) value: Option<Json>,
    digest: Digest,
    /// The bytes of the patch; nothing when it is written whole.
    patch: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct PreparedPut {
    pub(crate) name: Option<String>,
    pub(crate) digest: Digest,
    pub(crate) bytes: Vec<u8>,
    pub(crate) content: Arc<Artifact>,
}

impl Draft {
    /// Whether it ends a turn without a result.
    pub(crate) fn is_void(&self) -> bool {
        self.end.as_ref().is_some_and(|end| !matches!(end.status, EndBodyStatus::Completed))
    }

    pub(crate) fn of(changes: Changes) -> Self {
        Self { changes, ..Self::default() }
    }

    /// What must be known of the state the record follows.
    pub(crate) fn needs(&self) -> Needs {
        let session_key = |key: &String| split_key(key).0 == Scope::Session;
        let touches = |event: &Event| {
            !event.partial && (event.state_delta.keys().any(session_key) || event.state_removed.iter().any(session_key))
        };
        let changes = &self.changes;
        let rest = changes.custom.is_some()
            || !changes.artifacts.is_empty()
            || changes.events.iter().any(touches)
            || self.state.set.keys().any(session_key)
            || self.state.remove.iter().any(session_key);
        match (&changes.splice, rest) {
            (Some(_), _) => Needs::Messages,
            (None, true) => Needs::Rest,
            (None, false) => Needs::Nothing,
        }
    }

    /// About how many bytes are gone through to make it, those of the state it follows apart.
    pub(crate) fn weight(&self) -> usize {
        let changes = &self.changes;
        let messages = |messages: &[Message]| messages.iter().map(|message| message.as_str().len()).sum::<usize>();
        let json = |json: &Option<Json>| json.as_ref().map_or(0, |json| json.as_str().len());
        let events = changes.events.iter().map(|event| messages(&event.messages) + keys_weight(&event.state_delta));
        let custom = match &changes.custom {
            Some(CustomChange::Set(custom)) => custom.as_str().len(),
            _ => 0,
        };
        let artifacts = changes.artifacts.iter().map(|change| match change {
            ArtifactChange::Put(artifact) => artifact.parts.iter().map(|part| part.as_str().len()).sum(),
            _ => 0,
        });
        let input = self.begin.as_ref().map_or(0, |begin| json(&begin.input.data) + json(&begin.input.resume));
        let outcome = self.end.as_ref().map_or(0, |end| json(&end.outcome.output));
        let splice = changes.splice.as_ref().map_or(0, |splice| messages(&splice.messages));
        let tools = changes.tools.iter().map(|entry| json(&entry.payload)).sum::<usize>();
        events.chain(artifacts).sum::<usize>()
            + custom
            + input
            + outcome
            + splice
            + tools
            + keys_weight(&self.state.set)
    }

    /// Makes the record, and may make it again for another base.
    pub(crate) fn prepare(&self, base: Option<&PointState>, limits: &Limits) -> Result<Prepared> {
        self.clone().into_prepared(base, limits)
    }

    /// Makes the record. The base is the state it follows; it may be left out when it is not needed.
    pub(crate) fn into_prepared(self, base: Option<&PointState>, limits: &Limits) -> Result<Prepared> {
        let needs = self.needs();
        let base = base.filter(|_| needs != Needs::Nothing);
        if needs != Needs::Nothing && base.is_none() {
            return Err(Error::internal("a record was prepared without the state it follows"));
        }
        let Self { mut changes, state, begin, invocation, end, admin } = self;
        let tools = std::mem::take(&mut changes.tools);
        check_tools(&tools)?;
        let mut body = Body { begin, invocation, end, admin, tools, usage: changes.usage, ..Body::default() };
        let mut parts = Parts::default();
        if let Some(splice) = &changes.splice {
            parts.splice(splice, base, &mut body)?;
        }
        parts.usage = changes.usage;
        body.events.reserve_exact(changes.events.len());
        for event in std::mem::take(&mut changes.events).into_iter().filter(|event| !event.partial) {
            parts.event(event, &mut body)?;
        }
        parts.delta(&state)?;
        let custom = parts.custom(&changes, base, limits)?;
        let custom = custom.map(|(custom, stored)| {
            body.custom = Some(stored);
            custom
        });
        let (puts, artifacts) = put_artifacts(&changes.artifacts, base, &mut body, limits)?;
        let view = match changes.view {
            None => None,
            Some(ViewChange::Clear) => {
                body.view = Some(ViewBody::Clear(true));
                Some(Digest::ABSENT)
            }
            Some(ViewChange::Set(view)) => {
                let digest = Digest::of_json(&Json::written(&view)?)?;
                body.view = Some(ViewBody::Set(view));
                Some(digest)
            }
        };
        let text = body.text()?;
        limit("a record", text.len(), limits.body)?;
        Json::check_stored("a record", &text)?;
        Ok(Prepared {
            base: base.map(|state| state.point.seq()),
            bytes: encode(&text)?,
            splice: parts.splice,
            messages: parts.messages,
            custom,
            artifacts,
            puts,
            view,
            schema: changes.schema_version,
            usage: parts.usage,
            width: (body.events.len() as u64).max(1),
            scopes: parts.scopes,
            body,
        })
    }
}

fn limit(what: &str, size: usize, most: usize) -> Result<()> {
    if size <= most {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "{what} has {size} bytes, {most} is the limit: send less, or raise the store's limit"
    )))
}

fn check_tools(tools: &[ToolEntry]) -> Result<()> {
    match tools.iter().find(|entry| entry.call.is_empty() || entry.name.is_empty()) {
        Some(_) => Err(Error::invalid("a tool call needs an id and the tool's name")),
        None => Ok(()),
    }
}

/// What is gathered from a draft on the way.
#[derive(Default)]
struct Parts {
    splice: Option<(u64, Digest)>,
    messages: Vec<Digest>,
    usage: Usage,
    scopes: StateDelta,
    session: Vec<StateDelta>,
}

impl Parts {
    fn splice(&mut self, splice: &Splice, base: Option<&PointState>, body: &mut Body) -> Result<()> {
        let Some(base) = base else { return Ok(()) };
        let keep = usize::try_from(splice.keep).unwrap_or(usize::MAX);
        if keep > base.messages.len() {
            return Err(Error::invalid(format!("cannot keep {keep} messages: there are only {}", base.messages.len())));
        }
        let messages = self.messages(splice.messages.clone())?;
        self.splice = Some((splice.keep, base.messages.chain_at(keep)?));
        body.splice = Some(SpliceBody { keep: splice.keep, messages });
        Ok(())
    }

    fn messages(&mut self, messages: Vec<Message>) -> Result<Vec<Message>> {
        messages
            .into_iter()
            .map(|message| {
                let message = message.without_snapshot_id()?;
                self.messages.push(Digest::of_json_text(message.as_str())?);
                Ok(message)
            })
            .collect()
    }

    fn event(&mut self, mut event: Event, body: &mut Body) -> Result<()> {
        // Where an event stands is the store's to say.
        event.seq = 0;
        event.turn_index = None;
        event.messages = self.messages(event.messages)?;
        if !event.state_delta.is_empty() || !event.state_removed.is_empty() {
            event.state_delta.retain(|key, _| split_key(key).0 != Scope::Temp);
            event.state_removed.retain(|key| split_key(key).0 != Scope::Temp);
            self.delta(&StateDelta { set: event.state_delta.clone(), remove: event.state_removed.clone() })?;
        }
        if let Some(usage) = &event.usage {
            self.usage.add(usage);
        }
        body.events.push(event);
        Ok(())
    }

    fn delta(&mut self, delta: &StateDelta) -> Result<()> {
        if delta.is_empty() {
            return Ok(());
        }
        if let Some(key) = delta.set.keys().chain(&delta.remove).find(|key| split_key(key).1.is_empty()) {
            return Err(Error::invalid(format!("the state key {key:?} has no name: put one behind the prefix")));
        }
        if delta.set.keys().any(|key| delta.remove.contains(key)) {
            return Err(Error::invalid("a state delta sets and removes the same key: leave one out"));
        }
        for scope in [Scope::App, Scope::User] {
            let part = delta.of_scope(scope);
            let prefixed = |key: &String| format!("{}{key}", scope.prefix());
            let part = StateDelta {
                set: part.set.iter().map(|(key, value)| (prefixed(key), value.clone())).collect::<BTreeMap<_, _>>(),
                remove: part.remove.iter().map(prefixed).collect(),
            };
            self.scopes.then(&part);
        }
        let session = delta.of_scope(Scope::Session);
        if !session.is_empty() {
            self.session.push(session);
        }
        Ok(())
    }

    /// The custom state after everything the draft says about it, and how to store the difference.
    fn custom(
        &self,
        changes: &Changes,
        base: Option<&PointState>,
        limits: &Limits,
    ) -> Result<Option<(PreparedCustom, CustomBody)>> {
        if changes.custom.is_none() && self.session.is_empty() {
            return Ok(None);
        }
        let Some(base) = base else { return Ok(None) };
        let (value, nodes) = match &changes.custom {
            Some(CustomChange::Set(json)) => {
                refuse_prefixed(json)?;
                (Some(json.clone()), None)
            }
            Some(CustomChange::Clear) => (None, None),
            None => {
                let before = base.custom.as_ref().map(Json::node).transpose()?;
                let mut node = before.clone();
                self.session.iter().try_for_each(|delta| delta.apply_to(&mut node))?;
                (node.as_ref().map(|node| Json::trusted(node.print())), before.zip(node))
            }
        };
        let Some(value) = value else {
            let cleared = PreparedCustom { value: None, digest: Digest::ABSENT, patch: None };
            return Ok(base.custom.is_some().then_some((cleared, CustomBody::Clear(true))));
        };
        limit("the custom state", value.as_str().len(), limits.custom)?;
        let digest = Digest::of_json(&value)?;
        // Digests are of what is meant, so that another spelling of the same changes nothing.
        if base.custom.is_some() && digest == base.tip.digests.custom {
            return Ok(None);
        }
        let patch = short_patch(base, &value, nodes)?;
        let custom = PreparedCustom {
            value: Some(value.clone()),
            digest,
            patch: patch.as_ref().map(|p| p.as_str().len() as u64),
        };
        Ok(Some((custom, patch.map_or(CustomBody::Set(value), CustomBody::Patch))))
    }
}

/// The patch, if storing it is better than storing the whole: shorter, and not one too many to read. The nodes are of what was
/// before and of the value, where they are at hand.
fn short_patch(base: &PointState, value: &Json, nodes: Option<(Node, Node)>) -> Result<Option<Json>> {
    let (tip, whole) = (&base.tip, value.as_str().len());
    let Some(before) = base.custom.as_ref().filter(|_| whole >= MIN_PATCHED && tip.patches < MAX_PATCHES) else {
        return Ok(None);
    };
    let (before, after) = match nodes {
        Some(nodes) => nodes,
        None => (before.node()?, value.node()?),
    };
    let patch = Patch::between(&before, &after).to_string();
    let total = tip.patch_bytes + patch.len() as u64;
    Ok((total < whole as u64 && is_readable(&patch)).then(|| Json::trusted(patch)))
}

/// Whether a record that holds the patch is not nested too deep: a patch's values lie deeper than in the state.
fn is_readable(patch: &str) -> bool {
    is_within(patch, MAX_STORED_DEPTH - 2)
}

type Puts = (Vec<PreparedPut>, Option<Digest>);

fn put_artifacts(
    changes: &[ArtifactChange],
    base: Option<&PointState>,
    body: &mut Body,
    limits: &Limits,
) -> Result<Puts> {
    let Some(base) = base.filter(|_| !changes.is_empty()) else { return Ok((Vec::new(), None)) };
    let mut puts = Vec::new();
    for change in changes {
        body.artifacts.push(match change {
            ArtifactChange::Clear => ArtifactBody::Clear(true),
            ArtifactChange::Remove(name) => ArtifactBody::Remove(name.clone()),
            ArtifactChange::Put(artifact) => {
                artifact.check()?;
                let json = Json::written(artifact)?;
                limit("an artifact", json.as_str().len(), limits.body)?;
                Json::check_stored("an artifact", json.as_str())?;
                let digest = Digest::of_json(&json)?;
                puts.push(PreparedPut {
                    name: artifact.name.clone(),
                    digest,
                    bytes: encode(json.as_str())?,
                    content: Arc::new(artifact.clone()),
                });
                ArtifactBody::Put(PutBody { name: artifact.name.clone(), digest })
            }
        });
    }
    let digests = artifact_digests_after(base, &body.artifacts);
    Ok((puts, Some(of_artifacts(&digests))))
}

impl Prepared {
    /// The bytes that are to be stored.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.puts.iter().map(|put| put.bytes.len()).sum::<usize>()
    }

    /// What the record leaves behind it, given what came before.
    pub(crate) fn tip_after(&self, base: &Tip) -> Tip {
        let mut tip = base.clone();
        if let Some((keep, chain)) = self.splice {
            tip.messages = keep;
            tip.digests.chain = chain;
        }
        tip.messages += self.messages.len() as u64;
        tip.digests.chain = self.messages.iter().fold(tip.digests.chain, |chain, next| chain.chain(*next));
        if let Some(custom) = &self.custom {
            tip.digests.custom = custom.digest;
            match custom.patch {
                Some(bytes) => {
                    tip.patches += 1;
                    tip.patch_bytes += bytes;
                }
                None => (tip.patches, tip.patch_bytes) = (0, 0),
            }
        }
        if let Some(artifacts) = self.artifacts {
            tip.digests.artifacts = artifacts;
        }
        if let Some(view) = self.view {
            tip.digests.view = view;
        }
        if let Some(schema) = self.schema {
            tip.schema = schema;
        }
        tip.usage.add(&self.usage);
        tip
    }

    /// The tip after a record outside turns, which counts as an opportunity for a snapshot if it is one.
    pub(crate) fn edit_tip(&self, base: &Tip, opportunity: bool) -> Tip {
        let mut tip = self.tip_after(base);
        tip.index += u64::from(opportunity);
        tip
    }
}
