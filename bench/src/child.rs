//! Other processes: the benchmark starts itself in a hidden role and talks to it by lines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Subcommand;
use everturn::store::{At, BeginTurn, Busy, Durability, EndTurn, SqliteOptions, SqliteStore, Start, Store as _};
use everturn::{Changes, Event, Input, InvocationId, NewSnapshot, SnapshotId};

use crate::agents::Agents;
use crate::stats::millis;
use crate::workload::{Talk, fresh_snapshot_id, key, timed_turn};

/// Of so many turns by each process of a crowd, one is on the session they share.
pub(crate) const SHARED_EVERY: usize = 10;

/// What a child does.
#[derive(Subcommand)]
pub(crate) enum Role {
    /// Takes a turn for each line `<long|short> <session>`, answering with its nanoseconds.
    Turns {
        #[arg(long)]
        seed: u64,
        long: PathBuf,
        short: PathBuf,
    },
    /// Opens a store and reads the state at a snapshot, then says how long all of it and the opening took.
    ColdOpen { path: PathBuf, snapshot: String },
    /// Takes turns on a session of its own and on one shared with others, then says the longest call on each.
    Crowd { path: PathBuf, process: usize, turns: usize },
    /// Has an agent take turns: for each line `<sessions> <milliseconds>` it answers with turns/s.
    Agents { path: PathBuf },
}

impl Role {
    pub(crate) fn play(self) -> Result<()> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        if !matches!(self, Self::Agents { .. }) {
            runtime.worker_threads(1);
        }
        let runtime = runtime.enable_all().build()?;
        runtime.block_on(async {
            match self {
                Self::Turns { seed, long, short } => take_turns(seed, long, short).await,
                Self::ColdOpen { path, snapshot } => cold_open(path, snapshot.parse()?).await,
                Self::Crowd { path, process, turns } => crowd(path, process, turns).await,
                Self::Agents { path } => agents(&path).await,
            }
        })
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

async fn take_turns(seed: u64, long: PathBuf, short: PathBuf) -> Result<()> {
    let open = |path| SqliteOptions::new(path).durability(Durability::ProcessSafe).open();
    let (long, short) = (open(long)?, open(short)?);
    let mut talk = Talk::seeded(seed);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (store, session) = match line.split_once(' ') {
            Some(("long", session)) => (&long, session),
            Some(("short", session)) => (&short, session),
            _ => bail!("{line:?} is nothing a child does"),
        };
        let took = timed_turn(store, &key(session)?, talk.plain()?).await?;
        say(&took.as_nanos().to_string())?;
    }
    Ok(())
}

async fn cold_open(path: PathBuf, snapshot: SnapshotId) -> Result<()> {
    let start = Instant::now();
    let store = SqliteStore::open(path)?;
    let opened = start.elapsed();
    let state = store.state(At::Snapshot(snapshot)).await?.context("the snapshot is missing")?;
    let all = start.elapsed();
    ensure!(!state.messages().is_empty(), "the state has no messages");
    say(&format!("{} {}", millis(all), millis(opened)))
}

async fn crowd(path: PathBuf, process: usize, turns: usize) -> Result<()> {
    let store = SqliteStore::open(path)?;
    let (own, shared) = (key(&format!("own-{process}"))?, key("shared")?);
    let mut talk = Talk::seeded(1_000 + process as u64);
    let (mut longest_own, mut longest_shared) = (Duration::ZERO, Duration::ZERO);
    for i in 1..=turns {
        let (key, longest) = match i % SHARED_EVERY {
            0 => (&shared, &mut longest_shared),
            _ => (&own, &mut longest_own),
        };
        let content = talk.plain()?;
        let begin =
            BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::messages([content.user]))
                .busy(Busy::Wait(Duration::from_secs(30)));
        let start = Instant::now();
        let begun = store.begin(begin).await?.begun()?;
        *longest = start.elapsed().max(*longest);
        let mut changes = Changes::new().event(Event::model("helper", content.model));
        changes.custom = content.custom.map(everturn::CustomChange::Set);
        let end = EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(fresh_snapshot_id()));
        let start = Instant::now();
        store.end(end).await?;
        *longest = start.elapsed().max(*longest);
    }
    say(&format!("{} {}", millis(longest_shared), millis(longest_own)))
}

async fn agents(path: &Path) -> Result<()> {
    let mut agents = Agents::open(path)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (sessions, millis) = line.split_once(' ').with_context(|| format!("{line:?} is nothing a child does"))?;
        let rate = agents.turns_per_second(sessions.parse()?, Duration::from_millis(millis.parse()?)).await?;
        say(&rate.to_string())?;
    }
    Ok(())
}

/// A child process, killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        Self::start_of(&std::env::current_exe()?, args)
    }

    /// The same by another build of the benchmark.
    pub(crate) fn start_of(program: &Path, args: &[&str]) -> Result<Self> {
        let mut process = Command::new(program)
            .arg("child")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().context("a child has no output")?);
        Ok(Self { process, input, output })
    }

    /// The next line it says.
    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line)?;
        ensure!(read > 0, "a child process ended early; what it said is above");
        Ok(line.trim().to_owned())
    }

    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        let input = self.input.as_mut().context("the child was told that nothing follows")?;
        writeln!(input, "{line}")?;
        self.hear()
    }

    /// Tells it that nothing follows, and waits until it is gone.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.input = None;
        let status = self.process.wait()?;
        ensure!(status.success(), "a child process failed: {status}");
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
