//! What Genkit's client sends, read and checked before anything is done.

use everturn::{Init, Input, Json, Message, SessionId, SessionState};
use serde::Deserialize;

use crate::http::problem::Problem;

/// One input and where it starts.
pub(super) struct Turn {
    pub(super) input: Input,
    pub(super) init: Init,
    /// A snapshot id that none of ours can be; it is kept to be named in the answer.
    pub(super) unknown_snapshot: Option<String>,
    /// The state that was sent, for an answer that hands it back.
    pub(super) state: Option<Json>,
}

/// What a snapshot is looked up by.
pub(super) enum Lookup {
    Snapshot(String),
    Session(SessionId),
}

#[derive(Deserialize)]
struct Envelope {
    data: Json,
    #[serde(default)]
    init: Option<Json>,
}

#[derive(Deserialize)]
struct AgentInput {
    #[serde(default, deserialize_with = "given")]
    message: Option<Json>,
    #[serde(default, deserialize_with = "given")]
    messages: Option<Vec<Json>>,
    #[serde(default, deserialize_with = "given")]
    resume: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default, deserialize_with = "given")]
    detach: Option<bool>,
}

/// A member that was written must be what it says; `null` is not the same as leaving it out.
fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentInit {
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    snapshot_id: Option<String>,
    #[serde(default)]
    state: Option<Json>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LookupData {
    #[serde(default)]
    snapshot_id: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
}

/// Reads a part of the request, naming it in what is wrong with it.
fn read<T: serde::de::DeserializeOwned>(json: &Json, what: &str, members: &str) -> Result<T, Problem> {
    // serde would also take the members' values in a list.
    if !json.as_str().starts_with('{') {
        return Err(Problem::invalid(format!("{what} is not an object: send {members}")));
    }
    json.to().map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        Problem::invalid(format!("{what} is not as it should be ({members}): {cause}"))
    })
}

fn envelope(body: &str) -> Result<Envelope, Problem> {
    let json = Json::parse(body).map_err(|error| Problem::invalid(format!("the body is not JSON: {error}")))?;
    read(&json, "the body", "an object with `data` and `init`")
}

pub(super) fn read_turn(body: &str) -> Result<Turn, Problem> {
    let Envelope { data, init } = envelope(body)?;
    let data: AgentInput = read(&data, "`data`", "an object with `message`, `resume`, `detach`")?;
    let mut messages = Vec::new();
    for json in data.message.into_iter().chain(data.messages.into_iter().flatten()) {
        messages.push(message(json)?);
    }
    let mut input = Input::messages(messages);
    input.resume = data.resume.map(|resume| Json::from_value(&resume)).transpose()?;
    input.detach = data.detach.unwrap_or(false);
    let given: AgentInit = match init.filter(|init| init.as_str() != "null") {
        Some(init) => read(&init, "`init`", "an object with `sessionId`, `snapshotId`, `state`")?,
        None => AgentInit::default(),
    };
    let mut init = Init::new();
    let mut unknown_snapshot = None;
    if let Some(id) = given.session_id {
        init.session = Some(SessionId::new(&id).map_err(|error| Problem::invalid(format!("`sessionId`: {error}")))?);
    }
    if let Some(id) = given.snapshot_id {
        match id.parse() {
            Ok(id) => init.snapshot = Some(id),
            Err(_) => {
                init.snapshot = Some(super::wire::NO_SNAPSHOT);
                unknown_snapshot = Some(id);
            }
        }
    }
    if let Some(state) = &given.state {
        let state: SessionState = read(state, "`state`", "an object with `messages`, `custom`, `artifacts`")?;
        init.state = Some(state);
    }
    Ok(Turn { input, init, unknown_snapshot, state: given.state })
}

fn message(json: Json) -> Result<Message, Problem> {
    let message =
        Message::from_json(json).map_err(|error| Problem::invalid(format!("`message` is not a message: {error}")))?;
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "read only to see that it can be")]
    struct Texts {
        content: Vec<PartText>,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "read only to see that it is a text")]
    struct PartText {
        #[serde(default, deserialize_with = "given")]
        text: Option<String>,
    }
    read::<Texts>(message.json(), "the message's `content`", "parts whose `text` is a text")?;
    Ok(message)
}

pub(super) fn read_snapshot_id(body: &str) -> Result<String, Problem> {
    let data: LookupData = read(&envelope(body)?.data, "`data`", "an object with a `snapshotId`")?;
    data.snapshot_id.ok_or_else(|| Problem::invalid("`data` needs a `snapshotId`"))
}

pub(super) fn read_lookup(body: &str) -> Result<Lookup, Problem> {
    let data: LookupData = read(&envelope(body)?.data, "`data`", "an object with a `snapshotId` or a `sessionId`")?;
    match (data.snapshot_id, data.session_id) {
        (Some(id), None) => Ok(Lookup::Snapshot(id)),
        (None, Some(id)) => {
            let id = SessionId::new(&id).map_err(|error| Problem::invalid(format!("`sessionId`: {error}")))?;
            Ok(Lookup::Session(id))
        }
        _ => Err(Problem::invalid("give either a `snapshotId` or a `sessionId`")),
    }
}
