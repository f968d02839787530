//! What a view or a window may show, whatever was said and wherever it is cut.

use std::collections::HashMap;

use everturn::{Json, Message, Messages, Part, Role, View, Window};
use proptest::prelude::*;

/// One thing that happens in a conversation.
#[derive(Clone, Debug)]
enum Said {
    User,
    Model,
    Instruction,
    /// So many tool calls at once; whether calls have references.
    Asked(usize, bool),
    /// One of the calls that wait is answered, in a message by a tool or by the user.
    Answered(usize, bool),
    /// A call that was answered is answered once more.
    AnsweredAgain(usize),
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        3 => Just(Said::User),
        2 => Just(Said::Model),
        1 => Just(Said::Instruction),
        3 => (1..4_usize, any::<bool>()).prop_map(|(calls, named)| Said::Asked(calls, named)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(which, by_user)| Said::Answered(which, by_user)),
        1 => any::<usize>().prop_map(Said::AnsweredAgain),
    ]
}

/// The messages, numbered in their metadata, and which message asked what each answers.
fn conversation(all: &[Said]) -> (Vec<Message>, Vec<(usize, usize)>) {
    let (mut messages, mut links) = (Vec::<Message>::new(), Vec::new());
    let mut waiting: Vec<(usize, String, Option<String>)> = Vec::new();
    let mut answered = Vec::new();
    let response = |(_, name, reference): &(usize, String, Option<String>), role| {
        Message::new(role, &[Part::tool_response(name, reference.as_deref(), &Json::null())])
    };
    for (n, said) in all.iter().enumerate() {
        let at = messages.len();
        let message = match said {
            Said::User => Message::user("u"),
            Said::Model => Message::model("m"),
            Said::Instruction => Message::of_text(Role::System, "i"),
            Said::Asked(calls, named) => {
                // Without a reference a call is known by its name, so that only one of a name may wait.
                let calls: Vec<_> =
                    (0..*calls).map(|i| (at, format!("t{n}-{i}"), named.then(|| format!("r{n}-{i}")))).collect();
                let parts: Vec<_> = calls
                    .iter()
                    .map(|(_, name, reference)| Part::tool_request(name, reference.as_deref(), &Json::null()))
                    .collect();
                waiting.extend(calls);
                Message::new(Role::Model, &parts)
            }
            Said::Answered(_, _) if waiting.is_empty() => continue,
            Said::Answered(which, by_user) => {
                let call = waiting.remove(which % waiting.len());
                links.push((call.0, at));
                let message = response(&call, if *by_user { Role::User } else { Role::Tool });
                answered.push(call);
                message
            }
            Said::AnsweredAgain(_) if answered.is_empty() => continue,
            Said::AnsweredAgain(which) => {
                let call = &answered[which % answered.len()];
                links.push((call.0, at));
                response(call, Role::Tool)
            }
        };
        messages.push(message.with_metadata("n", &Json::from_value(&at).unwrap()));
    }
    (messages, links)
}

/// The numbers of the messages that are shown.
fn numbers(shown: &[Message]) -> Vec<usize> {
    shown.iter().filter_map(|message| message.metadata("n")?.to().ok()).collect()
}

fn check(shown: &[usize], links: &[(usize, usize)]) -> Result<(), TestCaseError> {
    prop_assert!(shown.is_sorted_by(|a, b| a < b), "out of order, or twice: {shown:?}");
    let place: HashMap<_, _> = shown.iter().map(|n| (*n, ())).collect();
    for (asked, answered) in links {
        prop_assert_eq!(place.contains_key(asked), place.contains_key(answered), "{} from {}", answered, asked);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_view_never_separates_a_tools_answer_from_its_question(
        all in prop::collection::vec(said(), 0..40),
        replaces in 0..45_u64,
        pinned in prop::collection::vec(0..45_u64, 0..4),
    ) {
        let (said, links) = conversation(&all);
        let mut view = View::new(replaces, vec![Message::user("summary")]);
        view.pinned.clone_from(&pinned);
        let messages: Messages = said.iter().cloned().collect();
        let shown = view.apply(&messages);
        prop_assert_eq!(shown[0].text(), "summary");
        let shown = numbers(&shown);
        check(&shown, &links)?;
        let must = pinned.iter().copied().chain(replaces..said.len() as u64).filter(|n| *n < said.len() as u64);
        for n in must {
            prop_assert!(shown.contains(&usize::try_from(n).unwrap()), "{} is not shown: {:?}", n, shown);
        }
    }

    #[test]
    fn a_window_never_separates_a_tools_answer_from_its_question(
        all in prop::collection::vec(said(), 0..40),
        count in 0..12_usize,
        by_turns in any::<bool>(),
    ) {
        let (said, links) = conversation(&all);
        let window = if by_turns { Window::last_turns(count) } else { Window::last_messages(count) };
        let shown = numbers(&window.apply(&said));
        check(&shown, &links)?;
        if !by_turns {
            prop_assert!((said.len().saturating_sub(count)..said.len()).all(|n| shown.contains(&n)));
        }
        let instructions = (0..said.len()).filter(|n| said[*n].role() == Role::System);
        prop_assert!(instructions.into_iter().all(|n| shown.contains(&n)));
    }
}

#[test]
fn a_turn_begins_where_a_user_speaks_after_somebody_else() {
    let said = [
        Message::model("hello"),
        Message::user("a"),
        Message::user("and a"),
        Message::model("A"),
        Message::user("b"),
        Message::new(Role::Model, &[Part::tool_request("f", None, &Json::null())]),
        Message::new(Role::User, &[Part::tool_response("f", None, &Json::null())]),
        Message::model("B"),
    ];
    assert_eq!(Window::last_turns(0).apply(&said), []);
    assert_eq!(Window::last_turns(1).apply(&said), said[4..], "a tool's answer begins no turn");
    assert_eq!(Window::last_turns(2).apply(&said), said[1..], "one who says two things speaks once");
    assert_eq!(Window::last_turns(3).apply(&said), said);
}

#[test]
fn a_late_answer_brings_back_what_was_asked_with_it() {
    let asked = Message::new(
        Role::Model,
        &[Part::tool_request("slow", Some("1"), &Json::null()), Part::tool_request("fast", Some("2"), &Json::null())],
    );
    let fast = Message::new(Role::Tool, &[Part::tool_response("fast", Some("2"), &Json::null())]);
    let slow = Message::new(Role::Tool, &[Part::tool_response("slow", Some("1"), &Json::null())]);
    let said = [Message::user("go"), asked.clone(), fast.clone(), Message::model("one is missing")];
    let view = View::new(4, vec![Message::user("sum")]);
    let before: Messages = said.iter().cloned().collect();
    assert_eq!(view.apply(&before), [Message::user("sum")]);
    let after: Messages = said.into_iter().chain([slow.clone()]).collect();
    assert_eq!(view.apply(&after), [Message::user("sum"), asked, fast, slow]);
}
