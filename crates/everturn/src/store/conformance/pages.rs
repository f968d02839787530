//! How much a page has.

use serde::Serialize;

use super::bench::{Bench, json, turn};
use super::verdict::{Check, holds, same, there};
use crate::store::{
    ArtifactQuery, CreateSession, Cursor, EndTurn, EventQuery, ListSessions, ListSnapshots, MAX_PAGE_BYTES, Page,
    RecordQuery, Store, TreeQuery, UpdateSession,
};
use crate::{Artifact, Changes, Event, Json, Message, NewSnapshot, Part, SessionKey};

const TURNS: usize = 6;

/// Turns whose records, events, snapshots and artifacts have some weight, and a few sessions with metadata.
async fn heavy(t: &Bench) -> Check<SessionKey> {
    let session = t.session("s").await?;
    for i in 0..TURNS {
        let id = t.snapshot_id();
        let begun = t.store.begin(turn(&session, &format!("question {i}"))).await?.begun()?;
        let text = format!("{i} {}", "x".repeat(700 * (i + 1)));
        let said = Changes::new()
            .event(Event::model("m", Message::model(&text)))
            .artifact(Artifact::new(format!("a{i}"), vec![Part::text(&text)]));
        t.store.end(EndTurn::completed(begun.fence, said).snapshot(NewSnapshot::new(id))).await?;
        t.store.label(id, Some(format!("{i} {}", "l".repeat(200)))).await?;
        let other = CreateSession::at(super::bench::key(&format!("other {i}")));
        let key = SessionKey::new(other.app.clone(), other.user.clone(), there(other.id.clone(), "an id")?);
        t.store.create(other).await?;
        let notes = json(&format!("\"{}\"", "n".repeat(500 * (i + 1))));
        let notes = UpdateSession { set_metadata: [("notes".to_owned(), notes)].into(), ..UpdateSession::default() };
        t.store.update(&key, notes).await?;
    }
    Ok(session)
}

/// Reads one of the listings, so many bytes at a time.
async fn read(
    store: &dyn Store,
    what: &str,
    session: &SessionKey,
    bytes: usize,
    cursor: Option<Cursor>,
) -> Check<Page<Json>> {
    fn page<T: Serialize>(page: Page<T>) -> Check<Page<Json>> {
        let items = page.items.iter().map(Json::from_value).collect::<crate::Result<_>>()?;
        Ok(Page { items, next: page.next })
    }
    let session = session.clone();
    match what {
        "records" => {
            let mut query = RecordQuery::of(session).bytes(bytes);
            query.cursor = cursor;
            page(store.records(query).await?)
        }
        "events" => {
            let mut query = EventQuery::of(session).bytes(bytes);
            query.cursor = cursor;
            page(store.events(query).await?)
        }
        "snapshots" => {
            let mut query = ListSnapshots::of(session).newest_first().bytes(bytes);
            query.cursor = cursor;
            page(store.snapshots(query).await?)
        }
        "sessions" => {
            let mut query = ListSessions::of(session.app, session.user).bytes(bytes);
            query.cursor = cursor;
            page(store.list(query).await?)
        }
        _ => {
            let mut query = TreeQuery::of(session).bytes(bytes);
            query.cursor = cursor;
            let found = store.tree(query).await?;
            page(Page { items: found.nodes, next: found.next })
        }
    }
}

pub(super) async fn a_page_ends_at_its_bytes_and_goes_on_without_gap_or_repeat(t: Bench) -> Check {
    let session = heavy(&t).await?;
    let store = t.second().await?;
    for what in ["records", "events", "snapshots", "sessions", "tree"] {
        let all = read(&*store, what, &session, MAX_PAGE_BYTES, None).await?;
        holds(all.items.len() >= TURNS && all.next.is_none(), "a page with room for all of them")?;
        for bytes in [1, 3_000, 8_000] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let page = read(&*store, what, &session, bytes, cursor).await?;
                holds(!page.items.is_empty(), "a page has an item at least")?;
                let weight: usize = page.items.iter().map(|item| item.as_str().len()).sum();
                // A node of a tree grows while the page is made, so the last may be one too many.
                let last = page.items.last().filter(|_| what == "tree").map_or(0, |last| last.as_str().len());
                holds(page.items.len() == 1 || weight - last <= bytes, "a page has no more bytes than were asked for")?;
                found.extend(page.items);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            same(found, all.items.clone(), "all pages together")?;
        }
    }
    Ok(())
}

pub(super) async fn a_page_of_artifacts_ends_at_its_bytes(t: Bench) -> Check {
    let session = heavy(&t).await?;
    let store = t.second().await?;
    let all = store.artifacts(ArtifactQuery::of(session.clone())).await?;
    same(all.len(), TURNS, "the versions there are")?;
    for bytes in [1, 3_000, MAX_PAGE_BYTES] {
        let (mut found, mut behind) = (Vec::new(), None);
        loop {
            let query = ArtifactQuery::of(session.clone()).page(behind.take(), TURNS).bytes(bytes);
            let page = store.artifacts(query).await?;
            let Some(last) = page.last() else { break };
            behind = Some((last.version.name.clone(), last.version.version));
            let weights = page.iter().map(|stored| Ok(Json::from_value(&stored.artifact)?.as_str().len()));
            let weight: usize = weights.collect::<crate::Result<Vec<_>>>()?.into_iter().sum();
            holds(page.len() == 1 || weight <= bytes, "a page has no more bytes than were asked for")?;
            found.extend(page);
        }
        same(&found, &all, "all pages together")?;
    }
    Ok(())
}

pub(super) async fn no_page_has_more_bytes_than_a_page_may_have(t: Bench) -> Check {
    let session = t.session("s").await?;
    let text = "x".repeat(MAX_PAGE_BYTES / 2);
    for _ in 0..3 {
        t.change(&session, Changes::new().event(Event::model("m", Message::model(&text)))).await?;
    }
    let store = t.second().await?;
    for what in ["records", "events"] {
        let page = read(&*store, what, &session, usize::MAX, None).await?;
        let weight: usize = page.items.iter().map(|item| item.as_str().len()).sum();
        holds(weight <= MAX_PAGE_BYTES && page.next.is_some(), "a page ends, however much is asked for")?;
    }
    Ok(())
}
