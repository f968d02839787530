//! Writing a typed value over JSON that may hold more than the type knows.

use crate::Result;
use crate::json::{Json, Lookup, Node};

/// The JSON that results when a typed value changed: what the type does not know stays.
///
/// `was` is the typed value as it was read, `is` as it is now, both as JSON; `stored` is what was there.
pub(super) fn overlay(stored: Option<&Json>, was: &Json, is: &Json) -> Result<Json> {
    let Some(stored) = stored else { return Ok(is.clone()) };
    let merged = over(Some(stored.node()?), &was.node()?, is.node()?);
    Ok(Json::trusted(merged.print()))
}

/// What is an object or a list before and after is gone through, not compared first: it would be compared again on each level.
fn over(stored: Option<Node>, was: &Node, is: Node) -> Node {
    match (stored, was, is) {
        (Some(Node::Object(stored)), Node::Object(was), Node::Object(is)) => Node::Object(members(stored, was, is)),
        (Some(Node::Array(stored)), Node::Array(was), Node::Array(is)) if stored.len() == was.len() => {
            Node::Array(items(stored, was, is))
        }
        (Some(stored), was, is) if *was == is => stored,
        (_, _, is) => is,
    }
}

type Members = Vec<(Box<str>, Node)>;

fn members(stored: Members, was: &[(Box<str>, Node)], is: Members) -> Members {
    let mut in_was = Lookup::new(was);
    // Members the type had and has no more are gone; those it never knew stay.
    let mut merged: Members = {
        let mut in_is = Lookup::new(&is);
        let stays = |(at, (key, _)): &(usize, (Box<str>, Node))| {
            in_was.near(*at, key).is_none() || in_is.near(*at, key).is_some()
        };
        stored.into_iter().enumerate().filter(stays).map(|(_, member)| member).collect()
    };
    let places: Vec<_> = {
        let mut in_merged = Lookup::new(&merged);
        is.iter().enumerate().map(|(at, (key, _))| (in_merged.near(at, key), in_was.near(at, key))).collect()
    };
    for ((key, value), (at, before)) in is.into_iter().zip(places) {
        match (at, before.map(|before| &was[before].1)) {
            (Some(at), Some(before)) => {
                let stored = std::mem::replace(&mut merged[at].1, Node::Null);
                merged[at].1 = over(Some(stored), before, value);
            }
            (Some(at), None) => merged[at].1 = value,
            // A default that was never stored and did not change is not stored now either.
            (None, Some(before)) if *before == value => {}
            (None, _) => merged.push((key, value)),
        }
    }
    merged
}

/// Items the two versions share at both ends keep what is stored; those between are taken pair by pair if as many.
fn items(stored: Vec<Node>, was: &[Node], is: Vec<Node>) -> Vec<Node> {
    if was.len() == is.len() {
        let pairs = stored.into_iter().zip(was).zip(is);
        return pairs.map(|((stored, was), is)| over(Some(stored), was, is)).collect();
    }
    let shorter = was.len().min(is.len());
    let head = was.iter().zip(&is).take_while(|(a, b)| a == b).count();
    let tail = was.iter().rev().zip(is.iter().rev()).take(shorter - head).take_while(|(a, b)| a == b).count();
    let (old, new) = (was.len(), is.len());
    let mut stored: Vec<Option<Node>> = stored.into_iter().map(Some).collect();
    let pick = |(index, item): (usize, Node)| {
        let from = match index {
            _ if index < head => Some(index),
            _ if index >= new - tail => Some(index + old - new),
            _ => None,
        };
        from.and_then(|from| stored[from].take()).unwrap_or(item)
    };
    is.into_iter().enumerate().map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stored: &str, was: &str, is: &str, want: &str) {
        let json = |text: &str| Json::parse(text).unwrap();
        assert_eq!(overlay(Some(&json(stored)), &json(was), &json(is)).unwrap(), json(want), "{stored} {was} {is}");
    }

    #[test]
    fn what_the_type_does_not_know_survives() {
        check(r#"{"n":1,"x":7}"#, r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":2,"x":7}"#);
        check(r#"{"a":{"n":1,"x":7}}"#, r#"{"a":{"n":1}}"#, r#"{"a":{"n":2}}"#, r#"{"a":{"n":2,"x":7}}"#);
        check(r#"{"l":[{"n":1,"x":7}]}"#, r#"{"l":[{"n":1}]}"#, r#"{"l":[{"n":2}]}"#, r#"{"l":[{"n":2,"x":7}]}"#);
    }

    #[test]
    fn numbers_that_did_not_change_keep_their_spelling() {
        check(r#"{"n":1.10,"m":1}"#, r#"{"n":1.1,"m":1}"#, r#"{"n":1.1,"m":2}"#, r#"{"n":1.10,"m":2}"#);
    }

    #[test]
    fn members_the_type_dropped_are_gone_and_unchanged_defaults_stay_unwritten() {
        check(r#"{"n":1,"o":2}"#, r#"{"n":1,"o":2}"#, r#"{"n":1}"#, r#"{"n":1}"#);
        check(r#"{"n":1}"#, r#"{"n":1,"d":0}"#, r#"{"n":2,"d":0}"#, r#"{"n":2}"#);
        check(r#"{"n":1}"#, r#"{"n":1,"d":0}"#, r#"{"n":1,"d":5}"#, r#"{"n":1,"d":5}"#);
    }

    #[test]
    fn lists_that_grow_or_shrink_keep_what_their_ends_hold() {
        let (a, b, c) = (r#"{"n":1,"x":1}"#, r#"{"n":2,"x":2}"#, r#"{"n":3}"#);
        check(&format!("[{a},{b}]"), r#"[{"n":1},{"n":2}]"#, r#"[{"n":2}]"#, &format!("[{b}]"));
        check(&format!("[{a},{b}]"), r#"[{"n":1},{"n":2}]"#, r#"[{"n":1},{"n":3},{"n":2}]"#, &format!("[{a},{c},{b}]"));
        check(&format!("[{a}]"), r#"[{"n":1}]"#, r#"[{"n":1},{"n":3}]"#, &format!("[{a},{c}]"));
    }

    #[test]
    fn another_kind_of_value_replaces() {
        check(r#"{"n":1}"#, r#"{"n":1}"#, "[1]", "[1]");
        check("1", "1", "null", "null");
    }
}
