//! What a write changed in rows that are not filled into their tables yet.

use super::super::engine::{Head, SegmentRow, SessionRow, SnapshotRow, TurnRow};
use super::pack::{Pack, packed};
use crate::{SnapshotId, Timestamp, Usage};

/// A row put or removed. In the journal each is the byte given here and the row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// 0
    Session(Box<SessionRow>),
    /// 1
    Progress(Progress),
    /// 2
    Segment(SegmentRow),
    /// 3; 7 when it has kept chunks.
    Turn(Box<TurnRow>),
    /// 4: a turn has ended.
    TurnGone(u64, u64),
    /// 5
    Snapshot(Box<SnapshotRow>),
    /// 6
    SnapshotGone(SnapshotId),
}

/// What a plain turn changes in a session that is in the journal already: most of the row stays as it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress {
    pub(super) num: u64,
    updated_at: Timestamp,
    next_seq: u64,
    main: Head,
    usage: Usage,
    interrupted: bool,
    updated_pos: u64,
}

packed! {
    Progress { num, updated_at, next_seq, main, usage, interrupted, updated_pos }
}

impl Progress {
    fn of(row: &SessionRow) -> Self {
        Self {
            num: row.num,
            updated_at: row.updated_at,
            next_seq: row.next_seq,
            main: row.main.clone(),
            usage: row.usage,
            interrupted: row.interrupted,
            updated_pos: row.updated_pos,
        }
    }

    pub(super) fn apply_to(self, row: &mut SessionRow) {
        row.updated_at = self.updated_at;
        row.next_seq = self.next_seq;
        row.main = self.main;
        row.usage = self.usage;
        row.interrupted = self.interrupted;
        row.updated_pos = self.updated_pos;
    }
}

/// Whether two rows of a session differ in nothing but what [`Progress`] tells.
fn is_progress(before: &SessionRow, after: &SessionRow) -> bool {
    let SessionRow { num, tree, key, agent, title, labels, metadata, created_at, .. } = after;
    let SessionRow { inherited, forked, deleted, created_pos, .. } = after;
    let SessionRow { updated_at: _, next_seq: _, main: _, usage: _, interrupted: _, updated_pos: _, .. } = after;
    (*num, *tree, *created_at, *deleted, *created_pos)
        == (before.num, before.tree, before.created_at, before.deleted, before.created_pos)
        && *key == before.key
        && *agent == before.agent
        && *title == before.title
        && *labels == before.labels
        && *metadata == before.metadata
        && *inherited == before.inherited
        && *forked == before.forked
}

impl Change {
    /// The shortest way to say that a session's row is this one now, given what the journal said of it before.
    pub(super) fn of_session(row: &SessionRow, before: Option<&SessionRow>) -> Self {
        match before.is_some_and(|before| is_progress(before, row)) {
            true => Self::Progress(Progress::of(row)),
            false => Self::Session(Box::new(row.clone())),
        }
    }
}

impl Pack for Change {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Session(row) => {
                out.push(0);
                row.put(out);
            }
            Self::Progress(progress) => {
                out.push(1);
                progress.put(out);
            }
            Self::Segment(row) => {
                out.push(2);
                row.put(out);
            }
            Self::Turn(row) => {
                out.push(if row.streams { 7 } else { 3 });
                row.put(out);
            }
            Self::TurnGone(num, begin) => {
                out.push(4);
                num.put(out);
                begin.put(out);
            }
            Self::Snapshot(row) => {
                out.push(5);
                row.put(out);
            }
            Self::SnapshotGone(id) => {
                out.push(6);
                id.put(out);
            }
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(match kind {
            0 => Self::Session(Box::new(Pack::take(bytes)?)),
            1 => Self::Progress(Pack::take(bytes)?),
            2 => Self::Segment(Pack::take(bytes)?),
            3 => Self::Turn(Box::new(Pack::take(bytes)?)),
            4 => Self::TurnGone(u64::take(bytes)?, u64::take(bytes)?),
            5 => Self::Snapshot(Box::new(Pack::take(bytes)?)),
            6 => Self::SnapshotGone(Pack::take(bytes)?),
            7 => Self::Turn(Box::new(TurnRow { streams: true, ..Pack::take(bytes)? })),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::{pack, unpack};
    use super::*;

    #[test]
    fn only_what_a_turn_changes_is_written_again() {
        let mut before = super::super::pack::tests::session();
        let change = Change::of_session(&before, None);
        assert!(matches!(change, Change::Session(_)));
        assert_eq!(unpack(&pack(&change)), Some(change));
        let mut after = before.clone();
        (after.next_seq, after.main.lease, after.interrupted) = (after.next_seq + 1, Some(3), false);
        let Change::Progress(progress) = Change::of_session(&after, Some(&before)) else {
            panic!("it was written whole")
        };
        progress.apply_to(&mut before);
        assert_eq!(before, after);
        after.title = None;
        assert!(matches!(Change::of_session(&after, Some(&before)), Change::Session(_)));
    }
}
