//! Changing what sessions share, outside of turns.

use super::rules::Ctx;
use crate::state::{Scope, StateDelta, split_key};
use crate::store::Limits;
use crate::{AppName, Error, Result, UserId};

/// Refuses what is no change of a shared scope.
pub(crate) fn check(delta: &StateDelta, user: Option<&UserId>, limits: &Limits) -> Result<()> {
    for key in delta.set.keys().chain(&delta.remove) {
        let (scope, name) = split_key(key);
        if name.is_empty() {
            return Err(Error::invalid(format!("the state key {key:?} has no name: put one behind the prefix")));
        }
        match (scope, user) {
            (Scope::App, _) | (Scope::User, Some(_)) => {}
            (Scope::User, None) => return Err(Error::invalid(format!("{key:?} belongs to a user, and none is given"))),
            _ => {
                return Err(Error::invalid(format!(
                    "{key:?} is not shared by sessions: give keys with `app:` or `user:`, and change others by a turn"
                )));
            }
        }
    }
    if delta.set.keys().any(|key| delta.remove.contains(key)) {
        return Err(Error::invalid("a state delta sets and removes the same key: leave one out"));
    }
    let size: usize = delta.set.iter().map(|(key, value)| key.len() + value.as_str().len()).sum();
    if size > limits.custom {
        let most = limits.custom;
        return Err(Error::too_large(format!("the shared state to set has {size} bytes, {most} is the limit")));
    }
    Ok(())
}

pub(crate) fn set(ctx: &mut Ctx<'_>, app: &AppName, user: Option<&UserId>, delta: &StateDelta) -> Result<()> {
    let all = delta.set.iter().map(|(key, value)| (key, Some(value))).chain(delta.remove.iter().map(|key| (key, None)));
    for (key, value) in all {
        let (scope, name) = split_key(key);
        ctx.tx.set_scope(scope, app, user.filter(|_| scope == Scope::User), name, value)?;
    }
    Ok(())
}
