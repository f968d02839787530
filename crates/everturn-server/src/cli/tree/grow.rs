//! Building the tree from what a store tells about a session.

use std::collections::{BTreeMap, HashMap};

use everturn::store::{ListSnapshots, MAX_PAGE, RecordQuery, Store, StoreExt};
use everturn::{
    Event, Json, Record, RecordKind, Result, Role, SessionKey, SessionRecord, Snapshot, SnapshotId, SnapshotStatus,
};

use super::{Kind, Node, Standing, Tree};

/// Everything a store tells about one session.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) session: SessionRecord,
    pub(crate) records: Vec<Record>,
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Log {
    pub(crate) async fn read(store: &dyn Store, key: &SessionKey) -> Result<Self> {
        let session = store.existing(key).await?;
        let mut records: Vec<Record> = Vec::new();
        loop {
            let after = records.last().map_or(0, |record| record.seq);
            let page = store.records(RecordQuery::of(key.clone()).after(after).limit(MAX_PAGE)).await?;
            records.extend(page.items);
            if page.next.is_none() {
                break;
            }
        }
        let mut snapshots = Vec::new();
        let mut query = ListSnapshots::of(key.clone()).limit(MAX_PAGE);
        loop {
            let page = store.snapshots(query.clone()).await?;
            snapshots.extend(page.items);
            match page.next {
                Some(cursor) => query = query.after(cursor),
                None => return Ok(Self { session, records, snapshots }),
            }
        }
    }
}

impl Tree {
    /// The tree of a session and its forks; a session comes before what was forked off it.
    pub(crate) fn grow(logs: &[Log]) -> Result<Self> {
        let mut growing = Growing::default();
        for log in logs {
            growing.add(log)?;
        }
        Ok(growing.tree)
    }
}

#[derive(Default)]
struct Growing {
    tree: Tree,
    /// The node that a record of a session belongs to.
    at: HashMap<(String, u64), usize>,
    /// The node that a snapshot names, with the snapshot before it.
    named: HashMap<SnapshotId, (usize, Option<SnapshotId>)>,
}

impl Growing {
    fn add(&mut self, log: &Log) -> Result<()> {
        let id = log.session.id.as_str();
        let first = self.tree.nodes.len();
        let mut ends: HashMap<u64, usize> = HashMap::new();
        let mut attempts = HashMap::new();
        let mut parentless = Vec::new();
        for record in log.records.iter().filter(|record| record.kind != RecordKind::Admin) {
            let known = record.turn.and_then(|turn| attempts.get(&(turn, record.attempt)).copied());
            let at = known.unwrap_or_else(|| {
                let at = self.tree.nodes.len();
                let parent = ends.get(&record.segment).copied();
                if parent.is_none() {
                    parentless.push(at);
                }
                self.tree.nodes.push(new_node(parent, record));
                if let Some(turn) = record.turn {
                    attempts.insert((turn, record.attempt), at);
                }
                at
            });
            if !record.voided && record.kind != RecordKind::Void {
                ends.insert(record.segment, at);
            }
            self.at.insert((id.to_owned(), record.seq), at);
            describe(&mut self.tree.nodes[at], record)?;
        }
        for snapshot in &log.snapshots {
            self.name(id, snapshot);
        }
        for at in parentless {
            self.tree.nodes[at].parent = if at == first { self.origin(log) } else { self.before(at).or(Some(first)) };
        }
        if let Some(root) = self.tree.nodes.get_mut(first) {
            root.kind = Kind::Session;
            root.title = if log.session.forked_from.is_some() { format!("fork {id}") } else { id.to_owned() };
        }
        self.raise(log, first);
        Ok(())
    }

    /// Notes which node a snapshot names. A step's snapshot inside a turn gives way to the one at its end.
    fn name(&mut self, session: &str, snapshot: &Snapshot) {
        let Some(at) = self.at.get(&(session.to_owned(), snapshot.point.seq())).copied() else { return };
        self.named.insert(snapshot.snapshot_id, (at, snapshot.parent_id));
        let node = &mut self.tree.nodes[at];
        node.snapshot = Some(short(snapshot.snapshot_id));
        if let (SnapshotStatus::Failed, Some(error)) = (snapshot.status, &snapshot.error) {
            node.detail = Some(format!("failed: {}", error.message));
        }
    }

    /// The node that a stretch of the tree hangs from. Records do not say; the snapshots along the line do.
    fn before(&self, at: usize) -> Option<usize> {
        let mut before = self.named.values().find(|(node, _)| *node == at)?.1;
        while let Some((node, further)) = before.and_then(|id| self.named.get(&id)) {
            if *node != at {
                return Some(*node);
            }
            before = *further;
        }
        None
    }

    /// The node that a fork was made at, if its origin is drawn too.
    fn origin(&self, log: &Log) -> Option<usize> {
        let origin = log.session.forked_from.as_ref()?;
        self.at.get(&(origin.session.to_string(), origin.point.seq())).copied()
    }

    /// Marks the lines of a session's branches and where they stand.
    fn raise(&mut self, log: &Log, first: usize) {
        for branch in &log.session.branches {
            let standing = if branch.name.is_main() { Standing::Main } else { Standing::Branch };
            let head = self.at.get(&(log.session.id.to_string(), branch.head.seq())).copied();
            if let Some(head) = head {
                let of =
                    if log.session.forked_from.is_some() { format!(" of {}", log.session.id) } else { String::new() };
                self.tree.nodes[head].heads.push(format!("{}{of}", branch.name));
            }
            let mut next = head;
            while let Some(at) = next.filter(|at| *at >= first) {
                let node = &mut self.tree.nodes[at];
                node.standing = node.standing.max(standing);
                next = node.parent;
            }
        }
    }
}

fn new_node(parent: Option<usize>, record: &Record) -> Node {
    let kind = if record.kind == RecordKind::Edit { Kind::Edit } else { Kind::Running };
    Node {
        parent,
        kind,
        standing: Standing::Nobody,
        title: String::new(),
        detail: None,
        snapshot: None,
        heads: Vec::new(),
    }
}

/// Adds what a record tells to its node.
fn describe(node: &mut Node, record: &Record) -> Result<()> {
    let body: BTreeMap<String, Json> = record.body.to()?;
    let events: Vec<Event> = body.get("events").map_or(Ok(Vec::new()), Json::to)?;
    let mut messages = events.iter().flat_map(|event| &event.messages);
    match record.kind {
        RecordKind::Begin => node.title = messages.next().map_or("(no message)".to_owned(), |said| said.text()),
        RecordKind::Step => {}
        RecordKind::End => node.kind = Kind::Turn,
        RecordKind::Void => node.kind = Kind::Void,
        RecordKind::Edit => node.title = edit_title(&body).to_owned(),
        RecordKind::Admin => return Ok(()),
    }
    if let Some(answer) = messages.rfind(|message| message.role() == Role::Model) {
        node.detail = Some(answer.text());
    }
    Ok(())
}

fn edit_title(body: &BTreeMap<String, Json>) -> &'static str {
    if body.contains_key("view") { "compaction" } else { "edit" }
}

/// The end of a snapshot's id: the beginning is the time, which all of a session's snapshots nearly share.
pub(crate) fn short(id: SnapshotId) -> String {
    let text = id.to_string();
    text[text.len() - 8..].to_owned()
}

#[cfg(test)]
mod tests {
    use everturn::store::{BeginTurn, Commit, CreateSession, EndTurn, MemoryStore, Start, StepTurn};
    use everturn::{Begun, Changes, Clock, Input, InvocationId, ManualClock, Message, NewSnapshot, View};

    use super::super::super::terminal::{ASCII, Style};
    use super::*;

    struct Talk {
        store: MemoryStore,
        /// Counts the snapshots' ids up, so that the drawing is the same each time.
        clock: ManualClock,
        key: SessionKey,
    }

    impl Talk {
        fn snapshot(&self) -> NewSnapshot {
            NewSnapshot::new(SnapshotId::from_uuid(self.clock.uuid()))
        }

        async fn begin(&self, start: Start, says: &str) -> Begun {
            let turn = BeginTurn::new(start, InvocationId::new("i").unwrap(), Input::text(says));
            self.store.begin(turn).await.unwrap().begun().unwrap()
        }

        async fn end(&self, begun: Begun, answer: &str) {
            let changes = Changes::new().event(Event::model("m", Message::model(answer)));
            self.store.end(EndTurn::completed(begun.fence, changes).snapshot(self.snapshot())).await.unwrap();
        }

        fn main(&self) -> Start {
            Start::Session(self.key.clone())
        }
    }

    #[tokio::test]
    async fn edits_steps_and_running_turns_find_their_place() {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let talk = Talk { store: MemoryStore::new(), clock, key: SessionKey::of("a", "u", "s").unwrap() };
        talk.store.create(CreateSession::at(talk.key.clone())).await.unwrap();
        talk.end(talk.begin(talk.main(), "one").await, "1").await;
        let two = talk.begin(talk.main(), "two").await;
        let iteration = StepTurn::new(two.fence, Changes::new()).snapshot(talk.snapshot());
        let inside = talk.store.step(iteration).await.unwrap();
        talk.end(two, "2").await;
        let view = Changes::new().view(View::new(2, vec![Message::model("counting")]));
        talk.store.commit(Commit::new(talk.key.clone(), view)).await.unwrap();
        talk.begin(talk.main(), "three").await;
        let from_inside = Start::Snapshot { id: inside.snapshot_id.unwrap(), session: None };
        talk.end(talk.begin(from_inside, "two and a half").await, "2.5").await;

        let log = Log::read(&talk.store, &talk.key).await.unwrap();
        let drawn = Tree::grow(&[log]).unwrap().draw(Style { glyphs: &ASCII, colour: false });
        let expected = "\
# s
* one                                     00000001
| 1
* two                                     00000003
| 2
|-* two and a half                        00000004  kept, on no branch
|   2.5
o compaction                                        < main
`-? three                                           running
";
        assert_eq!(drawn, expected);
    }
}
