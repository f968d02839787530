//! Child processes: the test binary runs one of its own ignored tests in a process that can be stopped and killed.
//!
//! Child and parent talk by lines. What the child [`say`]s is one write of one line, so a kill leaves it whole or away.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longer than anything here takes: a test that hangs fails instead.
const DEADLINE: Duration = Duration::from_secs(60);

/// What tells a child's own lines from those of the test harness.
const MARK: &str = "@ ";

/// Tells the parent something. In the child.
pub(crate) fn say<T: Serialize>(what: &T) {
    let line = format!("\n{MARK}{}\n", serde_json::to_string(what).expect("it can be written"));
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

/// Waits for a line from the parent; nothing when it is gone. In the child.
pub(crate) fn told() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).expect("the parent's pipe can be read");
    (read > 0).then(|| line.trim().to_owned())
}

/// A setting the parent gave. Nothing means that this is no child, and somebody runs ignored tests by hand.
pub(crate) fn var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A child process, killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Runs an ignored test of this binary in a new process.
    pub(crate) fn start(test: &str, vars: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("the test binary has a path"))
            .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
            .envs(vars.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary runs");
        let (sender, lines) = channel();
        let mut out = BufReader::new(process.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|read| read > 0) {
                if let Some(said) = line.strip_prefix(MARK).filter(|said| said.ends_with('\n'))
                    && sender.send(said.to_owned()).is_err()
                {
                    return;
                }
                line.clear();
            }
        });
        Self { process, lines }
    }

    /// The next thing it says; nothing when it has ended.
    pub(crate) fn hear<T: DeserializeOwned>(&self) -> Option<T> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => Some(serde_json::from_str(&line).expect("parent and child speak the same language")),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child has said nothing for {DEADLINE:?}"),
        }
    }

    /// What it has said so far, without waiting for more.
    pub(crate) fn heard<T: DeserializeOwned>(&self) -> Vec<T> {
        let speak = |line: String| serde_json::from_str(&line).expect("parent and child speak the same language");
        self.lines.try_iter().map(speak).collect()
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) {
        let pipe = self.process.stdin.as_mut().expect("it is piped");
        writeln!(pipe, "{line}").and_then(|()| pipe.flush()).expect("the child listens");
    }

    /// Sends it a signal, like `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill(1) is there");
        assert!(sent.success(), "kill -{name} {pid} failed");
    }

    /// Kills it at once and gives everything it still had said.
    pub(crate) fn kill<T: DeserializeOwned>(mut self) -> Vec<T> {
        self.process.kill().expect("it can be killed");
        let status = self.process.wait().expect("it can be waited for");
        assert_eq!(status.signal(), Some(9), "the child ended before it was killed: {status}");
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// Everything it says until it ends by itself, which must be in peace.
    pub(crate) fn finish<T: DeserializeOwned>(mut self) -> Vec<T> {
        let said = std::iter::from_fn(|| self.hear()).collect();
        let status = self.process.wait().expect("it can be waited for");
        assert!(status.success(), "the child failed: {status}");
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
