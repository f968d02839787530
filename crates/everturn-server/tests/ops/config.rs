//! Settings by file, environment and flags.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::everturn;

fn printed(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
    command.args(["serve", "--print-config"]).args(args).envs(variables.iter().copied()).current_dir(dir);
    command.output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output, why: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    why.iter().for_each(|why| assert!(said.contains(why), "{why} is not in: {said}"));
}

#[test]
fn flags_outdo_the_environment_and_that_the_file_and_that_the_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file =
        "rate = \"1/s\"\npage_limit = 7\nbody_limit = \"1MiB\"\ncors_origin = [\"https://a.example\"]\ndemo = true\n";
    fs::write(dir.path().join("e.toml"), file).unwrap();
    let variables = [("EVERTURN_RATE", "2/s"), ("EVERTURN_PAGE_LIMIT", "8"), ("EVERTURN_CONFIG", "e.toml")];
    let shown = text(&printed(dir.path(), &variables, &["--rate", "3/s"]));
    for line in [
        "rate = \"3/s\" # --rate",
        "page_limit = 8 # EVERTURN_PAGE_LIMIT",
        "body_limit = \"1MiB\" # e.toml",
        "cors_origin = [\"https://a.example\"] # e.toml",
        "demo = true # e.toml",
        "header_timeout = \"10s\" # default",
        "# jwt_key is not set",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    fs::write(dir.path().join("other.toml"), "rate = \"9/s\"\n").unwrap();
    let shown = text(&printed(dir.path(), &[("EVERTURN_CONFIG", "e.toml")], &["--config", "other.toml"]));
    assert!(shown.contains("rate = \"9/s\" # other.toml"), "{shown}");
}

#[test]
fn what_is_printed_is_a_file_that_means_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let first = text(&printed(dir.path(), &[], &["--drain", "3", "--cors-origin", "https://a.example", "--demo"]));
    fs::write(dir.path().join("e.toml"), &first).unwrap();
    let again = text(&printed(dir.path(), &[], &["--config", "e.toml"]));
    let values = |text: &str| text.lines().map(|line| line.split(" # ").next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(&first), values(&again));
}

#[test]
fn a_key_that_does_not_exist_is_named_and_the_nearest_suggested() {
    let dir = tempfile::tempdir().unwrap();
    let with = |file: &str| {
        fs::write(dir.path().join("e.toml"), file).unwrap();
        printed(dir.path(), &[], &["--config", "e.toml"])
    };
    refused(&with("header_timout = \"10s\"\n"), &["e.toml", "`header_timout`", "`header_timeout`"]);
    refused(&with("[limits]\nbody = 1\n"), &["e.toml", "`limits`"]);
    refused(&with("rate = \n"), &["e.toml", "line 1"]);
    refused(&with("rate = true\n"), &["e.toml", "rate", "one text or number"]);
    refused(&with("demo = \"yes\"\n"), &["e.toml", "demo", "true or false"]);
    refused(&with("page_limit = 0\n"), &["e.toml", "page_limit", "from 1"]);
}

#[test]
fn a_value_that_cannot_be_is_refused_with_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    refused(&printed(dir.path(), &[("EVERTURN_BODY_LIMIT", "16MB")], &[]), &["EVERTURN_BODY_LIMIT", "16MB", "KiB"]);
    refused(&printed(dir.path(), &[], &["--header-timeout", "soon"]), &["--header-timeout", "soon"]);
    refused(&printed(dir.path(), &[], &["--header-timeout", "0s"]), &["--header-timeout"]);
    refused(&printed(dir.path(), &[], &["--jwt-key", "x"]), &["--jwt-audience"]);
    refused(&printed(dir.path(), &[], &["--metrics-addr", "0.0.0.0:9"]), &["127.0.0.1"]);
    refused(&printed(dir.path(), &[], &["--config", "none.toml"]), &["none.toml", "--config"]);
    refused(&everturn(dir.path(), &["serve", "--store", "memory:", "--log-level", "loud"]), &["loud", "debug"]);
}

#[test]
fn no_secret_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("jwt"), "a secret that nobody may ever see").unwrap();
    let variables =
        [("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hidden"), ("EVERTURN_STORE", "postgres://ann:hidden@db/x")];
    let shown = text(&printed(dir.path(), &variables, &["--jwt-key", "jwt", "--jwt-audience", "me"]));
    assert!(!shown.contains("nobody may") && !shown.contains("hidden"), "{shown}");
    assert!(shown.contains("jwt_key = \"jwt\" # --jwt-key"), "{shown}");
}

#[test]
fn keys_are_made_for_the_server_that_has_the_same_settings() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("e.toml"), "store = \"sqlite:deep/s.db\"\n").unwrap();
    let made = everturn(dir.path(), &["keys", "create", "--user", "ann", "--config", "e.toml"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(dir.path().join("deep/keys.json").exists());
}
