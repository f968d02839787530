//! Waiting: for a branch, in order; and for news of a session.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Notify, OwnedMutexGuard};

/// Fair locks by name, kept only while somebody wants them.
#[derive(Debug)]
pub(crate) struct Queues<K>(Arc<Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>>);

impl<K> Clone for Queues<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Queues<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A place at the front of a queue.
pub(crate) struct Front<K: Eq + Hash> {
    guard: Option<OwnedMutexGuard<()>>,
    lock: Option<Arc<tokio::sync::Mutex<()>>>,
    key: K,
    queues: Queues<K>,
}

impl<K: Eq + Hash + Clone> Queues<K> {
    fn lock_of(&self, key: &K) -> Arc<tokio::sync::Mutex<()>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = map.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        map.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// One's turn, if nobody else wants it.
    pub(crate) fn try_enter(&self, key: &K) -> Option<Front<K>> {
        let lock = self.lock_of(key);
        let guard = lock.clone().try_lock_owned().ok();
        // Made all the same: it takes the lock away that nobody got.
        let front = Front { guard, lock: Some(lock), key: key.clone(), queues: self.clone() };
        front.guard.is_some().then_some(front)
    }

    /// Waits for one's turn, first come first served.
    pub(crate) async fn enter(&self, key: K) -> Front<K> {
        let lock = self.lock_of(&key);
        let mut front = Front { guard: None, lock: Some(lock.clone()), key, queues: self.clone() };
        front.guard = Some(lock.lock_owned().await);
        front
    }
}

impl<K: Eq + Hash> Drop for Front<K> {
    fn drop(&mut self) {
        self.guard = None;
        let mut map = self.queues.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock = None;
        if map.get(&self.key).is_some_and(|lock| lock.strong_count() == 0) {
            map.remove(&self.key);
        }
    }
}

/// News by session number, for those in this process who wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct News(Arc<Mutex<HashMap<u64, Weak<Notify>>>>);

impl News {
    /// Something that is told of each write to the session, from now on.
    pub(crate) fn of(&self, num: u64) -> Arc<Notify> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() > 1024 {
            map.retain(|_, notify| notify.strong_count() > 0);
        }
        let slot = map.entry(num).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let notify = Arc::new(Notify::new());
            *slot = Arc::downgrade(&notify);
            notify
        })
    }

    /// Drops what nobody waits for any more.
    #[cfg(feature = "sqlite")]
    pub(crate) fn drop_unused(&self) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, notify| notify.strong_count() > 0);
        map.shrink_to_fit();
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn tell(&self, num: u64) {
        let notify = {
            let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match map.get(&num).map(Weak::upgrade) {
                None => return,
                Some(None) => {
                    map.remove(&num);
                    return;
                }
                Some(Some(notify)) => notify,
            }
        };
        notify.notify_waiters();
    }
}
