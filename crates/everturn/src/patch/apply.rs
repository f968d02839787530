//! Applying patches.
//!
//! Members are found by name and items by number without going through the others, so that many operations on a large
//! document cost about as much as reading both. A patch that would cost more is refused; none that was made here does.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Op, Patch};
use crate::json::{Json, MAX_DEPTH, Node, quote, shown, steps};
use crate::{Error, Result};

/// Items that a patch may have moved aside: so many, and so many for each byte of the document and of the patch. A patch
/// that goes through each list from its beginning moves each item twice.
const MOVES: usize = 1 << 16;
const MOVES_PER_BYTE: usize = 4;

/// A document that patches are applied to. It grows by no more than the values in them, and stays as shallow as JSON must be.
pub(crate) struct Document {
    root: Option<Tree>,
    /// Of the document as it was, and of all patches.
    bytes: usize,
    moves: usize,
}

/// A value, taken apart where something in it changes.
enum Tree {
    Whole(Node),
    Object(Members),
    Array(Items),
}

/// An object's members. One that goes away leaves its place empty.
struct Members {
    names: HashMap<Box<str>, usize>,
    values: Vec<Option<Tree>>,
}

/// An array's items, with a gap where something was changed last: most changes come in order.
struct Items {
    before: Vec<Tree>,
    /// From the last item back to the gap.
    behind: Vec<Tree>,
}

impl Document {
    pub(crate) fn new(json: Option<&Json>) -> Result<Self> {
        let bytes = json.map_or(0, |json| json.as_str().len());
        Ok(Self { root: json.map(Json::node).transpose()?.map(Tree::Whole), bytes, moves: 0 })
    }

    /// Applies a patch. After an error the document is of no use.
    pub(crate) fn apply(&mut self, patch: &Patch) -> Result<()> {
        self.bytes += patch.weight();
        self.moves = MOVES + MOVES_PER_BYTE * self.bytes;
        patch.0.iter().try_for_each(|op| self.change(op))
    }

    pub(crate) fn into_json(self) -> Option<Json> {
        let mut out = String::with_capacity(self.bytes);
        self.root?.print_to(&mut out);
        Some(Json::trusted(out))
    }

    fn change(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Clear => {
                self.root = None;
                Ok(())
            }
            Op::Add(path, value) | Op::Replace(path, value) if path.is_empty() => {
                self.root = Some(Tree::Whole(value.clone()));
                Ok(())
            }
            Op::Add(path, value) => {
                refuse_too_deep(path, value)?;
                let value = Tree::Whole(value.clone());
                self.edit(path, |parent, token, moves| parent.add(token, value, moves))
            }
            Op::Replace(path, value) => {
                refuse_too_deep(path, value)?;
                let place = self.root()?.find(path).ok_or_else(|| nowhere(path))?;
                *place = Tree::Whole(value.clone());
                Ok(())
            }
            Op::Remove(path) => self.edit(path, Tree::remove),
        }
    }

    fn root(&mut self) -> Result<&mut Tree> {
        self.root.as_mut().ok_or_else(|| Error::invalid("the patch changes a document that is not there"))
    }

    /// Changes something in the object or array that holds what a path leads to.
    fn edit(&mut self, path: &str, change: impl FnOnce(&mut Tree, &str, &mut usize) -> Option<()>) -> Result<()> {
        let mut moves = self.moves;
        let (parent, token) = path.rsplit_once('/').ok_or_else(|| nowhere(path))?;
        let parent = self.root()?.find(parent).ok_or_else(|| nowhere(path))?;
        let changed = change(parent, token, &mut moves);
        self.moves = moves;
        match changed {
            Some(()) => Ok(()),
            None if moves == 0 => Err(Error::invalid(
                "the patch goes back and forth in a long list: send the changes in their order, or replace the list",
            )),
            None => Err(nowhere(path)),
        }
    }
}

fn nowhere(path: &str) -> Error {
    Error::invalid(format!("the patch does not apply: there is nothing at {:?}", shown(path)))
}

fn refuse_too_deep(path: &str, value: &Node) -> Result<()> {
    let depth = path.bytes().filter(|byte| *byte == b'/').count() + value.levels();
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Error::invalid(format!("the patch makes a document that is nested deeper than {MAX_DEPTH} levels")))
}

fn unescape(token: &str) -> Cow<'_, str> {
    match token.contains('~') {
        true => token.replace("~1", "/").replace("~0", "~").into(),
        false => token.into(),
    }
}

fn array_index(token: &str, len: usize) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    let index = plain.then(|| token.parse::<usize>().ok()).flatten()?;
    (index < len).then_some(index)
}

impl Tree {
    /// What a path leads to.
    fn find(&mut self, path: &str) -> Option<&mut Self> {
        let mut at = self;
        if path.is_empty() {
            return Some(at);
        }
        for token in path.strip_prefix('/')?.split('/') {
            at = match at.open() {
                Self::Object(members) => members.get(&unescape(token))?,
                Self::Array(items) => {
                    let index = array_index(token, items.len())?;
                    items.get(index)?
                }
                Self::Whole(_) => return None,
            };
        }
        Some(at)
    }

    /// Takes an object or an array apart, for as long as the document is changed.
    fn open(&mut self) -> &mut Self {
        if let Self::Whole(node) = self {
            match std::mem::replace(node, Node::Null) {
                Node::Object(members) => *self = Self::Object(Members::new(members)),
                Node::Array(items) => *self = Self::Array(Items::new(items)),
                leaf => *node = leaf,
            }
        }
        self
    }

    fn add(&mut self, token: &str, value: Self, moves: &mut usize) -> Option<()> {
        match self.open() {
            Self::Object(members) => {
                members.set(&unescape(token), value);
                Some(())
            }
            Self::Array(items) => {
                let end = items.len();
                let index = if token == "-" { end } else { array_index(token, end + 1)? };
                items.move_gap(index, moves)?;
                items.before.push(value);
                Some(())
            }
            Self::Whole(_) => None,
        }
    }

    fn remove(&mut self, token: &str, moves: &mut usize) -> Option<()> {
        match self.open() {
            Self::Object(members) => members.remove(&unescape(token)),
            Self::Array(items) => {
                let index = array_index(token, items.len())?;
                items.move_gap(index, moves)?;
                items.behind.pop().map(drop)
            }
            Self::Whole(_) => None,
        }
    }

    fn print_to(&self, out: &mut String) {
        match self {
            Self::Whole(node) => node.print_to(out),
            Self::Object(members) => members.print_to(out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.before.iter().chain(items.behind.iter().rev()).enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.print_to(out);
                }
                out.push(']');
            }
        }
    }
}

impl Members {
    fn new(members: Vec<(Box<str>, Node)>) -> Self {
        steps::count(members.len());
        let mut names = HashMap::with_capacity(members.len());
        let mut values = Vec::with_capacity(members.len());
        for (at, (name, value)) in members.into_iter().enumerate() {
            names.insert(name, at);
            values.push(Some(Tree::Whole(value)));
        }
        Self { names, values }
    }

    fn get(&mut self, name: &str) -> Option<&mut Tree> {
        self.values.get_mut(*self.names.get(name)?)?.as_mut()
    }

    /// A new member comes last.
    fn set(&mut self, name: &str, value: Tree) {
        match self.get(name) {
            Some(place) => *place = value,
            None => {
                self.names.insert(name.into(), self.values.len());
                self.values.push(Some(value));
            }
        }
    }

    fn remove(&mut self, name: &str) -> Option<()> {
        self.values.get_mut(self.names.remove(name)?)?.take().map(drop)
    }

    fn print_to(&self, out: &mut String) {
        let mut names = vec![""; self.values.len()];
        self.names.iter().for_each(|(name, at)| names[*at] = name);
        out.push('{');
        let mut comma = "";
        for (name, value) in names.into_iter().zip(&self.values) {
            let Some(value) = value else { continue };
            out.push_str(comma);
            comma = ",";
            quote(name, out);
            out.push(':');
            value.print_to(out);
        }
        out.push('}');
    }
}

impl Items {
    fn new(items: Vec<Node>) -> Self {
        steps::count(items.len());
        Self { before: Vec::new(), behind: items.into_iter().rev().map(Tree::Whole).collect() }
    }

    fn len(&self) -> usize {
        self.before.len() + self.behind.len()
    }

    fn get(&mut self, index: usize) -> Option<&mut Tree> {
        match index.checked_sub(self.before.len()) {
            None => self.before.get_mut(index),
            Some(behind) => {
                let from_end = self.behind.len().checked_sub(behind + 1)?;
                self.behind.get_mut(from_end)
            }
        }
    }

    /// Moves the gap before an item, or behind the last one. Nothing when no more may be moved.
    fn move_gap(&mut self, index: usize, moves: &mut usize) -> Option<()> {
        let distance = self.before.len().abs_diff(index);
        steps::count(distance);
        let Some(left) = moves.checked_sub(distance).filter(|left| *left > 0) else {
            *moves = 0;
            return None;
        };
        *moves = left;
        if index < self.before.len() {
            self.behind.extend(self.before.drain(index..).rev());
        } else {
            let kept = self.behind.len() - distance;
            self.before.extend(self.behind.drain(kept..).rev());
        }
        Some(())
    }
}
