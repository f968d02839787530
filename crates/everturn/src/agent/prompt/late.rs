//! Results that come after their call was answered: tools that go on after a turn answer with a receipt, and a later turn
//! brings what they came to.

use super::seat::Seat;
use super::shown::as_late;
use super::team::Team;
use crate::agent::CustomState;
use crate::interrupt::{Resume, is_waiting, slots};
use crate::message::{Message, Role};
use crate::part::{Part, ToolResponse};
use crate::state::Messages;

/// Late results, and whose calls they answer.
pub(super) struct Late {
    pub(super) member: usize,
    pub(super) message: Message,
}

/// Answers as late results: all name calls of one agent's long-running tools, and nobody waits for anything else.
/// Whatever else they are is said where answers to questions are checked.
pub(super) fn late<S: CustomState>(team: &Team<S>, messages: &Messages, resume: &Resume) -> Option<Late> {
    if resume.respond.is_empty() || !resume.restart.is_empty() || messages.last().is_some_and(is_waiting) {
        return None;
    }
    let mut callers = Vec::new();
    let mut parts = Vec::new();
    for part in &resume.respond {
        let response = part.as_tool_response()?;
        callers.push(caller(team, messages, &response)?);
        let output = response.output.unwrap_or_default();
        parts.push(Part::tool_response(&response.name, response.reference.as_deref(), &output));
    }
    let member = callers.pop().filter(|last| callers.iter().all(|other| other == last))?;
    Some(Late { member, message: as_late(&Message::new(Role::Tool, &parts)) })
}

/// Who called a tool that goes on after it answered.
fn caller<S: CustomState>(team: &Team<S>, messages: &Messages, response: &ToolResponse) -> Option<usize> {
    let reference = response.reference.as_ref()?;
    let asked = |message: &&Message| {
        message.role() == Role::Model
            && message.as_str().contains("\"toolRequest\"")
            && slots(message)
                .iter()
                .any(|slot| slot.request.name == response.name && slot.request.reference.as_ref() == Some(reference))
    };
    let member = team.of_seat(&Seat::of(messages.iter().rev().find(asked)?))?;
    let long_running =
        |name: &str| team.member(member).tools.iter().any(|tool| tool.long_running && tool.name() == name);
    long_running(&response.name).then_some(member)
}
