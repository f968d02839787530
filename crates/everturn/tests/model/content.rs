//! Random things to say, keep and make.

use everturn::{
    Artifact, ArtifactChange, Changes, CustomChange, Event, EventKind, Json, Message, Part, Role, StateDelta,
    ToolEntry, ToolPhase, Usage, View, ViewChange,
};

use crate::state::{State, members};
use crate::support::{Rng, json};

const WORDS: [&str; 12] =
    ["tea", "fence", "é\u{1f642}", "", "a \"b\"", "line\nbreak", "turn", "snapshot", "branch", "\\", "0", "null"];
const KEYS: [&str; 6] = ["a", "b", "c", "deep", "n", "ключ"];
const SHARED: [&str; 6] = ["app:theme", "app:n", "user:name", "user:tone", "user:n", "temp:scratch"];
const NUMBERS: [&str; 6] = ["0", "1.10", "1.1", "9007199254740993", "-3e5", "42"];
pub(crate) const ARTIFACTS: [&str; 3] = ["report.md", "plan", "a/b"];

pub(crate) fn text(rng: &mut Rng) -> String {
    let words = if rng.percent(5) { 200 } else { 1 + rng.below(6) };
    (0..words).map(|_| *rng.pick(&WORDS)).collect::<Vec<_>>().join(" ")
}

pub(crate) fn value(rng: &mut Rng, depth: usize) -> Json {
    let quoted = |rng: &mut Rng| serde_json::to_string(&text(rng)).expect("it is text");
    match rng.below(if depth == 0 { 5 } else { 8 }) {
        0 => Json::null(),
        1 => json("true"),
        2 | 3 => json(*rng.pick(&NUMBERS)),
        4 => json(quoted(rng)),
        5 => {
            let items: Vec<_> = (0..rng.below(4)).map(|_| value(rng, depth - 1).to_string()).collect();
            json(format!("[{}]", items.join(", ")))
        }
        _ => object(rng, depth - 1),
    }
}

fn object(rng: &mut Rng, depth: usize) -> Json {
    let keys: Vec<_> = KEYS.iter().filter(|_| rng.percent(40)).collect();
    let members: Vec<_> = keys.iter().map(|key| format!("\"{key}\" : {}", value(rng, depth))).collect();
    json(format!("{{{}}}", members.join(",")))
}

fn message(rng: &mut Rng) -> Message {
    if rng.percent(2) {
        // So long that its record goes to its table at once.
        return Message::model(rng.letters(12_000));
    }
    match rng.below(8) {
        0 => {
            Message::parse(format!("{{\"role\":\"model\",\"content\":[],\"x\":{}}}", value(rng, 1))).expect("it is one")
        }
        1 => {
            let call = Part::tool_request("look", Some("r1"), &value(rng, 2));
            Message::new(Role::Model, &[Part::text(text(rng)), call])
        }
        2 => Message::new(Role::Tool, &[Part::tool_response("look", Some("r1"), &value(rng, 2))]),
        3 => Message::user(text(rng)),
        _ => Message::model(text(rng)),
    }
}

pub(crate) fn messages(rng: &mut Rng, most: usize) -> Vec<Message> {
    (0..rng.below(most + 1)).map(|_| message(rng)).collect()
}

/// A change of keys; the session's own only where its custom state has keys.
pub(crate) fn delta(rng: &mut Rng, own: bool) -> StateDelta {
    let mut delta = StateDelta::new();
    for _ in 0..rng.below(4) {
        let key = if own && rng.percent(60) { *rng.pick(&KEYS) } else { *rng.pick(&SHARED) };
        delta = if rng.percent(25) { delta.remove(key) } else { delta.set(key, value(rng, 2)) };
    }
    delta
}

fn usage(rng: &mut Rng) -> Usage {
    Usage::tokens(rng.below(50) as u64, rng.below(9) as u64)
}

fn event(rng: &mut Rng, own: bool) -> Event {
    let mut event = Event::new(*rng.pick(&["agent", "helper", "user"])).with_messages(messages(rng, 2));
    if rng.percent(30) {
        event = event.with_state(delta(rng, own));
    }
    if rng.percent(30) {
        event = event.with_usage(usage(rng));
    }
    if rng.percent(10) {
        event.metadata = Some(object(rng, 1));
        event.path = "planner.helper".to_owned();
        event.kind = EventKind::Other;
    }
    event.partial = rng.percent(5);
    event
}

/// A custom state with a few hundred fields, so that a change of one of them is worth a patch.
fn big(rng: &mut Rng) -> Json {
    let fields: Vec<_> = (0..60).map(|i| format!("\"f{i}\":\"{} {}\"", rng.below(99), "word ".repeat(i % 9))).collect();
    json(format!("{{\"rows\":[1,2,3],{}}}", fields.join(",")))
}

fn custom(rng: &mut Rng, now: Option<&Json>) -> CustomChange {
    let grown = now.and_then(members).filter(|members| members.len() > 20);
    match (rng.below(24), grown) {
        (0, _) => CustomChange::Clear,
        (1, _) => CustomChange::Set(Json::null()),
        (2, _) => CustomChange::Set(value(rng, 3)),
        (3, _) => CustomChange::Set(json("{}")),
        (_, Some(mut members)) => {
            for _ in 0..1 + rng.below(2) {
                members.insert(format!("f{}", rng.below(64)), value(rng, 1));
                members.remove(&format!("f{}", rng.below(64)));
            }
            CustomChange::Set(Json::from_value(&members).expect("it is JSON"))
        }
        (4..12, None) => CustomChange::Set(big(rng)),
        _ => CustomChange::Set(object(rng, 2)),
    }
}

fn artifact(rng: &mut Rng) -> ArtifactChange {
    match rng.below(8) {
        0 => ArtifactChange::Clear,
        1 => ArtifactChange::Remove((*rng.pick(&ARTIFACTS)).to_owned()),
        2 => ArtifactChange::Put(Artifact::unnamed(vec![Part::text(text(rng))])),
        _ => {
            let mut artifact = Artifact::new(*rng.pick(&ARTIFACTS), vec![Part::text(text(rng))]);
            artifact.metadata = rng.percent(20).then(|| object(rng, 1));
            ArtifactChange::Put(artifact)
        }
    }
}

fn view(rng: &mut Rng, messages: usize) -> ViewChange {
    if rng.percent(30) {
        return ViewChange::Clear;
    }
    let mut view = View::new(rng.below(messages + 1) as u64, vec![Message::model(text(rng))]);
    view.pinned = (0..rng.below(3)).map(|_| rng.below(messages + 1) as u64).collect();
    ViewChange::Set(view)
}

/// Whether a state's custom part has keys that can be set one by one.
pub(crate) fn has_keys(state: &State) -> bool {
    state.content.custom.as_ref().is_none_or(|custom| members(custom).is_some())
}

/// A change of anything, fit for the state it follows.
pub(crate) fn changes(rng: &mut Rng, state: &State) -> Changes {
    let len = state.content.messages.len();
    let mut changes = Changes::new();
    if rng.percent(12) {
        let keep = if rng.percent(50) { len.saturating_sub(rng.below(3)) } else { rng.below(len + 1) };
        changes = changes.splice(keep as u64, messages(rng, 2));
    }
    for _ in 0..rng.below(4) {
        changes = changes.event(event(rng, has_keys(state)));
    }
    if rng.percent(35) {
        changes.custom = Some(custom(rng, state.content.custom.as_ref()));
    }
    if rng.percent(10) {
        changes.schema_version = Some(rng.below(4) as u64);
    }
    if rng.percent(25) {
        changes.artifacts = (0..1 + rng.below(3)).map(|_| artifact(rng)).collect();
    }
    if rng.percent(12) {
        changes.view = Some(view(rng, len));
    }
    if rng.percent(20) {
        changes.usage = usage(rng);
    }
    changes
}

/// A line of the ledger of tool calls.
pub(crate) fn tool(rng: &mut Rng) -> ToolEntry {
    let phase = *rng.pick(&[ToolPhase::Started, ToolPhase::Finished, ToolPhase::Failed]);
    ToolEntry::new(format!("call {}", rng.below(9)), "look", phase, rng.percent(50).then(|| value(rng, 1)))
}

/// Changes that no store may accept after this state.
pub(crate) fn wrong(rng: &mut Rng, state: &State) -> Changes {
    let len = state.content.messages.len() as u64;
    match rng.below(3) {
        0 => Changes::new().splice(len + 1 + rng.below(3) as u64, Vec::new()),
        1 => Changes::new().custom(json("{\"user:x\":1}")),
        // Keys of what has none: right where there are some, so that the next thing is tried instead.
        _ if has_keys(state) => Changes::new().splice(len + 1, Vec::new()),
        _ => Changes::new().event(Event::new("agent").with_state(StateDelta::new().set("a", Json::null()))),
    }
}
