//! How a session looks from outside, without reading much of it.

use super::body::Body;
use super::line::climb;
use super::rules::is_voided;
use super::tables::{Flow, Only, Read, RecordRow, Scan, SessionRow};
use super::walk::scan_whole;
use crate::message::Message;
use crate::session::SessionKey;
use crate::store::{Excerpt, MAX_EXCERPT, Preview};
use crate::turn::RecordKind;
use crate::{Error, Result};

/// Records that are looked at for the last message: a session whose last ones say nothing is shown without one.
const LOOKED_AT: usize = 8;

/// The beginning of a text.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

pub(crate) fn previews(read: &dyn Read, keys: &[SessionKey]) -> Result<Vec<Option<Preview>>> {
    keys.iter().map(|key| read.find_session(key)?.map(|row| preview(read, &row)).transpose()).collect()
}

fn preview(read: &dyn Read, session: &SessionRow) -> Result<Preview> {
    let head = session.main.place();
    let meta = read.meta(head.num, head.seq)?.ok_or_else(|| {
        Error::corrupt(format!("record {} of session number {}, a head, is missing", head.seq, head.num))
    })?;
    let mut last = None;
    let mut left = LOOKED_AT;
    climb(read, head, &mut |interval| {
        let scan = Scan { newest_first: true, ..Scan::of(&interval) };
        debug_assert_eq!(scan.only, Only::All);
        scan_whole(read, scan, &mut |row: RecordRow| {
            let shown = row.meta.kind != RecordKind::Void && !is_voided(read, &row.meta, interval.to)?;
            if shown {
                last = last_message(&Body::decode(&row.body)?);
            }
            left -= 1;
            Ok(if last.is_some() || left == 0 { Flow::Stop } else { Flow::More })
        })?;
        Ok(last.is_none() && left > 0)
    })?;
    Ok(Preview { messages: meta.tip.messages, log: session.next_seq - 1, last_message: last })
}

fn last_message(body: &Body) -> Option<Excerpt> {
    let spliced = body.splice.iter().flat_map(|splice| &splice.messages);
    let said: Vec<&Message> = spliced.chain(body.events.iter().flat_map(|event| &event.messages)).collect();
    let last = said.last()?;
    Some(Excerpt { role: last.role(), text: shortened(&last.text()) })
}
