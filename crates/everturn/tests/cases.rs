//! `docs/cases.md` says which test stands for which behaviour of other session stores; this holds it to that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everturn::store::conformance;
use everturn::store::{BeginTurn, CreateSession, EndTurn, EventQuery, MemoryOptions, Start, Store};
use everturn::{AppName, Changes, Event, Input, InvocationId, ManualClock, Message, SessionRecord, UserId};

const AREAS: [&str; 5] = ["runtime", "models and tools", "server", "file store", "PostgreSQL store"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// One behaviour: its id, what it is, and where Everturn stands.
struct Line {
    id: String,
    behaviour: String,
    here: Vec<String>,
}

fn lines() -> Vec<Line> {
    let page = fs::read_to_string(workspace().join("docs/cases.md")).unwrap();
    let rows = page.lines().filter(|line| is_behaviour(line));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [id, behaviour, here] = cells[..] else { panic!("{row:?} does not have three cells") };
        let here = here.split("; ").map(str::to_owned).collect();
        Line { id: id.to_owned(), behaviour: behaviour.to_owned(), here }
    })
    .collect()
}

/// A row of a table whose first cell is an id: a letter and a number.
fn is_behaviour(line: &str) -> bool {
    let id = line.strip_prefix("| ").and_then(|rest| rest.split_once(' ')).map_or("", |(id, _)| id);
    id.starts_with(|first: char| first.is_ascii_uppercase())
        && id.len() > 1
        && id[1..].chars().all(|digit| digit.is_ascii_digit())
}

fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let names = source.lines().filter_map(|line| Some(line.split_once("fn ")?.1.split_once('(')?.0.to_owned()));
            found.extend(names);
        }
    }
}

#[test]
fn every_behaviour_has_its_own_id_in_order() {
    let ids: Vec<(char, u32)> = lines().iter().map(|line| (line.id.as_bytes()[0].into(), number(&line.id))).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "an id is out of order or given twice: {ids:?}");
    assert!(ids.len() > 280, "only {} behaviours were read", ids.len());
}

fn number(id: &str) -> u32 {
    id[1..].parse().unwrap_or_else(|_| panic!("{id:?} is no id"))
}

#[test]
fn every_behaviour_has_a_test_a_plan_or_a_reason() {
    let mut known = BTreeSet::new();
    functions(&workspace().join("crates"), &mut known);
    for line in lines() {
        let Line { id, behaviour, here } = &line;
        assert!(!behaviour.is_empty(), "{id} says nothing");
        for part in here {
            if let Some(area) = part.strip_prefix("planned: ") {
                assert!(AREAS.contains(&area), "{id} is planned for {area:?}, which is none of {AREAS:?}");
            } else if let Some(reason) = part.strip_prefix("does not apply: ") {
                assert!(reason.split_whitespace().count() > 1, "{id} gives no reason");
            } else {
                for test in part.split(", ") {
                    let name = test.strip_prefix('`').and_then(|test| test.strip_suffix('`'));
                    let name =
                        name.unwrap_or_else(|| panic!("{id} has {test:?}: a test, a plan or a reason is expected"));
                    let exists =
                        if name.contains("::") { conformance::case(name).is_some() } else { known.contains(name) };
                    assert!(exists, "{id} names {name}, and there is no such test");
                }
            }
        }
    }
}

/// The same conversation in a fresh store whose clock starts at the same moment.
async fn conversation() -> (SessionRecord, Vec<Event>) {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    clock.tick_by(Duration::from_micros(7));
    let store = MemoryOptions::new().clock(Arc::new(clock)).build();
    let create = CreateSession::new(AppName::new("app").unwrap(), UserId::new("ann").unwrap());
    let key = store.create(create).await.unwrap().key();
    let begin = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i").unwrap(), Input::text("hi"));
    let begun = store.begin(begin).await.unwrap().begun().unwrap();
    let answer = Changes::new().event(Event::model("m", Message::model("hello")));
    store.end(EndTurn::completed(begun.fence, answer)).await.unwrap();
    let events = store.events(EventQuery::of(key.clone())).await.unwrap().items;
    (store.session(&key).await.unwrap().unwrap(), events)
}

#[tokio::test]
async fn what_the_clock_gives_is_what_is_kept() {
    let (session, events) = conversation().await;
    assert_eq!(session.id.as_str(), "00000000-0000-7000-8000-000000000001");
    assert!(session.created_at.to_string().starts_with("2026-01-01T00:00:00"));
    assert!(events.iter().all(|event| event.id.is_some() && event.at.is_some()));
    assert_eq!((session, events), conversation().await, "the same clock makes the same session and the same events");
}
