//! `everturn verify`: whether what a store holds is what was written to it.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use everturn::store::{ListSessions, MAX_PAGE, SessionOrder, Store, Verified, VerifyScope};
use everturn::{AppName, Error, ErrorKind, SessionId, SessionKey, UserId};
use serde_json::{Value, json};

use crate::config::Config;

/// How often progress is told.
const PACE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Args)]
pub(crate) struct Verify {
    /// Only this session; its rows are compared with each other, the file itself is not checked
    #[arg(long, value_name = "APP/USER/ID")]
    session: Option<Named>,
    /// Write what was found as JSON
    #[arg(long)]
    json: bool,
}

/// A session by its whole name.
#[derive(Debug, Clone)]
struct Named(SessionKey);

impl FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        let (Some(app), Some(user), Some(id)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("write the app, the user and the session with slashes between them".to_owned());
        };
        let key = || Ok(SessionKey::new(AppName::new(app)?, UserId::new(user)?, SessionId::new(id)?));
        key().map(Self).map_err(|error: Error| error.to_string())
    }
}

impl Verify {
    /// 0 when all is as it was written, 1 when damage was found, 2 when it cannot be told.
    pub(crate) async fn run(self, config: &Config, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        match self.verify(config).await {
            Ok(report) => {
                if self.json {
                    writeln!(out, "{}", as_json(&report))?
                } else {
                    tell(&report, out)?
                }
                Ok(ExitCode::from(u8::from(report.damaged > 0)))
            }
            Err(error) => {
                eprintln!("everturn: it cannot be verified: {error:#}");
                Ok(ExitCode::from(2))
            }
        }
    }

    async fn verify(&self, config: &Config) -> anyhow::Result<Verified> {
        let path = config.store.path()?;
        anyhow::ensure!(path.exists(), "there is no store at {}: give --store sqlite:PATH", path.display());
        let store = match config.store.open(config) {
            Ok(opened) => opened.store,
            Err(error) => return damaged_file(error),
        };
        match &self.session {
            Some(Named(key)) => Ok(store.verify(VerifyScope::Session(key.clone())).await?),
            None => all(&*store).await,
        }
    }
}

/// A file that is too damaged to be opened is damage, too.
fn damaged_file(error: anyhow::Error) -> anyhow::Result<Verified> {
    match error.downcast_ref::<Error>() {
        Some(cause) if cause.kind() == ErrorKind::Corrupt => {
            let mut report = Verified::default();
            report.add(Verified::of_damage(None, cause.to_string()));
            Ok(report)
        }
        _ => Err(error),
    }
}

/// Session by session, so that a store that is in use is not kept from anything for long.
async fn all(store: &dyn Store) -> anyhow::Result<Verified> {
    let Some(sessions) = sessions(store).await? else { return Ok(store.verify(VerifyScope::All).await?) };
    let mut progress = Progress::new(sessions.len());
    let mut report = store.verify(VerifyScope::Rows).await?;
    for key in sessions {
        match store.verify(VerifyScope::Session(key)).await {
            Ok(found) => report.add(found),
            // It was deleted since they were listed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        progress.tell(&report);
    }
    progress.clear();
    Ok(report)
}

/// All sessions; nothing where they cannot be listed.
async fn sessions(store: &dyn Store) -> anyhow::Result<Option<Vec<SessionKey>>> {
    let mut query = ListSessions::default().limit(MAX_PAGE).order(SessionOrder::CreatedOldest);
    let mut found = Vec::new();
    loop {
        let page = match store.list(query.clone()).await {
            Ok(page) => page,
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        found.extend(page.items.iter().map(|session| session.key()));
        match page.next {
            Some(next) => query = query.after(next),
            None => return Ok(Some(found)),
        }
    }
}

fn tell(report: &Verified, out: &mut dyn Write) -> io::Result<()> {
    let Verified { sessions, records, snapshots, damages, damaged, .. } = report;
    for damage in damages {
        match (&damage.session, damage.point.seq()) {
            (Some(session), 0) => writeln!(out, "{session}: {}", damage.what)?,
            (Some(session), seq) => writeln!(out, "{session}, record {seq}: {}", damage.what)?,
            (None, _) => writeln!(out, "{}", damage.what)?,
        }
    }
    let more = damaged.saturating_sub(damages.len() as u64);
    if more > 0 {
        writeln!(out, "and {more} more")?;
    }
    let checked = format!("{sessions} sessions, {records} records and {snapshots} snapshots were checked");
    match damaged {
        0 => writeln!(out, "{checked}: all is as it was written"),
        _ => writeln!(out, "{checked}: {damaged} damages. Restore a backup; what reads without an error is sound"),
    }
}

fn as_json(report: &Verified) -> Value {
    let damages = report.damages.iter().map(|damage| {
        let session = damage.session.as_ref().map(|key| json!({"app": key.app, "user": key.user, "id": key.id}));
        let record = (damage.point.seq() > 0).then(|| damage.point.seq());
        json!({"session": session, "record": record, "what": damage.what})
    });
    json!({
        "sound": report.damaged == 0,
        "sessions": report.sessions,
        "records": report.records,
        "snapshots": report.snapshots,
        "damaged": report.damaged,
        "damages": damages.collect::<Vec<_>>(),
    })
}

/// What is told on a terminal while it takes its time.
struct Progress {
    of: usize,
    told: Option<Instant>,
}

impl Progress {
    fn new(of: usize) -> Self {
        Self { of, told: io::stderr().is_terminal().then(Instant::now) }
    }

    fn tell(&mut self, report: &Verified) {
        if self.told.is_some_and(|told| told.elapsed() >= PACE) {
            self.told = Some(Instant::now());
            eprint!("\r{} of {} sessions, {} damages ", report.sessions, self.of, report.damaged);
        }
    }

    fn clear(&self) {
        if self.told.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
