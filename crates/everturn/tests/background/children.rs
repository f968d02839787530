//! Processes with an agent in them, which do what they are told line by line, and can be stopped and killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use everturn::store::{Durability, SqliteOptions, Store};
use everturn::{
    Agent, Clock, Connection, FinishReason, Init, Json, Message, Recovery, Registry, SessionKey, SnapshotId,
    SystemClock, Timestamp, Turn, TurnKey, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use crate::chaos;
use crate::gate::{detached, patience};
use crate::processes::{Child, say, setting, told, var};
use crate::support::{sid, user};

const FILE: &str = "EVERTURN_BACKGROUND_FILE";
/// How long a process may be silent, in milliseconds.
pub(crate) const LEASE: &str = "EVERTURN_BACKGROUND_LEASE_MS";
/// How often it says that it is alive, in milliseconds.
pub(crate) const HEARTBEAT: &str = "EVERTURN_BACKGROUND_HEARTBEAT_MS";
/// The tool `look` waits for ever in its second round.
pub(crate) const HOLD_TOOL: &str = "EVERTURN_BACKGROUND_HOLD_TOOL";
/// What is done about the dead: `leave`, `fail`, or so many attempts.
pub(crate) const RECOVERY: &str = "EVERTURN_BACKGROUND_RECOVERY";
/// Turns that are told to hold do not.
pub(crate) const GOES_ON: &str = "EVERTURN_BACKGROUND_GOES_ON";
/// The agent with tools instead.
pub(crate) const TOOLS: &str = "EVERTURN_BACKGROUND_TOOLS";

/// Nothing here takes so long.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    Ready,
    /// A turn has begun.
    Started {
        text: String,
        snapshot: SnapshotId,
    },
    /// A turn goes on in the background.
    Accepted {
        text: String,
        snapshot: SnapshotId,
    },
    /// A turn under that key has ended already.
    Repeated {
        text: String,
    },
    /// A handler has noticed that it was cancelled.
    Cancelled,
    Output {
        finish: Option<FinishReason>,
        error: Option<String>,
    },
    Refused {
        text: String,
        kind: String,
    },
    Recovered(usize),
    Aborted(Option<everturn::SnapshotStatus>),
    Drained(usize),
}

/// The machine's clock, with a wall clock that can be set.
#[derive(Debug)]
pub(crate) struct Jumping {
    machine: SystemClock,
    ahead: AtomicI64,
}

impl Jumping {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { machine: SystemClock::new(), ahead: AtomicI64::new(0) })
    }

    pub(crate) fn jump(&self, seconds: i64) {
        self.ahead.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.machine.now().as_micros() + self.ahead.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime()
    }

    fn boot_id(&self) -> &str {
        self.machine.boot_id()
    }

    fn uuid(&self) -> uuid::Uuid {
        self.machine.uuid()
    }
}

/// What turns may do.
#[derive(Clone)]
struct Ways {
    tell: fn(&Said),
    /// Turns that are told to hold do so, until there is a permit.
    holds: bool,
    go: Arc<Semaphore>,
}

async fn work(turn: Turn<Json>, ways: Ways) -> everturn::Handled<()> {
    let text = turn.text();
    if let Some(snapshot) = turn.snapshot_id() {
        (ways.tell)(&Said::Started { text: text.clone(), snapshot });
    }
    match text.split(' ').next().unwrap_or_default() {
        "hold" if ways.holds && text.ends_with("until go") => ways.go.acquire().await?.forget(),
        "hold" if ways.holds => std::future::pending().await,
        "listen" => {
            turn.cancelled().await;
            (ways.tell)(&Said::Cancelled);
        }
        "poison" => std::process::abort(),
        _ => {}
    }
    turn.add_message(Message::model(format!("{text} by {}", std::process::id())))?;
    Ok(())
}

fn agent(store: Arc<dyn Store>, recovery: Recovery, ways: Ways) -> Agent<Json> {
    let heartbeat = Duration::from_millis(setting(HEARTBEAT, 3_600_000));
    Agent::flow("worker", move |turn: Turn<Json>| work(turn, ways.clone()))
        .shared_store(store)
        .recovery(recovery)
        .patience(patience(|p| (p.abort_poll, p.heartbeat) = (Duration::from_millis(20), heartbeat)))
        .build()
        .expect("it fits together")
}

fn open(file: &PathBuf, lease: Duration, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let options = SqliteOptions::new(file).durability(Durability::ProcessSafe).clock(clock);
    Arc::new(options.lease(lease).poll(Duration::from_millis(20)).open().expect("the file opens"))
}

fn recovery() -> Recovery {
    match var(RECOVERY).as_deref() {
        None | Some("leave") => Recovery::Leave,
        Some("fail") => Recovery::Fail,
        Some(attempts) => Recovery::Retry { attempts: attempts.parse().expect("the parent writes numbers") },
    }
}

#[test]
#[ignore = "run by the tests beside it, in a process of its own"]
fn child() {
    let Some(file) = var(FILE).map(PathBuf::from) else { return };
    let clock = Jumping::new();
    let store = open(&file, Duration::from_millis(setting(LEASE, 600_000)), clock.clone());
    let go = Arc::new(Semaphore::new(0));
    let ways = Ways { tell: |said| say(said), holds: var(GOES_ON).is_none(), go: go.clone() };
    let agent = match var(TOOLS) {
        Some(_) => chaos::agent(store, &file, recovery()),
        None => agent(store, recovery(), ways),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (tell, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(line) = told()
            && tell.send(line).is_ok()
        {}
    });
    runtime.block_on(async move {
        let mut inside = Inside { agent, clock, go, attached: None, worker: None };
        say(&Said::Ready);
        while let Some(line) = lines.recv().await {
            inside.obey(&line).await;
        }
    });
}

/// What is in a child.
struct Inside {
    agent: Agent<Json>,
    clock: Arc<Jumping>,
    go: Arc<Semaphore>,
    attached: Option<Connection>,
    worker: Option<Worker>,
}

impl Inside {
    /// Does one thing: `detach SESSION TEXT`, and so on.
    async fn obey(&mut self, line: &str) {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (what, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match command {
            "detach" => self.accept(Init::session(sid(what)), text.to_owned(), self.agent.clone()),
            "keyed" => {
                let init = Init::session(sid(what)).key(TurnKey::new(text).expect("the parent writes keys"));
                self.accept(init, text.to_owned(), self.agent.clone());
            }
            "detach-as" => {
                let agent = self.agent.for_user(user(what));
                self.accept(Init::session(sid("s")), text.to_owned(), agent);
            }
            "attach" => {
                let connection = self.agent.connect(Init::session(sid(what))).await.expect("it starts");
                connection.send_text(text).await.expect("it listens");
                self.attached = Some(connection);
            }
            "output" => {
                let mut connection = self.attached.take().expect("something is attached");
                tokio::spawn(async move {
                    let output = connection.output().await.expect("it was begun");
                    let error = output.error.map(|error| error.status);
                    say(&Said::Output { finish: output.finish_reason, error });
                });
            }
            "leave" => {
                let connection = self.attached.as_mut().expect("something is attached");
                let output = connection.detach().await.expect("a turn runs");
                say(&Said::Accepted { text: String::new(), snapshot: output.snapshot_id.expect("it has a row") });
            }
            "abort" => {
                let id = what.parse().expect("the parent writes ids");
                say(&Said::Aborted(self.agent.abort(id).await.expect("the store is there")));
            }
            "drain" => say(&Said::Drained(self.agent.drain(LONG).await)),
            "recover" => say(&Said::Recovered(self.agent.recover().await.expect("the store is there").len())),
            "work" => {
                let mut registry = Registry::new();
                registry.register(self.agent.clone()).expect("it is the first");
                self.worker = Some(Worker::start(registry, Duration::from_millis(20)));
            }
            "shutdown" => {
                let within = Duration::from_millis(what.parse().expect("the parent writes numbers"));
                let worker = self.worker.take().expect("it works");
                say(&Said::Drained(worker.shutdown(within).await));
            }
            "jump" => self.clock.jump(what.parse().expect("the parent writes numbers")),
            "go" => self.go.add_permits(1),
            "stay" => {
                self.go.forget_permits(usize::MAX);
            }
            other => panic!("there is no {other}"),
        }
    }

    /// Sends an input to the background, and says what became of that.
    fn accept(&self, init: Init, text: String, agent: Agent<Json>) {
        tokio::spawn(async move {
            match agent.run(detached(&text), init).await {
                Ok(output) if output.finish_reason != Some(FinishReason::Detached) => say(&Said::Repeated { text }),
                Ok(output) => say(&Said::Accepted { text, snapshot: output.snapshot_id.expect("it has a row") }),
                Err(error) => say(&Said::Refused { text, kind: error.kind().name().to_owned() }),
            }
        });
    }
}

/// A file, for several processes.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("there is room") }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("sessions.db")
    }

    /// A process that waits for orders.
    pub(crate) fn child(&self, vars: &[(&str, &str)]) -> Process {
        let file = self.file();
        let mut all = vec![(FILE, file.to_str().expect("it is text"))];
        all.extend(vars);
        let child = Process(Child::start("children::child", &all));
        assert!(matches!(child.next(), Said::Ready));
        child
    }

    pub(crate) fn store(&self, lease: Duration) -> Arc<dyn Store> {
        open(&self.file(), lease, Arc::new(SystemClock::new()))
    }

    /// The same agent here, whose turns hold for nothing.
    pub(crate) fn agent(&self, recovery: Recovery) -> Agent<Json> {
        self.agent_with(recovery, Arc::new(SystemClock::new()), LONG)
    }

    pub(crate) fn agent_with(&self, recovery: Recovery, clock: Arc<dyn Clock>, lease: Duration) -> Agent<Json> {
        let ways = Ways { tell: |_| {}, holds: false, go: Arc::new(Semaphore::new(0)) };
        agent(open(&self.file(), lease, clock), recovery, ways)
    }
}

/// A process of ours, killed when dropped.
pub(crate) struct Process(Child);

impl Process {
    /// The next thing it says, which it does.
    pub(crate) fn next(&self) -> Said {
        self.0.hear().expect("the child lives")
    }

    /// The next thing it says, if it still says anything.
    pub(crate) fn hear(&self) -> Option<Said> {
        self.0.hear()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        self.0.tell(line);
    }

    pub(crate) fn signal(&self, name: &str) {
        self.0.signal(name);
    }

    pub(crate) fn kill(self) {
        self.last_words();
    }

    /// Kills it at once and gives everything it still had said.
    pub(crate) fn last_words(self) -> Vec<Said> {
        self.0.kill()
    }

    /// What it has said so far and nobody has heard.
    pub(crate) fn heard(&self) -> Vec<Said> {
        self.0.heard()
    }

    /// The snapshot of a turn that has been accepted and has started, in whichever order that is told.
    pub(crate) fn accepted(&self) -> SnapshotId {
        let (mut accepted, mut started) = (None, None);
        while accepted.is_none() || started.is_none() {
            match self.next() {
                Said::Accepted { snapshot, .. } => accepted = Some(snapshot),
                Said::Started { snapshot, .. } => started = Some(snapshot),
                other => panic!("the child said {other:?}"),
            }
        }
        assert_eq!(accepted, started);
        accepted.expect("it was told")
    }

    /// The next turn that starts in it.
    pub(crate) fn started(&self) -> SnapshotId {
        match self.next() {
            Said::Started { snapshot, .. } => snapshot,
            other => panic!("the child said {other:?}"),
        }
    }
}

/// The key of a session of the agent in the children.
pub(crate) fn of_worker(who: &str, id: &str) -> SessionKey {
    SessionKey::of("worker", who, id).unwrap()
}
