//! What waits for a thread, and when the thread is woken for it.
//!
//! A thread that is woken for each thing it is sent spends its time waking up. It says how many it wants to find, and is
//! woken when they are there, or when it has waited long enough for them. Waking up takes time, too, and so whoever is about
//! to send something can rouse the thread before it is ready.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread that was roused looks out for what it was roused for: twice what a plain record takes to make and write.
const LOOK_OUT: Duration = Duration::from_micros(50);

/// Things sent to one thread, in order.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    woken: Condvar,
    /// Whether anything is there, for a thread that looks out for it.
    filled: AtomicBool,
    /// Whether the thread sleeps until something comes, for those who would rouse it.
    asleep: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    /// How many the thread waits for; none while it works.
    wanted: usize,
    /// On which processor those run who woke the thread for something that is still to come.
    roused: Option<usize>,
    closed: bool,
}

/// How many a thread wants to find, and how long it waits for them once it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    pub(super) wanted: usize,
    pub(super) most: Duration,
}

impl Patience {
    /// Wait for nobody.
    pub(super) const NONE: Self = Self { wanted: 1, most: Duration::ZERO };
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let state = State { items: Vec::new(), wanted: 0, roused: None, closed: false };
        Self { state: Mutex::new(state), woken: Condvar::new(), filled: false.into(), asleep: false.into() }
    }
}

impl<T> Inbox<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends something; it comes back if nobody will ever take it.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        self.wake_if_due(state);
        Ok(())
    }

    /// Sends several things at once; they are dropped if nobody will ever take them.
    pub(super) fn push_all(&self, items: &mut Vec<T>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return items.clear();
        }
        state.items.append(items);
        self.wake_if_due(state);
    }

    /// Wakes the thread, if it has nothing to do, for something that is about to be sent.
    pub(super) fn rouse(&self) {
        if !self.asleep.load(Ordering::Relaxed) {
            return;
        }
        let Some(processor) = processor() else { return };
        let mut state = self.lock();
        if state.wanted == 1 {
            (state.wanted, state.roused) = (0, Some(processor));
            drop(state);
            self.woken.notify_one();
        }
    }

    fn wake_if_due(&self, mut state: MutexGuard<'_, State<T>>) {
        self.filled.store(true, Ordering::Release);
        if state.wanted > 0 && state.items.len() >= state.wanted {
            state.wanted = 0;
            drop(state);
            self.woken.notify_one();
        }
    }

    /// Nothing more will be sent.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.woken.notify_one();
    }

    /// Nobody will take anything any more, and what is there is dropped: whoever waits for it must not wait for ever.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.items);
        drop(state);
        drop(left);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    /// Waits a moment without sleeping, and leaves the processor to whoever else wants it.
    fn look_out(&self) {
        let start = Instant::now();
        while !self.filled.load(Ordering::Acquire) && start.elapsed() < LOOK_OUT {
            thread::yield_now();
        }
    }

    /// Takes what is there, at most so many, waiting for the first however long it takes. Nothing comes once the inbox is
    /// closed and empty.
    pub(super) fn take(&self, into: &mut Vec<T>, most: usize, patience: Patience) {
        let mut state = self.lock();
        if state.items.len() < patience.wanted && !patience.most.is_zero() && !state.closed {
            state.wanted = patience.wanted;
            let wait = self.woken.wait_timeout_while(state, patience.most, |state| state.wanted > 0 && !state.closed);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        while state.items.is_empty() && !state.closed {
            state.wanted = 1;
            self.asleep.store(true, Ordering::Relaxed);
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
            self.asleep.store(false, Ordering::Relaxed);
            // Looking out on the processor of whoever is to send something keeps it from doing so.
            if state.roused.take().is_some_and(|other| processor() != Some(other)) {
                drop(state);
                self.look_out();
                state = self.lock();
            }
        }
        state.wanted = 0;
        let count = state.items.len().min(most);
        into.extend(state.items.drain(..count));
        self.filled.store(!state.items.is_empty(), Ordering::Release);
    }
}

/// The processor this thread runs on; nothing where the system does not say.
#[cfg(target_os = "linux")]
fn processor() -> Option<usize> {
    Some(rustix::thread::sched_getcpu())
}

#[cfg(not(target_os = "linux"))]
fn processor() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn take<T>(inbox: &Inbox<T>, most: usize, patience: Patience) -> Vec<T> {
        let mut taken = Vec::new();
        inbox.take(&mut taken, most, patience);
        taken
    }

    #[test]
    fn things_come_in_order_and_no_more_than_asked_for() {
        let inbox = Inbox::default();
        inbox.push_all(&mut vec![1, 2]);
        inbox.push(3).unwrap();
        assert_eq!(take(&inbox, 2, Patience { wanted: 3, most: LONG }), [1, 2]);
        assert_eq!(take(&inbox, 2, Patience::NONE), [3]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_thread_waits_for_as_many_as_it_wants() {
        let inbox = Arc::new(Inbox::default());
        let other = inbox.clone();
        let taker = thread::spawn(move || take(&other, 9, Patience { wanted: 3, most: LONG }));
        for item in 0..3 {
            inbox.push(item).unwrap();
        }
        assert_eq!(taker.join().unwrap(), [0, 1, 2]);
    }

    #[test]
    fn patience_ends_and_one_is_enough_then() {
        let inbox = Arc::new(Inbox::default());
        let other = inbox.clone();
        let taker = thread::spawn(move || take(&other, 9, Patience { wanted: 3, most: Duration::from_micros(1) }));
        inbox.push(7).unwrap();
        assert_eq!(taker.join().unwrap(), [7]);
    }

    #[test]
    fn a_thread_that_is_roused_takes_what_comes_however_late() {
        for late in [Duration::ZERO, LOOK_OUT * 20] {
            let inbox = Arc::new(Inbox::default());
            let other = inbox.clone();
            let taker = thread::spawn(move || take(&other, 9, Patience::NONE));
            while !inbox.asleep.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            inbox.rouse();
            thread::sleep(late);
            inbox.push(7).unwrap();
            assert_eq!(taker.join().unwrap(), [7]);
        }
    }

    #[test]
    fn a_thread_that_is_roused_for_nothing_sleeps_again() {
        let inbox = Arc::new(Inbox::<u8>::default());
        let other = inbox.clone();
        let taker = thread::spawn(move || take(&other, 9, Patience::NONE));
        for _ in 0..3 {
            // It would stay awake for ever if it took a false alarm for something to do.
            while !inbox.asleep.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            inbox.rouse();
        }
        inbox.close();
        assert!(taker.join().unwrap().is_empty());
    }

    #[test]
    fn what_nobody_takes_any_more_is_dropped() {
        let (inbox, item) = (Inbox::default(), Arc::new(()));
        inbox.push(item.clone()).unwrap();
        inbox.abandon();
        inbox.push_all(&mut vec![item.clone()]);
        assert_eq!((Arc::strong_count(&item), inbox.push(item.clone()).is_err()), (1, true));
    }

    #[test]
    fn a_closed_inbox_gives_what_it_has_and_takes_nothing() {
        let inbox = Inbox::default();
        inbox.push(1).unwrap();
        inbox.close();
        assert_eq!(inbox.push(2), Err(2));
        assert_eq!(take(&inbox, 9, Patience { wanted: 3, most: LONG }), [1]);
        assert!(take(&inbox, 9, Patience::NONE).is_empty());
    }
}
