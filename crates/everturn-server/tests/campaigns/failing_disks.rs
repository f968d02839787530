//! The disk fails under a server that is at work: syncs, writes and reads return errors for a moment, or do less than they
//! were asked to, then the disk is well again.
//!
//! strace makes the system calls of the running server fail. While all syncs fail, nothing that is sent is acknowledged.
//! When the disk is well the server goes on by itself, and so does every session, without waiting for a lease to lapse.
//! After a kill and a restart every acknowledged turn is there once, and the file is sound.
//!
//! `EVERTURN_FAULTS` is how many scenarios there are, one kind of fault after another; `EVERTURN_SEED` picks the moments.
//! Without strace, or where processes may not be traced, there is nothing to make a disk fail with: that is said loudly,
//! and is a failure in CI.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{
    Client, PATIENCE, Peers, Refusals, Rng, Tally, USABLE_WITHIN, Way, check_accounts, clients, go_on, not_run, seeded,
    setting, settle, sound, until, works,
};

/// What fails, and how, as strace is told.
struct Fault {
    calls: &'static str,
    how: &'static str,
    /// Nothing can be made durable while it lasts.
    no_sync: bool,
    refusals: Refusals,
}

const fn fault(calls: &'static str, how: &'static str) -> Fault {
    Fault { calls, how, no_sync: false, refusals: Refusals::Expected }
}

const SYNCS: &str = "fdatasync,fsync";

const FAULTS: [Fault; 12] = [
    Fault { no_sync: true, ..fault(SYNCS, "error=EIO") },
    fault("pwrite64", "error=ENOSPC"),
    Fault { refusals: Refusals::Reads, ..fault("pread64", "error=EIO:when=1+3") },
    // A write that wrote nothing. More cannot be done half: strace only tells that it was.
    fault("pwrite64", "retval=0:when=1+2"),
    Fault { no_sync: true, ..fault(SYNCS, "error=ENOSPC") },
    Fault { no_sync: true, ..fault(SYNCS, "error=EINTR") },
    fault(SYNCS, "error=EIO:when=1+2"),
    fault(SYNCS, "delay_enter=30000"),
    fault("pwrite64", "error=EIO"),
    fault("pwrite64", "error=EINTR:when=1+2"),
    fault("pread64", "error=EINTR:when=1+2"),
    fault("flock", "error=EINTR:when=1+2"),
];

const CLIENTS: [(Way, &str); 9] = [
    (Way::Keyed, "own-keyed"),
    (Way::KeyedStream, "own-stream"),
    (Way::Plain, "own-plain"),
    (Way::Plain, "own-plain-too"),
    (Way::Genkit, "own-genkit"),
    (Way::Detached, "own-detached"),
    (Way::Keyed, "shared"),
    (Way::Plain, "shared"),
    (Way::Plain, "shared"),
];

/// A strace that makes calls of a process fail.
struct Strace {
    process: Child,
    log: PathBuf,
}

impl Strace {
    /// Comes back when the calls fail; says why if they cannot be made to.
    fn attach(dir: &Path, pid: u32, fault: &Fault) -> Result<Self, String> {
        let (log, said) = (dir.join("strace.log"), dir.join("strace.said"));
        let mut command = Command::new("strace");
        command.args(["-f", "-ttt", "-e", &format!("trace={}", fault.calls)]);
        command.args(["-e", &format!("inject={}:{}", fault.calls, fault.how), "-p", &pid.to_string(), "-o"]);
        command.arg(&log).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        let mut process = command.spawn().map_err(|error| format!("strace: {error}"))?;
        loop {
            let text = fs::read_to_string(&said).unwrap();
            if text.contains(" attached") {
                return Ok(Self { process, log });
            }
            if process.try_wait().unwrap().is_some() {
                return Err(text);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it, and gives when it first made a call fail, in seconds since 1970, and how often it did.
    fn detach(mut self) -> (Option<f64>, usize) {
        // Not killed, which would leave all calls that are under way without a result. One of them may still fail otherwise.
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.wait().unwrap();
        let log = fs::read_to_string(&self.log).unwrap();
        let failed: Vec<_> = log.lines().filter(|line| line.contains("INJECTED") || line.contains("DELAYED")).collect();
        let at = |line: &&str| line.split_whitespace().nth(1)?.parse().ok();
        (failed.first().and_then(at), failed.len())
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn no_acknowledged_turn_is_lost_when_the_disk_fails_under_load_and_work_goes_on_when_it_is_well() {
    let mut rng = seeded(51);
    for scenario in 0..setting("EVERTURN_FAULTS", 4) {
        let fault = &FAULTS[usize::try_from(scenario).expect("a number") % FAULTS.len()];
        if let Err(why) = suffer(fault, &mut rng) {
            return not_run("disks that fail", &format!("calls cannot be made to fail: {why}"));
        }
    }
}

/// One disk that fails and gets well.
fn suffer(fault: &Fault, rng: &mut Rng) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut peers = Peers::started(dir.path(), dir.path(), 1);
    let mut clients = clients(rng, &CLIENTS);
    let (started, epoch) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64());
    let mut window = Err("it was not tried".to_owned());
    peers.under_load(&mut clients, fault.refusals, |peers| {
        thread::sleep(Duration::from_millis(100 + rng.below(100)));
        window = Strace::attach(dir.path(), peers.pid(0), fault).map(|strace| {
            thread::sleep(Duration::from_millis(100 + rng.below(300)));
            let end = Instant::now();
            let (first, count) = strace.detach();
            (first.map(|first| started + Duration::from_secs_f64(first - epoch)), count, end)
        });
        if window.is_ok() {
            until("that the server goes on by itself", PATIENCE, || works(peers.address(0)));
        }
    });
    let (first, count, well) = window?;
    let server = peers.address(0).to_owned();
    let usable = go_on(&server, &mut clients, well, USABLE_WITHIN);
    let name = format!("{} {}", fault.calls, fault.how);
    if let Some(first) = first.filter(|_| fault.no_sync) {
        for turn in clients.iter().flat_map(|client: &Client| &client.acknowledged) {
            let between = turn.sent > first && turn.at < well;
            assert!(!between, "{name}: {} was acknowledged though nothing could be synced: {}", turn.text, turn.answer);
        }
    }
    peers.unharmed();
    peers.kill(0);
    peers.start(0);
    let server = peers.address(0);
    settle(&[server], &mut clients, PATIENCE);
    let given_up = check_accounts(server, &clients);
    peers.unharmed();
    drop(peers);
    sound(dir.path());
    let tally = Tally::of(&clients);
    println!(
        "{name}: {count} calls failed, every session usable after {usable:?}; {tally}; 0 lost, {given_up} given up"
    );
    assert!(count > 0, "{name}: no call failed");
    Ok(())
}
