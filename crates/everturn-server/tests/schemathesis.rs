//! Schemathesis (PyPI) reads `/v1/openapi.json`, makes up requests good and bad, and judges the answers: no 5xx, and nothing
//! that the description does not say.
//!
//! The package is installed by name, once, below the target directory. It is given the ids of things that exist, so that
//! what it makes up gets further than "not found". `EVERTURN_SEED` picks other requests, `EVERTURN_EXAMPLES` how many for
//! each route.
//!
//! Without Python or its index there is nothing to judge with: that is said loudly, and is a failure in CI.

mod common;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Server, sqlite_in};
use serde_json::Value;

const PACKAGE: &str = "schemathesis==4.32.5";

/// What an answer is held against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,negative_data_rejection,\
                      unsupported_method,allow_header_conformance,use_after_free";

/// It knows how to send text, and is told that exports are text.
const HOOKS: &str = "import schemathesis\nschemathesis.serializer.alias('application/x-ndjson', 'text/plain')\n";

#[test]
fn made_up_requests_get_no_5xx_and_nothing_that_is_not_described() {
    let Some(program) = installed() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &sqlite_in(dir.path()));
    let config = dir.path().join("schemathesis.toml");
    fs::write(&config, config_for(&server)).unwrap();
    fs::write(dir.path().join("hooks.py"), HOOKS).unwrap();
    let seed = std::env::var("EVERTURN_SEED").unwrap_or_else(|_| "6".to_owned());
    let examples = std::env::var("EVERTURN_EXAMPLES").unwrap_or_else(|_| "12".to_owned());
    let output = Command::new(program)
        .args(["--no-color", "--config-file"])
        .arg(&config)
        .args(["run", &format!("{}/v1/openapi.json", server.url), "--checks", CHECKS, "--seed", &seed])
        // Its guesses of which request may follow another have parameters that routes do not have.
        .args(["--phases", "coverage,fuzzing"])
        .args(["--max-examples", &examples, "--workers", "1", "--request-timeout", "30", "--warnings", "off"])
        .current_dir(dir.path())
        .env("HYPOTHESIS_STORAGE_DIRECTORY", dir.path())
        .output()
        .expect("it runs");
    println!("EVERTURN_SEED={seed}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", told(&output));
    let logs = server.logs();
    assert!(!logs.contains("panicked"), "{logs}");
    assert_eq!(server.turn("echo", "still here", "{}")["result"]["finishReason"], "stop");
}

/// Sessions of several agents, with what can be in one, and their ids as words for what is made up.
fn config_for(server: &Server) -> String {
    let mut snapshots = Vec::new();
    for (agent, texts) in [
        ("echo", &["hello", "artifact a.txt body", "fail on purpose"][..]),
        ("redact", &["hi"]),
        ("asker", &["ask ok?"]),
    ] {
        for (session, text) in ["s1", "s2", "s3"].into_iter().flat_map(|s| texts.iter().map(move |t| (s, t))) {
            let out = server.turn(agent, text, &format!(r#"{{"sessionId":"{session}"}}"#));
            snapshots.extend(out["result"]["snapshotId"].as_str().map(str::to_owned));
        }
    }
    let answer = server.request("GET", "/v1/agents/echo/sessions/s1/records", "", "");
    let records: Value = serde_json::from_str(&answer.body).expect("JSON");
    let turns: Vec<_> =
        records["items"].as_array().expect("records").iter().filter_map(|record| record["turn"].as_str()).collect();
    snapshots.dedup();
    let known = [
        ("agents", r#"["echo", "echo", "redact", "asker", "echoClient"]"#.to_owned(), &["path.agent"][..]),
        ("sessions", r#"["s1", "s2", "s3"]"#.to_owned(), &["path.session", "body.session", "body.id"]),
        ("snapshots", format!("{snapshots:?}"), &["path.snapshot", "query.snapshot", "query.to", "body.snapshot"]),
        ("turns", format!("{turns:?}"), &["path.turn"]),
        ("branches", r#"["main", "other"]"#.to_owned(), &["path.branch", "query.branch", "body.branch", "body.name"]),
        ("artifacts", r#"["a.txt"]"#.to_owned(), &["path.artifact"]),
    ];
    let (mut words, mut uses) = (String::new(), "[parameters]\n".to_owned());
    for (name, values, places) in known {
        words += &format!("[dictionaries.{name}]\nvalues = {values}\n");
        for place in places {
            uses += &format!("{place:?} = {{ dictionary = \"{name}\", probability = 0.8 }}\n");
        }
    }
    format!("hooks = \"hooks.py\"\n{words}{uses}")
}

/// The program; none, loudly, if it cannot be had here.
fn installed() -> Option<PathBuf> {
    match install() {
        Ok(program) => Some(program),
        Err(why) => {
            let ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
            assert!(!ci, "schemathesis cannot be run, and must be in CI: {why}");
            // Not eprintln, which nobody sees of a test that passes.
            let _ = writeln!(io::stderr(), "\n== NOT RUN, schemathesis is not there: {why}\n");
            None
        }
    }
}

/// Installs it unless that was done before, and says where.
fn install() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis");
    fs::create_dir_all(&home).expect("a directory below target");
    let lock = File::create(home.join("lock")).expect("a lock file");
    lock.lock().expect("the lock is given");
    let (venv, note) = (home.join("venv"), home.join("installed"));
    if fs::read_to_string(&note).is_ok_and(|installed| installed == PACKAGE) {
        return Ok(venv.join("bin/st"));
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = ["install", "--quiet", "--disable-pip-version-check", PACKAGE];
    run(Command::new(venv.join("bin/pip")).args(pip))?;
    fs::write(note, PACKAGE).expect("the installation is noted");
    Ok(venv.join("bin/st"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", told(&output))) }
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}
