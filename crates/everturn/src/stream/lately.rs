//! What was said lately, and how much of it the store has: what a [ring](super::ring) guards.

use std::collections::VecDeque;

use crate::json::Json;

/// How much is held beyond what the store does not have yet.
const CHUNKS: usize = 1024;
const BYTES: usize = 1 << 20;

/// How much may wait for the store before the writer waits.
pub(super) const AHEAD_CHUNKS: u64 = 4096;
const AHEAD_BYTES: usize = 8 << 20;

/// What one row of the store gets at most.
const PACK_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Lately {
    /// The number of the oldest that is held.
    first: u64,
    held: VecDeque<Json>,
    bytes: usize,
    /// How many the store has.
    kept: u64,
    unkept_bytes: usize,
    /// The store takes no more.
    given_up: bool,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// These, the first with this number.
    Chunks(u64, Vec<Json>),
    /// It is further behind than what is held.
    Behind,
    /// Nothing new.
    UpToDate,
}

impl Lately {
    /// The number of the next chunk.
    pub(super) fn next(&self) -> u64 {
        self.first + self.held.len() as u64
    }

    fn trim(&mut self) {
        while (self.held.len() > CHUNKS || self.bytes > BYTES) && (self.first < self.kept || self.given_up) {
            let Some(oldest) = self.held.pop_front() else { return };
            self.bytes -= oldest.as_str().len();
            self.first += 1;
        }
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Adds a chunk. How many wait for the store is the answer.
    pub(super) fn push(&mut self, chunk: Json) -> u64 {
        let size = chunk.as_str().len();
        self.bytes += size;
        self.unkept_bytes += size;
        self.held.push_back(chunk);
        self.trim();
        self.next() - self.kept
    }

    /// Whether the store is near enough for the writer to go on.
    pub(super) fn has_room(&self) -> bool {
        self.given_up || (self.next() - self.kept < AHEAD_CHUNKS && self.unkept_bytes < AHEAD_BYTES)
    }

    /// What comes next for the store: the number of the first, and at most a row's worth.
    pub(super) fn unkept(&self) -> Option<(u64, Vec<Json>)> {
        let from = self.index(self.kept)?;
        let mut bytes = 0;
        let pack: Vec<_> = self
            .held
            .range(from..)
            .take_while(|chunk| {
                let fits = bytes == 0 || bytes + chunk.as_str().len() <= PACK_BYTES;
                bytes += chunk.as_str().len();
                fits
            })
            .cloned()
            .collect();
        (!pack.is_empty()).then_some((self.kept, pack))
    }

    /// The store has all before this number.
    pub(super) fn keep(&mut self, next: u64) {
        let held = self.held.len();
        let (from, to) = (self.index(self.kept).unwrap_or(0), self.index(next).unwrap_or(0).min(held));
        let bytes: usize = self.held.range(from.min(to)..to).map(|chunk| chunk.as_str().len()).sum();
        self.unkept_bytes = self.unkept_bytes.saturating_sub(bytes);
        self.kept = next;
        self.trim();
    }

    /// Whether the store has all before this number, or never will.
    pub(super) fn is_kept(&self, next: u64) -> bool {
        self.given_up || self.kept >= next
    }

    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// What the store has from a number on, at most so many.
    pub(super) fn from(&self, number: u64, most: usize) -> Held {
        if number >= self.kept {
            return Held::UpToDate;
        }
        match (self.index(number), self.index(self.kept)) {
            (Some(from), Some(to)) => Held::Chunks(number, self.held.range(from..to).take(most).cloned().collect()),
            _ => Held::Behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use shuttle::sync::{Arc, Mutex};
    use shuttle::thread;

    use super::*;

    fn chunk(n: u64) -> Json {
        Json::parse(n.to_string()).unwrap()
    }

    #[test]
    fn readers_find_what_is_held_and_are_told_when_they_are_behind() {
        let mut lately = Lately::default();
        for n in 0..3000 {
            lately.push(chunk(n));
        }
        assert_eq!(lately.from(0, 2), Held::UpToDate, "what is not kept is not shown");
        assert_eq!(lately.unkept().unwrap().0, 0, "and never dropped");
        lately.keep(2500);
        assert_eq!(lately.from(0, 2), Held::Behind);
        assert_eq!(lately.from(2498, 10), Held::Chunks(2498, vec![chunk(2498), chunk(2499)]));
        assert_eq!(lately.from(2500, 10), Held::UpToDate);
        let (first, pack) = lately.unkept().unwrap();
        assert_eq!((first, pack.len()), (2500, 500));
        lately.keep(3000);
        assert_eq!(lately.unkept(), None);
    }

    #[test]
    fn a_pack_is_bounded_but_never_empty_for_that() {
        let mut lately = Lately::default();
        let long = Json::parse(format!("\"{}\"", "x".repeat(PACK_BYTES))).unwrap();
        lately.push(long.clone());
        lately.push(long);
        assert_eq!(lately.unkept().unwrap().1.len(), 1);
    }

    /// A writer, a keeper and readers, in every order shuttle thinks of: what readers see is what the store has, without
    /// gap or repeat, and nothing waits for the store that it has.
    #[test]
    fn whatever_the_order_readers_see_what_is_kept_once_and_in_order() {
        const CHUNKS: u64 = 12;
        let scenario = || {
            let lately = Arc::new(Mutex::new(Lately::default()));
            let store = Arc::new(Mutex::new(Vec::<Json>::new()));
            let writer = thread::spawn({
                let lately = lately.clone();
                move || {
                    for n in 0..CHUNKS {
                        lately.lock().unwrap().push(chunk(n));
                    }
                }
            });
            let keeper = thread::spawn({
                let (lately, store) = (lately.clone(), store.clone());
                move || {
                    while (store.lock().unwrap().len() as u64) < CHUNKS {
                        let Some((first, pack)) = lately.lock().unwrap().unkept() else {
                            thread::yield_now();
                            continue;
                        };
                        let next = first + pack.len() as u64;
                        {
                            let mut store = store.lock().unwrap();
                            assert_eq!(store.len() as u64, first, "packs follow each other");
                            store.extend(pack);
                        }
                        lately.lock().unwrap().keep(next);
                    }
                }
            });
            let readers: Vec<_> = [0, 5]
                .into_iter()
                .map(|start| {
                    let (lately, store) = (lately.clone(), store.clone());
                    thread::spawn(move || {
                        let mut next = start;
                        while next < CHUNKS {
                            let found = lately.lock().unwrap().from(next, 3);
                            match found {
                                Held::Chunks(first, chunks) => {
                                    assert_eq!(first, next);
                                    for seen in chunks {
                                        assert_eq!(store.lock().unwrap().get(next as usize), Some(&seen));
                                        next += 1;
                                    }
                                }
                                Held::UpToDate => thread::yield_now(),
                                Held::Behind => panic!("nothing was dropped"),
                            }
                        }
                    })
                })
                .collect();
            writer.join().unwrap();
            keeper.join().unwrap();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            assert!(lately.lock().unwrap().is_kept(CHUNKS) && lately.lock().unwrap().unkept().is_none());
        };
        shuttle::check_random(scenario, 300);
        shuttle::check_pct(scenario, 300, 3);
    }
}
