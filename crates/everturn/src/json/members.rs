//! Finding members by their names.

use std::collections::HashMap;

use super::steps;

/// Up to so many members are gone through; more are found through a map.
const FEW: usize = 32;

/// Members to be looked up, many of them: going through all for each would cost their number squared.
pub(crate) struct Lookup<'a, V> {
    members: &'a [(Box<str>, V)],
    by_name: Option<HashMap<&'a str, usize>>,
}

impl<'a, V> Lookup<'a, V> {
    pub(crate) fn new(members: &'a [(Box<str>, V)]) -> Self {
        Self { members, by_name: None }
    }

    /// Where a member is. It is looked for first where it most likely is: members rarely change places.
    pub(crate) fn near(&mut self, near: usize, name: &str) -> Option<usize> {
        let members = self.members;
        if members.get(near).is_some_and(|(key, _)| **key == *name) {
            return Some(near);
        }
        if members.len() <= FEW {
            steps::count(members.len());
            return members.iter().position(|(key, _)| **key == *name);
        }
        let by_name = self.by_name.get_or_insert_with(|| {
            steps::count(members.len());
            members.iter().enumerate().map(|(at, (key, _))| (&**key, at)).collect()
        });
        by_name.get(name).copied()
    }

    /// Where a member is, wherever it may be.
    pub(crate) fn find(&mut self, name: &str) -> Option<usize> {
        self.near(usize::MAX, name)
    }
}
