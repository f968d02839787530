//! What finding and applying differences costs, held to a bound by counting, over documents that are made to cost much.

use proptest::prelude::*;

use super::*;
use crate::json::steps;

/// The most steps for documents and patches of so many bytes together.
fn most(bytes: usize) -> usize {
    (1 << 19) + 16 * bytes
}

fn number(n: usize) -> Node {
    Node::Number(n.to_string().into())
}

fn key(i: usize) -> Box<str> {
    format!("key{i:05}").into()
}

fn object(keys: impl Iterator<Item = usize>, value: impl Fn(usize) -> usize) -> Node {
    Node::Object(keys.map(|i| (key(i), number(value(i)))).collect())
}

fn array(items: impl Iterator<Item = usize>) -> Node {
    Node::Array(items.map(number).collect())
}

/// A value far down, with something small beside it on each level.
fn nest(depth: usize, beside: usize, mut inner: Node) -> Node {
    for level in 0..depth {
        inner = match level % 2 {
            0 => Node::Object(vec![("x".into(), inner), ("n".into(), number(beside))]),
            _ => Node::Array(vec![number(beside), inner]),
        };
    }
    inner
}

/// Two documents between which a careless comparison goes through everything for everything: of what shape, how large, and
/// how far apart.
fn pair((shape, n, k): (usize, usize, usize)) -> (Node, Node) {
    let k = k.min(n);
    match shape {
        // Members taken from the front, put in another order, changed in another order.
        0 => (object(0..n, |_| 1), object(k..n, |_| 1)),
        1 => (object(0..n, |_| 1), object((k..n).chain(0..k), |i| i / (n - 1).max(1))),
        2 => (object(0..n, |_| 1), object((0..n).rev(), |i| i % 50)),
        3 => (object(0..n, |_| 1), object((0..n).rev(), |_| 1)),
        // Lists that lost their head, that were turned, and that have nothing in common.
        4 => (array(0..n), array(k..n)),
        5 => (array(0..n), array((k..n).step_by(2).chain(0..k))),
        6 => (array(0..n), array(n..2 * n)),
        // Long lists of long lists, each moved by one.
        7 => {
            let rows = |from: usize| Node::Array((0..k).map(|row| array(row + from..row + from + n / k)).collect());
            (rows(0), rows(1))
        }
        // Something large far down, with a change beside it on each level.
        8 => (nest(k, 0, object(0..n, |_| 1)), nest(k, 1, object(1..n, |_| 1))),
        9 => (nest(k, 0, array(0..n)), nest(k, 0, array((1..n).chain([0])))),
        // Many small changes below a long name.
        _ => {
            let below = |value: usize| Node::Object(vec![("k".repeat(10 * n).into(), object(0..n, |_| value))]);
            (below(1), below(2))
        }
    }
}

/// A document, and operations on it that each look for another place.
fn hostile((shape, n): (usize, usize)) -> (Node, String) {
    let ops = |op: &dyn Fn(usize) -> String| format!("[{}]", (0..n).map(op).collect::<Vec<_>>().join(","));
    let remove = |path: &str| format!(r#"{{"op":"remove","path":"{path}"}}"#);
    let add = |path: &str| format!(r#"{{"op":"add","path":"{path}","value":1}}"#);
    match shape {
        0 => (object(0..n, |_| 1), ops(&|i| add(&format!("/{}", key(n - 1 - i))))),
        1 => (object(0..n, |_| 1), ops(&|i| remove(&format!("/{}", key(i))))),
        2 => (array(0..n), ops(&|_| remove("/0"))),
        3 => (array(0..n), ops(&|_| add("/0"))),
        4 => (array(0..n), ops(&|i| add(if i % 2 == 0 { "/0" } else { "/-" }))),
        _ => (nest(90, 0, object(0..n, |_| 1)), {
            let way: String = (0..90).rev().map(|level| if level % 2 == 0 { "/x" } else { "/1" }).collect();
            ops(&|i| add(&format!("{way}/{}", key(n - 1 - i))))
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_difference_takes_steps_by_the_documents_size(made in (0..11_usize, 1..9_000_usize, 1..90_usize)) {
        let (before, after) = pair(made);
        let bytes = before.printed_len() + after.printed_len();
        let (patch, steps) = steps::of(|| Patch::between(&before, &after));
        prop_assert!(steps <= most(bytes), "{} steps for {} bytes", steps, bytes);
        let text = patch.to_string();
        let (read, steps) = steps::of(|| Patch::parse(&text).unwrap().apply(&Json::trusted(before.print())));
        prop_assert!(steps <= most(bytes + text.len()), "{} steps to apply what was found", steps);
        prop_assert_eq!(read.unwrap().node().unwrap(), after);
    }

    #[test]
    fn a_patch_is_applied_in_steps_by_its_size_or_refused(made in (0..6_usize, 1..9_000_usize)) {
        let (before, patch) = hostile(made);
        let before = Json::trusted(before.print());
        let bytes = before.as_str().len() + patch.len();
        let (applied, steps) = steps::of(|| Patch::parse(&patch).and_then(|patch| patch.apply(&before)));
        prop_assert!(steps <= most(bytes), "{} steps for {} bytes", steps, bytes);
        if let Err(error) = applied {
            prop_assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        }
    }

    #[test]
    fn values_are_compared_in_steps_by_their_size(made in (0..11_usize, 1..9_000_usize, 1..90_usize)) {
        let (a, b) = pair(made);
        let bytes = a.printed_len() + b.printed_len();
        let (_, steps) = steps::of(|| a == b);
        prop_assert!(steps <= most(bytes), "{} steps for {} bytes", steps, bytes);
    }
}
