//! Questions to people: what a turn waits for, and how it is answered.
//!
//! A tool that interrupts leaves its request in the model's message, with `metadata.interrupt`; calls beside it that did
//! answer leave their answer there, as `metadata.pendingOutput`. So a question survives whatever the messages survive.

use serde::{Deserialize, Serialize};

use crate::agent::{Failure, Handled};
use crate::json::Json;
use crate::message::{Message, Role};
use crate::part::{Part, ToolRequest};
use crate::tool::Tool;
use crate::tool::run::Answer;
use crate::{Error, ErrorKind, Result};

pub(crate) const INTERRUPT: &str = "interrupt";
pub(crate) const PENDING_OUTPUT: &str = "pendingOutput";
pub(crate) const RESOLVED: &str = "resolvedInterrupt";
pub(crate) const RESUMED: &str = "resumed";
pub(crate) const IS_ERROR: &str = "error";

/// What an approval gate asks, or a tool that wants its call confirmed.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct ApprovalAsked {
    approval: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Json>,
}

/// A question as events tell it: `requestedToolConfirmations` holds one for each call.
#[derive(Serialize)]
struct Confirmation {
    confirmed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Json>,
}

/// What a person says to an approval gate.
#[derive(Deserialize, Serialize)]
pub(crate) struct Approval {
    pub(crate) approved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// What is asked about a call that needs a person's word before it runs.
pub(crate) fn approval_question() -> Json {
    confirmation_question(None, None)
}

/// The same with what the person should know.
pub(crate) fn confirmation_question(hint: Option<String>, payload: Option<Json>) -> Json {
    Json::from_value(&ApprovalAsked { approval: "required".to_owned(), hint, payload }).unwrap_or_default()
}

fn approval_asked(question: &Json) -> Option<ApprovalAsked> {
    let looks_so = question.as_str().contains("\"approval\"");
    let asked: ApprovalAsked = looks_so.then(|| question.to().ok()).flatten()?;
    (asked.approval == "required").then_some(asked)
}

/// What is asked about a call that was begun by a process that died.
pub(crate) fn unknown_question() -> Json {
    Json::trusted(r#"{"outcome":"unknown","reason":"the process died while the tool ran"}"#)
}

/// Something a turn waits for: a tool's call that a person must answer.
///
/// ```
/// use everturn::{Interrupt, Message};
///
/// let message = Message::parse(
///     r#"{"role":"model","content":[{"toolRequest":{"name":"pay","ref":"r1","input":{"amount":5}},"metadata":{"interrupt":true}}]}"#,
/// )?;
/// let asked = Interrupt::all_in(&message);
/// assert_eq!(asked[0].name, "pay");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interrupt {
    /// The tool that asks.
    pub name: String,
    /// What tells the call from others.
    pub reference: Option<String>,
    /// What the model gave the tool.
    pub input: Option<Json>,
    /// What the tool asks; `true` when it said nothing more.
    pub payload: Json,
}

impl Interrupt {
    pub(crate) fn of(request: ToolRequest, payload: Json) -> Self {
        Self { name: request.name, reference: request.reference, input: request.input, payload }
    }

    /// What a model's message waits for.
    #[must_use]
    pub fn all_in(message: &Message) -> Vec<Self> {
        if message.role() != Role::Model {
            return Vec::new();
        }
        let waiting = |part: Part| {
            let payload = part.metadata(INTERRUPT)?;
            Some(Self::of(part.as_tool_request()?, payload))
        };
        message.parts().into_iter().filter_map(waiting).collect()
    }

    /// Whether it waits for approval: the call goes on only if somebody says [`Resume::approve`].
    #[must_use]
    pub fn needs_approval(&self) -> bool {
        approval_asked(&self.payload).is_some()
    }

    /// As the event that asks tells it, if it waits for approval.
    pub(crate) fn confirmation(&self) -> Option<(String, Json)> {
        let ApprovalAsked { hint, payload, .. } = approval_asked(&self.payload)?;
        let asked = Json::from_value(&Confirmation { confirmed: false, hint, payload }).ok()?;
        Some((self.reference.clone().unwrap_or_else(|| self.name.clone()), asked))
    }

    /// Whether it asks what became of a call whose process died.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.payload == unknown_question()
    }

    /// What the model gave the tool, as a typed value.
    pub fn input_as<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        self.input.as_ref().unwrap_or(&Json::null()).to()
    }

    fn request(&self) -> Part {
        let input = self.input.clone().unwrap_or_else(Json::empty_object);
        Part::tool_request(&self.name, self.reference.as_deref(), &input)
    }
}

/// Answers to what a turn waits for.
///
/// What is not answered stays open: a turn with some of the answers ends as `interrupted` again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Resume {
    /// Answers in place of the tools' own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub respond: Vec<Part>,
    /// Calls to run again, now that somebody was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<Part>,
}

impl Resume {
    /// No answer yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers in place of the tool. The answer must fit the tool's output schema.
    pub fn respond<T: Serialize + ?Sized>(mut self, to: &Interrupt, output: &T) -> Result<Self> {
        self.respond.push(Part::tool_response(&to.name, to.reference.as_deref(), &Json::from_value(output)?));
        Ok(self)
    }

    /// Answers in place of the tool that it failed; the model is told why.
    pub fn fail(mut self, to: &Interrupt, reason: impl AsRef<str>) -> Result<Self> {
        let output = Answer::error(reason.as_ref()).output;
        let part = Part::tool_response(&to.name, to.reference.as_deref(), &output);
        self.respond.push(part.with_metadata(IS_ERROR, &Json::trusted("true")));
        Ok(self)
    }

    /// Runs the tool again with the same input; it finds what is said here in
    /// [`ToolContext::resumed`](crate::tool::ToolContext::resumed).
    pub fn restart<T: Serialize + ?Sized>(mut self, of: &Interrupt, said: &T) -> Result<Self> {
        self.restart.push(of.request().with_metadata(RESUMED, &Json::from_value(said)?));
        Ok(self)
    }

    /// Lets a call run that waits for approval.
    pub fn approve(self, what: &Interrupt) -> Result<Self> {
        self.restart(what, &Approval { approved: true, reason: None })
    }

    /// Refuses a call that waits for approval; the model is told why.
    pub fn deny(self, what: &Interrupt, reason: impl Into<String>) -> Result<Self> {
        self.restart(what, &Approval { approved: false, reason: Some(reason.into()) })
    }

    /// What a call of a [long-running](crate::tool::Tool::long_running) tool came to after it had answered, by the tool
    /// and the call's reference: in a turn of its own, when nothing else is waited for. The model that had asked is told,
    /// and answers; what is said may have any form, and may be said again.
    pub fn result<T: Serialize + ?Sized>(mut self, tool: &str, reference: &str, output: &T) -> Result<Self> {
        self.respond.push(Part::tool_response(tool, Some(reference), &Json::from_value(output)?));
        Ok(self)
    }

    /// As an input carries it.
    pub fn to_json(&self) -> Result<Json> {
        Json::from_value(self)
    }

    /// As an input carries it, read.
    pub(crate) fn read(json: &Json) -> Result<Self> {
        json.to().map_err(|error| {
            Error::invalid(
                "`resume` is an object with lists of parts: `respond` with toolResponse, `restart` with toolRequest",
            )
            .with_source(error)
        })
    }
}

/// One request of a model's message, and how far it got.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) part: Part,
    pub(crate) request: ToolRequest,
    pub(crate) state: SlotState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// It was not started.
    Open,
    /// It waits for a person.
    Waiting(Json),
    /// It was answered, and waits for the others.
    Done(Json),
}

/// The requests of a model's message, in order. None when it asks for no tool.
pub(crate) fn slots(message: &Message) -> Vec<Slot> {
    if message.role() != Role::Model {
        return Vec::new();
    }
    let slot = |part: Part| {
        let request = part.as_tool_request()?;
        let state = match (part.metadata(PENDING_OUTPUT), part.metadata(INTERRUPT)) {
            (Some(output), _) => SlotState::Done(output),
            (None, Some(payload)) => SlotState::Waiting(payload),
            (None, None) => SlotState::Open,
        };
        Some(Slot { part, request, state })
    };
    message.parts().into_iter().filter_map(slot).collect()
}

/// Whether a message waits for a person.
pub(crate) fn is_waiting(message: &Message) -> bool {
    message.as_str().contains("\"interrupt\"") && !Interrupt::all_in(message).is_empty()
}

/// What is said to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Output(Json),
    Error(Json),
    Restart(Option<Json>),
}

/// Matches answers with what the last message waits for: all of them fit, or none is taken.
pub(crate) fn matched(messages: &[Message], resume: &Resume, tools: &[Tool]) -> Handled<Vec<Option<Said>>> {
    let last = messages.last().map(slots).unwrap_or_default();
    if !last.iter().any(|slot| matches!(slot.state, SlotState::Waiting(_)))
        && resume_names_nothing_old(messages, resume)
    {
        return Err(nothing_waits());
    }
    if resume.respond.is_empty() && resume.restart.is_empty() {
        return Err(waits(last.iter()));
    }
    let mut said: Vec<Option<Said>> = vec![None; last.len()];
    for part in &resume.respond {
        let answer =
            part.as_tool_response().ok_or_else(|| wrong("an entry of `resume.respond` is no toolResponse part"))?;
        let named = ToolRequest { name: answer.name, reference: answer.reference, input: None };
        let index = find(messages, &last, &said, &named, "respond")?;
        let output = answer.output.unwrap_or_default();
        let slot = &last[index];
        if is_gate(slot) {
            return Err(wrong(format!(
                "{} waits for approval: restart it with `resumed: {{\"approved\": true}}` or false, it cannot be answered for",
                shown(&named)
            )));
        }
        // An error has the shape of an error, whatever the tool answers otherwise.
        if part.metadata(IS_ERROR) == Some(Json::trusted("true")) {
            said[index] = Some(Said::Error(output));
            continue;
        }
        if let Some(tool) = tools.iter().find(|tool| tool.name() == named.name) {
            tool.check_output(&output)?;
        }
        said[index] = Some(Said::Output(output));
    }
    for part in &resume.restart {
        let named =
            part.as_tool_request().ok_or_else(|| wrong("an entry of `resume.restart` is no toolRequest part"))?;
        let index = find(messages, &last, &said, &named, "restart")?;
        let slot = &last[index];
        if named.input.is_some() && named.input != slot.request.input {
            return Err(wrong(format!(
                "resume.restart for {} has modified inputs: send the input as it was asked",
                shown(&named)
            )));
        }
        let resumed = part.metadata(RESUMED);
        if is_gate(slot) && resumed.as_ref().is_none_or(|json| json.to::<Approval>().is_err()) {
            return Err(wrong(format!(
                "{} waits for approval: say `resumed: {{\"approved\": true}}` or false",
                shown(&named)
            )));
        }
        said[index] = Some(Said::Restart(resumed));
    }
    Ok(said)
}

/// Whether a call waits for approval.
pub(crate) fn is_gate(slot: &Slot) -> bool {
    matches!(&slot.state, SlotState::Waiting(question) if approval_asked(question).is_some())
}

/// The waiting request that an answer names.
fn find(
    messages: &[Message],
    last: &[Slot],
    said: &[Option<Said>],
    named: &ToolRequest,
    member: &str,
) -> Handled<usize> {
    let fits = |request: &ToolRequest| {
        request.name == named.name && (named.reference.is_none() || request.reference == named.reference)
    };
    let all: Vec<usize> = (0..last.len()).filter(|index| fits(&last[*index].request)).collect();
    let waiting = |index: &&usize| matches!(last[**index].state, SlotState::Waiting(_)) && said[**index].is_none();
    if let Some(index) = all.iter().find(waiting) {
        return Ok(*index);
    }
    if !all.is_empty() || was_asked(messages, named) {
        return Err(wrong(format!("resume.{member} names {}, which was already answered: leave it out", shown(named))));
    }
    Err(wrong(format!(
        "resume.{member} references {} which was not found in session history: answer what was asked",
        shown(named)
    )))
}

fn was_asked(messages: &[Message], named: &ToolRequest) -> bool {
    let same = |slot: &Slot| slot.request.name == named.name && slot.request.reference == named.reference;
    messages.iter().rev().any(|message| slots(message).iter().any(same))
}

/// An answer where nothing waits is told apart by whether anybody ever asked.
fn resume_names_nothing_old(messages: &[Message], resume: &Resume) -> bool {
    let requests = resume.restart.iter().filter_map(Part::as_tool_request);
    let responses = resume.respond.iter().filter_map(Part::as_tool_response);
    let named = responses.map(|answer| ToolRequest { name: answer.name, reference: answer.reference, input: None });
    let mut named = named.chain(requests);
    !named.any(|request| was_asked(messages, &request))
}

fn shown(request: &ToolRequest) -> String {
    match &request.reference {
        Some(reference) => format!("tool '{}' (ref: {reference})", request.name),
        None => format!("tool '{}'", request.name),
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Error::invalid(text).into()
}

/// A turn was given answers that nobody waits for.
pub(crate) fn nothing_waits() -> Failure {
    Error::new(ErrorKind::WrongMode, "the session waits for no answer: send a message instead of `resume`").into()
}

/// A turn was given no answer where one is waited for.
pub(crate) fn waits<'a>(slots: impl Iterator<Item = &'a Slot>) -> Failure {
    let open: Vec<_> =
        slots.filter(|slot| matches!(slot.state, SlotState::Waiting(_))).map(|slot| shown(&slot.request)).collect();
    Error::new(
        ErrorKind::WrongMode,
        format!(
            "the session waits for an answer to {}: send it as `resume`, or start before the question",
            open.join(", ")
        ),
    )
    .into()
}
