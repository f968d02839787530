//! Disks that are full, and disks that fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Server, sqlite_in};
use crate::{json, metric, serve, until, v1_turn};

/// A small file system of its own, where we may make one.
struct Small(TempDir);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(dir.path());
        mount.output().ok().filter(|done| done.status.success()).map(|_| Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Fills what is left of a file system.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("ballast");
    let mut size = 1 << 20;
    let mut ballast = fs::File::create(&path).unwrap();
    while size >= 512 {
        if std::io::Write::write_all(&mut ballast, &vec![1; size]).is_err() {
            size /= 2;
        }
    }
    path
}

/// Turns until one is refused.
fn refused(server: &Server) -> crate::common::Answer {
    until("a refusal", || match v1_turn(server, "", &"x".repeat(20_000)) {
        answer if answer.status == 200 => Err("it still works".to_owned()),
        answer => Ok(answer),
    })
}

#[test]
fn a_full_disk_is_told_and_gone_on_from_when_there_is_room() {
    let Some(small) = Small::mount("8m") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let server = serve(logs.path(), &sqlite_in(small.0.path()), &[]);
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    let ballast = fill(small.0.path());
    let answer = refused(&server);
    assert_eq!(answer.status, 503, "{}", answer.body);
    let problem = json(&answer);
    assert_eq!(problem["code"], "unavailable", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("make room"), "{problem}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    fs::remove_file(ballast).unwrap();
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    let sessions = json(&server.request("GET", "/v1/agents/echo/sessions?limit=100", "", ""));
    assert!(sessions["items"].as_array().unwrap().len() >= 2, "{sessions}");
}

/// Files may grow no further than this, as far as the server is concerned.
fn limit_files(server: &Server, bytes: &str) {
    let pid = server.child.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:unlimited")]).status();
    assert!(limited.unwrap().success());
}

#[test]
fn a_store_that_closed_itself_is_opened_again_when_the_cause_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    // A file that may not grow fails like a disk that does. The signal that comes with it must not kill.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_everturn"), "serve", "--demo"]);
    command.args(["--addr", "127.0.0.1:0", "--store", &sqlite_in(dir.path())]);
    let server = Server::spawn(dir.path(), command);
    assert_eq!(v1_turn(&server, "", "before").status, 200);
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);

    limit_files(&server, "65536");
    let answer = refused(&server);
    assert_eq!((answer.status, json(&answer)["code"].as_str()), (503, Some("unavailable")), "{}", answer.body);
    until("that it is not ready", || match server.request("GET", "/readyz", "", "") {
        answer if answer.status == 503 => Ok(()),
        answer => Err(answer.body),
    });
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200, "the process itself is well");

    limit_files(&server, "unlimited");
    until("work again", || match v1_turn(&server, "", "after") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    });
    assert_eq!(server.request("GET", "/readyz", "", "").status, 200);
    assert!(metric(&server, "everturn_store_reopened_total").unwrap() >= 1.0);
    assert!(metric(&server, "everturn_store_operations_total{operation=\"end\",result=\"ok\"}").unwrap() >= 2.0);
}
