//! What adding up and comparing states costs, by counting: about as much as there is of it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::delta::StateDelta;
use super::pairs::Pairs;
use super::*;
use crate::json::{Node, steps};
use crate::part::Part;

/// The most steps for so many members, messages or pairs.
fn most(n: usize) -> usize {
    1_000 + 24 * n
}

fn custom(keys: impl Iterator<Item = usize>) -> Json {
    let members = keys.map(|i| (format!("k{i:05}").into(), Node::Number("1".into()))).collect();
    Json::trusted(Node::Object(members).print())
}

fn message(role: &str, parts: &[Part]) -> Message {
    Message::new(serde_json::from_str(&format!("\"{role}\"")).unwrap(), parts)
}

fn asked(name: &str, reference: Option<&str>) -> Message {
    message("model", &[Part::tool_request(name, reference, &Json::null())])
}

fn answered(name: &str, reference: Option<&str>) -> Message {
    message("tool", &[Part::tool_response(name, reference, &Json::null())])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn keys_are_set_without_going_through_all_members_for_each(n in 1..5_000_usize, old in 0..5_000_usize) {
        let mut delta = StateDelta::new();
        for key in 0..n {
            delta.set.insert(format!("k{:05}", n - key), Json::null());
        }
        let mut node = Some(custom(n / 2..n / 2 + old).node().unwrap());
        let (_, steps) = steps::of(|| delta.apply_to(&mut node).unwrap());
        prop_assert!(steps <= most(n + old), "{} steps for {} keys and {} members", steps, n, old);
    }

    #[test]
    fn what_changed_is_told_without_going_through_all_members_for_each(n in 1..5_000_usize, k in 0..50_usize) {
        let (was, is) = (custom(0..n), custom((k..n + k).rev()));
        let (delta, steps) = steps::of(|| StateDelta::between(Some(&was), Some(&is)).unwrap());
        prop_assert!(steps <= most(n + k), "{} steps for {} members", steps, n);
        prop_assert_eq!((delta.set.len(), delta.remove.len()), (k.min(n), k.min(n)));
    }

    #[test]
    fn questions_and_answers_are_paired_in_steps_by_their_number(shape in 0..4_usize, n in 1..700_usize) {
        let name = |i: usize| format!("n{i}");
        let messages: Vec<Message> = match shape {
            // Nobody asked for these.
            0 => (0..n).map(|_| asked("a", None)).chain((0..n).map(|_| answered("b", None))).collect(),
            // The first is answered again and again.
            1 => (0..n).map(|i| asked(&name(i), None)).chain((0..n).map(|_| answered("n0", None))).collect(),
            // Each pair reaches into the next.
            2 => (0..n)
                .flat_map(|i| [asked("x", Some(&name(i))), answered("x", Some(&name(i.saturating_sub(1))))])
                .collect(),
            _ => (0..n)
                .map(|i| asked("x", Some(&name(i))))
                .chain((0..n).map(|i| answered("x", Some(&name(i)))))
                .collect(),
        };
        let (pairs, steps) = steps::of(|| Pairs::of(&messages));
        prop_assert!(steps <= most(n), "{} steps to pair {}", steps, n);
        let (cut, steps) = steps::of(|| pairs.cut(messages.len()));
        prop_assert!(steps <= most(n) && cut <= messages.len(), "{} steps to cut {}", steps, n);
        let mut chosen = BTreeSet::from([0]);
        let ((), steps) = steps::of(|| pairs.complete(&mut chosen, messages.len()));
        prop_assert!(steps <= most(n), "{} steps to complete {}", steps, n);
    }
}

/// A list that is cut off near its end again and again is not hashed from its beginning each time.
#[test]
fn a_chain_is_gone_through_once_however_often_a_list_is_cut_off() {
    let list: Messages = (0..3_000).map(|i| Message::user(i.to_string())).collect();
    let (_, steps) = steps::of(|| {
        for i in 0..1_000 {
            let copy = list.clone();
            copy.chain_at(2_999 - i % 7).unwrap();
        }
    });
    assert!(steps <= 3_000 + 40 * 1_000, "{steps} messages were hashed");
}
