//! A store is copied while clients write to it, and some of the copying is killed half-way.
//!
//! A copy has every turn that was acknowledged before it was begun, once, and can be served and gone on with; what ran in
//! the background ends there too. A copy that was killed is not there, or whole. None takes the place of a file.
//!
//! `EVERTURN_BACKUPS` is how many copies there are, `EVERTURN_SEED` picks the moments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::sqlite_in;
use crate::support::{
    PATIENCE, Peers, Refusals, Tally, Way, check_accounts, check_accounts_before, clients, go_on, seeded, setting,
    settle, sound,
};

const CLIENTS: [(Way, &str); 6] = [
    (Way::Keyed, "own-keyed"),
    (Way::Plain, "own-plain"),
    (Way::Genkit, "own-genkit"),
    (Way::Detached, "own-detached"),
    (Way::Keyed, "shared"),
    (Way::Plain, "shared"),
];

fn start(store: &Path, copy: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
    command.arg("backup").arg(copy).args(["--store", &sqlite_in(store)]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// A place for a copy that a server can be started on.
fn place(home: &Path, copy: u64) -> PathBuf {
    let dir = home.join(format!("copy-{copy}"));
    fs::create_dir(&dir).unwrap();
    dir
}

#[test]
fn copies_made_under_load_have_all_that_was_acknowledged_before() {
    let mut rng = seeded(81);
    let dir = tempfile::tempdir().unwrap();
    let mut peers = Peers::started(dir.path(), dir.path(), 1);
    let mut clients = clients(&mut rng, &CLIENTS);
    let (mut copies, mut killed) = (Vec::new(), Vec::new());
    peers.under_load(&mut clients, Refusals::None, |_| {
        for copy in 0..setting("EVERTURN_BACKUPS", 4) {
            thread::sleep(Duration::from_millis(50 + rng.below(150)));
            let (place, since) = (place(dir.path(), copy), Instant::now());
            let mut backup = start(dir.path(), &place.join("store.db"));
            if copy % 2 == 1 {
                thread::sleep(Duration::from_millis(rng.below(60)));
                backup.kill().unwrap();
                let ended = backup.wait_with_output().unwrap();
                killed.push((place, since, ended.status.success()));
            } else {
                let done = backup.wait_with_output().unwrap();
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                copies.push((place, since));
            }
        }
    });
    let server = peers.address(0);
    settle(&[server], &mut clients, PATIENCE);
    check_accounts(server, &clients);
    let mut half = 0;
    for (place, since, done) in killed {
        let copy = place.join("store.db");
        if copy.exists() {
            copies.push((place, since));
        } else {
            assert!(!done, "a copy that was made is not there");
            half += 1;
            // What is left of it is in no one's way.
            let again = start(dir.path(), &copy).wait_with_output().unwrap();
            assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
            copies.push((place, Instant::now()));
        }
    }
    peers.unharmed();
    for (place, since) in &copies {
        let copy = place.join("store.db");
        let before = fs::read(&copy).unwrap();
        let again = start(dir.path(), &copy).wait_with_output().unwrap();
        assert!(!again.status.success() && fs::read(&copy).unwrap() == before, "a file was written over");
        let restored = Peers::started(place, place, 1);
        let server = restored.address(0);
        check_accounts_before(server, &clients, *since);
        go_on(server, &mut crate::support::clients(&mut rng.part(), &[(Way::Plain, "more")]), Instant::now(), PATIENCE);
        restored.unharmed();
        drop(restored);
        sound(place);
    }
    println!("{} copies under load, {half} killed half-way: 0 lost; {}", copies.len(), Tally::of(&clients));
}
