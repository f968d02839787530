//! Finding differences, in steps by the documents' size.
//!
//! Each value is weighed once: its length, and a hash that tells most values apart without going through them. What comes
//! out is no longer than the whole value, and what cannot be found in so many steps is the whole value.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};

use super::Op;
use crate::json::{Lookup, Node, quoted_len, steps};

/// Steps that may be taken: so many, and so many for each byte of both documents.
const STEPS: usize = 1 << 18;
const STEPS_PER_BYTE: usize = 4;
/// Above this many comparisons a changed stretch of an array is gone through item by item instead of aligned.
const MAX_ALIGN_CELLS: usize = 1 << 18;
/// Bytes of a path that are copied in a step.
const BYTES_PER_STEP: usize = 16;

/// The operations that turn one document into another.
pub(super) fn between(before: &Node, after: &Node) -> Vec<Op> {
    let hashes = RandomState::new();
    let (a, b) = (Weighed::new(before, &hashes), Weighed::new(after, &hashes));
    let mut diff = Diff::new(&a, &b);
    match diff.place(&a, &b) {
        Some(_) => diff.into_ops(),
        None => vec![Op::Replace(String::new(), after.clone())],
    }
}

/// The members in which two objects differ, told one by one, if that takes no more bytes.
pub(super) fn members(before: &Node, after: &Node, most: usize) -> Option<Vec<Op>> {
    let hashes = RandomState::new();
    let (a, b) = (Weighed::new(before, &hashes), Weighed::new(after, &hashes));
    let mut diff = Diff::new(&a, &b);
    diff.objects(&a, &b, most).map(|_| diff.into_ops())
}

/// A value with what is known of it.
struct Weighed<'a> {
    node: &'a Node,
    /// Of what it means: the order of members does not count.
    hash: u64,
    /// As it is printed.
    len: usize,
    /// The values of its members, or its items.
    parts: Vec<Weighed<'a>>,
}

impl<'a> Weighed<'a> {
    fn new(node: &'a Node, hashes: &RandomState) -> Self {
        steps::count(1);
        let of_parts = |parts: &[Self]| 1 + parts.iter().map(|part| part.len + 1).sum::<usize>().max(1);
        let mut hash = hashes.build_hasher();
        std::mem::discriminant(node).hash(&mut hash);
        let (len, parts) = match node {
            Node::Null => (4, Vec::new()),
            Node::Bool(value) => {
                value.hash(&mut hash);
                (node.printed_len(), Vec::new())
            }
            Node::Number(text) | Node::String(text) => {
                text.hash(&mut hash);
                (node.printed_len(), Vec::new())
            }
            Node::Array(items) => {
                let parts: Vec<_> = items.iter().map(|item| Self::new(item, hashes)).collect();
                parts.iter().for_each(|part| part.hash.hash(&mut hash));
                (of_parts(&parts), parts)
            }
            Node::Object(members) => {
                let parts: Vec<_> = members.iter().map(|(_, value)| Self::new(value, hashes)).collect();
                let each = members.iter().zip(&parts).map(|((name, _), part)| hashes.hash_one((name, part.hash)));
                each.fold(0_u64, u64::wrapping_add).hash(&mut hash);
                (of_parts(&parts) + members.iter().map(|(name, _)| quoted_len(name) + 1).sum::<usize>(), parts)
            }
        };
        Self { node, hash: hash.finish(), len, parts }
    }

    /// Whether they mean the same. Only values that most likely do are gone through.
    fn same(&self, other: &Self) -> bool {
        (self.hash, self.len) == (other.hash, other.len) && self.node == other.node
    }
}

/// An operation whose value is not copied yet: it may turn out that the whole is shorter.
struct Found<'a> {
    path: String,
    change: Change<'a>,
}

#[derive(Clone, Copy)]
enum Change<'a> {
    Add(&'a Node),
    Replace(&'a Node),
    Remove,
}

/// What finds nothing has run out of steps, or of the bytes that the whole takes.
struct Diff<'a> {
    found: Vec<Found<'a>>,
    path: String,
    /// How long the path is as it is written.
    quoted: usize,
    steps: usize,
}

impl<'a> Diff<'a> {
    fn new(a: &Weighed<'_>, b: &Weighed<'_>) -> Self {
        Self { found: Vec::new(), path: String::new(), quoted: 2, steps: STEPS + STEPS_PER_BYTE * (a.len + b.len) }
    }

    fn into_ops(self) -> Vec<Op> {
        let op = |Found { path, change }| match change {
            Change::Add(value) => Op::Add(path, value.clone()),
            Change::Replace(value) => Op::Replace(path, value.clone()),
            Change::Remove => Op::Remove(path),
        };
        self.found.into_iter().map(op).collect()
    }

    fn take(&mut self, steps: usize) -> Option<()> {
        steps::count(steps);
        self.steps = self.steps.checked_sub(steps)?;
        Some(())
    }

    /// Adds an operation for where the path leads, and tells its length with a comma.
    fn push(&mut self, change: Change<'a>, value: usize) -> Option<usize> {
        self.take(1 + self.path.len() / BYTES_PER_STEP)?;
        self.found.push(Found { path: self.path.clone(), change });
        Some(self.len(change, value) + 1)
    }

    fn len(&self, change: Change<'_>, value: usize) -> usize {
        self.quoted
            + match change {
                Change::Add(_) | Change::Replace(_) => r#"{"op":"replace","path":,"value":}"#.len() + value,
                Change::Remove => r#"{"op":"remove","path":}"#.len(),
            }
    }

    fn within<T>(&mut self, token: &str, then: impl FnOnce(&mut Self) -> T) -> T {
        let (len, quoted) = (self.path.len(), self.quoted);
        self.path.push('/');
        if token.contains(['~', '/']) {
            self.path.push_str(&token.replace('~', "~0").replace('/', "~1"));
        } else {
            self.path.push_str(token);
        }
        self.quoted += quoted_len(&self.path[len..]) - 2;
        let result = then(self);
        self.path.truncate(len);
        self.quoted = quoted;
        result
    }

    /// Adds the operations for one place, or one that replaces it where that is shorter, and tells their length.
    fn place(&mut self, a: &Weighed<'a>, b: &Weighed<'a>) -> Option<usize> {
        self.take(1)?;
        if a.same(b) {
            return Some(0);
        }
        let (start, whole) = (self.found.len(), Change::Replace(b.node));
        let most = self.len(whole, b.len) + 1;
        let edits = match (a.node, b.node) {
            (Node::Object(_), Node::Object(_)) => self.objects(a, b, most),
            (Node::Array(_), Node::Array(_)) => self.arrays(a, b, most),
            _ => None,
        };
        if edits.is_some() {
            return edits;
        }
        self.found.truncate(start);
        self.push(whole, b.len)
    }

    fn objects(&mut self, a: &Weighed<'a>, b: &Weighed<'a>, most: usize) -> Option<usize> {
        let (Node::Object(old), Node::Object(new)) = (a.node, b.node) else { return None };
        let (mut in_old, mut in_new) = (Lookup::new(old), Lookup::new(new));
        let mut edits = 0;
        for (i, (name, _)) in old.iter().enumerate() {
            if in_new.near(i, name).is_none() {
                edits += self.within(name, |diff| diff.push(Change::Remove, 0))?;
                if edits > most {
                    return None;
                }
            }
        }
        for (i, (name, value)) in new.iter().enumerate() {
            edits += self.within(name, |diff| match in_old.near(i, name) {
                Some(at) => diff.place(&a.parts[at], &b.parts[i]),
                None => diff.push(Change::Add(value), b.parts[i].len),
            })?;
            if edits > most {
                return None;
            }
        }
        Some(edits)
    }

    fn arrays(&mut self, a: &Weighed<'a>, b: &Weighed<'a>, most: usize) -> Option<usize> {
        let (a, b) = (&a.parts[..], &b.parts[..]);
        let head = a.iter().zip(b).take_while(|(x, y)| x.same(y)).count();
        let (a, b) = (&a[head..], &b[head..]);
        let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x.same(y)).count();
        let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
        let kept = self.common(a, b);

        // `at` is the index in the array as edited so far.
        let (mut i, mut j, mut at, mut edits) = (0, 0, head, 0);
        for (ki, kj) in kept.into_iter().chain([(a.len(), b.len())]) {
            while i < ki || j < kj {
                edits += self.within(&at.to_string(), |diff| match (i < ki, j < kj) {
                    (true, true) => diff.place(&a[i], &b[j]),
                    (true, false) => diff.push(Change::Remove, 0),
                    (false, _) => diff.push(Change::Add(b[j].node), b[j].len),
                })?;
                if edits > most {
                    return None;
                }
                let (old, new) = (i < ki, j < kj);
                (i, j, at) = (i + usize::from(old), j + usize::from(new), at + usize::from(new));
            }
            (i, j, at) = (i + 1, j + 1, at + 1);
        }
        Some(edits)
    }

    /// The index pairs of a longest common subsequence; none where finding it takes too much.
    fn common(&mut self, a: &[Weighed<'a>], b: &[Weighed<'a>]) -> Vec<(usize, usize)> {
        let cells = a.len().saturating_mul(b.len());
        if cells > MAX_ALIGN_CELLS || self.take(cells).is_none() {
            return Vec::new();
        }
        let width = b.len() + 1;
        let mut lengths = vec![0u32; (a.len() + 1) * width];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                lengths[i * width + j] = if a[i].hash == b[j].hash {
                    lengths[(i + 1) * width + j + 1] + 1
                } else {
                    lengths[(i + 1) * width + j].max(lengths[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
        while i < a.len() && j < b.len() {
            if a[i].hash == b[j].hash {
                // Values of one hash that mean something else are not to be had on purpose.
                if !a[i].same(&b[j]) {
                    return Vec::new();
                }
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
}
