//! Every example runs to its end and keeps what it claims.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

macro_rules! examples {
    ($($name:ident),* $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                let output = Command::new(env!(concat!("CARGO_BIN_EXE_", stringify!($name)))).output().unwrap();
                let text = String::from_utf8_lossy(&output.stdout);
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
                assert!(!text.is_empty(), "an example shows something");
            }
        )*
    };
}

examples! {
    agent_artifacts,
    agent_branch,
    agent_chat,
    agent_client_state,
    agent_loop,
    agent_snapshots,
    artifacts,
    branch_and_rewind,
    durable_sqlite,
    fork,
    idempotent_keys,
    quickstart,
    scoped_state,
    snapshots_and_diff,
    sub_agents,
    two_writers,
    watch,
}

#[test]
fn no_example_is_left_out_or_too_long() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 60, "{} has {lines} lines: one idea fits in fewer", path.display());
        found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    assert_eq!(found, NAMES.iter().map(ToString::to_string).collect());
}
