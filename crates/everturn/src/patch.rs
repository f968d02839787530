//! Differences between JSON documents, as RFC 6902 patches.
//!
//! ```
//! use everturn::{Json, Patch};
//!
//! let before = Json::parse(r#"{"todo": ["tea", "milk", "bread"]}"#)?;
//! let after = Json::parse(r#"{"todo": ["milk", "bread"]}"#)?;
//! let patch = Patch::diff(&before, &after)?;
//! assert_eq!(patch.to_string(), r#"[{"op":"remove","path":"/todo/0"}]"#);
//! assert_eq!(patch.apply(&before)?, after);
//! # Ok::<(), everturn::Error>(())
//! ```

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{Json, Node, member_near, quote};
use crate::{Error, Result};

/// Above this many comparisons a changed stretch of an array is replaced instead of aligned.
const MAX_ALIGN_CELLS: usize = 1 << 18;

/// A list of RFC 6902 operations.
///
/// [`Patch::diff`] aligns arrays, so that dropping the head of a list is one operation, and is never longer than
/// replacing the whole document.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Patch(Vec<Op>);

#[derive(Clone, Debug, PartialEq)]
enum Op {
    Add(String, Node),
    Replace(String, Node),
    Remove(String),
    Move {
        from: String,
        path: String,
    },
    Copy {
        from: String,
        path: String,
    },
    Test(String, Node),
    /// The whole document goes away: absent is not `null`. Written as a replacement without a value, as Genkit does.
    Clear,
}

impl Patch {
    /// The operations that turn one document into another.
    pub fn diff(before: &Json, after: &Json) -> Result<Self> {
        Ok(Self::between(&before.node()?, &after.node()?))
    }

    /// One operation that replaces the whole document.
    pub fn replace_all(with: &Json) -> Result<Self> {
        Ok(Self(vec![Op::Replace(String::new(), with.node()?)]))
    }

    /// One operation that takes the whole document away.
    #[must_use]
    pub fn clear() -> Self {
        Self(vec![Op::Clear])
    }

    /// What turns one optional document into another: the [difference](Patch::diff) when both are there.
    pub fn diff_optional(before: Option<&Json>, after: Option<&Json>) -> Result<Self> {
        match (before, after) {
            (Some(before), Some(after)) => Self::diff(before, after),
            (None, Some(after)) => Self::replace_all(after),
            (Some(_), None) => Ok(Self::clear()),
            (None, None) => Ok(Self::default()),
        }
    }

    /// The same for a client that follows along: a few small changes are told one by one even where replacing the whole
    /// document would save some bytes, because what changed is what a page wants to know.
    pub(crate) fn diff_followed(before: Option<&Json>, after: Option<&Json>) -> Result<Self> {
        const FEW_BYTES: usize = 256;
        if let (Some(before), Some(after)) = (before, after)
            && let (Node::Object(a), Node::Object(b)) = (&before.node()?, &after.node()?)
        {
            let mut ops = Vec::new();
            diff_objects(&mut String::new(), a, b, &mut ops);
            if ops.iter().map(Op::printed_len).sum::<usize>() <= FEW_BYTES {
                return Ok(Self(ops));
            }
        }
        Self::diff_optional(before, after)
    }

    /// Reads a patch from its JSON form. All six operations of RFC 6902 are understood.
    pub fn parse(text: &str) -> Result<Self> {
        let Node::Array(items) = Node::parse(text)? else {
            return Err(Error::invalid("a JSON Patch is an array of operations"));
        };
        items.into_iter().map(Op::read).collect::<Result<_>>().map(Self)
    }

    /// Applies it, or refuses with nothing applied.
    pub fn apply(&self, to: &Json) -> Result<Json> {
        let mut node = to.node()?;
        self.apply_node(&mut node)?;
        Ok(Json::trusted(node.print()))
    }

    /// Applies it to a document that may be absent, as a client does that follows custom state.
    ///
    /// ```
    /// use everturn::{Json, Patch};
    ///
    /// let custom = Patch::parse(r#"[{"op":"replace","path":"","value":{"n":1}}]"#)?.apply_optional(None)?;
    /// assert_eq!(custom, Some(Json::parse(r#"{"n":1}"#)?));
    /// assert_eq!(Patch::clear().apply_optional(custom.as_ref())?, None);
    /// # Ok::<(), everturn::Error>(())
    /// ```
    pub fn apply_optional(&self, to: Option<&Json>) -> Result<Option<Json>> {
        let mut node = to.map(Json::node).transpose()?;
        for op in &self.0 {
            match (op, &mut node) {
                (Op::Clear, _) => node = None,
                (Op::Replace(path, value) | Op::Add(path, value), _) if path.is_empty() => node = Some(value.clone()),
                (op, Some(node)) => op.apply(node)?,
                (_, None) => return Err(Error::invalid("the patch changes a document that is not there")),
            }
        }
        Ok(node.map(|node| Json::trusted(node.print())))
    }

    /// Roughly the bytes it is written in.
    pub(crate) fn weight(&self) -> usize {
        self.0.iter().map(Op::printed_len).sum()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many operations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn between(before: &Node, after: &Node) -> Self {
        let mut ops = Vec::new();
        diff_at(&mut String::new(), before, after, &mut ops);
        Self(ops)
    }

    pub(crate) fn apply_node(&self, root: &mut Node) -> Result<()> {
        for op in &self.0 {
            op.apply(root)?;
        }
        Ok(())
    }
}

impl fmt::Display for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::from("[");
        for (i, op) in self.0.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            op.print_to(&mut out);
        }
        out.push(']');
        f.write_str(&out)
    }
}

impl Serialize for Patch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Json::trusted(self.to_string()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Patch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        Self::parse(json.as_str()).map_err(serde::de::Error::custom)
    }
}

impl Op {
    fn read(node: Node) -> Result<Self> {
        let text = |name: &str| {
            node.get(name)
                .and_then(Node::as_str)
                .map(str::to_owned)
                .ok_or_else(|| Error::invalid(format!("a patch operation needs the text member {name:?}")))
        };
        let value =
            || node.get("value").cloned().ok_or_else(|| Error::invalid("this patch operation needs a \"value\""));
        Ok(match text("op")?.as_str() {
            "add" => Self::Add(text("path")?, value()?),
            "replace" if text("path")?.is_empty() && node.get("value").is_none() => Self::Clear,
            "replace" => Self::Replace(text("path")?, value()?),
            "remove" => Self::Remove(text("path")?),
            "move" => Self::Move { from: text("from")?, path: text("path")? },
            "copy" => Self::Copy { from: text("from")?, path: text("path")? },
            "test" => Self::Test(text("path")?, value()?),
            other => return Err(Error::invalid(format!("unknown patch operation {other:?}"))),
        })
    }

    fn print_to(&self, out: &mut String) {
        let (op, from, path, value) = match self {
            Self::Add(path, value) => ("add", None, path, Some(value)),
            Self::Replace(path, value) => ("replace", None, path, Some(value)),
            Self::Remove(path) => ("remove", None, path, None),
            Self::Move { from, path } => ("move", Some(from), path, None),
            Self::Copy { from, path } => ("copy", Some(from), path, None),
            Self::Test(path, value) => ("test", None, path, Some(value)),
            Self::Clear => return out.push_str(r#"{"op":"replace","path":""}"#),
        };
        out.push_str("{\"op\":\"");
        out.push_str(op);
        out.push('"');
        if let Some(from) = from {
            out.push_str(",\"from\":");
            quote(from, out);
        }
        out.push_str(",\"path\":");
        quote(path, out);
        if let Some(value) = value {
            out.push_str(",\"value\":");
            value.print_to(out);
        }
        out.push('}');
    }

    fn printed_len(&self) -> usize {
        let mut out = String::new();
        match self {
            Self::Add(path, value) | Self::Replace(path, value) | Self::Test(path, value) => {
                quote(path, &mut out);
                out.len() + value.printed_len() + r#"{"op":"replace","path":,"value":}"#.len()
            }
            _ => {
                self.print_to(&mut out);
                out.len()
            }
        }
    }

    fn apply(&self, root: &mut Node) -> Result<()> {
        match self {
            Self::Add(path, value) => add(root, path, value.clone()),
            Self::Replace(path, value) => {
                *find(root, path)? = value.clone();
                Ok(())
            }
            Self::Remove(path) => remove(root, path).map(drop),
            Self::Move { from, path } => {
                if path.strip_prefix(from.as_str()).is_some_and(|rest| rest.starts_with('/')) {
                    return Err(Error::invalid("a patch cannot move a value into itself"));
                }
                let value = remove(root, from)?;
                add(root, path, value)
            }
            Self::Copy { from, path } => {
                let value = find(root, from)?.clone();
                add(root, path, value)
            }
            Self::Clear => Err(Error::invalid("the patch takes the whole document away: apply it to an optional one")),
            Self::Test(path, value) => {
                if find(root, path)? == value {
                    Ok(())
                } else {
                    Err(Error::conflict(format!("the patch expected another value at {path:?}")))
                }
            }
        }
    }
}

fn nowhere(path: &str) -> Error {
    Error::invalid(format!("the patch does not apply: there is nothing at {path:?}"))
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

fn array_index(token: &str, len: usize) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    let index = plain.then(|| token.parse::<usize>().ok()).flatten()?;
    (index < len).then_some(index)
}

fn find<'a>(root: &'a mut Node, path: &str) -> Result<&'a mut Node> {
    let mut at = root;
    if path.is_empty() {
        return Ok(at);
    }
    for token in path.strip_prefix('/').ok_or_else(|| nowhere(path))?.split('/') {
        at = match at {
            Node::Object(members) => {
                let key = unescape(token);
                members.iter_mut().find(|(k, _)| **k == *key).map(|(_, value)| value)
            }
            Node::Array(items) => array_index(token, items.len()).map(|i| &mut items[i]),
            _ => None,
        }
        .ok_or_else(|| nowhere(path))?;
    }
    Ok(at)
}

fn parent<'a, 'p>(root: &'a mut Node, path: &'p str) -> Result<(&'a mut Node, &'p str)> {
    let (parent, token) = path.rsplit_once('/').ok_or_else(|| nowhere(path))?;
    Ok((find(root, parent)?, token))
}

fn add(root: &mut Node, path: &str, value: Node) -> Result<()> {
    if path.is_empty() {
        *root = value;
        return Ok(());
    }
    match parent(root, path)? {
        (Node::Object(members), token) => {
            let key = unescape(token);
            match members.iter_mut().find(|(k, _)| **k == *key) {
                Some((_, slot)) => *slot = value,
                None => members.push((key.into(), value)),
            }
            Ok(())
        }
        (Node::Array(items), "-") => {
            items.push(value);
            Ok(())
        }
        (Node::Array(items), token) => {
            let index = array_index(token, items.len() + 1).ok_or_else(|| nowhere(path))?;
            items.insert(index, value);
            Ok(())
        }
        _ => Err(nowhere(path)),
    }
}

fn remove(root: &mut Node, path: &str) -> Result<Node> {
    match parent(root, path)? {
        (Node::Object(members), token) => {
            let key = unescape(token);
            let index = members.iter().position(|(k, _)| **k == *key).ok_or_else(|| nowhere(path))?;
            Ok(members.remove(index).1)
        }
        (Node::Array(items), token) => {
            let index = array_index(token, items.len()).ok_or_else(|| nowhere(path))?;
            Ok(items.remove(index))
        }
        _ => Err(nowhere(path)),
    }
}

/// Adds the operations for one place, unless replacing it is shorter.
fn diff_at(path: &mut String, before: &Node, after: &Node, ops: &mut Vec<Op>) {
    if before == after {
        return;
    }
    let start = ops.len();
    match (before, after) {
        (Node::Object(a), Node::Object(b)) => diff_objects(path, a, b, ops),
        (Node::Array(a), Node::Array(b)) => diff_arrays(path, a, b, ops),
        _ => return ops.push(Op::Replace(path.clone(), after.clone())),
    }
    let whole = Op::Replace(path.clone(), after.clone());
    let edits: usize = ops[start..].iter().map(|op| op.printed_len() + 1).sum();
    if edits > whole.printed_len() + 1 {
        ops.truncate(start);
        ops.push(whole);
    }
}

fn within<T>(path: &mut String, token: &str, then: impl FnOnce(&mut String) -> T) -> T {
    let len = path.len();
    path.push('/');
    if token.contains(['~', '/']) {
        path.push_str(&token.replace('~', "~0").replace('/', "~1"));
    } else {
        path.push_str(token);
    }
    let result = then(path);
    path.truncate(len);
    result
}

type Members = [(Box<str>, Node)];

fn diff_objects(path: &mut String, a: &Members, b: &Members, ops: &mut Vec<Op>) {
    for (i, (key, _)) in a.iter().enumerate() {
        if member_near(b, i, key).is_none() {
            within(path, key, |path| ops.push(Op::Remove(path.clone())));
        }
    }
    for (i, (key, value)) in b.iter().enumerate() {
        within(path, key, |path| match member_near(a, i, key) {
            Some(old) => diff_at(path, old, value, ops),
            None => ops.push(Op::Add(path.clone(), value.clone())),
        });
    }
}

fn diff_arrays(path: &mut String, a: &[Node], b: &[Node], ops: &mut Vec<Op>) {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[head..], &b[head..]);
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
    let kept = if a.len() * b.len() <= MAX_ALIGN_CELLS { common(a, b) } else { Vec::new() };

    // `at` is the index in the array as edited so far.
    let (mut i, mut j, mut at) = (0, 0, head);
    for (ki, kj) in kept.into_iter().chain([(a.len(), b.len())]) {
        while i < ki && j < kj {
            within(path, &at.to_string(), |path| diff_at(path, &a[i], &b[j], ops));
            (i, j, at) = (i + 1, j + 1, at + 1);
        }
        while i < ki {
            within(path, &at.to_string(), |path| ops.push(Op::Remove(path.clone())));
            i += 1;
        }
        while j < kj {
            within(path, &at.to_string(), |path| ops.push(Op::Add(path.clone(), b[j].clone())));
            (j, at) = (j + 1, at + 1);
        }
        (i, j, at) = (i + 1, j + 1, at + 1);
    }
}

/// The index pairs of a longest common subsequence.
fn common(a: &[Node], b: &[Node]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            lengths[i * width + j] = if a[i] == b[j] {
                lengths[(i + 1) * width + j + 1] + 1
            } else {
                lengths[(i + 1) * width + j].max(lengths[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if lengths[(i + 1) * width + j] >= lengths[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn list_edits_stay_small() {
        let list = |range: std::ops::Range<u32>| {
            json(&format!(
                "[{}]",
                range.map(|i| format!("{{\"id\":{i},\"text\":\"item number {i}\"}}")).collect::<Vec<_>>().join(",")
            ))
        };
        let patch = Patch::diff(&list(0..200), &list(1..200)).unwrap();
        assert_eq!(patch.to_string(), r#"[{"op":"remove","path":"/0"}]"#);
        let patch = Patch::diff(&list(0..200), &list(0..201)).unwrap();
        assert_eq!(patch.len(), 1);
    }

    #[test]
    fn names_with_slashes_and_tildes_are_escaped() {
        let (a, b) = (
            json(r#"{"a/b":{"~":1},"keep":"keep keep keep keep keep keep"}"#),
            json(r#"{"a/b":{"~":2},"keep":"keep keep keep keep keep keep"}"#),
        );
        let patch = Patch::diff(&a, &b).unwrap();
        assert_eq!(patch.to_string(), r#"[{"op":"replace","path":"/a~1b/~0","value":2}]"#);
        assert_eq!(patch.apply(&a).unwrap(), b);
    }

    #[test]
    fn the_rfc_operations_apply() {
        let patch = Patch::parse(
            r#"[{"op":"test","path":"/a","value":[1]},{"op":"move","from":"/a","path":"/b"},{"op":"copy","from":"/b/0","path":"/b/-"},
                {"op":"add","path":"/b/1","value":9},{"op":"remove","path":"/b/0"}]"#,
        )
        .unwrap();
        assert_eq!(patch.apply(&json(r#"{"a":[1]}"#)).unwrap(), json(r#"{"b":[9,1]}"#));
    }

    #[test]
    fn patches_that_cannot_apply_are_refused() {
        for patch in [
            r#"[{"op":"remove","path":"/x"}]"#,
            r#"[{"op":"replace","path":"/a/1","value":1}]"#,
            r#"[{"op":"add","path":"/a/2","value":1}]"#,
            r#"[{"op":"add","path":"/a/01","value":1}]"#,
            r#"[{"op":"move","from":"/a","path":"/a/0"}]"#,
            r#"[{"op":"add","path":"a","value":1}]"#,
        ] {
            assert!(Patch::parse(patch).unwrap().apply(&json(r#"{"a":[1]}"#)).is_err(), "{patch}");
        }
        for patch in ["{}", r#"[{"op":"add","path":"/a"}]"#, r#"[{"op":"frob","path":"/a"}]"#] {
            assert!(Patch::parse(patch).is_err(), "{patch}");
        }
    }

    fn any_json() -> impl Strategy<Value = Node> {
        let leaf = prop_oneof![
            Just(Node::Null),
            any::<bool>().prop_map(Node::Bool),
            (0u32..20).prop_map(|n| Node::Number(n.to_string().into())),
            "[a-c/~\"é]{0,3}".prop_map(|s| Node::String(s.into())),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Node::Array),
                prop::collection::btree_map("[a-d/~]{0,2}", inner, 0..6)
                    .prop_map(|map| Node::Object(map.into_iter().map(|(k, v)| (k.into(), v)).collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_diff_applied_gives_the_target_and_is_never_longer_than_replacing(a in any_json(), b in any_json()) {
            let patch = Patch::between(&a, &b);
            let mut edited = a.clone();
            patch.apply_node(&mut edited).unwrap();
            prop_assert_eq!(&edited, &b);
            let whole = Patch(vec![Op::Replace(String::new(), b.clone())]);
            prop_assert!(patch.to_string().len() <= whole.to_string().len() || patch.is_empty());
            prop_assert_eq!(Patch::parse(&patch.to_string()).unwrap(), patch);
        }
    }
}
