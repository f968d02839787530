//! Where in a team something is said.
//!
//! A session's state is what its messages add up to, and messages know nothing of events. So a sub-agent's messages say
//! themselves whose they are, in their metadata; the root's carry nothing.

use crate::json::Json;
use crate::message::Message;

const PATH: &str = "agentPath";
const CALL: &str = "agentCall";
const NEXT: &str = "nextAgent";
const HANDED_BY: &str = "handedOverBy";

/// An agent's place: its path, and the call it serves if it works as a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seat {
    /// Nothing for the root of a conversation.
    pub(super) path: Option<String>,
    pub(super) call: Option<String>,
}

impl Seat {
    /// Whose message it is.
    pub(super) fn of(message: &Message) -> Self {
        // Most messages are the root's, and the text is scanned faster than read.
        if !message.as_str().contains(PATH) {
            return Self::default();
        }
        Self { path: text(message, PATH), call: text(message, CALL) }
    }

    /// The message as this agent's.
    pub(super) fn sign(&self, message: &Message) -> Message {
        let noted = [(PATH, &self.path), (CALL, &self.call)];
        let noted = noted.into_iter().filter_map(|(key, value)| Some((key, Json::from_value(value.as_ref()?).ok()?)));
        noted.fold(message.clone(), |message, (key, value)| message.with_metadata(key, &value))
    }

    /// Whether what is said at another place is said here or above, in the same conversation. Paths are compared name by
    /// name: `a.b` is above `a.b.c`, and has nothing to do with `a.bc`.
    pub(super) fn hears(&self, other: &Self) -> bool {
        self.call == other.call
            && match (&self.path, &other.path) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(mine), Some(theirs)) => is_self_or_above(theirs, mine),
            }
    }
}

/// Whether one path leads to another, or is it.
pub(super) fn is_self_or_above(above: &str, path: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Notes on tools' answers who goes on after them.
pub(super) fn with_next(message: &Message, path: &str) -> Message {
    noted(message, NEXT, path)
}

/// Who goes on after tools' answers, if they said so.
pub(super) fn next(message: &Message) -> Option<String> {
    text(message, NEXT)
}

/// Notes on a message that an agent, not a person, says it.
pub(super) fn handed_by(message: &Message, path: &str) -> Message {
    noted(message, HANDED_BY, path)
}

fn noted(message: &Message, key: &str, value: &str) -> Message {
    Json::from_value(value).map_or_else(|_| message.clone(), |value| message.with_metadata(key, &value))
}

fn text(message: &Message, key: &str) -> Option<String> {
    message.metadata(key)?.to().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_name_by_name() {
        for (above, path, is) in [
            ("a", "a", true),
            ("a", "a.b", true),
            ("a.b", "a.b.c", true),
            ("a.b", "a.bc", false),
            ("a.bc", "a.b", false),
            ("a.b", "a", false),
            ("b", "a.b", false),
        ] {
            assert_eq!(is_self_or_above(above, path), is, "{above} {path}");
        }
    }

    #[test]
    fn a_message_keeps_whose_it_is_and_the_roots_stays_as_it_was() {
        let message = Message::model("hi");
        assert_eq!(Seat::default().sign(&message), message);
        let seat = Seat { path: Some("a.b".to_owned()), call: Some("7".to_owned()) };
        assert_eq!(Seat::of(&seat.sign(&message)), seat);
        assert_eq!(Seat::of(&message), Seat::default());
    }

    #[test]
    fn calls_hear_only_themselves() {
        let seat = |path: &str, call: Option<&str>| Seat { path: Some(path.to_owned()), call: call.map(str::to_owned) };
        assert!(seat("a.b", Some("1")).hears(&seat("a.b", Some("1"))));
        assert!(!seat("a.b", Some("1")).hears(&seat("a.b", Some("2"))));
        assert!(!seat("a.b", Some("1")).hears(&Seat::default()));
        assert!(!Seat::default().hears(&seat("a.b", Some("1"))));
    }
}
