//! What several test files share: seeded choices, settings from the environment, and child processes.

// Each test file is its own crate and uses its own part of this.
#![allow(dead_code, unused_imports)]

mod child;
mod rng;

use std::str::FromStr;

use everturn::store::{EventQuery, MAX_PAGE, Store};
use everturn::{Event, InvocationId, Json, Result, SessionKey};

pub(crate) use child::{Child, say, told, var};
pub(crate) use rng::Rng;

/// A number from the environment, so that a soak can ask for more than the default run does.
pub(crate) fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

pub(crate) fn json(text: impl AsRef<str>) -> Json {
    Json::parse(text).expect("the test writes JSON")
}

pub(crate) fn invocation(text: &str) -> InvocationId {
    InvocationId::new(text).expect("the test writes ids")
}

pub(crate) fn key(user: &str, id: &str) -> SessionKey {
    SessionKey::of("app", user, id).expect("the test writes ids")
}

/// All events a query selects, page by page.
pub(crate) async fn all_events(store: &dyn Store, query: EventQuery) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut query = query.limit(MAX_PAGE);
    loop {
        let page = store.events(query.clone()).await?;
        events.extend(page.items);
        match page.next {
            Some(cursor) => query = query.from(cursor),
            None => return Ok(events),
        }
    }
}
