//! Listing sessions: filters, orders, pages.

use std::collections::BTreeSet;
use std::time::Duration;

use super::bench::{Bench, end, json, key, key_of, turn};
use super::verdict::{Check, holds, refused, same};
use crate::store::{CreateSession, Cursor, ListSessions, SessionOrder, UpdateSession};
use crate::{AppName, ErrorKind, FinishReason, Outcome, SessionKey, SessionStatus};

async fn ids(t: &Bench, query: ListSessions) -> crate::Result<Vec<String>> {
    let page = t.second().await?.list(query).await?;
    Ok(page.items.into_iter().map(|session| session.id.to_string()).collect())
}

fn of(user: &str) -> ListSessions {
    let key = key_of(user, "unused");
    ListSessions::of(key.app, key.user)
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

async fn create_all(t: &Bench, text: &str) -> crate::Result<()> {
    for id in text.split_whitespace() {
        t.session(id).await?;
    }
    Ok(())
}

pub(super) async fn sessions_are_listed_by_their_owner(t: Bench) -> Check {
    for (app, user, id) in [("shop", "u1", "a"), ("shop", "u1", "b"), ("shop", "u2", "c"), ("bank", "u1", "d")] {
        t.store.create(CreateSession::at(SessionKey::of(app, user, id)?)).await?;
    }
    same(ids(&t, of("u1")).await?, names("b a"), "one user's")?;
    same(ids(&t, of("u2")).await?, names("c"), "another user's")?;
    same(ids(&t, of("nobody")).await?, names(""), "nobody's")?;
    let mut app = ListSessions { app: Some(AppName::new("shop")?), ..ListSessions::default() };
    same(ids(&t, app.clone()).await?, names("c b a"), "an app's")?;
    app.app = None;
    same(ids(&t, app).await?, names("d c b a"), "all")
}

pub(super) async fn what_is_listed_is_what_is_read(t: Bench) -> Check {
    for id in ["a", "b", "c"] {
        let session = t.session(id).await?;
        t.say(&session, id).await?;
        t.store.update(&session, UpdateSession::title(id)).await?;
    }
    t.begin(&key("b"), "running").await?;
    let page = t.second().await?.list(of("ann")).await?;
    same((page.items.len(), page.next), (3, None), "how many are listed, and where to go on")?;
    for session in page.items {
        same(t.record(&session.key()).await?, session, "a session as listed and as read by itself")?;
    }
    Ok(())
}

pub(super) async fn the_one_written_to_last_comes_first(t: Bench) -> Check {
    create_all(&t, "a b c").await?;
    same(ids(&t, of("ann")).await?, names("c b a"), "as created; the clock stands still and orders nothing")?;
    t.say(&key("a"), "hello").await?;
    same(ids(&t, of("ann")).await?, names("a c b"), "after a turn in the oldest")?;
    t.clock.set_wall(crate::Timestamp::from_micros(0));
    t.store.update(&key("b"), UpdateSession::title("x")).await?;
    same(ids(&t, of("ann")).await?, names("b a c"), "after a title, with the clock set back")?;
    same(ids(&t, of("ann").order(SessionOrder::UpdatedOldest)).await?, names("c a b"), "the other way round")?;
    same(ids(&t, of("ann").order(SessionOrder::CreatedNewest)).await?, names("c b a"), "the youngest first")?;
    same(ids(&t, of("ann").order(SessionOrder::CreatedOldest)).await?, names("a b c"), "the oldest first")
}

pub(super) async fn labels_and_metadata_filter(t: Bench) -> Check {
    let plain = |id: &str| CreateSession::at(key(id));
    t.store.create(plain("a").label("x").metadata(json(r#"{"n":1,"s":"1","deep":{"n":1}}"#))).await?;
    t.store.create(plain("b").label("x").label("y").metadata(json(r#"{"n":2,"flag":true}"#))).await?;
    t.store.create(plain("c").metadata(json(r#"{"n":1,"none":null}"#))).await?;
    let labelled = |label: &str| ListSessions { label: Some(label.into()), ..of("ann") };
    same(ids(&t, labelled("x")).await?, names("b a"), "those with a label")?;
    same(ids(&t, labelled("y")).await?, names("b"), "those with another")?;
    same(ids(&t, labelled("z")).await?, names(""), "those with one nobody has")?;
    let with = |pairs: &[(&str, &str)]| {
        let metadata = pairs.iter().map(|(name, value)| ((*name).to_owned(), json(value))).collect();
        ListSessions { metadata, ..of("ann") }
    };
    same(ids(&t, with(&[("n", "1")])).await?, names("c a"), "those with a number")?;
    same(ids(&t, with(&[("n", "1"), ("s", "\"1\"")])).await?, names("a"), "those with two members")?;
    same(ids(&t, with(&[("s", "1")])).await?, names(""), "a number is not its text")?;
    same(ids(&t, with(&[("flag", "true")])).await?, names("b"), "those with a boolean")?;
    same(ids(&t, with(&[("none", "null")])).await?, names("c"), "null is a value, not absence")?;
    refused(t.store.list(with(&[("deep", "{}")])).await, ErrorKind::Invalid, "a filter by an object")?;
    t.store
        .update(&key("a"), UpdateSession { remove_labels: ["x".to_owned()].into(), ..UpdateSession::default() })
        .await?;
    same(ids(&t, labelled("x")).await?, names("b"), "those with a label after one lost it")
}

pub(super) async fn status_filters(t: Bench) -> Check {
    create_all(&t, "idle running asking dead").await?;
    t.begin(&key("dead"), "x").await?;
    t.outlive_leases();
    t.begin(&key("running"), "x").await?;
    let begun = t.begin(&key("asking"), "x").await?;
    t.store.end(end(begun.fence, "x").outcome(Outcome::finished(FinishReason::Interrupted))).await?;
    let with = |status| ListSessions { status: Some(status), ..of("ann") };
    same(ids(&t, with(SessionStatus::Running)).await?, names("running"), "those that run")?;
    same(ids(&t, with(SessionStatus::Interrupted)).await?, names("asking"), "those that wait for a person")?;
    let idle: BTreeSet<_> = ids(&t, with(SessionStatus::Idle)).await?.into_iter().collect();
    same(idle, names("dead idle").into_iter().collect(), "those that do nothing")
}

pub(super) async fn pages_have_the_size_asked_for(t: Bench) -> Check {
    create_all(&t, "a b c d e").await?;
    let orders = [
        (SessionOrder::UpdatedNewest, "e d c b a"),
        (SessionOrder::UpdatedOldest, "a b c d e"),
        (SessionOrder::CreatedNewest, "e d c b a"),
        (SessionOrder::CreatedOldest, "a b c d e"),
    ];
    for (order, wanted) in orders {
        for limit in [1, 2, 3, 5, 6, 1000] {
            let query = of("ann").order(order).limit(limit);
            let (mut found, mut next) = (Vec::new(), query.clone());
            loop {
                let page = t.second().await?.list(next).await?;
                holds(page.items.len() <= limit, "a page has at most as many as were asked for")?;
                holds(page.next.is_none() || page.items.len() == limit, "a page with more behind it is full")?;
                found.extend(page.items.into_iter().map(|session| session.id.to_string()));
                match page.next {
                    Some(cursor) => next = query.clone().after(cursor),
                    None => break,
                }
            }
            same(found, names(wanted), "all pages together")?;
        }
    }
    Ok(())
}

pub(super) async fn a_listing_is_as_of_its_first_page(t: Bench) -> Check {
    for order in [
        SessionOrder::UpdatedNewest,
        SessionOrder::UpdatedOldest,
        SessionOrder::CreatedNewest,
        SessionOrder::CreatedOldest,
    ] {
        let app = format!("{order:?}");
        let key = |id: &str| SessionKey::of(&app, "ann", id);
        for id in ["a", "b", "c", "d", "e", "f"] {
            t.store.create(CreateSession::at(key(id)?)).await?;
        }
        let query = ListSessions::of(key("a")?.app, key("a")?.user).order(order).limit(2);
        let first = t.second().await?.list(query.clone()).await?;
        let mut found: Vec<_> = first.items.iter().map(|session| session.id.to_string()).collect();
        let mut next = first.next;
        // One already shown, some still to come, a new one, and one that goes.
        for id in [found[0].as_str(), "c", "d", "c"] {
            t.clock.advance(Duration::from_secs(1));
            t.store.update(&key(id)?, UpdateSession::title("touched")).await?;
        }
        t.store.create(CreateSession::at(key("new")?)).await?;
        while let Some(cursor) = next {
            let page = t.second().await?.list(query.clone().after(cursor)).await?;
            found.extend(page.items.into_iter().map(|session| session.id.to_string()));
            next = page.next;
            t.say(&key("c")?, "touched again").await?;
        }
        let newest = matches!(order, SessionOrder::UpdatedNewest | SessionOrder::CreatedNewest);
        let wanted = if newest { "f e d c b a" } else { "a b c d e f" };
        same(found, names(wanted), "all pages together: none repeated, none hidden")?;
    }
    Ok(())
}

pub(super) async fn deleted_sessions_drop_out_of_a_listing(t: Bench) -> Check {
    create_all(&t, "a b c d").await?;
    let query = of("ann").limit(1);
    let first = t.second().await?.list(query.clone()).await?;
    same(first.items[0].id.as_str(), "d", "the first page")?;
    t.store.delete(&key("c")).await?;
    t.store.delete(&key("b")).await?;
    t.session("b").await?;
    let (mut found, mut next) = (Vec::new(), first.next);
    while let Some(cursor) = next {
        let page = t.second().await?.list(query.clone().after(cursor)).await?;
        found.extend(page.items.into_iter().map(|session| session.id.to_string()));
        next = page.next;
    }
    same(found, names("a"), "the other pages; what was created again is a new session")
}

pub(super) async fn what_is_no_cursor_is_refused(t: Bench) -> Check {
    create_all(&t, "a b").await?;
    let page = t.store.list(of("ann").limit(1)).await?;
    let cursor = page.next.unwrap_or_else(|| Cursor::from_text(""));
    let other = of("ann").order(SessionOrder::CreatedNewest).after(cursor);
    refused(t.store.list(other).await, ErrorKind::Invalid, "a cursor of another order")?;
    for text in ["", "x", "l", "l1", "l1.2.3.4", "e1.2", "l-1.2.3", "l99999999999999999999999.1.0"] {
        let query = of("ann").after(Cursor::from_text(text));
        refused(t.store.list(query).await, ErrorKind::Invalid, text)?;
    }
    refused(t.store.list(of("ann").limit(0)).await, ErrorKind::Invalid, "a page of nothing")
}

pub(super) async fn running_turns_touch_but_do_not_hide(t: Bench) -> Check {
    create_all(&t, "a b").await?;
    let begun = t.store.begin(turn(&key("a"), "x")).await?.begun()?;
    same(ids(&t, of("ann")).await?, names("a b"), "while a turn runs")?;
    t.store.end(end(begun.fence, "x")).await?;
    same(ids(&t, of("ann")).await?, names("a b"), "after it")
}
