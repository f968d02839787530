//! The walk-throughs in `docs/` and the README are walked.

use std::process::Command;

use crate::common::Server;

#[test]
fn the_walk_through_works_as_it_is_written() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    let texts = [
        include_str!("../../../../README.md"),
        include_str!("../../../../docs/api.md"),
        include_str!("../../../../docs/export.md"),
    ];
    let script: String = texts
        .concat()
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(code, _)| code)
        // What starts the server, and what checks it.
        .filter(|code| !code.starts_with("cargo"))
        .collect();
    let script = script.replace("http://127.0.0.1:4100", &server.url).replace("curl ", "curl --fail-with-body -sS ");
    let done = Command::new("sh").args(["-e", "-c", &script]).current_dir(dir.path()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    for said in [
        "echo: hi",
        "echo: and again",
        "echo: Hello!",
        "event: begun",
        "event: output",
        "\"title\":\"Tea\"",
        "\"forkedFrom\"",
        "steps: boil",
    ]
    .into_iter()
    .chain([
        "event: session",
        "They made tea.",
        "\"user:language\":\"en\"",
        "\"id\":\"tea-2\"",
        "\"id\":\"tea-3\"",
    ]) {
        assert!(out.contains(said), "{said}\n{out}\n{err}");
    }
}
