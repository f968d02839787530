//! A server as its users have it: the built binary, on a port of its own.
#![allow(dead_code, reason = "each test program uses its part of this")]

pub(crate) mod small_disk;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a loaded machine needs to start the binary.
const STARTED: Duration = Duration::from_secs(30);

/// The name of a store in a directory.
pub(crate) fn sqlite_in(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("store.db").display())
}

/// A running server, killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
    dir: PathBuf,
}

impl Server {
    /// Starts the demo agents on a port of the system's choice, which the first lines of the output tell.
    ///
    /// The output goes to files: a pipe that nobody drains would stop the server when it is full.
    pub(crate) fn start(dir: &Path, store: &str) -> Self {
        Self::start_with(dir, store, &["--addr", "127.0.0.1:0"])
    }

    /// The same with options of one's own, the address among them.
    pub(crate) fn start_with(dir: &Path, store: &str, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
        command.args(["serve", "--demo", "--store", store]).args(options);
        Self::spawn(dir, command)
    }

    /// The same by a command of one's own.
    pub(crate) fn spawn(dir: &Path, command: Command) -> Self {
        let mut server = Self::launch(dir, command);
        server.url = server.wait_for_url();
        server
    }

    /// Starts it without waiting until it listens, which `url` says only of one that was waited for.
    pub(crate) fn launch(dir: &Path, mut command: Command) -> Self {
        let log = |name| File::create(dir.join(name)).expect("a log file");
        let child = command
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .spawn()
            .expect("the binary starts");
        Server { child, url: String::new(), dir: dir.to_owned() }
    }

    /// Where it listens, if it has said so.
    pub(crate) fn listens_at(&self) -> Option<String> {
        url_in(&self.log("stdout"))
    }

    fn wait_for_url(&mut self) -> String {
        let end = Instant::now() + STARTED;
        loop {
            if let Some(url) = self.listens_at() {
                return url;
            }
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                panic!("the server ended with {status}\n{}", self.logs());
            }
            assert!(Instant::now() < end, "the server has not said where it listens\n{}", self.logs());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read(self.dir.join(name))
            .map_or_else(|e| e.to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn logs(&self) -> String {
        format!("-- its stdout\n{}\n-- its stderr\n{}", self.log("stdout"), self.log("stderr"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; whoever dropped it knows more about why than these errors do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first address in the whole lines of an output. A line still being written may hold half a port.
fn url_in(output: &str) -> Option<String> {
    let lines = &output[..output.rfind('\n')?];
    let (_, rest) = lines.split_once("http://")?;
    let addr: String = rest.chars().take_while(|c| !c.is_whitespace() && *c != '/').collect();
    let port = addr.rsplit_once(':').map_or("", |(_, port)| port);
    (!port.is_empty()).then(|| format!("http://{addr}"))
}

/// An answer: its status, its headers in small letters as `name: value`, and its body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<String>,
    /// The head as it came.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Server {
    /// Connects to it.
    pub(crate) fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(self.url.trim_start_matches("http://")).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream
    }

    /// Sends a request as it is written here, and reads until the server closes.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.stream();
        // It may answer and close before all of it is sent; what it answered is there all the same.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        assert!(!bytes.is_empty(), "no answer: {read:?}");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        // The time and the request's id are no part of what was answered.
        let timeless = |line: &&str| {
            let line = line.to_ascii_lowercase();
            !line.starts_with("date:") && !line.starts_with("x-request-id:")
        };
        let head: Vec<&str> = head.lines().filter(timeless).collect();
        let headers = head.iter().skip(1).map(|line| line.to_ascii_lowercase()).collect();
        Answer { status, headers, head: head.join("\r\n"), body: body.to_owned() }
    }

    /// A request with these headers beside the usual ones.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let host = self.url.trim_start_matches("http://");
        let named = headers.lines().any(|line| line.to_ascii_lowercase().starts_with("host:"));
        let host = if named { String::new() } else { format!("Host: {host}\r\n") };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        self.raw(request.as_bytes())
    }

    /// A turn of a demo agent.
    pub(crate) fn turn(&self, agent: &str, text: &str, init: &str) -> serde_json::Value {
        let body =
            format!(r#"{{"data":{{"message":{{"role":"user","content":[{{"text":{text:?}}}]}}}},"init":{init}}}"#);
        let answer = self.request("POST", &format!("/genkit/{agent}"), "Content-Type: application/json\r\n", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    }
}
