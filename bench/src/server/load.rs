//! The load: connections that are kept open, each in a session of its own, one turn after the other.
//!
//! It shares the processors with the server it drives, so it does as little as it can: requests are written to plain
//! sockets, and of an answer only what must be known is looked for. The same code drives every server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::wire::Wire;

/// Turns that each connection takes on its session in one go. Every server is asked for sessions of the same length,
/// because some become slower as a session grows.
pub(super) const TURNS: usize = 10;

/// Longer than any server that works needs for a turn.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one round of load showed.
pub(super) struct Round {
    pub(super) turns_per_s: f64,
    /// Of each turn, in milliseconds.
    pub(super) millis: Vec<f64>,
    /// How often a turn was refused and had to be sent again.
    pub(super) refused: usize,
}

/// How long a round may take: a server that is not through by then is measured by what it has done.
const LONGEST: Duration = Duration::from_secs(10);

/// How often a turn may be refused before a server counts as broken.
const REFUSALS: usize = 100;

/// A connection that is kept open.
pub(super) struct Http {
    stream: TcpStream,
    addr: SocketAddr,
    buffer: Vec<u8>,
}

impl Http {
    pub(super) async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await.with_context(|| format!("cannot connect to {addr}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, addr, buffer: Vec::with_capacity(16 << 10) })
    }

    /// Posts JSON and gives the body of the answer, which must be a success.
    pub(super) async fn post(&mut self, path: &str, body: &str) -> Result<&[u8]> {
        let (success, body) = self.try_post(path, body).await?;
        ensure!(success, "a request was refused: {}", String::from_utf8_lossy(body));
        Ok(body)
    }

    /// The same, and whether it was one.
    async fn try_post(&mut self, path: &str, body: &str) -> Result<(bool, &[u8])> {
        self.write(path, "application/json", body).await?;
        tokio::time::timeout(PATIENCE, self.answer()).await.context("a server has not answered for a minute")?
    }

    /// Posts JSON for a stream, and returns with its first bytes.
    pub(super) async fn open_stream(&mut self, path: &str, body: &str) -> Result<()> {
        self.write(path, "text/event-stream", body).await?;
        self.buffer.clear();
        ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "a stream was closed before it began");
        ensure!(self.buffer.starts_with(b"HTTP/1.1 200"), "no stream: {}", String::from_utf8_lossy(&self.buffer));
        Ok(())
    }

    async fn write(&mut self, path: &str, accept: &str, body: &str) -> Result<()> {
        let (host, length) = (self.addr, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    async fn answer(&mut self) -> Result<(bool, &[u8])> {
        self.buffer.clear();
        let head = loop {
            self.more().await?;
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
        };
        let length = content_length(&self.buffer[..head])?;
        let (start, end) = (head + 4, head + 4 + length);
        while self.buffer.len() < end {
            self.more().await?;
        }
        Ok((self.buffer.starts_with(b"HTTP/1.1 2"), &self.buffer[start..end]))
    }

    async fn more(&mut self) -> Result<()> {
        ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "a server closed a connection");
        Ok(())
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    for line in head.split(|byte| *byte == b'\n') {
        let Some((name, value)) = line.split_at_checked(15) else { continue };
        if name.eq_ignore_ascii_case(b"content-length:") {
            return Ok(std::str::from_utf8(value)?.trim().parse()?);
        }
    }
    bail!("an answer has no length: {}", String::from_utf8_lossy(head))
}

/// Where a text begins in another.
pub(super) fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

/// Each of so many connections takes its turns on a new session. Connecting, and making the session where that takes a
/// request of its own, is not part of the time.
pub(super) async fn round(wire: Wire, addr: SocketAddr, connections: usize, name: &str) -> Result<Round> {
    let sessions: Vec<String> = (0..connections).map(|n| format!("{name}-{n}")).collect();
    // First all sessions, then all connections: servers close those that are idle for some seconds.
    let mut http = Http::connect(addr).await?;
    for (path, body) in sessions.iter().filter_map(|session| wire.create(session)) {
        http.post(&path, &body).await?;
    }
    let mut ready = Vec::new();
    for session in sessions {
        ready.push((Http::connect(addr).await?, session));
    }
    let done = Arc::new(Mutex::new(Done::default()));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (http, session) in ready {
        tasks.spawn(turns(wire, http, session, done.clone()));
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    };
    // Dropping the tasks ends what is still on its way.
    let through = tokio::time::timeout(LONGEST, all).await;
    let elapsed = start.elapsed().as_secs_f64();
    drop(tasks);
    through.unwrap_or(Ok(()))?;
    let Done { millis, refused } = std::mem::take(&mut *done.lock().expect("nobody panicked"));
    ensure!(!millis.is_empty(), "{} has done no turn in {elapsed:.0} s", wire.name());
    Ok(Round { turns_per_s: millis.len() as f64 / elapsed, millis, refused })
}

/// What the connections of a round have done so far.
#[derive(Default)]
struct Done {
    millis: Vec<f64>,
    refused: usize,
}

/// Takes the turns of one connection. One that is refused, or whose connection is closed, is sent again, as a client would,
/// and is done when it was answered.
async fn turns(wire: Wire, mut http: Http, session: String, done: Arc<Mutex<Done>>) -> Result<()> {
    let (mut place, mut refused) = (None, 0);
    for n in 0..TURNS {
        let text = format!("Where is parcel {n} of {session}?");
        let (path, body) = wire.turn(&session, place.as_deref(), &text);
        let start = Instant::now();
        loop {
            match http.try_post(&path, &body).await {
                Ok((true, answer)) => {
                    let echo = format!("echo: {text}");
                    ensure!(find(answer, echo.as_bytes()).is_some(), "{}", String::from_utf8_lossy(answer));
                    place = wire.place(answer);
                    done.lock().expect("nobody panicked").millis.push(crate::stats::millis(start.elapsed()));
                    break;
                }
                Ok((false, answer)) if refused >= REFUSALS => {
                    bail!("{} refuses turns: {}", wire.name(), String::from_utf8_lossy(answer));
                }
                Ok((false, _)) => {}
                Err(error) if refused >= REFUSALS => return Err(error.context(wire.name())),
                Err(_) => http = Http::connect(http.addr).await?,
            }
            refused += 1;
            done.lock().expect("nobody panicked").refused += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_found_however_it_is_spelled() {
        for head in ["HTTP/1.1 200 OK\r\nContent-Length: 12", "HTTP/1.1 200 OK\r\ncontent-length:12\r\nx: y"] {
            assert_eq!(content_length(head.as_bytes()).unwrap(), 12);
        }
        assert!(content_length(b"HTTP/1.1 200 OK\r\nx: y").is_err());
    }
}
