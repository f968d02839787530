//! The servers, installed by name and started by their own commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::process::{Process, free_port};
use super::wire::Wire;

/// What is installed for ADK; Genkit's packages are in `peers/genkit/package.json`.
const ADK: &str = "google-adk==2.13.0";

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Starts our server on a directory of its own, durable as it is by default.
pub(super) fn everturn(binary: &Path, dir: &Path) -> Result<Process> {
    let dir = dir.join("everturn");
    fs::create_dir_all(&dir)?;
    let mut command = Command::new(binary);
    let store = format!("sqlite:{}", dir.join("sessions.db").display());
    command.args(["serve", "--demo", "--addr", "127.0.0.1:0", "--store", &store]);
    // All that is asked comes without a key, and counts as one.
    command.args(["--max-turns-per-key", "1024"]);
    Process::start(command, &dir)
}

/// Starts another server on a directory of its own.
pub(super) fn peer(wire: Wire, dir: &Path) -> Result<Process> {
    let dir = dir.join(wire.name());
    fs::create_dir_all(&dir)?;
    match wire {
        Wire::Genkit => genkit(&dir),
        Wire::Adk => adk(&dir),
        Wire::Everturn => bail!("this is no peer"),
    }
}

/// What an acknowledged turn has gone through on each.
pub(super) fn durability(wire: Wire) -> &'static str {
    match wire {
        Wire::Everturn => "SQLite, on disk (fsync) when acknowledged, turns of many sessions in one commit",
        Wire::Genkit => "FileSessionStore: the whole state as a file each turn, renamed into place, never synced",
        Wire::Adk => "SqliteSessionService: SQLite's defaults, a commit with its fsyncs for each event",
    }
}

/// Where cargo puts what it builds, told from where this program is.
fn target() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let target = exe.parent().and_then(Path::parent).context("the benchmark is in no target directory")?;
    Ok(target.to_owned())
}

/// The binary, built anew: an old one would be measured without anybody noticing.
pub(super) fn built() -> Result<PathBuf> {
    let target = target()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--release", "-p", "everturn-server", "--manifest-path", manifest]);
    done(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release/everturn"))
}

fn genkit(dir: &Path) -> Result<Process> {
    let home = target()?.join("peers/genkit");
    fs::create_dir_all(&home)?;
    for name in ["package.json", "server.mjs"] {
        fs::copy(Path::new(PEERS).join("genkit").join(name), home.join(name))?;
    }
    let wanted = fs::read_to_string(home.join("package.json"))?;
    once(&home, &wanted, || {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        done(npm.current_dir(&home))
    })?;
    let mut command = Command::new("node");
    command.arg(home.join("server.mjs")).arg(dir.join("sessions")).env("NODE_ENV", "production");
    Process::start(command, dir)
}

fn adk(dir: &Path) -> Result<Process> {
    let home = target()?.join("peers/adk");
    fs::create_dir_all(&home)?;
    let venv = home.join("venv");
    once(&home, ADK, || {
        done(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        done(Command::new(venv.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check", ADK]))
    })?;
    // Python writes beside the sources it runs.
    let agents = dir.join("agents");
    fs::create_dir_all(agents.join("echo"))?;
    for name in ["echo/__init__.py", "echo/agent.py"] {
        fs::copy(Path::new(PEERS).join("adk").join(name), agents.join(name))?;
    }
    let addr = free_port()?;
    let mut command = Command::new(venv.join("bin/adk"));
    command.args(["api_server", "--no-reload", "--log_level", "error", "--host", "127.0.0.1", "--port"]);
    command.arg(addr.port().to_string()).arg("--session_service_uri");
    command.arg(format!("sqlite:///{}", dir.join("sessions.db").display())).arg(agents);
    Process::start_on(command, dir, addr)
}

/// Installs what is wanted, unless that was done before.
fn once(home: &Path, wanted: &str, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let note = home.join("installed");
    if fs::read_to_string(&note).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!("  installing into {}", home.display());
    install()?;
    Ok(fs::write(note, wanted)?)
}

/// Runs a command to its end.
fn done(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
    Ok(())
}
