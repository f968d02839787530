//! `everturn demo`: a short conversation with everything that can happen to one, and the tree it leaves.

use std::io::Write;
use std::path::Path;

use anyhow::ensure;
use everturn::store::{
    At, BeginTurn, BranchChange, CreateSession, EndTurn, ForkSession, ListSessions, MAX_PAGE, SqliteStore, Start,
    StepTurn, Store, StoreExt, VerifyScope,
};
use everturn::{
    Begun, BranchName, Changes, Clock, EndStatus, ErrorKind, Event, Input, InvocationId, Json, Message, NewSnapshot,
    Outcome, Receipt, SessionId, SessionKey, SnapshotId, SystemClock, ToolEntry, ToolPhase, TurnError,
};

use super::terminal::{Ink, Style};
use super::tree::{Log, Tree, short};

const APP: &str = "demo";
const USER: &str = "ann";
const AGENT: &str = "planner";

/// Plays the conversation in the store at a path and draws what it left.
pub(crate) async fn run(path: &Path, style: Style, out: &mut dyn Write) -> anyhow::Result<()> {
    let store = SqliteStore::open(path)?;
    let mut demo = Demo { store, clock: SystemClock::new(), style, out };
    demo.title(&format!("Everturn keeps conversations of AI agents. This one goes to {}:", path.display()))?;
    let key = demo.new_session().await?;
    let played = demo.play(&key).await?;

    // What follows is read by a store that was not there when it was written.
    demo.store = reopened(demo.store, path)?;
    demo.show(&key, &played).await?;
    demo.close(path).await
}

fn reopened(store: SqliteStore, path: &Path) -> everturn::Result<SqliteStore> {
    drop(store);
    SqliteStore::open(path)
}

struct Demo<'a> {
    store: SqliteStore,
    clock: SystemClock,
    style: Style,
    out: &'a mut dyn Write,
}

/// What the conversation left that is shown by itself.
struct Played {
    fork: SessionKey,
    undone: Receipt,
}

impl Demo<'_> {
    /// Each run has a session of its own: `lisbon-1`, `lisbon-2`, and so on.
    async fn new_session(&mut self) -> anyhow::Result<SessionKey> {
        let mut number = self.sessions().await? / 2 + 1;
        loop {
            let key = SessionKey::of(APP, USER, &format!("lisbon-{number}"))?;
            let new = CreateSession::at(key.clone()).title("A weekend in Lisbon").seed(self.fresh_id());
            match self.store.create(new.state("user:currency", Json::parse("\"EUR\"")?)).await {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    self.step("session", &format!("{} is created", key.id))?;
                    return Ok(key);
                }
            }
        }
    }

    async fn play(&mut self, key: &SessionKey) -> anyhow::Result<Played> {
        let main = || (Start::Session(key.clone()), BranchName::main());
        let plan = Exchange::new("Plan two days in Lisbon", "Alfama, then Belem: 310 EUR.", "Lisbon", 310);
        let plan = self.turn(main(), plan).await?;
        self.failing_turn(key, "Book the hotel", "the booking desk did not answer").await?;
        let sintra = self.turn(main(), Exchange::new("Add a day in Sintra", "Done: 395 EUR.", "Lisbon", 395)).await?;
        let undone =
            self.turn(main(), Exchange::new("Make it five stars", "Gladly: 2140 EUR.", "Lisbon", 2140)).await?;

        self.store.rewind(key, sintra.point).await?;
        self.step("rewind", "that is too much: main goes back one turn")?;
        let tickets = Exchange::new("Add the oceanarium", "Booked for Sunday: 420 EUR.", "Lisbon", 420);
        let tickets = self.turn(main(), tickets).await?;

        let budget = BranchName::new("budget")?;
        self.store.branch(key, BranchChange::Create { name: budget.clone(), at: plan.point }).await?;
        self.step("branch", "budget starts after the first turn")?;
        let hostels = Exchange::new("Hostels only, please", "Two bunks: 95 EUR.", "Lisbon", 95);
        self.turn((Start::Session(key.clone()), budget), hostels).await?;

        self.two_at_once(key, &tickets).await?;

        let fork = SessionId::new(format!("{}-porto", key.id))?;
        let fork = self.store.fork(ForkSession::at(At::Point(key.clone(), plan.point)).id(fork)).await?.key();
        self.step("fork", &format!("{} goes its own way from there on", fork.id))?;
        let porto = Exchange::new("The same in Porto", "Ribeira, then Foz: 260 EUR.", "Porto", 260);
        self.turn((Start::Session(fork.clone()), BranchName::main()), porto).await?;
        Ok(Played { fork, undone })
    }

    /// One turn from its begin to its end.
    async fn turn(&mut self, on: (Start, BranchName), exchange: Exchange) -> anyhow::Result<Receipt> {
        let begun = self.begin(on, exchange.says).await?;
        let receipt = self.end(&begun, &exchange).await?;
        self.step("turn", exchange.says)?;
        Ok(receipt)
    }

    async fn begin(&self, (start, branch): (Start, BranchName), says: &str) -> anyhow::Result<Begun> {
        let turn = BeginTurn::new(start, InvocationId::new("demo")?, Input::text(says)).branch(branch);
        Ok(self.store.begin(turn).await?.begun()?)
    }

    async fn end(&self, begun: &Begun, exchange: &Exchange) -> anyhow::Result<Receipt> {
        let event = Event::model(AGENT, Message::model(exchange.answer));
        let changes = Changes::new().event(event).custom(Json::parse(&exchange.custom)?);
        let end = EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(self.fresh_id()));
        Ok(self.store.end(end).await?)
    }

    /// A turn that wrote down a tool call and got no further.
    async fn failing_turn(&mut self, key: &SessionKey, says: &str, why: &str) -> anyhow::Result<()> {
        let begun = self.begin((Start::Session(key.clone()), BranchName::main()), says).await?;
        let call = ToolEntry::new("c1", "book_hotel", ToolPhase::Started, None);
        self.store.step(StepTurn::new(begun.fence, Changes::new().tool(call))).await?;
        let outcome = Outcome::failed(TurnError::new("UNAVAILABLE", why));
        let end = EndTurn::voided(begun.fence, EndStatus::Failed, outcome);
        self.store.end(end.snapshot(NewSnapshot::new(self.fresh_id()))).await?;
        self.step("failure", &format!("{says}: {why}, so main stays where it was"))
    }

    /// Two turns that start from the same point: one holds the branch, the other goes on beside it.
    async fn two_at_once(&mut self, key: &SessionKey, from: &Receipt) -> anyhow::Result<()> {
        let pack = Exchange::new("What shall I pack?", "A raincoat.", "Lisbon", 420);
        let read = Exchange::new("What shall I read?", "Pessoa.", "Lisbon", 420);
        let holder = self.begin((Start::Session(key.clone()), BranchName::main()), pack.says).await?;
        let at_same_point = Start::Point { session: key.clone(), point: from.point };
        let beside = self.begin((at_same_point, BranchName::main()), read.says).await?;
        let second = self.end(&beside, &read).await?;
        let first = self.end(&holder, &pack).await?;
        ensure!(first.on_head && !second.on_head, "the turn that held the branch did not move its head");
        self.step("two turns", "at once: one moves main, the other is kept beside it")
    }

    async fn show(&mut self, key: &SessionKey, played: &Played) -> anyhow::Result<()> {
        let verified = self.store.verify(VerifyScope::Session(key.clone())).await?;
        ensure!(verified.damage.is_none(), "the store is damaged: {:?}", verified.damage);
        self.step("reopen", &format!("closed, opened again, {} records verified", verified.records))?;

        self.title("Nothing was deleted. The tree it left:")?;
        let logs = [Log::read(&self.store, key).await?, Log::read(&self.store, &played.fork).await?];
        let drawing = Tree::grow(&logs)?.draw(self.style);
        let glyphs = self.style.glyphs;
        for line in drawing.lines() {
            writeln!(self.out, "  {line}")?;
        }
        let legend = format!(
            "{} turn  {} void turn  {} session or fork  {} head of a branch  (at the right: how a snapshot's id ends)",
            glyphs.turn, glyphs.void, glyphs.session, glyphs.head
        );
        writeln!(self.out, "\n  {}", self.style.paint(Ink::Faint, &legend))?;

        self.title("What its heads and its past read as:")?;
        self.reading("main", At::head(key.clone())).await?;
        self.reading("budget", At::Head(key.clone(), BranchName::new("budget")?)).await?;
        self.reading(&format!("fork {}", played.fork.id), At::head(played.fork.clone())).await?;
        if let Some(id) = played.undone.snapshot_id {
            self.reading(&format!("undone {}", short(id)), At::Snapshot(id)).await?;
        }
        let scopes = self.store.scopes(&key.app, Some(&key.user)).await?;
        let shared: Vec<_> = scopes.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(self.out, "  {:<22} {}", "all of the user's", shared.join(", "))?;
        Ok(())
    }

    async fn reading(&mut self, name: &str, at: At) -> anyhow::Result<()> {
        let Some(state) = self.store.state(at).await? else { return Ok(()) };
        let custom = state.custom().map_or("no custom state", Json::as_str);
        writeln!(self.out, "  {name:<22} {} messages, {custom}", state.messages().len())?;
        Ok(())
    }

    async fn close(&mut self, path: &Path) -> anyhow::Result<()> {
        let sessions = self.sessions().await?;
        let path = path.display();
        self.title("What to try:")?;
        writeln!(self.out, "  Run it again: {path} holds {sessions} sessions now, and the next run adds two.")?;
        writeln!(self.out, "  Read one idea at a time: cargo run -p everturn-examples --bin quickstart")?;
        writeln!(self.out, "  Build on it: README.md has the first twenty lines, examples/src/bin the rest.")?;
        Ok(())
    }

    /// How many sessions the store holds, whoever made them.
    async fn sessions(&self) -> anyhow::Result<usize> {
        let mut query = ListSessions::default().limit(MAX_PAGE);
        let mut count = 0;
        loop {
            let page = self.store.list(query.clone()).await?;
            count += page.items.len();
            match page.next {
                Some(cursor) => query = query.after(cursor),
                None => return Ok(count),
            }
        }
    }

    fn fresh_id(&self) -> SnapshotId {
        SnapshotId::from_uuid(self.clock.uuid())
    }

    fn title(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.out, "\n{}\n", self.style.paint(Ink::Strong, text))?;
        Ok(())
    }

    fn step(&mut self, what: &str, text: &str) -> anyhow::Result<()> {
        let what = self.style.paint(Ink::Name, &format!("{what:<9}"));
        writeln!(self.out, "  {what} {text}")?;
        Ok(())
    }
}

/// What is said in one turn, and what the agent's state is after it.
struct Exchange {
    says: &'static str,
    answer: &'static str,
    custom: String,
}

impl Exchange {
    fn new(says: &'static str, answer: &'static str, city: &str, cost: u32) -> Self {
        Self { says, answer, custom: format!(r#"{{"city":"{city}","cost":{cost}}}"#) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::terminal::{ASCII, UNICODE};
    use super::*;

    async fn play(path: &Path, style: Style) -> String {
        let mut out = Vec::new();
        run(path, style, &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The drawing without what differs from run to run.
    fn drawing(output: &str) -> String {
        let lines = output.lines().skip_while(|line| !line.contains("The tree it left")).skip(2);
        let lines = lines.take_while(|line| !line.is_empty()).map(|line| {
            let is_id = |word: &str| word.len() == 8 && word.bytes().all(|b| b.is_ascii_hexdigit());
            let id = line.split_whitespace().find(|word| is_id(word));
            line.replace(id.unwrap_or("none of them"), "--------") + "\n"
        });
        lines.collect()
    }

    #[tokio::test]
    async fn the_demo_leaves_the_tree_it_tells_of() {
        let dir = tempfile::tempdir().unwrap();
        let output = play(&dir.path().join("sessions.db"), Style { glyphs: &UNICODE, colour: false }).await;
        let expected = "  \
  ◆ lisbon-1                                --------
  ● Plan two days in Lisbon                 --------
  │ Alfama, then Belem: 310 EUR.
  ├─✗ Book the hotel                        --------  void
  │   failed: the booking desk did not answer
  ├─● Hostels only, please                  --------  ◀ budget
  │   Two bunks: 95 EUR.
  ├─◆ fork lisbon-1-porto                   --------
  │ ● The same in Porto                     --------  ◀ main of lisbon-1-porto
  │   Ribeira, then Foz: 260 EUR.
  ● Add a day in Sintra                     --------
  │ Done: 395 EUR.
  ├─● Make it five stars                    --------  kept, on no branch
  │   Gladly: 2140 EUR.
  ● Add the oceanarium                      --------
  │ Booked for Sunday: 420 EUR.
  ├─● What shall I read?                    --------  kept, on no branch
  │   Pessoa.
  ● What shall I pack?                      --------  ◀ main
    A raincoat.
";
        assert_eq!(drawing(&output), expected, "{output}");
    }

    #[tokio::test]
    async fn each_run_adds_to_the_same_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("sessions.db");
        let ascii = Style { glyphs: &ASCII, colour: false };
        let first = play(&path, ascii).await;
        let second = play(&path, ascii).await;
        assert!(first.is_ascii() && first.contains("# lisbon-1 ") && first.contains("2 sessions"), "{first}");
        assert!(second.contains("# lisbon-2 ") && second.contains("4 sessions"), "{second}");
    }

    #[tokio::test]
    async fn a_file_of_somebody_else_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "dear diary").unwrap();
        let error = run(&path, Style { glyphs: &ASCII, colour: false }, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("notes.txt is not an Everturn store") && !error.contains('\n'), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary");
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let path = dir.path().join("file").join("sessions.db");
        let error = run(&path, Style { glyphs: &ASCII, colour: false }, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("check the path and its permissions") && !error.contains('\n'), "{error}");
    }
}
