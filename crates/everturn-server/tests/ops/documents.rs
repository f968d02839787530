//! What `docs/operations.md` says, and what `packaging/` holds, is so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use crate::common::sqlite_in;
use crate::{everturn, metrics, serve, v1_turn};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The rows of the tables between a heading and the next one of its kind, as cells.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{heading} is missing"));
    let section = rest.split("\n## ").next().unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let is_row = |line: &&str| line.starts_with("| `");
    section.lines().filter(is_row).map(cells).collect()
}

fn code(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

#[test]
fn every_setting_is_in_the_table_with_its_default() {
    let dir = tempfile::tempdir().unwrap();
    let shown = everturn(dir.path(), &["serve", "--print-config"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let setting = |line: &str| match line.strip_prefix("# ").and_then(|line| line.strip_suffix(" is not set")) {
        Some(name) => Some((name.to_owned(), String::new())),
        None => {
            let (name, rest) = line.split_once(" = ")?;
            let value = rest.strip_suffix(" # default")?.trim_matches('"');
            Some((name.to_owned(), if value == "[]" { String::new() } else { value.to_owned() }))
        }
    };
    let real: BTreeMap<_, _> = shown.lines().filter_map(setting).collect();
    let told: BTreeMap<_, _> = rows("## Settings").iter().map(|row| (code(&row[0]), code(&row[1]))).collect();
    assert_eq!(told, real);
}

#[test]
fn every_metric_is_in_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), &sqlite_in(dir.path()), &[]);
    assert_eq!(v1_turn(&server, "", "hi").status, 200);
    let told: BTreeSet<_> = rows("## Metrics").iter().map(|row| code(&row[0])).collect();
    assert_eq!(told, metrics::families(&server));
}

#[test]
fn the_unit_for_systemd_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(root().join("packaging/everturn.service")).unwrap();
    // The program is looked for, so it must be one that is there.
    let unit = unit.replace("/usr/bin/everturn", env!("CARGO_BIN_EXE_everturn"));
    let path = dir.path().join("everturn.service");
    std::fs::write(&path, unit).unwrap();
    let Ok(checked) = Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&path).output() else {
        eprintln!("skipped: there is no systemd-analyze here");
        return;
    };
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    let ours: Vec<_> = said.lines().filter(|line| line.contains("everturn.service")).collect();
    assert!(ours.is_empty(), "{said}");
}

#[test]
fn the_settings_that_are_packaged_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = root().join("packaging/everturn.toml");
    let shown = everturn(dir.path(), &["serve", "--print-config", "--config", file.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
}
