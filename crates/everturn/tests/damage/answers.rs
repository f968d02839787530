//! Everything a store can be asked, and what it says.

use std::collections::BTreeSet;
use std::fmt::Debug;

use everturn::store::{
    ArtifactQuery, At, BeginTurn, Busy, Entry, EventQuery, ListSessions, ListSnapshots, RecordQuery, SnapshotRef,
    SqliteStore, Start, Store, TreeQuery, Voided,
};
use everturn::{
    AppName, BranchName, Error, ErrorKind, Input, Point, Result, SessionKey, SnapshotId, StateDelta, TurnId, UserId,
};

use crate::support::{invocation, json, key};

/// Few, so that there are many pages.
const PAGE: usize = 5;

#[derive(Clone, Debug)]
pub(crate) enum Question {
    Session(SessionKey),
    Branches(SessionKey),
    State(At),
    Events(At, Voided),
    Tail(At, usize),
    Records(SessionKey),
    Snapshots(SessionKey),
    Snapshot(SnapshotRef),
    Tree(SessionKey),
    Export(SessionKey),
    Artifacts(SessionKey),
    Preview(SessionKey),
    Turn(TurnId),
    Scopes(&'static str),
    List(&'static str),
    Running,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Value(String),
    /// Of a listing, where one may be missing without the others being wrong.
    Items(BTreeSet<String>),
    /// The nearest snapshot; another one that is as it was is told where it is missing.
    Nearest(String),
    Nothing,
    Refused(ErrorKind, String),
}

fn value(answer: Result<impl Debug>) -> Result<Said> {
    answer.map(|value| Said::Value(format!("{value:?}")))
}

fn maybe(answer: Result<Option<impl Debug>>) -> Result<Said> {
    answer.map(|found| found.map_or(Said::Nothing, |value| Said::Value(format!("{value:?}"))))
}

fn items(answer: impl IntoIterator<Item = impl Debug>) -> Said {
    Said::Items(answer.into_iter().map(|item| format!("{item:?}")).collect())
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "it is gone")
}

const SESSIONS: [(&str, &str); 5] =
    [("ann", "one"), ("ann", "two"), ("bob", "three"), ("ann", "fork"), ("ann", "fork-of-fork")];

/// All there is to ask of a sound store.
pub(crate) async fn questions(store: &SqliteStore) -> Vec<Question> {
    let mut all = vec![Question::Running];
    for user in ["ann", "bob"] {
        all.extend([Question::Scopes(user), Question::List(user)]);
    }
    for (user, id) in SESSIONS {
        let session = key(user, id);
        all.extend([
            Question::Session(session.clone()),
            Question::Branches(session.clone()),
            Question::Preview(session.clone()),
            Question::Snapshot(SnapshotRef::Latest(session.clone())),
            Question::Tail(At::head(session.clone()), 3),
            Question::Snapshots(session.clone()),
            Question::Tree(session.clone()),
            Question::Records(session.clone()),
            Question::Export(session.clone()),
            Question::Artifacts(session.clone()),
        ]);
        for branch in store.session(&session).await.unwrap().unwrap().branches {
            let head = At::Head(session.clone(), branch.name);
            all.extend([Question::State(head.clone()), Question::Events(head.clone(), Voided::Hide)]);
            all.push(Question::Events(head, Voided::Show));
        }
        for record in records(store, &session).await.unwrap() {
            let point = Point::new(record.seq);
            all.push(Question::State(At::Point(session.clone(), point)));
            all.push(Question::Snapshot(SnapshotRef::Nearest(session.clone(), point)));
            all.extend(record.turn.filter(|turn| turn.begin().seq() == record.seq).map(Question::Turn));
            all.extend(record.snapshot_id.map(|id: SnapshotId| Question::Snapshot(SnapshotRef::Id(id))));
            all.extend(record.snapshot_id.map(|id: SnapshotId| Question::State(At::Snapshot(id))));
        }
    }
    // What has no answer in a sound store, an admin record's state for one, has none to lose.
    let mut answered = Vec::new();
    for question in all {
        if matches!(question.ask(store).await, Said::Value(_) | Said::Items(_) | Said::Nearest(_)) {
            answered.push(question);
        }
    }
    assert!(answered.len() > 200, "there are only {} questions", answered.len());
    answered
}

async fn records(store: &dyn Store, session: &SessionKey) -> Result<Vec<everturn::Record>> {
    let (mut found, mut query) = (Vec::new(), RecordQuery::of(session.clone()).limit(PAGE));
    loop {
        let page = store.records(query.clone()).await?;
        found.extend(page.items);
        match page.next {
            Some(next) => query = query.from(next),
            None => return Ok(found),
        }
    }
}

impl Question {
    pub(crate) async fn ask(&self, store: &SqliteStore) -> Said {
        match self.answer(store).await {
            Ok(said) => said,
            Err(error) => Said::Refused(error.kind(), format!("{error:?}")),
        }
    }

    async fn answer(&self, store: &SqliteStore) -> Result<Said> {
        match self {
            Self::Session(session) => maybe(store.session(session).await.map(|found| {
                let mut record = found?;
                record.branches.clear();
                Some(record)
            })),
            Self::Branches(session) => Ok(items(store.session(session).await?.ok_or_else(gone)?.branches)),
            Self::State(at) => maybe(store.state(at.clone()).await),
            Self::Events(at, voided) => {
                let mut query = EventQuery::at(at.clone()).limit(PAGE);
                query.voided = *voided;
                let mut found = Vec::new();
                loop {
                    let page = store.events(query.clone()).await?;
                    found.extend(page.items);
                    match page.next {
                        Some(next) => query = query.from(next),
                        None => return value(Ok(found)),
                    }
                }
            }
            Self::Tail(at, count) => value(store.events(EventQuery::at(at.clone()).tail(*count)).await),
            Self::Records(session) => value(records(store, session).await),
            Self::Snapshots(session) => {
                let (mut found, mut query) = (Vec::new(), ListSnapshots::of(session.clone()).limit(PAGE));
                loop {
                    let page = store.snapshots(query.clone()).await?;
                    found.extend(page.items);
                    match page.next {
                        Some(next) => query = query.after(next),
                        None => return Ok(items(found)),
                    }
                }
            }
            Self::Snapshot(which @ SnapshotRef::Id(_)) => maybe(store.snapshot(which.clone()).await),
            // The nearest one that is found: where one is missing, it is another.
            Self::Snapshot(which) => match store.snapshot(which.clone()).await? {
                Some(mut found) => {
                    found.orphaned = false;
                    Ok(Said::Nearest(format!("{found:?}")))
                }
                None => Ok(Said::Nothing),
            },
            Self::Tree(session) => {
                let (mut found, mut query) = (Vec::new(), TreeQuery::of(session.clone()).limit(PAGE));
                loop {
                    let page = store.tree(query.clone()).await?;
                    // A branch that is missing is asked for by itself.
                    found.extend(page.nodes.into_iter().map(|mut node| {
                        (node.orphaned, node.heads) = (false, Vec::new());
                        node
                    }));
                    match page.next {
                        Some(next) => query = query.from(next),
                        None => return value(Ok(found)),
                    }
                }
            }
            Self::Export(session) => {
                let (mut found, mut cursor) = (Vec::new(), None);
                loop {
                    let page = store.export(session, cursor.as_ref()).await?;
                    // Versions that a fork only counts on from are asked of the original.
                    let own = |entry: &Entry| !matches!(entry, Entry::Version(version) if version.of > 0);
                    found.extend(page.entries.into_iter().filter(own).map(|mut entry| {
                        if let Entry::Session(session) = &mut entry {
                            session.branches.clear();
                        }
                        entry
                    }));
                    match page.next {
                        Some(next) => cursor = Some(next),
                        None => return value(Ok(found)),
                    }
                }
            }
            Self::Artifacts(session) => Ok(items(store.artifacts(ArtifactQuery::of(session.clone())).await?)),
            Self::Preview(session) => {
                let found = store.previews(std::slice::from_ref(session)).await?;
                maybe(Ok(found.into_iter().next().flatten()))
            }
            Self::Turn(turn) => maybe(store.turn(*turn).await),
            Self::Scopes(user) => {
                let found = store.scopes(&AppName::new("app")?, Some(&UserId::new(*user)?)).await?;
                Ok(items(found))
            }
            Self::List(user) => {
                let page = store.list(ListSessions::of(AppName::new("app")?, UserId::new(*user)?).limit(100)).await?;
                Ok(items(page.items.into_iter().map(|mut record| {
                    record.branches.clear();
                    record
                })))
            }
            Self::Running => Ok(items(store.running(None).await?)),
        }
    }
}

/// Goes on in a damaged store: a refusal is as good as a turn, breaking down is not.
pub(crate) async fn write_to(store: &SqliteStore) {
    for (user, id) in SESSIONS {
        let mut delta = StateDelta::new();
        delta.set.insert("more".to_owned(), json("1"));
        let input = Input::text("go on").with_state(delta);
        let begin = BeginTurn::new(Start::Session(key(user, id)), invocation("more"), input);
        let begin = begin.busy(Busy::Refuse).branch(BranchName::main());
        let _ = store.begin(begin).await;
    }
}
