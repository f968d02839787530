//! Writers, an aborter and a thief on one branch, in every order shuttle thinks of: one writer has the lease at a time, what
//! was acknowledged is on the line, and who lost the lease writes nothing.
//!
//! The store does one thing after the other, so that the orders of what is asked of it are all the orders there are.

use everturn::store::{BeginTurn, Busy, CreateSession, EndTurn, MemoryOptions, MemoryStore, Start, Store, StoreExt};
use everturn::{Begun, Changes, ErrorKind, Event, Input, InvocationId, ManualClock, Message, SessionKey, Timestamp};
use shuttle::future::block_on;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const ORDERS: usize = 150;

fn key() -> SessionKey {
    SessionKey::of("app", "user", "s").unwrap()
}

fn store() -> (Arc<MemoryStore>, std::sync::Arc<ManualClock>) {
    let clock = std::sync::Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let store = MemoryOptions::new().clock(clock.clone()).lease(std::time::Duration::from_secs(60)).build();
    block_on(store.create(CreateSession::at(key()))).unwrap();
    (Arc::new(store), clock)
}

/// Begins a turn; nothing while somebody else has the branch.
fn begin(store: &MemoryStore, who: &str) -> Option<Begun> {
    let invocation = InvocationId::new(who).unwrap();
    let mut turn = BeginTurn::new(Start::Session(key()), invocation, Input::text(who));
    turn.busy = Busy::Refuse;
    match block_on(store.begin(turn)) {
        Ok(begun) => Some(begun.begun().unwrap()),
        Err(error) if error.kind() == ErrorKind::Busy => None,
        Err(error) => panic!("{error}"),
    }
}

fn end(store: &MemoryStore, begun: &Begun, who: &str) -> everturn::Result<everturn::Receipt> {
    let said = Changes::new().event(Event::model("m", Message::model(who)));
    block_on(store.end(EndTurn::completed(begun.fence, said)))
}

fn line(store: &MemoryStore) -> Vec<String> {
    block_on(store.head_state(&key())).unwrap().messages().iter().map(Message::text).collect()
}

fn in_every_order(scenario: fn()) {
    shuttle::check_random(scenario, ORDERS);
    shuttle::check_pct(scenario, ORDERS, 3);
}

#[test]
fn one_writer_has_the_branch_at_a_time_and_all_that_was_acknowledged_is_on_its_line() {
    in_every_order(|| {
        let (store, _) = store();
        let holder = Arc::new(Mutex::new(None::<String>));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (store, holder) = (store.clone(), holder.clone());
                thread::spawn(move || {
                    for n in 0..2 {
                        let who = format!("{writer}.{n}");
                        let begun = loop {
                            match begin(&store, &who) {
                                Some(begun) => break begun,
                                None => thread::yield_now(),
                            }
                        };
                        assert_eq!(holder.lock().unwrap().replace(who.clone()), None, "two have the branch");
                        thread::yield_now();
                        assert_eq!(holder.lock().unwrap().take(), Some(who.clone()));
                        assert!(end(&store, &begun, &who).unwrap().on_head);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let line = line(&store);
        assert_eq!(line.len(), 12);
        // A question and its answer stand together, and each writer's turns in its order.
        assert!(line.chunks(2).all(|turn| turn[0] == turn[1]), "{line:?}");
        for writer in 0..3 {
            let own: Vec<_> = line.iter().step_by(2).filter(|who| who.starts_with(&format!("{writer}."))).collect();
            assert_eq!(own, [&format!("{writer}.0"), &format!("{writer}.1")]);
        }
    });
}

#[test]
fn who_was_aborted_or_taken_over_writes_nothing_and_the_branch_is_free() {
    in_every_order(|| {
        let (store, clock) = store();
        let begun = begin(&store, "first").unwrap();
        let writer = thread::spawn({
            let (store, begun) = (store.clone(), begun.clone());
            move || end(&store, &begun, "first").map(drop).map_err(|error| error.kind())
        });
        let aborter = thread::spawn({
            let (store, turn) = (store.clone(), begun.turn);
            move || block_on(store.abort(everturn::store::TurnRef::Turn(turn))).unwrap().before
        });
        let thief = thread::spawn({
            let (store, turn) = (store.clone(), begun.turn);
            move || {
                let early = block_on(store.take_over(turn)).map(drop).map_err(|error| error.kind());
                assert!(matches!(early, Err(ErrorKind::Busy | ErrorKind::Conflict | ErrorKind::Aborted)), "{early:?}");
                thread::yield_now();
                clock.advance(std::time::Duration::from_secs(61));
                let taken = block_on(store.take_over(turn)).ok()?;
                thread::yield_now();
                Some(end(&store, &taken, "thief").map(drop).map_err(|error| error.kind()))
            }
        });
        let (wrote, before, stolen) = (writer.join().unwrap(), aborter.join().unwrap(), thief.join().unwrap());
        let line = line(&store);
        match (wrote, stolen) {
            (Ok(()), None | Some(Err(_))) => assert_eq!(line, ["first", "first"], "{before:?}"),
            (Err(kind), Some(Ok(()))) => {
                assert!(matches!(kind, ErrorKind::Fenced | ErrorKind::Aborted), "{kind:?}");
                assert_eq!(line, ["first", "thief"]);
            }
            (Err(_), None | Some(Err(_))) => assert!(line.is_empty(), "{line:?}"),
            (Ok(()), Some(Ok(()))) => panic!("both wrote"),
        }
        assert!(begin(&store, "next").is_some(), "the branch is free");
    });
}
