//! Listing sessions as of the first page.
//!
//! A cursor carries the store's position when the listing began. A session that was written to since keeps the place
//! it had then, so that it is neither repeated nor hidden.

use super::page::Room;
use super::rules::{Env, show, status};
use super::tables::{Flow, ListBy, ListScan, Owner, Read, SessionRow};
use crate::json::{Json, Node};
use crate::session::SessionRecord;
use crate::store::{Cursor, ListSessions, MAX_PAGE, Page, SessionOrder};
use crate::{Error, Result};

pub(crate) fn list(read: &dyn Read, env: &Env<'_>, query: &ListSessions) -> Result<Page<SessionRecord>> {
    let mut room = Room::new(query.limit, query.bytes)?;
    let limit = query.limit.min(MAX_PAGE);
    check_filters(query)?;
    let (by, newest_first) = match query.order {
        SessionOrder::UpdatedNewest => (ListBy::Updated, true),
        SessionOrder::UpdatedOldest => (ListBy::Updated, false),
        SessionOrder::CreatedNewest => (ListBy::Created, true),
        SessionOrder::CreatedOldest => (ListBy::Created, false),
    };
    let (as_of, after) = match &query.cursor {
        None => (read.position()?, None),
        Some(cursor) => {
            let [as_of, after, order] = cursor.numbers('l')?;
            if order != query.order as u64 {
                return Err(Error::invalid("that cursor is of a listing in another order: start again without one"));
            }
            (as_of, Some(after))
        }
    };
    let behind = |key: u64| match after {
        None => true,
        Some(after) if newest_first => key < after,
        Some(after) => key > after,
    };
    let owner = Owner { app: query.app.as_ref(), user: query.user.as_ref() };
    // Without the sessions: their metadata may be large, and most of those that were written to since are on other pages.
    let mut found: Vec<(u64, u64)> = Vec::new();

    if by == ListBy::Updated {
        read.touched_since(owner, as_of, &mut |row: SessionRow| {
            if row.created_pos > as_of {
                return Ok(Flow::More);
            }
            let key = read.position_at(row.num, as_of)?.unwrap_or(row.created_pos);
            if behind(key) && matches(read, env, query, &row)? {
                found.push((key, row.num));
                // Only the first of them can be on this page; the rest need not be held.
                if found.len() > 2 * (limit + 1) {
                    sort(&mut found, newest_first);
                    found.truncate(limit + 1);
                }
            }
            Ok(Flow::More)
        })?;
    }
    let touched = found.len();
    let scan = ListScan { owner, by, newest_first, after };
    read.list(scan, &mut |row: SessionRow| {
        let (key, position) = match by {
            ListBy::Created => (row.num, row.created_pos),
            ListBy::Updated => (row.updated_pos, row.updated_pos),
        };
        if row.created_pos <= as_of && position <= as_of && matches(read, env, query, &row)? {
            found.push((key, row.num));
        }
        Ok(if found.len() - touched > limit { Flow::Stop } else { Flow::More })
    })?;
    sort(&mut found, newest_first);
    let (mut items, mut last, mut more) = (Vec::new(), None, false);
    for (key, num) in found {
        let Some(row) = read.session(num)? else { continue };
        let session = show(read, env, &row)?;
        if !room.take(&session)? {
            more = true;
            break;
        }
        items.push(session);
        last = Some(key);
    }
    let next = last.filter(|_| more).map(|key| Cursor::of('l', &[as_of, key, query.order as u64]));
    Ok(Page { items, next })
}

fn sort(found: &mut [(u64, u64)], newest_first: bool) {
    found.sort_by_key(|(key, _)| if newest_first { u64::MAX - key } else { *key });
}

/// The most members of metadata that are compared: they are, with each session.
const MAX_FILTERS: usize = 32;

fn check_filters(query: &ListSessions) -> Result<()> {
    if query.metadata.len() > MAX_FILTERS {
        return Err(Error::invalid(format!("metadata is filtered by at most {MAX_FILTERS} members: leave some out")));
    }
    for (name, value) in &query.metadata {
        if matches!(value.node()?, Node::Object(_) | Node::Array(_)) {
            return Err(Error::invalid(format!("metadata is filtered by scalars, but {name:?} is to equal {value}")));
        }
    }
    Ok(())
}

fn matches(read: &dyn Read, env: &Env<'_>, query: &ListSessions, row: &SessionRow) -> Result<bool> {
    if query.label.as_ref().is_some_and(|label| !row.labels.contains(label)) {
        return Ok(false);
    }
    if !query.metadata.is_empty() {
        let metadata = row.metadata.node()?;
        let has = |(name, value): (&String, &Json)| Ok::<_, Error>(metadata.get(name) == Some(&value.node()?));
        for pair in &query.metadata {
            if !has(pair)? {
                return Ok(false);
            }
        }
    }
    match query.status {
        None => Ok(true),
        Some(wanted) => Ok(status(read, env, row)? == wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_compared_by_a_few_members_and_no_more() {
        let query = |members: usize| {
            let metadata = (0..members).map(|i| (format!("m{i}"), Json::null())).collect();
            ListSessions { metadata, ..ListSessions::default() }
        };
        assert!(check_filters(&query(MAX_FILTERS)).is_ok());
        assert_eq!(check_filters(&query(MAX_FILTERS + 1)).unwrap_err().kind(), crate::ErrorKind::Invalid);
    }
}
