//! What an agent's model is shown of the session: its own part, and what was said above it.

use super::seat::Seat;
use super::team::{TRANSFER, Transfer};
use crate::json::Json;
use crate::message::{Message, Role};
use crate::part::{Part, PartKind};

const LATE: &str = "late";

/// Notes on a tool's message that it comes after the call was answered.
pub(super) fn as_late(message: &Message) -> Message {
    message.with_metadata(LATE, &Json::trusted("true"))
}

/// What an agent is shown: what was said where it can hear it, what others above it said and did as context, and nothing
/// that a provider would refuse.
pub(super) fn shown(messages: Vec<Message>, here: &Seat, root: &str) -> Vec<Message> {
    let heard = messages.into_iter().filter_map(|message| {
        let seat = Seat::of(&message);
        if !here.hears(&seat) {
            return None;
        }
        let own = seat.path == here.path || matches!(message.role(), Role::User | Role::System);
        if own { Some(message) } else { told(&message, name(&seat, root)) }
    });
    paired(heard.collect(), name(here, root))
}

fn name<'a>(seat: &'a Seat, root: &'a str) -> &'a str {
    seat.path.as_deref().map_or(root, |path| path.rsplit('.').next().unwrap_or(path))
}

/// Requests without their answers and answers without their requests are told instead of shown: what was compacted away,
/// broke off, or came late.
fn paired(messages: Vec<Message>, name: &str) -> Vec<Message> {
    let answers = |message: Option<&Message>| {
        message.is_none_or(|message| message.role() == Role::Tool && message.metadata(LATE).is_none())
    };
    let mut out = Vec::with_capacity(messages.len());
    let mut asked = false;
    for (index, message) in messages.iter().enumerate() {
        let fits = match message.role() {
            Role::Model if message.as_str().contains("\"toolRequest\"") => {
                asked = answers(messages.get(index + 1));
                asked
            }
            Role::Tool => asked && message.metadata(LATE).is_none(),
            Role::Model | Role::User | Role::System => {
                asked = false;
                true
            }
        };
        if fits {
            out.push(message.clone());
        } else {
            out.extend(told(message, name));
        }
    }
    out
}

/// What somebody said or did, in words, for those who did not say it themselves. Nothing if nobody else need know.
fn told(message: &Message, name: &str) -> Option<Message> {
    let parts: Vec<Part> = message.parts().into_iter().filter_map(|part| retold(part, name)).collect();
    (!parts.is_empty()).then(|| Message::new(Role::User, &parts))
}

fn retold(part: Part, name: &str) -> Option<Part> {
    let given = |json: Option<Json>| json.unwrap_or_default();
    let text = match part.kind() {
        PartKind::Text => format!("For context: {name} said: {}", part.as_text()?),
        PartKind::ToolRequest => {
            let request = part.as_tool_request()?;
            match request.input.as_ref().and_then(|input| input.to::<Transfer>().ok()) {
                Some(transfer) if request.name == TRANSFER => transfer.told(name),
                _ => format!("For context: {name} called the tool {} with {}", request.name, given(request.input)),
            }
        }
        PartKind::ToolResponse => {
            let response = part.as_tool_response().filter(|response| response.name != TRANSFER)?;
            format!("For context: the tool {} answered {name}: {}", response.name, given(response.output))
        }
        // What a model thought is its own.
        PartKind::Reasoning => return None,
        _ => return Some(part),
    };
    Some(Part::text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> Message {
        Message::new(Role::Model, &[Part::tool_request(name, Some("r"), &Json::empty_object())])
    }

    fn answer(name: &str) -> Message {
        Message::new(Role::Tool, &[Part::tool_response(name, Some("r"), &Json::trusted("1"))])
    }

    fn texts(messages: Vec<Message>) -> Vec<String> {
        shown(messages, &Seat::default(), "root").iter().map(Message::text).collect()
    }

    #[test]
    fn what_is_paired_is_shown_as_it_was() {
        let said = vec![Message::user("go"), call("a"), answer("a"), answer("a"), Message::model("done"), call("b")];
        assert_eq!(shown(said.clone(), &Seat::default(), "root"), said);
    }

    #[test]
    fn what_lost_its_other_half_is_told() {
        let said = vec![answer("a"), call("b"), Message::user("hm"), as_late(&answer("c"))];
        let told = [
            "For context: the tool a answered root: 1",
            "For context: root called the tool b with {}",
            "hm",
            "For context: the tool c answered root: 1",
        ];
        assert_eq!(texts(said), told);
    }

    #[test]
    fn reasoning_is_nobody_elses() {
        let seat = Seat { path: Some("root.a".to_owned()), call: None };
        let said = vec![Message::new(Role::Model, &[Part::reasoning("hm"), Part::text("yes")])];
        assert_eq!(shown(said, &seat, "root"), [Message::user("For context: root said: yes")]);
        let thought = vec![Message::new(Role::Model, &[Part::reasoning("hm")])];
        assert_eq!(shown(thought, &seat, "root"), []);
    }
}
