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

mod apply;
mod diff;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use apply::Document;

use crate::json::{Json, Node, quote, quoted_len, shown};
use crate::{Error, Result};

/// A list of operations that add, replace and remove.
///
/// [`Patch::diff`] aligns arrays, so that dropping the head of a list is one operation, and is never longer than
/// replacing the whole document. It takes time by the size of the two documents: where more would be needed to find a
/// short patch, it replaces the whole document.
///
/// RFC 6902's `copy`, `move` and `test` are refused: Everturn never writes them, and a few copies make a document of any
/// size. So what a patch makes is no larger than the document and the patch together. Nor is it nested deeper than 128
/// levels: that is refused as well, and so is a patch that goes back and forth in a long list.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Patch(Vec<Op>);

#[derive(Clone, Debug, PartialEq)]
enum Op {
    Add(String, Node),
    Replace(String, Node),
    Remove(String),
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
        let (Some(was), Some(is)) = (before, after) else { return Self::diff_optional(before, after) };
        let (was, is) = (was.node()?, is.node()?);
        Ok(diff::members(&was, &is, FEW_BYTES).map_or_else(|| Self::between(&was, &is), Self))
    }

    /// Reads a patch from its JSON form.
    pub fn parse(text: &str) -> Result<Self> {
        let Node::Array(items) = Node::parse(text)? else {
            return Err(Error::invalid("a JSON Patch is an array of operations"));
        };
        items.into_iter().map(Op::read).collect::<Result<_>>().map(Self)
    }

    /// Applies it, or refuses with nothing applied.
    pub fn apply(&self, to: &Json) -> Result<Json> {
        self.apply_optional(Some(to))?
            .ok_or_else(|| Error::invalid("the patch takes the whole document away: apply it to an optional one"))
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
        let mut document = Document::new(to)?;
        document.apply(self)?;
        Ok(document.into_json())
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
        Self(diff::between(before, after))
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
            other => {
                let other = shown(other);
                return Err(Error::invalid(format!(
                    "the patch operation {other:?} is none of add, replace and remove"
                )));
            }
        })
    }

    fn print_to(&self, out: &mut String) {
        let (op, path, value) = match self {
            Self::Add(path, value) => ("add", path, Some(value)),
            Self::Replace(path, value) => ("replace", path, Some(value)),
            Self::Remove(path) => ("remove", path, None),
            Self::Clear => return out.push_str(r#"{"op":"replace","path":""}"#),
        };
        out.push_str("{\"op\":\"");
        out.push_str(op);
        out.push_str("\",\"path\":");
        quote(path, out);
        if let Some(value) = value {
            out.push_str(",\"value\":");
            value.print_to(out);
        }
        out.push('}');
    }

    /// How many bytes it is written in, or a few more than that.
    fn printed_len(&self) -> usize {
        match self {
            Self::Add(path, value) | Self::Replace(path, value) => {
                quoted_len(path) + value.printed_len() + r#"{"op":"replace","path":,"value":}"#.len()
            }
            Self::Remove(path) => quoted_len(path) + r#"{"op":"remove","path":}"#.len(),
            Self::Clear => r#"{"op":"replace","path":""}"#.len(),
        }
    }
}

#[cfg(test)]
mod bounds;

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
    fn operations_apply_in_their_order() {
        let patch = Patch::parse(
            r#"[{"op":"add","path":"/b","value":[1]},{"op":"add","path":"/b/-","value":{"c":2}},{"op":"remove","path":"/a"},
                {"op":"add","path":"/b/0","value":9},{"op":"replace","path":"/b/2/c","value":3},{"op":"remove","path":"/b/1"}]"#,
        )
        .unwrap();
        let after = patch.apply(&json(r#"{"a":[1],"z":0}"#)).unwrap();
        assert_eq!(after.as_str(), r#"{"z":0,"b":[9,{"c":3}]}"#);
    }

    #[test]
    fn what_can_make_more_than_it_holds_is_refused() {
        for op in [
            r#"{"op":"copy","from":"","path":"/a"}"#,
            r#"{"op":"move","from":"/a","path":"/b"}"#,
            r#"{"op":"test","path":"/a","value":1}"#,
        ] {
            let error = Patch::parse(&format!("[{op}]")).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{op}");
        }
    }

    /// Values that are legal each by itself would go deeper each time, until whoever walks the document has no stack left.
    #[test]
    fn a_patch_makes_nothing_that_is_nested_too_deep() {
        let deep = "{\"x\":".repeat(60) + "1" + &"}".repeat(60);
        let add = |times: usize| {
            let path = "/x".repeat(60 * times);
            format!(r#"{{"op":"add","path":"{path}","value":{deep}}}"#)
        };
        let patch = |times| (0..times).map(add).collect::<Vec<_>>().join(",");
        let apply = |times| Patch::parse(&format!("[{}]", patch(times))).unwrap().apply(&json("{}"));
        let deepest = apply(2).unwrap();
        assert!(deepest.node().is_ok());
        let error = apply(3).unwrap_err().to_string();
        assert!(error.contains("128 levels"), "{error}");
    }

    #[test]
    fn patches_that_cannot_apply_are_refused() {
        for patch in [
            r#"[{"op":"remove","path":"/x"}]"#,
            r#"[{"op":"replace","path":"/a/1","value":1}]"#,
            r#"[{"op":"add","path":"/a/2","value":1}]"#,
            r#"[{"op":"add","path":"/a/01","value":1}]"#,
            r#"[{"op":"remove","path":""}]"#,
            r#"[{"op":"add","path":"/a/0/b","value":1}]"#,
            r#"[{"op":"replace","path":"/b","value":1}]"#,
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
            let edited = patch.apply(&Json::trusted(a.print())).unwrap();
            prop_assert_eq!(&edited.node().unwrap(), &b);
            let whole = Patch(vec![Op::Replace(String::new(), b.clone())]);
            prop_assert!(patch.to_string().len() <= whole.to_string().len() || patch.is_empty());
            prop_assert_eq!(Patch::parse(&patch.to_string()).unwrap(), patch);
        }
    }
}
