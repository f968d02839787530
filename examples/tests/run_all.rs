//! Every example runs to its end and keeps what it claims.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[path = "../../crates/everturn/tests/provider/loopback.rs"]
#[allow(dead_code, reason = "what the provider's tests need is more than an example does")]
mod loopback;
#[path = "../../crates/everturn/tests/provider/wire.rs"]
#[allow(dead_code, reason = "what the provider's tests need is more than an example does")]
mod wire;

use loopback::{Loopback, Reply};
use wire::{Said, Wire};

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
    compaction,
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

/// Offline: the provider is on this machine, and says what a model would.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn agent_tools() {
    let said = |said: Said| Reply::answer(Wire::OpenAi, &said);
    let provider = Loopback::start([
        said(Said::text(&[]).call("c1", "search", &[r#"{"query":"gr"#, r#"een tea"}"#])),
        said(Said::text(&[]).call("c2", "order", &[r#"{"tea":"Sencha","grams":100}"#])),
        said(Said::text(&["It is ", "on its way."])),
    ])
    .await;
    let mut example = Command::new(env!("CARGO_BIN_EXE_agent_tools"));
    example.env("OPENAI_BASE_URL", provider.url(Wire::OpenAi)).env("OPENAI_API_KEY", loopback::KEY);
    let output =
        tokio::task::spawn_blocking(move || example.env_remove("EVERTURN_MODEL").output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains(r#"may it order {"tea":"Sencha","grams":100}?"#) && text.contains("It is on its way."),
        "{text}"
    );
    let asked = provider.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked[1].body.to_string().contains("Sencha, 9 EUR (green tea)"), "{}", asked[1].body);
    assert!(asked[2].body.to_string().contains("100 g of Sencha are on their way"), "{}", asked[2].body);
}

#[test]
fn agent_tools_without_a_key_says_which_to_set() {
    let mut example = Command::new(env!("CARGO_BIN_EXE_agent_tools"));
    let output = example
        .env_remove("EVERTURN_MODEL")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("OPENAI_API_KEY"), "{text}");
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
    assert_eq!(found, NAMES.iter().copied().chain(["agent_tools"]).map(ToString::to_string).collect());
}
