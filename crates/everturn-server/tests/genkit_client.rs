//! Genkit's own JS client, unmodified, against the built binary.
//!
//! What the client is asked to do is written in JavaScript, in `tests/genkit`; `support.mjs` there says how to run it by
//! hand. Here the binary is started on a store, the npm package is installed once below the target directory, and Node's
//! own test runner judges.
//!
//! Without Node, npm or a registry there is nothing to judge with: that is said loudly, and is a failure in CI.

mod common;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Server, sqlite_in};
use tempfile::TempDir;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/genkit");

/// The scripts use what came with this one.
const NODE: u32 = 20;

/// For each file of tests. A client that spins starves its own timers, so the runner must end it from outside.
const FILE_TIMEOUT: &str = "--test-timeout=120000";

#[test]
fn genkits_own_client_works_on_a_sqlite_store() {
    let Some(suite) = Suite::installed() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    suite.run(&server, &suite.default_set(), &[]);
}

#[test]
fn genkits_own_client_works_on_a_memory_store() {
    let Some(suite) = Suite::installed() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start(dir.path(), "memory:");
    suite.run(&server, &suite.default_set(), &[]);
}

#[test]
fn a_genkit_chat_goes_on_after_the_server_was_killed() {
    let Some(suite) = Suite::installed() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let note = dir.path().join("note.json");
    let note = note.to_str().expect("a path in UTF-8");
    for phase in ["write", "read"] {
        let server = Server::start(dir.path(), &sqlite_in(dir.path()));
        suite.run(&server, &["restart.mjs".into()], &[("EVERTURN_PHASE", phase), ("EVERTURN_NOTE", note)]);
        // Dropped here, and that is a kill.
    }
}

/// The scripts, copied to where they find the npm package: a module is resolved from its own place, whatever the working
/// directory is.
struct Suite {
    dir: TempDir,
}

impl Suite {
    /// None, loudly, if they cannot be run here.
    fn installed() -> Option<Self> {
        match node_is_new_enough().and_then(|()| install()) {
            Ok(home) => Some(Self { dir: copy_scripts(&home) }),
            Err(why) => {
                let ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
                assert!(!ci, "Genkit's client cannot be run, and must be in CI: {why}");
                // Not eprintln, which nobody sees of a test that passes.
                let _ = writeln!(io::stderr(), "\n== NOT RUN, Genkit's client is not there: {why}\n");
                None
            }
        }
    }

    /// What `node --test` would find: `*.test.mjs`.
    fn default_set(&self) -> Vec<String> {
        let names = names_in(self.dir.path(), ".test.mjs");
        assert!(!names.is_empty(), "there are no scripts in {SCRIPTS}");
        names
    }

    fn run(&self, server: &Server, files: &[String], env: &[(&str, &str)]) {
        let output = Command::new("node")
            .args(["--test", "--test-reporter=spec", FILE_TIMEOUT])
            .args(files)
            .current_dir(self.dir.path())
            .env("EVERTURN_URL", format!("{}/genkit", server.url))
            .env("NO_COLOR", "1")
            .envs(env.iter().copied())
            .output()
            .expect("node runs");
        assert!(output.status.success(), "{}\n{}", told(&output), server.logs());
    }
}

fn node_is_new_enough() -> Result<(), String> {
    let output = Command::new("node").arg("--version").output().map_err(|e| format!("node: {e}"))?;
    let version = String::from_utf8_lossy(&output.stdout);
    let major = version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= NODE => Ok(()),
        _ => Err(format!("node {NODE} or newer is needed, this is {:?}", version.trim())),
    }
}

/// Installs what `package.json` asks for, unless that was done before, and says where.
fn install() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("genkit");
    let wanted = fs::read(Path::new(SCRIPTS).join("package.json")).expect("package.json is there");
    fs::create_dir_all(&home).expect("a directory below target");
    // Tests run in parallel, as threads or as processes; the first one installs for all. The system gives the lock back
    // when its holder dies.
    let lock = File::create(home.join("lock")).expect("a lock file");
    lock.lock().expect("the lock is given");
    let done = home.join("installed.json");
    if fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(home);
    }
    fs::write(home.join("package.json"), &wanted).expect("package.json is copied");
    let output = Command::new("npm")
        .args([
            "install",
            "--omit=optional",
            "--no-package-lock",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ])
        .current_dir(&home)
        .output()
        .map_err(|e| format!("npm: {e}"))?;
    if !output.status.success() {
        return Err(format!("npm install: {}", told(&output)));
    }
    fs::write(done, wanted).expect("the installation is noted");
    Ok(home)
}

fn copy_scripts(home: &Path) -> TempDir {
    let dir = tempfile::tempdir_in(home).expect("a directory for the scripts");
    for name in names_in(Path::new(SCRIPTS), ".mjs") {
        fs::copy(Path::new(SCRIPTS).join(&name), dir.path().join(&name)).expect("a script is copied");
    }
    dir
}

fn names_in(dir: &Path, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the directory can be read");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8"))
        .filter(|name| name.ends_with(ending))
        .collect();
    names.sort();
    names
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}
