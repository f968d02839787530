//! A server under measurement: its own process, told apart by its own id.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Longer than a server needs to start, Python's imports on a cold disk included.
const STARTED: Duration = Duration::from_secs(60);

/// A running server, killed when dropped.
pub(super) struct Process {
    child: Child,
    pub(super) addr: SocketAddr,
}

impl Process {
    /// Starts a server that prints `http://ADDRESS`, with what it says in a file of the directory.
    pub(super) fn start(command: Command, dir: &Path) -> Result<Self> {
        Self::spawn(command, dir, |log| Ok(address_in(&std::fs::read_to_string(log)?)))
    }

    /// Starts a server that was told its port, and waits until it listens.
    pub(super) fn start_on(command: Command, dir: &Path, addr: SocketAddr) -> Result<Self> {
        Self::spawn(command, dir, |_| Ok(TcpStream::connect(addr).ok().map(|_| addr)))
    }

    fn spawn(mut command: Command, dir: &Path, listens: impl Fn(&Path) -> Result<Option<SocketAddr>>) -> Result<Self> {
        let log: PathBuf = dir.join("server.log");
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).current_dir(dir);
        let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let end = Instant::now() + STARTED;
        loop {
            if let Some(addr) = listens(&log)? {
                return Ok(Self { child, addr });
            }
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("{:?} does not serve: {ended:?}\n{said}", command.get_program());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The memory it has in use, in bytes.
    pub(super) fn resident(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .context("what a process has in memory is read from /proc, as Linux has it")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc has no VmRSS")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kilobytes * 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port nobody has at this moment, for servers that take no 0.
pub(super) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// The first address in the whole lines of an output; one still being written may hold half a port.
fn address_in(output: &str) -> Option<SocketAddr> {
    let whole = &output[..output.rfind('\n')?];
    let (_, rest) = whole.split_once("http://")?;
    let addr: String = rest.chars().take_while(|c| !c.is_whitespace() && *c != '/').collect();
    addr.parse().ok()
}
