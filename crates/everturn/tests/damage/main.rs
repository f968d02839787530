//! Damaged files: whatever is done to a store's file, what is read from it is what was written or a typed error, and what reads
//! otherwise is found by verifying.
//!
//! A file is struck by a seed: bytes are flipped, pages zeroed, filled with noise or exchanged, rows changed by statements.
//! Then everything is read in every way and compared with what the sound file says. `EVERTURN_FLIPS` is how often each is
//! done, `EVERTURN_SEED` where seeds begin.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod blows;
mod sound;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use everturn::ErrorKind;
use everturn::store::{Durability, SqliteOptions, Store, VerifyScope};

use answers::{Question, Said};
use blows::Blow;
use support::{Rng, setting};

/// Far more than reading a small file takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A sound file and what it says.
struct Sound {
    bytes: Vec<u8>,
    questions: Vec<Question>,
    said: Vec<Said>,
}

impl Sound {
    /// A store that was closed, and one whose process was killed with entries in its journal.
    async fn both() -> [Self; 2] {
        let dir = tempfile::tempdir().unwrap();
        let (path, killed) = (dir.path().join("s.db"), dir.path().join("killed.db"));
        sound::write(&path, &killed).await;
        [Self::read(&path).await, Self::read(&killed).await]
    }

    async fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let store = open(path).unwrap();
        let questions = answers::questions(&store).await;
        let mut said = Vec::new();
        for question in &questions {
            let answer = question.ask(&store).await;
            assert!(matches!(answer, Said::Value(_) | Said::Items(_) | Said::Nearest(_)), "{question:?}: {answer:?}");
            said.push(answer);
        }
        let verified = store.verify(VerifyScope::All).await.unwrap();
        assert_eq!(verified.damage, None, "the file is not sound to begin with");
        Self { bytes, questions, said }
    }
}

fn open(path: &Path) -> everturn::Result<everturn::store::SqliteStore> {
    SqliteOptions::new(path).durability(Durability::ProcessSafe).readers(1).open()
}

impl Sound {
    fn nearest(&self, snapshot: &str) -> bool {
        self.said.iter().any(|said| matches!(said, Said::Nearest(known) if known == snapshot))
    }
}

/// What came of all blows of one kind.
#[derive(Debug, Default)]
struct Tally {
    blows: u64,
    /// Files in which everything read as before.
    unharmed: u64,
    /// Files that were refused, or in which something was.
    refused: u64,
    /// Files in which something could not be found: a session, a snapshot, an item of a listing.
    missing: u64,
    /// What must not be.
    wrong: Vec<String>,
    /// The kinds of errors, with how often they came.
    errors: BTreeMap<String, u64>,
}

impl Tally {
    async fn strike(&mut self, sound: &Sound, path: &Path, blow: &Blow, what: &str) {
        self.blows += 1;
        for suffix in ["", "-wal", "-shm", "-lock"] {
            let _ = fs::remove_file(format!("{}{suffix}", path.display()));
        }
        fs::write(path, blow.bytes(&sound.bytes)).unwrap();
        if !blow.run(path) {
            self.unharmed += 1;
            return;
        }
        let store = match open(path) {
            Ok(store) => store,
            Err(error) => {
                *self.errors.entry(format!("open: {:?}", error.kind())).or_default() += 1;
                self.refused += 1;
                if error.kind() == ErrorKind::Internal {
                    self.wrong.push(format!("{what}: opening it failed with {error:?}"));
                }
                return;
            }
        };
        let (mut refused, mut missing, mut wrong) = (false, Vec::new(), false);
        for (question, before) in sound.questions.iter().zip(&sound.said) {
            let now = match tokio::time::timeout(PATIENCE, question.ask(&store)).await {
                Ok(now) => now,
                Err(_) => Said::Refused(ErrorKind::Internal, "it hangs".to_owned()),
            };
            match (&now, before) {
                _ if now == *before => {}
                (Said::Refused(ErrorKind::Internal, why), _) => {
                    wrong = true;
                    self.wrong.push(format!("{what}: {question:?} broke down: {why}"));
                }
                (Said::Refused(ErrorKind::NotFound, _) | Said::Nothing, _) => missing.push(question),
                (Said::Refused(kind, _), _) => {
                    *self.errors.entry(format!("{kind:?}")).or_default() += 1;
                    refused = true;
                }
                (Said::Nearest(now), Said::Nearest(_)) if sound.nearest(now) => missing.push(question),
                (Said::Items(now), Said::Items(before)) if now.is_subset(before) => missing.push(question),
                _ => {
                    wrong = true;
                    self.wrong.push(format!("{what}: {question:?}\n  said {before:?}\n  says {now:?}"));
                }
            }
        }
        let found = match tokio::time::timeout(PATIENCE, store.verify(VerifyScope::All)).await {
            Err(_) => Err("verifying hangs".to_owned()),
            Ok(Ok(verified)) => Ok(verified.damage.is_some()),
            Ok(Err(error)) if error.kind() == ErrorKind::Internal => Err(format!("verifying broke down: {error:?}")),
            Ok(Err(_)) => Ok(true),
        };
        let differs = refused || wrong || !missing.is_empty();
        match found {
            Err(why) => self.wrong.push(format!("{what}: {why}")),
            Ok(false) if differs => {
                self.wrong.push(format!("{what}: verifying found nothing, missing: {missing:?}, refused: {refused}"));
            }
            Ok(_) => {}
        }
        self.refused += u64::from(refused);
        self.missing += u64::from(!missing.is_empty());
        self.unharmed += u64::from(!differs);
        answers::write_to(&store).await;
    }

    fn judge(self, kind: &str) {
        let Self { blows, unharmed, refused, missing, wrong, errors } = self;
        eprintln!(
            "{kind}: {blows} blows, {unharmed} read as before, {refused} refused, {missing} with something missing, \
             {} wrong; errors: {errors:?}",
            wrong.len()
        );
        let shown: Vec<_> = wrong
            .iter()
            .take(setting("EVERTURN_SHOWN", 20))
            .map(|text| text.chars().take(setting("EVERTURN_SHOWN_CHARS", 1500)).collect::<String>())
            .collect();
        assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), shown.join("\n"));
    }
}

async fn campaign(kind: &str, share: usize, blow: impl Fn(&mut Rng, &[u8]) -> Blow) {
    let sound = Sound::both().await;
    let (count, first) = (setting("EVERTURN_FLIPS", 100) * share / 100, setting("EVERTURN_SEED", 1_u64));
    let dir = tempfile::tempdir().unwrap();
    let mut tally = Tally::default();
    for seed in first..first + count as u64 {
        let mut rng = Rng::new(seed);
        let of = rng.below(2);
        let blow = blow(&mut rng, &sound[of].bytes);
        // What was killed has most of its rows in the journal, where no statement finds them.
        let sound = &sound[if matches!(blow, Blow::Statement(..)) { 0 } else { of }];
        tally.strike(sound, &dir.path().join("s.db"), &blow, &format!("seed {seed}, {blow}")).await;
    }
    tally.judge(kind);
}

#[tokio::test]
async fn flipped_bytes_never_read_as_something_else() {
    campaign("flipped bytes", 200, Blow::flips).await;
}

#[tokio::test]
async fn damaged_pages_never_read_as_something_else() {
    campaign("damaged pages", 100, Blow::page).await;
}

#[tokio::test]
async fn rows_that_were_changed_never_read_as_something_else() {
    campaign("changed rows", 300, |rng, _| Blow::statement(rng)).await;
}
