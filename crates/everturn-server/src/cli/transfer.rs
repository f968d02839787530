//! `everturn export` and `everturn import`: a session as one file, whatever its size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use everturn::store::SnapshotIds;
use everturn::{AppName, Exporter, ImportId, Importer, SessionId, SessionKey, SystemClock, UserId};

use crate::config::Config;

/// The largest file that is read. It is held in memory while it is checked.
const MOST: usize = 4 << 30;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

#[derive(Debug, Clone, Args)]
pub(crate) struct Export {
    /// The app; of an agent it is the agent's name unless the agent says otherwise
    #[arg(value_name = "APP")]
    app: AppName,
    /// The session's id
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// Whose it is
    #[arg(long, value_name = "NAME", default_value = "user")]
    user: UserId,
    /// The file to write, which must not be there yet; the standard output when left out
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    pub(crate) async fn run(self, config: &Config, out: &mut dyn Write) -> anyhow::Result<()> {
        let path = config.store.path()?;
        anyhow::ensure!(path.exists(), "there is no store at {}: give --store sqlite:PATH", path.display());
        let mut exporter =
            Exporter::new(config.store.open(config)?.store, SessionKey::new(self.app, self.user, self.session));
        let first = exporter.next().await?.unwrap_or_default();
        let Some(target) = self.output else {
            out.write_all(first.as_bytes())?;
            while let Some(piece) = exporter.next().await? {
                out.write_all(piece.as_bytes())?;
            }
            return Ok(out.flush()?);
        };
        let mut file = private(&target)?;
        let written = write_all(&mut exporter, &mut file, &first).await;
        if written.is_err() {
            // Half a file is of no use, and looks like one that is.
            let _ = fs::remove_file(&target);
        }
        written.with_context(|| format!("cannot write {}", target.display()))
    }
}

async fn write_all(exporter: &mut Exporter, file: &mut File, first: &str) -> anyhow::Result<()> {
    file.write_all(first.as_bytes())?;
    while let Some(piece) = exporter.next().await? {
        file.write_all(piece.as_bytes())?;
    }
    Ok(file.sync_all()?)
}

/// A new file that only its owner reads: it holds what was said.
fn private(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).with_context(|| format!("cannot make {}: name a file that is not there yet", path.display()))
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Import {
    /// The file; the standard input when it is `-`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The app; the one it was exported from when left out
    #[arg(long, value_name = "APP")]
    app: Option<AppName>,
    /// Whose it shall be; whose it was when left out
    #[arg(long, value_name = "NAME")]
    user: Option<UserId>,
    /// What it shall be called; what it was called when left out
    #[arg(long, value_name = "SESSION", conflicts_with = "fresh")]
    id: Option<SessionId>,
    /// Give it a fresh id
    #[arg(long)]
    fresh: bool,
    /// Give its snapshots fresh ids: for a copy beside the original
    #[arg(long)]
    fresh_snapshots: bool,
}

impl Import {
    pub(crate) async fn run(self, config: &Config, out: &mut dyn Write) -> anyhow::Result<()> {
        config.store.path()?;
        let mut importer = Importer::new(MOST);
        if self.file.as_os_str() == "-" {
            read(&mut io::stdin().lock(), &mut importer)?;
        } else {
            let mut file = File::open(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
            read(&mut file, &mut importer)?;
        }
        let id = match (self.id, self.fresh) {
            (Some(id), _) => ImportId::Named(id),
            (None, true) => ImportId::Fresh,
            (None, false) => ImportId::Keep,
        };
        let mut session = importer.into_session(id, &SystemClock::new())?;
        session.key.app = self.app.unwrap_or(session.key.app);
        session.key.user = self.user.unwrap_or(session.key.user);
        session.snapshots = if self.fresh_snapshots { SnapshotIds::Fresh } else { SnapshotIds::Keep };
        let made = config.store.open(config)?.store.import(session).await?;
        writeln!(out, "{}", made.key())?;
        Ok(())
    }
}

fn read(from: &mut dyn Read, importer: &mut Importer) -> anyhow::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => importer.push(&piece[..count])?,
        }
    }
}
