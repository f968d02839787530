//! Listings: the indexes know how things stood when the tables were last filled; what was written to since comes after
//! all of it, whether by update or by creation.

use rusqlite::params;

use super::super::codec::{self, int};
use super::Rows;
use crate::Result;
use crate::store::engine::{Flow, ListBy, ListScan, Owner, SessionRow, Visit};

fn owned(owner: Owner<'_>, row: &SessionRow) -> bool {
    owner.app.is_none_or(|app| *app == row.key.app) && owner.user.is_none_or(|user| *user == row.key.user)
}

impl Rows<'_> {
    pub(super) fn list_sessions(&self, list: &ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<()> {
        let recent = self.recent_sessions(list);
        if list.newest_first {
            for row in recent.into_iter().rev() {
                if visit(row)? == Flow::Stop {
                    return Ok(());
                }
            }
            return self.walk_list(list, visit).map(drop);
        }
        if self.walk_list(list, visit)? == Flow::Stop {
            return Ok(());
        }
        for row in recent {
            if visit(row)? == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Sessions that the indexes do not know, or not where they stand, in order.
    fn recent_sessions(&self, list: &ListScan<'_>) -> Vec<SessionRow> {
        let key = |row: &SessionRow| match list.by {
            ListBy::Created => row.num,
            ListBy::Updated => row.updated_pos,
        };
        let wanted = |row: &&SessionRow| {
            let behind = match (list.after, list.newest_first) {
                (None, _) => true,
                (Some(after), true) => key(row) < after,
                (Some(after), false) => key(row) > after,
            };
            let misplaced = list.by == ListBy::Updated || self.recent.is_new(row);
            behind && misplaced && !row.deleted && owned(list.owner, row)
        };
        let mut rows: Vec<SessionRow> = self.recent.sessions().filter(wanted).cloned().collect();
        rows.sort_by_key(key);
        rows
    }

    /// Walks the tables, leaving out what is misplaced there.
    fn walk_list(&self, list: &ListScan<'_>, visit: Visit<'_, SessionRow>) -> Result<Flow> {
        let name = match (list.by, list.owner.user.is_some() && list.owner.app.is_some(), list.newest_first) {
            (ListBy::Created, false, false) => "list_created",
            (ListBy::Created, false, true) => "list_created_newest",
            (ListBy::Created, true, false) => "list_owner_created",
            (ListBy::Created, true, true) => "list_owner_created_newest",
            (ListBy::Updated, false, false) => "list_updated",
            (ListBy::Updated, false, true) => "list_updated_newest",
            (ListBy::Updated, true, false) => "list_owner_updated",
            (ListBy::Updated, true, true) => "list_owner_updated_newest",
        };
        let after = match (list.after, list.newest_first) {
            (Some(after), _) => int(after),
            (None, true) => i64::MAX,
            (None, false) => -1,
        };
        let mut visit = |row: &rusqlite::Row<'_>| {
            let row = codec::session(row)?;
            if !owned(list.owner, &row) {
                return Ok(Flow::More);
            }
            match self.recent.session(row.num) {
                None => visit(row),
                Some(now) if list.by == ListBy::Created && !now.deleted => visit(now.clone()),
                Some(_) => Ok(Flow::More),
            }
        };
        match (list.owner.app, list.owner.user) {
            (Some(app), Some(user)) => self.sql.each(name, params![after, app.as_str(), user.as_str()], &mut visit),
            _ => self.sql.each(name, params![after], &mut visit),
        }
    }

    pub(super) fn list_touched(&self, owner: Owner<'_>, pos: u64, visit: Visit<'_, SessionRow>) -> Result<()> {
        let list = ListScan { owner, by: ListBy::Updated, newest_first: false, after: Some(pos) };
        for row in self.recent_sessions(&list) {
            if visit(row)? == Flow::Stop {
                return Ok(());
            }
        }
        if pos < self.recent.filled_up_to() {
            self.walk_list(&list, visit)?;
        }
        Ok(())
    }
}
