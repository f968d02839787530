//! Plain HTTP as the client of a server that may die has it: an answer is whole, or the connection broke.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than a server takes to answer whatever happens to it: it tells a client that waits to come again long before.
const HUNG: Duration = Duration::from_secs(120);

const JSON: &str = "Content-Type: application/json\r\n";

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// What it says, in JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.body))
    }

    /// The same of an answer that must be a good one.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.body);
        self.json()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// The events of a stream's text; one that is cut off is none.
pub(crate) fn events(text: &str) -> Vec<Event> {
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let read = |frame: &str| {
        let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let data = serde_json::from_str(&field("data: ")?).expect("JSON");
        Some(Event { id: field("id: "), name: field("event: ")?, data })
    };
    whole.split("\n\n").filter_map(read).collect()
}

fn broken() -> io::Error {
    ErrorKind::UnexpectedEof.into()
}

/// A request, sent. In HTTP/1.0, so that streams come without the frames of a chunked body.
pub(crate) fn start_stream(server: &str, method: &str, path: &str, headers: &str, body: &str) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(server)?;
    socket.set_read_timeout(Some(HUNG))?;
    let (kind, length) = (if headers.contains("Content-Type") { "" } else { JSON }, body.len());
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {server}\r\n{kind}Content-Length: {length}\r\n{headers}\r\n");
    socket.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    Ok(socket)
}

/// Asks, and reads until the server closes; an error is a connection that broke.
pub(crate) fn ask(server: &str, method: &str, path: &str, headers: &str, body: &str) -> io::Result<Reply> {
    let mut socket = start_stream(server, method, path, headers, body)?;
    socket.set_read_timeout(Some(HUNG / 20))?;
    let (mut bytes, mut piece, since) = (Vec::new(), [0; 16 << 10], Instant::now());
    loop {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        // A stream that only says that it is there does not end either.
        assert!(since.elapsed() < HUNG, "no end of an answer to {method} {path} {body} after {HUNG:?}");
    }
    let text = String::from_utf8(bytes).map_err(|_| broken())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let reply = Reply { status, head: head.to_owned(), body: body.to_owned() };
    let whole = match reply.header("content-length") {
        Some(length) => length.parse() == Ok(body.len()),
        // Without a length it is a stream or a file, and those who asked for one know its end.
        None => true,
    };
    if whole { Ok(reply) } else { Err(broken()) }
}

/// Reads something from a server that is there.
#[track_caller]
pub(crate) fn get(server: &str, path: &str) -> Reply {
    ask(server, "GET", path, "", "").unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// Asks a server that is there for something, in JSON.
#[track_caller]
pub(crate) fn post(server: &str, path: &str, body: &Value) -> Reply {
    ask(server, "POST", path, "", &body.to_string()).unwrap_or_else(|error| panic!("POST {path}: {error}"))
}
