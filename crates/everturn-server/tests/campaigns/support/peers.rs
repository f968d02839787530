//! Servers on one file, and where they can be found at the moment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Client, Refusals};
use crate::common::{Server, sqlite_in};

/// What clients see of the servers: the addresses of those that are up, and whether it is time to go home.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    addresses: Mutex<Vec<Option<String>>>,
    over: AtomicBool,
}

impl Stage {
    fn set(&self, server: usize, address: Option<String>) {
        self.addresses.lock().expect("no client panicked")[server] = address;
    }

    /// The address of a server that is up, another one for each number if there are several.
    pub(crate) fn server(&self, number: usize) -> Option<String> {
        let addresses = self.addresses.lock().expect("no client panicked");
        let up: Vec<_> = addresses.iter().flatten().collect();
        if up.is_empty() { None } else { Some(up[number % up.len()].clone()) }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Ends the work of the clients, also when what was done to the servers panics.
struct Over<'a>(&'a Stage);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Servers on one file.
pub(crate) struct Peers {
    home: PathBuf,
    store: String,
    options: Vec<String>,
    servers: Vec<Option<Server>>,
    stage: Arc<Stage>,
}

impl Peers {
    /// Some servers, none of them started. Each writes its logs to a directory of its own in `home`.
    pub(crate) fn new(home: &Path, store: &Path, count: usize) -> Self {
        for server in 0..count {
            std::fs::create_dir(home.join(format!("server-{server}"))).expect("a directory");
        }
        let stage = Arc::new(Stage { addresses: Mutex::new(vec![None; count]), over: AtomicBool::new(false) });
        let servers = (0..count).map(|_| None).collect();
        Self { home: home.to_owned(), store: sqlite_in(store), options: Vec::new(), servers, stage }
    }

    /// The same, all of them up.
    pub(crate) fn started(home: &Path, store: &Path, count: usize) -> Self {
        let mut peers = Self::new(home, store, count);
        (0..count).for_each(|server| peers.start(server));
        peers
    }

    /// An option of `everturn serve` for all that are started from now on.
    pub(crate) fn option(&mut self, name: &str, value: &str) {
        self.options.extend([name.to_owned(), value.to_owned()]);
    }

    fn log_dir(&self, server: usize) -> PathBuf {
        self.home.join(format!("server-{server}"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
        command.args(["serve", "--demo", "--addr", "127.0.0.1:0", "--rate", "100000/s", "--store", &self.store]);
        command.args(&self.options);
        command
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn start(&mut self, server: usize) {
        self.start_by(server, |_| {});
    }

    /// The same in an environment of one's own.
    pub(crate) fn start_by(&mut self, server: usize, prepare: impl FnOnce(&mut Command)) {
        let mut command = self.command();
        prepare(&mut command);
        let started = Server::spawn(&self.log_dir(server), command);
        self.stage.set(server, Some(started.url.trim_start_matches("http://").to_owned()));
        self.servers[server] = Some(started);
    }

    /// Starts a server that may be killed before it listens.
    pub(crate) fn launch(&mut self, server: usize) {
        self.servers[server] = Some(Server::launch(&self.log_dir(server), self.command()));
    }

    /// Tells the clients of a server that was launched, as soon as it says where it listens.
    pub(crate) fn notice(&mut self, server: usize) {
        if let Some(url) = self.servers[server].as_ref().and_then(Server::listens_at) {
            self.stage.set(server, Some(url.trim_start_matches("http://").to_owned()));
        }
    }

    /// Kills a server at once. It must have been well until then.
    pub(crate) fn kill(&mut self, server: usize) {
        let mut killed = self.servers[server].take().expect("it runs");
        killed.child.kill().expect("it can be killed");
        let status = killed.child.wait().expect("it can be waited for");
        self.stage.set(server, None);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}\n{}", killed.logs());
        unharmed(&killed);
    }

    /// What clients see of the servers.
    pub(crate) fn stage(&self) -> Arc<Stage> {
        Arc::clone(&self.stage)
    }

    /// The address of a server that is up.
    pub(crate) fn address(&self, server: usize) -> &str {
        self.servers[server].as_ref().expect("it runs").url.trim_start_matches("http://")
    }

    pub(crate) fn pid(&self, server: usize) -> u32 {
        self.servers[server].as_ref().expect("it runs").child.id()
    }

    /// No server has panicked.
    #[track_caller]
    pub(crate) fn unharmed(&self) {
        self.servers.iter().flatten().for_each(unharmed);
    }

    /// Lets clients work while something is done to the servers, and comes back when they have stopped.
    pub(crate) fn under_load(&mut self, clients: &mut [Client], refusals: Refusals, campaign: impl FnOnce(&mut Self)) {
        let stage = Arc::clone(&self.stage);
        stage.over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let over = Over(&stage);
            for client in clients {
                let stage = &stage;
                scope.spawn(move || client.work(stage, refusals));
            }
            campaign(self);
            drop(over);
        });
    }
}

#[track_caller]
fn unharmed(server: &Server) {
    let logs = server.logs();
    assert!(!logs.contains("panicked"), "{logs}");
}
